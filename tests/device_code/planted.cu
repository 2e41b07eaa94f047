// Each of these kernels but the first has a fault. resources_test.cpp must find the faults, and none in the
// first kernel.
#include "tests/device_code/planted.h"

namespace planted {

__global__ void __launch_bounds__(256, 2) faultless(float* p) {
  __shared__ float tile[256];
  tile[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = tile[255 - threadIdx.x];
}

__global__ void __launch_bounds__(64) indexed_at_run_time(float* p, const int* at) {
  float values[16];
  for (int i = 0; i < 16; ++i) values[i] = p[i];
  for (int i = 0; i < 16; ++i) values[at[i]] += p[i];
  for (int i = 0; i < 16; ++i) p[16 + i] = values[i];
}

/// Needs 96 live values per thread, but its launch bounds allow 32 registers.
__global__ void __launch_bounds__(1024, 2) spilled(float* p, int n) {
  float values[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) values[i] = p[i * n];
  for (int round = 0; round < n; ++round) {
#pragma unroll
    for (int i = 0; i < 96; ++i) values[i] = values[i] * values[(i + 1) % 96] + p[round];
  }
#pragma unroll
  for (int i = 0; i < 96; ++i) p[i * n] = values[i];
}

__global__ void unbounded(float* p) { p[threadIdx.x] *= 2; }

__global__ void __launch_bounds__(128, 8) too_much_shared(float* p) {
  __shared__ float tile[9 << 10];
  for (int i = static_cast<int>(threadIdx.x); i < 9 << 10; i += 128) tile[i] = p[i];
  __syncthreads();
  p[threadIdx.x] = tile[p[threadIdx.x] > 0 ? 5 : 6];
}

const void* anchor() {
  static const void* const kernels[] = {
      reinterpret_cast<const void*>(&faultless), reinterpret_cast<const void*>(&indexed_at_run_time),
      reinterpret_cast<const void*>(&spilled), reinterpret_cast<const void*>(&unbounded),
      reinterpret_cast<const void*>(&too_much_shared)};
  return kernels;
}

}  // namespace planted
