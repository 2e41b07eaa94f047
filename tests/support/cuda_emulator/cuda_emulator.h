#pragma once
// Defines CUDA's built-in variables and functions for kernels that g++ compiles. kernels/cuda/portable.cuh
// includes this header if nvcc is not the compiler. Kernels see nothing else of the emulator. Features that
// are missing here are not portable: cooperative groups, wgmma, TMA, __activemask.
#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tapestry/core/half.h"
#include "tests/support/cuda_emulator/launch.h"
#include "tests/support/cuda_emulator/runtime.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::cuda_emulator::current->thread)
#define blockIdx (::cuda_emulator::current->block)
#define blockDim (::cuda_emulator::current->block_dim)
#define gridDim (::cuda_emulator::current->grid_dim)

/// SHARED declares a reference to a shared array. Each thread block gets its own heap block for it, so that
/// AddressSanitizer detects out-of-bounds accesses.
#define SHARED(T, name, ...)                                      \
  using name##_type = ::cuda_emulator::SharedType<T __VA_ARGS__>; \
  static char name##_declaration;                                 \
  name##_type& name = *static_cast<name##_type*>(                 \
      ::cuda_emulator::shared_array(&name##_declaration, sizeof(name##_type), alignof(name##_type)))
#define DYN_SHARED(T, name) T* const name = static_cast<T*>(::cuda_emulator::dynamic_shared())

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace cuda_emulator {
/// Lets SHARED name an array type such as `float [4][8]`.
template <class T>
using SharedType = T;

template <class T>
concept AtomicNumber = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, int> ||
    std::same_as<T, unsigned> || std::same_as<T, unsigned long long>;
template <class T>
concept AtomicInteger = AtomicNumber<T> && std::integral<T>;

template <class T, class F>
T atomic_update(T* p, F f) {
  std::atomic_ref<T> target(*p);
  T old = target.load(std::memory_order_relaxed);
  while (!target.compare_exchange_weak(old, f(old), std::memory_order_relaxed)) {
  }
  return old;
}

template <class T>
T shuffle_from(unsigned mask, const T& value, int lane, const Location& where) {
  static_assert(std::is_arithmetic_v<T>);
  T result;
  warp_operation(mask, &shuffle, {&value, &result, lane}, sizeof(T), false, where);
  return result;
}
}  // namespace cuda_emulator

inline constexpr int warpSize = 32;

// ---- barriers and fences

inline void __syncthreads(cuda_emulator::Location where = cuda_emulator::Location::current()) {
  cuda_emulator::block_barrier(0, where);
}
inline int __syncthreads_count(int predicate,
                               cuda_emulator::Location where = cuda_emulator::Location::current()) {
  return cuda_emulator::block_barrier(predicate, where).count;
}
inline int __syncthreads_or(int predicate,
                            cuda_emulator::Location where = cuda_emulator::Location::current()) {
  return cuda_emulator::block_barrier(predicate, where).any;
}
inline int __syncthreads_and(int predicate,
                             cuda_emulator::Location where = cuda_emulator::Location::current()) {
  return cuda_emulator::block_barrier(predicate, where).all;
}
inline void __syncwarp(unsigned mask = ~0u,
                       cuda_emulator::Location where = cuda_emulator::Location::current()) {
  cuda_emulator::warp_operation(mask, &cuda_emulator::nothing, {}, 0, true, where);
}
inline void __threadfence() { cuda_emulator::fence(); }

// ---- warp shuffles and votes

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32,
              cuda_emulator::Location where = cuda_emulator::Location::current()) {
  const int self = static_cast<int>(cuda_emulator::current->lane);
  return cuda_emulator::shuffle_from(mask, value, (self & -width) | (lane & (width - 1)), where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  cuda_emulator::Location where = cuda_emulator::Location::current()) {
  const int self = static_cast<int>(cuda_emulator::current->lane), lane = self ^ bits;
  // The warp is divided into segments of `width` lanes. As in CUDA, a lane can read from earlier segments,
  // but gets its own value instead of one from a later segment.
  return cuda_emulator::shuffle_from(mask, value, (lane & -width) > (self & -width) ? self : lane, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 cuda_emulator::Location where = cuda_emulator::Location::current()) {
  const int self = static_cast<int>(cuda_emulator::current->lane), by = static_cast<int>(delta);
  return cuda_emulator::shuffle_from(mask, value, (self & (width - 1)) < by ? self : self - by, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   cuda_emulator::Location where = cuda_emulator::Location::current()) {
  const int self = static_cast<int>(cuda_emulator::current->lane), by = static_cast<int>(delta);
  return cuda_emulator::shuffle_from(mask, value, (self & (width - 1)) + by >= width ? self : self + by,
                                     where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              cuda_emulator::Location where = cuda_emulator::Location::current()) {
  unsigned votes = 0;
  cuda_emulator::warp_operation(mask, &cuda_emulator::ballot, {nullptr, &votes, predicate}, sizeof votes,
                                false, where);
  return votes;
}
inline int __any_sync(unsigned mask, int predicate,
                      cuda_emulator::Location where = cuda_emulator::Location::current()) {
  return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      cuda_emulator::Location where = cuda_emulator::Location::current()) {
  return __ballot_sync(mask, predicate, where) == mask;
}

// ---- atomics with relaxed memory order, as in CUDA

template <cuda_emulator::AtomicNumber T>
T atomicAdd(T* p, std::type_identity_t<T> value) {
  return cuda_emulator::atomic_update(p, [value](T old) { return static_cast<T>(old + value); });
}
template <cuda_emulator::AtomicInteger T>
T atomicMax(T* p, std::type_identity_t<T> value) {
  return cuda_emulator::atomic_update(p, [value](T old) { return old < value ? value : old; });
}
template <cuda_emulator::AtomicInteger T>
T atomicMin(T* p, std::type_identity_t<T> value) {
  return cuda_emulator::atomic_update(p, [value](T old) { return value < old ? value : old; });
}
template <class T>
requires cuda_emulator::AtomicInteger<T> || std::same_as<T, float> T
atomicExch(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*p).exchange(value, std::memory_order_relaxed);
}
template <cuda_emulator::AtomicInteger T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*p).compare_exchange_strong(expected, value, std::memory_order_relaxed);
  return expected;
}

// ---- arithmetic. Rounding may differ from a GPU's, where __fdividef and similar functions are approximations.

template <class T>
T __ldg(const T* p) {
  return *p;
}
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline double __dmul_rn(double x, double y) { return x * y; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(x) * y) >> 32);
}

