#pragma once
// Functions of the library that kernels/cuda/launch.cuh calls to launch kernels. That header is compiled into
// other modules (programs, shared libraries) too, so only numbers and strings cross this interface, no types
// of CUDA.

namespace tapestry::cuda {

/// True if TAPESTRY_SYNC_LAUNCHES=1: a launch then waits until the kernel has run. The environment is read
/// once.
bool sync_launches();

/// Remembers for this thread that `stream`, which the library made, belongs to `gpu`. A slot calls it before
/// its kernel.
void note_stream(const void* stream, int gpu);
/// Returns the GPU of `stream` if this thread's last note_stream() was for `stream`, and the library has
/// destroyed no stream since then. Returns -1 otherwise. Makes no call to CUDA.
int noted_gpu(const void* stream);

/// Throws OutOfMemoryError if `code` is cudaErrorMemoryAllocation, else CudaError. `name` and `text` are
/// cudaGetErrorName() and cudaGetErrorString() of `code`; `symbol` is the kernel's mangled name, or null if
/// it is unknown; `gpu` is -1 if it is unknown.
[[noreturn]] void launch_failed(int code, const char* name, const char* text, const char* symbol, int gpu);

}  // namespace tapestry::cuda
