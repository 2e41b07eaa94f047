#pragma once
// Kernels that this folder's tests launch. kernels.cu is compiled into two modules: the program, in namespace
// first, and a shared library with a CUDA runtime of its own, in namespace second.
#include <cstddef>
#include <cstdint>

#define DECLARE_KERNELS                                                                            \
  /* y[i] = a x[i] + i, on the stream (a cudaStream_t) */                                          \
  void launch_scale(const float* x, float* y, int n, double a, void* stream, unsigned blocks = 4); \
  /* A kernel that asks for so much dynamic shared memory. */                                      \
  void launch_shared(std::size_t bytes, void* stream);                                             \
  /* As above, by kernel<<<...>>>(). */                                                            \
  void launch_by_chevrons(float* y, void* stream);                                                 \
  /* A kernel with launch bounds of 64 threads, whose argument is a structure of 20 bytes. */      \
  void launch_bounded(unsigned threads, void* stream);                                             \
  /* The host function of the first kernel: what the runtime knows it by. */                       \
  const void* scale_address();

namespace first {
DECLARE_KERNELS
}
namespace second {
DECLARE_KERNELS
}
