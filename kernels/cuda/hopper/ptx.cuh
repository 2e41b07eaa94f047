#pragma once
// Instructions of sm_90a. The names and the rules are those of the PTX ISA manual, sections "mbarrier",
// "cp.async.bulk.tensor", "Asynchronous Warpgroup Level Matrix Instructions" and "setmaxnreg".
#include <cstdint>

#include "tapestry/kernels/cuda/portable.cuh"

namespace tapestry::kernels::cuda::ptx {

// ---- mbarriers

/// Makes a barrier that completes a phase after `count` arrivals and all announced bytes.
__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}
/// Makes initialised barriers visible to TMA.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives, and announces that copies will write this many bytes before the phase ends.
__device__ __forceinline__ void barrier_arrive_expect(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
/// Waits until the phase of this parity has completed. The first phase has parity 0. Before it has completed,
/// the phase of parity 1 counts as completed.
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "TAPESTRY_WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra TAPESTRY_DONE;\n"
      "bra TAPESTRY_WAIT;\n"
      "TAPESTRY_DONE:\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// ---- TMA

/// The 128 bytes that the driver's cuTensorMapEncodeTiled() writes.
struct alignas(64) TensorMapBytes {
  unsigned char bytes[128];
};

/// Copies the box at (x, y, z) of a three-dimensional array to shared memory, and counts its bytes on the
/// barrier. Elements outside of the array are zero, and count too. One thread issues the copy.
__device__ __forceinline__ void copy_box(void* to, const TensorMapBytes* map, int x, int y, int z,
                                         std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}
/// The same for the box at (x, y, z, w) of a four-dimensional array.
__device__ __forceinline__ void copy_box(void* to, const TensorMapBytes* map, int x, int y, int z, int w,
                                         std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5}], [%6];" ::"r"(shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void prefetch_map(const TensorMapBytes* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- wgmma

/// A descriptor of a matrix in shared memory in lines of 128 bytes, which are swizzled over 128 bytes, as TMA
/// writes them. Eight lines are a group of 1024 bytes.
///   Along k: a line is a row of the matrix with 64 elements of k. 16 elements of k are 32 bytes.
///   Across k: a line is 64 rows at one k. 16 elements of k are 2 groups. The next 64 rows are
///   `leading` bytes further.
__device__ __forceinline__ std::uint64_t matrix_descriptor(const void* p, int leading) {
  constexpr std::uint64_t kSwizzle128 = 1, kGroupBytes = 1024;
  return static_cast<std::uint64_t>((shared_address(p) & 0x3ffff) >> 4) | std::uint64_t(leading >> 4) << 16 |
         (kGroupBytes >> 4) << 32 | kSwizzle128 << 62;
}
/// Orders the registers' earlier accesses before the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most the last `Keep` groups are in flight.
template <int Keep>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Keep) : "memory");
}
/// Keeps the compiler from moving accesses to the sums across this point.
template <int kSums>
__device__ __forceinline__ void keep_sums(float (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
/// Keeps fragments of A, which wgmma reads until the wait, in their registers up to this point.
template <int kWords>
__device__ __forceinline__ void keep_fragments(std::uint32_t (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) asm volatile("" : "+r"(words[i])::"memory");
}

#define TAPESTRY_SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define TAPESTRY_SUMS_16(i) \
  TAPESTRY_SUMS_4(i), TAPESTRY_SUMS_4(i + 4), TAPESTRY_SUMS_4(i + 8), TAPESTRY_SUMS_4(i + 12)
#define TAPESTRY_SUMS_32(i) TAPESTRY_SUMS_16(i), TAPESTRY_SUMS_16(i + 16)
#define TAPESTRY_SUMS_64(i) TAPESTRY_SUMS_32(i), TAPESTRY_SUMS_32(i + 32)
#define TAPESTRY_FIRST_32                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TAPESTRY_FIRST_64                                                            \
  TAPESTRY_FIRST_32                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TAPESTRY_FIRST_128                                                                       \
  TAPESTRY_FIRST_64                                                                              \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/// sums += a b, or sums = a b unless `add`, where a is 64 x 16 and b is 16 x 256, both in shared memory and
/// given by matrix_descriptor(). kAAcross and kBAcross: the lines of a, and of b, lie across k. Row r of the
/// sums is in warp r / 16 of the warpgroup, and its column c is in lane r % 8 * 4 + c / 2 % 4, at
/// sums[c / 8 * 4 + r / 8 % 2 * 2 + c % 2].
template <int kAAcross, int kBAcross>
__device__ __forceinline__ void wgmma_m64n256k16_bf16(float (&sums)[128], std::uint64_t a, std::uint64_t b,
                                                      bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" TAPESTRY_FIRST_128
      "}, %128, %129, add, 1, 1, %131, %132;\n"
      "}"
      : TAPESTRY_SUMS_64(0), TAPESTRY_SUMS_64(64)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kAAcross), "n"(kBAcross));
}
/// The same for a b of 16 x 128. The lines of both operands lie along k.
__device__ __forceinline__ void wgmma_k16_bf16(float (&sums)[64], std::uint64_t a, std::uint64_t b,
                                               bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TAPESTRY_FIRST_64
      "}, %64, %65, add, 1, 1, 0, 0;\n"
      "}"
      : TAPESTRY_SUMS_64(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
/// sums += a b, where a is 64 x 16 and in registers, and b is 16 x 64 or 16 x 128 in shared memory, with
/// lines across k (see matrix_descriptor()). Row r of a is in warp r / 16, and elements (r, k) and (r, k + 1)
/// are in lane r % 8 * 4 + k / 2 % 4, in a[k / 8 * 2 + r / 8 % 2]. The sums of an earlier product lie in the
/// same places, so attention can use its scores as a without moving them between lanes.
__device__ __forceinline__ void wgmma_k16_bf16(float (&sums)[32], const std::uint32_t* a, std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TAPESTRY_FIRST_32
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
               : TAPESTRY_SUMS_32(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_k16_bf16(float (&sums)[64], const std::uint32_t* a, std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TAPESTRY_FIRST_64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : TAPESTRY_SUMS_64(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef TAPESTRY_SUMS_4
#undef TAPESTRY_SUMS_16
#undef TAPESTRY_SUMS_32
#undef TAPESTRY_SUMS_64
#undef TAPESTRY_FIRST_32
#undef TAPESTRY_FIRST_64
#undef TAPESTRY_FIRST_128

// ---- registers

/// Changes the number of registers that each thread of the warpgroup has.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tapestry::kernels::cuda::ptx
