#pragma once
// Text for language models: the lines of a file, and windows of a file of token ids.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/data/dataset.h"

namespace tapestry::data {

/// A file in memory that the system reads when it is accessed (mmap). Copies share it. The file must not
/// become shorter while it is mapped: reading what is gone would end the program (SIGBUS).
class MappedFile {
 public:
  /// Errors begin with [op]. Throws IoError unless `path` is a regular file that can be read.
  MappedFile(const char* op, const std::string& path);
  const char* data() const;
  std::size_t size() const;

 private:
  struct Mapping;
  std::shared_ptr<const Mapping> mapping_;
};

/// The lines of a text file. Sample i is line i without its end ("\n" or "\r\n"). The file is not copied to
/// memory; the constructor reads it once to find the lines.
class TextDataset : public Dataset<std::string> {
 public:
  struct Options {
    bool skip_empty = false;  ///< leave out lines without characters
  };
  explicit TextDataset(const std::string& path) : TextDataset(path, Options()) {}
  TextDataset(const std::string& path, Options options);
  std::int64_t size() const override { return static_cast<std::int64_t>(lines_->size()); }
  std::string get(std::int64_t index) const override { return std::string(line(index)); }
  /// Line `index` in the mapped file, which lives as long as the dataset.
  std::string_view line(std::int64_t index) const;

 private:
  MappedFile file_;
  std::shared_ptr<const std::vector<std::string_view>> lines_;
};

/// The integer type of a file of token ids, little-endian.
enum class TokenType : std::uint8_t { u8, u16, i32, i64 };

/// Windows of a file of token ids, for language models that predict the next token. The file contains nothing
/// but ids, as numpy's tofile() writes them. Sample i is the window that begins at id i * stride: the input
/// i64 [length] and the target i64 [length], which is the window that begins one id later.
class TokenDataset : public Dataset<Example> {
 public:
  struct Options {
    std::int64_t length = 256;  ///< tokens in a window
    std::int64_t stride = 0;    ///< ids from one window to the next; 0 means `length`
    TokenType type = TokenType::u16;
    std::int64_t vocab_size =
        0;  ///< get() throws ValueError for ids outside of [0, vocab_size), unless it is 0
  };
  /// Throws IoError if the file cannot be read, holds a part of an id, or is shorter than one window.
  TokenDataset(const std::string& path, Options options);
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override;
  std::optional<Example> get_batch(std::span<const std::int64_t> indices) const override;
  /// The number of ids in the file.
  std::int64_t tokens() const { return tokens_; }

 private:
  void copy_window(std::int64_t index, std::int64_t* input, std::int64_t* target) const;
  std::string path_;
  MappedFile file_;
  Options options_;
  std::int64_t tokens_ = 0, size_ = 0;
};

}  // namespace tapestry::data
