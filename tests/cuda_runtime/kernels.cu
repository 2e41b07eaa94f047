#include "tests/cuda_runtime/kernels.h"

#include "tapestry/kernels/cuda/portable.cuh"

using tapestry::kernels::cuda::launch;

namespace MODULE {
namespace {

struct Twenty {
  std::int32_t words[5];
};

__global__ void __launch_bounds__(128) scale(const float* x, float* y, int n, double a) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n;
       i += static_cast<int>(gridDim.x * blockDim.x))
    y[i] = static_cast<float>(a) * x[i] + static_cast<float>(i);
}
__global__ void needs_shared() {
  extern __shared__ float rows[];
  rows[threadIdx.x] = 1;
}
__global__ void one(float* y) { *y = 1; }
__global__ void __launch_bounds__(64) bounded(char c, Twenty words, std::int64_t n) {
  if (n < 0 && words.words[0] == c) __trap();
}

cudaStream_t handle(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

void launch_scale(const float* x, float* y, int n, double a, void* stream, unsigned blocks) {
  launch(scale, blocks, 128, 0, handle(stream), x, y, n, a);
}
void launch_shared(std::size_t bytes, void* stream) { launch(needs_shared, 1, 32, bytes, handle(stream)); }
void launch_by_chevrons(float* y, void* stream) { one<<<2, dim3(3, 4), 16, handle(stream)>>>(y); }
void launch_bounded(unsigned threads, void* stream) {
  launch(bounded, dim3(1, 2, 3), threads, 0, handle(stream), 'x', Twenty{{1, 2, 3, 4, 5}}, std::int64_t{-7});
}
const void* scale_address() { return reinterpret_cast<const void*>(&scale); }

}  // namespace MODULE
