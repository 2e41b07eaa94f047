#pragma once
// Kernels that copy with conversion, and that fill. They support all dtypes. The integers that are only
// stored are converted from and to i32 alone, because a kernel for each pair of dtypes would double the
// number of kernels.
#include "tapestry/core/error.h"
#include "tapestry/kernels/convert.h"
#include "tapestry/kernels/cuda/copy_transposed.cuh"
#include "tapestry/kernels/cuda/map.cuh"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry::kernels::cuda {

template <class To>
struct Convert {
  template <class From>
  __device__ Compute<To> operator()(From x) const {
    return convert<Compute<To>>(x);
  }
};
struct Same {
  template <class T>
  __device__ T operator()(T x) const {
    return x;
  }
};
template <class T>
struct Constant {
  T value;
  __device__ T operator()() const { return value; }
};

/// An integer type of T's size. Copying as integers keeps signalling NaNs unchanged.
template <class T>
using Bits =
    std::conditional_t<sizeof(T) == 8, std::uint64_t,
                       std::conditional_t<sizeof(T) == 4, std::uint32_t,
                                          std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;

/// Copies elements without a conversion. T is an integer type of their size.
template <class T>
void copy_bits(const Elementwise<2>& e, cudaStream_t stream) {
  if (e.numel == 0 || !transpose_dims(e)) return map<T, T>(e, Same{}, stream);
  for_parts(e, std::int64_t{0x7fffffff}, [&](const Elementwise<2>& part) {
    // A part has a shorter first dimension, which may be too short for tiles.
    if (const TransposeDims dims = transpose_dims(part)) launch_copy_transposed<T>(part, dims, stream);
    else map<T, T>(part, Same{}, stream);
  });
}

template <class To, class From>
void copy_from(const Elementwise<2>& e, cudaStream_t stream) {
  if constexpr (std::is_same_v<To, From>) copy_bits<Bits<To>>(e, stream);
  else map<To, From>(e, Convert<To>{}, stream);
}

/// Computes out = x, where To or the dtype of x is only stored.
template <class To>
void launch_stored_copy(const Elementwise<2>& e, cudaStream_t stream) {
  if (e.dtypes[1] == dtype_of<To>) return copy_bits<Bits<To>>(e, stream);
  if constexpr (is_stored_integer<To>)
    if (e.dtypes[1] == DType::i32) return map<To, std::int32_t>(e, Convert<To>{}, stream);
  if constexpr (std::is_same_v<To, std::int32_t>) {
    if (e.dtypes[1] == DType::i16) return map<To, std::int16_t>(e, Convert<To>{}, stream);
    if (e.dtypes[1] == DType::i8) return map<To, std::int8_t>(e, Convert<To>{}, stream);
    if (e.dtypes[1] == DType::u16) return map<To, std::uint16_t>(e, Convert<To>{}, stream);
  }
  fail<MissingKernelError>("[copy] there is no cuda kernel that converts ", e.dtypes[1], " to ", dtype_of<To>,
                           "; convert to int32 first");
}

/// Computes out = x. x may have any dtype, except that only i32 is converted from and to the dtypes that are
/// only stored.
template <class To>
void launch_copy(const LaunchContext& context, const Elementwise<2>& e) {
  const cudaStream_t stream = stream_of(context);
  if constexpr (is_stored_integer<To>) return launch_stored_copy<To>(e, stream);
  else switch (e.dtypes[1]) {
      case DType::i16:
      case DType::i8:
      case DType::u16:
        return launch_stored_copy<To>(e, stream);
      case DType::f32:
        return copy_from<To, float>(e, stream);
      case DType::f64:
        return copy_from<To, double>(e, stream);
      case DType::f16:
        return copy_from<To, Half>(e, stream);
      case DType::bf16:
        return copy_from<To, BFloat16>(e, stream);
      case DType::i64:
        return copy_from<To, std::int64_t>(e, stream);
      case DType::i32:
        return copy_from<To, std::int32_t>(e, stream);
      case DType::u8:
        return copy_from<To, std::uint8_t>(e, stream);
      case DType::boolean:
        return copy_from<To, bool>(e, stream);
    }
}

template <class T>
void launch_fill(const LaunchContext& context, const FillArgs& a) {
  using C = Compute<T>;
  map<T>(a.out, Constant<C>{convert_scalar<C>(a.value)}, stream_of(context));
}

}  // namespace tapestry::kernels::cuda
