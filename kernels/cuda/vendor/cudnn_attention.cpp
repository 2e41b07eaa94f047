#include "tapestry/kernels/cuda/vendor/cudnn_attention.h"

#include <array>
#include <bit>
#include <limits>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/vendor/cudnn_session.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda::cudnn {
namespace {

constexpr std::int64_t kForward = 2, kBackward = 3;  // distinguish the keys from those of other files
// Before this version, the caller had to clear the array in which dq is accumulated.
constexpr std::size_t kOldestBackward = 90600;

Sizes strides_of(const AttentionStrides& s) { return {s.batch, s.head, s.row, 1}; }

/// An array with its last two dimensions exchanged.
Sizes exchanged(Sizes sizes) {
  std::swap(sizes[2], sizes[3]);
  return sizes;
}

/// The parts that both graphs have in common.
struct Builder {
  Graph graph;
  DataType type;
  Sizes scores, rows;
  std::optional<std::int64_t> bias;

  Builder(DType dtype, const AttentionShape& s, std::int64_t alignment)
      : graph(alignment),
        type(data_type(dtype)),
        scores{s.batch, s.heads, s.queries, s.keys},
        rows{s.batch, s.heads, s.queries, 1} {}

  std::int64_t virtual_scores(DataType of = DataType::float_) {
    return graph.intermediate(scores, row_major(scores), of);
  }
  std::int64_t virtual_rows() { return graph.intermediate(rows, row_major(rows), DataType::float_); }
  /// mode(x, b), with the shape of the scores.
  std::int64_t scores_of(PointwiseMode mode, std::int64_t x, std::optional<std::int64_t> b = {}) {
    const std::int64_t y = virtual_scores();
    graph.pointwise(mode, x, b, y);
    return y;
  }
  /// The tensor of the bias, if there is a mask.
  void add_bias(const AttentionShape& s, const AttentionMask& mask) {
    const AttentionBias b(s, mask);
    if (b.rows() == 0) return;
    bias = graph.tensor({b.batches, b.heads, b.queries, b.keys},
                        {b.heads * b.queries * b.pitch, b.queries * b.pitch, b.pitch, 1}, type);
  }
  std::int64_t biased(std::int64_t x) { return bias ? scores_of(PointwiseMode::add, x, bias) : x; }
  /// Replaces the scores of keys that a query does not see by -inf: key j > query i + offset.
  std::int64_t masked(const AttentionMask& mask, std::int64_t x) {
    if (!mask.causal) return x;
    const auto index = [&](std::int64_t axis) {
      const std::int64_t i = virtual_scores(DataType::int32);
      graph.gen_index(x, axis, i);
      return i;
    };
    std::int64_t query = index(2);
    if (mask.offset != 0) {
      const std::int64_t shifted = virtual_scores(DataType::int32);
      graph.pointwise(PointwiseMode::add, query, graph.constant(static_cast<std::int32_t>(mask.offset)),
                      shifted, DataType::int32);
      query = shifted;
    }
    const std::int64_t key = index(3), seen = virtual_scores(DataType::boolean), y = virtual_scores();
    graph.pointwise(PointwiseMode::cmp_ge, query, key, seen, DataType::boolean);
    graph.pointwise(PointwiseMode::binary_select, x, graph.constant(-std::numeric_limits<float>::infinity()),
                    y, DataType::float_, seen);
    return y;
  }
  /// p or ds with queries and keys exchanged, rounded to the dtype of the arrays.
  std::int64_t transposed(std::int64_t x) {
    const std::int64_t y = graph.intermediate(exchanged(scores), exchanged(row_major(scores)), type);
    graph.reshape(x, y);
    return y;
  }
  /// result = a b, summed over the heads that share one head of the result.
  void product_of_shared_heads(std::int64_t a, std::int64_t b, std::int64_t result, const AttentionShape& s,
                               std::int64_t width) {
    if (s.heads == s.groups) return graph.matmul(a, b, result);
    const Sizes sizes{s.batch, s.heads, s.keys, width};
    const std::int64_t each = graph.intermediate(sizes, row_major(sizes), type);
    graph.matmul(a, b, each);
    graph.reduce(ReductionOperator::add, each, result);
  }
};

std::string why_not_shape(DType dtype, const AttentionShape& s, const AttentionMask& mask,
                          const AttentionDropout& dropout) {
  if (dtype != DType::f16 && dtype != DType::bf16) return concat({"cuDNN's attention has no ", dtype});
  if (dropout.threshold != 0) return "cuDNN's dropout has other random numbers";
  for (const std::int64_t width : {s.width, s.value_width})
    if (width % 8 != 0 || width > 128)
      return concat({"the heads have width ", width, ", and cuDNN needs a multiple of 8, up to 128"});
  for (const std::int64_t size : {s.batch, s.heads, s.groups, s.queries, s.keys, s.width, s.value_width})
    if (size == 0) return "cuDNN has no empty tensors";
  if (mask.offset > std::numeric_limits<std::int32_t>::max()) return "the offset needs more than 32 bits";
  return {};
}

template <class Args>
void add_shared(PlanKey& key, const Args& a, DType dtype, bool deterministic, std::int64_t alignment) {
  const AttentionShape& s = a.shape;
  key.insert(key.end(), {static_cast<std::int64_t>(dtype), deterministic, alignment,
                         std::bit_cast<std::int64_t>(a.scale), a.mask.causal, a.mask.offset, s.batch, s.heads,
                         s.groups, s.queries, s.keys, s.width, s.value_width});
  for (const AttentionStrides& x : {a.q_strides, a.k_strides, a.v_strides, a.y_strides})
    key.insert(key.end(), {x.batch, x.head, x.row});
  const AttentionBias b(s, a.mask);
  key.insert(key.end(), {b.batches, b.heads, b.queries});
}

std::int64_t alignment_of(const AttentionArgs& a) {
  const std::array<const void*, 5> addresses{a.q.address(), a.k.address(), a.v.address(), a.y.address(),
                                             a.log_sum_exp.address()};
  return common_alignment(addresses);
}
std::int64_t alignment_of(const AttentionBackwardArgs& a) {
  const std::array<const void*, 9> addresses{a.q.address(),  a.k.address(),  a.v.address(),
                                             a.y.address(),  a.dy.address(), a.log_sum_exp.address(),
                                             a.dq.address(), a.dk.address(), a.dv.address()};
  return common_alignment(addresses);
}

EngineRules rules_for(bool deterministic) { return {.deterministic = deterministic}; }

const CachedPlan& plan_of(const BorrowedSession& session, DType dtype, const AttentionArgs& a,
                          bool deterministic) {
  PlanKey key{kForward};
  add_shared(key, a, dtype, deterministic, alignment_of(a));
  return session->plan(key, rules_for(deterministic),
                       [&] { return attention_graph(dtype, a, alignment_of(a)); });
}
const CachedPlan& plan_of(const BorrowedSession& session, DType dtype, const AttentionBackwardArgs& a,
                          bool deterministic) {
  PlanKey key{kBackward};
  add_shared(key, a, dtype, deterministic, alignment_of(a));
  for (const AttentionStrides& x : {a.dy_strides, a.dq_strides, a.dk_strides, a.dv_strides})
    key.insert(key.end(), {x.batch, x.head, x.row});
  return session->plan(key, rules_for(deterministic),
                       [&] { return attention_backward_graph(dtype, a, alignment_of(a), deterministic); });
}

/// The addresses for a plan, which says itself which arrays it writes.
void* writable(const void* address) { return const_cast<void*>(address); }

/// The bias of a mask, in memory of its own.
class BiasMemory {
 public:
  BiasMemory(const LaunchContext& context, DType dtype, const AttentionShape& s, const AttentionMask& mask,
             const AttentionBiasKernels& kernels)
      : shape_(s, mask),
        data_(context.device, shape_.rows() * shape_.pitch),
        first_seen_(context.device, shape_.rows()) {
    if (!*this) return;
    const MutableArray bias = dtype == DType::f16 ? MutableArray(reinterpret_cast<Half*>(data_.data()))
                                                  : MutableArray(reinterpret_cast<BFloat16*>(data_.data()));
    kernels.bias(context, {shape_, mask, bias, first_seen_.data()});
  }
  explicit operator bool() const { return shape_.rows() > 0; }
  const AttentionBias& shape() const { return shape_; }
  void* data() const { return data_.data(); }
  const std::int64_t* first_seen() const { return first_seen_.data(); }

