// Normalisations fused with the operations around them.
#include <span>
#include <utility>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/fused.h"
#include "tapestry/autograd/ops/internal/norm.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"

namespace tapestry {
namespace {

using autograd::accumulation_dtype;
using autograd::Backward;
using autograd::contiguous_or_undefined;
using autograd::Grad;
using autograd::NormalizationByOperations;
using autograd::Op;
using autograd::raw_contiguous;
using autograd::save;
using autograd::save_output;
using autograd::SavedTensor;
using autograd::sums_of;

const Op kAddLayerNorm("add_layer_norm", Grad::twice, kFloats);
const Op kAddRmsNorm("add_rms_norm", Grad::twice, kFloats);

// a + b, where either may be undefined.
Tensor added(const Tensor& a, const Tensor& b) { return !a.defined() ? b : !b.defined() ? a : a + b; }

// The inputs are x, residual, weight and, if `centred`, bias.
std::pair<Tensor, Tensor> add_norm(const Op& op, bool centred, const Tensor& x, const Tensor& residual,
                                   const Shape& normalized_shape, const Tensor& weight, const Tensor& bias,
                                   double eps) {
  if (const autograd::Autocast cast(op, x, residual, weight, bias); cast) {
    const auto [sum, y] =
        add_norm(op, centred, cast(x), cast(residual), normalized_shape, cast(weight), cast(bias), eps);
    return {cast.result(sum), cast.result(y)};
  }
  autograd::check_normalized(op, x, normalized_shape, weight, bias);
  detail::check_defined(op.name, residual, "residual");
  autograd::check_matches(op.name, x, residual, "residual");
  check(residual.sizes() == x.sizes(), "[", op.name, "] residual has shape ", residual.sizes(), ", input ",
        x.sizes(), "; they must be equal (nothing is broadcast)");
  const std::int64_t cols = normalized_shape.numel(), rows = cols > 0 ? x.numel() / cols : 0;
  const TensorOptions options(x.dtype(), x.device()), stats(accumulation_dtype(x.dtype()), x.device());
  const Tensor a = raw_contiguous(x), b = raw_contiguous(residual), scale = contiguous_or_undefined(weight),
               shift = contiguous_or_undefined(bias);
  const Tensor sum = empty(x.sizes(), options), y = empty(x.sizes(), options),
               mean = centred ? empty({rows}, stats) : Tensor(), inv_std = empty({rows}, stats);
  const auto& forward = centred ? kernels::layer_norm : kernels::rms_norm;
  if (y.numel() > 0)
    forward(x.device(), x.dtype(),
            {.rows = rows,
             .cols = cols,
             .x = a,
             .weight = scale,
             .bias = shift,
             .eps = eps,
             .y = y,
             .mean = mean,
             .inv_std = inv_std,
             .residual = b,
             .sum = sum});
  if (!autograd::recording(x, residual, weight, bias)) return {sum, y};

  const Tensor* const outputs[] = {&sum, &y};
  const Tensor* const inputs[] = {&x, &residual, &weight, &bias};
  const autograd::CallNote note({.dims = autograd::last_dims(x, normalized_shape)});
  autograd::record(
      op.name, outputs, std::span(inputs, centred ? 4 : 3),
      [centred, normalized_shape, rows, cols, eps, sum = save_output(sum, 0),
       mean = centred ? save(mean) : SavedTensor(), inv_std = save(inv_std), weighted = weight.defined(),
       weight = weight.defined() ? save(weight) : SavedTensor()](Backward& back) {
        const Tensor &dsum = back.grad(0), &dy = back.grad(1);
        const bool needs_x = back.needs(0) || back.needs(1), needs_bias = centred && back.needs(3);
        const auto set = [&](const Tensor& dx) {
          if (back.needs(0)) back.set(0, dx);
          if (back.needs(1)) back.set(1, dx);
        };
        if (!dy.defined()) return set(dsum);
        const Tensor s = back.saved(sum);
        if (back.create_graph()) {
          Dims last, others;
          for (int d = 0; d < s.dim(); ++d)
            (d < s.dim() - normalized_shape.size() ? others : last).push_back(d);
          const Tensor g = weighted && needs_x ? dy * back.saved(weight) : dy;
          const auto summed = [&](const Tensor& t) {
            return reshape(others.empty() ? t : tapestry::sum(t, others), normalized_shape);
          };
          Tensor result;
          if (centred) {
            const NormalizationByOperations n(s, last, eps);
            result = n.result;
            if (needs_x) set(added(n.gradient(g), dsum));
          } else {
            const Tensor factor = rsqrt(add(tapestry::mean(square(s), last, true), eps));
            result = s * factor;
            if (needs_x) set(added(factor * (g - result * tapestry::mean(mul(g, result), last, true)), dsum));
          }
          if (back.needs(2)) back.set(2, summed(dy * result));
          if (needs_bias) back.set(3, summed(dy));
          return;
        }
        const Tensor g = raw_contiguous(dy), more = contiguous_or_undefined(dsum);
        const Tensor dx = needs_x ? empty(g.sizes(), {g.dtype(), g.device()}) : Tensor(),
                     dweight = back.needs(2) ? sums_of(g, normalized_shape) : Tensor(),
                     dbias = needs_bias ? sums_of(g, normalized_shape) : Tensor(),
                     scale = weighted && needs_x ? raw_contiguous(back.saved(weight)) : Tensor(),
                     means = centred ? back.saved(mean) : Tensor();
        const auto& backward = centred ? kernels::layer_norm_backward : kernels::rms_norm_backward;
        if (g.numel() > 0)
          backward(g.device(), g.dtype(),
                   {.rows = rows,
                    .cols = cols,
                    .dy = g,
                    .x = s,
                    .mean = means,
                    .inv_std = back.saved(inv_std),
                    .weight = scale,
                    .dx = dx,
                    .dweight = dweight,
                    .dbias = dbias,
                    .dsum = more});
        if (needs_x) set(dx);
        if (back.needs(2)) back.set(2, dweight);
        if (needs_bias) back.set(3, dbias);
      },
      op.twice);
  return {sum, y};
}

}  // namespace

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                         const Shape& normalized_shape, const Tensor& weight,
                                         const Tensor& bias, double eps) {
  return add_norm(kAddLayerNorm, true, x, residual, normalized_shape, weight, bias, eps);
}

std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Shape& normalized_shape,
                                       const Tensor& weight, std::optional<double> eps) {
  const bool f64 = x.defined() && x.dtype() == DType::f64;
  return add_norm(kAddRmsNorm, false, x, residual, normalized_shape, weight, {},
                  eps.value_or(f64 ? 0x1p-52 : 0x1p-23));
}

}  // namespace tapestry
