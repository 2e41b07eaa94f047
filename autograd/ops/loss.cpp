// Losses over classes (nll_loss, cross_entropy) and mse_loss.
#include "tapestry/autograd/ops/loss.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string_view>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/left_out.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/fused.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/bad_index.h"
#include "tapestry/autograd/ops/internal/binary.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/softmax.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/loss.h"

namespace tapestry {

namespace {

using autograd::accumulation_dtype;
using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::save;
using autograd::SavedTensor;

const Op kNllLoss("nll_loss", Grad::twice, kFloats);
const Op kCrossEntropy("cross_entropy", Grad::twice, kFloats);
const Op kCrossEntropyInPlace("cross_entropy_", Grad::differentiable, kFloats);
const autograd::TakesOne take_one[] = {autograd::TakesOne(kNllLoss), autograd::TakesOne(kCrossEntropy),
                                       autograd::TakesOne(kCrossEntropyInPlace)};
const Op kMseLoss("mse_loss", Grad::twice, kFloats);

// The checked arguments of a loss over classes, in the form that the kernels take.
struct Prepared {
  Tensor x, target, weight;  // dense; the target i64 or probabilities like x; the weight may be undefined
  Tensor stats;              // statistics of each row that cross-entropy saves for backward
  Shape rows;  // the shape of the result without reduction: x's without its dimension of classes
  kernels::ClassRowsArgs args{};

