#include "tapestry/data/text/packed_sequences.h"

#include <algorithm>
#include <map>

#include "tapestry/core/error.h"

namespace tapestry::data {

struct PackedSequences::Packed {
  // Tokens `first` to `first + count` of all documents; the last of these is a target alone.
  struct Piece {
    std::int64_t first, count;
  };
  PackOptions options;
  std::vector<std::int32_t> ids;
  std::vector<bool> answer;
  std::vector<std::vector<Piece>> sequences;
  std::int64_t targets = 0;
};

PackedSequences::PackedSequences(const std::vector<EncodedChat>& documents, PackOptions options) {
  const char* const op = "PackedSequences";
  check(options.length >= 1 && options.length <= (std::int64_t{1} << 30), "[", op, "] length is ",
        options.length, "; it must be positive");
  auto packed = std::make_shared<Packed>();
  packed->options = options;
  std::multimap<std::int64_t, std::size_t> room;  // of sequences that are not full
  std::size_t number = 0;
  for (const EncodedChat& d : documents) {
    check(d.ids.size() == d.answer.size(), "[", op, "] document ", number, " has ", d.ids.size(),
          " tokens and ", d.answer.size(), " marks of answers; give one for each token");
    auto places = static_cast<std::int64_t>(d.ids.size()) - 1;
    check(options.split || places <= options.length, "[", op, "] document ", number, " has ", d.ids.size(),
          " tokens, and a sequence takes ", options.length + 1,
          "; truncate it, set split, or choose a greater ", "length");
    ++number;
    if (places < 1) continue;
    auto first = static_cast<std::int64_t>(packed->ids.size());
    for (const std::int64_t id : d.ids) {
      check(id >= 0 && id <= INT32_MAX, "[", op, "] the id ", id, " of document ", number - 1,
            " is negative or does not fit into 32 bits");
      packed->ids.push_back(static_cast<std::int32_t>(id));
    }
    packed->answer.insert(packed->answer.end(), d.answer.begin(), d.answer.end());
    packed->targets += std::count(d.answer.begin() + 1, d.answer.end(), true);
    while (places > 0) {
      auto found = options.split ? room.begin() : room.lower_bound(places);
      if (found == room.end()) {
        packed->sequences.emplace_back();
        found = room.emplace(options.length, packed->sequences.size() - 1);
      }
      const auto [left, sequence] = *found;
      const std::int64_t count = (std::min)(left, places);
      packed->sequences[sequence].push_back({first, count});
      room.erase(found);
      if (left > count) room.emplace(left - count, sequence);
      first += count, places -= count;
    }
  }
  check(packed->targets > 0, "[", op, "] no token of the ", documents.size(),
        " documents is a target of the loss");
  packed_ = std::move(packed);
}

std::int64_t PackedSequences::size() const { return static_cast<std::int64_t>(packed_->sequences.size()); }
std::int64_t PackedSequences::targets() const { return packed_->targets; }

PackedSequence PackedSequences::get(std::int64_t index) const {
  detail::check_index("PackedSequences", index, size());
  const Packed& p = *packed_;
  const TensorOptions options(DType::i64, kCPU);
  const Shape sizes{p.options.length};
  const PackedSequence out{empty(sizes, options), empty(sizes, options), empty(sizes, options)};
  auto *ids = out.ids.data<std::int64_t>(), *targets = out.targets.data<std::int64_t>(),
       *documents = out.documents.data<std::int64_t>();
  std::int64_t at = 0, number = 0;
  for (const auto& [first, count] : p.sequences[static_cast<std::size_t>(index)]) {
    for (std::int64_t i = first; i < first + count; ++i, ++at) {
      const auto next = static_cast<std::size_t>(i) + 1;
      ids[at] = p.ids[next - 1];
      targets[at] = p.answer[next] ? p.ids[next] : -100;
      documents[at] = number;
    }
    ++number;
  }
  for (; at < p.options.length; ++at) ids[at] = p.options.padding, targets[at] = -100, documents[at] = number;
  return out;
}

}  // namespace tapestry::data
