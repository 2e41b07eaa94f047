#pragma once
// The CUDA devices of tests_device: the fake GPUs of tests/support/fake_gpu.h. A launch only queues the
// kernel in its stream; the emulator runs it on the CPU when the stream gets to it.
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tapestry/kernels/cuda/portable.cuh"
#include "tapestry/tapestry.h"
#include "tests/support/fake_gpu.h"

namespace tapestry::testing {

/// Makes two GPUs at the first call. They exist until the program ends.
FakeGpus& emulated_gpus();

/// Finds a host address among a kernel's arguments: returns the first eight-byte word that is an address of
/// mapped memory which no GPU can access, or null.
const void* host_address_in(const void* argument, std::size_t bytes);

/// Calls `run` and waits for the device. Returns the symbols of the kernels that were launched.
inline std::vector<std::string> launched_by(const std::function<void()>& run) {
  synchronize("cuda:0");
  cuda_emulator::take_launches();
  run();
  synchronize("cuda:0");
  std::vector<std::string> names;
  for (const auto& launch : cuda_emulator::take_launches()) names.push_back(launch.kernel);
  return names;
}

}  // namespace tapestry::testing
