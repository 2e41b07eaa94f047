// CPU kernels of the functions of one tensor, and of their gradients.
#include "tapestry/kernels/ops/functions.h"

#include "tapestry/kernels/cpu/table.h"

namespace tapestry::kernels::cpu {
namespace {

// The limits are known before the loop, so each combination of them has a loop of its own, without branches.
template <class C>
void clamp_kernel(const LaunchContext&, const ClampArgs& a) {
  const C low = a.low ? convert_scalar<C>(*a.low) : C(0), high = a.high ? convert_scalar<C>(*a.high) : C(0);
  if (low != low || high != high) return map<C, C>(a.operands, [nan = low + high](C) { return nan; });
  if (a.low && a.high)
    map<C, C>(a.operands, [low, high](C x) {
      x = x < low ? low : x;
      return x > high ? high : x;
    });
  else if (a.low) map<C, C>(a.operands, [low](C x) { return x < low ? low : x; });
  else map<C, C>(a.operands, [high](C x) { return x > high ? high : x; });
}
template <class C>
void clamp_backward_kernel(const LaunchContext&, const ClampBackwardArgs& a) {
  const C low = a.low ? convert_scalar<C>(*a.low) : C(0), high = a.high ? convert_scalar<C>(*a.high) : C(0);
  if (a.low && a.high)
    map<C, C, C>(a.operands, [low, high](C dy, C x) { return x > low && x < high ? dy : C(0); });
  else if (a.low) map<C, C, C>(a.operands, [low](C dy, C x) { return x > low ? dy : C(0); });
  else map<C, C, C>(a.operands, [high](C dy, C x) { return x < high ? dy : C(0); });
}

// NanToNum has many conditions. The rows that are not wide take as long as their memory accesses.
template <class Row>
inline constexpr bool kWide = Row::kElementary || std::is_same_v<Row, NanToNum>;
template <class Row>
inline constexpr bool kWide<GradientOf<Row>> = kWide<Row>;

// Gradients of the form dy factor(x), where x is the input.
template <class Row>
inline constexpr bool kScales =
    std::is_same_v<Row, GradientOf<Silu>> || std::is_same_v<Row, GradientOf<Gelu>> ||
    std::is_same_v<Row, GradientOf<GeluTanh>>;

template <class Row>
void register_row() {
  if constexpr (kWide<Row>) register_wide<Row>();
  else register_pointwise<Row>();
  if constexpr (kScales<Row>) register_tables<Row, true>();
  else if constexpr (kWide<Row> && Row::kOperands == 2 && Row::kParams == 0) register_tables<Row, false>();
}
const bool rows = for_kernels_of(Functions(), []<class Row>() { register_row<Row>(); });
const bool limits = [] {
  for_dtypes<kNumbers>([]<class T>() { clamp.set(DeviceType::cpu, dtype_of<T>, &clamp_kernel<Compute<T>>); });
  for_dtypes<kFloats>([]<class T>() {
    clamp_backward.set(DeviceType::cpu, dtype_of<T>, &clamp_backward_kernel<Compute<T>>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
