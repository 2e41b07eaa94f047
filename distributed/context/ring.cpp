// Ring attention. At step s, rank r has the keys and values of rank r - s (modulo the number of ranks): they
// move to the next rank after each step. In causal attention with the zigzag order, rank r has the chunks r
// and 2 n - 1 - r of 2 n. So at step 0 the mask is causal. Of a rank before it, all queries see the first
// chunk alone, and of a rank after it, the second chunk of the queries sees all keys. Neither needs a mask,
// and both are as much work.
#include <any>
#include <utility>

#include "tapestry/autograd/function.h"
#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/attention_lse.h"
#include "tapestry/autograd/ops/copy.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/comm/p2p_op.h"
#include "tapestry/distributed/context/attention.h"
#include "tapestry/distributed/context/internal/checks.h"

namespace tapestry::distributed {
namespace {

// The tags of messages between neighbours.
constexpr std::uint32_t kKeys = 0, kValues = 1, kKeyGradients = 2, kValueGradients = 3;

struct Pair {
  Tensor k, v;
};

struct Ring {
  std::shared_ptr<ProcessGroup> group;
  bool causal = false;
  AttentionParams params;
  std::shared_ptr<ConversionTraffic> waits;

  int size() const { return group->size(); }
  int next() const { return (group->rank() + 1) % size(); }
  int previous() const { return (group->rank() + size() - 1) % size(); }

  // Sends a pair to the next rank, and receives one like it from the previous rank.
  Work pass(const Pair& mine, const Pair& others, std::uint32_t k_tag, std::uint32_t v_tag) const {
    return group->batch_isend_irecv(
        {P2POp::send(mine.k, next(), k_tag), P2POp::send(mine.v, next(), v_tag),
         P2POp::recv(others.k, previous(), k_tag), P2POp::recv(others.v, previous(), v_tag)},
        causal ? "ring_attention, causal, zigzag" : "ring_attention");
  }

  // Waits for `passing`, which moves as many bytes as `pair` has.
  void wait(const Work& passing, const Pair& pair) const {
    if (!waits) return passing.wait();
    waits->wait(
        passing, pair.k.device(),
        {.bytes = static_cast<std::int64_t>(pair.k.nbytes() + pair.v.nbytes()), .axis = group->name()});
  }

  // The queries and keys that meet at a step, as ranges of this rank's rows and the other rank's.
  struct Range {
    std::int64_t begin, length;
    Tensor of(const Tensor& t) const { return t.narrow(2, begin, length); }
  };
  struct Meeting {
    Range queries, keys;
    AttentionParams params;
  };
  Meeting at(int step, std::int64_t rows) const {
    Meeting m{{0, rows}, {0, rows}, params};
    if (!causal) return m;
    if (step == 0) m.params.is_causal = true;
    else if (step <= group->rank()) m.keys.length = rows / 2;
    else m.queries = {rows / 2, rows - rows / 2};
    return m;
  }
};

Tensor like(const Tensor& t) { return empty(t.sizes(), TensorOptions(t.dtype(), t.device())); }
Pair like(const Pair& p) { return {like(p.k), like(p.v)}; }

// Calls f(step, keys and values) for each rank's, and meanwhile passes them on.
template <class F>
void for_each_step(const Ring& ring, Activity activity, Pair own, const F& f) {
  Pair coming = like(own);
  for (int step = 0; step < ring.size(); ++step) {
    const bool last = step + 1 == ring.size();
    const Work passing = last ? Work() : ring.pass(own, coming, kKeys, kValues);
    {
      const SpanScope span(own.k.device(), activity, kRingStep, step);
      f(step, own);
    }
    if (!last) ring.wait(passing, own);
    std::swap(own, coming);
    // The caller's own tensors must not be overwritten.
    if (step == 0 && ring.size() > 2) coming = like(own);
  }
}

struct RingAttention : autograd::Function<RingAttention> {
  static constexpr const char* kName = "ring_attention";
  static constexpr bool kOnceDifferentiable = true;

