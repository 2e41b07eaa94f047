#pragma once
// What a kernel file includes. The same file is compiled by nvcc for GPUs and by g++ for tests that run it on
// a CPU: there the test build's include path leads to an emulator. What keeps it portable:
//
// - launch through `launch(kernel, grid, block, shared_bytes, stream, args...)`, with arguments that are
// plain bytes;
// - shared memory through `SHARED(float, tile, [16][17]);` and `DYN_SHARED(float, rows);` (16-byte aligned);
// - PTX only inside `ptx::` wrappers, whose semantics the emulator has too;
// - 16-bit floats are core's Half and BFloat16: stored in two bytes, computed in float, by `load()` and
// `store()`;
// - `template <class = void>` on a __global__ function that needs no parameter, for it may be defined only
// once;
// - `UNROLL` and `NO_UNROLL` for `#pragma unroll` and its contrary, which g++ does not know.
//
// Compiled with nvcc's --expt-relaxed-constexpr, so that constexpr functions of core serve on the GPU.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tapestry/core/half.h"

#ifdef __CUDACC__
#include "tapestry/kernels/cuda/launch.cuh"
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define SHARED(T, name, ...) __shared__ T name __VA_ARGS__
#define DYN_SHARED(T, name)                                                \
  extern __shared__ __align__(16) unsigned char tapestry_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(tapestry_dynamic_shared)
#else
#include <cuda_emulator.h>
#define UNROLL
#define NO_UNROLL
#endif

namespace tapestry::kernels::cuda {

/// The current stream of the device that the running kernel was called for. This thread's launches go to its
/// GPU.
cudaStream_t kernel_stream();

#ifdef __CUDACC__

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
/// d += a b for the warp's 16 x 8 x 16 tile; fragments as the PTX ISA lays them out.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                                  const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// 8 x 8 matrices of 16-bit elements from shared memory; lane 8 q + r gives the address of row r of matrix q.
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
/// 16 bytes from global to shared memory, both aligned to 16, without registers; zeros unless `read`.
__device__ __forceinline__ void cp_async16(void* to, const void* from, bool read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(read ? 16 : 0)
               : "memory");
}
/// 4 bytes likewise, through the L1.
__device__ __forceinline__ void cp_async4(void* to, const void* from, bool read) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(read ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits for this thread's groups of copies, all but the last `Keep`. Others' copies: a barrier after it.
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
/// 2^x within 2^-22 of it; what is subnormal is 0. One instruction, where exp2f() takes four and expf()
/// eight.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace ptx

#else

namespace ptx = ::cuda_emulator::ptx;

template <class... P>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
            std::type_identity_t<P>... args) {
  ::cuda_emulator::launch(kernel, grid, block, shared_bytes, stream, args...);
}

#endif

/// The type that T is computed in.
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

/// N elements that are read and written at once, where their address is a multiple of their size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <class T, int N>
bool aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % sizeof(Pack<T, N>) == 0;
}
/// `otherwise` where there is nothing to read. By words: under a condition elements of 16 bits move one by
/// one.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> pack_or(const T* from, bool has, T otherwise) {
  Pack<T, N> pack;
  UNROLL for (int i = 0; i < N; ++i) pack.v[i] = otherwise;
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
/// load() of each. Two of bf16 come out of a word by two instructions; one by one they take four. By value,
/// so that a pack in memory is read at once.
template <class T, int N>
__device__ __forceinline__ Pack<Compute<T>, N> unpacked(Pack<T, N> pack) {
  Pack<Compute<T>, N> x;
  if constexpr (std::is_same_v<T, BFloat16> && N % 2 == 0) {
    std::uint32_t words[N / 2];
    memcpy(words, &pack, sizeof words);
    UNROLL for (int i = 0; i < N / 2; ++i) {
      x.v[2 * i] = __uint_as_float(words[i] << 16);
      x.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  } else {
    UNROLL for (int i = 0; i < N; ++i) x.v[i] = load(pack.v[i]);
  }
  return x;
}
/// e^x for results of type T: to bf16's digits and some more, what is subnormal is 0; or to f32's.
template <class T>
__device__ __forceinline__ float exp_for(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) return ptx::exp2_approx(x * 1.44269504f);
  else return expf(x);
}
/// Likewise a / b, for 2^-126 <= b <= 2^126.
template <class T>
__device__ __forceinline__ float quotient_for(float a, float b) {
  if constexpr (std::is_same_v<T, BFloat16>) return __fdividef(a, b);
  else return a / b;
}

inline constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace tapestry::kernels::cuda