// ---- what portable.cuh builds on

namespace cuda_emulator {

template <class... P, std::size_t... I>
void call_kernel(void (*kernel)(), const void* const* arguments, std::index_sequence<I...>) {
  static_cast<void>(arguments);  // unused if there are no arguments
  reinterpret_cast<void (*)(P...)>(kernel)(*static_cast<const P*>(arguments[I])...);
}

template <class... P>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
            std::type_identity_t<P>... args) {
  static_assert((std::is_trivially_copyable_v<P> && ...), "kernel arguments are copied to the GPU as bytes");
  static_assert((sizeof(P) + ... + 0) <= 4096, "kernel arguments take 4 KiB at most");
  static_assert(((alignof(P) <= 16) && ...), "kernel arguments are aligned to 16 bytes at most");
#if __has_builtin(__builtin_clear_padding)
  (__builtin_clear_padding(&args), ...);  // old bytes in the padding could be mistaken for an address
#endif
  launch(reinterpret_cast<void (*)()>(kernel), grid, block, shared_bytes, stream,
         [](void (*k)(), const void* const* a) { call_kernel<P...>(k, a, std::index_sequence_for<P...>()); },
         {{&args, sizeof args}...});
}

}  // namespace cuda_emulator

#include "tests/support/cuda_emulator/ptx.h"
