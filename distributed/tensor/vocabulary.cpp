#include "tapestry/distributed/tensor/vocabulary.h"

#include <algorithm>
#include <string>

#include "tapestry/autograd/function.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/composite.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/embedding.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/placement/convert.h"
#include "tapestry/distributed/placement/rule.h"
#include "tapestry/nn/layout.h"

namespace tapestry::distributed {
namespace {

// The words of this rank.
struct Words {
  std::int64_t first, count, all;
};

Words words_of(const char* op, const Axis& axis, std::int64_t all, std::int64_t rows) {
  const nn::Region own = nn::Region::whole({all}).part(0, axis.coordinate(), axis.size());
  check(own.sizes[0] == rows, "[", op, "] rank ", axis.coordinate(), " of ", axis.size(), " has ", rows,
        " of ", all, " words, but its part is ", own.str(), "; pass the rows nn::Region::part() gives");
  return {own.first[0], rows, all};
}

void check_integers(const char* op, const char* what, const Tensor& t) {
  tapestry::detail::check_defined(op, t, what);
  check<TypeError>(contains(kIntegers, t.dtype()), "[", op, "] ", what, " are ", t.dtype(),
                   "; words are integers");
}

// Throws IndexError unless all are words, or `ignored`. The ranks have equal words, and so all throw.
void check_words(const char* op, const Tensor& t, std::int64_t all, std::optional<std::int64_t> ignored) {
  if (t.numel() == 0 || t.device().is_meta()) return;
  Tensor outside = logical_or(lt(t, 0), ge(t, all));
  if (ignored) outside = logical_and(outside, ne(t, *ignored));
  check<IndexError>(outside.any().item() == 0, "[", op, "] a word is outside [0, ", all,
                    "); correct it, or the number of words");
}

// Of these words: which are this rank's, and their rows (0 for others).
struct WordRows {
  Tensor mine, row;
};
WordRows local_rows(const Tensor& words, const Words& own) {
  const Tensor row = words.to(DType::i64) - own.first;
  const Tensor mine = logical_and(ge(row, 0), lt(row, own.count));
  return {mine, where(mine, row, Scalar(0))};
}

}  // namespace

Tensor vocab_parallel_embedding(const Tensor& weight, const Tensor& indices, const Axis& axis, std::int64_t V,
                                std::optional<std::int64_t> padding_idx) {
  const char* const op = "vocab_parallel_embedding";
  tapestry::detail::check_defined(op, weight, "weight");
  check_integers(op, "indices", indices);
  const Words own = words_of(op, axis, V, weight.size(0));
  check_words(op, indices, V, std::nullopt);
  const WordRows rows = local_rows(indices, own);
  std::optional<std::int64_t> padding;
  if (padding_idx && *padding_idx >= own.first && *padding_idx < own.first + own.count)
    padding = *padding_idx - own.first;
  const Tensor own_rows =
      embedding(weight, rows.row, padding).masked_fill(logical_not(rows.mine).unsqueeze(-1), 0);
  // The other ranks' rows are zeros now. Only the check must know.
  return checks_placement() ? convert(own_rows, axis, Placement::varying(), Placement::partial()) : own_rows;
}

namespace {

// The losses of some rows, and the gradient of their logits for an incoming gradient of 1 each.
struct RowLosses {
  Tensor losses, gradient;
};

// logits (n, own.count) in the dtype of sums, target (n) i64. Collective.
RowLosses losses_of(const Tensor& logits, const Tensor& target, const Words& own, ProcessGroup& group,
                    const VocabParallelLossParams& params, bool needs_gradient) {
  const std::int64_t n = target.numel();
  const Tensor largest = logits.amax({1});
  const auto wait = [&](const Work& work, const Tensor& t) {
    if (!params.traffic) return work.wait();
    params.traffic->add(ConversionTraffic::Kind::all_reduce, t.nbytes(), group.size());
    params.traffic->wait(work, t.device(),
                         {.bytes = static_cast<std::int64_t>(t.nbytes()), .axis = group.name()});
  };
  wait(group.all_reduce(largest, ReduceOp::max, "vocab_parallel_cross_entropy"), largest);
  const Tensor shifted = logits - largest.unsqueeze(1), exponentials = shifted.exp();
  const WordRows rows = local_rows(target, own);
  const Tensor mine = rows.mine.to(logits.dtype()), row = rows.row.unsqueeze(1);
  // Sums over the words: of exponentials, of the target's logit, and of logits.
  const Tensor sums = empty({3, n}, TensorOptions(logits.dtype(), logits.device()));
  sums[0].copy_(exponentials.sum({1}));
  sums[1].copy_(where(rows.mine, gather(shifted, 1, row).squeeze(1), Scalar(0)));
  if (params.label_smoothing > 0) sums[2].copy_(shifted.sum({1}));
  else sums[2].zero_();
  wait(group.all_reduce(sums, ReduceOp::sum, "vocab_parallel_cross_entropy"), sums);
  const double rest = params.label_smoothing, each = rest / static_cast<double>(own.all);
  const Tensor counts = ne(target, params.ignore_index);
  Tensor losses = sums[0].log() - sums[1] * (1 - rest);
  if (rest > 0) losses = losses - sums[2] * each;
  RowLosses result{where(counts, losses, Scalar(0)), {}};
  if (!needs_gradient) return result;
  Tensor gradient = exponentials / sums[0].unsqueeze(1);
  if (rest > 0) gradient = gradient - each;
  gradient = scatter(gradient, 1, row, gather(gradient, 1, row) - (mine * (1 - rest)).unsqueeze(1));
  result.gradient = where(counts.unsqueeze(1), gradient, Scalar(0));
  return result;
}

// For backward: the gradient of x for an incoming gradient of 1 of each row's loss, and that of the weight
// for one of the result. `count` divides dx, and is undefined for a sum. What is divided and multiplied has
// the dtype of sums: bf16 would round a count of 257 to 256.
struct LossGradients {
  Tensor dx, dweight, count;
};
DType wide_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

struct LossData {
  std::shared_ptr<ProcessGroup> group;
  Words words;
  VocabParallelLossParams params;
  bool needs_x, needs_weight;
};

// The loss of x (rows, E) and the weight (words, E). Without a weight, x has the logits.
struct VocabularyLoss : autograd::Function<VocabularyLoss> {
  static constexpr const char* kName = "vocab_parallel_cross_entropy";
  static constexpr bool kOnceDifferentiable = true;

