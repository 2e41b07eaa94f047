// The arithmetic of reductions, in the calling thread.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/backend.h"

namespace tapestry::distributed {
namespace {

template <class T>
constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

// What T is computed in: integers wrap around, so they are unsigned (and not promoted to a narrower int).
template <class T>
using Computed =
    std::conditional_t<is_half<T>, float, std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>>;

template <class T, class F>
void combine(void* accumulator, const void* value, std::int64_t count, F f) {
  T* const a = static_cast<T*>(accumulator);
  const T* const b = static_cast<const T*>(value);
  for (std::int64_t i = 0; i < count; ++i) a[i] = f(a[i], b[i]);
}

template <class T>
void reduce_numbers(void* a, const void* b, std::int64_t n, ReduceOp op) {
  using C = Computed<T>;
  // A NaN wins: `x != x` keeps the first, a comparison with the second is false.
  const auto number = [](T x) {
    if constexpr (is_half<T>) return static_cast<float>(x);
    else return x;
  };
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return combine<T>(a, b, n,
                        [](T x, T y) { return static_cast<T>(static_cast<C>(x) + static_cast<C>(y)); });
    case ReduceOp::product:
      return combine<T>(a, b, n,
                        [](T x, T y) { return static_cast<T>(static_cast<C>(x) * static_cast<C>(y)); });
    case ReduceOp::min:
      return combine<T>(
          a, b, n, [number](T x, T y) { return number(x) < number(y) || number(x) != number(x) ? x : y; });
    case ReduceOp::max:
      return combine<T>(
          a, b, n, [number](T x, T y) { return number(x) > number(y) || number(x) != number(x) ? x : y; });
  }
}

// As bytes: a bool that is neither 0 nor 1 must not be loaded as one.
void reduce_bools(void* a, const void* b, std::int64_t n, ReduceOp op) {
  using Byte = std::uint8_t;
  if (op == ReduceOp::product || op == ReduceOp::min)
    combine<Byte>(a, b, n, [](Byte x, Byte y) { return static_cast<Byte>(x != 0 && y != 0); });
  else combine<Byte>(a, b, n, [](Byte x, Byte y) { return static_cast<Byte>((x | y) != 0); });
}

template <class T>
void divide(void* data, std::int64_t count, int size) {
  using C = Computed<T>;
  T* const x = static_cast<T*>(data);
  const C n = static_cast<C>(size);
  for (std::int64_t i = 0; i < count; ++i) x[i] = static_cast<T>(static_cast<C>(x[i]) / n);
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

void reduce_into(void* accumulator, const void* value, std::int64_t count, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::f32:
      return reduce_numbers<float>(accumulator, value, count, op);
    case DType::f64:
      return reduce_numbers<double>(accumulator, value, count, op);
    case DType::f16:
      return reduce_numbers<Half>(accumulator, value, count, op);
    case DType::bf16:
      return reduce_numbers<BFloat16>(accumulator, value, count, op);
    case DType::i64:
      return reduce_numbers<std::int64_t>(accumulator, value, count, op);
    case DType::i32:
      return reduce_numbers<std::int32_t>(accumulator, value, count, op);
    case DType::u8:
      return reduce_numbers<std::uint8_t>(accumulator, value, count, op);
    case DType::boolean:
      return reduce_bools(accumulator, value, count, op);
  }
}

void reduce_in_order(void* out, const void* const* values, int size, std::int64_t count, DType dtype,
                     ReduceOp op) {
  constexpr std::size_t kBlock = 8 << 10;  // stays in the first cache while all are added
  alignas(64) std::byte block[kBlock];
  const std::size_t width = dtype_size(dtype), bytes = static_cast<std::size_t>(count) * width;
  const auto from = [&](int i, std::size_t offset) {
    return static_cast<const std::byte*>(values[i]) + offset;
  };
  for (std::size_t offset = 0; offset < bytes; offset += kBlock) {
    const std::size_t length = std::min(kBlock, bytes - offset);
    const auto n = static_cast<std::int64_t>(length / width);
    std::memcpy(block, from(0, offset), length);
    for (int i = 1; i < size; ++i) reduce_into(block, from(i, offset), n, dtype, op);
    finish_mean(block, n, dtype, op, size);
    std::memcpy(static_cast<std::byte*>(out) + offset, block, length);
  }
}

void finish_mean(void* data, std::int64_t count, DType dtype, ReduceOp op, int size) {
  if (op != ReduceOp::mean || size == 1) return;
  switch (dtype) {
    case DType::f32:
      return divide<float>(data, count, size);
    case DType::f64:
      return divide<double>(data, count, size);
    case DType::f16:
      return divide<Half>(data, count, size);
    case DType::bf16:
      return divide<BFloat16>(data, count, size);
    default:
      fail<TypeError>("[finish_mean] the mean of ", dtype, "; ask for the sum, or convert");
  }
}

}  // namespace tapestry::distributed
