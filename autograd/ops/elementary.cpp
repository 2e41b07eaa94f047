// Elementary functions of one tensor and functions that round, out of place and in place.
#include "tapestry/autograd/ops/elementary.h"

#include <cmath>

#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/composite.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/functions.h"
#include "tapestry/autograd/ops/internal/function.h"
#include "tapestry/kernels/ops/elementary.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

Tensor sin(const Tensor& x) { return function<kernels::Sin>(x); }
Tensor cos(const Tensor& x) { return function<kernels::Cos>(x); }
Tensor tan(const Tensor& x) { return function<kernels::Tan>(x); }
Tensor asin(const Tensor& x) { return function<kernels::Asin>(x); }
Tensor acos(const Tensor& x) { return function<kernels::Acos>(x); }
Tensor atan(const Tensor& x) { return function<kernels::Atan>(x); }
Tensor sinh(const Tensor& x) { return function<kernels::Sinh>(x); }
Tensor cosh(const Tensor& x) { return function<kernels::Cosh>(x); }
Tensor asinh(const Tensor& x) { return function<kernels::Asinh>(x); }
Tensor acosh(const Tensor& x) { return function<kernels::Acosh>(x); }
Tensor atanh(const Tensor& x) { return function<kernels::Atanh>(x); }
Tensor erf(const Tensor& x) { return function<kernels::Erf>(x); }
Tensor erfinv(const Tensor& x) { return function<kernels::Erfinv>(x); }
Tensor erfc(const Tensor& x) { return function<kernels::Erfc>(x); }
Tensor lgamma(const Tensor& x) { return function<kernels::Lgamma>(x); }
Tensor digamma(const Tensor& x) { return function<kernels::Digamma>(x); }
Tensor expm1(const Tensor& x) { return function<kernels::Expm1>(x); }
Tensor exp2(const Tensor& x) { return function<kernels::Exp2>(x); }
Tensor log1p(const Tensor& x) { return function<kernels::Log1p>(x); }
Tensor log2(const Tensor& x) { return function<kernels::Log2>(x); }
Tensor log10(const Tensor& x) { return function<kernels::Log10>(x); }

Tensor Tensor::sin() const { return tapestry::sin(*this); }
Tensor Tensor::cos() const { return tapestry::cos(*this); }
Tensor Tensor::tan() const { return tapestry::tan(*this); }
Tensor Tensor::asin() const { return tapestry::asin(*this); }
Tensor Tensor::acos() const { return tapestry::acos(*this); }
Tensor Tensor::atan() const { return tapestry::atan(*this); }
Tensor Tensor::sinh() const { return tapestry::sinh(*this); }
Tensor Tensor::cosh() const { return tapestry::cosh(*this); }
Tensor Tensor::asinh() const { return tapestry::asinh(*this); }
Tensor Tensor::acosh() const { return tapestry::acosh(*this); }
Tensor Tensor::atanh() const { return tapestry::atanh(*this); }
Tensor Tensor::erf() const { return tapestry::erf(*this); }
Tensor Tensor::erfinv() const { return tapestry::erfinv(*this); }
Tensor Tensor::erfc() const { return tapestry::erfc(*this); }
Tensor Tensor::lgamma() const { return tapestry::lgamma(*this); }
Tensor Tensor::digamma() const { return tapestry::digamma(*this); }
Tensor Tensor::expm1() const { return tapestry::expm1(*this); }
Tensor Tensor::exp2() const { return tapestry::exp2(*this); }
Tensor Tensor::log1p() const { return tapestry::log1p(*this); }
Tensor Tensor::log2() const { return tapestry::log2(*this); }
Tensor Tensor::log10() const { return tapestry::log10(*this); }

