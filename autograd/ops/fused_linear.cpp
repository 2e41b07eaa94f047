// Linear layers whose products apply the activation, or its derivative, before they write the result.
#include <span>
#include <utility>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/left_out.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/fused.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/composed.h"
#include "tapestry/autograd/ops/internal/matmul.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/functions.h"

namespace tapestry {
namespace {

using autograd::as_rows;
using autograd::Backward;
using autograd::contiguous_or_undefined;
using autograd::Grad;
using autograd::Op;
using autograd::product_into;
using autograd::save;
using autograd::save_if;
using autograd::save_output;
using autograd::SavedTensor;
using autograd::transposed;
using kernels::Epilogue;

const Op kLinearRelu("linear_relu", Grad::twice, kFloats);
const autograd::TakesMasked relu_takes_masked(kLinearRelu);
const Op kLinearGelu("linear_gelu", Grad::twice, kFloats);
const Op kFeedForward("feed_forward", Grad::twice, kFloats);

Epilogue epilogue_of(Activation f) {
  switch (f) {
    case Activation::relu:
      return Epilogue::relu;
    case Activation::gelu:
      return Epilogue::gelu;
    case Activation::gelu_tanh:
      break;
  }
  return Epilogue::gelu_tanh;
}
Epilogue gradient_epilogue_of(Activation f) {
  switch (f) {
    case Activation::relu:
      return Epilogue::relu_backward;
    case Activation::gelu:
      return Epilogue::gelu_backward;
    case Activation::gelu_tanh:
      break;
  }
  return Epilogue::gelu_tanh_backward;
}

// dy times the derivative of f at t, which is relu's result or gelu's argument. Not recorded.
Tensor times_derivative(Activation f, const Tensor& dy, const Tensor& t) {
  using kernels::GradientOf, kernels::slot;
  switch (f) {
    case Activation::relu:
      return autograd::apply(slot<GradientOf<kernels::Relu>>, dy, t);
    case Activation::gelu:
      return autograd::apply(slot<GradientOf<kernels::Gelu>>, dy, t);
    case Activation::gelu_tanh:
      break;
  }
  return autograd::apply(slot<GradientOf<kernels::GeluTanh>>, dy, t);
}

// The same by operations, which a pass with create_graph records. The derivative of a function is the
// gradient of its sum.
Tensor times_derivative_by_operations(Activation f, const Tensor& dy, const Tensor& t) {
  using kernels::GradientOf;
  if (f == Activation::relu) return autograd::composed<GradientOf<kernels::Relu>>(dy, t);
  if (f == Activation::gelu) return autograd::composed<GradientOf<kernels::Gelu>>(dy, t);
  return autograd::composed<GradientOf<kernels::GeluTanh>>(dy, t);
}

// f(linear(x, weight, bias)) and, if `keep` is true, what the derivative of f is computed from: relu's result
// itself, or gelu's argument.
std::pair<Tensor, Tensor> activated(Activation f, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                    bool keep) {
  Shape sizes = x.sizes();
  sizes.back() = weight.sizes()[0];
  const TensorOptions options(x.dtype(), x.device());
  const Tensor y = empty(sizes, options), offset = contiguous_or_undefined(bias);
  const Tensor argument = keep && f != Activation::relu ? empty(sizes, options) : Tensor();
  product_into(y, as_rows(x), transposed(weight),
               {.bias = offset, .epilogue = epilogue_of(f), .aux = argument});
  return {y, argument.defined() ? argument : y};
}

std::int64_t rows_of(const Tensor& t) { return Shape(t.sizes().begin(), t.dim() - 1).numel(); }

// Sets the gradients of input `at`, the weight (at + 1) and the bias (at + 2) of a linear layer, where g is
// the gradient of its result. `x()` and `weight()` give its operands.
template <class X, class Weight>
void set_linear(Backward& b, std::uint32_t at, const Tensor& g, const X& x, const Weight& weight) {
  const std::int64_t out = g.size(-1);
  if (b.create_graph()) {
    const Tensor rows = reshape(g, {rows_of(g), out});
    if (b.needs(at)) b.set(at, matmul(g, weight()));
    if (b.needs(at + 1)) {
      const Tensor t = x();
      b.set(at + 1, matmul(transpose(rows, 0, 1), reshape(t, {rows_of(t), t.size(-1)})));
    }
    if (b.needs(at + 2)) b.set(at + 2, sum(rows, 0));
    return;
  }
  const Tensor rows = as_rows(g);
  const TensorOptions options(g.dtype(), g.device());
  if (b.needs(at)) {
    const Tensor w = weight();
    Shape sizes = g.sizes();
    sizes.back() = w.size(1);
    const Tensor dx = empty(sizes, options);
    product_into(dx, rows, w, autograd::end_of_input_gradient(b, at, at + 1, rows, w, x));
    b.set(at, dx);
  }
  autograd::set_weight_and_bias(b, at + 1, at + 2, rows, x);
}

Tensor linear_activation(const Op& op, Activation f, const Tensor& x, const Tensor& weight,
                         const Tensor& bias) {
  if (const autograd::Autocast cast(op, x, weight, bias); cast)
    return linear_activation(op, f, cast(x), cast(weight), cast(bias));
  autograd::check_linear(op, x, weight, bias);
  const bool recorded = autograd::recording(x, weight, bias);
  const auto [y, at] = activated(f, x, weight, bias, recorded);
  if (!recorded) return y;

  // In a pass with create_graph, gelu's derivative is a function of its argument. The argument is therefore a
  // second output, whose gradient comes back here. The caller does not see it.
  const Tensor* const outputs[] = {&y, &at};
  const Tensor* const inputs[] = {&x, &weight, &bias};
  const bool one = f == Activation::relu;
  autograd::record(
      op.name, std::span(outputs, one ? 1 : 2), inputs,
      [f, one, at = save_output(at, one ? 0 : 1), x = save_if(weight, x),
       weight = save_if(x, weight)](Backward& b) {
        const Tensor t = b.saved(at);
        Tensor g;
        if (autograd::gradient_is_masked()) g = b.grad();
        else if (b.grad().defined())
          g = b.create_graph() ? times_derivative_by_operations(f, b.grad(), t)
                               : times_derivative(f, b.grad(), t);
        if (!one && b.grad(1).defined()) g = g.defined() ? g + b.grad(1) : b.grad(1);
        set_linear(
            b, 0, g, [&] { return b.saved(x); }, [&] { return b.saved(weight); });
      },
      op.twice);
  return y;
}

}  // namespace

Tensor linear_relu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear_activation(kLinearRelu, Activation::relu, x, weight, bias);
}

Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, bool tanh_approximation) {
  return linear_activation(kLinearGelu, tanh_approximation ? Activation::gelu_tanh : Activation::gelu, x,
                           weight, bias);
}

