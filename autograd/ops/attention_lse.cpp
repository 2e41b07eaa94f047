// Source: Dao et al., "FlashAttention-2", 2023, section 3.1; merging as in Liu et al., "Ring attention with
// blockwise transformers", 2023.
#include "tapestry/autograd/ops/attention_lse.h"

#include <algorithm>
#include <limits>

#include "tapestry/autograd/ops/internal/attention.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/reduce.h"

namespace tapestry {
namespace {

using autograd::Grouped;
using autograd::kernel_args;
using autograd::strides_of;
using autograd::with_rows;

constexpr double kNothingSeen = -std::numeric_limits<double>::infinity();

void check_lse_arguments(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionParams& params) {
  autograd::check_attention(op, q, k, v, params);
  check(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(0) == k.size(0) && q.size(0) == v.size(0), "[",
        op, "] q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(),
        "; expected (batch, heads, rows, width) with one batch size");
  check(params.enable_gqa || (k.size(1) == q.size(1) && v.size(1) == q.size(1)), "[", op, "] q has ",
        q.size(1), " heads, k ", k.size(1), " and v ", v.size(1), "; make them equal, or set enable_gqa");
  check(params.dropout_p == 0, "[", op, "] dropout_p is ", params.dropout_p,
        "; attention in parts has no dropout, so pass 0");
}

bool has_lse_kernel(const Tensor& q, const Tensor& k, const Tensor& v) {
  const DeviceType type = q.device().is_meta() ? DeviceType::cpu : q.device().type;
  return kernels::attention.has(type, q.dtype()) && q.numel() > 0 && k.numel() > 0 && v.numel() > 0 &&
         (type == DeviceType::cpu || std::max(q.size(-1), v.size(-1)) <= kernels::kMaxGpuAttentionWidth);
}

Tensor expanded_mask(const Tensor& q, const Tensor& k, const AttentionParams& params) {
  return params.attn_mask.defined() ? params.attn_mask.expand({q.size(0), q.size(1), q.size(2), k.size(2)})
                                    : Tensor();
}

// The dtype of log-sum-exp and of sums.
DType lse_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

Tensor constant_like(const Tensor& like, double value) {
  return scalar_tensor(value, {like.dtype(), like.device()});
}

// The scores after scale and mask, in the dtype lse_dtype().
Tensor scores_of(const Tensor& q, const Tensor& k, const AttentionParams& params) {
  const DType dtype = lse_dtype(q.dtype());
  const Tensor scores = matmul(q.to(dtype) * autograd::scale_of(q, params), k.to(dtype).transpose(-2, -1));
  const Tensor mask = params.is_causal
                          ? autograd::causal_mask(q.size(-2), k.size(-2), params.causal_offset, q.device())
                          : params.attn_mask;
  if (!mask.defined()) return scores;
  return mask.dtype() == DType::boolean ? where(mask, scores, constant_like(scores, kNothingSeen))
                                        : scores + mask.to(dtype);
}

// exp(scores - lse), and 0 for a query that sees no key.
Tensor weights_of(const Tensor& scores, const Tensor& lse) {
  const Tensor column = lse.unsqueeze(-1), blind = eq(column, kNothingSeen);
  return exp(where(blind, constant_like(scores, kNothingSeen),
                   scores - where(blind, constant_like(lse, 0), column)));
}

AttentionWithLse lse_by_operations(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionParams& params) {
  if (params.enable_gqa) {
    const Grouped groups(q, k, v, params);
    const AttentionWithLse parts = lse_by_operations(groups.q, groups.k, groups.v, groups.params);
    return {parts.out.flatten(-4, -3), parts.lse.flatten(-3, -2)};
  }
  const Tensor scores = scores_of(q, k, params);
  Shape rows = scores.sizes();
  const bool no_keys = rows.back() == 0;
  rows = Shape(rows.begin(), static_cast<std::size_t>(rows.size() - 1));
  const TensorOptions options(scores.dtype(), scores.device());
  const Tensor lse = no_keys ? full(rows, kNothingSeen, options) : logsumexp(scores, -1);
  return {matmul(weights_of(scores, lse), v.to(scores.dtype())).to(q.dtype()), lse};
}

AttentionGrads gradients_by_operations(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                       const Tensor& out, const Tensor& lse, const AttentionParams& params) {
  if (params.enable_gqa) {
    const Grouped groups(q, k, v, params);
    const AttentionGrads d = gradients_by_operations(
        groups.split(dout), groups.q, groups.k, groups.v, groups.split(out),
        lse.unflatten(-2, {groups.groups, groups.heads / groups.groups}), groups.params);
    return {d.dq.flatten(-4, -3), sum(d.dk, -3), sum(d.dv, -3)};
  }
  const Tensor p = weights_of(scores_of(q, k, params), lse);
  const DType dtype = p.dtype();
  const Tensor g = dout.to(dtype), delta = sum(g * out.to(dtype), -1, true);
  const Tensor ds = p * (matmul(g, v.to(dtype).transpose(-2, -1)) - delta) * autograd::scale_of(q, params);
  return {matmul(ds, k.to(dtype)).to(q.dtype()), matmul(ds.transpose(-2, -1), q.to(dtype)).to(q.dtype()),
          matmul(p.transpose(-2, -1), g).to(q.dtype())};
}

}  // namespace

AttentionWithLse attention_with_lse(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionParams& params) {
  const NoGradGuard no_grad;
  check_lse_arguments("attention_with_lse", q, k, v, params);
  if (!has_lse_kernel(q, k, v)) return lse_by_operations(q, k, v, params);
  const Tensor rows_q = with_rows(q), rows_k = with_rows(k), rows_v = with_rows(v);
  const Tensor out = empty({q.size(0), q.size(1), q.size(2), v.size(3)}, {q.dtype(), q.device()});
  const Tensor lse = empty({q.size(0), q.size(1), q.size(2)}, {DType::f32, q.device()});
  const Tensor mask = expanded_mask(q, k, params);
  auto args = kernel_args<kernels::AttentionArgs>(rows_q, rows_k, rows_v, params, mask);
  args.y = out, args.y_strides = strides_of(out), args.log_sum_exp = lse;
  kernels::attention(q.device(), q.dtype(), args);
  return {out, lse};
}

void merge_attention(AttentionWithLse& total, const AttentionWithLse& part) {
  const NoGradGuard no_grad;
  const Tensor out = part.out.to(part.lse.dtype());
  if (!total.out.defined()) {
    total = {out.is_same(part.out) ? out.clone() : out, part.lse.clone()};
    return;
  }
  // weight = 1 / (1 + exp(total - part)). Where neither has seen a key, both are 0.
  const Tensor blind = eq(part.lse, kNothingSeen);
  const Tensor weight = where(blind, constant_like(part.lse, 0), sigmoid(part.lse - total.lse)).unsqueeze(-1);
  total.out = total.out + weight * (out - total.out);
  const Tensor larger = maximum(total.lse, part.lse),
               shift = where(eq(larger, kNothingSeen), constant_like(larger, 0), larger);
  total.lse = shift + log(exp(total.lse - shift) + exp(part.lse - shift));
}

AttentionGrads attention_with_lse_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                           const Tensor& v, const Tensor& out, const Tensor& lse,
                                           const AttentionParams& params) {
  const NoGradGuard no_grad;
  const char* const op = "attention_with_lse_backward";
  check_lse_arguments(op, q, k, v, params);
  for (const auto& [t, what] :
       {std::pair<const Tensor&, const char*>{dout, "dout"}, {out, "out"}, {lse, "lse"}})
    detail::check_defined(op, t, what);
  const Shape sizes{q.size(0), q.size(1), q.size(2), v.size(3)};
  check(dout.sizes() == sizes && out.sizes() == sizes && lse.sizes() == Shape{sizes[0], sizes[1], sizes[2]},
        "[", op, "] dout ", dout.sizes(), ", out ", out.sizes(), " and lse ", lse.sizes(), "; expected ",
        sizes, " and the same without the last dimension");
  check<TypeError>(
      dout.dtype() == q.dtype() && out.dtype() == q.dtype() && lse.dtype() == lse_dtype(q.dtype()), "[", op,
      "] dout is ", dout.dtype(), ", out ", out.dtype(), " and lse ", lse.dtype(), "; expected ", q.dtype(),
      " and ", lse_dtype(q.dtype()), ", so convert them with to()");
  if (!has_lse_kernel(q, k, v)) return gradients_by_operations(dout, q, k, v, out, lse, params);
  const Tensor rows_q = with_rows(q), rows_k = with_rows(k), rows_v = with_rows(v), rows_out = with_rows(out),
               rows_dout = with_rows(dout), logs = lse.contiguous(), mask = expanded_mask(q, k, params);
  const auto like = [](const Tensor& t) { return empty(t.sizes(), {t.dtype(), t.device()}); };
  const AttentionGrads d{like(q), like(k), like(v)};
  auto args = kernel_args<kernels::AttentionBackwardArgs>(rows_q, rows_k, rows_v, params, mask);
  args.y = rows_out, args.y_strides = strides_of(rows_out);
  args.dy = rows_dout, args.dy_strides = strides_of(rows_dout);
  args.log_sum_exp = logs;
  args.dq = d.dq, args.dk = d.dk, args.dv = d.dv;
  args.dq_strides = strides_of(d.dq), args.dk_strides = strides_of(d.dk), args.dv_strides = strides_of(d.dv);
  kernels::attention_backward(q.device(), q.dtype(), args);
  return d;
}

}  // namespace tapestry