const Tensor& Tensor::sin_() const { return function_in_place<kernels::Sin>(*this); }
const Tensor& Tensor::cos_() const { return function_in_place<kernels::Cos>(*this); }
const Tensor& Tensor::tan_() const { return function_in_place<kernels::Tan>(*this); }
const Tensor& Tensor::asin_() const { return function_in_place<kernels::Asin>(*this); }
const Tensor& Tensor::acos_() const { return function_in_place<kernels::Acos>(*this); }
const Tensor& Tensor::atan_() const { return function_in_place<kernels::Atan>(*this); }
const Tensor& Tensor::sinh_() const { return function_in_place<kernels::Sinh>(*this); }
const Tensor& Tensor::cosh_() const { return function_in_place<kernels::Cosh>(*this); }
const Tensor& Tensor::asinh_() const { return function_in_place<kernels::Asinh>(*this); }
const Tensor& Tensor::acosh_() const { return function_in_place<kernels::Acosh>(*this); }
const Tensor& Tensor::atanh_() const { return function_in_place<kernels::Atanh>(*this); }
const Tensor& Tensor::erf_() const { return function_in_place<kernels::Erf>(*this); }
const Tensor& Tensor::erfinv_() const { return function_in_place<kernels::Erfinv>(*this); }
const Tensor& Tensor::erfc_() const { return function_in_place<kernels::Erfc>(*this); }
const Tensor& Tensor::lgamma_() const { return function_in_place<kernels::Lgamma>(*this); }
const Tensor& Tensor::digamma_() const { return function_in_place<kernels::Digamma>(*this); }
const Tensor& Tensor::expm1_() const { return function_in_place<kernels::Expm1>(*this); }
const Tensor& Tensor::exp2_() const { return function_in_place<kernels::Exp2>(*this); }
const Tensor& Tensor::log1p_() const { return function_in_place<kernels::Log1p>(*this); }
const Tensor& Tensor::log2_() const { return function_in_place<kernels::Log2>(*this); }
const Tensor& Tensor::log10_() const { return function_in_place<kernels::Log10>(*this); }

namespace {

const Op kLogit{"logit", Grad::twice, kAllDTypes};
const Op kFloor{"floor", Grad::twice, kNumbers};
const Op kCeil{"ceil", Grad::twice, kNumbers};
const Op kTrunc{"trunc", Grad::twice, kNumbers};
const Op kRound{"round", Grad::twice, kNumbers};
const Op kSign{"sign", Grad::twice, kAllDTypes};

using StepSlot = kernels::Slot<kernels::Elementwise<2>>;
// `integers(x)` gives the result for an integer or bool tensor.
template <class Integers>
Tensor step(const Op& op, const StepSlot& slot, const Tensor& x, const Integers& integers) {
  tapestry::detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  if (!is_floating(x.dtype())) return integers(x);
  Tensor y = apply(slot, x);
  if (recording(x)) record(op, y, {&x}, [](Backward& g) { g.set(0, zeros_like(g.grad())); });
  return y;
}
template <class Integers>
const Tensor& step_in_place(const Op& op, const StepSlot& slot, const Tensor& target,
                            const Integers& integers) {
  tapestry::detail::check_defined(op.name, target, "the tensor to change");
  op.check_dtype(target.dtype());
  in_place(
      op, target, {},
      [&] {
        if (is_floating(target.dtype())) slot(target.device(), target.dtype(), planned(target, target));
        else target.copy_(integers(target));
      },
      [&](const Tensor& old) { return step(op, slot, old, integers); });
  return target;
}
Tensor same(const Tensor& x) { return x.clone(); }
Tensor sign_of_integers(const Tensor& x) {
  return x.dtype() == DType::boolean ? x.clone() : tapestry::clamp(x, -1, 1);
}

}  // namespace