 private:
  AttentionBias shape_;
  Scratch<std::uint16_t> data_;
  Scratch<std::int64_t> first_seen_;
};

const Plan& checked(const CachedPlan& cached) {
  check<MissingKernelError>(cached.plan.has_value(), "[scaled_dot_product_attention] ", cached.why_not);
  return *cached.plan;
}

}  // namespace

// s = q k^T scale + bias, masked;  m = max(s);  e = exp(s - m);  l = sum(e);  log_sum_exp = m + log(l);  y =
// (e / l)
// v
Graph attention_graph(DType dtype, const AttentionArgs& a, std::int64_t alignment) {
  using enum PointwiseMode;
  const AttentionShape& s = a.shape;
  Builder b(dtype, s, alignment);
  Graph& g = b.graph;
  const std::int64_t q = g.tensor({s.batch, s.heads, s.queries, s.width}, strides_of(a.q_strides), b.type);
  const std::int64_t k = g.tensor({s.batch, s.groups, s.width, s.keys}, exchanged(strides_of(a.k_strides)),
                                  b.type);  // transposed
  const std::int64_t v =
      g.tensor({s.batch, s.groups, s.keys, s.value_width}, strides_of(a.v_strides), b.type);
  const std::int64_t y =
      g.tensor({s.batch, s.heads, s.queries, s.value_width}, strides_of(a.y_strides), b.type);
  const std::int64_t log_sum_exp = g.tensor(b.rows, row_major(b.rows), DataType::float_);
  b.add_bias(s, a.mask);

  const std::int64_t products = b.virtual_scores();
  g.matmul(q, k, products);
  const std::int64_t scores =
      b.masked(a.mask, b.biased(b.scores_of(mul, products, g.constant(static_cast<float>(a.scale)))));
  const std::int64_t largest = b.virtual_rows();
  g.reduce(ReductionOperator::max, scores, largest);
  const std::int64_t e = b.scores_of(exp, b.scores_of(sub, scores, largest));
  const std::int64_t total = b.virtual_rows(), logarithm = b.virtual_rows();
  g.reduce(ReductionOperator::add, e, total);
  g.pointwise(log, total, {}, logarithm);
  g.pointwise(add, largest, logarithm, log_sum_exp);
  const std::int64_t p = b.virtual_scores(b.type);
  g.pointwise(div, e, total, p);
  g.matmul(p, v, y);
  return std::move(b.graph);
}

