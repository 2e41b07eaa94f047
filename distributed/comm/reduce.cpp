// The arithmetic of reductions. Everything runs in the calling thread.
#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/backend.h"

namespace tapestry::distributed {
namespace {

template <class T>
constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

// The type in which values of type T are added and multiplied. It is uint64 for integers, because unsigned
// overflow is defined: it wraps around.
template <class T>
using Computed =
    std::conditional_t<is_half<T>, float, std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>>;

// The pragmas tell the compiler that the iterations are independent. This is correct because `out` is either
// exactly x or y, or overlaps neither.
template <class T, class F>
void combine(T* out, const T* x, const T* y, std::int64_t count, F f) {
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::int64_t i = 0; i < count; ++i) out[i] = f(x[i], y[i]);
}

// Reads the values of several ranks. Each rank's values begin `offset` bytes after its address in `of`.
struct Values {
  const void* const* of;
  std::size_t offset;  // in bytes

  template <class T>
  const T* at(int rank) const {
    return reinterpret_cast<const T*>(static_cast<const std::byte*>(of[rank]) + offset);
  }
};

// Combines the values of all ranks in order of rank, one value per pass. The last pass calls `last`, which
// may also divide for a mean.
template <class T, class F, class Last>
void fold(void* out, const Values& values, int size, std::int64_t count, F f, Last last) {
  T* const o = static_cast<T*>(out);
  const T* so_far = values.at<T>(0);
  for (int i = 1; i + 1 < size; ++i, so_far = o) combine(o, so_far, values.at<T>(i), count, f);
  combine(o, so_far, values.at<T>(size - 1), count, last);
}
template <class T, class F>
void fold(void* out, const Values& values, int size, std::int64_t count, F f) {
  fold<T>(out, values, size, count, f, f);
}

template <class T>
void fold_numbers(void* out, const Values& v, int size, std::int64_t n, ReduceOp op) {
  using C = Computed<T>;
  const auto add = [](T x, T y) { return static_cast<T>(static_cast<C>(x) + static_cast<C>(y)); };
  // A NaN is kept: `x != x` selects a NaN in x, and comparisons with a NaN in y are false.
  const auto number = [](T x) {
    if constexpr (is_half<T>) return static_cast<float>(x);
    else return x;
  };
  switch (op) {
    case ReduceOp::sum:
      return fold<T>(out, v, size, n, add);
    case ReduceOp::mean:
      if constexpr (!std::is_integral_v<T>) {
        const C count = static_cast<C>(size), share = 1 / count;
        // The reciprocal of a power of two is exact, and multiplication is faster than division.
        if (std::has_single_bit(static_cast<unsigned>(size)))
          return fold<T>(out, v, size, n, add,
                         [=](T x, T y) { return static_cast<T>(static_cast<C>(add(x, y)) * share); });
        return fold<T>(out, v, size, n, add,
                       [=](T x, T y) { return static_cast<T>(static_cast<C>(add(x, y)) / count); });
      }
      return;
    case ReduceOp::product:
      return fold<T>(out, v, size, n,
                     [](T x, T y) { return static_cast<T>(static_cast<C>(x) * static_cast<C>(y)); });
    case ReduceOp::min:
      return fold<T>(out, v, size, n,
                     [number](T x, T y) { return number(x) < number(y) || number(x) != number(x) ? x : y; });
    case ReduceOp::max:
      return fold<T>(out, v, size, n,
                     [number](T x, T y) { return number(x) > number(y) || number(x) != number(x) ? x : y; });
  }
}

// Reads bools as bytes: loading a bool whose byte is neither 0 nor 1 is undefined behaviour.
void fold_bools(void* out, const Values& v, int size, std::int64_t n, ReduceOp op) {
  using Byte = std::uint8_t;
  if (op == ReduceOp::product || op == ReduceOp::min)
    fold<Byte>(out, v, size, n, [](Byte x, Byte y) { return static_cast<Byte>(x != 0 && y != 0); });
  else fold<Byte>(out, v, size, n, [](Byte x, Byte y) { return static_cast<Byte>((x | y) != 0); });
}

void fold_any(void* out, const Values& v, int size, std::int64_t n, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::f32:
      return fold_numbers<float>(out, v, size, n, op);
    case DType::f64:
      return fold_numbers<double>(out, v, size, n, op);
    case DType::f16:
      return fold_numbers<Half>(out, v, size, n, op);
    case DType::bf16:
      return fold_numbers<BFloat16>(out, v, size, n, op);
    case DType::i64:
      return fold_numbers<std::int64_t>(out, v, size, n, op);
    case DType::i32:
      return fold_numbers<std::int32_t>(out, v, size, n, op);
    case DType::u8:
      return fold_numbers<std::uint8_t>(out, v, size, n, op);
    case DType::boolean:
      return fold_bools(out, v, size, n, op);
    case DType::i16:
    case DType::i8:
    case DType::u16:
      break;  // reduce_in_order() has refused them
  }
}

}  // namespace

const char* reduce_op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::mean:
      return "mean";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "product";
  }
  return "unknown";
}

void reduce_in_order(void* out, const void* const* values, int size, std::int64_t count, DType dtype,
                     ReduceOp op) {
  check<TypeError>(contains(kAllDTypes, dtype), "[reduce_in_order] ", dtype,
                   " elements cannot be reduced; convert them to int32");
  check<TypeError>(op != ReduceOp::mean || is_floating(dtype), "[reduce_in_order] the mean of ", dtype,
                   " is not defined; use the sum, or convert to a floating dtype");
  const std::size_t width = dtype_size(dtype), bytes = static_cast<std::size_t>(count) * width;
  if (bytes == 0) return;
  if (size == 1) return void(std::memmove(out, values[0], bytes));
  // The reduction proceeds in pieces that stay in the L1 cache while the values of all ranks are added. If
  // `out` is one of the later values, each piece is reduced in a buffer first: writing to `out` would
  // overwrite that value before it is read.
  constexpr std::size_t kPiece = 8 << 10;
  alignas(64) std::byte apart[kPiece];
  const bool read_later = std::find(values + std::min(2, size), values + size, out) != values + size;
  for (std::size_t offset = 0; offset < bytes; offset += kPiece) {
    const std::size_t length = std::min(kPiece, bytes - offset);
    std::byte* const there = static_cast<std::byte*>(out) + offset;
    fold_any(read_later ? apart : there, {values, offset}, size, static_cast<std::int64_t>(length / width),
             dtype, op);
    if (read_later) std::memcpy(there, apart, length);
  }
}

}  // namespace tapestry::distributed