  /// The kernels' arguments for these tensors.
  static kernels::ClassRowsArgs with(kernels::ClassRowsArgs args, const Tensor& x, const Tensor& target,
                                     const Tensor& weight, const Tensor& stats) {
    args.x = x;
    const bool classes = target.dtype() == DType::i64;
    args.target = classes ? static_cast<const std::int64_t*>(target.raw_data()) : nullptr;
    args.probabilities = classes ? kernels::ConstArray() : kernels::ConstArray(target);
    args.weight = weight;
    args.stats = stats;
    return args;
  }
};

Prepared prepare(const Op& op, const Tensor& x, const Tensor& target, const CrossEntropyParams& params,
                 bool takes_probabilities) {
  detail::check_defined(op.name, x);
  detail::check_defined(op.name, target, "target");
  op.check_dtype(x.dtype());
  check(x.dim() > 0, "[", op.name,
        "] the input is 0-d and has no classes; pass (C), (N, C) or (N, C, d1, ...)");
  check<DeviceError>(target.device() == x.device(), "[", op.name, "] target is on ", target.device(),
                     ", the input on ", x.device(), "; move one of them with .to()");
  check<AutogradError>(!autograd::recording(params.weight), "[", op.name,
                       "] weights of classes get no gradient, and these require one; pass their detach()");
  const int class_dim = x.dim() == 1 ? 0 : 1;
  Prepared p;
  p.args.outer = p.args.inner = 1;
  p.args.classes = x.sizes()[class_dim];
  for (int i = 0; i < x.dim(); ++i) {
    if (i < class_dim) p.args.outer *= x.sizes()[i];
    if (i > class_dim) p.args.inner *= x.sizes()[i];
    if (i != class_dim) p.rows.push_back(x.sizes()[i]);
  }
  p.args.ignore_index = params.ignore_index;
  p.args.smoothing = params.label_smoothing;

  const NoGradGuard no_grad;
  if (autograd::is_index(target.dtype())) {
    check(target.sizes() == p.rows, "[", op.name, "] target has shape ", target.sizes(), ", input ",
          x.sizes(), "; targets for it have shape ", p.rows, ", one class a row");
    p.target = target.to(DType::i64).contiguous();
  } else {
    check<TypeError>(takes_probabilities && is_floating(target.dtype()), "[", op.name, "] target is ",
                     target.dtype(), "; pass classes as integers",
                     takes_probabilities ? ", or probabilities as the input's dtype" : "");
    check<TypeError>(target.dtype() == x.dtype(), "[", op.name, "] target is ", target.dtype(),
                     ", the input ", x.dtype(),
                     "; pass classes as integers (to(DType::i64)), or probabilities as the input's dtype");
    check(target.sizes() == x.sizes(), "[", op.name, "] target probabilities have shape ", target.sizes(),
          ", input ", x.sizes(),
          "; pass classes as integers (to(DType::i64)), or a probability for each class");
    check(params.ignore_index < 0, "[", op.name, "] ignore_index ", params.ignore_index,
          " does not go with class probabilities; leave it out, or pass classes");
    p.target = target.contiguous();
  }
  if (params.weight.defined()) {
    const Tensor& w = params.weight;
    check(w.dim() == 1 && w.sizes()[0] == p.args.classes, "[", op.name, "] weight has shape ", w.sizes(),
          ", input ", x.sizes(), "; give one weight for each of the ", p.args.classes, " classes");
    check<TypeError>(is_floating(w.dtype()), "[", op.name, "] weight is ", w.dtype(),
                     "; use a floating dtype");
    check<DeviceError>(w.device() == x.device(), "[", op.name, "] weight is on ", w.device(),
                       ", the input on ", x.device(), "; move one of them with .to()");
    p.weight = w.to(accumulation_dtype(x.dtype())).contiguous();
  }
  p.x = x.contiguous();
  return p;
}

struct LossResult {
  Tensor result;
  Tensor divisor;  // the divisor of a mean; else undefined
};

// Runs `forward` and reduces the losses of the rows.
LossResult run(const Op& op, const decltype(kernels::cross_entropy)& forward, Prepared& p,
               Reduction reduction) {
  const Device device = p.x.device();
  const DType dtype = p.x.dtype(), computed = accumulation_dtype(dtype);
  const TensorOptions options(computed, device);
  p.args = Prepared::with(p.args, p.x, p.target, p.weight, p.stats);
  const Tensor losses = empty(p.rows, options), weights = empty(p.rows, options);
  LossResult r;
  if (reduction == Reduction::mean) r = {empty({}, options), empty({}, options)};
  autograd::BadIndex bad(device);
  forward(device, dtype,
          {.rows = p.args,
           .losses = losses,
           .weights = weights,
           .first_bad = bad.cell(),
           .mean = r.result,
           .total = r.divisor});
  if (p.args.target) bad.check(op.name, "target", p.target, p.args.classes);

  const NoGradGuard no_grad;
  if (reduction == Reduction::none) r.result = losses;
  if (reduction == Reduction::sum) r.result = sum(losses);
  r.result = r.result.to(dtype);
  return r;
}

// The incoming gradient in the form that kernels take. `args` points to the elements of `grad` and `divisor`,
// which keep them alive.
struct IncomingGrad {
  Tensor grad, divisor;
  kernels::LossGrad args;
  IncomingGrad(const Tensor& g, Tensor by, Reduction reduction) : divisor(std::move(by)) {
    if (!autograd::gradient_is_one()) grad = g.to(accumulation_dtype(g.dtype())).contiguous();
    args = {.grad = grad, .each_row = reduction == Reduction::none, .divisor = divisor};
  }
};

Tensor saved_or_none(const Backward& b, const SavedTensor& s, bool is_there) {
  return is_there ? b.saved(s) : Tensor();
}
SavedTensor save_if(const Tensor& t) { return t.defined() ? save(t) : SavedTensor(); }

// ---- gradients by operations. The classes of a tensor of shape `sizes` lie along dimension 1, or 0 if it is
// 1-d.

// The weights of the classes as a factor of x: 1 if there are none.
Tensor by_class(const Tensor& weight, const Tensor& x) {
  if (!weight.defined()) return ones({}, TensorOptions(x.dtype(), x.device()));
  Shape sizes = Shape::filled(x.dim(), 1);
  sizes[x.dim() == 1 ? 0 : 1] = weight.numel();
  return reshape(weight.to(x.dtype()), sizes);
}

// weight_c q_c for all classes c of all rows (kernels/ops/loss.h).
Tensor class_weights(const kernels::ClassRowsArgs& args, const Shape& sizes, const Tensor& target,
                     const Tensor& weight, const TensorOptions& options) {
  const int dim = sizes.size() == 1 ? 0 : 1;
  const double rest = args.smoothing / static_cast<double>(std::max<std::int64_t>(args.classes, 1));
  const Tensor none = zeros({}, options);
  if (is_floating(target.dtype())) return (target * (1 - args.smoothing) + rest) * by_class(weight, target);
  const Tensor class_of = unsqueeze(target, dim), ignored = eq(class_of, args.ignore_index);
  const Tensor one = scalar_tensor(1 - args.smoothing + rest, options);
  const Tensor q = scatter(full(sizes, rest, options), dim, where(ignored, Scalar(0), class_of),
                           expand(one, class_of.sizes()));
  return where(ignored, none, q * by_class(weight, q));
}

// The gradient of a row's loss, with a dimension of size 1 for the classes. If all
// targets are ignored, the mean is NaN and its gradient is 0.
Tensor row_gradient(const Tensor& g, const Tensor& divisor, Reduction reduction, const Shape& sizes) {
  Tensor each = g;
  if (divisor.defined()) {
    const Tensor by = divisor.to(g.dtype()), none = eq(by, 0);
    each = where(none, Scalar(0), g / where(none, Scalar(1), by));
  }
  return reduction == Reduction::none ? unsqueeze(each, sizes.size() == 1 ? 0 : 1) : each;
}

// Warns once if the input of cross_entropy is the result of softmax(). A model with this mistake learns
// slowly, but nothing fails. The tape records which operation computed the input, so the check costs nothing.
// It does not find a softmax() that is followed by another operation, such as a view.
void warn_of_second_softmax(const Tensor& logits, std::int64_t classes) {
  static std::atomic<bool> warned{false};
  const autograd::Record* const record = autograd::record_of(logits);
  if (!record || std::string_view(record->fn->name()) != "softmax" || warned.exchange(true)) return;
  std::fprintf(
      stderr,
      "[cross_entropy] warning: the input is a result of softmax(), and cross_entropy() applies softmax "
      "again, so with %lld classes no row's loss can be below %.4f; pass the input of softmax() instead\n",
      static_cast<long long>(classes), std::log1p(static_cast<double>(classes - 1) * std::exp(-1.0)));
}

// Throws unless backward may write the gradient of the logits into their memory.
void check_overwritable(const Op& op, const Tensor& logits) {
  check(logits.is_contiguous(), "[", op.name, "] logits of shape ", logits.sizes(), " and strides ",
        logits.strides(), " are not contiguous; call contiguous(), or cross_entropy()");
  constexpr const char* kAdvice =
      ", whose elements backward would overwrite; pass a clone(), or call cross_entropy()";
  const autograd::Record* const record = autograd::record_of(logits);
  const autograd::Node* node = record ? record->fn.get() : nullptr;
  check<AutogradError>(!node || !node->is_leaf(), "[", op.name, "] the logits are a leaf of shape ",
                       logits.sizes(), " that requires gradients", kAdvice);
  // A view has one input. The chain of such nodes ends at the leaf that the logits may be a view of.
  while (node && !node->is_leaf() && node->num_inputs() == 1) node = node->edge(0).node.get();
  if (!node || !node->is_leaf()) return;
  auto* const leaf = static_cast<autograd::LeafNode*>(const_cast<autograd::Node*>(node));
  const Tensor owner = leaf->owner();
  check<AutogradError>(!owner.defined() || owner.storage() != logits.storage(), "[", op.name,
                       "] the logits are a view of a leaf that requires gradients", kAdvice);
}

}  // namespace

Tensor nll_loss(const Tensor& log_probs, const Tensor& target, const CrossEntropyParams& params) {
  if (const autograd::Autocast cast(kNllLoss, log_probs, target, params.weight); cast) {
    CrossEntropyParams wide = params;
    wide.weight = cast(params.weight);
    return nll_loss(cast(log_probs), cast(target), wide);
  }
  check(params.label_smoothing == 0, "[nll_loss] label_smoothing ", params.label_smoothing,
        " needs all probabilities; use cross_entropy() on logits");
  Prepared p = prepare(kNllLoss, log_probs, target, params, false);
  const LossResult r = run(kNllLoss, kernels::nll_loss, p, params.reduction);
  const autograd::CallNote note(
      {.mean = params.reduction == Reduction::mean, .constants = {&target, &params.weight}});
  if (autograd::recording(log_probs)) {
    autograd::record(
        kNllLoss, r.result, {&log_probs},
        [args = p.args, from = log_probs.sizes(), options = TensorOptions(p.x.dtype(), p.x.device()),
         reduction = params.reduction, weighted = p.weight.defined(), target = save(p.target),
         weight = save_if(p.weight), divisor = save_if(r.divisor)](Backward& b) {
          const Tensor classes = b.saved(target), weights = saved_or_none(b, weight, weighted);
          if (b.create_graph()) {
            const Tensor q = class_weights(args, from, classes, weights, options);
            return b.set(0,
                         -q * row_gradient(b.grad(), saved_or_none(b, divisor, reduction == Reduction::mean),
                                           reduction, from));
          }
          const IncomingGrad g(b.grad(), saved_or_none(b, divisor, reduction == Reduction::mean), reduction);
          const Tensor dx = empty(from, options);
          kernels::nll_loss_backward(
              dx.device(), dx.dtype(),
              {.rows = Prepared::with(args, dx, classes, weights, {}), .grad = g.args, .dx = dx});
          b.set(0, dx);
        });
  }
  return r.result;
}

namespace {
// cross_entropy(). With `in_place`, backward writes the gradient of the logits over the logits.
Tensor class_loss(const Op& op, bool in_place, const Tensor& logits, const Tensor& target,
                  const CrossEntropyParams& params) {
  check(params.label_smoothing >= 0 && params.label_smoothing <= 1, "[", op.name, "] label_smoothing ",
        params.label_smoothing, " is outside [0, 1]; 0.1 is usual");
  Prepared p = prepare(op, logits, target, params, true);
  if (in_place) check_overwritable(op, logits);
  p.stats =
      empty({p.args.outer, p.args.inner, 2}, TensorOptions(accumulation_dtype(p.x.dtype()), p.x.device()));
  const LossResult r = run(op, kernels::cross_entropy, p, params.reduction);
  const autograd::CallNote note({.mean = params.reduction == Reduction::mean, .constants = {&params.weight}});
  if (autograd::recording(logits, target)) {
    warn_of_second_softmax(logits, p.args.classes);
    // Save the caller's own logits, and the probabilities if the target has them. Backward could not detect
    // an in-place change of the caller's tensors if the prepared copies were saved.
    const bool classes = p.args.target != nullptr;
    autograd::record(
        op, r.result, {&logits, &target},
        [in_place, args = p.args, reduction = params.reduction, weighted = p.weight.defined(),
         x = save(logits), target = save(classes ? p.target : target), weight = save_if(p.weight),
         stats = save(p.stats), divisor = save_if(r.divisor)](Backward& b) {
          const Tensor in = b.saved(x).contiguous(), to = b.saved(target).contiguous(), s = b.saved(stats);
          const Tensor weights = saved_or_none(b, weight, weighted);
          const Tensor by = saved_or_none(b, divisor, reduction == Reduction::mean);
          if (b.create_graph()) {
            const Tensor rows = b.saved(x), given = b.saved(target);
            const TensorOptions options(rows.dtype(), rows.device());
            const Tensor q = class_weights(args, rows.sizes(), given, weights, options);
            const Tensor dy = row_gradient(b.grad(), by, reduction, rows.sizes());
            const int dim = rows.dim() == 1 ? 0 : 1;
            if (b.needs(0)) b.set(0, dy * (softmax(rows, dim) * sum(q, dim, true) - q));
            if (b.needs(1))
              b.set(1, dy * log_softmax(rows, dim) * by_class(weights, rows) * (args.smoothing - 1));
            return;
          }
          const IncomingGrad g(b.grad(), by, reduction);
          const kernels::ClassRowsArgs a = Prepared::with(args, in, to, weights, s);
          const TensorOptions options(in.dtype(), in.device());
          if (b.needs(1)) {
            const Tensor dtarget = empty(in.sizes(), options);
            kernels::cross_entropy_target_backward(in.device(), in.dtype(),
                                                   {.rows = a, .grad = g.args, .dx = dtarget});
            b.set(1, dtarget);
          }
          if (b.needs(0)) {
            const Tensor dx = in_place ? in.detach() : empty(in.sizes(), options);
            kernels::cross_entropy_backward(in.device(), in.dtype(), {.rows = a, .grad = g.args, .dx = dx});
            if (in_place) dx.storage()->bump_version();
            b.set(0, dx);
          }
        });
  }
  return r.result;
}
}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyParams& params) {
  if (const autograd::Autocast cast(kCrossEntropy, logits, target, params.weight); cast) {
    CrossEntropyParams wide = params;
    wide.weight = cast(params.weight);
    return cross_entropy(cast(logits), cast(target), wide);
  }
  return class_loss(kCrossEntropy, false, logits, target, params);
}

