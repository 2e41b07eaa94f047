#pragma once
// Files that the system reads into memory when they are accessed (mmap).
#include <cstdint>
#include <memory>
#include <string>

namespace tapestry::detail {

/// A file in memory, copied on write: tensors may share its pages, because changes stay in this process and
/// never reach the file. The file must not become shorter while it is mapped: reading what is gone would end
/// the program (SIGBUS). A file that AtomicFile replaces is safe, because the mapping keeps the old one.
class FileMapping {
 public:
  /// Errors begin with [op] and the path. Throws IoError unless `path` is a regular file that can be read.
  static std::shared_ptr<FileMapping> open(const char* op, const std::string& path);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  std::uint8_t* data() const { return data_; }
  std::uint64_t size() const { return size_; }

 private:
  FileMapping() = default;
  std::uint8_t* data_ = nullptr;
  std::uint64_t size_ = 0;
};

/// Takes the pages of a FileMapping that lie whole in these bytes out of this process's memory: the next
/// access maps them again, from the system's cache of the file. Does nothing for other memory. Nobody may
/// have changed the bytes, because changes would be lost.
void release_pages(const std::uint8_t* data, std::uint64_t bytes);

}  // namespace tapestry::detail
