#pragma once
// The CUDA devices of tests_device: fake GPUs whose kernels the emulator runs, when their stream's turn
// comes.
#include <cstddef>

#include "tests/support/fake_gpu.h"

namespace tapestry::testing {

/// Two GPUs, made when first asked for; they live as long as the program, as real ones do.
FakeGpus& emulated_gpus();

/// The first of the eight-byte words in a kernel's argument that is an address of mapped memory which no GPU
/// reaches; null if none is.
const void* host_address_in(const void* argument, std::size_t bytes);

}  // namespace tapestry::testing
