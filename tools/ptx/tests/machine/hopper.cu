// Kernels for sm_90a that the tests compile to PTX with nvcc: a product whose tiles come by TMA, with one warp that
// loads and a warpgroup that multiplies. `bug` plants one mistake. Nothing here is linked.
#include <cstdint>

struct alignas(64) Map {
  unsigned char bytes[128];
};

enum Bug {
  kNone,
  kNoWaitGroup,
  kNoMatrixFence,
  kExpectTooFew,
  kExpectTooMany,
  kNoProxyFence,
  kNoFullWait,
  kEarlyRelease,
  kNoEmptyWait,
  kNoInitFence,
  kNoReadWait,
};

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nLAB_WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra "
      "LAB_WAIT;\nDONE:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void load(void* to, const Map* map, int x, int y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void store(const Map* map, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
               "r"(y), "r"(shared_address(from))
               : "memory");
}
// Rows of 128 bytes in groups of 8, swizzled over 128 bytes.
__device__ __forceinline__ uint64_t descriptor(const void* p) {
  return static_cast<uint64_t>((shared_address(p) & 0x3ffff) >> 4) | uint64_t{1} << 16 | uint64_t{64} << 32 |
         uint64_t{1} << 62;
}
template <int transposed>
__device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, "
      "1, 1, 0, %34;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "n"(transposed));
}

constexpr int kStages = 2;
struct Shared {
  alignas(1024) unsigned char a[kStages][64 * 128], b[kStages][64 * 128];
  alignas(128) float c[2][64][32];
  uint64_t full[kStages], empty[kStages];
};

/// C = A B for tiles of 64 x 64; A is m x k, B is k x n if transposed, otherwise n x k. k is a multiple of 64. One
/// block per tile, 160 threads: a warpgroup, and a warp that loads.
template <int transposed>
__device__ __forceinline__ void product(const Map& a, const Map& b, const Map& c, int k, int bug) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int thread = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.y) * 64,
            column = static_cast<int>(blockIdx.x) * 64, steps = k / 64;
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&s.full[i])) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(shared_address(&s.empty[i])) : "memory");
    }
    if (bug != kNoInitFence) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (thread >= 128) {
    if (thread > 128) return;
    for (int i = 0; i < steps; ++i) {
      const int stage = i % kStages;
      if (bug != kNoEmptyWait) wait(&s.empty[stage], (i / kStages & 1) ^ 1);
      expect(&s.full[stage], 16384 + (bug == kExpectTooMany ? 16 : bug == kExpectTooFew ? -8192 : 0));
      load(s.a[stage], &a, 64 * i, row, &s.full[stage]);
      if (transposed) load(s.b[stage], &b, column, 64 * i, &s.full[stage]);
      else load(s.b[stage], &b, 64 * i, column, &s.full[stage]);
    }
    return;
  }
  float d[32] = {};
  for (int i = 0; i < steps; ++i) {
    const int stage = i % kStages;
    if (bug != kNoFullWait) wait(&s.full[stage], i / kStages & 1);
    if (bug != kNoMatrixFence) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    // 16 columns of A are 32 bytes; 16 rows of B are 2 KiB.
    for (int j = 0; j < 4; ++j)
      multiply<transposed>(d, descriptor(s.a[stage]) + 2 * j, descriptor(s.b[stage]) + (transposed ? 128 : 2) * j);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if (bug == kEarlyRelease) arrive(&s.empty[stage]);
    if (bug != kNoWaitGroup) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (bug != kEarlyRelease) arrive(&s.empty[stage]);
  }
  for (int i = 0; i < 32; ++i) {
    const int r = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, x = i / 4 * 8 + thread % 4 * 2 + i % 2;
    s.c[x / 32][r][x % 32] = d[i];
  }
  if (bug != kNoProxyFence) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync 1, 128;" ::: "memory");
  if (thread == 0) {
    store(&c, column, row, s.c[0]);
    store(&c, column + 32, row, s.c[1]);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    if (bug != kNoReadWait) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}

extern "C" __global__ void __launch_bounds__(160)
    product_nk(const __grid_constant__ Map a, const __grid_constant__ Map b, const __grid_constant__ Map c, int k, int bug) {
  product<0>(a, b, c, k, bug);
}
extern "C" __global__ void __launch_bounds__(160)
    product_kn(const __grid_constant__ Map a, const __grid_constant__ Map b, const __grid_constant__ Map c, int k, int bug) {
  product<1>(a, b, c, k, bug);
}
