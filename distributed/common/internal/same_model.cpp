#include "tapestry/distributed/common/internal/same_model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/hash.h"
#include "tapestry/distributed/comm/text.h"

namespace tapestry::distributed {
namespace {

// The bytes of one message of a broadcast, unless a single tensor is larger.
constexpr std::int64_t kBroadcastBytes = 25 << 20;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// The lines of `mine` that `others` lacks, in order, at most `most` of them.
std::string difference(const std::vector<std::string>& mine, const std::vector<std::string>& others,
                       std::size_t most) {
  std::string text;
  std::size_t count = 0;
  for (const std::string& line : mine)
    if (std::find(others.begin(), others.end(), line) == others.end() && ++count <= most)
      text += "\n    " + line;
  if (count > most) text += "\n    and " + std::to_string(count - most) + " more";
  return text.empty() ? "\n    nothing that is missing; only the order differs" : text;
}

// The first line of `mine` that differs from the line of `other` at the same place.
std::string first_difference(const std::string& mine, const std::string& other) {
  const std::size_t at = static_cast<std::size_t>(
      std::mismatch(mine.begin(), mine.end(), other.begin(), other.end()).first - mine.begin());
  const std::size_t begin = at == 0 ? 0 : mine.rfind('\n', at - 1) + 1;
  return begin < mine.size() ? mine.substr(begin, mine.find('\n', begin) - begin) : "(nothing)";
}

// Hashes the values in row-major order, so the memory layout does not matter.
std::uint64_t hash_of(const Tensor& t) {
  const Tensor values = t.detach().to(kCPU).contiguous();
  const auto* bytes = static_cast<const unsigned char*>(values.raw_data());
  std::uint64_t hash = 0;
  for (std::size_t left = values.nbytes(); left > 0;) {
    std::uint64_t word = 0;
    const std::size_t size = std::min(left, sizeof word);
    std::memcpy(&word, bytes, size);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    bytes += size, left -= size;
  }
  return hash;
}

}  // namespace

std::string describe_tensors(const NamedTensors& tensors, const char* what) {
  std::string text;
  for (const auto& [name, t] : tensors)
    text +=
        concat({what, " ", name, " ", t.dtype(), " ", t.sizes(), t.requires_grad() ? "" : " frozen", "\n"});
  return text;
}

void check_same_model(ProcessGroup& group, const char* op, const std::string& mine) {
  const auto own = std::bit_cast<std::int64_t>(fnv1a(mine));
  const std::vector<std::int64_t> hashes = all_gather_numbers(group, {&own, 1}, "hash of parameters");
  if (std::all_of(hashes.begin(), hashes.end(), [&](std::int64_t h) { return h == hashes[0]; })) return;

  const std::vector<std::string> lists = all_gather_text(group, mine, "list of parameters");
  const std::vector<std::string> first = lines_of(lists[0]);
  std::string text;
  for (std::size_t r = 1; r < lists.size(); ++r) {
    if (lists[r] == lists[0]) continue;
    const std::vector<std::string> other = lines_of(lists[r]);
    text += concat({"\n  only rank ", r, " has:"}) + difference(other, first, 10);
    text += concat({"\n  only rank 0 has, compared with rank ", r, ":"}) + difference(first, other, 10);
  }
  fail("[", op, "] the model is not the same on all ranks:", text,
       "\n  construct it with the same options on every rank");
}

void check_same_lines(ProcessGroup& group, const char* op, std::string_view what, const std::string& mine,
                      std::string_view remedy) {
  const auto own = std::bit_cast<std::int64_t>(fnv1a(mine));
  const std::vector<std::int64_t> hashes = all_gather_numbers(group, {&own, 1}, concat({"hash of ", what}));
  if (std::all_of(hashes.begin(), hashes.end(), [&](std::int64_t h) { return h == hashes[0]; })) return;
  const std::vector<std::string> texts = all_gather_text(group, mine, what);
  for (std::size_t r = 1; r < texts.size(); ++r)
    check(texts[r] == texts[0], "[", op, "] the ", what,
          " of the ranks differ:\n  rank 0: ", first_difference(texts[0], texts[r]), "\n  rank ", r, ": ",
          first_difference(texts[r], texts[0]), "\n", remedy);
}

void check_same_values(ProcessGroup& group, const char* op, const NamedTensors& parameters) {
  const NoGradGuard no_grad;
  std::vector<std::int64_t> own;
  for (const auto& [name, t] : parameters) own.push_back(std::bit_cast<std::int64_t>(hash_of(t)));
  const std::size_t count = own.size(), ranks = static_cast<std::size_t>(group.size());
  const std::vector<std::int64_t> all = all_gather_numbers(group, own, "hashes of parameters");
  std::string text;
  std::size_t differ = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t r = 1;
    while (r < ranks && all[r * count + i] == all[i]) ++r;
    if (r < ranks && ++differ <= 3)
      text += concat({"\n  ", parameters[i].first, " of rank ", r, " differs from rank 0's"});
  }
  if (differ > 3) text += concat({"\n  and ", differ - 3, " more"});
  check(differ == 0, "[", op, "] the ranks train different weights:", text,
        "\n  make the same changes (load_state_dict, an init function) on all ranks, or make them before the "
        "model is wrapped, which broadcasts rank 0's values");
}

