#pragma once
// The CUDA devices of tests_device: the fake GPUs of tests/support/fake_gpu.h. A launch only queues the
// kernel in its stream; the emulator runs it on the CPU when the stream gets to it.
#include <cstddef>

#include "tests/support/fake_gpu.h"

namespace tapestry::testing {

/// Makes two GPUs at the first call. They exist until the program ends.
FakeGpus& emulated_gpus();

/// Finds a host address among a kernel's arguments: returns the first eight-byte word that is an address of
/// mapped memory which no GPU can access, or null.
const void* host_address_in(const void* argument, std::size_t bytes);

}  // namespace tapestry::testing
