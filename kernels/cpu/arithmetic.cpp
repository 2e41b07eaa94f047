// CPU kernels of the arithmetic with tensors and numbers, and of its gradients.
#include "tapestry/kernels/ops/arithmetic.h"

#include <cmath>
#include <limits>

#include "tapestry/kernels/cpu/pointwise.h"

namespace tapestry::kernels::cpu {
namespace {

// With a constant exponent, the formulas of PowScalar and PowScalarBackward are vectorised. With an unknown
// exponent they call the library's pow().
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
  pointwise_kernel<WithNumber<Pow, 1>, Math, C>(context, a);
}
template <class C>
void pow_scalar_backward_kernel(const LaunchContext&, const PointwiseArgs<3, 1>& a) {
  const C s = convert_scalar<C>(a.params[0]);
  const auto constant = [&]<int kExponent>() {
    map<C, C, C>(a.operands, [](C dy, C x) { return PowScalarBackward::value<Math>(dy, x, C(kExponent)); });
  };
  if (s == 0) return constant.template operator()<0>();
  if (s == 2) return constant.template operator()<2>();
  if (s == 3) return constant.template operator()<3>();
  map<C, C, C>(a.operands, [s](C dy, C x) { return dy * (s * Math::pow(x, s - 1)); });
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

const bool rows = for_kernels_of(Arithmetic(), []<class Row>() { register_pointwise<Row>(); }) &&
                  for_kernels_of(RareArithmetic(),
                                 []<class Row>() {
                                   if constexpr (kDivides<Row>) register_guarded<Row, AnyQuotient>();
                                   else register_pointwise<Row>();
                                 }) &&
                  for_kernels_of(BitOperations(), []<class Row>() { register_pointwise<Row>(); });

const bool others = [] {
  register_pointwise<WithNumber<Div, 0>>();
  for_dtypes<PowScalar::kDTypes>(
      []<class T>() { slot<PowScalar>.set(DeviceType::cpu, dtype_of<T>, &pow_scalar_kernel<Compute<T>>); });
  for_dtypes<PowScalarBackward::kDTypes>([]<class T>() {
    slot<PowScalarBackward>.set(DeviceType::cpu, dtype_of<T>, &pow_scalar_backward_kernel<Compute<T>>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
