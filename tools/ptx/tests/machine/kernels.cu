// Kernels that the tests compile to PTX with nvcc. Nothing here is linked.
#include <cuda_bf16.h>

extern "C" __global__ void __launch_bounds__(256) saxpy(int n, float a, const float* x, float* y) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = a * x[i] + y[i];
}

/// y = softmax(x) of `columns` numbers; one block of 128 threads per row.
extern "C" __global__ void __launch_bounds__(128) softmax(const float* x, __nv_bfloat16* y, int columns) {
  __shared__ float parts[4];
  const float* const row = x + static_cast<long long>(blockIdx.x) * columns;
  const auto reduce = [&](float v, bool maximum) {
    for (int d = 16; d > 0; d /= 2) {
      const float other = __shfl_xor_sync(~0u, v, d);
      v = maximum ? fmaxf(v, other) : v + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    return maximum ? fmaxf(fmaxf(parts[0], parts[1]), fmaxf(parts[2], parts[3]))
                   : parts[0] + parts[1] + parts[2] + parts[3];
  };
  float largest = -INFINITY, sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += 128) largest = fmaxf(largest, row[i]);
  largest = reduce(largest, true);
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += 128) sum += expf(row[i] - largest);
  sum = reduce(sum, false);
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += 128)
    y[static_cast<long long>(blockIdx.x) * columns + i] = __float2bfloat16(expf(row[i] - largest) / sum);
}

/// As saxpy, with a bug in the line that loads: the test for the end is missing.
extern "C" __global__ void __launch_bounds__(256) saxpy_without_end(int, float a, const float* x, float* y) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const float value = x[i];  // planted
  y[i] = a * value;
}

/// Double precision, division and library functions: they call functions and use rounding modes.
extern "C" __global__ void __launch_bounds__(64)
    functions(const double* x, const float* f, double* y, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= n) return;
  y[8 * i] = exp(x[i]);
  y[8 * i + 1] = pow(x[i] * x[i], 1.7);
  y[8 * i + 2] = x[i] / 3.0 + rsqrt(x[i] * x[i] + 1);
  y[8 * i + 3] = sin(static_cast<double>(f[i]) * 1e3);
  y[8 * i + 4] = logf(f[i] * f[i] + 0.5f);
  y[8 * i + 5] = powf(fabsf(f[i]) + 0.1f, 3.3f);
  y[8 * i + 6] = tanhf(f[i]);
  y[8 * i + 7] = static_cast<double>(static_cast<long long>(f[i] * 1e6f) / (i + 3) % 1000);
}
