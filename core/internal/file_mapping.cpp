#include "tapestry/core/internal/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tapestry/core/error.h"

namespace tapestry::detail {

std::shared_ptr<FileMapping> FileMapping::open(const char* op, const std::string& path) {
  // O_NONBLOCK: opening a FIFO would block until another process opens it for writing.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) fail<IoError>("[", op, "] ", path, ": cannot be opened: ", std::strerror(errno));
  struct Close {
    int file;
    ~Close() { ::close(file); }
  } const at_end{file};
  struct stat status {};
  const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  check<IoError>(regular, "[", op, "] ", path, ": is not a regular file");
  std::shared_ptr<FileMapping> mapping(new FileMapping());
  if (status.st_size > 0) {
    // MAP_NORESERVE: pages that nobody changes need no memory beyond the page cache, so the system need not
    // reserve any.
    void* const data = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_NORESERVE, file, 0);
    if (data == MAP_FAILED) fail<IoError>("[", op, "] ", path, ": cannot be mapped: ", std::strerror(errno));
    mapping->data_ = static_cast<std::uint8_t*>(data);
    mapping->size_ = static_cast<std::uint64_t>(status.st_size);
  }
  return mapping;
}

FileMapping::~FileMapping() {
  if (data_) ::munmap(data_, static_cast<std::size_t>(size_));
}

}  // namespace tapestry::detail
