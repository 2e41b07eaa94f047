#include "tapestry/apps/gpt/corpus.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/error.h"
#include "tapestry/data/formats/text.h"
#include "tapestry/data/tokenizer/bpe_trainer.h"

namespace apps::gpt {

using namespace tapestry;

namespace {

constexpr const char* kSeparator = "<|endoftext|>";

// The position in a text nearest after `at` at which a line begins, or at least a character.
std::size_t border(std::string_view text, std::size_t at) {
  if (at >= text.size()) return text.size();
  if (const std::size_t line = text.find('\n', at); line != std::string_view::npos) return line + 1;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

struct Piece {
  std::string_view text;
  const std::string& path;
};

std::vector<std::int32_t> encode(const data::Tokenizer& tokenizer, const std::vector<Piece>& pieces,
                                 std::int64_t separator) {
  std::vector<std::int32_t> all;
  for (const Piece& piece : pieces) {
    if (piece.text.empty()) continue;
    std::vector<std::int64_t> ids;
    try {
      ids = tokenizer.encode(piece.text, {.add_special = false});
    } catch (const ValueError& e) {
      fail("[gpt] ", piece.path, ": ", e.what());
    }
    if (separator >= 0 && (ids.empty() || ids.front() != separator))
      all.push_back(static_cast<std::int32_t>(separator));
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

Corpus read_texts(const CorpusOptions& o) {
  std::vector<data::MappedFile> files;
  files.reserve(o.text.size() + o.held_out.size());
  std::vector<Piece> train, held_out;
  std::size_t bytes = 0;
  for (const std::string& path : o.text) {
    files.emplace_back("gpt", path);
    train.push_back({{files.back().data(), files.back().size()}, path});
    bytes += files.back().size();
  }
  for (const std::string& path : o.held_out) {
    files.emplace_back("gpt", path);
    held_out.push_back({{files.back().data(), files.back().size()}, path});
  }
  if (o.held_out.empty()) {
    // The end of all files together.
    std::size_t keep = bytes - static_cast<std::size_t>(static_cast<double>(bytes) * o.held_out_part);
    for (Piece& piece : train) {
      const std::size_t at = keep < piece.text.size() ? border(piece.text, keep) : piece.text.size();
      keep -= std::min(keep, piece.text.size());
      if (at < piece.text.size()) held_out.push_back({piece.text.substr(at), piece.path});
      piece.text = piece.text.substr(0, at);
    }
  }
  Corpus corpus;
  if (!o.tokenizer.empty()) {
    corpus.tokenizer = data::read_tokenizer_parts(o.tokenizer);
  } else {
    std::string text;
    if (o.vocab_size > 257)
      for (const Piece& piece : train) text.append(piece.text);
    try {
      corpus.tokenizer = data::train_bpe(text, {.vocab_size = o.vocab_size, .special = {kSeparator}});
    } catch (const ValueError& e) {
      fail("[gpt] the vocabulary cannot be trained from these files: ", e.what());
    }
  }
  const data::Tokenizer tokenizer(*corpus.tokenizer);
  if (const auto id = tokenizer.id_of(kSeparator); id && tokenizer.is_special(*id)) corpus.separator = *id;
  corpus.train = encode(tokenizer, train, corpus.separator);
  corpus.held_out = encode(tokenizer, held_out, corpus.separator);
  return corpus;
}

Corpus read_tokens(const CorpusOptions& o) {
  Corpus corpus;
  corpus.separator = o.separator;
  const auto append = [&](const std::vector<std::string>& paths, std::vector<std::int32_t>& out) {
    for (const std::string& path : paths) {
      const std::vector<std::int32_t> ids = read_token_file(path);
      if (o.vocab_size > 0)
        for (std::size_t i = 0; i < ids.size(); ++i)
          check<IoError>(ids[i] >= 0 && ids[i] < o.vocab_size, "[gpt] ", path, " has token ", ids[i],
                         " at position ", i, ", but the vocabulary has ", o.vocab_size,
                         " tokens; pass the vocabulary's size, or another file");
      out.insert(out.end(), ids.begin(), ids.end());
    }
  };
  append(o.tokens, corpus.train);
  append(o.held_out, corpus.held_out);
  if (o.held_out.empty()) {
    const auto n = static_cast<std::ptrdiff_t>(static_cast<double>(corpus.train.size()) * o.held_out_part);
    corpus.held_out.assign(corpus.train.end() - n, corpus.train.end());
    corpus.train.resize(corpus.train.size() - static_cast<std::size_t>(n));
  }
  if (!o.tokenizer.empty()) corpus.tokenizer = data::read_tokenizer_parts(o.tokenizer);
  return corpus;
}

// SplitMix64 (Steele et al. 2014): the same numbers with every standard library, and in any language.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) : state_(mix(seed) ^ stream) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(mix(state_ += kStep) % static_cast<std::uint64_t>(n));
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

}  // namespace

Corpus read_corpus(const CorpusOptions& o) { return o.text.empty() ? read_tokens(o) : read_texts(o); }

std::vector<std::int32_t> read_token_file(const std::string& path) {
  const data::MappedFile file("gpt", path);
  constexpr std::size_t kHeader = 256 * sizeof(std::int32_t);
  std::int32_t header[3] = {};
  check<IoError>(file.size() >= kHeader, "[gpt] ", path, " has ", file.size(),
                 " bytes, fewer than the header of llm.c's token files");
  std::memcpy(header, file.data(), sizeof header);
  const bool wide = header[0] == 20240801;
  check<IoError>(wide || header[0] == 20240520, "[gpt] ", path, " begins with ", header[0],
                 "; llm.c's token files begin with 20240520 or 20240801");
  check<IoError>(header[1] == (wide ? 7 : 1), "[gpt] ", path, " has version ", header[1],
                 " of the format, which is not supported");
  const std::size_t size = wide ? 4 : 2, count = static_cast<std::size_t>(std::max(header[2], 0));
  check<IoError>(header[2] > 0 && file.size() == kHeader + count * size, "[gpt] ", path, " claims to have ",
                 header[2], " tokens of ", size, " bytes, but has ", file.size() - kHeader,
                 " bytes after the header");
  std::vector<std::int32_t> ids(count);
  const char* const data = file.data() + kHeader;
  if (wide) {
    std::memcpy(ids.data(), data, count * size);
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint16_t id = 0;
      std::memcpy(&id, data + i * size, size);
      ids[i] = id;
    }
  }
  return ids;
}

Windows::Windows(const std::vector<std::int32_t>& tokens, std::int64_t length, std::int64_t separator,
                 std::uint64_t seed)
    : tokens_(tokens), length_(length), separator_(separator), seed_(seed) {
  const auto size = static_cast<std::int64_t>(tokens.size());
  check(size > length, "[gpt] the text has ", size, " tokens, but a window of the context needs ", length + 1,
        "; pass more text, or a smaller --context");
  count_ = std::max<std::int64_t>((size - length) / length, 1);
}

void Windows::shuffle(std::int64_t pass) {
  if (pass == pass_) return;
  Random random(seed_, static_cast<std::uint64_t>(pass));
  // Every pass cuts the text at other places.
  offset_ = random.below(static_cast<std::int64_t>(tokens_.size()) - count_ * length_);
  order_.resize(static_cast<std::size_t>(count_));
  std::iota(order_.begin(), order_.end(), 0);
  for (std::size_t i = order_.size() - 1; i > 0; --i)
    std::swap(order_[i], order_[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i) + 1))]);
  pass_ = pass;
}

