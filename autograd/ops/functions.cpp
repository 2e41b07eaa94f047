// Functions of one tensor, out of place and in place.
#include <algorithm>

#include "tapestry/autograd/ops/common.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/kernels/ops/elementwise.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's
using kernels::BinarySlot;
using kernels::UnarySlot;

namespace {

const Op kNeg{"neg", Grad::differentiable, kNumbers};
const Op kAbs{"abs", Grad::differentiable, kNumbers};
const Op kExp{"exp", Grad::differentiable, kAllDTypes};
const Op kLog{"log", Grad::differentiable, kAllDTypes};
const Op kSqrt{"sqrt", Grad::differentiable, kAllDTypes};
const Op kRsqrt{"rsqrt", Grad::differentiable, kAllDTypes};
const Op kTanh{"tanh", Grad::differentiable, kAllDTypes};
const Op kSigmoid{"sigmoid", Grad::differentiable, kAllDTypes};
const Op kRelu{"relu", Grad::differentiable, kNumbers};
const Op kGelu{"gelu", Grad::differentiable, kFloats};
const Op kSilu{"silu", Grad::differentiable, kFloats};
const Op kClamp{"clamp", Grad::differentiable, kNumbers};

// f(x) in x's own dtype.
Tensor same_dtype(const Op& op, const UnarySlot& slot, const Tensor& x) {
  tapestry::detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  return apply(slot, x);
}
// f(x), in f32 for integers and bools.
Tensor in_reals(const Op& op, const UnarySlot& slot, const Tensor& x) {
  tapestry::detail::check_defined(op.name, x);
  return apply(slot, is_floating(x.dtype()) ? x : converted(x, DType::f32));
}

// Records an operation whose gradient is a function of dy and the output, or of dy and the input.
void record_from_output(const Op& op, const BinarySlot& backward, const Tensor& y, const Tensor& x) {
  if (recording(x))
    record(op, y, {&x},
           [y = save_output(y), &backward](Backward& g) { g.set(0, apply(backward, g.grad(), g.saved(y))); });
}
void record_from_input(const Op& op, const BinarySlot& backward, const Tensor& y, const Tensor& x) {
  if (recording(x))
    record(op, y, {&x},
           [x = save(x), &backward](Backward& g) { g.set(0, apply(backward, g.grad(), g.saved(x))); });
}

}  // namespace

Tensor neg(const Tensor& x) {
  Tensor y = same_dtype(kNeg, kernels::neg, x);
  if (recording(x)) record(kNeg, y, {&x}, [](Backward& g) { g.set(0, neg(g.grad())); });
  return y;
}
Tensor abs(const Tensor& x) {
  Tensor y = same_dtype(kAbs, kernels::abs, x);
  record_from_input(kAbs, kernels::abs_backward, y, x);
  return y;
}
Tensor exp(const Tensor& x) {
  Tensor y = in_reals(kExp, kernels::exp, x);
  record_from_output(kExp, kernels::mul, y, x);
  return y;
}
Tensor log(const Tensor& x) {
  Tensor y = in_reals(kLog, kernels::log, x);
  record_from_input(kLog, kernels::div, y, x);
  return y;
}
Tensor sqrt(const Tensor& x) {
  Tensor y = in_reals(kSqrt, kernels::sqrt, x);
  record_from_output(kSqrt, kernels::sqrt_backward, y, x);
  return y;
}
Tensor rsqrt(const Tensor& x) {
  Tensor y = in_reals(kRsqrt, kernels::rsqrt, x);
  record_from_output(kRsqrt, kernels::rsqrt_backward, y, x);
  return y;
}
Tensor tanh(const Tensor& x) {
  Tensor y = in_reals(kTanh, kernels::tanh, x);
  record_from_output(kTanh, kernels::tanh_backward, y, x);
  return y;
}
Tensor sigmoid(const Tensor& x) {
  Tensor y = in_reals(kSigmoid, kernels::sigmoid, x);
  record_from_output(kSigmoid, kernels::sigmoid_backward, y, x);
  return y;
}
Tensor relu(const Tensor& x) {
  Tensor y = same_dtype(kRelu, kernels::relu, x);
  record_from_output(kRelu, kernels::relu_backward, y, x);
  return y;
}
Tensor gelu(const Tensor& x, bool tanh_approximation) {
  Tensor y = same_dtype(kGelu, tanh_approximation ? kernels::gelu_tanh : kernels::gelu, x);
  record_from_input(kGelu, tanh_approximation ? kernels::gelu_tanh_backward : kernels::gelu_backward, y, x);
  return y;
}
Tensor silu(const Tensor& x) {
  Tensor y = same_dtype(kSilu, kernels::silu, x);
  record_from_input(kSilu, kernels::silu_backward, y, x);
  return y;
}

namespace {

// The dtype that x is clamped in, and the limits in it.
struct Clamping {
  DType dtype;
  std::optional<Scalar> min, max;

