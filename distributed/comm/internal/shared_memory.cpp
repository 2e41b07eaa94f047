#include "tapestry/distributed/comm/internal/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tapestry/core/internal/limits.h"
#include "tapestry/distributed/comm/error.h"
#include "tapestry/distributed/comm/internal/block_signals.h"
#include "tapestry/distributed/comm/internal/sha256.h"

namespace tapestry::distributed {
namespace {

/// Takes the parts of the text as they are, because concatenating them may change errno.
template <class... Parts>
[[noreturn]] void fail_with_errno(const Parts&... parts) {
  const int error = errno;
  fail<DistributedError>("[shared_memory] ", parts..., ": ", std::strerror(error), detail::memory_limits(),
                         "; give this host or container more memory, or set TAPESTRY_SHARED_MEMORY=0");
}

std::string process_namespace() {
  char name[sizeof SharedMemoryAddress::process_namespace] = "";
  const ssize_t length = readlink("/proc/self/ns/pid", name, sizeof name - 1);
  return {name, length > 0 ? static_cast<std::size_t>(length) : 0};
}

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes) : size_(bytes + kHeader) {
  rlimit files{};
  // If the size exceeded RLIMIT_FSIZE, the kernel would send SIGXFSZ instead of returning an error. So it is
  // compared with this limit first.
  if (getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur != RLIM_INFINITY)
    check<DistributedError>(files.rlim_cur >= size_, "[shared_memory] files here are limited to ",
                            files.rlim_cur, " bytes (ulimit -f), and ", size_, " are needed");
  descriptor_ = memfd_create("tapestry", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor_ < 0) fail_with_errno("memfd_create");
  try {
    // All pages are reserved now, because a page that cannot be allocated later raises SIGBUS. The seals keep
    // other processes from shrinking the file. Signals are blocked, because they interrupt fallocate (EINTR)
    // before Linux 6.18, and a profiler sends them faster than fallocate finishes.
    const BlockSignals until_reserved;
    if (ftruncate(descriptor_, static_cast<off_t>(size_)) != 0 ||
        fallocate(descriptor_, 0, 0, static_cast<off_t>(size_)) != 0)
      fail_with_errno("cannot reserve ", size_, " bytes");
    if (fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
      fail_with_errno("F_ADD_SEALS");
    map();
    std::memcpy(base_, random_bytes(sizeof SharedMemoryAddress::token).data(),
                sizeof SharedMemoryAddress::token);
  } catch (...) {
    close();
    throw;
  }
}

SharedMemory::SharedMemory(const SharedMemoryAddress& address)
    : size_(static_cast<std::size_t>(address.bytes)) {
  const std::string theirs(address.process_namespace,
                           strnlen(address.process_namespace, sizeof address.process_namespace));
  check<DistributedError>(theirs == process_namespace(), "[shared_memory] process ", address.process,
                          " is in the PID namespace ", theirs, " and this process in ", process_namespace(),
                          "; run both in one container");
  const std::string path = concat({"/proc/", address.process, "/fd/", address.descriptor});
  descriptor_ = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor_ < 0) fail_with_errno("cannot open ", path);
  try {
    struct stat about {};
    const int seals = fcntl(descriptor_, F_GET_SEALS);
    check<DistributedError>(seals > 0 && (seals & F_SEAL_SHRINK) && fstat(descriptor_, &about) == 0 &&
                                size_ >= kHeader && static_cast<std::size_t>(about.st_size) == size_,
                            "[shared_memory] ", path, " is not a shared segment");
    map();
    if (std::memcmp(base_, address.token, sizeof address.token) != 0) {
      munmap(base_, size_);
      fail<DistributedError>("[shared_memory] ", path, " is a different segment than the one offered");
    }
  } catch (...) {
    close();
    throw;
  }
  close();
}

SharedMemory::~SharedMemory() {
  close();
  munmap(base_, size_);
}

void SharedMemory::map() {
  void* const at = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_, 0);
  if (at == MAP_FAILED) fail_with_errno("mmap of ", size_, " bytes");
  base_ = static_cast<std::byte*>(at);
}

SharedMemoryAddress SharedMemory::address() const {
  SharedMemoryAddress address{.process = getpid(), .descriptor = descriptor_, .bytes = size_};
  process_namespace().copy(address.process_namespace, sizeof address.process_namespace - 1);
  std::memcpy(address.token, base_, sizeof address.token);
  return address;
}

void SharedMemory::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace tapestry::distributed
