#include "tests/device/emulated/device.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/portable.cuh"
#include "tapestry/kernels/slot.h"
#include "tests/support/gpu.h"
#include "tests/support/op_check.h"

namespace tapestry::testing {
namespace {

// A GPU can access only the page-locked part of host memory.
void check_addresses(const cuda_emulator::StreamLaunch& launch) {
  for (std::size_t i = 0; i < launch.arguments.size(); ++i) {
    const auto& [data, bytes] = launch.arguments[i];
    if (const void* const address = host_address_in(data, bytes))
      throw cuda_emulator::Error(concat(
          {"[", cuda_emulator::readable(launch.kernel), "] argument ", i, " has an address of the host's, ",
           reinterpret_cast<std::uintptr_t>(address), "; give it memory of the device"}));
  }
}

void put_in_queue(cudaStream_t stream, const cuda_emulator::StreamLaunch& launch) {
  check_addresses(launch);
  emulated_gpus().launch(static_cast<void*>(stream), launch.run);
}

const bool emulates = [] {
  make_devices = [] { emulated_gpus(); };
  test::host_waits = [] { return emulated_gpus().host_waits(); };
  return true;
}();

}  // namespace

FakeGpus& emulated_gpus() {
  static FakeGpus& gpus = *new FakeGpus;
  cuda_emulator::stream_queue = &put_in_queue;
  return gpus;
}

const void* host_address_in(const void* argument, std::size_t bytes) {
  // Code, heap and stack lie between these addresses. Other argument words are hardly ever so large.
  constexpr std::uintptr_t kFirst = std::uintptr_t{0x5000} << 32, kEnd = std::uintptr_t{0x8000} << 32;
  constexpr std::uintptr_t kPage = 4096;
  // A small 32-bit number and the padding behind it. The launch clears padding, but g++ 12's
  // __builtin_clear_padding misses some of large nested types.
  const auto is_small_number = [](std::uintptr_t word) { return static_cast<std::uint32_t>(word) < kPage; };
  for (std::size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
    void* address;
    std::memcpy(&address, static_cast<const char*>(argument) + at, sizeof address);
    const auto number = reinterpret_cast<std::uintptr_t>(address);
    if (number < kFirst || number >= kEnd || is_small_number(number) || emulated_gpus().reach(address))
      continue;
    unsigned char resident;
    if (mincore(reinterpret_cast<void*>(number / kPage * kPage), kPage, &resident) == 0) return address;
  }
  return nullptr;
}

}  // namespace tapestry::testing
