// Tests attention in parts against attention to all keys, in f64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/ops/attention_lse.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/generator.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Case {
  std::int64_t batch, heads, groups, queries, width, value_width;
  std::vector<std::int64_t> keys;  // of each part
  enum Mask { none, causal, seen, added } mask = none;
};

Tensor numbers(const Shape& sizes, DType dtype) { return (randn(sizes) * 0.8 + 0.3).to(dtype); }

// log(sum(exp(scores))), by operations in f64.
Tensor exact_lse(const Tensor& q, const Tensor& k, const Tensor& mask) {
  const std::int64_t shared = q.size(1) / k.size(1);
  const Tensor keys = k.to(DType::f64).repeat_interleave(shared, 1);
  Tensor scores =
      matmul(q.to(DType::f64), keys.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
  if (mask.defined())
    scores = mask.dtype() == DType::boolean ? where(mask, scores, full({}, -kInf, DType::f64))
                                            : scores + mask.to(DType::f64);
  return log(sum(exp(scores), -1));
}

// The largest error relative to the largest element. Elements that are infinite must be equal.
double error_of(const Tensor& value, const Tensor& expected) {
  const auto x = value.to_vector<double>(), y = expected.to_vector<double>();
  REQUIRE(x.size() == y.size());
  double size = 1e-3, error = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isinf(y[i]) && x[i] == y[i]) continue;
    size = std::max(size, std::abs(y[i]));
    error = std::max(error, std::isnan(x[i] - y[i]) ? kInf : std::abs(x[i] - y[i]));
  }
  return error / size;
}

Tensor mask_of(const Case& c, std::int64_t keys, DType dtype) {
  if (c.mask == Case::added) return randn({c.batch, 1, c.queries, keys}).to(dtype);
  if (c.mask == Case::causal) return le(arange(keys, DType::i64), arange(c.queries, DType::i64).unsqueeze(1));
  if (c.mask != Case::seen) return {};
  Tensor m = rand({c.batch, 1, c.queries, keys}) > 0.4;
  m.select(2, c.queries - 1).fill_(false);              // the last query sees nothing
  m.select(2, 0).narrow(-1, 0, keys / 2).fill_(false);  // the first one sees nothing of some parts
  return m;
}

void check_case(const Case& c, DType dtype) {
  CAPTURE(c.batch, c.heads, c.groups, c.queries, c.width, c.keys, int(c.mask), dtype);
  manual_seed(3);
  std::int64_t keys = 0;
  for (const std::int64_t n : c.keys) keys += n;
  // As a layer makes them: (batch, rows, heads, width) in memory.
  const Tensor q = numbers({c.batch, c.queries, c.heads, c.width}, dtype).transpose(1, 2),
               k = numbers({c.batch, keys, c.groups, c.width}, dtype).transpose(1, 2),
               v = numbers({c.batch, keys, c.groups, c.value_width}, dtype).transpose(1, 2),
               dout = numbers({c.batch, c.queries, c.heads, c.value_width}, dtype).transpose(1, 2);
  const Tensor mask = mask_of(c, keys, dtype);
  const bool gqa = c.heads != c.groups;

  AttentionWithLse total;
  std::int64_t begin = 0;
  std::vector<AttentionParams> params;
  const auto part = [&](const Tensor& t, std::int64_t first, std::int64_t n) {
    return t.narrow(2, first, n);
  };
  for (const std::int64_t n : c.keys) {
    AttentionParams p{.enable_gqa = gqa};
    if (mask.defined()) p.attn_mask = mask.narrow(-1, begin, n);
    if (c.mask == Case::causal && c.keys.size() == 1) p = {.is_causal = true, .enable_gqa = gqa};
    params.push_back(p);
    merge_attention(total, attention_with_lse(q, part(k, begin, n), part(v, begin, n), p));
    begin += n;
  }
  const Tensor out = total.out.to(dtype);
  Tensor dq = zeros(q.sizes(), DType::f64), dk = zeros(k.sizes(), DType::f64),
         dv = zeros(v.sizes(), DType::f64);
  begin = 0;
  for (std::size_t i = 0; i < c.keys.size(); ++i) {
    const std::int64_t n = c.keys[i];
    const AttentionGrads d =
        attention_with_lse_backward(dout, q, part(k, begin, n), part(v, begin, n), out, total.lse, params[i]);
    CHECK(d.dq.dtype() == dtype);
    dq.add_(d.dq.to(DType::f64));
    part(dk, begin, n).copy_(d.dk.to(DType::f64));
    part(dv, begin, n).copy_(d.dv.to(DType::f64));
    begin += n;
  }

  std::vector<Tensor> exact;
  for (const Tensor& t : {q, k, v}) exact.push_back(t.to(DType::f64).set_requires_grad());
  AttentionParams whole{.enable_gqa = gqa};
  if (mask.defined()) whole.attn_mask = mask.dtype() == DType::boolean ? mask : mask.to(DType::f64);
  const Tensor y = scaled_dot_product_attention(exact[0], exact[1], exact[2], whole);
  y.backward(dout.to(DType::f64));

  // As in attention_kernel_test: scores of at most about 8 have an error of width eps 8, and sums add
  // roundings. Each of the parts is rounded to 16 bits before it is merged, with weights whose sum is 1.
  const double eps = dtype == DType::f64 ? 0x1p-52 : 0x1p-23;
  const double sums =
      eps * (8 * static_cast<double>(c.width) + 4 * std::sqrt(static_cast<double>(keys + c.queries)));
  const double rounding = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
  const double parts = static_cast<double>(c.keys.size());
  CHECK(total.lse.dtype() == (dtype == DType::f64 ? DType::f64 : DType::f32));
  CHECK(error_of(total.lse, exact_lse(q, k, mask)) < sums);
  CHECK(error_of(total.out, y.detach()) < sums + 2 * rounding);
  CHECK(error_of(dq, exact[0].grad()) < sums + (4 + parts) * rounding);
  CHECK(error_of(dk, exact[1].grad()) < sums + 4 * rounding);
  CHECK(error_of(dv, exact[2].grad()) < sums + 2 * rounding);
}

}  // namespace

