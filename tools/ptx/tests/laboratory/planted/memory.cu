// Accesses outside of memory, misaligned accesses, and memory that no one has written.
#include "tapestry/tools/ptx/tests/laboratory/planted/bugs.h"

template <bool mended>
__global__ void scale(float* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (!mended || i < n) x[i] *= 2;  // planted: tail_out_of_bounds
}
BUG(tail_out_of_bounds) {
  const Buffer<float> x(1000, 1);
  scale<mended><<<4, 256>>>(x.data, x.n);
  FINISH();
}

template <bool mended>
__global__ void strided_copy(const float* from, float* to, int n) {
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); mended ? i < n : i <= n;
       i += static_cast<int>(gridDim.x * blockDim.x))
    to[i] = from[i];  // planted: grid_stride_off_by_one
}
BUG(grid_stride_off_by_one) {
  const Buffer<float> from(1000, 1), to(1000);
  strided_copy<mended><<<2, 128>>>(from.data, to.data, 1000);
  FINISH();
}

/// Element (row, column) of a matrix with 65536 columns, of which every 65536th is stored.
template <bool mended>
__global__ void sparse(float* x, int rows) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  using Index = std::conditional_t<mended, long long, int>;
  const Index flat = static_cast<Index>(row) * 65536 + 5;
  x[flat / 65536] = 1;  // planted: index_overflows_32_bits
}
BUG(index_overflows_32_bits) {
  const Buffer<float> x(40000, 0);
  sparse<mended><<<313, 128>>>(x.data, x.n);
  FINISH();
}

template <bool mended>
__global__ void sum_of_four(const float* x, float* y) {
  const float4 v = *reinterpret_cast<const float4*>(x + (mended ? 4 : 1));  // planted: vector_load_misaligned
  *y = v.x + v.y + v.z + v.w;
}
BUG(vector_load_misaligned) {
  const Buffer<float> x(16, 1), y(1);
  sum_of_four<mended><<<1, 1>>>(x.data, y.data);
  FINISH();
}

/// The vector is aligned in the first row only, because a row has an odd number of elements.
template <bool mended>
__global__ void row_pairs(const float* x, float* y, int columns) {
  const float* const row = x + static_cast<int>(threadIdx.x) * columns;
  if constexpr (mended) {
    y[threadIdx.x] = row[0] + row[1];
  } else {
    const float2 v = *reinterpret_cast<const float2*>(row);  // planted: odd_rows_misaligned
    y[threadIdx.x] = v.x + v.y;
  }
}
BUG(odd_rows_misaligned) {
  const Buffer<float> x(4 * 5, 1), y(4);
  row_pairs<mended><<<1, 4>>>(x.data, y.data, 5);
  FINISH();
}

__global__ void accumulate(const float* x, float* y) {
  y[threadIdx.x] += x[threadIdx.x];  // planted: memory_not_cleared, memset_counts_elements, copy_too_short
}
BUG(memory_not_cleared) {
  const Buffer<float> x(64, 1), y(64);
  if (mended) CHECK(cudaMemset(y.data, 0, y.bytes()));
  accumulate<<<1, 64>>>(x.data, y.data);
  FINISH();
}
BUG(memset_counts_elements) {
  const Buffer<float> x(64, 1), y(64);
  CHECK(cudaMemset(y.data, 0, mended ? y.bytes() : 64));
  accumulate<<<1, 64>>>(x.data, y.data);
  FINISH();
}
BUG(copy_too_short) {
  const Buffer<float> x(64), y(64, 0);
  const std::vector<float> ones(64, 1);
  CHECK(cudaMemcpy(x.data, ones.data(), mended ? x.bytes() : x.bytes() - 4, cudaMemcpyHostToDevice));
  accumulate<<<1, 64>>>(x.data, y.data);
  FINISH();
}

template <bool mended>
__global__ void histogram(const unsigned char* x, unsigned* bins) {
  __shared__ unsigned counts[32];
  if (mended) counts[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&counts[x[threadIdx.x] % 32], 1u);  // planted: shared_not_cleared
  __syncthreads();
  bins[threadIdx.x] = counts[threadIdx.x];
}
BUG(shared_not_cleared) {
  const Buffer<unsigned char> x(32, 7);
  const Buffer<unsigned> bins(32);
  histogram<mended><<<1, 32>>>(x.data, bins.data);
  FINISH();
}

