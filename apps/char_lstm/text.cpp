#include "tapestry/apps/char_lstm/text.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <vector>

#include "tapestry/tapestry.h"

namespace apps {

using namespace tapestry;

Vocabulary::Vocabulary(const std::string& text) : characters_(text) {
  const auto code = [](char c) { return static_cast<unsigned char>(c); };
  std::array<bool, 256> occurs{};
  for (const char c : text) occurs[code(c)] = true;
  characters_.clear();
  for (std::size_t c = 0; c < occurs.size(); ++c)
    if (occurs[c]) characters_ += static_cast<char>(c);
}

Vocabulary::Vocabulary(const Tensor& codes) {
  const Tensor host = codes.detach().to(kCPU, DType::i64).contiguous();
  for (std::int64_t k = 0; k < host.numel(); ++k)
    characters_ += static_cast<char>(host.data<std::int64_t>()[k]);
}

Tensor Vocabulary::codes() const {
  std::vector<std::int64_t> codes;
  for (const char c : characters_) codes.push_back(static_cast<unsigned char>(c));
  return tensor(codes);
}

Tensor Vocabulary::tokens(const std::string& text) const {
  std::array<std::int64_t, 256> token;
  token.fill(-1);
  for (std::size_t k = 0; k < characters_.size(); ++k)
    token[static_cast<unsigned char>(characters_[k])] = static_cast<std::int64_t>(k);
  std::vector<std::int64_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) {
    const int code = static_cast<unsigned char>(c);
    check(token[static_cast<std::size_t>(code)] >= 0, "[char_lstm] the model does not know the character '",
          std::string(1, c), "' (code ", code, "); use characters of the training text");
    tokens.push_back(token[static_cast<std::size_t>(code)]);
  }
  return tensor(tokens);
}

std::string load_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  check<IoError>(file.is_open() && !file.bad(), "[char_lstm] cannot read ", path);
  return text;
}

Streams::Streams(const Tensor& tokens, std::int64_t batch, std::int64_t length) : length_(length) {
  const std::int64_t steps = tokens.size(0) / batch;  // of each stream
  pieces_ = (steps - 1) / length;
  check(pieces_ > 0, "[char_lstm] the text has ", tokens.size(0), " characters, but a batch needs ",
        batch * (length + 1), "; pass a longer text, or a smaller --batch or --unroll");
  by_step_ = tokens.narrow(0, 0, steps * batch).reshape({batch, steps}).transpose(0, 1).contiguous();
}

std::pair<Tensor, Tensor> Streams::piece(std::int64_t i) const {
  return {by_step_.narrow(0, i * length_, length_), by_step_.narrow(0, i * length_ + 1, length_)};
}

}  // namespace apps
