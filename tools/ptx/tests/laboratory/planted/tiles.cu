// Asynchronous copies into shared memory, fragments of matrix products, and inline PTX.
#include <cuda_bf16.h>

#include "tapestry/tools/ptx/tests/laboratory/planted/bugs.h"

__device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ inline void copy_16_bytes(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
/// Copies `bytes` bytes, and fills up the rest of 16 with zeros.
__device__ inline void copy_up_to_16_bytes(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes)
               : "memory");
}
__device__ inline void load_matrices(unsigned (&a)[4], const void* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared_address(from))
               : "memory");
}
__device__ inline unsigned load_matrix(const void* from) {
  unsigned a;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(a)
               : "r"(shared_address(from))
               : "memory");
  return a;
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
__device__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

template <bool mended>
__global__ void load_tile(const float4* x, float4* y) {
  __shared__ float4 tile[64];
  copy_16_bytes(&tile[threadIdx.x], x + threadIdx.x);
  commit();
  if (mended) wait<0>();
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];  // planted: cp_async_without_wait
}
BUG(cp_async_without_wait) {
  const Buffer<float4> x(64, float4{1, 2, 3, 4}), y(64);
  load_tile<mended><<<1, 64>>>(x.data, y.data);
  FINISH();
}

/// Two stages: while one is read, the next is loaded. The wait lets as many groups pend as there are stages.
template <bool mended>
__global__ void two_stages(const float4* x, float4* y, int tiles) {
  __shared__ float4 stage[2][32];
  const int t = static_cast<int>(threadIdx.x);
  copy_16_bytes(&stage[0][t], x + t);
  commit();
  for (int k = 0; k < tiles; ++k) {
    if (k + 1 < tiles) copy_16_bytes(&stage[(k + 1) % 2][t], x + 32 * (k + 1) + t);
    commit();
    wait<mended ? 1 : 2>();
    __syncthreads();
    y[32 * k + t] = stage[k % 2][31 - t];  // planted: cp_async_waits_for_too_few_groups
    __syncthreads();
  }
}
BUG(cp_async_waits_for_too_few_groups) {
  const Buffer<float4> x(128, float4{1, 2, 3, 4}), y(128);
  two_stages<mended><<<1, 32>>>(x.data, y.data, 4);
  FINISH();
}

/// Each thread waits for its own copies only, and then reads that of another thread.
template <bool mended>
__global__ void wait_without_barrier(const float4* x, float4* y) {
  __shared__ float4 tile[64];
  copy_16_bytes(&tile[threadIdx.x], x + threadIdx.x);
  commit();
  wait<0>();
  if (mended) __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];  // planted: cp_async_without_barrier
}
BUG(cp_async_without_barrier) {
  const Buffer<float4> x(64, float4{1, 2, 3, 4}), y(64);
  wait_without_barrier<mended><<<1, 64>>>(x.data, y.data);
  FINISH();
}

/// The copy of the next tile begins while other threads still read the stage that it goes to.
template <bool mended>
__global__ void stage_in_use(const float4* x, float4* y, int tiles) {
  __shared__ float4 stage[64];
  const int t = static_cast<int>(threadIdx.x);
  for (int k = 0; k < tiles; ++k) {
    copy_16_bytes(&stage[t], x + 64 * k + t);  // planted: cp_async_into_stage_in_use
    commit();
    wait<0>();
    __syncthreads();
    y[64 * k + t] = stage[63 - t];  // planted: cp_async_into_stage_in_use
    if (mended) __syncthreads();
  }
}
BUG(cp_async_into_stage_in_use) {
  const Buffer<float4> x(128, float4{1, 2, 3, 4}), y(128);
  stage_in_use<mended><<<1, 64>>>(x.data, y.data, 2);
  FINISH();
}

/// A row has 18 elements, so that only every second row begins at a multiple of 16 bytes.
template <bool mended>
__global__ void copy_rows(const __nv_bfloat16* x, float* y) {
  constexpr int pitch = mended ? 24 : 20;
  __shared__ alignas(16) __nv_bfloat16 rows[8 * 24];
  const unsigned row = threadIdx.x / 2, part = threadIdx.x % 2;
  copy_16_bytes(&rows[row * pitch + 8 * part], x + 16 * row + 8 * part);  // planted: cp_async_misaligned
  commit();
  wait<0>();
  __syncthreads();
  y[threadIdx.x] = __bfloat162float(rows[row * pitch + part]);
}
BUG(cp_async_misaligned) {
  const Buffer<__nv_bfloat16> x(128, __float2bfloat16(1));
  const Buffer<float> y(16);
  copy_rows<mended><<<1, 16>>>(x.data, y.data);
  FINISH();
}

/// The last copy reads over the end of the source. Its size must be the number of bytes that exist.
template <bool mended>
__global__ void ragged_copy(const float* x, float* y, int n) {
  __shared__ alignas(16) float tile[64];
  const int first = 4 * static_cast<int>(threadIdx.x), bytes = mended ? 4 * max(0, min(4, n - first)) : 16;
  copy_up_to_16_bytes(&tile[first], x + (bytes > 0 ? first : 0), bytes);  // planted: cp_async_over_the_end
  commit();
  wait<0>();
  __syncthreads();
  for (int i = first; i < first + 4 && i < n; ++i) y[i] = tile[i];
}
BUG(cp_async_over_the_end) {
  const Buffer<float> x(61, 1), y(61);
  ragged_copy<mended><<<1, 16>>>(x.data, y.data, 61);
  FINISH();
}