// d = sum(dy y);  p = exp(s - log_sum_exp);  dv = p^T dy;  ds = p (dy v^T - d) scale;  dk = ds^T q;  dq = ds
// k
Graph attention_backward_graph(DType dtype, const AttentionBackwardArgs& a, std::int64_t alignment,
                               bool deterministic) {
  using enum PointwiseMode;
  const AttentionShape& s = a.shape;
  Builder b(dtype, s, alignment);
  Graph& g = b.graph;
  const Sizes q_sizes{s.batch, s.heads, s.queries, s.width},
      y_sizes{s.batch, s.heads, s.queries, s.value_width};
  const Sizes k_sizes{s.batch, s.groups, s.keys, s.width}, v_sizes{s.batch, s.groups, s.keys, s.value_width};
  const std::int64_t q = g.tensor(q_sizes, strides_of(a.q_strides), b.type);
  const std::int64_t k_t = g.tensor(exchanged(k_sizes), exchanged(strides_of(a.k_strides)), b.type);
  const std::int64_t v_t = g.tensor(exchanged(v_sizes), exchanged(strides_of(a.v_strides)), b.type);
  const std::int64_t y = g.tensor(y_sizes, strides_of(a.y_strides), b.type);
  const std::int64_t dy = g.tensor(y_sizes, strides_of(a.dy_strides), b.type);
  const std::int64_t log_sum_exp = g.tensor(b.rows, row_major(b.rows), DataType::float_);
  const std::int64_t dq = g.tensor(q_sizes, strides_of(a.dq_strides), b.type);
  const std::int64_t dk = g.tensor(k_sizes, strides_of(a.dk_strides), b.type);
  const std::int64_t dv = g.tensor(v_sizes, strides_of(a.dv_strides), b.type);
  const std::int64_t d = g.tensor(b.rows, row_major(b.rows), DataType::float_);
  b.add_bias(s, a.mask);

  // cuDNN recognises the graph by all of its nodes, so it has a factor of 1 where dropout would have its own.
  const std::int64_t products = g.intermediate(y_sizes, row_major(y_sizes), DataType::float_);
  const std::int64_t sums = b.virtual_rows();
  g.pointwise(mul, dy, y, products);
  g.reduce(ReductionOperator::add, products, sums);
  g.pointwise(mul, sums, g.constant(1.0F), d);

  const std::int64_t scale = g.constant(static_cast<float>(a.scale));
  const std::int64_t qk = b.virtual_scores();
  g.matmul(q, k_t, qk);
  const std::int64_t p = b.scores_of(
      exp, b.masked(a.mask, b.scores_of(sub, b.biased(b.scores_of(mul, qk, scale)), log_sum_exp)));
  b.product_of_shared_heads(b.transposed(p), dy, dv, s, s.value_width);

  const std::int64_t dp = b.virtual_scores();
  g.matmul(dy, v_t, dp);
  const std::int64_t ds = b.scores_of(mul, b.scores_of(mul, b.scores_of(sub, dp, d), p), scale);
  b.product_of_shared_heads(b.transposed(ds), q, dk, s, s.width);

  const std::int64_t k = g.intermediate(k_sizes, strides_of(a.k_strides), b.type);
  g.reshape(k_t, k);
  if (deterministic) {
    g.matmul(ds, k, dq);
  } else {
    const std::int64_t accumulated = g.tensor(q_sizes, row_major(q_sizes), DataType::float_);
    g.matmul(ds, k, accumulated);
    g.pointwise(identity, accumulated, {}, dq);
  }
  return std::move(b.graph);
}