Tensor cross_entropy_(const Tensor& logits, const Tensor& target, const CrossEntropyParams& params) {
  if (const autograd::Autocast cast(kCrossEntropyInPlace, logits, target, params.weight); cast) {
    CrossEntropyParams wide = params;
    wide.weight = cast(params.weight);
    return cross_entropy_(cast(logits), cast(target), wide);
  }
  return class_loss(kCrossEntropyInPlace, true, logits, target, params);
}

namespace {
// The losses of all elements.
template <class Row>
Tensor binary_losses(const Tensor& x, const Tensor& target) {
  const Op& op = autograd::row_op<Row>;
  detail::check_defined(op.name, x);
  detail::check_defined(op.name, target, "target");
  check(x.sizes() == target.sizes(), "[", op.name, "] input has shape ", x.sizes(), ", target ",
        target.sizes(), "; they must be equal (nothing is broadcast)");
  return autograd::binary<Row>(x, target);
}
Tensor weighted(const char* op, const Tensor& losses, const Tensor& weight) {
  if (!weight.defined()) return losses;
  const Tensor y = losses * weight;
  check(y.sizes() == losses.sizes(), "[", op, "] weight has shape ", weight.sizes(), ", input ",
        losses.sizes(), "; the weight must broadcast to the input");
  return y;
}
Tensor reduced(const Tensor& losses, Reduction reduction) {
  if (reduction == Reduction::none) return losses;
  return reduction == Reduction::sum ? sum(losses) : mean(losses);
}
}  // namespace

Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BCELossParams& params) {
  if (const autograd::Autocast cast(autograd::row_op<kernels::BinaryCrossEntropy>, x, target); cast) {
    BCELossParams wide = params;
    wide.weight = cast(params.weight);
    return binary_cross_entropy(cast(x), cast(target), wide);
  }
  constexpr const char* op = "binary_cross_entropy";
  const Tensor losses = binary_losses<kernels::BinaryCrossEntropy>(x, target);
  if (x.device().is_cpu() && x.numel() > 0) {
    const NoGradGuard no_grad;
    const double least = amin(x.detach()).item(), largest = amax(x.detach()).item();
    check(least >= 0 && largest <= 1, "[", op, "] the input has values from ", least, " to ", largest,
          "; they must lie in [0, 1], or use binary_cross_entropy_with_logits() on logits");
  }
  return reduced(weighted(op, losses, params.weight), params.reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const BCEWithLogitsLossParams& params) {
  if (const autograd::Autocast cast(autograd::row_op<kernels::BinaryCrossEntropyWithLogits>, x, target);
      cast) {
    BCEWithLogitsLossParams wide = params;
    wide.weight = cast(params.weight), wide.pos_weight = cast(params.pos_weight);
    return binary_cross_entropy_with_logits(cast(x), cast(target), wide);
  }
  constexpr const char* op = "binary_cross_entropy_with_logits";
  Tensor losses = binary_losses<kernels::BinaryCrossEntropyWithLogits>(x, target);
  if (params.pos_weight.defined()) {
    // The loss of a positive target is -log(sigmoid(x)) = log(1 + e^-x), and that of a negative one log(1 +
    // e^x).
    const auto part = [](const Tensor& share, const Tensor& logit) {
      // An infinite threshold makes softplus() exact.
      const Tensor loss = share * softplus(logit, 1, std::numeric_limits<double>::infinity());
      return where(eq(share, 0), scalar_tensor(0, {loss.dtype(), loss.device()}), loss);  // not 0 * infinity
    };
    losses = weighted(op, part(target, -x), params.pos_weight) + part(1 - target, x);
  }
  return reduced(weighted(op, losses, params.weight), params.reduction);
}

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  if (const autograd::Autocast cast(kMseLoss, x, target); cast)
    return mse_loss(cast(x), cast(target), reduction);
  detail::check_defined("mse_loss", x);
  detail::check_defined("mse_loss", target, "target");
  check(x.sizes() == target.sizes(), "[mse_loss] input has shape ", x.sizes(), ", target ", target.sizes(),
        "; they must be equal (nothing is broadcast)");
  check<DeviceError>(x.device() == target.device(), "[mse_loss] target is on ", target.device(),
                     ", the input on ", x.device(), "; move one of them with .to()");
  const DType dtype = promote(x.dtype(), target.dtype());
  kMseLoss.check_dtype(dtype);
  const Tensor a = x.to(dtype), t = target.to(dtype);
  Tensor y;
  double scale = 2;
  if (reduction == Reduction::none) {
    y = empty_like(a);
    kernels::slot<kernels::SquaredError>(a.device(), dtype, autograd::planned(y, a, t));
  } else {
    const double count = reduction == Reduction::mean ? static_cast<double>(a.numel()) : 1;
    scale /= count;
    y = empty({}, TensorOptions(dtype, a.device()));
    const NoGradGuard no_grad;
    kernels::sum_squared_error(
        a.device(), dtype,
        {.n = a.numel(), .x = a.contiguous(), .target = t.contiguous(), .out = y, .divisor = count});
  }
  const autograd::CallNote note({.mean = reduction == Reduction::mean});
  if (autograd::recording(a, t)) {
    autograd::record(kMseLoss, y, {&a, &t}, [scale, a = save(a), t = save(t)](Backward& b) {
      const Tensor x = b.saved(a), target = b.saved(t);
      const auto gradient = [&](double s) {
        if (b.create_graph()) return (x - target) * b.grad() * s;
        const Tensor d = empty_like(x);
        kernels::slot<kernels::SquaredErrorBackward>(d.device(), d.dtype(),
                                                     {autograd::planned(d, x, target, b.grad()), {s}});
        return d;
      };
      if (b.needs(0)) b.set(0, gradient(scale));
      if (b.needs(1)) b.set(1, gradient(-scale));
    });
  }
  return y;
}

}  // namespace tapestry
