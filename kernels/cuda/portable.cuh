#pragma once
// Every kernel file includes this header: launches, PTX wrappers, and conversions of 16-bit floats.
//
// - Launch by `launch(kernel, grid, block, shared_bytes, stream, args...)` with trivially copyable arguments.
// - Declare dynamic shared memory as kernels/cuda/attention.cuh does: kernels that are compiled together must
//   agree on the type of the array.
// - Use core's Half and BFloat16 for 16-bit floats. `load()` converts them to float, `store()` rounds back.
// - Write `template <class = void>` before a __global__ function that is not a template, because several
//   sources include its header, and a plain function may be defined only once.
//
// nvcc needs --expt-relaxed-constexpr, since kernels call constexpr functions of core.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tapestry/core/half.h"
#include "tapestry/kernels/cuda/launch.cuh"

namespace tapestry::kernels::cuda {

/// Launches the kernel on the stream's GPU. Throws CudaError that names the kernel if the launch fails.
/// `static`: the launch must be compiled into the module that owns the kernel (see launch.cuh).
template <class... P>
static void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                   std::type_identity_t<P>... args) {
  void* addresses[] = {static_cast<void*>(&args)..., nullptr};
  detail::launch_kernel(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream, addresses);
}

namespace ptx {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
/// d += a b, where a is 16 x 16, b is 16 x 8 and d is 16 x 8. The warp's fragments have the PTX ISA's layout.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                                  const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// Loads 8 x 8 matrices of 16-bit elements from shared memory. Lane 8 q + r passes the address of row r of
/// matrix q.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(std::uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(std::uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
/// Copies 16 bytes asynchronously from global to shared memory, bypassing the L1 cache. Both addresses must
/// be aligned to 16 bytes. Writes zeros if `read` is false.
__device__ __forceinline__ void cp_async16(void* to, const void* from, bool read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(read ? 16 : 0)
               : "memory");
}
/// Copies 4 bytes asynchronously, through the L1 cache. Both addresses must be aligned to 4 bytes. Writes
/// zeros if `read` is false.
__device__ __forceinline__ void cp_async4(void* to, const void* from, bool read) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(read ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most the last `Keep` of this thread's copy groups are in flight. To see the copies of other
/// threads, a barrier must follow.
template <int Keep>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Keep) : "memory");
}
__device__ __forceinline__ std::uint16_t to_bf16_bits(float x) {
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
__device__ __forceinline__ std::uint16_t to_f16_bits(float x) {
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
__device__ __forceinline__ float from_f16_bits(std::uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
/// 2^x with a relative error of at most 2^-22. Subnormal inputs and results become 0. This is one
/// instruction; exp2f() takes four and expf() eight.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace ptx

/// The type in which values of type T are computed: float for the 16-bit types.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

template <class T>
__device__ __forceinline__ Compute<T> load(T x) {
  if constexpr (std::is_same_v<T, Half>) return ptx::from_f16_bits(x.bits);
  else return static_cast<Compute<T>>(x);
}
/// Rounds to nearest, ties to even.
template <class T>
__device__ __forceinline__ T store(Compute<T> x) {
  if constexpr (std::is_same_v<T, Half>) return Half::from_bits(ptx::to_f16_bits(x));
  else if constexpr (std::is_same_v<T, BFloat16>) return BFloat16::from_bits(ptx::to_bf16_bits(x));
  else return x;
}

/// N elements that one instruction reads or writes. The address must be a multiple of the pack's size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <class T, int N>
bool aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % sizeof(Pack<T, N>) == 0;
}
/// The pack at `from`, or `otherwise` in every element if `has` is false. It is loaded as 32-bit words, since
/// the compiler splits a conditional load of 16-bit elements into single elements.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> pack_or(const T* from, bool has, T otherwise) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.v[i] = otherwise;
  if constexpr (sizeof pack % 4 == 0) {
    Pack<std::uint32_t, sizeof pack / 4> words;
    memcpy(&words, &pack, sizeof pack);
    if (has) words = *reinterpret_cast<const decltype(words)*>(from);
    memcpy(static_cast<void*>(&pack), &words, sizeof pack);
  } else if (has) {
    pack = *reinterpret_cast<const Pack<T, N>*>(from);
  }
  return pack;
}
/// Converts each element to the type of computation, as load() does. The two bf16 of a 32-bit word are
/// converted together, which takes two instructions instead of four. The pack is passed by value, so that it
/// is loaded by one instruction.
template <class T, int N>
__device__ __forceinline__ Pack<Compute<T>, N> unpacked(Pack<T, N> pack) {
  Pack<Compute<T>, N> x;
  if constexpr (std::is_same_v<T, BFloat16> && N % 2 == 0) {
    std::uint32_t words[N / 2];
    memcpy(words, &pack, sizeof words);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      x.v[2 * i] = __uint_as_float(words[i] << 16);
      x.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) x.v[i] = load(pack.v[i]);
  }
  return x;
}
/// e^x. For bf16 it is approximate, with more digits than bf16 has, and subnormal results become 0. Otherwise
/// it is expf().
template <class T>
__device__ __forceinline__ float exp_for(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) return ptx::exp2_approx(x * 1.44269504f);
  else return expf(x);
}
/// a / b. For bf16 it is approximate, and requires 2^-126 <= b <= 2^126.
template <class T>
__device__ __forceinline__ float quotient_for(float a, float b) {
  if constexpr (std::is_same_v<T, BFloat16>) return __fdividef(a, b);
  else return a / b;
}

inline constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace tapestry::kernels::cuda
