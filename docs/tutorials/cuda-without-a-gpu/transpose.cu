// The transpose of a matrix, in three versions. The tutorial counts their memory transactions.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

constexpr int kTile = 32;

/// Reads rows and writes columns.
__global__ void transpose_naive(const float* in, float* out, int n) {
  const int x = static_cast<int>(blockIdx.x) * kTile + static_cast<int>(threadIdx.x);
  const int y = static_cast<int>(blockIdx.y) * kTile + static_cast<int>(threadIdx.y);
  out[x * n + y] = in[y * n + x];
}

/// Reads and writes rows. The turn happens in shared memory.
template <int pitch>
__device__ void transpose_by_tile(const float* in, float* out, int n) {
  __shared__ float tile[kTile][pitch];
  const int tx = static_cast<int>(threadIdx.x), ty = static_cast<int>(threadIdx.y);
  const int x = static_cast<int>(blockIdx.x) * kTile, y = static_cast<int>(blockIdx.y) * kTile;
  tile[ty][tx] = in[(y + ty) * n + x + tx];
  __syncthreads();
  out[(x + ty) * n + y + tx] = tile[tx][ty];
}
__global__ void transpose_tile(const float* in, float* out, int n) { transpose_by_tile<kTile>(in, out, n); }
__global__ void transpose_padded(const float* in, float* out, int n) {
  transpose_by_tile<kTile + 1>(in, out, n);
}

int main() {
  constexpr int n = 128;
  std::vector<float> host(n * n), result(n * n);
  for (int i = 0; i < n * n; ++i) host[static_cast<std::size_t>(i)] = static_cast<float>(i);
  float *in, *out;
  cudaMalloc(reinterpret_cast<void**>(&in), n * n * sizeof(float));
  cudaMalloc(reinterpret_cast<void**>(&out), n * n * sizeof(float));
  cudaMemcpy(in, host.data(), n * n * sizeof(float), cudaMemcpyHostToDevice);
  const dim3 grid(n / kTile, n / kTile), block(kTile, kTile);
  for (const auto kernel : {transpose_naive, transpose_tile, transpose_padded}) {
    cudaMemset(out, 0, n * n * sizeof(float));
    kernel<<<grid, block>>>(in, out, n);
    if (cudaMemcpy(result.data(), out, n * n * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess)
      return 1;
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < n; ++j)
        if (result[static_cast<std::size_t>(i * n + j)] != host[static_cast<std::size_t>(j * n + i)])
          return 1;
  }
  std::printf("three transposes are right\n");
  cudaFree(in);
  cudaFree(out);
}