  static Tensor forward(autograd::FunctionContext& ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& target, const LossData& data) {
    constexpr std::int64_t kLogits = std::int64_t{1} << 22, kLeastRows = 32;
    const bool wide_loss = current_context().autocast.active();
    const DType wide = wide_of(x.dtype());
    const TensorOptions sums(wide, x.device());
    const std::int64_t all = target.numel();
    const std::int64_t rows =
        data.params.chunk_rows > 0
            ? data.params.chunk_rows
            : std::max(kLeastRows, kLogits / std::max<std::int64_t>(data.words.count, 1));
    Tensor dx = data.needs_x ? empty(x.sizes(), TensorOptions(x.dtype(), x.device())) : Tensor();
    Tensor dweight = data.needs_weight ? zeros(weight.sizes(), sums) : Tensor();
    Tensor total = zeros({}, sums);
    for (std::int64_t begin = 0; begin < all; begin += rows) {
      const std::int64_t n = std::min(rows, all - begin);
      const Tensor from = x.narrow(0, begin, n);
      const Tensor logits = weight.defined() ? linear(from, weight) : from;
      const RowLosses chunk = losses_of(logits.to(wide), target.narrow(0, begin, n), data.words, *data.group,
                                        data.params, data.needs_x || data.needs_weight);
      total = total + chunk.losses.sum();
      if (!chunk.gradient.defined()) continue;
      const Tensor gradient = chunk.gradient.to(logits.dtype());
      if (data.needs_x) dx.narrow(0, begin, n).copy_(weight.defined() ? matmul(gradient, weight) : gradient);
      if (data.needs_weight) dweight.add_(matmul(gradient.to(wide).t(), from.to(wide)));
    }
    Tensor divisor;
    if (data.params.reduction == Reduction::mean) {
      const Tensor count = ne(target, data.params.ignore_index).to(wide).sum();
      total = total / count;
      divisor = clamp(count, 1);
      if (dweight.defined()) dweight = dweight / divisor;
    }
    if (dweight.defined()) dweight = dweight.to(weight.dtype());
    ctx.data = LossGradients{dx, dweight, divisor};
    return total.to(wide_loss ? wide : x.dtype());
  }
  static std::vector<Tensor> backward(autograd::FunctionContext& ctx, const std::vector<Tensor>& grads) {
    const auto& [dx, dweight, count] = std::any_cast<const LossGradients&>(ctx.data);
    const auto scaled = [&](const Tensor& d, const Tensor& divisor) {
      if (!d.defined()) return Tensor();
      const DType wide = wide_of(d.dtype());
      const Tensor g = grads[0].to(wide);
      return (d.to(wide) * (divisor.defined() ? g / divisor : g)).to(d.dtype());
    };
    return {scaled(dx, count), scaled(dweight, {}), {}, {}};
  }
};

// The operands are features of all words' rows and this rank's rows of the weight, or this rank's part of the
// logits. The sums over the words are made inside.
Placement placed_loss(const PlacementCall& call) {
  const PlacedOperand &x = call.operand(0), &weight = call.operand(1);
  const bool of_logits = !weight.defined();
  const Placement wanted = of_logits ? Placement::sharded(1) : Placement::replicated();
  if (!x.is_constant() && x.placement != wanted)
    call.fail(0,
              of_logits ? "and the loss takes this rank's part of the logits"
                        : "and each rank computes a part of its gradient from its own words",
              wanted);
  if (!weight.is_constant() && weight.placement != Placement::sharded(0))
    call.fail(1, "and the loss takes this rank's rows", Placement::sharded(0));
  return Placement::invariant();
}
const bool has_placed_loss = [] {
  set_placement_rule(VocabularyLoss::kName, placed_loss);
  return true;
}();

Tensor loss_of(const char* op, const Tensor& x, const Tensor& weight, const Tensor& target, const Axis& axis,
               std::int64_t V, const VocabParallelLossParams& params) {
  tapestry::detail::check_defined(op, x);
  check_integers(op, "targets", target);
  check(x.dim() > 0 && (!weight.defined() || (weight.dim() == 2 && weight.size(1) == x.size(-1))), "[", op,
        "] input has shape ", x.sizes(), ", weight ", weight.defined() ? weight.sizes() : Shape(),
        "; expected (..., E) and this rank's rows of (V, E)");
  const Shape leading(x.sizes().begin(), x.dim() - 1);
  check(target.sizes() == leading, "[", op, "] target has shape ", target.sizes(), ", input ", x.sizes(),
        "; targets for it have shape ", leading);
  check(params.reduction != Reduction::none, "[", op, "] the reduction is none; choose mean or sum");
  check(params.label_smoothing >= 0 && params.label_smoothing <= 1, "[", op, "] label_smoothing ",
        params.label_smoothing, " is outside [0, 1]; 0.1 is usual");
  check(params.chunk_rows >= 0, "[", op, "] chunk_rows ", params.chunk_rows,
        " is negative; 0 means automatic");
  const Words words = words_of(op, axis, V, weight.defined() ? weight.size(0) : x.size(-1));
  check_words(op, target, V, params.ignore_index);
  const auto needs = [](const Tensor& t) { return grad_enabled() && t.defined() && t.requires_grad(); };
  const std::int64_t rows = target.numel();
  return VocabularyLoss::apply(x.reshape({rows, x.size(-1)}), weight, target.to(DType::i64).reshape({rows}),
                               LossData{axis.group(), words, params, needs(x), needs(weight)});
}

}  // namespace

Tensor vocab_parallel_linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                                           const Axis& axis, std::int64_t V,
                                           const VocabParallelLossParams& params) {
  const char* const op = "vocab_parallel_linear_cross_entropy";
  tapestry::detail::check_defined(op, weight, "weight");
  return loss_of(op, x, weight, target, axis, V, params);
}

Tensor vocab_parallel_cross_entropy(const Tensor& logits, const Tensor& target, const Axis& axis,
                                    std::int64_t V, const VocabParallelLossParams& params) {
  return loss_of("vocab_parallel_cross_entropy", logits, {}, target, axis, V, params);
}

}  // namespace tapestry::distributed
