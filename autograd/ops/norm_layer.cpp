#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/functions.h"
#include "tapestry/autograd/ops/internal/norm.h"
#include "tapestry/autograd/ops/norm.h"
#include "tapestry/autograd/tape.h"

namespace tapestry {
namespace {

using autograd::accumulation_dtype;
using autograd::Backward;
using autograd::check_normalized;
using autograd::contiguous_or_undefined;
using autograd::Grad;
using autograd::NormalizationByOperations;
using autograd::NormGradients;
using autograd::Op;
using autograd::raw_contiguous;
using autograd::save_if;
using autograd::set_by_operations;

const Op kLayerNorm("layer_norm", Grad::twice, kFloats);
const Op kRmsNorm("rms_norm", Grad::twice, kFloats);

}  // namespace

void autograd::check_normalized(const Op& op, const Tensor& x, const Shape& normalized_shape,
                                const Tensor& weight, const Tensor& bias) {
  tapestry::detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  const int n = normalized_shape.size();
  if (n < 1) fail("[", op.name, "] normalized_shape is empty; name at least the last dimension");
  if (x.dim() < n || Shape(x.sizes().end() - n, n) != normalized_shape)
    fail("[", op.name, "] input of shape ", x.sizes(), " does not end in normalized_shape ",
         normalized_shape);
  const auto check_operand = [&](const Tensor& t, const char* what) {
    check_matches(op.name, x, t, what);
    if (t.defined() && t.sizes() != normalized_shape)
      fail("[", op.name, "] ", what, " has shape ", t.sizes(), ", expected ", normalized_shape);
  };
  check_operand(weight, "weight");
  check_operand(bias, "bias");
}

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight, const Tensor& bias,
                  double eps) {
  if (const autograd::Autocast cast(kLayerNorm, x, weight, bias); cast)
    return cast.result(layer_norm(cast(x), normalized_shape, cast(weight), cast(bias), eps));
  check_normalized(kLayerNorm, x, normalized_shape, weight, bias);
  const std::int64_t cols = normalized_shape.numel(), rows = cols > 0 ? x.numel() / cols : 0;
  const TensorOptions stats(accumulation_dtype(x.dtype()), x.device());
  const Tensor input = raw_contiguous(x), scale = contiguous_or_undefined(weight),
               shift = contiguous_or_undefined(bias);
  const Tensor y = empty(x.sizes(), {x.dtype(), x.device()}), mean = empty({rows}, stats),
               inv_std = empty({rows}, stats);
  if (y.numel() > 0)
    kernels::layer_norm(x.device(), x.dtype(),
                        {.rows = rows,
                         .cols = cols,
                         .x = input,
                         .weight = scale,
                         .bias = shift,
                         .eps = eps,
                         .y = y,
                         .mean = mean,
                         .inv_std = inv_std});

  const autograd::CallNote note({.dims = autograd::last_dims(x, normalized_shape)});
  if (autograd::recording(x, weight, bias))
    autograd::record(kLayerNorm, y, {&x, &weight, &bias},
                     [x = autograd::save(x), mean = autograd::save(mean), inv_std = autograd::save(inv_std),
                      weight = weight.defined() ? save_if(x, weight) : autograd::SavedTensor(),
                      weighted = weight.defined(), normalized_shape, rows, cols, eps](Backward& b) {
                       if (b.create_graph()) {
                         const Tensor t = b.saved(x), &g = b.grad();
                         Dims last, others;
                         for (int d = 0; d < t.dim(); ++d)
                           (d < t.dim() - normalized_shape.size() ? others : last).push_back(d);
                         const NormalizationByOperations n(t, last, eps);
                         const Tensor gx = weighted && b.needs(0) ? g * b.saved(weight) : g;
                         return set_by_operations(
                             b, n.result, [&] { return n.gradient(gx); }, others, normalized_shape);
                       }
                       const Tensor g = raw_contiguous(b.grad()), input = raw_contiguous(b.saved(x));
                       const NormGradients d(b, g, MemoryFormat::contiguous, normalized_shape);
                       const Tensor scale =
                           weighted && b.needs(0) ? raw_contiguous(b.saved(weight)) : Tensor();
                       if (g.numel() > 0)
                         kernels::layer_norm_backward(g.device(), g.dtype(),
                                                      {.rows = rows,
                                                       .cols = cols,
                                                       .dy = g,
                                                       .x = input,
                                                       .mean = b.saved(mean),
                                                       .inv_std = b.saved(inv_std),
                                                       .weight = scale,
                                                       .dx = d.dx,
                                                       .dweight = d.dweight,
                                                       .dbias = d.dbias});
                       d.set(b);
                     });
  return y;
}

Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                std::optional<double> eps) {
  if (const autograd::Autocast cast(kRmsNorm, x, weight); cast)
    return cast.result(rms_norm(cast(x), normalized_shape, cast(weight), eps));
  check_normalized(kRmsNorm, x, normalized_shape, weight);
  const std::int64_t cols = normalized_shape.numel(), rows = cols > 0 ? x.numel() / cols : 0;
  const DType sums = accumulation_dtype(x.dtype());
  const double used_eps = eps.value_or(sums == DType::f64 ? 0x1p-52 : 0x1p-23);
  const Tensor input = raw_contiguous(x), scale = contiguous_or_undefined(weight);
  const Tensor y = empty(x.sizes(), {x.dtype(), x.device()}), inv_rms = empty({rows}, {sums, x.device()});
  if (y.numel() > 0)
    kernels::rms_norm(x.device(), x.dtype(),
                      {.rows = rows,
                       .cols = cols,
                       .x = input,
                       .weight = scale,
                       .eps = used_eps,
                       .y = y,
                       .inv_std = inv_rms});

  const autograd::CallNote note({.dims = autograd::last_dims(x, normalized_shape)});
  if (autograd::recording(x, weight))
    autograd::record(
        kRmsNorm, y, {&x, &weight},
        [x = autograd::save(x), inv_rms = autograd::save(inv_rms),
         weight = weight.defined() ? save_if(x, weight) : autograd::SavedTensor(),
         weighted = weight.defined(), normalized_shape, rows, cols, used_eps](Backward& b) {
          if (b.create_graph()) {
            const Tensor t = b.saved(x), &g = b.grad();
            Dims last, others;
            for (int d = 0; d < t.dim(); ++d)
              (d < t.dim() - normalized_shape.size() ? others : last).push_back(d);
            const Tensor scale = rsqrt(add(mean(square(t), last, true), used_eps)), result = t * scale;
            const Tensor gx = weighted && b.needs(0) ? g * b.saved(weight) : g;
            return set_by_operations(
                b, result, [&] { return scale * (gx - result * mean(mul(gx, result), last, true)); }, others,
                normalized_shape, 2);
          }
          const Tensor g = raw_contiguous(b.grad()), input = raw_contiguous(b.saved(x));
          const Tensor dx = b.needs(0) ? empty(g.sizes(), {g.dtype(), g.device()}) : Tensor();
          const Tensor dweight = b.needs(1) ? autograd::sums_of(g, normalized_shape) : Tensor();
          const Tensor scale = weighted && b.needs(0) ? raw_contiguous(b.saved(weight)) : Tensor();
          if (g.numel() > 0)
            kernels::rms_norm_backward(g.device(), g.dtype(),
                                       {.rows = rows,
                                        .cols = cols,
                                        .dy = g,
                                        .x = input,
                                        .inv_std = b.saved(inv_rms),
                                        .weight = scale,
                                        .dx = dx,
                                        .dweight = dweight});
          b.set(0, dx);
          b.set(1, dweight);
        });
  return y;
}

}  // namespace tapestry