Batch Windows::batch(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> begins;
  for (std::int64_t i = first; i < first + count; ++i) {
    shuffle(i / count_);
    begins.push_back(offset_ + order_[static_cast<std::size_t>(i % count_)] * length_);
  }
  return at(begins);
}

Batch Windows::in_order(std::int64_t first, std::int64_t count) const {
  std::vector<std::int64_t> begins;
  for (std::int64_t i = first; i < first + count; ++i) begins.push_back(i * length_);
  return at(begins);
}

Batch Windows::at(const std::vector<std::int64_t>& begins) const {
  const auto rows = static_cast<std::int64_t>(begins.size());
  std::vector<std::int64_t> ids, targets, documents;
  bool several = false;
  for (const std::int64_t begin : begins) {
    std::int64_t document = 0;
    for (std::int64_t i = begin; i < begin + length_; ++i) {
      const std::int32_t id = tokens_[static_cast<std::size_t>(i)];
      if (id == separator_ && i > begin) ++document;
      ids.push_back(id);
      targets.push_back(tokens_[static_cast<std::size_t>(i) + 1]);
      documents.push_back(document);
    }
    several = several || document > 0;
  }
  Batch batch{tensor(ids, {rows, length_}), tensor(targets, {rows, length_}), {}};
  if (several) batch.documents = tensor(documents, {rows, length_});
  return batch;
}

}  // namespace apps::gpt
