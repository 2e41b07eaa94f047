#include "tapestry/autograd/ops/attention.h"

#include <cmath>
#include <limits>

#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/dropout.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/softmax.h"

namespace tapestry {
namespace {

using autograd::check_matches;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const autograd::Op kAttention("scaled_dot_product_attention", autograd::Grad::twice, kFloats);

// Returns a bool mask (L, S) that is true where key j is not after query i.
Tensor causal_mask(std::int64_t queries, std::int64_t keys, Device device) {
  const TensorOptions options(DType::i64, device);
  return le(arange(keys, options), arange(queries, options).unsqueeze(1));
}

// Attention of (..., heads, L, E) and (..., groups, S, E): the heads of q become (groups, heads / groups), so
// that k and v broadcast over the heads of a group without a copy.
Tensor grouped(const Tensor& q, const Tensor& k, const Tensor& v, AttentionParams params) {
  const char* const op = kAttention.name;
  check(q.dim() >= 3 && k.dim() >= 3 && v.dim() >= 3, "[", op, "] q ", q.sizes(), ", k ", k.sizes(), ", v ",
        v.sizes(), "; with enable_gqa, expected (..., heads, L, E)");
  const std::int64_t heads = q.size(-3), groups = k.size(-3);
  check(v.size(-3) == groups && groups > 0 && heads % groups == 0, "[", op, "] q has ", heads,
        " heads, k has ", groups, " and v ", v.size(-3),
        "; the heads of k and v must be equal and divide those of q");
  const auto split = [&](const Tensor& t) { return t.unflatten(-3, {groups, heads / groups}); };
  if (params.mask.defined() && params.mask.dim() >= 3)
    params.mask = params.mask.size(-3) == heads ? split(params.mask) : params.mask.unsqueeze(-3);
  params.enable_gqa = false;
  return scaled_dot_product_attention(split(q), k.unsqueeze(-3), v.unsqueeze(-3), params).flatten(-4, -3);
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionParams& params) {
  const char* const op = kAttention.name;
  detail::check_defined(op, q, "q");
  detail::check_defined(op, k, "k");
  detail::check_defined(op, v, "v");
  kAttention.check_dtype(q.dtype());
  check_matches(op, q, k, "k");
  check_matches(op, q, v, "v");
  if (params.enable_gqa) return grouped(q, k, v, params);
  check(q.dim() >= 2 && k.dim() >= 2 && v.dim() >= 2, "[", op, "] q ", q.sizes(), ", k ", k.sizes(), ", v ",
        v.sizes(), "; expected (..., L, E), (..., S, E), (..., S, V)");
  check(q.size(-1) == k.size(-1), "[", op, "] q ", q.sizes(), " and k ", k.sizes(),
        " differ in their last size; it must be the same");
  check(k.size(-2) == v.size(-2), "[", op, "] k ", k.sizes(), " and v ", v.sizes(), " have ", k.size(-2),
        " and ", v.size(-2), " rows; there must be a value for each key");
  check(!(params.causal && params.mask.defined()), "[", op,
        "] both causal and a mask; put the causal one into the mask");
  if (params.mask.defined()) {
    check<TypeError>(params.mask.dtype() == DType::boolean || params.mask.dtype() == q.dtype(), "[", op,
                     "] mask has dtype ", params.mask.dtype(), ", expected bool or the input's ", q.dtype());
    check<DeviceError>(params.mask.device() == q.device(), "[", op, "] mask is on ", params.mask.device(),
                       " but the input is on ", q.device(), "; move it with to(device)");
  }

  // q is scaled instead of the scores, because it usually has fewer elements.
  const double scale = params.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  Tensor scores = matmul(q * scale, k.transpose(-2, -1));
  if (params.mask.defined())
    check(broadcast_shapes(op, params.mask.sizes(), scores.sizes()) == scores.sizes(), "[", op, "] mask ",
          params.mask.sizes(), " does not broadcast to the scores' shape ", scores.sizes(),
          "; give it at most these sizes");
  const Tensor mask = params.causal ? causal_mask(q.size(-2), k.size(-2), q.device()) : params.mask;
  const auto constant = [&](double value) { return scalar_tensor(value, {q.dtype(), q.device()}); };
  if (mask.defined())
    scores = mask.dtype() == DType::boolean ? where(mask, scores, constant(-kInfinity)) : scores + mask;

  // A mask can exclude all keys of a query. The softmax of its scores would be NaN, so the scores are set to
  // 0 (uniform weights), and the query's result is set to 0 afterwards.
  Tensor blind;
  if (params.mask.defined() && scores.numel() > 0) {
    const NoGradGuard guard;
    blind = eq(max(scores, -1, true).first, -kInfinity);
  }
  if (blind.defined()) scores = where(blind, constant(0), scores);
  const Tensor out = matmul(dropout(softmax(scores, -1), params.dropout, params.dropout > 0), v);
  return blind.defined() ? where(blind, constant(0), out) : out;
}

}  // namespace tapestry
