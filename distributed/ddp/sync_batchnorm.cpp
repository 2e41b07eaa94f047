#include "tapestry/distributed/ddp/sync_batchnorm.h"

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/norm.h"
#include "tapestry/autograd/ops/norm.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"

namespace tapestry::distributed {
namespace {

using autograd::accumulation_dtype;
using autograd::batch_norm_shape;
using autograd::check_per_channel;
using autograd::normalize_channels;

// Mean and sum of squared deviations per channel, and the number of values per channel, over all ranks. They
// are f64 tensors on the host, because the host needs the count and our GPU kernels have no f64 arithmetic.
struct Statistics {
  Tensor mean, squares;
  double count;
};

// Computes the statistics of x, which is dense in `format`.
Statistics join(ProcessGroup& group, const Tensor& x, MemoryFormat format, const std::string& name) {
  const kernels::BatchNormShape s = batch_norm_shape(x, format);
  const DType statistics = accumulation_dtype(x.dtype());
  const std::int64_t c = s.c, ranks = group.size();
  const auto count = static_cast<double>(s.n * s.l);
  const Tensor own = zeros({2 * c + 1}, {DType::f64, x.device()});
  if (x.numel() > 0) {
    const Tensor mean = empty({c}, {statistics, x.device()}), var = empty({c}, {statistics, x.device()});
    kernels::batch_norm_stats(x.device(), x.dtype(), {.shape = s, .x = x, .mean = mean, .var = var});
    own.narrow(0, 0, c).copy_(mean);
    own.narrow(0, c, c).copy_(var);
  }
  own.narrow(0, 2 * c, 1).fill_(count);
  const Tensor all = empty({ranks, 2 * c + 1}, {DType::f64, x.device()});
  group.all_gather(all, own, name).wait();

  const Tensor host = all.cpu(), means = host.narrow(1, 0, c), counts = host.narrow(1, 2 * c, 1);
  const Tensor squares = host.narrow(1, c, c) * counts;
  Statistics joined;
  joined.count = counts.sum().item();
  check(joined.count > 1, "[sync_batch_norm] there is ", joined.count > 0 ? "one value" : "no value",
        " per channel in the batches of all ", ranks, " ranks, input ", x.sizes(),
        " here; use a larger batch, or eval mode");
  joined.mean = (means * counts).sum({0}) / Scalar(joined.count);
  const Tensor off = means - joined.mean;
  joined.squares = (squares + off * off * counts).sum({0});
  return joined;
}

void update_running(const Tensor& running, const Tensor& value, double momentum) {
  if (running.defined() && !autograd::recomputing())
    running.copy_(running.to(value.dtype()) * (1 - momentum) + value * momentum);
}

}  // namespace

Tensor sync_batch_norm(const std::shared_ptr<ProcessGroup>& group, const Tensor& x,
                       const Tensor& running_mean, const Tensor& running_var, const Tensor& weight,
                       const Tensor& bias, double momentum, double eps, const std::string& name) {
  // As batch_norm: bf16 and f16 batches with f32 weights are computed in f32, and the result is low again.
  if (const autograd::Autocast cast("batch_norm", x, running_mean, running_var, weight, bias); cast)
    return cast.result(sync_batch_norm(group, cast(x), running_mean, running_var, cast(weight), cast(bias),
                                       momentum, eps, name));
  detail::check_defined("sync_batch_norm", x);
  check(group != nullptr, "[sync_batch_norm] the group is null; pass what init_process_group() returned");
  check(x.dim() >= 2, "[sync_batch_norm] input has shape ", x.sizes(), ", expected (N, C) or (N, C, ...)");
  check<TypeError>(is_floating(x.dtype()), "[sync_batch_norm] takes floating dtypes, not ", x.dtype());
  // Statistics of f16 and bf16 batches may be f32, as those of batch_norm.
  const bool wide_statistics =
      running_mean.defined() && running_mean.dtype() == accumulation_dtype(x.dtype());
  const Tensor like = wide_statistics ? empty({0, x.sizes()[1]}, {running_mean.dtype(), x.device()}) : x;
  check_per_channel("sync_batch_norm", like, running_mean, "running_mean");
  check_per_channel("sync_batch_norm", like, running_var, "running_var");
  check_per_channel("sync_batch_norm", x, weight, "weight");
  check_per_channel("sync_batch_norm", x, bias, "bias");

  const MemoryFormat format = x.memory_format();
  const DType statistics = accumulation_dtype(x.dtype());
  Tensor input, mean, inv_std, y;
  double count;
  {
    const NoGradGuard no_grad;
    input = x.contiguous(format);
    const Statistics all = join(*group, input, format, name);
    count = all.count;
    const auto there = [&](const Tensor& t) { return t.to(statistics).to(x.device()); };
    mean = there(all.mean);
    inv_std = there(rsqrt(all.squares / Scalar(count) + Scalar(eps)));
    update_running(running_mean, mean, momentum);
    update_running(running_var, there(all.squares / Scalar(count - 1)), momentum);
    y = normalize_channels(input, format, mean, inv_std, weight, bias);
  }
  if (!autograd::recording(x, weight, bias)) return y;

  const Tensor* outputs[] = {&y};
  const Tensor* inputs[] = {&x, &weight, &bias};
  autograd::record("sync_batch_norm", outputs, inputs,
                   [group, name, format, statistics, count, x = autograd::save(x),
                    mean = autograd::save(mean), inv_std = autograd::save(inv_std),
                    weight = weight.defined() ? autograd::save(weight) : autograd::SavedTensor(),
                    weighted = weight.defined()](autograd::Backward& b) {
                     // Let g be the gradient of y, h = (x - mean) inv_std, N the number of values per channel
                     // on all ranks, and sum() the sum over them. Then
                     //   dx = weight inv_std (g - sum(g) / N - h sum(g h) / N)
                     // batch_norm_backward with fixed statistics computes weight inv_std g and this rank's
                     // sums. The other two terms are a batch_norm of x with another weight and bias.
                     const Tensor g = b.grad().contiguous(format), input = b.saved(x).contiguous(format);
                     const Tensor means = b.saved(mean), inv_stds = b.saved(inv_std);
                     const Tensor scale = weighted ? b.saved(weight).contiguous() : Tensor();
                     const TensorOptions options(g.dtype(), g.device());
                     const kernels::BatchNormShape s = batch_norm_shape(g, format);
                     const Tensor dx = b.needs(0) ? empty(g.sizes(), options, format) : Tensor();
                     const Tensor sums = zeros({2, s.c}, options);
                     const Tensor sum_gh = sums.select(0, 0), sum_g = sums.select(0, 1);
                     if (g.numel() > 0)
                       kernels::batch_norm_backward(g.device(), g.dtype(),
                                                    {.shape = s,
                                                     .dy = g,
                                                     .x = input,
                                                     .mean = means,
                                                     .inv_std = inv_stds,
                                                     .weight = scale,
                                                     .training = false,
                                                     .dx = dx,
                                                     .dweight = sum_gh,
                                                     .dbias = sum_g});
                     if (b.needs(1)) b.set(1, sum_gh.clone());
                     if (b.needs(2)) b.set(2, sum_g.clone());
                     if (!b.needs(0)) return;
                     const Tensor all = sums.to(statistics).clone();
                     group->all_reduce(all, ReduceOp::sum, name + " backward").wait();
                     Tensor factor = inv_stds * Scalar(-1 / count);
                     if (weighted) factor = factor * scale.to(factor.dtype());
                     // The rest of dx is slope * (x - mean) * inv_std + shift. batch_norm multiplies by that
                     // inv_std itself, so `slope` has only the one in `factor`.
                     const Tensor slope = (all.select(0, 0) * factor).to(g.dtype());
                     const Tensor shift = (all.select(0, 1) * factor).to(g.dtype());
                     if (g.numel() > 0)
                       dx.add_(normalize_channels(input, format, means, inv_stds, slope, shift));
                     b.set(0, dx);
                   });
  return y;
}

namespace {

template <int kDims>
bool convert(nn::Module& module, const std::shared_ptr<ProcessGroup>& group) {
  auto* layer = dynamic_cast<nn::BatchNorm<kDims>*>(&module);
  if (!layer) return false;
  if (group->size() == 1) return true;
  const std::string name = layer->path().empty() ? "SyncBatchNorm" : layer->path();
  layer->set_training_function(
      "SyncBatchNorm", [group, name](const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                                     const Tensor& weight, const Tensor& bias, double momentum, double eps) {
        return sync_batch_norm(group, x, running_mean, running_var, weight, bias, momentum, eps, name);
      });
  return true;
}

}  // namespace

int convert_sync_batchnorm(nn::Module& model, const std::shared_ptr<ProcessGroup>& group) {
  check(group != nullptr,
        "[convert_sync_batchnorm] the group is null; pass what init_process_group() returned");
  int count = 0;
  for (nn::Module* module : model.modules())
    count += convert<1>(*module, group) || convert<2>(*module, group) || convert<3>(*module, group);
  return count;
}

}  // namespace tapestry::distributed
