// Functions of one tensor, out of place and in place.
#include "tapestry/autograd/ops/functions.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/composite.h"
#include "tapestry/autograd/ops/elementary.h"
#include "tapestry/autograd/ops/internal/function.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/kernels/ops/functions.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

// The rows of gelu's two formulas share an Op.
template <>
const Op& autograd::function_op<kernels::GeluTanh>() {
  return row_op<kernels::Gelu>;
}

namespace {
const Op kNanToNum{"nan_to_num", Grad::twice, kAllDTypes};
}
// Integers and bools are copied, so the Op takes more dtypes than the row.
template <>
const Op& autograd::function_op<kernels::NanToNum>() {
  return kNanToNum;
}

namespace {

// clamp is written by hand because a limit may be missing, and because its limits are checked and promoted.
const Op kClamp{"clamp", Grad::twice, kNumbers};

// The dtype of the result, and the limits in that dtype.
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
    // Kernels need limits that the dtype can hold. A limit beyond its range limits nothing, like the end of
    // the range.
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

template <FixedString kName>
Tensor autograd::call_function(const Tensor& x, std::initializer_list<double> params) {
  return function<typename kernels::RowNamed<kName, kernels::Functions>::type>(x, params);
}

namespace autograd {
// The table makes the compiler instantiate call_function() for each row.
template <class... F>
constexpr auto instances(kernels::RowList<F...>) {
  return std::array{&call_function<F::kSlotName>...};
}
extern const decltype(instances(kernels::Functions())) function_instances;
const decltype(instances(kernels::Functions())) function_instances = instances(kernels::Functions());
}  // namespace autograd

inline namespace functions {

Tensor clamp(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max) {
  const Clamping c(x, min, max);
  Tensor y = apply_with(kernels::clamp, std::tuple(c.min, c.max), converted(x, c.dtype));
  if (y.device().is_meta())
    defer_values(kClamp.name, y, {x}, [min, max](const Tensor& t, const std::vector<Tensor>& v) {
      t.copy_(clamp(v[0], min, max));
    });
  if (recording(x))
    record(kClamp, y, {&x}, [x = save(x), min, max](Backward& g) {
      const Tensor t = g.saved(x);
      if (!g.create_graph())
        return g.set(0, apply_with(kernels::clamp_backward, std::tuple(min, max), g.grad(), t));
      Tensor dx = g.grad();
      if (min) dx = where(gt(t, *min), dx, none_of(dx));
      if (max) dx = where(lt(t, *max), dx, none_of(dx));
      g.set(0, dx);
    });
  return y;
}

namespace {

const Op kHardtanh{"hardtanh", Grad::twice, kNumbers};
const Op kSoftsign{"softsign", Grad::twice, kFloats};
const Op kLogSigmoid{"logsigmoid", Grad::twice, kFloats};
const Op kPrelu{"prelu", Grad::twice, kFloats};

void check_input(const Op& op, const Tensor& x) {
  tapestry::detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
}

}  // namespace

Tensor nan_to_num(const Tensor& x, double nan, std::optional<double> posinf, std::optional<double> neginf) {
  check_input(kNanToNum, x);
  if (!is_floating(x.dtype())) return clone(x);
  const double largest = x.dtype() == DType::f64   ? std::numeric_limits<double>::max()
                         : x.dtype() == DType::f32 ? std::numeric_limits<float>::max()
                         : x.dtype() == DType::f16 ? 65504
                                                   : 0x1.fep127;
  return call_function<"nan_to_num">(x, {nan, posinf.value_or(largest), neginf.value_or(-largest)});
}
Tensor celu(const Tensor& x, double alpha) {
  check(alpha != 0, "[celu] alpha is 0; give another number");
  return call_function<"elu">(x, {alpha, 1, 1 / alpha});
}
Tensor hardtanh(const Tensor& x, const Scalar& min, const Scalar& max) {
  check_input(kHardtanh, x);
  check(min.to_double() <= max.to_double(), "[hardtanh] min ", min.to_double(), " is not below max ",
        max.to_double(), "; swap them");
  if (!is_floating(x.dtype())) return clamp(x, min.to_int(), max.to_int());
  return clamp(x, min, max);
}
Tensor softsign(const Tensor& x) {
  check_input(kSoftsign, x);
  return div(x, add(abs(x), 1));
}
Tensor logsigmoid(const Tensor& x) {
  check_input(kLogSigmoid, x);
  return 0 - softplus(neg(x), 1, std::numeric_limits<double>::infinity());  // a negation would turn 0 into -0
}
Tensor prelu(const Tensor& x, const Tensor& weight) {
  if (const autograd::Autocast cast(kPrelu, x, weight); cast) return prelu(cast(x), cast(weight));
  check_operands(kPrelu, x, weight);
  check_input(kPrelu, x);
  const std::int64_t channels = x.dim() >= 2 ? x.size(1) : 1;
  check(weight.numel() == 1 || (weight.dim() == 1 && weight.numel() == channels),
        "[prelu] the weight has shape ", weight.sizes(), ", but the input has ", channels,
        " channels; give 1 or ", channels, " elements");
  Shape sizes(std::vector<std::int64_t>(static_cast<std::size_t>(x.dim()), 1));
  if (x.dim() >= 2) sizes[1] = weight.numel();
  return where(gt(x.detach(), 0), x, mul(x, reshape(weight, sizes)));
}

}  // namespace functions

Tensor Tensor::neg() const { return tapestry::neg(*this); }
Tensor Tensor::abs() const { return tapestry::abs(*this); }
Tensor Tensor::exp() const { return tapestry::exp(*this); }
Tensor Tensor::log() const { return tapestry::log(*this); }
Tensor Tensor::sqrt() const { return tapestry::sqrt(*this); }
Tensor Tensor::rsqrt() const { return tapestry::rsqrt(*this); }
Tensor Tensor::tanh() const { return tapestry::tanh(*this); }
Tensor Tensor::sigmoid() const { return tapestry::sigmoid(*this); }
Tensor Tensor::relu() const { return tapestry::relu(*this); }
Tensor Tensor::silu() const { return tapestry::silu(*this); }
Tensor Tensor::gelu(bool tanh_approximation) const { return tapestry::gelu(*this, tanh_approximation); }
Tensor Tensor::prelu(const Tensor& weight) const { return tapestry::prelu(*this, weight); }
Tensor Tensor::clamp(std::optional<Scalar> min, std::optional<Scalar> max) const {
  return tapestry::clamp(*this, min, max);
}

Tensor Tensor::nan_to_num(double nan, std::optional<double> posinf, std::optional<double> neginf) const {
  return tapestry::nan_to_num(*this, nan, posinf, neginf);
}
const Tensor& Tensor::nan_to_num_(double nan, std::optional<double> posinf,
                                  std::optional<double> neginf) const {
  return compute_in_place(kNanToNum, *this, {},
                          [&](const Tensor& x) { return tapestry::nan_to_num(x, nan, posinf, neginf); });
}

const Tensor& Tensor::neg_() const { return function_in_place<kernels::Neg>(*this); }
const Tensor& Tensor::abs_() const { return function_in_place<kernels::Abs>(*this); }
const Tensor& Tensor::exp_() const { return function_in_place<kernels::Exp>(*this); }
const Tensor& Tensor::log_() const { return function_in_place<kernels::Log>(*this); }
const Tensor& Tensor::sqrt_() const { return function_in_place<kernels::Sqrt>(*this); }
const Tensor& Tensor::rsqrt_() const { return function_in_place<kernels::Rsqrt>(*this); }
const Tensor& Tensor::tanh_() const { return function_in_place<kernels::Tanh>(*this); }
const Tensor& Tensor::sigmoid_() const { return function_in_place<kernels::Sigmoid>(*this); }
const Tensor& Tensor::relu_() const { return function_in_place<kernels::Relu>(*this); }
const Tensor& Tensor::clamp_(std::optional<Scalar> min, std::optional<Scalar> max) const {
  const Clamping c(*this, min, max);
  check_stores(kClamp, *this, c.dtype);
  in_place(
      kClamp, *this, {},
      [&] {
        if (device().is_meta())
          return defer_change(
              kClamp.name, *this, {},
              [min, max](const Tensor& t, const std::vector<Tensor>&) { t.clamp_(min, max); });
        kernels::clamp(device(), dtype(), {planned(*this, *this), c.min, c.max});
      },
      // The gradient needs the old elements.
      [&](const Tensor& old) { return tapestry::clamp(tapestry::clone(old), min, max); });
  return *this;
}

}  // namespace tapestry
