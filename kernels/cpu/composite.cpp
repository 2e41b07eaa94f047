// CPU kernels of operations that could also be computed by several others.
#include "tapestry/kernels/ops/composite.h"

#include "tapestry/kernels/cpu/pointwise.h"

namespace tapestry::kernels::cpu {
namespace {

// Whether the row divides is known before the loop, so each case has a loop of its own.
template <class C>
void add_scaled_kernel(const LaunchContext&, const PointwiseArgs<4, 2>& a) {
  const C factor = convert_scalar<C>(a.params[0]);
  const auto run = [&]<int kDivides>() {
    map<C, C, C, C>(a.operands,
                    [factor](C x, C p, C q) { return AddScaled::value<Math>(x, p, q, factor, C(kDivides)); });
  };
  if (a.params[1].to_double() != 0) run.template operator()<1>();
  else run.template operator()<0>();
}

const bool rows = [] {
  register_pointwise<Lerp>();
  for_dtypes<kFloats>(
      []<class T>() { slot<AddScaled>.set(DeviceType::cpu, dtype_of<T>, &add_scaled_kernel<Compute<T>>); });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
