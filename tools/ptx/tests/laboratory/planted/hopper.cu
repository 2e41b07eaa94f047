// Instructions of sm_90a: mbarrier, bulk copies of the async proxy, and products of warpgroups.
#include "tapestry/tools/ptx/tests/laboratory/planted/bugs.h"

__device__ inline unsigned shared_offset(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ inline void init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void wait_for(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ inline void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ inline void bulk_store(void* to, unsigned from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
/// c += a b, where a row of A is in registers, and B in shared memory.
__device__ inline void multiply(float (&c)[4], unsigned a, unsigned long long descriptor) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %4, %4, %4}, %5, 1, 1, 1, "
      "0;"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a), "l"(descriptor)
      : "memory");
}

/// The barrier must know how many bytes the copy brings. Otherwise its phase ends with the arrival.
template <bool mended>
__global__ void load_by_bulk_copy(const float* x, float* y) {
  __shared__ alignas(128) float tile[64];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned b = shared_offset(&barrier);
  if (threadIdx.x == 0) {
    init(b, 1);
    if (mended)
      asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], 256;\n}" ::"r"(b)
                   : "memory");
    else asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(b) : "memory");
    bulk_load(shared_offset(tile), x, 256, b);
  }
  __syncthreads();
  wait_for(b, 0);
  y[threadIdx.x] = tile[63 - threadIdx.x];  // planted: missing_expect_tx
}
BUG(missing_expect_tx) {
  const Buffer<float> x(64, 1), y(64);
  load_by_bulk_copy<mended><<<1, 64>>>(x.data, y.data);
  FINISH();
}

/// Before the first phase ends, a wait for parity 1 is a wait for the phase before it, and returns at once.
template <bool mended>
__global__ void wait_for_parity(const float* x, float* y) {
  __shared__ alignas(128) float tile[64];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned b = shared_offset(&barrier);
  if (threadIdx.x == 0) {
    init(b, 1);
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], 256;\n}" ::"r"(b)
                 : "memory");
    bulk_load(shared_offset(tile), x, 256, b);
  }
  __syncthreads();
  wait_for(b, mended ? 0 : 1);
  y[threadIdx.x] = tile[63 - threadIdx.x];  // planted: mbarrier_of_wrong_parity
}
BUG(mbarrier_of_wrong_parity) {
  const Buffer<float> x(64, 1), y(64);
  wait_for_parity<mended><<<1, 64>>>(x.data, y.data);
  FINISH();
}

/// The barrier expects the arrivals of 64 threads, but only one arrives.
template <bool mended>
__global__ void one_arrival(float* y) {
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned b = shared_offset(&barrier);
  if (threadIdx.x == 0) {
    init(b, mended ? 1 : 64);
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(b) : "memory");
  }
  __syncthreads();
  wait_for(b, 0);  // planted: mbarrier_expects_more_arrivals
  y[threadIdx.x] = 1;
}
BUG(mbarrier_expects_more_arrivals) {
  const Buffer<float> y(64);
  one_arrival<mended><<<1, 64>>>(y.data);
  FINISH();
}

template <bool mended>
__global__ void ragged_bulk_copy(const float* x, float* y) {
  __shared__ alignas(128) float tile[64];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned b = shared_offset(&barrier), bytes = mended ? 240 : 244;
  if (threadIdx.x == 0) {
    init(b, 1);
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(b),
                 "r"(bytes)
                 : "memory");
    bulk_load(shared_offset(tile), x, bytes, b);  // planted: bulk_copy_of_odd_size
  }
  __syncthreads();
  wait_for(b, 0);
  if (threadIdx.x < 60) y[threadIdx.x] = tile[threadIdx.x];
}
BUG(bulk_copy_of_odd_size) {
  const Buffer<float> x(64, 1), y(64);
  ragged_bulk_copy<mended><<<1, 64>>>(x.data, y.data);
  FINISH();
}

/// The copy to global memory still reads the tile when it is written again.
template <bool mended>
__global__ void store_by_bulk_copy(float* y) {
  __shared__ alignas(128) float tile[32];
  const unsigned t = threadIdx.x;
  for (int k = 0; k < 2; ++k) {
    tile[t] = static_cast<float>(k);  // planted: tile_written_during_bulk_store
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (t == 0) {
      bulk_store(y + 32 * k, shared_offset(tile), 128);
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      if (mended || k == 1) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    __syncwarp();
  }
}
BUG(tile_written_during_bulk_store) {
  const Buffer<float> y(64);
  store_by_bulk_copy<mended><<<1, 32>>>(y.data);
  FINISH();
}

/// What threads have written reaches the async proxy only behind a fence.
template <bool mended>
__global__ void store_without_fence(float* y) {
  __shared__ alignas(128) float tile[32];
  tile[threadIdx.x] = 1;
  if (mended) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (threadIdx.x == 0) {
    bulk_store(y, shared_offset(tile), 128);  // planted: missing_proxy_fence
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
BUG(missing_proxy_fence) {
  const Buffer<float> y(32);
  store_without_fence<mended><<<1, 32>>>(y.data);
  FINISH();
}

/// The product of a warpgroup, of A in registers and B in shared memory, all ones.
template <bool waits, bool fences>
__global__ void warpgroup_product(float* y) {
  __shared__ alignas(128) unsigned b[64];  // 16 x 8 in bf16
  if (threadIdx.x < 64) b[threadIdx.x] = 0x3f803f80u;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  constexpr unsigned a = 0x3f803f80u;
  // The address, and the distances of core matrices along K (128 bytes) and N, all divided by 16.
  const unsigned long long descriptor = (shared_offset(b) & 0x3ffffu) >> 4 | 8ull << 16 | 16ull << 32;
  float c[4] = {1, 1, 1, 1};
  if (fences) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  multiply(c, a, descriptor);  // planted: wgmma_without_fence
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  if (waits) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  y[threadIdx.x] = c[0];  // planted: wgmma_without_wait
  if (!waits) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
BUG(wgmma_without_wait) {
  const Buffer<float> y(128);
  warpgroup_product<mended, true><<<1, 128>>>(y.data);
  FINISH();
}
BUG(wgmma_without_fence) {
  const Buffer<float> y(128);
  warpgroup_product<true, mended><<<1, 128>>>(y.data);
  FINISH();
}
