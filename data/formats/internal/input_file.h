#pragma once
// Reads files that may be gzipped and may be corrupted or hostile.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tapestry::data {

/// Reads a file, and decompresses it if it begins like a gzip file. All functions throw IoError that names
/// the file and the problem.
class InputFile {
 public:
  /// Errors begin with `format` and the path: "[read_idx] train.gz: ...".
  InputFile(const char* format, const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// Reads exactly `bytes` bytes. Throws if the file ends before.
  void read(void* out, std::size_t bytes, const char* what);
  /// Throws unless the whole file was read, including the checksum of a gzip file.
  void expect_end();
  /// Throws if the file cannot hold `bytes` more bytes. Call it before allocating them. A gzip file is
  /// assumed to expand by at most 1032 to 1, which is the limit of deflate.
  void expect_room(std::uint64_t bytes, const char* what) const;
  /// The number of unread bytes of an uncompressed file.
  std::uint64_t remaining() const;
  bool compressed() const;
  [[noreturn]] void broken(const std::string& what) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tapestry::data
