// scale_rows as nvcc compiles it, on three shapes.
#include "tapestry/docs/tutorials/how-a-kernel-is-proved/scale_rows.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

bool is_right(int rows, int columns) {
  std::vector<float> host(static_cast<std::size_t>(rows * columns)), result(host.size());
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = std::sin(static_cast<float>(i)) * 7 - 1;
  const std::size_t bytes = host.size() * sizeof(float);
  float *x, *y;
  if (cudaMalloc(reinterpret_cast<void**>(&x), bytes) != cudaSuccess) return false;
  if (cudaMalloc(reinterpret_cast<void**>(&y), bytes) != cudaSuccess) return false;
  cudaMemcpy(x, host.data(), bytes, cudaMemcpyHostToDevice);
  scale_rows<><<<static_cast<unsigned>(rows), 128>>>(x, y, columns);
  bool right = cudaMemcpy(result.data(), y, bytes, cudaMemcpyDeviceToHost) == cudaSuccess;
  for (int row = 0; row < rows; ++row) {
    const float* const from = &host[static_cast<std::size_t>(row * columns)];
    double largest = 0;
    for (int i = 0; i < columns; ++i) largest = std::max(largest, std::fabs(static_cast<double>(from[i])));
    for (int i = 0; i < columns; ++i) {
      const double expected = from[i] / largest, found = result[static_cast<std::size_t>(row * columns + i)];
      right &= std::fabs(found - expected) <= 0x1p-23;  // two roundings of numbers up to 1
    }
  }
  cudaFree(x);
  cudaFree(y);
  return right;
}

int main() {
  for (const int columns : {1, 128, 300})
    std::printf("3 rows of %d: %s\n", columns, is_right(3, columns) ? "right" : "wrong");
}
