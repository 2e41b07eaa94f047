// The sum of n numbers, in one block. Its race is the subject of the tutorial.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

__global__ void sum(const float* x, float* y, int n) {
  __shared__ float parts[256];
  const int t = static_cast<int>(threadIdx.x);
  float mine = 0;
  for (int i = t; i < n; i += 256) mine += x[i];
  parts[t] = mine;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (t < half) parts[t] += parts[t + half];
#ifndef RACE
    __syncthreads();
#endif
  }
  if (t == 0) *y = parts[0];
}

int main() {
  constexpr int n = 1000;
  const std::vector<float> ones(n, 1);
  float *x, *y, result = 0;
  cudaMalloc(reinterpret_cast<void**>(&x), n * sizeof(float));
  cudaMalloc(reinterpret_cast<void**>(&y), sizeof(float));
  cudaMemcpy(x, ones.data(), n * sizeof(float), cudaMemcpyHostToDevice);
  sum<<<1, 256>>>(x, y, n);
  const cudaError_t error = cudaMemcpy(&result, y, sizeof(float), cudaMemcpyDeviceToHost);
  if (error == cudaSuccess) std::printf("the sum is %g\n", static_cast<double>(result));
  else std::printf("CUDA says: %s\n", cudaGetErrorString(error));
  cudaFree(x);
  cudaFree(y);
}
