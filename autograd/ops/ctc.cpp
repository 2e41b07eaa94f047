#include "tapestry/autograd/ops/ctc.h"

#include <algorithm>
#include <limits>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/bad_index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/upload.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/kernels/ops/ctc.h"

namespace tapestry {
namespace {

using autograd::Backward;

const autograd::Op kCtcLoss("ctc_loss", autograd::Grad::differentiable, kFullFloats);

// Dense i64 values in host memory.
Tensor host_integers(const Tensor& t, const char* what) {
  detail::check_defined(kCtcLoss.name, t, what);
  check<TypeError>(autograd::is_index(t.dtype()), "[ctc_loss] ", what, " is ", t.dtype(), "; pass integers");
  tapestry::detail::check_host_reads(kCtcLoss.name, t);
  return t.detach().to(kCPU, DType::i64).contiguous();
}

// The integers of a batch, and where the labels of each sample start. All are in the memory of one device.
struct CtcLabels {
  Tensor targets, starts, input_lengths, target_lengths;
  // One copy moves all of them, for which the host does not wait.
  CtcLabels to(Device device) const {
    if (device.is_cpu()) return *this;
    const std::int64_t labels = targets.numel(), batch = starts.numel();
    const Tensor all = autograd::uploaded(
        cat({targets.flatten(), starts, input_lengths.flatten(), target_lengths.flatten()}), device);
    const auto part = [&](std::int64_t i) { return all.narrow(0, labels + i * batch, batch); };
    return {all.narrow(0, 0, labels), part(0), part(1), part(2)};
  }
};

kernels::CtcArgs arguments(const Tensor& log_probs, const CtcLabels& labels, std::int64_t blank,
                           std::int64_t states) {
  return {.steps = log_probs.size(0),
          .batch = log_probs.size(1),
          .classes = log_probs.size(2),
          .blank = blank,
          .states = states,
          .log_probs = log_probs,
          .targets = labels.targets.data<std::int64_t>(),
          .target_starts = labels.starts.data<std::int64_t>(),
          .input_lengths = labels.input_lengths.data<std::int64_t>(),
          .target_lengths = labels.target_lengths.data<std::int64_t>()};
}

// Checks the targets and lengths. Returns them and the largest number of extended labels.
std::pair<CtcLabels, std::int64_t> checked(const Tensor& x, const Tensor& targets,
                                           const Tensor& input_lengths, const Tensor& target_lengths) {
  const std::int64_t steps = x.size(0), batch = x.size(1), classes = x.size(2);
  CtcLabels l{host_integers(targets, "targets"), empty({batch}, {DType::i64, kCPU}),
              host_integers(input_lengths, "input_lengths"), host_integers(target_lengths, "target_lengths")};
  check(l.input_lengths.numel() == batch && l.target_lengths.numel() == batch, "[ctc_loss] got ",
        l.input_lengths.numel(), " input lengths and ", l.target_lengths.numel(),
        " target lengths for a batch of ", batch, "; pass one of each per sample");
  const bool padded = targets.dim() == 2;
  check(padded ? targets.size(0) == batch : targets.dim() == 1, "[ctc_loss] targets have shape ",
        targets.sizes(), "; pass (N, S) with N = ", batch, ", or all labels one after another");
  const auto* const in = l.input_lengths.data<std::int64_t>();
  const auto* const out = l.target_lengths.data<std::int64_t>();
  const auto* const label = l.targets.data<std::int64_t>();
  auto* const start = l.starts.data<std::int64_t>();
  std::int64_t at = 0, longest = 0;
  for (std::int64_t n = 0; n < batch; ++n) {
    check(in[n] >= 0 && in[n] <= steps, "[ctc_loss] input length ", in[n], " of sample ", n,
          " is outside [0, ", steps, "]; log_probs have ", steps, " steps");
    const std::int64_t room = padded ? targets.size(1) : l.targets.numel() - at;
    check(out[n] >= 0 && out[n] <= room, "[ctc_loss] target length ", out[n], " of sample ", n,
          " is outside [0, ", room, "]; correct it, or pass more labels");
    start[n] = padded ? n * targets.size(1) : at;
    for (std::int64_t i = start[n]; i < start[n] + out[n]; ++i)
      check<IndexError>(label[i] >= 0 && label[i] < classes, "[ctc_loss] target ", label[i], " at position ",
                        i, " is outside [0, ", classes, "); correct it, or the number of classes");
    at += out[n];
    longest = std::max(longest, out[n]);
  }
  check(padded || at == l.targets.numel(), "[ctc_loss] the target lengths add up to ", at, ", but there are ",
        l.targets.numel(), " labels; they must be equal");
  return {l, 2 * longest + 1};
}

// The losses of a batch, (N), of log-probabilities (T, N, C).
Tensor losses_of(const Tensor& x, const CtcLabels& labels, std::int64_t states, const CtcParams& params) {
  const TensorOptions options(x.dtype(), x.device());
  const std::int64_t batch = x.size(1);
  const Tensor losses = empty({batch}, options), alpha = empty({batch, x.size(0), states}, options);
  const Tensor dense = autograd::raw_contiguous(x);
  kernels::ctc_loss(
      x.device(), x.dtype(),
      {.problem = arguments(dense, labels, params.blank, states), .losses = losses, .alpha = alpha});
  Tensor result = losses;
  if (params.zero_infinity) {
    const NoGradGuard no_grad;
    result = where(losses == std::numeric_limits<double>::infinity(), zeros_like(losses), losses);
  }
  if (autograd::recording(x))
    autograd::record(
        kCtcLoss, result, {&x},
        [labels, states, blank = params.blank, zero_infinity = params.zero_infinity, x = autograd::save(x),
         losses = autograd::save(losses.detach()), alpha = autograd::save(alpha)](Backward& b) {
          const Tensor log_probs = b.saved(x).contiguous(), loss = b.saved(losses), before = b.saved(alpha);
          const Tensor grad = b.grad().contiguous();
          const Tensor dx = empty(log_probs.sizes(), {log_probs.dtype(), log_probs.device()});
          kernels::ctc_loss_backward(dx.device(), dx.dtype(),
                                     {.problem = arguments(log_probs, labels, blank, states),
                                      .losses = loss,
                                      .alpha = before,
                                      .grad = grad,
                                      .dx = dx,
                                      .zero_infinity = zero_infinity});
          b.set(0, dx);
        });
  return result;
}

}  // namespace

Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, const CtcParams& params) {
  if (const autograd::Autocast cast(kCtcLoss, log_probs); cast)
    return ctc_loss(cast(log_probs), targets, input_lengths, target_lengths, params);
  detail::check_defined(kCtcLoss.name, log_probs, "log_probs");
  detail::check_defined(kCtcLoss.name, targets, "targets");
  kCtcLoss.check_dtype(log_probs.dtype());
  check(log_probs.dim() == 2 || log_probs.dim() == 3, "[ctc_loss] log_probs have shape ", log_probs.sizes(),
        "; pass (T, N, C) or (T, C)");
  const bool batched = log_probs.dim() == 3;
  const Tensor x = batched ? log_probs : log_probs.unsqueeze(1);
  check(params.blank >= 0 && params.blank < x.size(2), "[ctc_loss] blank ", params.blank, " is outside [0, ",
        x.size(2), "); it is a class of log_probs");
  const auto [checked_labels, states] = checked(x, targets, input_lengths, target_lengths);
  const CtcLabels labels = checked_labels.to(x.device());
  Tensor losses = losses_of(x, labels, states, params);
  if (!batched) losses = losses.squeeze(0);
  if (params.reduction == Reduction::none) return losses;
  if (params.reduction == Reduction::sum) return losses.sum();
  const Tensor counts = clamp(labels.target_lengths.to(losses.dtype()), 1);
  return (losses / (batched ? counts : counts.squeeze(0))).mean();
}

}  // namespace tapestry
