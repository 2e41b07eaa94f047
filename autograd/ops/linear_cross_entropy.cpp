#include "tapestry/autograd/ops/linear_cross_entropy.h"

#include <algorithm>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/graph_task.h"
#include "tapestry/autograd/internal/left_out.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/bad_index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/packed_linear.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/packed_linear.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/softmax.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/loss.h"
#include "tapestry/kernels/ops/matmul.h"

namespace tapestry {
namespace {

using autograd::accumulation_dtype;
using autograd::Backward;
using autograd::save_if;
using autograd::SavedTensor;

const autograd::Op kLinearCrossEntropy("linear_cross_entropy", autograd::Grad::twice, kFloats);
const autograd::TakesOne takes_one(kLinearCrossEntropy);

// With so many logits at a time, the products run at full speed, and the logits take 16 MiB in f32.
constexpr std::int64_t kLogits = std::int64_t{1} << 22;
constexpr std::int64_t kLeastRows = 32;

// c += a^T b for dense matrices a (k, m) and b (k, n).
void add_product(const Tensor& c, const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return;
  kernels::GemmArgs g;
  g.m = a.size(1), g.n = b.size(1), g.k = a.size(0);
  g.a = a, g.a_strides = {1, a.size(1)};
  g.b = b, g.b_strides = {b.size(1), 1};
  g.c = c, g.c_row = c.size(1);
  g.accumulate = true;
  kernels::gemm(c.device(), c.dtype(), g);
}

// Checked operands with one row per target. x is dense, and so is the target, which is i64.
// One of `weight` and `packed` is the weight.
struct Operands {
  Tensor x, weight, bias, target;
  std::int64_t rows, words;
  PackedTensor packed;

