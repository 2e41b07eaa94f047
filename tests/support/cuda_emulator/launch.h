#pragma once
// Launches of kernels, at once or on streams. What is made once for each kernel is kept small: programs of tests have
// hundreds of them.
#include <cstddef>
#include <functional>
#include <vector>

#include "tests/support/cuda_emulator/runtime.h"

using cudaStream_t = struct CUstream_st*;

namespace cuda_emulator {

/// Bytes, as a GPU gets them.
struct Argument {
  const void* data;
  std::size_t bytes;
};

/// A launch on a stream, which runs when its turn comes.
struct StreamLaunch {
  void (*kernel)();
  std::vector<Argument> arguments;  ///< valid as long as `run`
  std::function<void()> run;
};
/// Takes launches on a stream. While there is none, and on the null stream, a launch has run when it returns.
extern void (*stream_queue)(cudaStream_t stream, const StreamLaunch& launch);

/// Calls a kernel with the arguments at these addresses.
using KernelCall = void (*)(void (*kernel)(), const void* const* arguments);

void launch(void (*kernel)(), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream, KernelCall call,
            const std::vector<Argument>& arguments);

}  // namespace cuda_emulator