/// Row `lane % 16` of a tile of 16 rows and 16 columns, whose right half the upper lanes address.
template <bool mended>
__global__ void load_tile_matrices(const __nv_bfloat16* x, unsigned* y) {
  __shared__ alignas(16) __nv_bfloat16 tile[16 * 16];
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) tile[i] = x[i];
  __syncthreads();
  const unsigned row = mended ? lane % 16 : lane, column = mended ? lane / 16 * 8 : 0;
  unsigned a[4];
  load_matrices(a, &tile[row * 16 + column]);  // planted: ldmatrix_of_absent_rows
  for (unsigned i = 0; i < 4; ++i) y[4 * lane + i] = a[i];
}
BUG(ldmatrix_of_absent_rows) {
  const Buffer<__nv_bfloat16> x(256, __float2bfloat16(1));
  const Buffer<unsigned> y(128);
  load_tile_matrices<mended><<<1, 32>>>(x.data, y.data);
  FINISH();
}

/// A pitch of 20 elements avoids bank conflicts, but every second row is not aligned to 16 bytes.
template <bool mended>
__global__ void load_padded_matrix(const __nv_bfloat16* x, unsigned* y) {
  constexpr int pitch = mended ? 24 : 20;
  __shared__ alignas(16) __nv_bfloat16 tile[8 * pitch];
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 64; i += 32) tile[i / 8 * pitch + i % 8] = x[i];
  __syncthreads();
  y[lane] = load_matrix(&tile[lane % 8 * pitch]);  // planted: ldmatrix_misaligned
}
BUG(ldmatrix_misaligned) {
  const Buffer<__nv_bfloat16> x(64, __float2bfloat16(1));
  const Buffer<unsigned> y(32);
  load_padded_matrix<mended><<<1, 32>>>(x.data, y.data);
  FINISH();
}

__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, "
      "%2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
constexpr unsigned kOnes = 0x3f803f80u;  // two ones in bf16

/// Registers 2 and 3 of the sums belong to row lane / 4 + 8. Without the 8, rows 8 to 15 stay unwritten.
template <bool mended>
__global__ void store_fragment(float* y) {
  __shared__ float sums[16][8];
  float c[4] = {};
  multiply(c, {kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes});
  const unsigned row = threadIdx.x / 4, column = threadIdx.x % 4 * 2;
  for (unsigned i = 0; i < 4; ++i) sums[row + (mended && i >= 2 ? 8 : 0)][column + i % 2] = c[i];
  __syncwarp();
  for (unsigned i = threadIdx.x; i < 128; i += 32)
    y[i] = sums[i / 8][i % 8];  // planted: fragment_in_wrong_row
}
BUG(fragment_in_wrong_row) {
  const Buffer<float> y(128);
  store_fragment<mended><<<1, 32>>>(y.data);
  FINISH();
}

/// The fragment of A is read from rows lane / 4 and lane / 4 + 8; the planted index reads rows that no one
/// has filled.
template <bool mended>
__global__ void load_fragment(const unsigned* x, float* y) {
  __shared__ unsigned tile[32][8];  // two bf16 per element; only 16 rows are filled
  const unsigned lane = threadIdx.x, row = lane / 4, column = lane % 4;
  for (unsigned i = lane; i < 128; i += 32) tile[i / 8][i % 8] = x[i];
  __syncwarp();
  const unsigned below = row + (mended ? 8 : 16);
  const unsigned a[4] = {tile[row][column], tile[below][column],  // planted: fragment_from_wrong_row
                         tile[row][column + 4], tile[below][column + 4]};
  float c[4] = {};
  multiply(c, a, {kOnes, kOnes});
  y[lane] = c[0] + c[2];
}
BUG(fragment_from_wrong_row) {
  const Buffer<unsigned> x(128, kOnes);
  const Buffer<float> y(32);
  load_fragment<mended><<<1, 32>>>(x.data, y.data);
  FINISH();
}

/// Without `volatile`, the compiler may merge two loads of one address, because nothing says that memory
/// changes.
template <bool mended>
__device__ float load_shared(const float* p) {
  float v;
  if constexpr (mended) asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(shared_address(p)) : "memory");
  else asm("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(shared_address(p)));
  return v;
}
template <bool mended>
__global__ void rotate(float* y, int rounds) {
  __shared__ float tile[32];
  float sum = 0;
  for (int k = 0; k < rounds; ++k) {  // planted: asm_without_volatile
    tile[threadIdx.x] = static_cast<float>(k);
    __syncthreads();
    sum += load_shared<mended>(&tile[31 - threadIdx.x]);
    __syncthreads();
  }
  y[threadIdx.x] = sum;
}
BUG(asm_without_volatile) {
  const Buffer<float> y(32);
  rotate<mended><<<1, 32>>>(y.data, 4);
  FINISH();
}

/// The instruction adds to %0, but "=f" tells the compiler that it only writes it.
template <bool mended>
__global__ void add_by_asm(const float* x, float* y) {
  float sum = 1;
  if constexpr (mended) asm("fma.rn.f32 %0, %1, %1, %0;" : "+f"(sum) : "f"(x[threadIdx.x]));
  else
    asm("fma.rn.f32 %0, %1, %1, %0;" : "=f"(sum) : "f"(x[threadIdx.x]));  // planted: asm_output_that_is_read
  y[threadIdx.x] = sum;
}
BUG(asm_output_that_is_read) {
  const Buffer<float> x(32, 2), y(32);
  add_by_asm<mended><<<1, 32>>>(x.data, y.data);
  FINISH();
  EXPECT(y.download()[5] == 5);
}
