#pragma once
// Global memory: what the host has allocated, and which of its bytes were written.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tapestry::ptx {

// The state of a byte. Shared and local memory have it too.
/// Addresses from here on are windows (program.h).
constexpr std::uint64_t kMaxAddress = std::uint64_t{1} << 56;
constexpr std::uint8_t kNoMemory = 0, kUninitialised = 1, kInitialised = 3, kInFlight = 5, kInBulkFlight = 7;

struct Allocation {
  std::uint64_t begin = 0, bytes = 0;
  std::byte* data = nullptr;
  /// One state per byte; null if all bytes count as initialised.
  std::uint8_t* states = nullptr;
  std::uint64_t end() const { return begin + bytes; }

  std::unique_ptr<std::byte[]> owned_data;
  std::unique_ptr<std::uint8_t[]> owned_states;
};

/// Allocations by address. Addresses of the device are addresses of the host: the machine reads and writes
/// them directly.
class Memory {
 public:
  /// Allocates memory whose bytes are not initialised, aligned to 256 bytes. Returns its address.
  std::uint64_t allocate(std::uint64_t bytes);
  /// Registers memory of the caller, which must outlive its registration. Throws a UsageError if it overlaps
  /// other memory.
  void add(void* data, std::uint64_t bytes, bool initialised) {
    add(reinterpret_cast<std::uint64_t>(data), data, bytes, initialised);
  }
  /// The same for memory that has another address on the device.
  void add(std::uint64_t address, void* data, std::uint64_t bytes, bool initialised);
  /// Ends an allocation or registration that begins at this address. Throws a UsageError if there is none.
  /// Messages about later accesses say that the memory was freed, and by whom: "cudaFree". The bytes of own
  /// allocations are kept for a while, so that new allocations do not get the same address at once.
  void remove(std::uint64_t address, std::string by = {});
  /// Copies to the device; the bytes become initialised. Throws a UsageError if the range is not inside one
  /// allocation.
  void write(std::uint64_t address, const void* from, std::uint64_t bytes);
  /// Copies from the device, whether the bytes are initialised or not.
  void read(std::uint64_t address, void* to, std::uint64_t bytes) const;
  /// The number of bytes of the range that no one has written.
  std::uint64_t uninitialised(std::uint64_t address, std::uint64_t bytes) const;

  /// The allocation that contains the address, or null.
  const Allocation* find(std::uint64_t address) const;
  /// Says where an invalid range lies: "4 bytes beyond the end of an allocation of 400 bytes at 0x7f...".
  std::string describe(std::uint64_t address, std::uint64_t bytes) const;

 private:
  const Allocation& range(std::uint64_t address, std::uint64_t bytes) const;
  void forget(std::uint64_t begin, std::uint64_t end);
  std::vector<Allocation> allocations_;  // by address
  struct Freed {
    std::uint64_t begin, bytes;
    std::string by;
    std::unique_ptr<std::byte[]> data;
  };
  std::deque<Freed> freed_;
  std::uint64_t kept_bytes_ = 0;
};

std::string hex(std::uint64_t value);

}  // namespace tapestry::ptx
