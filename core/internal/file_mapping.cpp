#include "tapestry/core/internal/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "tapestry/core/error.h"

namespace tapestry::detail {
namespace {

// The addresses of all mappings, with their sizes.
struct Mappings {
  std::mutex mutex;
  std::map<std::uintptr_t, std::uint64_t> sizes;
};
Mappings& mappings() {
  static auto* const all = new Mappings;  // never destroyed: static objects may own mappings
  return *all;
}
std::uintptr_t address(const std::uint8_t* data) { return reinterpret_cast<std::uintptr_t>(data); }

}  // namespace

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
    const std::lock_guard lock(mappings().mutex);
    mappings().sizes[address(mapping->data_)] = mapping->size_;
  }
  return mapping;
}

FileMapping::~FileMapping() {
  if (!data_) return;
  {
    const std::lock_guard lock(mappings().mutex);
    mappings().sizes.erase(address(data_));
  }
  ::munmap(data_, static_cast<std::size_t>(size_));
}

void release_pages(const std::uint8_t* data, std::uint64_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = (address(data) + page - 1) / page * page,
                       last = (address(data) + bytes) / page * page;
  if (first >= last) return;
  const std::lock_guard lock(mappings().mutex);  // the mapping must not end meanwhile
  const auto& all = mappings().sizes;
  auto at = all.upper_bound(address(data));
  if (at == all.begin() || address(data) + bytes > (--at)->first + at->second) return;
  ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);  // a hint: failing changes nothing
}

}  // namespace tapestry::detail