// f16 and bf16 are computed in f32, because 1 - x has few digits near x = 1.
Tensor logit(const Tensor& x, std::optional<double> eps) {
  tapestry::detail::check_defined(kLogit.name, x);
  kLogit.check_dtype(x.dtype());
  check(!eps || (*eps >= 0 && *eps <= 0.5), "[logit] eps ", eps.value_or(0), " is outside [0, 0.5]");
  const DType computed = accumulation_dtype(x.dtype());
  const Tensor wide = x.to(is_floating(computed) ? computed : DType::f32);
  Tensor y;
  {
    const NoGradGuard no_grad;
    const Tensor inside = eps ? clamp(wide, *eps, 1 - *eps) : wide;
    y = log(inside / (1 - inside));
  }
  // The gradient is 1 / (x (1 - x)): infinite at 0 and 1, 0 beyond the limits of eps, and NaN where there is
  // no logit.
  if (autograd::recording(wide))
    record(kLogit, y, {&wide}, [x = autograd::save(wide), eps](autograd::Backward& b) {
      const Tensor at = b.saved(x),
                   inside = logical_and(ge(at, eps.value_or(0)), le(at, 1 - eps.value_or(0)));
      b.set(0, where(inside, b.grad() / (at * (1 - at)), Scalar(eps ? 0.0 : std::nan(""))));
    });
  return is_floating(x.dtype()) ? y.to(x.dtype()) : y;
}
Tensor Tensor::logit(std::optional<double> eps) const { return tapestry::logit(*this, eps); }
const Tensor& Tensor::logit_(std::optional<double> eps) const {
  return compute_in_place(kLogit, *this, {}, [&](const Tensor& x) { return tapestry::logit(x, eps); });
}

Tensor floor(const Tensor& x) { return step(kFloor, kernels::slot<kernels::Floor>, x, same); }
Tensor Tensor::floor() const { return tapestry::floor(*this); }
const Tensor& Tensor::floor_() const {
  return step_in_place(kFloor, kernels::slot<kernels::Floor>, *this, same);
}
Tensor ceil(const Tensor& x) { return step(kCeil, kernels::slot<kernels::Ceil>, x, same); }
Tensor Tensor::ceil() const { return tapestry::ceil(*this); }
const Tensor& Tensor::ceil_() const {
  return step_in_place(kCeil, kernels::slot<kernels::Ceil>, *this, same);
}
Tensor trunc(const Tensor& x) { return step(kTrunc, kernels::slot<kernels::Trunc>, x, same); }
Tensor Tensor::trunc() const { return tapestry::trunc(*this); }
const Tensor& Tensor::trunc_() const {
  return step_in_place(kTrunc, kernels::slot<kernels::Trunc>, *this, same);
}
Tensor sign(const Tensor& x) { return step(kSign, kernels::slot<kernels::Sign>, x, sign_of_integers); }
Tensor Tensor::sign() const { return tapestry::sign(*this); }
const Tensor& Tensor::sign_() const {
  return step_in_place(kSign, kernels::slot<kernels::Sign>, *this, sign_of_integers);
}

Tensor round(const Tensor& x, std::int64_t decimals) {
  if (decimals == 0) return step(kRound, kernels::slot<kernels::Round>, x, same);
  tapestry::detail::check_defined(kRound.name, x);
  check<TypeError>(is_floating(x.dtype()), "[round] does not take ", x.dtype(), " with decimals ", decimals,
                   "; convert to a floating dtype first");
  // The product with a power of 10 must not be rounded to f16 or bf16 first.
  if (x.dtype() == DType::f16 || x.dtype() == DType::bf16)
    return tapestry::round(x.to(DType::f32), decimals).to(x.dtype());
  // A power with a negative exponent is not exact, so x is divided by its inverse instead.
  const double scale = std::pow(10.0, static_cast<double>(std::abs(decimals)));
  return decimals > 0 ? div(tapestry::round(mul(x, scale)), scale)
                      : mul(tapestry::round(div(x, scale)), scale);
}
Tensor Tensor::round(std::int64_t decimals) const { return tapestry::round(*this, decimals); }
const Tensor& Tensor::round_(std::int64_t decimals) const {
  if (decimals == 0) return step_in_place(kRound, kernels::slot<kernels::Round>, *this, same);
  return compute_in_place(kRound, *this, {}, [&](const Tensor& x) { return tapestry::round(x, decimals); });
}

}  // namespace tapestry