template <bool mended>
__global__ void neighbours(const float* x, float* y) {
  __shared__ float tile[64 + (mended ? 2 : 1)];
  const unsigned t = threadIdx.x;
  tile[t] = x[t];
  if (t < 2) tile[64 + t] = x[t];  // planted: halo_too_small
  __syncthreads();
  y[t] = tile[t] + tile[t + 1] + tile[t + 2];
}
BUG(halo_too_small) {
  const Buffer<float> x(64, 1), y(64);
  neighbours<mended><<<1, 64>>>(x.data, y.data);
  FINISH();
}

__global__ void reverse_rows(const float* x, float* y) {
  extern __shared__ float row[];
  const unsigned t = threadIdx.x, last = blockDim.x - 1;
  row[t] = x[t];  // planted: dynamic_shared_too_small
  __syncthreads();
  y[t] = row[last - t];
}
BUG(dynamic_shared_too_small) {
  const Buffer<float> x(64, 1), y(64);
  reverse_rows<<<1, 64, mended ? 64 * sizeof(float) : 64>>>(x.data, y.data);
  FINISH();
}

/// Two arrays in one dynamic array. The second must begin behind the doubles.
template <bool mended>
__global__ void two_arrays(double* y) {
  extern __shared__ double doubles[];
  float* const floats = reinterpret_cast<float*>(doubles) + (mended ? 2 : 1) * blockDim.x;
  doubles[threadIdx.x] = 1;
  floats[threadIdx.x] = 2;  // planted: arrays_overlap
  __syncthreads();
  y[threadIdx.x] = doubles[threadIdx.x] + static_cast<double>(floats[threadIdx.x]);
}
BUG(arrays_overlap) {
  const Buffer<double> y(64);
  two_arrays<mended><<<1, 64, 64 * (sizeof(double) + sizeof(float))>>>(y.data);
  FINISH();
}

__global__ void add_one(float* x, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x))
    x[i] += 1;  // planted: host_pointer_in_kernel, use_after_free
}
BUG(host_pointer_in_kernel) {
  std::vector<float> host(64, 1);
  const Buffer<float> device(64, 1);
  add_one<<<1, 64>>>(mended ? device.data : host.data(), 64);
  FINISH();
}
BUG(use_after_free) {
  float* x;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&x), 256));
  CHECK(cudaMemset(x, 0, 256));
  if (!mended) CHECK(cudaFree(x));
  add_one<<<1, 64>>>(x, 64);
  FINISH();
  if (mended) CHECK(cudaFree(x));
}

/// The largest four of x, by insertion.
template <bool mended>
__global__ void top_four(const float* x, float* y, int n) {
  float top[4] = {-1, -1, -1, -1};
  for (int i = 0; i < n; ++i) {
    int place = 0;
    while (place < (mended ? 4 : 5) && top[place] >= x[i]) ++place;  // planted: local_array_out_of_bounds
    if (place < 4) {
      for (int k = 3; k > place; --k) top[k] = top[k - 1];
      top[place] = x[i];
    }
  }
  for (int k = 0; k < 4; ++k) y[k] = top[k];
}
BUG(local_array_out_of_bounds) {
  const Buffer<float> x(16, 1), y(4);
  top_four<mended><<<1, 1>>>(x.data, y.data, 16);
  FINISH();
}

/// Rows of a pitched array: the pitch is in bytes.
template <bool mended>
__global__ void fill_rows(float* x, std::size_t pitch, int columns) {
  float* const row = mended ? reinterpret_cast<float*>(reinterpret_cast<char*>(x) + threadIdx.y * pitch)
                            : x + threadIdx.y * pitch;
  if (static_cast<int>(threadIdx.x) < columns) row[threadIdx.x] = 1;  // planted: pitch_in_elements
}
BUG(pitch_in_elements) {
  float* x;
  std::size_t pitch;
  CHECK(cudaMallocPitch(reinterpret_cast<void**>(&x), &pitch, 20 * sizeof(float), 8));
  fill_rows<mended><<<1, dim3(32, 8)>>>(x, pitch, 20);
  FINISH();
  CHECK(cudaFree(x));
}
