#pragma once
// Memory that processes of one host share.
#include <cstddef>
#include <cstdint>

namespace tapestry::distributed {

/// Tells another process of this user on this host where to open a segment. It is sent to that process as
/// plain bytes.
struct SharedMemoryAddress {
  std::int64_t process = 0, descriptor = -1;
  std::uint64_t bytes = 0;
  char process_namespace[40] = {};  // the PID namespace of `process`
  char token[16] = {};              // the first bytes of the segment, random
};

/// A mapped segment of shared memory. It is anonymous (memfd_create), so the kernel frees it when the last
/// process that maps it ends, however that process ends. All of its memory is reserved when it is made, and
/// other processes cannot shrink it. So later accesses do not fail.
class SharedMemory {
 public:
  /// Makes a segment filled with zeros. Throws DistributedError if the system cannot provide it.
  explicit SharedMemory(std::size_t bytes);
  /// Opens the segment at `address`. Throws DistributedError if this process cannot open it.
  explicit SharedMemory(const SharedMemoryAddress& address);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Aligned to 64 bytes.
  std::byte* data() const { return base_ + kHeader; }
  std::size_t bytes() const { return size_ - kHeader; }
  /// For other processes. Valid until close().
  SharedMemoryAddress address() const;
  /// From now on no process can open the segment. Existing mappings stay.
  void close();

 private:
  static constexpr std::size_t kHeader = 64;
  void map();

  int descriptor_ = -1;
  std::size_t size_ = 0;
  std::byte* base_ = nullptr;
};

}  // namespace tapestry::distributed