  Tensor logits(const Tensor& rows_of_x) const {
    return packed.defined() ? packed_linear(rows_of_x, packed, bias, PackedActivations::f32)
                            : linear(rows_of_x, weight, bias);
  }
  Tensor times_weight(const Tensor& gradient) const {
    return packed.defined() ? autograd::packed_matmul(gradient, packed) : matmul(gradient, weight);
  }
};
Operands checked(const Tensor& x, const Tensor& weight, const PackedTensor& packed, const Tensor& target,
                 const LinearCrossEntropyParams& params) {
  const char* const op = kLinearCrossEntropy.name;
  detail::check_defined(op, x);
  if (!packed.defined()) detail::check_defined(op, weight, "weight");
  detail::check_defined(op, target, "target");
  kLinearCrossEntropy.check_dtype(x.dtype());
  if (packed.defined())
    check<TypeError>(x.dtype() == DType::f32 && x.device().is_cpu(), "[", op, "] the input is ", x.dtype(),
                     " on ", x.device(), "; with a packed weight it must be float32 on the CPU");
  autograd::check_matches(op, x, weight, "weight");
  autograd::check_matches(op, x, params.bias, "bias");
  const Shape& sizes = packed.defined() ? packed.sizes() : weight.sizes();
  check(x.dim() > 0 && sizes.size() == 2 && sizes[1] == x.size(-1), "[", op, "] input has shape ", x.sizes(),
        ", weight ", sizes, "; expected (..., E) and (V, E)");
  autograd::check_vector(op, params.bias, "bias", sizes[0]);
  check<TypeError>(contains(kIntegers, target.dtype()), "[", op, "] target is ", target.dtype(),
                   "; pass classes as integers");
  check<DeviceError>(target.device() == x.device(), "[", op, "] target is on ", target.device(),
                     ", the input on ", x.device(), "; move one of them with .to()");
  const Shape leading(x.sizes().begin(), x.dim() - 1);
  check(target.sizes() == leading, "[", op, "] target has shape ", target.sizes(), ", input ", x.sizes(),
        "; targets for it have shape ", leading);
  check(
      params.reduction != Reduction::none, "[", op,
      "] the reduction is none, which needs all logits in backward; use cross_entropy(linear(...), target)");
  check(params.label_smoothing >= 0 && params.label_smoothing <= 1, "[", op, "] label_smoothing ",
        params.label_smoothing, " is outside [0, 1]; 0.1 is usual");
  check(params.chunk_rows >= 0, "[", op, "] chunk_rows ", params.chunk_rows,
        " is negative; 0 means automatic");
  const NoGradGuard guard;
  Operands o{autograd::raw_contiguous(x).reshape({-1, x.size(-1)}),
             weight,
             params.bias,
             target.to(DType::i64).contiguous().reshape({-1}),
             target.numel(),
             sizes[0],
             packed};
  if (x.device().is_cpu())
    for (std::int64_t i = 0; i < o.rows; ++i) {
      const std::int64_t t = o.target.data<std::int64_t>()[i];
      check<IndexError>(t == params.ignore_index || (t >= 0 && t < o.words), "[", op, "] target ", t,
                        " at position ", i, " is outside [0, ", o.words,
                        "); correct it, or the number of rows of the weight");
    }
  return o;
}

// The gradients for an incoming gradient of 1. Undefined if nobody needs them.
struct Sums {
  Tensor loss, dx, dweight, dbias;
};

Sums compute(const Operands& o, const LinearCrossEntropyParams& params, bool needs_x, bool needs_weight,
             bool needs_bias, bool wide_loss = false) {
  const NoGradGuard guard;
  const Device device = o.x.device();
  const DType dtype = o.x.dtype(), wide = accumulation_dtype(dtype);
  const TensorOptions options(dtype, device), sums(wide, device);
  Sums s;
  const bool backward = needs_x || needs_weight || needs_bias;
  if (needs_x) s.dx = empty(o.x.sizes(), options);
  if (needs_weight) s.dweight = zeros(o.weight.sizes(), sums);
  if (needs_bias) s.dbias = zeros({o.words}, sums);
  const Tensor one = ones({}, sums), losses = empty({o.rows}, sums), weights = empty({o.rows}, sums);
  Tensor divisor;
  if (params.reduction == Reduction::mean) divisor = ne(o.target, params.ignore_index).to(wide).sum();

  const std::int64_t chunk = params.chunk_rows > 0
                                 ? params.chunk_rows
                                 : std::max(kLeastRows, kLogits / std::max<std::int64_t>(o.words, 1));
  for (std::int64_t begin = 0; begin < o.rows; begin += chunk) {
    const std::int64_t n = std::min(chunk, o.rows - begin);
    const Tensor x = o.x.narrow(0, begin, n), target = o.target.narrow(0, begin, n);
    const Tensor logits = o.logits(x), stats = empty({n, 1, 2}, sums);
    kernels::ClassRowsArgs rows{.outer = n, .classes = o.words, .inner = 1};
    rows.x = logits;
    rows.target = static_cast<const std::int64_t*>(target.raw_data());  // null on the meta device
    rows.ignore_index = params.ignore_index;
    rows.smoothing = params.label_smoothing;
    rows.stats = stats;
    autograd::BadIndex bad(device);
    kernels::cross_entropy(device, dtype,
                           {.rows = rows,
                            .losses = losses.narrow(0, begin, n),
                            .weights = weights.narrow(0, begin, n),
                            .first_bad = bad.cell()});
    bad.check(kLinearCrossEntropy.name, "target", target, o.words);
    if (!backward) continue;
    const Tensor gradient = empty(logits.sizes(), options);
    kernels::cross_entropy_backward(
        device, dtype,
        {.rows = rows, .grad = {.grad = one, .each_row = false, .divisor = divisor}, .dx = gradient});
    if (needs_x) s.dx.narrow(0, begin, n).copy_(o.times_weight(gradient));
    if (needs_weight) add_product(s.dweight, gradient.to(wide), x.to(wide));
    if (needs_bias) s.dbias += gradient.to(wide).sum(0);
  }
  const Tensor total = losses.sum();
  s.loss = (divisor.defined() ? total / divisor : total).to(wide_loss ? wide : dtype);
  if (needs_weight) s.dweight = s.dweight.to(dtype);
  if (needs_bias) s.dbias = s.dbias.to(dtype);
  return s;
}

// The gradient of the logits by operations, for gradients of gradients.
Tensor logit_gradient(const Tensor& logits, const Tensor& target, const LinearCrossEntropyParams& params,
                      const Tensor& g) {
  const TensorOptions options(logits.dtype(), logits.device());
  const auto words = static_cast<double>(std::max<std::int64_t>(logits.size(1), 1));
  const double rest = params.label_smoothing / words;
  const Tensor class_of = target.unsqueeze(1), ignored = eq(class_of, params.ignore_index);
  const Tensor q =
      scatter(full(logits.sizes(), rest, options), 1, where(ignored, Scalar(0), class_of),
              expand(scalar_tensor(1 - params.label_smoothing + rest, options), class_of.sizes()));
  const Tensor each = where(ignored, scalar_tensor(0, options), softmax(logits, 1) - q);
  if (params.reduction == Reduction::sum) return each * g;
  // If all rows are ignored, each is 0, and so is the gradient.
  return each * (g / clamp(logical_not(ignored).to(logits.dtype()).sum(), 1));
}

}  // namespace

namespace {
// With `wide_loss`, the loss of 16-bit operands is f32, as that of cross_entropy() under autocast.
Tensor computed(const Tensor& x, const Tensor& weight, const Tensor& target,
                const LinearCrossEntropyParams& params, bool wide_loss) {
  const Operands o = checked(x, weight, {}, target, params);
  const bool grads = grad_enabled();
  const auto needs = [grads](const Tensor& t) { return grads && t.defined() && autograd::needs_grad(t); };
  const Sums s = compute(o, params, needs(x), needs(weight), needs(params.bias), wide_loss);
  const autograd::CallNote note({.mean = params.reduction == Reduction::mean, .constants = {&target}});
  if (autograd::recording(x, weight, params.bias))
    autograd::record(
        kLinearCrossEntropy, s.loss, {&x, &weight, &params.bias},
        [params =
             LinearCrossEntropyParams{{}, params.ignore_index, params.reduction, params.label_smoothing, 0},
         biased = params.bias.defined(), x = autograd::save(x), weight = autograd::save(weight),
         bias = params.bias.defined() ? autograd::save(params.bias) : SavedTensor(),
         target = autograd::save(o.target), dx = s.dx.defined() ? autograd::save(s.dx) : SavedTensor(),
         dweight = s.dweight.defined() ? autograd::save(s.dweight) : SavedTensor(),
         dbias = s.dbias.defined() ? autograd::save(s.dbias) : SavedTensor()](Backward& b) {
          const Tensor& g = b.grad();
          const Tensor from = b.saved(x);
          if (b.create_graph()) {
            const Tensor w = b.saved(weight), rows = from.reshape({-1, from.size(-1)});
            const Tensor gradient = logit_gradient(linear(rows, w, biased ? b.saved(bias) : Tensor()),
                                                   b.saved(target), params, g);
            if (b.needs(0)) b.set(0, matmul(gradient, w).reshape(from.sizes()));
            if (b.needs(1)) b.set(1, matmul(gradient.t(), rows));
            if (b.needs(2)) b.set(2, sum(gradient, 0));
            return;
          }
          // The gradient of the weight may be the largest tensor of a model. It is passed on as it is if the
          // incoming gradient is known to be 1; reading it would make a GPU wait. Otherwise it is multiplied,
          // in place if the pass frees it anyway.
          const bool is_one = autograd::gradient_is_one() || (g.device().is_cpu() && g.item() == 1);
          const bool freed = !autograd::GraphTask::current()->retains_graph();
          const auto scaled = [&](const SavedTensor& of_one) {
            const Tensor d = b.saved(of_one);
            const bool alone =
                d.impl()->refs.load(std::memory_order_acquire) <= 2 && d.storage()->use_count() == 1;
            return is_one ? d : freed && alone ? d.mul_(g) : d * g;
          };
          if (b.needs(0)) b.set(0, scaled(dx).reshape(from.sizes()));
          if (b.needs(1)) b.set(1, scaled(dweight));
          if (b.needs(2)) b.set(2, scaled(dbias));
        });
  return s.loss;
}
}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                            const LinearCrossEntropyParams& params) {
  if (const autograd::Autocast cast(kLinearCrossEntropy, x, weight, params.bias); cast) {
    LinearCrossEntropyParams low = params;
    low.bias = cast(params.bias);
    return computed(cast(x), cast(weight), target, low, /*wide_loss=*/true);
  }
  return computed(x, weight, target, params, /*wide_loss=*/false);
}