std::string why_not(const LaunchContext& context, DType dtype, const AttentionArgs& a, bool deterministic) {
  if (std::string reason = why_not_shape(dtype, a.shape, a.mask, a.dropout); !reason.empty()) return reason;
  if (std::string reason = why_unusable(context.device); !reason.empty()) return reason;
  const BorrowedSession session(context);
  return plan_of(session, dtype, a, deterministic).why_not;
}

std::string why_not(const LaunchContext& context, DType dtype, const AttentionBackwardArgs& a,
                    bool deterministic) {
  if (std::string reason = why_not_shape(dtype, a.shape, a.mask, a.dropout); !reason.empty()) return reason;
  if (!a.dq || !a.dk || !a.dv) return "cuDNN computes all three gradients";
  if (std::string reason = why_unusable(context.device); !reason.empty()) return reason;
  if (functions().cudnnGetVersion() < kOldestBackward)
    return concat({"cuDNN ", version(), " is older than 9.6, the oldest for this gradient"});
  const BorrowedSession session(context);
  return plan_of(session, dtype, a, deterministic).why_not;
}

void run(const LaunchContext& context, DType dtype, const AttentionArgs& a, bool deterministic,
         const AttentionBiasKernels& kernels) {
  const BorrowedSession session(context);
  const Plan& plan = checked(plan_of(session, dtype, a, deterministic));
  const BiasMemory bias(context, dtype, a.shape, a.mask, kernels);
  std::vector<void*> addresses{writable(a.q.address()), writable(a.k.address()), writable(a.v.address()),
                               a.y.address(), a.log_sum_exp.address()};
  if (bias) addresses.push_back(bias.data());
  session->run(plan, context.device, addresses);
  if (bias)
    kernels.blind(context, {.shape = a.shape,
                            .bias = bias.shape(),
                            .mask = a.mask,
                            .first_seen = bias.first_seen(),
                            .y = a.y,
                            .y_strides = a.y_strides,
                            .log_sum_exp = a.log_sum_exp});
}

void run(const LaunchContext& context, DType dtype, const AttentionBackwardArgs& a, bool deterministic,
         const AttentionBiasKernels& kernels) {
  const BorrowedSession session(context);
  const Plan& plan = checked(plan_of(session, dtype, a, deterministic));
  const AttentionShape& s = a.shape;
  const std::int64_t rows = s.batch * s.heads * s.queries;
  const Scratch<float> d(context.device, rows), dq(context.device, deterministic ? 0 : rows * s.width);
  const BiasMemory bias(context, dtype, s, a.mask, kernels);
  const Scratch<float> logs(context.device, bias ? rows : 0);
  if (bias) kernels.logs(context, {rows, a.log_sum_exp.as<float>(), logs.data()});
  std::vector<void*> addresses{
      writable(a.q.address()),  writable(a.k.address()),
      writable(a.v.address()),  writable(a.y.address()),
      writable(a.dy.address()), bias ? logs.data() : writable(a.log_sum_exp.address()),
      a.dq.address(),           a.dk.address(),
      a.dv.address(),           d.data()};
  if (bias) addresses.push_back(bias.data());
  if (!deterministic) addresses.push_back(dq.data());
  session->run(plan, context.device, addresses);
}

}  // namespace tapestry::kernels::cuda::cudnn
