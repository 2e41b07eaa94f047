// CPU kernels of the functions of one tensor, and of their gradients.
#include "tapestry/kernels/ops/functions.h"

#include "tapestry/kernels/cpu/pointwise.h"

namespace tapestry::kernels::cpu {
namespace {

// The limits are known before the loop, so each combination of them has a loop of its own, without branches.
template <class T>
void clamp_kernel(const LaunchContext&, const ClampArgs& a) {
  using C = Compute<T>;
  const C low = a.low ? convert_scalar<C>(*a.low) : C(0), high = a.high ? convert_scalar<C>(*a.high) : C(0);
  if (low != low || high != high) return map<T, T>(a.operands, [nan = low + high](C) { return nan; });
  if (a.low && a.high)
    map<T, T>(a.operands, [low, high](C x) {
      x = x < low ? low : x;
      return x > high ? high : x;
    });
  else if (a.low) map<T, T>(a.operands, [low](C x) { return x < low ? low : x; });
  else map<T, T>(a.operands, [high](C x) { return x > high ? high : x; });
}
template <class T>
void clamp_backward_kernel(const LaunchContext&, const ClampBackwardArgs& a) {
  using C = Compute<T>;
  const C low = a.low ? convert_scalar<C>(*a.low) : C(0), high = a.high ? convert_scalar<C>(*a.high) : C(0);
  if (a.low && a.high)
    map<T, T, T>(a.operands, [low, high](C dy, C x) { return x > low && x < high ? dy : C(0); });
  else if (a.low) map<T, T, T>(a.operands, [low](C dy, C x) { return x > low ? dy : C(0); });
  else map<T, T, T>(a.operands, [high](C dy, C x) { return x < high ? dy : C(0); });
}

const bool rows = for_kernels_of(Functions(), []<class Row>() { register_pointwise<Row>(); });
const bool limits = [] {
  for_dtypes<kNumbers>([]<class T>() { clamp.set(DeviceType::cpu, dtype_of<T>, &clamp_kernel<T>); });
  for_dtypes<kFloats>(
      []<class T>() { clamp_backward.set(DeviceType::cpu, dtype_of<T>, &clamp_backward_kernel<T>); });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