Tensor linear_cross_entropy(const Tensor& x, const PackedTensor& weight, const Tensor& target,
                            const LinearCrossEntropyParams& params) {
  check(weight.defined(), "[", kLinearCrossEntropy.name, "] the weight is undefined; load a packed tensor");
  const Operands o = checked(x, {}, weight, target, params);
  const bool grads = grad_enabled();
  const auto needs = [grads](const Tensor& t) { return grads && t.defined() && autograd::needs_grad(t); };
  const Sums s = compute(o, params, needs(x), false, needs(params.bias));
  const autograd::CallNote note({.mean = params.reduction == Reduction::mean, .constants = {&target}});
  if (autograd::recording(x, params.bias))
    autograd::record(
        kLinearCrossEntropy, s.loss, {&x, &params.bias},
        [params =
             LinearCrossEntropyParams{{}, params.ignore_index, params.reduction, params.label_smoothing, 0},
         x = autograd::save(x), weight, biased = params.bias.defined(),
         bias = params.bias.defined() ? autograd::save(params.bias) : SavedTensor(),
         target = autograd::save(o.target), dx = s.dx.defined() ? autograd::save(s.dx) : SavedTensor(),
         dbias = s.dbias.defined() ? autograd::save(s.dbias) : SavedTensor()](Backward& b) {
          const Tensor& g = b.grad();
          const Tensor from = b.saved(x);
          if (b.create_graph()) {
            const Tensor rows = from.reshape({-1, from.size(-1)});
            const Tensor logits =
                packed_linear(rows, weight, biased ? b.saved(bias) : Tensor(), PackedActivations::f32);
            const Tensor gradient = logit_gradient(logits, b.saved(target), params, g);
            if (b.needs(0)) b.set(0, autograd::packed_matmul(gradient, weight).reshape(from.sizes()));
            if (b.needs(1)) b.set(1, sum(gradient, 0));
            return;
          }
          const auto scaled = [&](const Tensor& d) { return autograd::gradient_is_one() ? d : d * g; };
          if (b.needs(0)) b.set(0, scaled(b.saved(dx)).reshape(from.sizes()));
          if (b.needs(1)) b.set(1, scaled(b.saved(dbias)));
        });
  return s.loss;
}

}  // namespace tapestry
