// Functions of one tensor, out of place and in place.
#include "tapestry/autograd/ops/functions.h"

#include <algorithm>
#include <array>

#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/kernels/ops/functions.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

namespace {

using kernels::GradientFrom;
using kernels::Takes;

// The Op of each row. Rows of one public function share an Op.
template <class F>
const Op function_op{F::kSlotName.text, Grad::differentiable, kernels::taken_dtypes(F::kTakes)};
template <class F>
const Op& op_of() {
  return function_op<F>;
}
template <>
const Op& op_of<kernels::GeluTanh>() {
  return function_op<kernels::Gelu>;
}

// A row without its type, so that the code below is compiled once for all rows with the same number of
// parameters.
template <class Slot, class GradientSlot>
struct FunctionRow {
  // GradientFrom::neither, known when the code is compiled: the gradient is a function of dy alone.
  static constexpr bool kOfDyAlone = std::is_same_v<GradientSlot, kernels::Slot<kernels::Elementwise<2>>>;
  const Op& op;
  const Slot& slot;
  const GradientSlot& gradient;
  Takes takes;
  GradientFrom gradient_from;
};
template <class F>
auto row_of() {
  const auto& slot = kernels::slot<F>;
  const auto& gradient = kernels::slot<kernels::GradientRowOf<F>>;
  return FunctionRow<std::decay_t<decltype(slot)>, std::decay_t<decltype(gradient)>>{
      op_of<F>(), slot, gradient, F::kTakes, F::kGradientFrom};
}

template <std::size_t kParams>
using Params = std::array<Scalar, kParams>;
// slot(y, inputs..., params...)
template <class Slot, std::size_t kParams, class... T>
void run(const Slot& slot, const Params<kParams>& params, const Tensor& y, const T&... inputs) {
  if constexpr (kParams == 0) slot(y.device(), y.dtype(), planned(y, inputs...));
  else slot(y.device(), y.dtype(), {planned(y, inputs...), params});
}

template <class Row, std::size_t kParams>
Tensor call(const Row& row, const Params<kParams>& params, const Tensor& x) {
  tapestry::detail::check_defined(row.op.name, x);
  row.op.check_dtype(x.dtype());
  const Tensor in = row.takes == Takes::all_as_f32 && !is_floating(x.dtype()) ? converted(x, DType::f32) : x;
  Tensor y = result_like(in.sizes(), in.dtype(), {&in});
  run(row.slot, params, y, in);
  if (!recording(x)) return y;
  if constexpr (Row::kOfDyAlone) {
    record(row.op, y, {&x}, [&gradient = row.gradient](Backward& g) { g.set(0, apply(gradient, g.grad())); });
  } else {
    const auto record_with = [&](SavedTensor saved) {
      record(row.op, y, {&x}, [saved = std::move(saved), &gradient = row.gradient, params](Backward& g) {
        const Tensor t = g.saved(saved);
        Tensor dx = result_like(t.sizes(), t.dtype(), {&g.grad(), &t});
        run(gradient, params, dx, g.grad(), t);
        g.set(0, std::move(dx));
      });
    };
    record_with(row.gradient_from == GradientFrom::input ? save(x) : save_output(y));
  }
  return y;
}

template <class Row>
const Tensor& call_in_place(const Row& row, const Tensor& target) {
  tapestry::detail::check_defined(row.op.name, target, "the tensor to change");
  row.op.check_dtype(target.dtype());
  if (row.takes == Takes::all_as_f32) check_stores(row.op, target, DType::f32);
  in_place(
      row.op, target, {}, [&] { run(row.slot, Params<0>(), target, target); },
      // A gradient that is computed from the input needs the old elements.
      [&](const Tensor& old) {
        return call(row, Params<0>(), row.gradient_from == GradientFrom::input ? tapestry::clone(old) : old);
      });
  return target;
}

// clamp is written by hand because a limit may be missing, and because its limits are checked and promoted.
const Op kClamp{"clamp", Grad::differentiable, kNumbers};

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
  using F = typename kernels::RowNamed<kName, kernels::Functions>::type;
  const auto values = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return Params<F::kParams>{params.begin()[I]...};
  };
  return call(row_of<F>(), values(std::make_index_sequence<F::kParams>()), x);
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
  if (recording(x))
    record(kClamp, y, {&x}, [x = save(x), min, max](Backward& g) {
      g.set(0, apply_with(kernels::clamp_backward, std::tuple(min, max), g.grad(), g.saved(x)));
    });
  return y;
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
Tensor Tensor::clamp(std::optional<Scalar> min, std::optional<Scalar> max) const {
  return tapestry::clamp(*this, min, max);
}

const Tensor& Tensor::neg_() const { return call_in_place(row_of<kernels::Neg>(), *this); }
const Tensor& Tensor::abs_() const { return call_in_place(row_of<kernels::Abs>(), *this); }
const Tensor& Tensor::exp_() const { return call_in_place(row_of<kernels::Exp>(), *this); }
const Tensor& Tensor::log_() const { return call_in_place(row_of<kernels::Log>(), *this); }
const Tensor& Tensor::sqrt_() const { return call_in_place(row_of<kernels::Sqrt>(), *this); }
const Tensor& Tensor::rsqrt_() const { return call_in_place(row_of<kernels::Rsqrt>(), *this); }
const Tensor& Tensor::tanh_() const { return call_in_place(row_of<kernels::Tanh>(), *this); }
const Tensor& Tensor::sigmoid_() const { return call_in_place(row_of<kernels::Sigmoid>(), *this); }
const Tensor& Tensor::relu_() const { return call_in_place(row_of<kernels::Relu>(), *this); }
const Tensor& Tensor::clamp_(std::optional<Scalar> min, std::optional<Scalar> max) const {
  const Clamping c(*this, min, max);
  check_stores(kClamp, *this, c.dtype);
  in_place(
      kClamp, *this, {},
      [&] {
        kernels::clamp(device(), dtype(), {planned(*this, *this), c.min, c.max});
      },
      // The gradient needs the old elements.
      [&](const Tensor& old) { return tapestry::clamp(tapestry::clone(old), min, max); });
  return *this;
}

}  // namespace tapestry