  static Tensor forward(autograd::FunctionContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Ring& ring) {
    const std::int64_t rows = q.size(2);
    AttentionWithLse total;
    for_each_step(ring, Activity::forward, {k.contiguous(), v.contiguous()}, [&](int step, const Pair& kv) {
      const auto m = ring.at(step, rows);
      const AttentionWithLse part =
          attention_with_lse(m.queries.of(q), m.keys.of(kv.k), m.keys.of(kv.v), m.params);
      if (m.queries.length == rows) return merge_attention(total, part);
      AttentionWithLse some{m.queries.of(total.out), m.queries.of(total.lse)};
      merge_attention(some, part);
      m.queries.of(total.out).copy_(some.out);
      m.queries.of(total.lse).copy_(some.lse);
    });
    const Tensor out = total.out.to(q.dtype());
    ctx.data = ring;
    ctx.save_for_backward({q, k, v, out, total.lse});
    return out;
  }

  // The gradients of a rank's keys and values begin there, and follow them through the ring. After the last
  // step the next rank's are complete here.
  static std::vector<Tensor> backward(autograd::FunctionContext& ctx, const std::vector<Tensor>& grads) {
    const auto& ring = std::any_cast<const Ring&>(ctx.data);
    const Tensor q = ctx.saved(0), k = ctx.saved(1), v = ctx.saved(2), out = ctx.saved(3), lse = ctx.saved(4);
    const TensorOptions wide(lse.dtype(), q.device());
    const std::int64_t rows = q.size(2);
    const Tensor dq = zeros(q.sizes(), wide);
    Pair sums{zeros(k.sizes(), wide), zeros(v.sizes(), wide)}, coming = like(sums);
    Work passing;
    for_each_step(ring, Activity::backward, {k.contiguous(), v.contiguous()}, [&](int step, const Pair& kv) {
      const auto m = ring.at(step, rows);
      const AttentionGrads d =
          attention_with_lse_backward(m.queries.of(grads[0]), m.queries.of(q), m.keys.of(kv.k),
                                      m.keys.of(kv.v), m.queries.of(out), m.queries.of(lse), m.params);
      m.queries.of(dq).add_(d.dq.to(lse.dtype()));
      if (step > 0) {
        ring.wait(passing, sums);
        std::swap(sums, coming);
      }
      m.keys.of(sums.k).add_(d.dk.to(lse.dtype()));
      m.keys.of(sums.v).add_(d.dv.to(lse.dtype()));
      passing = ring.pass(sums, coming, kKeyGradients, kValueGradients);
    });
    ring.wait(passing, sums);
    return {dq.to(q.dtype()), coming.k.to(k.dtype()), coming.v.to(v.dtype()), {}};
  }
};

}  // namespace

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Axis& axis,
                      const ContextAttentionOptions& options) {
  if (const autograd::Autocast cast(kCastLike, q, k, v); cast)
    return ring_attention(cast(q), cast(k), cast(v), axis, options);
  AttentionParams params = check_context("ring_attention", q, k, v, axis, options, SequenceOrder::zigzag,
                                         ContextQueries::own_rows);
  check(!options.documents.defined() && !options.mask.defined(),
        "[ring_attention] a ring has no masks of documents; use gathered_attention() or "
        "all_to_all_attention()");
  if (axis.size() == 1) {
    params.is_causal = options.is_causal;
    return scaled_dot_product_attention(q, k, v, params);
  }
  check(
      !options.is_causal || q.size(2) % 2 == 0, "[ring_attention] q has ", q.size(2),
      " rows; the zigzag order needs two equal chunks, so pad the sequence to a multiple of twice the ranks");
  return RingAttention::apply(q, k, v, Ring{axis.group(), options.is_causal, params, options.waits});
}

}  // namespace tapestry::distributed