namespace {
bool is_cut_by(const nn::TensorSlot& slot, const ProcessGroup& group) {
  const auto& cuts = slot.layout()->cuts();
  return std::any_of(cuts.begin(), cuts.end(), [&](const nn::Cut& cut) {
    return cut.dim >= 0 && cut.group->size() > 1 && cut.group->id(0) == &group;
  });
}
}  // namespace

bool may_have_equal_parts(const nn::TensorSlot& slot, const ProcessGroup& group) {
  if (!slot.layout()) return true;
  const nn::Layout& layout = *slot.layout();
  return layout.full_boxes(0) == layout.boxes(0) && !is_cut_by(slot, group);
}

bool is_divided_along(const nn::TensorSlot& slot, const Axis& axis) {
  return slot.layout() && is_cut_by(slot, *axis.group());
}

std::string describe_part(const std::string& name, const nn::TensorSlot& slot) {
  const auto& layout = slot.layout();
  if (!layout || layout->boxes(0) == nn::Boxes{{nn::Region::whole(layout->whole_sizes())}}) return {};
  return concat({name, " has ", layout->boxes(0).str(), " of ", layout->whole_sizes(), "\n"});
}

void broadcast_values(ProcessGroup& group, const NamedTensors& tensors, std::string_view what, int root) {
  const NoGradGuard no_grad;
  std::map<std::pair<DType, std::string>, std::vector<Tensor>> kinds;
  for (const auto& [name, t] : tensors) kinds[{t.dtype(), t.device().str()}].push_back(t);
  for (auto& [kind, list] : kinds) {
    for (std::size_t begin = 0; begin < list.size();) {
      std::int64_t elements = 0;
      std::size_t end = begin;
      while (end < list.size() &&
             (end == begin ||
              (elements + list[end].numel()) * static_cast<std::int64_t>(dtype_size(kind.first)) <=
                  kBroadcastBytes))
        elements += list[end++].numel();
      const Tensor flat = empty({elements}, {kind.first, list[begin].device()});
      std::int64_t at = 0;
      for (std::size_t i = begin; i < end; at += list[i++].numel())
        if (group.rank() == root)
          flat.narrow(0, at, list[i].numel()).view(list[i].sizes()).copy_(list[i].detach());
      group.broadcast(flat, root, what).wait();
      at = 0;
      for (std::size_t i = begin; i < end; at += list[i++].numel())
        if (group.rank() != root)
          list[i].detach().copy_(flat.narrow(0, at, list[i].numel()).view(list[i].sizes()));
      begin = end;
    }
  }
}

namespace {

// Collective over `others`: throws on all of them if one has an error.
void share_error(ProcessGroup& others, const std::string& own) {
  const std::int64_t failed = !own.empty();
  const std::vector<std::int64_t> all = all_gather_numbers(others, {&failed, 1}, "whether ranks differ");
  if (std::all_of(all.begin(), all.end(), [](std::int64_t f) { return f == 0; })) return;
  const std::vector<std::string> texts = all_gather_text(others, own, "how ranks differ");
  for (const std::string& text : texts)
    if (!text.empty()) fail(own.empty() ? text : own);
}

}  // namespace

void compare_in_grid(const RankGrid& grid, const std::function<void(ProcessGroup&)>& compare) {
  if (!grid.replicas) return compare(*grid.group);
  // An error of a row is one of a member of each column, and the other way round.
  const auto compare_and_share = [&](ProcessGroup& own, ProcessGroup& others) {
    std::string error;
    try {
      compare(own);
    } catch (const ValueError& e) {
      error = concat({e.what(), "\n  these are the ranks of the group ", own.name()});
    }
    share_error(others, error);
  };
  compare_and_share(*grid.group, *grid.replicas);
  compare_and_share(*grid.replicas, *grid.group);
}

void broadcast_in_grid(const RankGrid& grid, const NamedTensors& values, const NamedTensors& own_part,
                       std::string_view what) {
  broadcast_values(*grid.group, values, what);
  if (grid.replicas) broadcast_values(*grid.replicas, own_part, what);
}

std::string listed(const std::vector<std::string>& names, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

}  // namespace tapestry::distributed
