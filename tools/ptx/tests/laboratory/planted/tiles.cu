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

/// Copies run two tiles ahead in a ring of three stages.
enum class RingFlaw { none, wrong_stage, barrier_before_wait, missing_groups };
template <RingFlaw flaw>
__global__ void sum_ring(const float4* x, float4* y, int tiles) {
  __shared__ float4 ring[3][32];
  const int t = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int k, int stage) {
    if (k < tiles) copy_16_bytes(&ring[stage][t], x + 32 * k + t);
    if (k < tiles || flaw != RingFlaw::missing_groups) commit();
  };
  fetch(0, 0);
  fetch(1, 1);
  float sum = 0;
  for (int k = 0; k < tiles; ++k) {
    if (flaw == RingFlaw::barrier_before_wait) __syncthreads();
    wait<1>();
    if (flaw != RingFlaw::barrier_before_wait) __syncthreads();
    fetch(k + 2, (flaw == RingFlaw::wrong_stage ? k + 1 : k + 2) % 3);  // planted: copy_into_wrong_stage
    sum += ring[k % 3][31 - t].x;  // planted: barrier_before_the_wait, groups_not_counted
  }
  wait<0>();
  y[t] = float4{sum, 0, 0, 0};
}
template <RingFlaw flaw>
void run_ring() {
  const Buffer<float4> x(7 * 32, float4{1, 2, 3, 4}), y(32);
  sum_ring<flaw><<<1, 32>>>(x.data, y.data, 7);
  FINISH();
}
BUG(copy_into_wrong_stage) { run_ring<mended ? RingFlaw::none : RingFlaw::wrong_stage>(); }
BUG(barrier_before_the_wait) { run_ring<mended ? RingFlaw::none : RingFlaw::barrier_before_wait>(); }
BUG(groups_not_counted) { run_ring<mended ? RingFlaw::none : RingFlaw::missing_groups>(); }

/// A chunk outside of the operand is not written, instead of being zeros.
template <bool mended>
__global__ void ragged_tile(const float4* x, float4* y, int rows) {
  __shared__ float4 tile[32];
  const int t = static_cast<int>(threadIdx.x);
  if (t < rows) copy_16_bytes(&tile[t], x + t);
  else if (mended) copy_up_to_16_bytes(&tile[t], x, 0);
  commit();
  wait<0>();
  __syncthreads();
  y[t] = tile[31 - t];  // planted: chunk_not_zeroed
}
BUG(chunk_not_zeroed) {
  const Buffer<float4> x(20, float4{1, 2, 3, 4}), y(32);
  ragged_tile<mended><<<1, 32>>>(x.data, y.data, 20);
  FINISH();
}

/// d = a b of tiles of 16 x 16, whose products are small integers. Each flaw gives the fragments another
/// meaning.
enum class TileFlaw { none, swapped, not_transposed, wrong_half, not_swizzled, wrong_type };
__device__ inline void multiply_f16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
      "%1, "
      "%2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void load_transposed(unsigned (&a)[4], const void* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared_address(from))
               : "memory");
}
template <TileFlaw flaw>
__global__ void multiply_tile(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d) {
  __shared__ alignas(16) __nv_bfloat16 a_tile[256],
      b_tile[256];  // rows of two chunks, which odd rows exchange
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) {
    const unsigned at = flaw == TileFlaw::not_swizzled ? i : i ^ (i / 16 % 2 * 8);
    a_tile[at] = a[i];
    b_tile[at] = b[i];
  }
  __syncwarp();
  const unsigned row = lane % 16, chunk = lane / 16 ^ row % 2;
  unsigned of_a[4], of_b[4];
  load_matrices(of_a, &a_tile[row * 16 + chunk * 8]);
  if (flaw == TileFlaw::not_transposed) load_matrices(of_b, &b_tile[row * 16 + chunk * 8]);
  else load_transposed(of_b, &b_tile[row * 16 + chunk * 8]);
  if (flaw == TileFlaw::swapped) {
    const unsigned held = of_a[1];
    of_a[1] = of_a[2];
    of_a[2] = held;
  }
  for (unsigned j = 0; j < 2; ++j) {
    float c[4] = {};
    const unsigned halves[2] = {of_b[flaw == TileFlaw::wrong_half ? j : 2 * j],
                                of_b[flaw == TileFlaw::wrong_half ? j + 2 : 2 * j + 1]};
    if (flaw == TileFlaw::wrong_type) multiply_f16(c, of_a, halves);
    else multiply(c, of_a, halves);
    for (unsigned e = 0; e < 4; ++e) d[(lane / 4 + e / 2 * 8) * 16 + 8 * j + lane % 4 * 2 + e % 2] = c[e];
  }
}
template <TileFlaw flaw>
bool right_product() {
  std::vector<__nv_bfloat16> a(256), b(256);
  const auto of_a = [](int i, int k) { return static_cast<float>((3 * i + 5 * k) % 7 - 3); };
  const auto of_b = [](int k, int j) { return static_cast<float>((2 * k + 7 * j) % 11 - 5); };
  for (int i = 0; i < 256; ++i) {
    a[static_cast<std::size_t>(i)] = __float2bfloat16(of_a(i / 16, i % 16));
    b[static_cast<std::size_t>(i)] = __float2bfloat16(of_b(i / 16, i % 16));
  }
  const Buffer<__nv_bfloat16> x(256), y(256);
  const Buffer<float> d(256);
  CHECK(cudaMemcpy(x.data, a.data(), x.bytes(), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(y.data, b.data(), y.bytes(), cudaMemcpyHostToDevice));
  multiply_tile<flaw><<<1, 32>>>(x.data, y.data, d.data);
  FINISH();
  const std::vector<float> found = d.download();
  for (int i = 0; i < 256; ++i) {
    float sum = 0;
    for (int k = 0; k < 16; ++k) sum += of_a(i / 16, k) * of_b(k, i % 16);
    if (found[static_cast<std::size_t>(i)] != sum) return false;
  }
  return true;
}
BUG(fragments_swapped) {
  constexpr auto flaw = mended ? TileFlaw::none : TileFlaw::swapped;
  EXPECT(right_product<flaw>());  // planted: fragments_swapped
}
BUG(fragments_not_transposed) {
  constexpr auto flaw = mended ? TileFlaw::none : TileFlaw::not_transposed;
  EXPECT(right_product<flaw>());  // planted: fragments_not_transposed
}
BUG(fragments_of_wrong_half) {
  constexpr auto flaw = mended ? TileFlaw::none : TileFlaw::wrong_half;
  EXPECT(right_product<flaw>());  // planted: fragments_of_wrong_half
}
BUG(tile_not_swizzled) {
  constexpr auto flaw = mended ? TileFlaw::none : TileFlaw::not_swizzled;
  EXPECT(right_product<flaw>());  // planted: tile_not_swizzled
}
BUG(fragments_of_wrong_type) {
  constexpr auto flaw = mended ? TileFlaw::none : TileFlaw::wrong_type;
  EXPECT(right_product<flaw>());  // planted: fragments_of_wrong_type
}
