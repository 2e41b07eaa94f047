#include "tapestry/autograd/ops/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/dropout.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/attention.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/softmax.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/generator.h"
#include "tapestry/kernels/ops/attention.h"
#include "tapestry/kernels/ops/random.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::causal_mask;
using autograd::Grouped;
using autograd::in_heads;
using autograd::kernel_args;
using autograd::scale_of;
using autograd::strides_of;
using autograd::with_rows;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const autograd::Op kAttention("scaled_dot_product_attention", autograd::Grad::twice, kFloats);

// The weights of the values, and which queries see no key at all (undefined without a mask). The weights of
// such a query are uniform instead of NaN.
struct Weights {
  Tensor values, blind;
};
Weights attention_weights(const Tensor& q, const Tensor& k, const AttentionParams& params) {
  // q is scaled instead of the scores, because it usually has fewer elements.
  Tensor scores = matmul(q * scale_of(q, params), k.transpose(-2, -1));
  const Tensor mask = params.is_causal ? causal_mask(q.size(-2), k.size(-2), params.causal_offset, q.device())
                                       : params.attn_mask;
  const auto constant = [&](double value) { return scalar_tensor(value, {q.dtype(), q.device()}); };
  if (mask.defined())
    scores = mask.dtype() == DType::boolean ? where(mask, scores, constant(-kInfinity)) : scores + mask;
  Tensor blind;
  if (params.attn_mask.defined() && scores.numel() > 0) {
    const NoGradGuard guard;
    blind = eq(max(scores, -1, true).first, -kInfinity);
  }
  if (blind.defined()) scores = where(blind, constant(0), scores);
  return {softmax(scores, -1), blind};
}

// Attention by matrix products and softmax, with the whole matrix of scores.
Tensor by_operations(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params) {
  const Weights weights = attention_weights(q, k, params);
  const Tensor out = matmul(dropout(weights.values, params.dropout_p, params.dropout_p > 0), v);
  return weights.blind.defined() ? where(weights.blind, scalar_tensor(0, {q.dtype(), q.device()}), out) : out;
}

// The random numbers for the dropout of all weights, as many as dropout() takes.
kernels::AttentionDropout take_dropout(const Tensor& q, std::int64_t weights, double p) {
  if (p == 0) return {};
  return {.range = current_generator(q.device()).take(static_cast<std::uint64_t>((weights + 3) / 4)),
          .threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24)),
          .scale = p < 1 ? 1 / (1 - p) : 0};
}

// The factors by which the kernel's dropout multiplied the weights.
Tensor factors_of(const kernels::AttentionDropout& d, const Tensor& weights) {
  const NoGradGuard guard;
  const TensorOptions options(weights.dtype(), weights.device());
  const Tensor in = ones(weights.sizes(), options), out = empty(weights.sizes(), options);
  kernels::dropout(
      out.device(), out.dtype(),
      {.out = out, .x = in, .n = out.numel(), .range = d.range, .threshold = d.threshold, .scale = d.scale});
  return out;
}

// The gradients of q, k and v by operations, which a pass with create_graph records.
struct AttentionGradients {
  Tensor q, k, v;
};
AttentionGradients gradients(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
                             const kernels::AttentionDropout& dropped, const Tensor& g) {
  if (params.enable_gqa) {
    const Grouped groups(q, k, v, params);
    const AttentionGradients d =
        gradients(groups.q, groups.k, groups.v, groups.params, dropped, groups.split(g));
    return {d.q.flatten(-4, -3), sum(d.k, -3), sum(d.v, -3)};
  }
  const auto [weights, blind] = attention_weights(q, k, params);
  const Tensor p =
      blind.defined() ? where(blind, scalar_tensor(0, {q.dtype(), q.device()}), weights) : weights;
  const Tensor factors = dropped.threshold ? factors_of(dropped, p) : Tensor();
  const auto drop = [&](const Tensor& t) { return factors.defined() ? t * factors : t; };
  const Tensor dp = drop(matmul(g, v.transpose(-2, -1)));
  const Tensor ds = p * (dp - sum(dp * p, -1, true)) * scale_of(q, params);
  return {matmul(ds, k), matmul(ds.transpose(-2, -1), q), matmul(drop(p).transpose(-2, -1), g)};
}

// True if the kernel computes this attention, and a gradient of the mask is not needed. Otherwise it is
// composed of operations.
bool has_kernel(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params) {
  // The meta device gives what a CPU gives.
  const DeviceType type = q.device().is_meta() ? DeviceType::cpu : q.device().type;
  return kernels::attention.has(type, q.dtype()) && q.dim() <= 4 &&
         (type == DeviceType::cpu || std::max(q.size(-1), v.size(-1)) <= kernels::kMaxGpuAttentionWidth) &&
         k.dim() == q.dim() && v.dim() == q.dim() && q.numel() > 0 && k.numel() > 0 && v.numel() > 0 &&
         (q.dim() < 4 || (k.size(0) == q.size(0) && v.size(0) == q.size(0))) &&
         (q.dim() < 3 || params.enable_gqa || (k.size(-3) == q.size(-3) && v.size(-3) == q.size(-3))) &&
         !autograd::recording(params.attn_mask);
}

