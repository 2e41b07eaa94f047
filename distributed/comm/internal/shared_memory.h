#pragma once
// Memory that processes of one host share.
#include <cstddef>
#include <cstdint>

namespace tapestry::distributed {

/// Where other processes of this user on this host find a segment: plain bytes, to be sent to them.
struct SharedMemoryAddress {
  std::int64_t process = 0, descriptor = -1;
  std::uint64_t bytes = 0;
  char process_namespace[40] = {};  // in which `process` is its number
  char token[16] = {};              // what the segment begins with
};

/// A mapped segment. It has no name in any file system and is in no /dev/shm: what the last process that has
/// it mapped leaves behind is nothing, however it ends. Its memory is reserved when it is made and cannot be
/// taken away by another process, so that touching it does not fail later.
class SharedMemory {
 public:
  /// A new one, of zeros. Throws DistributedError where the system has none, or not as much.
  explicit SharedMemory(std::size_t bytes);
  /// The one at `address`. Throws DistributedError if it cannot be reached from here.
  explicit SharedMemory(const SharedMemoryAddress& address);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Aligned for anything.
  std::byte* data() const { return base_ + kHeader; }
  std::size_t bytes() const { return size_ - kHeader; }
  /// For the others, until close().
  SharedMemoryAddress address() const;
  /// No process can open it from now on; it stays mapped where it is.
  void close();

 private:
  static constexpr std::size_t kHeader = 64;
  void map();

  int descriptor_ = -1;
  std::size_t size_ = 0;
  std::byte* base_ = nullptr;
};

}  // namespace tapestry::distributed
