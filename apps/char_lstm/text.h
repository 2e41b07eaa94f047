#pragma once
// A text as a sequence of small integers, and batches of it.
#include <cstdint>
#include <string>
#include <utility>

#include "tapestry/core/tensor.h"

namespace apps {

/// The characters (bytes) of a text in ascending order. Token k is character k.
class Vocabulary {
 public:
  /// The characters that occur in `text`.
  explicit Vocabulary(const std::string& text);
  /// The characters with these codes, i64.
  explicit Vocabulary(const tapestry::Tensor& codes);
  tapestry::Tensor codes() const;
  std::int64_t size() const { return static_cast<std::int64_t>(characters_.size()); }
  /// The tokens of a text, i64 (length). Throws ValueError for a character that is not in the vocabulary.
  tapestry::Tensor tokens(const std::string& text) const;
  char character(std::int64_t token) const { return characters_.at(static_cast<std::size_t>(token)); }

 private:
  std::string characters_;
};

/// Returns the bytes of a file. Throws IoError.
std::string load_text(const std::string& path);

/// `batch` streams of consecutive tokens. Stream n is the n-th part of the text, and each piece of `length`
/// steps continues where the piece before it ended, so that a model can keep its state between pieces.
class Streams {
 public:
  /// Throws ValueError if the text is shorter than one piece.
  Streams(const tapestry::Tensor& tokens, std::int64_t batch, std::int64_t length);
  std::int64_t pieces() const { return pieces_; }
  /// The inputs of piece i and the tokens that follow them, both (length, batch).
  std::pair<tapestry::Tensor, tapestry::Tensor> piece(std::int64_t i) const;

 private:
  std::int64_t length_, pieces_;
  tapestry::Tensor by_step_;  // (steps, batch)
};

}  // namespace apps
