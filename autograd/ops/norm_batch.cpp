#include "tapestry/autograd/ops/norm.h"

#include <algorithm>
#include <initializer_list>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/composite.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/functions.h"
#include "tapestry/autograd/ops/fused.h"
#include "tapestry/autograd/ops/internal/norm.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"

namespace tapestry {
namespace {

using autograd::accumulation_dtype;
using autograd::Backward;
using autograd::batch_norm_shape;
using autograd::check_per_channel;
using autograd::contiguous_or_undefined;
using autograd::Grad;
using autograd::NormalizationByOperations;
using autograd::normalize_channels;
using autograd::NormGradients;
using autograd::Op;
using autograd::raw_contiguous;
using autograd::save_if;
using autograd::set_by_operations;

const Op kBatchNorm("batch_norm", Grad::twice, kFloats);
const Op kBatchNormRelu("batch_norm_relu", Grad::twice, kFloats);

// A tensor for a kernel to update: t itself if it is dense, else a copy that finish() writes back.
class Updated {
 public:
  explicit Updated(const Tensor& t) : target_(t), dense_(contiguous_or_undefined(t)) {}
  const Tensor& dense() const { return dense_; }
  void finish() const {
    if (!target_.defined()) return;
    if (dense_.impl() == target_.impl()) target_.storage()->bump_version();
    else target_.copy_(dense_);
  }

