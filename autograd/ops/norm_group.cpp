// Group and instance normalisation. Instance normalisation is group normalisation with one channel per group.
#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/norm.h"
#include "tapestry/autograd/ops/norm.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/tape.h"

namespace tapestry {
namespace {

using autograd::accumulation_dtype;
using autograd::Backward;
using autograd::check_per_channel;
using autograd::contiguous_or_undefined;
using autograd::Grad;
using autograd::NormalizationByOperations;
using autograd::NormGradients;
using autograd::Op;
using autograd::raw_contiguous;
using autograd::save_if;

const Op kGroupNorm("group_norm", Grad::twice, kFloats);
const Op kInstanceNorm("instance_norm", Grad::twice, kFloats);

// The mean and the biased variance of each group, both (N, groups) in the accumulation dtype.
struct GroupStats {
  Tensor mean, var;
};

// Normalises the groups of x and records `op`. Writes to `stats` unless it is null. All arguments are valid.
Tensor normalize_groups(const Op& op, const Tensor& x, std::int64_t groups, const Tensor& weight,
                        const Tensor& bias, double eps, GroupStats* stats = nullptr) {
  const MemoryFormat format = x.memory_format();
  kernels::GroupNormShape s{.n = x.size(0),
                            .c = x.size(1),
                            .groups = groups,
                            .channels_last = format == MemoryFormat::channels_last};
  for (int d = 2; d < x.dim(); ++d) s.l *= x.size(d);
  const TensorOptions sums(accumulation_dtype(x.dtype()), x.device());
  const Tensor input = raw_contiguous(x, format), scale = contiguous_or_undefined(weight),
               shift = contiguous_or_undefined(bias);
  const Tensor y = empty(x.sizes(), {x.dtype(), x.device()}, format), mean = empty({s.n, groups}, sums),
               inv_std = empty({s.n, groups}, sums), var = stats ? empty({s.n, groups}, sums) : Tensor();
  if (y.numel() > 0)
    kernels::group_norm(x.device(), x.dtype(),
                        {.shape = s,
                         .x = input,
                         .weight = scale,
                         .bias = shift,
                         .eps = eps,
                         .y = y,
                         .mean = mean,
                         .inv_std = inv_std,
                         .var = var});
  if (stats) *stats = {mean, var};

  if (autograd::recording(x, weight, bias))
    autograd::record(
        op, y, {&x, &weight, &bias},
        [x = autograd::save(x), mean = autograd::save(mean), inv_std = autograd::save(inv_std),
         weight = weight.defined() ? save_if(x, weight) : autograd::SavedTensor(),
         weighted = weight.defined(), s, format, eps](Backward& b) {
          if (b.create_graph()) {
            const Tensor t = b.saved(x), &g = b.grad();
            Shape channels = Shape::filled(t.dim(), 1);
            channels[1] = s.c;
            Dims others = {0};
            for (int d = 2; d < t.dim(); ++d) others.push_back(d);
            const Shape rows = {s.n, s.groups, s.c / s.groups * s.l};
            const NormalizationByOperations n(reshape(t, rows), {2}, eps);
            const Tensor gx = weighted && b.needs(0) ? g * reshape(b.saved(weight), channels) : g;
            return autograd::set_by_operations(
                b, reshape(n.result, t.sizes()),
                [&] { return reshape(n.gradient(reshape(gx, rows)), t.sizes()); }, others, {s.c});
          }
          const Tensor g = raw_contiguous(b.grad(), format), input = raw_contiguous(b.saved(x), format);
          const NormGradients d(b, g, format, {s.c});
          const Tensor scale = weighted && b.needs(0) ? raw_contiguous(b.saved(weight)) : Tensor();
          if (g.numel() > 0)
            kernels::group_norm_backward(g.device(), g.dtype(),
                                         {.shape = s,
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

void check_input(const Op& op, const Tensor& x, int dims, const char* expected) {
  detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  if (x.dim() < dims) fail("[", op.name, "] input has shape ", x.sizes(), ", expected ", expected);
}

}  // namespace

Tensor group_norm(const Tensor& x, std::int64_t num_groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  if (const autograd::Autocast cast(kGroupNorm, x, weight, bias); cast)
    return cast.result(group_norm(cast(x), num_groups, cast(weight), cast(bias), eps));
  check_input(kGroupNorm, x, 2, "(N, C) or (N, C, ...)");
  check(num_groups > 0 && x.size(1) % num_groups == 0, "[group_norm] num_groups is ", num_groups,
        ", which does not divide the ", x.size(1), " channels of the input ", x.sizes(),
        "; choose a divisor of the number of channels");
  check_per_channel(kGroupNorm.name, x, weight, "weight");
  check_per_channel(kGroupNorm.name, x, bias, "bias");
  return normalize_groups(kGroupNorm, x, num_groups, weight, bias, eps);
}

Tensor instance_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                     const Tensor& weight, const Tensor& bias, bool use_input_stats, double momentum,
                     double eps) {
  if (const autograd::Autocast cast(kInstanceNorm, x, weight, bias, running_mean); cast)
    return cast.result(instance_norm(cast(x), running_mean, running_var, cast(weight), cast(bias),
                                     use_input_stats, momentum, eps));
  const char* const op = kInstanceNorm.name;
  check_input(kInstanceNorm, x, 3, "(N, C, ...) with at least 3 dimensions");
  check_per_channel(op, x, running_mean, "running_mean");
  check_per_channel(op, x, running_var, "running_var");
  check_per_channel(op, x, weight, "weight");
  check_per_channel(op, x, bias, "bias");
  check(running_mean.defined() == running_var.defined(),
        "[instance_norm] one of running_mean and running_var is undefined; give both or neither");
  if (!use_input_stats) {
    check(running_mean.defined(),
          "[instance_norm] use_input_stats = false needs running_mean and running_var");
    return batch_norm(x, running_mean, running_var, weight, bias, false, momentum, eps);
  }
  std::int64_t count = 1;
  for (int d = 2; d < x.dim(); ++d) count *= x.size(d);
  check(count > 1 || x.numel() == 0, "[instance_norm] one value per channel of a sample, input ", x.sizes(),
        ": its variance is 0; use larger inputs, or the running statistics");
  // The recomputation by checkpoint() must not update the running statistics again.
  if (!running_mean.defined() || autograd::recomputing() || x.numel() == 0)
    return normalize_groups(kInstanceNorm, x, x.size(1), weight, bias, eps);
  GroupStats stats;
  const Tensor y = normalize_groups(kInstanceNorm, x, x.size(1), weight, bias, eps, &stats);
  const NoGradGuard guard;
  const double unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
  const auto follow = [&](const Tensor& running, const Tensor& value) {
    running.copy_(running.to(value.dtype()) * (1 - momentum) + value.mean(0) * momentum);
  };
  follow(running_mean, stats.mean);
  follow(running_var, stats.var * unbiased);
  return y;
}

}  // namespace tapestry