TEST_CASE("attention to parts of the keys, put together, is attention to all of them, with its gradients") {
  const std::vector<Case> cases = {
      {1, 1, 1, 1, 1, 1, {1}},
      {2, 3, 3, 40, 16, 16, {70}, Case::causal},
      {2, 4, 2, 33, 24, 8, {50, 1, 140}},
      {1, 4, 1, 130, 16, 16, {65, 0, 65}, Case::causal},
      {2, 2, 2, 21, 8, 12, {40, 40}, Case::seen},
      {1, 4, 2, 9, 8, 8, {10, 20, 3}, Case::added},
      {2, 2, 1, 3, 8, 8, {4, 130}, Case::seen},  // few queries
  };
  for (const Case& c : cases)
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) check_case(c, dtype);
}

TEST_CASE("attention in parts refuses what it cannot do") {
  const Tensor q = zeros({1, 4, 3, 8}), k = zeros({1, 2, 5, 8}), v = zeros({1, 2, 5, 8});
  const AttentionParams gqa{.enable_gqa = true};
  CHECK_THROWS_WITH(attention_with_lse(q, k, v),
                    ContainsSubstring("[attention_with_lse] q has 4 heads, k 2"));
  CHECK_THROWS_WITH(attention_with_lse(q[0], k[0], v[0], gqa),
                    ContainsSubstring("expected (batch, heads, rows"));
  CHECK_THROWS_WITH(attention_with_lse(q, k, v, {.dropout_p = 0.5, .enable_gqa = true}),
                    ContainsSubstring("attention in parts has no dropout"));
  CHECK_THROWS_AS(attention_with_lse({}, k, v, gqa), ValueError);
  CHECK_THROWS_AS(attention_with_lse(q, k.to(DType::f64), v, gqa), TypeError);
  const AttentionWithLse y = attention_with_lse(q, k, v, gqa);
  CHECK_THROWS_WITH(attention_with_lse_backward(y.out, q, k, v, y.out, y.lse[0], gqa),
                    ContainsSubstring("and the same without the last dimension"));
  CHECK_THROWS_AS(attention_with_lse_backward(y.out, q, k, v, y.out.to(DType::f64), y.lse, gqa), TypeError);
  CHECK_THROWS_AS(attention_with_lse_backward(y.out, q, k, v, y.out, {}, gqa), ValueError);
}