// Tensors for the gradients of q, k and v (batch, heads, rows, columns) on a CPU. Often q, k and v follow
// each other in the rows of one projection, and heads are parts of these rows. The gradients then have the
// same layout, so that neither joining the heads nor the backward of split() copies them.
std::array<Tensor, 3> gradients_like(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor* const inputs[] = {&q, &k, &v};
  const std::int64_t batch = q.size(0), rows = q.size(2), width = q.stride(2);
  const TensorOptions options(q.dtype(), q.device());
  std::int64_t end = q.storage_offset();
  bool parts = !q.device().is_cuda();
  for (const Tensor* t : inputs) {
    parts = parts && t->storage() == q.storage() && t->storage_offset() == end && t->size(2) == rows &&
            t->stride(2) == width && (batch == 1 || t->stride(0) == rows * width) &&
            (t->size(1) == 1 || t->stride(1) == t->size(3)) && (t->size(3) == 1 || t->stride(3) == 1);
    end += t->size(1) * t->size(3);
  }
  std::array<Tensor, 3> out;
  if (parts && end - q.storage_offset() == width) {
    const Tensor whole = empty({batch, rows, width}, options);
    for (std::size_t i = 0; i < 3; ++i) {
      const Tensor& t = *inputs[i];
      out[i] = detail::raw_view(whole, t.sizes(), t.strides(), t.storage_offset() - q.storage_offset());
    }
    return out;
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const Tensor& t = *inputs[i];
    const bool by_row = !t.device().is_cuda() && t.size(1) > 1 && t.stride(2) > t.stride(1);
    out[i] = by_row ? empty({batch, t.size(2), t.size(1), t.size(3)}, options).transpose(1, 2)
                    : autograd::result_like(t.sizes(), t.dtype(), {&t});
  }
  return out;
}

Tensor by_kernel(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params) {
  Tensor y, log_sum_exp, mask;
  kernels::AttentionDropout dropped;
  {
    const NoGradGuard guard;
    const Tensor q4 = with_rows(in_heads(q)), k4 = with_rows(in_heads(k)), v4 = with_rows(in_heads(v));
    const std::int64_t batch = q4.size(0), heads = q4.size(1), queries = q4.size(2), columns = v4.size(3);
    const TensorOptions options(q.dtype(), q.device());
    // Layers merge the heads after attention. If q came from (batch, queries, heads, E), so does the result.
    const bool by_query = q4.stride(2) > q4.stride(1);
    const Tensor y4 = by_query ? empty({batch, queries, heads, columns}, options).transpose(1, 2)
                               : empty({batch, heads, queries, columns}, options);
    log_sum_exp = empty({batch, heads, queries}, {DType::f32, q.device()});
    if (params.attn_mask.defined()) mask = params.attn_mask.expand({batch, heads, queries, k4.size(2)});
    auto args = kernel_args<kernels::AttentionArgs>(q4, k4, v4, params, mask);
    dropped = take_dropout(q, batch * heads * queries * k4.size(2), params.dropout_p);
    args.dropout = dropped;
    args.y = y4, args.y_strides = strides_of(y4), args.log_sum_exp = log_sum_exp;
    kernels::attention(q.device(), q.dtype(), args);
    y = q.dim() == 4 ? y4 : q.dim() == 3 ? y4.squeeze(0) : y4.squeeze(0).squeeze(0);
  }
  const autograd::CallNote note({.constants = {&params.attn_mask}});
  if (autograd::recording(q, k, v))
    autograd::record(kAttention, y, {&q, &k, &v},
                     [params, dropped, q = autograd::save(q), k = autograd::save(k), v = autograd::save(v),
                      y = autograd::save_output(y), logs = autograd::save(log_sum_exp),
                      mask = mask.defined() ? autograd::save(mask) : autograd::SavedTensor(),
                      masked = mask.defined()](Backward& b) {
                       const Tensor saved_q = b.saved(q), saved_k = b.saved(k), saved_v = b.saved(v);
                       if (b.create_graph()) {
                         const AttentionGradients d =
                             gradients(saved_q, saved_k, saved_v, params, dropped, b.grad());
                         b.set(0, d.q);
                         b.set(1, d.k);
                         b.set(2, d.v);
                         return;
                       }
                       const Tensor q4 = with_rows(in_heads(saved_q)), k4 = with_rows(in_heads(saved_k)),
                                    v4 = with_rows(in_heads(saved_v)), y4 = in_heads(b.saved(y)),
                                    dy4 = with_rows(in_heads(b.grad()));
                       const auto [dq, dk, dv] = gradients_like(q4, k4, v4);
                       auto args = kernel_args<kernels::AttentionBackwardArgs>(
                           q4, k4, v4, params, masked ? b.saved(mask) : Tensor());
                       args.y = y4, args.dy = dy4, args.log_sum_exp = b.saved(logs);
                       args.y_strides = strides_of(y4), args.dy_strides = strides_of(dy4);
                       args.dropout = dropped;
                       args.dq = dq, args.dk = dk, args.dv = dv;
                       args.dq_strides = strides_of(dq), args.dk_strides = strides_of(dk),
                       args.dv_strides = strides_of(dv);
                       kernels::attention_backward(dq.device(), dq.dtype(), args);
                       b.set(0, dq.reshape(saved_q.sizes()));
                       b.set(1, dk.reshape(saved_k.sizes()));
                       b.set(2, dv.reshape(saved_v.sizes()));
                     });
  return y;
}

}  // namespace