 private:
  const Tensor& target_;
  const Tensor dense_;
};

// The kernels for CPUs compute with parameters in the accumulation dtype. Under autocast, images of 16 bits
// and f32 parameters are passed to them as they are, and nothing is converted but numbers in registers.
bool takes_as_is(const Tensor& x, std::initializer_list<const Tensor*> parameters, const Tensor& residual) {
  return x.defined() && x.device().type == DeviceType::cpu && x.dtype() != accumulation_dtype(x.dtype()) &&
         (!residual.defined() || residual.dtype() == x.dtype()) &&
         std::all_of(parameters.begin(), parameters.end(), [&](const Tensor* t) {
           return !t->defined() || t->dtype() == accumulation_dtype(x.dtype());
         });
}

// batch_norm() and, with `relu`, batch_norm_relu() with a residual, which may be undefined. The weight, the
// bias and the running statistics have the dtype of x or, if `wide`, the accumulation dtype.
Tensor normalize_batch(const Op& which, bool relu, bool wide, const Tensor& x, const Tensor& running_mean,
                       const Tensor& running_var, const Tensor& weight, const Tensor& bias, bool training,
                       double momentum, double eps, const Tensor& residual) {
  const char* const op = which.name;
  detail::check_defined(op, x);
  which.check_dtype(x.dtype());
  autograd::check_matches(op, x, residual, "residual");
  check(!residual.defined() || residual.sizes() == x.sizes(), "[", op, "] residual has shape ",
        residual.defined() ? residual.sizes() : Shape(), ", input ", x.sizes(),
        "; they must be equal (nothing is broadcast)");
  check(x.dim() >= 2, "[", op, "] input has shape ", x.sizes(), ", expected (N, C) or (N, C, ...)");
  const std::int64_t channels = x.sizes()[1];
  // f32 statistics of f16 and bf16 batches, as PyTorch has them: a sum of many small changes needs the
  // digits.
  const bool wide_statistics = running_mean.defined() && running_mean.dtype() != x.dtype() &&
                               running_mean.dtype() == accumulation_dtype(x.dtype()) &&
                               (!running_var.defined() || running_var.dtype() == running_mean.dtype());
  const Tensor like = wide_statistics ? empty({0, channels}, {running_mean.dtype(), x.device()}) : x;
  check_per_channel(op, like, running_mean, "running_mean");
  check_per_channel(op, like, running_var, "running_var");
  const DType stats = accumulation_dtype(x.dtype());
  const Tensor parameters = wide ? empty({0, channels}, {stats, x.device()}) : x;
  check_per_channel(op, parameters, weight, "weight");
  check_per_channel(op, parameters, bias, "bias");
  check(running_mean.defined() == running_var.defined(), "[", op,
        "] one of running_mean and running_var is undefined; give both or neither");
  check(training || running_mean.defined(), "[", op, "] evaluation needs running_mean and running_var");
  const MemoryFormat format = x.memory_format();
  const kernels::BatchNormShape s = batch_norm_shape(x, format);
  const std::int64_t count = s.n * s.l;
  check(!training || count > 1 || x.numel() == 0, "[", op, "] one value per channel in training, input ",
        x.sizes(), ": its variance is 0; use a larger batch, or eval mode");
  check(!training || x.numel() > 0 || channels == 0, "[", op, "] no values in training, input ", x.sizes(),
        "; give a batch that is not empty");

  const Tensor input = raw_contiguous(x, format);
  Tensor mean, inv_std;
  {
    const NoGradGuard guard;
    if (training) {
      mean = empty({channels}, {stats, x.device()});
      inv_std = empty({channels}, {stats, x.device()});
      const Tensor none;  // the recomputation by checkpoint() must not update the running statistics again
      const bool counts = !autograd::recomputing(), in_kernel = counts && (wide || !wide_statistics);
      const Updated to_mean(in_kernel ? running_mean : none), to_var(in_kernel ? running_var : none);
      kernels::batch_norm_stats(x.device(), x.dtype(),
                                {.shape = s,
                                 .x = input,
                                 .mean = mean,
                                 .inv_std = inv_std,
                                 .eps = eps,
                                 .running_mean = to_mean.dense(),
                                 .running_var = to_var.dense(),
                                 .momentum = momentum});
      to_mean.finish();
      to_var.finish();
      if (counts && !in_kernel && x.numel() > 0) {
        const auto n = static_cast<double>(count);
        const Tensor variance = clamp(reciprocal(square(inv_std)) - eps, 0) * (n / (n - 1));
        running_mean.add_((mean - running_mean) * momentum);
        running_var.add_((variance - running_var) * momentum);
      }
    } else {
      mean = raw_contiguous(running_mean.to(stats));
      inv_std = raw_contiguous(rsqrt(running_var.to(stats) + eps));
    }
  }
  const Tensor added = residual.defined() ? raw_contiguous(residual, format) : residual;
  const Tensor y = normalize_channels(input, format, mean, inv_std, weight, bias, added, relu);

  if (autograd::recording(x, weight, bias, residual))
    autograd::record(
        which, y, {&x, &weight, &bias, &residual},
        [relu, y = relu ? autograd::save_output(y) : autograd::SavedTensor(), x_saved = autograd::save(x),
         mean = autograd::save(mean), inv_std = autograd::save(inv_std),
         weight = weight.defined() ? save_if(x, weight) : autograd::SavedTensor(),
         weighted = weight.defined(), s, format, training, eps,
         parameters = parameters.dtype()](Backward& b) {
          if (b.create_graph()) {
            const DType dtype = b.grad().dtype();
            const Tensor x = b.saved(x_saved).to(parameters), all = b.grad().to(parameters);
            const Tensor none = zeros({}, TensorOptions(x.dtype(), x.device()));
            const Tensor g = relu ? where(le(b.saved(y), 0), none, all) : all;
            if (b.needs(3)) b.set(3, g.to(dtype));
            Shape channels = Shape::filled(x.dim(), 1);
            channels[1] = s.c;
            Dims others = {0};
            for (int d = 2; d < x.dim(); ++d) others.push_back(d);
            const Tensor gx = weighted && b.needs(0) ? g * reshape(b.saved(weight), channels) : g;
            if (training) {
              const NormalizationByOperations n(x, others, eps);
              return set_by_operations(
                  b, n.result, [&] { return n.gradient(gx).to(dtype); }, others, {s.c}, 3, g);
            }
            const Tensor scale = reshape(b.saved(inv_std).to(x.dtype()), channels);
            const Tensor result = (x - reshape(b.saved(mean).to(x.dtype()), channels)) * scale;
            return set_by_operations(
                b, result, [&] { return (gx * scale).to(dtype); }, others, {s.c}, 3, g);
          }
          const Tensor g = raw_contiguous(b.grad(), format), input = raw_contiguous(b.saved(x_saved), format);
          const NormGradients d(b, g, format, {s.c}, parameters);
          const Tensor from = relu ? b.saved(y) : Tensor(),
                       dresidual = b.needs(3) ? empty(g.sizes(), {g.dtype(), g.device()}, format) : Tensor();
          const Tensor scale = weighted && b.needs(0) ? raw_contiguous(b.saved(weight)) : Tensor();
          if (g.numel() > 0)
            kernels::batch_norm_backward(g.device(), g.dtype(),
                                         {.shape = s,
                                          .dy = g,
                                          .x = input,
                                          .mean = b.saved(mean),
                                          .inv_std = b.saved(inv_std),
                                          .weight = scale,
                                          .training = training,
                                          .dx = d.dx,
                                          .dweight = d.dweight,
                                          .dbias = d.dbias,
                                          .relu_y = from,
                                          .dresidual = dresidual});
          d.set(b);
          b.set(3, dresidual);
        });
  return y;
}
}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, bool training, double momentum, double eps) {
  if (const autograd::Autocast cast(kBatchNorm, x, weight, bias, running_mean); cast) {
    if (takes_as_is(x, {&running_mean, &running_var, &weight, &bias}, {}))
      return normalize_batch(kBatchNorm, false, true, x, running_mean, running_var, weight, bias, training,
                             momentum, eps, {});
    return cast.result(
        batch_norm(cast(x), running_mean, running_var, cast(weight), cast(bias), training, momentum, eps));
  }
  return normalize_batch(kBatchNorm, false, false, x, running_mean, running_var, weight, bias, training,
                         momentum, eps, {});
}

Tensor batch_norm_relu(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                       const Tensor& weight, const Tensor& bias, bool training, double momentum, double eps,
                       const Tensor& residual) {
  if (const autograd::Autocast cast(kBatchNormRelu, x, weight, bias, running_mean, residual); cast) {
    if (takes_as_is(x, {&running_mean, &running_var, &weight, &bias}, residual))
      return normalize_batch(kBatchNormRelu, true, true, x, running_mean, running_var, weight, bias, training,
                             momentum, eps, residual);
    return cast.result(batch_norm_relu(cast(x), running_mean, running_var, cast(weight), cast(bias), training,
                                       momentum, eps, cast(residual)));
  }
  return normalize_batch(kBatchNormRelu, true, false, x, running_mean, running_var, weight, bias, training,
                         momentum, eps, residual);
}

}  // namespace tapestry
