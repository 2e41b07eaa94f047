#include "tapestry/autograd/ops/internal/composed.h"

#include <functional>
#include <numbers>

#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/composite.h"
#include "tapestry/autograd/ops/elementary.h"
#include "tapestry/autograd/ops/functions.h"

namespace tapestry::autograd {
namespace {

template <class F>
FormulaTerm combined(const FormulaTerm& a, const FormulaTerm& b, const F& f) {
  const Scalar m = a.number(), n = b.number();
  if (!a.is_number()) return b.is_number() ? f(a.tensor(), n) : f(a.tensor(), b.tensor());
  return b.is_number() ? FormulaTerm(f(a.number(), b.number())) : FormulaTerm(f(m, b.tensor()));
}
template <class F>
FormulaTerm compared(const FormulaTerm& a, const FormulaTerm& b, const F& f) {
  return b.is_number() ? f(a.tensor(), Scalar(b.number())) : f(a.tensor(), b.tensor());
}

}  // namespace

FormulaTerm operator-(const FormulaTerm& a) {
  return a.is_number() ? FormulaTerm(-a.number()) : FormulaTerm(-a.tensor());
}
FormulaTerm operator+(const FormulaTerm& a, const FormulaTerm& b) { return combined(a, b, std::plus()); }
FormulaTerm operator-(const FormulaTerm& a, const FormulaTerm& b) { return combined(a, b, std::minus()); }
FormulaTerm operator*(const FormulaTerm& a, const FormulaTerm& b) {
  return combined(a, b, std::multiplies());
}
FormulaTerm operator/(const FormulaTerm& a, const FormulaTerm& b) { return combined(a, b, std::divides()); }
FormulaTerm operator<(const FormulaTerm& a, const FormulaTerm& b) { return compared(a, b, std::less()); }
FormulaTerm operator<=(const FormulaTerm& a, const FormulaTerm& b) {
  return compared(a, b, std::less_equal());
}
FormulaTerm operator>(const FormulaTerm& a, const FormulaTerm& b) { return compared(a, b, std::greater()); }
FormulaTerm operator>=(const FormulaTerm& a, const FormulaTerm& b) {
  return compared(a, b, std::greater_equal());
}
FormulaTerm operator==(const FormulaTerm& a, const FormulaTerm& b) { return compared(a, b, std::equal_to()); }
FormulaTerm operator&&(const FormulaTerm& a, const FormulaTerm& b) {
  return logical_and(a.tensor(), b.tensor());
}
FormulaTerm select(const FormulaTerm& condition, const FormulaTerm& a, const FormulaTerm& b) {
  return combined(a, b, [&](const auto& x, const auto& y) { return where(condition.tensor(), x, y); });
}

FormulaTerm FormulaMath::abs(const FormulaTerm& x) { return tapestry::abs(x.tensor()); }
FormulaTerm FormulaMath::cos(const FormulaTerm& x) { return tapestry::cos(x.tensor()); }
FormulaTerm FormulaMath::cosh(const FormulaTerm& x) { return tapestry::cosh(x.tensor()); }
FormulaTerm FormulaMath::exact_log(const FormulaTerm& x) { return tapestry::log(x.tensor()); }
FormulaTerm FormulaMath::exp(const FormulaTerm& x) { return tapestry::exp(x.tensor()); }
FormulaTerm FormulaMath::exp_of_negative(const FormulaTerm& x) { return tapestry::exp(x.tensor()); }
FormulaTerm FormulaMath::log(const FormulaTerm& x) { return tapestry::log(x.tensor()); }
FormulaTerm FormulaMath::log1p(const FormulaTerm& x) { return tapestry::log1p(x.tensor()); }
FormulaTerm FormulaMath::normal_cdf(const FormulaTerm& x) {
  return 0.5 * (1 + erf(x.tensor() * (1 / std::numbers::sqrt2)));
}
FormulaTerm FormulaMath::pow(const FormulaTerm& x, const FormulaTerm& y) {
  return compared(x, y, [](const Tensor& a, const auto& b) { return tapestry::pow(a, b); });
}
FormulaTerm FormulaMath::rsqrt(const FormulaTerm& x) { return tapestry::rsqrt(x.tensor()); }
FormulaTerm FormulaMath::sigmoid(const FormulaTerm& x) { return tapestry::sigmoid(x.tensor()); }
FormulaTerm FormulaMath::sign(const FormulaTerm& x) { return tapestry::sign(x.tensor()); }
FormulaTerm FormulaMath::sin(const FormulaTerm& x) { return tapestry::sin(x.tensor()); }
FormulaTerm FormulaMath::sinh(const FormulaTerm& x) { return tapestry::sinh(x.tensor()); }
FormulaTerm FormulaMath::trunc(const FormulaTerm& x) { return tapestry::trunc(x.tensor()); }
template <>
FormulaTerm FormulaMath::value_of<kernels::FloorDivide>(const FormulaTerm& a, const FormulaTerm& b) {
  return floor_divide(a.tensor(), b.tensor());
}

}  // namespace tapestry::autograd