  Clamping(const Tensor& x, std::optional<Scalar> lo, std::optional<Scalar> hi) : min(lo), max(hi) {
    tapestry::detail::check_defined(kClamp.name, x);
    kClamp.check_dtype(x.dtype());
    check(min || max, "[clamp] neither min nor max is given; give one at least");
    dtype = x.dtype();
    if (min) dtype = min->promote_with(dtype);
    if (max) dtype = max->promote_with(dtype);
    if (is_floating(dtype)) return;
    // A limit that integers of this dtype cannot pass becomes their own: the kernels take only what it holds.
    const auto [lowest, highest] = integer_range(dtype);
    check(!min || min->to_int() <= highest, "[clamp] min ", min ? min->to_int() : 0, " is more than ", dtype,
          " can hold; convert to a wider dtype first");
    check(!max || max->to_int() >= lowest, "[clamp] max ", max ? max->to_int() : 0, " is less than ", dtype,
          " can hold; convert to a wider dtype first");
    if (min) min = std::max(min->to_int(), lowest);
    if (max) max = std::min(max->to_int(), highest);
  }
};

}  // namespace

Tensor clamp(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max) {
  const Clamping c(x, min, max);
  const Tensor in = converted(x, c.dtype);
  Tensor y = result_like(in.sizes(), in.dtype(), {&in});
  kernels::clamp(y.device(), y.dtype(), planned(y, in), c.min, c.max);
  if (recording(x))
    record(kClamp, y, {&x}, [x = save(x), min, max](Backward& g) {
      const Tensor in = g.saved(x);
      Tensor dx = result_like(in.sizes(), in.dtype(), {&g.grad(), &in});
      kernels::clamp_backward(dx.device(), dx.dtype(), planned(dx, g.grad(), in), min, max);
      g.set(0, std::move(dx));
    });
  return y;
}

namespace {

template <class Fresh>
const Tensor& unary_in_place(const Op& op, const UnarySlot& slot, const Tensor& target, Fresh fresh) {
  tapestry::detail::check_defined(op.name, target, "the tensor to change");
  op.check_dtype(target.dtype());
  if (contains(op.dtypes, DType::boolean)) check_stores(op, target, DType::f32);  // a function of reals
  in_place(
      op, target, {}, [&] { slot(target.device(), target.dtype(), planned(target, target)); }, fresh);
  return target;
}

}  // namespace

Tensor Tensor::neg() const { return tapestry::neg(*this); }
Tensor Tensor::abs() const { return tapestry::abs(*this); }
Tensor Tensor::exp() const { return tapestry::exp(*this); }
Tensor Tensor::log() const { return tapestry::log(*this); }
Tensor Tensor::sqrt() const { return tapestry::sqrt(*this); }
Tensor Tensor::rsqrt() const { return tapestry::rsqrt(*this); }
Tensor Tensor::tanh() const { return tapestry::tanh(*this); }
Tensor Tensor::sigmoid() const { return tapestry::sigmoid(*this); }
Tensor Tensor::relu() const { return tapestry::relu(*this); }
Tensor Tensor::gelu(bool tanh_approximation) const { return tapestry::gelu(*this, tanh_approximation); }
Tensor Tensor::silu() const { return tapestry::silu(*this); }
Tensor Tensor::clamp(std::optional<Scalar> min, std::optional<Scalar> max) const {
  return tapestry::clamp(*this, min, max);
}

const Tensor& Tensor::neg_() const { return unary_in_place(kNeg, kernels::neg, *this, tapestry::neg); }
// The gradients of abs and log need the old elements.
const Tensor& Tensor::abs_() const {
  return unary_in_place(kAbs, kernels::abs, *this,
                        [](const Tensor& old) { return tapestry::abs(tapestry::clone(old)); });
}
const Tensor& Tensor::log_() const {
  return unary_in_place(kLog, kernels::log, *this,
                        [](const Tensor& old) { return tapestry::log(tapestry::clone(old)); });
}
const Tensor& Tensor::rsqrt_() const {
  return unary_in_place(kRsqrt, kernels::rsqrt, *this, tapestry::rsqrt);
}
const Tensor& Tensor::exp_() const { return unary_in_place(kExp, kernels::exp, *this, tapestry::exp); }
const Tensor& Tensor::sqrt_() const { return unary_in_place(kSqrt, kernels::sqrt, *this, tapestry::sqrt); }
const Tensor& Tensor::tanh_() const { return unary_in_place(kTanh, kernels::tanh, *this, tapestry::tanh); }
const Tensor& Tensor::sigmoid_() const {
  return unary_in_place(kSigmoid, kernels::sigmoid, *this, tapestry::sigmoid);
}
const Tensor& Tensor::relu_() const { return unary_in_place(kRelu, kernels::relu, *this, tapestry::relu); }
const Tensor& Tensor::clamp_(std::optional<Scalar> min, std::optional<Scalar> max) const {
  const Clamping c(*this, min, max);
  check_stores(kClamp, *this, c.dtype);
  in_place(
      kClamp, *this, {}, [&] { kernels::clamp(device(), dtype(), planned(*this, *this), c.min, c.max); },
      // The gradient needs the old elements.
      [&](const Tensor& old) { return tapestry::clamp(tapestry::clone(old), min, max); });
  return *this;
}

}  // namespace tapestry
