// A consumer's own kernel, compiled with the installed headers. Prints "skipped" if there is no GPU.
#include <cstdio>

#include "tapestry/core/cuda/device.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/cuda/portable.cuh"

__global__ void twice(const float* x, float* y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = 2 * x[i];
}

int main() {
  using namespace tapestry;
  constexpr int kCount = 1000;
  if (device_count(DeviceType::cuda) == 0) {
    std::printf("skipped: %s\n", cuda::why_no_device().c_str());
    return 0;
  }
  const Device gpu(DeviceType::cuda);
  Tensor host = empty({kCount});
  for (int i = 0; i < kCount; ++i) host.data<float>()[i] = static_cast<float>(i);
  const Tensor x = host.to(gpu), y = empty({kCount}, gpu);
  try {
    const auto stream = static_cast<cudaStream_t>(current_stream(gpu).native());
    kernels::cuda::launch(twice, (kCount + 127) / 128, 128, 0, stream, x.data<float>(), y.data<float>(),
                          kCount);
  } catch (const CudaError& e) {
    std::printf("failed: %s\n", e.what());
    return 1;
  }
  host = y.to(kCPU);
  for (int i = 0; i < kCount; ++i)
    if (host.data<float>()[i] != static_cast<float>(2 * i)) {
      std::printf("failed: element %d is %g\n", i, host.data<float>()[i]);
      return 1;
    }
  std::printf("a GPU ran the kernel: %s\n", cuda::device_properties(gpu).name.c_str());
  return 0;
}
