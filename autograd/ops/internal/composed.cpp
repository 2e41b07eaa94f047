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
Term combined(const Term& a, const Term& b, const F& f) {
  const Scalar m = a.number(), n = b.number();
  if (!a.is_number()) return b.is_number() ? f(a.tensor(), n) : f(a.tensor(), b.tensor());
  return b.is_number() ? Term(f(a.number(), b.number())) : Term(f(m, b.tensor()));
}
template <class F>
Term compared(const Term& a, const Term& b, const F& f) {
  return b.is_number() ? f(a.tensor(), Scalar(b.number())) : f(a.tensor(), b.tensor());
}

}  // namespace

Term operator-(const Term& a) { return a.is_number() ? Term(-a.number()) : Term(-a.tensor()); }
Term operator+(const Term& a, const Term& b) { return combined(a, b, std::plus()); }
Term operator-(const Term& a, const Term& b) { return combined(a, b, std::minus()); }
Term operator*(const Term& a, const Term& b) { return combined(a, b, std::multiplies()); }
Term operator/(const Term& a, const Term& b) { return combined(a, b, std::divides()); }
Term operator<(const Term& a, const Term& b) { return compared(a, b, std::less()); }
Term operator<=(const Term& a, const Term& b) { return compared(a, b, std::less_equal()); }
Term operator>(const Term& a, const Term& b) { return compared(a, b, std::greater()); }
Term operator>=(const Term& a, const Term& b) { return compared(a, b, std::greater_equal()); }
Term operator==(const Term& a, const Term& b) { return compared(a, b, std::equal_to()); }
Term operator&&(const Term& a, const Term& b) { return logical_and(a.tensor(), b.tensor()); }
Term select(const Term& condition, const Term& a, const Term& b) {
  return combined(a, b, [&](const auto& x, const auto& y) { return where(condition.tensor(), x, y); });
}

Term TermMath::abs(const Term& x) { return tapestry::abs(x.tensor()); }
Term TermMath::cos(const Term& x) { return tapestry::cos(x.tensor()); }
Term TermMath::cosh(const Term& x) { return tapestry::cosh(x.tensor()); }
Term TermMath::exact_log(const Term& x) { return tapestry::log(x.tensor()); }
Term TermMath::exp(const Term& x) { return tapestry::exp(x.tensor()); }
Term TermMath::exp_of_negative(const Term& x) { return tapestry::exp(x.tensor()); }
Term TermMath::log(const Term& x) { return tapestry::log(x.tensor()); }
Term TermMath::log1p(const Term& x) { return tapestry::log1p(x.tensor()); }
Term TermMath::normal_cdf(const Term& x) { return 0.5 * (1 + erf(x.tensor() * (1 / std::numbers::sqrt2))); }
Term TermMath::pow(const Term& x, const Term& y) {
  return compared(x, y, [](const Tensor& a, const auto& b) { return tapestry::pow(a, b); });
}
Term TermMath::rsqrt(const Term& x) { return tapestry::rsqrt(x.tensor()); }
Term TermMath::sigmoid(const Term& x) { return tapestry::sigmoid(x.tensor()); }
Term TermMath::sign(const Term& x) { return tapestry::sign(x.tensor()); }
Term TermMath::sin(const Term& x) { return tapestry::sin(x.tensor()); }
Term TermMath::sinh(const Term& x) { return tapestry::sinh(x.tensor()); }
Term TermMath::trunc(const Term& x) { return tapestry::trunc(x.tensor()); }

}  // namespace tapestry::autograd
