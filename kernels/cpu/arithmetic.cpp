// CPU kernels of the arithmetic with tensors and numbers, and of its gradients.
#include "tapestry/kernels/ops/arithmetic.h"

#include "tapestry/kernels/cpu/pointwise.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr DeviceType kDevice = DeviceType::cpu;

// Computes out = Row::value(x, s).
template <class T, class Row>
void with_scalar(const LaunchContext&, const ScalarArgs& a) {
  const auto s = convert_scalar<Compute<T>>(a.scalar);
  map<T, T>(a.operands, [s](Compute<T> x) { return Row::template value<Math>(x, s); });
}
// Computes out = Row::value(s, x).
template <class T, class Row>
void scalar_with(const LaunchContext&, const ScalarArgs& a) {
  const auto s = convert_scalar<Compute<T>>(a.scalar);
  map<T, T>(a.operands, [s](Compute<T> x) { return Row::template value<Math>(s, x); });
}

// With a constant exponent, the formula of PowScalar is vectorised. With an unknown exponent it calls the
// library's pow().
template <class T>
void pow_scalar_kernel(const LaunchContext& context, const ScalarArgs& a) {
  using C = Compute<T>;
  if constexpr (std::is_floating_point_v<C>) {
    const C s = convert_scalar<C>(a.scalar);
    const auto constant = [&]<int kHalves>() {
      map<T, T>(a.operands, [](C x) { return PowScalar::value<Math>(x, C(kHalves) / 2); });
    };
    if (s == 2) return constant.template operator()<4>();
    if (s == 3) return constant.template operator()<6>();
    if (s == 1) return constant.template operator()<2>();
    if (s == -1) return constant.template operator()<-2>();
    if (s == C(0.5)) return constant.template operator()<1>();
  }
  with_scalar<T, Pow>(context, a);
}
template <class T>
void pow_scalar_backward_kernel(const LaunchContext&, const PowScalarBackwardArgs& a) {
  using C = Compute<T>;
  const C s = convert_scalar<C>(a.scalar);
  const auto constant = [&]<int kExponent>() {
    map<T, T, T>(a.operands, [](C dy, C x) { return PowScalar::gradient<Math>(dy, x, C(kExponent)); });
  };
  if (s == 0) return constant.template operator()<0>();
  if (s == 2) return constant.template operator()<2>();
  if (s == 3) return constant.template operator()<3>();
  map<T, T, T>(a.operands, [s](C dy, C x) { return dy * (s * Math::pow(x, s - 1)); });
}

const bool rows = for_rows_of(Arithmetic(), []<class Row>() { register_pointwise<Row>(); }) &&
                  for_rows_of(ArithmeticGradients(), []<class Row>() { register_pointwise<Row>(); });

const bool scalars = [] {
  for_dtypes<kAllDTypes>([]<class T>() {
    add_scalar.set(kDevice, dtype_of<T>, &with_scalar<T, Add>);
    mul_scalar.set(kDevice, dtype_of<T>, &with_scalar<T, Mul>);
  });
  for_dtypes<kNumbers>([]<class T>() {
    rsub_scalar.set(kDevice, dtype_of<T>, &scalar_with<T, Sub>);
    pow_scalar.set(kDevice, dtype_of<T>, &pow_scalar_kernel<T>);
  });
  for_dtypes<kFloats>([]<class T>() {
    div_scalar.set(kDevice, dtype_of<T>, &with_scalar<T, Div>);
    rdiv_scalar.set(kDevice, dtype_of<T>, &scalar_with<T, Div>);
    pow_scalar_backward.set(kDevice, dtype_of<T>, &pow_scalar_backward_kernel<T>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
