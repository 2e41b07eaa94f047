#pragma once
// Reading files that may be gzipped, and may lie. Not in tapestry.h: for the formats here.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tapestry::data {

/// Bytes of a file, decompressed on the way if it begins like a gzip file. All functions throw IoError that
/// names the file and what is wrong with it.
class InputFile {
 public:
  /// `format` begins the errors: "[read_idx] train.gz: ...".
  InputFile(const char* format, const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// Exactly `bytes` more; throws if the file ends before.
  void read(void* out, std::size_t bytes, const char* what);
  /// Throws unless all was read, the checksum of a gzip file included.
  void expect_end();
  /// Throws if the file cannot hold `bytes` more, before anybody allocates them: compared with the size of
  /// the file, or what the best case of deflate (1032 to 1) could make of it.
  void expect_room(std::uint64_t bytes, const char* what) const;
  /// Bytes that are left in a file that is not compressed.
  std::uint64_t remaining() const;
  bool compressed() const;
  [[noreturn]] void broken(const std::string& what) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tapestry::data
