#pragma once
// Launches kernels, either immediately or on streams. The code that is instantiated for each kernel is kept
// small, because test programs have hundreds of kernels.
#include <cstddef>
#include <functional>
#include <vector>

#include "tests/support/cuda_emulator/runtime.h"

using cudaStream_t = struct CUstream_st*;

namespace cuda_emulator {

/// A kernel argument as raw bytes, which is how a GPU receives it.
struct Argument {
  const void* data;
  std::size_t bytes;
};

/// A launch on a stream. The queue calls `run` when the launch's turn comes.
struct StreamLaunch {
  void (*kernel)();
  std::vector<Argument> arguments;  ///< valid while `run` exists
  std::function<void()> run;
};
/// If set, receives launches on streams other than the null stream. Otherwise every launch completes before
/// it returns.
extern void (*stream_queue)(cudaStream_t stream, const StreamLaunch& launch);

/// Calls a kernel with the arguments stored at these addresses.
using KernelCall = void (*)(void (*kernel)(), const void* const* arguments);

void launch(void (*kernel)(), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
            KernelCall call, const std::vector<Argument>& arguments);

}  // namespace cuda_emulator