void autograd::check_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionParams& params) {
  detail::check_defined(op, q, "q");
  detail::check_defined(op, k, "k");
  detail::check_defined(op, v, "v");
  kAttention.check_dtype(q.dtype());
  check_matches(op, q, k, "k");
  check_matches(op, q, v, "v");
  check(q.dim() >= 2 && k.dim() >= 2 && v.dim() >= 2, "[", op, "] q ", q.sizes(), ", k ", k.sizes(), ", v ",
        v.sizes(), "; expected (..., L, E), (..., S, E), (..., S, V)");
  if (params.enable_gqa) {
    check(q.dim() >= 3 && k.dim() >= 3 && v.dim() >= 3, "[", op, "] q ", q.sizes(), ", k ", k.sizes(), ", v ",
          v.sizes(), "; with enable_gqa, expected (..., heads, L, E)");
    const std::int64_t heads = q.size(-3), groups = k.size(-3);
    check(v.size(-3) == groups && groups > 0 && heads % groups == 0, "[", op, "] q has ", heads,
          " heads, k has ", groups, " and v ", v.size(-3),
          "; the heads of k and v must be equal and divide those of q");
  }
  check(q.size(-1) == k.size(-1), "[", op, "] q ", q.sizes(), " and k ", k.sizes(),
        " differ in their last size; it must be the same");
  check(k.size(-2) == v.size(-2), "[", op, "] k ", k.sizes(), " and v ", v.sizes(), " have ", k.size(-2),
        " and ", v.size(-2), " rows; there must be a value for each key");
  check(params.causal_offset >= 0 && (params.is_causal || params.causal_offset == 0), "[", op,
        "] causal_offset is ", params.causal_offset,
        params.is_causal ? "; it must not be negative" : ", but is_causal is not set; set it too");
  check(params.dropout_p >= 0 && params.dropout_p <= 1, "[", op, "] dropout_p is ", params.dropout_p,
        "; give a probability, from 0 to 1");
  check(!(params.is_causal && params.attn_mask.defined()), "[", op,
        "] both causal and a mask; put the causal one into the mask");
  if (params.attn_mask.defined()) {
    check<TypeError>(params.attn_mask.dtype() == DType::boolean || params.attn_mask.dtype() == q.dtype(), "[",
                     op, "] mask has dtype ", params.attn_mask.dtype(), ", expected bool or the input's ",
                     q.dtype());
    check<DeviceError>(params.attn_mask.device() == q.device(), "[", op, "] mask is on ",
                       params.attn_mask.device(), " but the input is on ", q.device(),
                       "; move it with to(device)");
  }

  if (params.attn_mask.defined()) {
    // The scores have q's heads, and the batch dimensions of q and k broadcast.
    const auto leading = [](const Tensor& t, int last) { return Shape(t.sizes().begin(), t.dim() - last); };
    const int own = params.enable_gqa ? 3 : 2;
    Shape scores = broadcast_shapes(op, leading(q, own), leading(k, own));
    if (params.enable_gqa) scores.push_back(q.size(-3));
    scores.push_back(q.size(-2));
    scores.push_back(k.size(-2));
    check(broadcast_shapes(op, params.attn_mask.sizes(), scores) == scores, "[", op, "] mask ",
          params.attn_mask.sizes(), " does not broadcast to the scores' shape ", scores,
          "; give it at most these sizes");
  }
}

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionParams& params) {
  if (const autograd::Autocast cast(kAttention, q, k, v, params.attn_mask); cast) {
    AttentionParams low = params;
    low.attn_mask = cast(params.attn_mask);
    return scaled_dot_product_attention(cast(q), cast(k), cast(v), low);
  }
  autograd::check_attention(kAttention.name, q, k, v, params);
  if (has_kernel(q, k, v, params)) return by_kernel(q, k, v, params);
  if (!params.enable_gqa) return by_operations(q, k, v, params);
  const Grouped groups(q, k, v, params);
  return by_operations(groups.q, groups.k, groups.v, groups.params).flatten(-4, -3);
}

}  // namespace tapestry
