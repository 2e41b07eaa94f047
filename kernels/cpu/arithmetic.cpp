// CPU kernels of the arithmetic with tensors and numbers, and of its gradients.
#include "tapestry/kernels/ops/arithmetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tapestry/kernels/cpu/wide.h"

namespace tapestry::kernels::cpu {
namespace {

// With a constant exponent, the formulas of PowScalar and PowScalarBackward need no pow().
template <class C>
void pow_scalar_kernel(const LaunchContext& context, const PointwiseArgs<2, 1>& a) {
  if constexpr (std::is_floating_point_v<C>) {
    const C s = convert_scalar<C>(a.params[0]);
    const auto constant = [&]<int kHalves>() {
      map<C, C>(a.operands, [](C x) { return PowScalar::value<Math>(x, C(kHalves) / 2); });
    };
    if (s == 2) return constant.template operator()<4>();
    if (s == 3) return constant.template operator()<6>();
    if (s == 1) return constant.template operator()<2>();
    if (s == -1) return constant.template operator()<-2>();
    if (s == C(0.5)) return constant.template operator()<1>();
  }
  if constexpr (std::is_same_v<C, float>) wide_kernel<WithNumber<Pow, 1>, Math>(context, a);
  else pointwise_kernel<WithNumber<Pow, 1>, Math, C>(context, a);
}
// PowScalarBackward with an exponent that is not one of its constants.
struct AnyPowScalarBackward : PowScalarBackward {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C dy, C x, C s) {
    return dy * (s * M::pow(x, s - 1));
  }
};
template <class C>
void pow_scalar_backward_kernel(const LaunchContext& context, const PointwiseArgs<3, 1>& a) {
  const C s = convert_scalar<C>(a.params[0]);
  const auto constant = [&]<int kExponent>() {
    map<C, C, C>(a.operands, [](C dy, C x) { return PowScalarBackward::value<Math>(dy, x, C(kExponent)); });
  };
  if (s == 0) return constant.template operator()<0>();
  if (s == 2) return constant.template operator()<2>();
  if (s == 3) return constant.template operator()<3>();
  if constexpr (std::is_same_v<C, float>) wide_kernel<AnyPowScalarBackward, Math>(context, a);
  else pointwise_kernel<AnyPowScalarBackward, Math, C>(context, a);
}

// Remainders of any numbers. The last two inputs of the row are divided.
struct AnyQuotient : Math {
  static bool fits(float a, float b) {
    return std::abs(a) <= 0x1p26f * std::abs(b) && std::abs(b) <= std::numeric_limits<float>::max();
  }
  static bool fits(float, float a, float b) { return fits(a, b); }
  static float fmod(float x, float y) { return std::fmod(x, y); }
};

template <class Row>
inline constexpr bool kDivides =
    std::is_same_v<Row, Fmod> || std::is_same_v<Row, Remainder> || std::is_same_v<Row, FloorDivide> ||
    std::is_same_v<Row, BackwardB<Remainder>>;

// Integers of up to 50 bits become f64 and back by the bits of 1.5 2^52 + x, because AVX2 has no conversions
// of 64-bit integers.
constexpr std::int64_t kMiddleBits = std::bit_cast<std::int64_t>(0x1.8p52);
inline double small_to_f64(std::int64_t x) { return std::bit_cast<double>(x + kMiddleBits) - 0x1.8p52; }
inline std::int64_t f64_to_small(double x) { return std::bit_cast<std::int64_t>(x + 0x1.8p52) - kMiddleBits; }

// The processor divides integers one after another, and f64 in vectors. If both numbers have at most 50 bits,
// the floor of the quotient in f64 is exact: a quotient that is not an integer is at least 1 / |b| below the
// next one, and its rounding error |a / b| 2^-53 is smaller than that.
void floor_divide_i64(const LaunchContext&, const Elementwise<3>& e) {
  const BlockFn block = [](const void*, std::int64_t n, void* out, const void* const* in) {
    constexpr std::int64_t part = 256;
    constexpr std::uint64_t limit = std::uint64_t{1} << 50;
    for (std::int64_t begin = 0; begin < n; begin += part) {
      const std::int64_t count = std::min(part, n - begin);
      const auto *const a = static_cast<const std::int64_t*>(in[0]) + begin,
                        *const b = static_cast<const std::int64_t*>(in[1]) + begin;
      auto* const y = static_cast<std::int64_t*>(out) + begin;
      std::uint64_t large = 0, zero = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        large |= (static_cast<std::uint64_t>(a[i]) + limit) | (static_cast<std::uint64_t>(b[i]) + limit);
        zero |= b[i] == 0;
      }
      if (large >> 51 != 0 || zero)
        simple_loop(
            count, [](std::int64_t p, std::int64_t q) { return FloorDivide::value<Math>(p, q); }, y, a, b);
      else
        simple_loop(
            count,
            [](std::int64_t p, std::int64_t q) {
              return f64_to_small(std::floor(small_to_f64(p) / small_to_f64(q)));
            },
            y, a, b);
    }
  };
  run_loop(e, {nullptr, block, nullptr, nullptr, e.dtypes});
}

// Hypot computes a square root only. The rows that are not elementary take as long as their memory accesses.
template <class Row>
inline constexpr bool kWide = Row::kElementary && !std::is_same_v<Row, Hypot>;
template <class Row>
inline constexpr bool kWide<BackwardA<Row>> = std::is_same_v<Row, Pow> || std::is_same_v<Row, LogAddExp>;
template <class Row>
inline constexpr bool kWide<BackwardB<Row>> = kWide<BackwardA<Row>>;
template <class Row, int kInput>
inline constexpr bool kWide<WithNumber<Row, kInput>> = kWide<Row>;

template <class Row>
void register_row() {
  if constexpr (kDivides<Row>) register_guarded<Row, AnyQuotient>();
  else if constexpr (kWide<Row>) register_wide<Row>();
  else register_pointwise<Row>();
}
const bool rows = for_kernels_of(Arithmetic(), []<class Row>() { register_row<Row>(); }) &&
                  for_kernels_of(RareArithmetic(), []<class Row>() { register_row<Row>(); }) &&
                  for_kernels_of(BitOperations(), []<class Row>() { register_pointwise<Row>(); });

const bool others = [] {
  register_pointwise<WithNumber<Div, 0>>();
  slot<FloorDivide>.set(DeviceType::cpu, DType::i64, &floor_divide_i64);
  for_dtypes<PowScalar::kDTypes>(
      []<class T>() { slot<PowScalar>.set(DeviceType::cpu, dtype_of<T>, &pow_scalar_kernel<Compute<T>>); });
  for_dtypes<PowScalarBackward::kDTypes>([]<class T>() {
    slot<PowScalarBackward>.set(DeviceType::cpu, dtype_of<T>, &pow_scalar_backward_kernel<Compute<T>>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