Tensor feed_forward(const Tensor& x, const Tensor& weight1, const Tensor& bias1, const Tensor& weight2,
                    const Tensor& bias2, Activation f) {
  const Op& op = kFeedForward;
  if (const autograd::Autocast cast(op, x, weight1, bias1, weight2, bias2); cast)
    return feed_forward(cast(x), cast(weight1), cast(bias1), cast(weight2), cast(bias2), f);
  autograd::check_linear(op, x, weight1, bias1, "weight1", "bias1");
  detail::check_defined(op.name, weight2, "weight2");
  autograd::check_matches(op.name, x, weight2, "weight2");
  autograd::check_matches(op.name, x, bias2, "bias2");
  const std::int64_t hidden = weight1.sizes()[0];
  check(weight2.dim() == 2 && weight2.sizes()[1] == hidden, "[feed_forward] weight2 has shape ",
        weight2.sizes(), ", and weight1 ", weight1.sizes(), " gives ", hidden,
        " hidden features; weight2 must be (out_features, ", hidden, ")");
  const std::int64_t out = weight2.sizes()[0];
  autograd::check_vector(op.name, bias2, "bias2", out);

  const bool recorded = autograd::recording(x, weight1, bias1, weight2, bias2);
  const bool through = recorded && autograd::recording(x, weight1, bias1);  // a gradient of h is needed
  const auto [h, at] = activated(f, x, weight1, bias1, through);
  Shape sizes = x.sizes();
  sizes.back() = out;
  const Tensor y = empty(sizes, {x.dtype(), x.device()}), offset = contiguous_or_undefined(bias2);
  product_into(y, as_rows(h), transposed(weight2), {.bias = offset});
  if (!recorded) return y;

  // The hidden features, and the argument of gelu, are further outputs that the caller does not see: in a
  // pass with create_graph, the gradients are functions of them.
  const Tensor* const outputs[] = {&y, &h, &at};
  const Tensor* const inputs[] = {&x, &weight1, &bias1, &weight2, &bias2};
  const bool argument = f != Activation::relu && through;
  autograd::record(
      op.name, std::span(outputs, argument ? 3 : 2), inputs,
      [f, argument, through, at = save_output(at, argument ? 2 : 1),
       h = through || (weight2.defined() && autograd::needs_grad(weight2)) ? save_output(h, 1)
                                                                           : SavedTensor(),
       x = save_if(weight1, x), weight1 = save_if(x, weight1),
       weight2 = through ? save(weight2) : SavedTensor()](Backward& b) {
        const Tensor& dy = b.grad();
        const bool needs_hidden = through && (b.needs(0) || b.needs(1) || b.needs(2));
        Tensor g;  // the gradient of the activation's argument
        if (b.create_graph()) {
          Tensor dh = b.grad(1);
          if (dy.defined()) {
            const Tensor rows = reshape(dy, {rows_of(dy), dy.size(-1)});
            if (needs_hidden) {
              const Tensor more = matmul(dy, b.saved(weight2));
              dh = dh.defined() ? dh + more : more;
            }
            if (b.needs(3)) {
              const Tensor t = b.saved(h);
              b.set(3, matmul(transpose(rows, 0, 1), reshape(t, {rows_of(t), t.size(-1)})));
            }
            if (b.needs(4)) b.set(4, sum(rows, 0));
          }
          if (needs_hidden && dh.defined()) g = times_derivative_by_operations(f, dh, b.saved(at));
        } else {
          if (dy.defined()) {
            const Tensor rows = as_rows(dy);
            const TensorOptions options(dy.dtype(), dy.device());
            if (needs_hidden) {
              const Tensor w = b.saved(weight2), t = b.saved(at);
              g = empty(t.sizes(), options);
              product_into(g, rows, w, {.epilogue = gradient_epilogue_of(f), .aux = t});
            }
            autograd::set_weight_and_bias(b, 3, 4, rows, [&] { return b.saved(h); });
          }
          if (needs_hidden && b.grad(1).defined()) {
            const Tensor more = times_derivative(f, b.grad(1), b.saved(at));
            g = g.defined() ? g + more : more;
          }
        }
        if (argument && b.grad(2).defined()) g = g.defined() ? g + b.grad(2) : b.grad(2);
        if (needs_hidden && g.defined())
          set_linear(
              b, 0, g, [&] { return b.saved(x); }, [&] { return b.saved(weight1); });
      },
      op.twice);
  return y;
}

}  // namespace tapestry
