// Attention by wgmma, against attention in f64 that stores its scores.
#if TAPESTRY_LIBRARY_HAS_CUDA
#include "tests/cuda_runtime/hopper.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tapestry/kernels/ops/attention.h"
#include "tapestry/tapestry.h"
#include "tapestry/tools/ptx/runtime/settings.h"

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Case {
  std::int64_t batch = 1, heads = 1, groups = 1, queries, keys, width = 64;
  bool causal = false;
  std::int64_t offset = 0;
};

struct Inputs {
  Tensor q, k, v;   // (batch, heads or groups, rows, width)
  Tensor all = {};  // what they are slices of
};
Tensor numbers(const Shape& sizes) { return (randn(sizes) * 0.9 + 0.2).to(DType::bf16); }

/// Slices of one (batch, rows, heads + 2 groups, width) array, as a layer with one projection makes them.
Inputs slices_of(const Case& c, const Tensor& all) {
  const auto part = [&](std::int64_t first, std::int64_t heads, std::int64_t rows) {
    return all.narrow(2, first, heads).narrow(1, 0, rows).transpose(1, 2);
  };
  return {part(0, c.heads, c.queries), part(c.heads, c.groups, c.keys),
          part(c.heads + c.groups, c.groups, c.keys), all};
}
Inputs slices(const Case& c) {
  return slices_of(c, numbers({c.batch, std::max(c.queries, c.keys), c.heads + 2 * c.groups, c.width}));
}
/// Arrays of their own.
Inputs arrays(const Case& c) {
  const auto array = [&](std::int64_t heads, std::int64_t rows) {
    return numbers({c.batch, heads, rows, c.width});
  };
  return {array(c.heads, c.queries), array(c.groups, c.keys), array(c.groups, c.keys)};
}
Inputs moved(const Case& c, const Inputs& in) {
  if (in.all.defined()) return slices_of(c, in.all.to(kFirst));
  return {in.q.to(kFirst), in.k.to(kFirst), in.v.to(kFirst)};
}

/// The result and the logarithms of sums of exponentials in f64. `spread` is the result with absolute values
/// of v, which the roundings of weights are multiplied by.
struct Reference {
  Tensor scores, y, spread, log_sum_exp;
};
Tensor of_heads(const Tensor& t, const Case& c) {
  return t.to(DType::f64).repeat_interleave(c.heads / c.groups, 1);
}
double scale_of(const Case& c) { return 1 / std::sqrt(static_cast<double>(c.width)); }
Reference reference(const Case& c, const Inputs& in) {
  Reference r;
  r.scores = matmul(in.q.to(DType::f64), of_heads(in.k, c).transpose(2, 3)) * scale_of(c);
  if (c.causal) {
    const Tensor query = arange(c.queries, {DType::i64}).reshape({c.queries, 1}),
                 key = arange(c.keys, {DType::i64});
    r.scores = r.scores.masked_fill(key > query + c.offset, -kInf);
  }
  const Tensor weights = softmax(r.scores, -1), v = of_heads(in.v, c);
  r.y = matmul(weights, v), r.spread = matmul(weights, v.abs());
  r.log_sum_exp = logsumexp(r.scores, {-1});
  return r;
}

struct Results {
  Tensor y, log_sum_exp;
};
enum Search { kNoRaces, kRaces };  // the search for races takes ten times as long as all other checks
/// Calls the slot on the machine.
Results attend(const Case& c, const Inputs& in, std::uint64_t seed = 0, Search search = kNoRaces) {
  const AllowWgmma allow;
  const Gpus gpus(1);
  stand_in::Settings settings;
  settings.seed = seed;
  settings.races = search == kRaces;
  stand_in::execute(settings);
  const auto strides = [](const Tensor& t) {
    return kernels::AttentionStrides{t.stride(0), t.stride(1), t.stride(2)};
  };
  const auto [q, k, v, all] = moved(c, in);
  const Tensor y = empty({c.batch, c.queries, c.heads, c.width}, {DType::bf16, kFirst}).transpose(1, 2);
  const Tensor logs = empty({c.batch, c.heads, c.queries}, {DType::f32, kFirst});
  kernels::attention(kFirst, DType::bf16,
                     {.shape = {c.batch, c.heads, c.groups, c.queries, c.keys, c.width, c.width},
                      .scale = scale_of(c),
                      .mask = {.causal = c.causal, .offset = c.offset},
                      .q = q,
                      .k = k,
                      .v = v,
                      .q_strides = strides(q),
                      .k_strides = strides(k),
                      .v_strides = strides(v),
                      .y = y,
                      .y_strides = strides(y),
                      .log_sum_exp = logs});
  const Results results{y.cpu().to(DType::f64), logs.cpu().to(DType::f64)};
  CHECK(ran("attention_wgmma"));
  CHECK_FALSE(ran("attention_forward"));
  return results;
}

double largest(const Tensor& t) { return t.max().item<double>(); }

/// Weights and results are rounded to bf16, each by at most 2^-8 of itself. All else is f32: products of
/// scores with an error of 2^-23 of the largest score, whose exponentials have that relative error.
void check(const Case& c, const Inputs& in, std::uint64_t seed = 0, Search search = kNoRaces) {
  CAPTURE(c.batch, c.heads, c.groups, c.queries, c.keys, c.width, c.causal, c.offset, seed);
  const Reference r = reference(c, in);
  const Results found = attend(c, in, seed, search);
  const double most = largest(r.scores.masked_fill(r.scores == -kInf, 0.0).abs());
  const double f32 = 0x1p-20 + 8 * most * 0x1p-23;
  const Tensor bound = (r.spread + r.y.abs()) * 0x1p-8 + r.spread * (f32 + 0x1p-17);
  CHECK(largest((found.y - r.y).abs() / bound) < 1);
  CHECK(largest((found.log_sum_exp - r.log_sum_exp).abs() / (r.log_sum_exp.abs() + 1)) < f32);
}

}  // namespace

TEST_CASE("wgmma attention gives the reference's results and logarithms for ragged tiles of any count") {
  manual_seed(31);
  const Case one{.queries = 72, .keys = 101}, ring{.queries = 136, .keys = 450};
  check(one, arrays(one));
  check(ring, arrays(ring), 3);  // goes round the ring of stages twice, with two tiles of queries
  const Case wide{.queries = 129, .keys = 260, .width = 128};
  check(wide, arrays(wide));
}

TEST_CASE("wgmma attention has no races") {
  manual_seed(35);
  const Case c{.queries = 64, .keys = 260, .causal = true, .offset = 196};
  check(c, arrays(c), 5, kRaces);
}

TEST_CASE("wgmma attention takes slices, groups of heads, and a causal mask with an offset") {
  manual_seed(32);
  // More tiles of queries than the GPU has multiprocessors, 4: blocks compute several.
  const Case c{.batch = 2, .heads = 4, .groups = 2, .queries = 70, .keys = 135, .causal = true, .offset = 65};
  check(c, slices(c), 1);
  const Case wide{.heads = 2, .queries = 130, .keys = 130, .width = 128, .causal = true};
  check(wide, slices(wide));
  const Case beyond{.queries = 150, .keys = 128, .causal = true};  // the last queries see all keys
  check(beyond, arrays(beyond));
}

TEST_CASE("wgmma attention with extreme scores gives what the reference gives") {
  manual_seed(33);
  const Case c{.queries = 64, .keys = 140};
  Inputs in = arrays(c);
  // Scores grow from about -1e5 to 1e5: without the running maximum, exponentials would overflow. Large
  // scores of f32 have absolute errors, so all weight goes to the last key.
  const Tensor ramp = arange(c.keys, {DType::f32}).reshape({1, 1, c.keys, 1}) * 16.0 - 1112.0;
  in.q = full({1, 1, c.queries, c.width}, 10.0).to(DType::bf16);
  in.k = ramp.expand({1, 1, c.keys, c.width}).contiguous().to(DType::bf16);
  {
    const Results found = attend(c, in);
    const Reference r = reference(c, in);
    CHECK(largest((found.y - r.y).abs() / (r.spread * 0x1p-7 + 1e-30)) < 1);
    CHECK(largest((found.log_sum_exp - r.log_sum_exp).abs()) < 0x1p-20 * largest(r.scores.abs()));
  }
  // The first tile's keys have scores of -inf; one query has -inf everywhere, and one a NaN.
  in = arrays(c);
  in.q = in.q.abs() + 0.5;
  in.k = in.k.clone();
  in.k.narrow(2, 0, 128).select(3, 0).fill_(-kInf);
  in.q.select(2, 5).select(2, 0).fill_(0);  // 0 * -inf
  in.q.select(2, 7).fill_(kInf);
  in.k.select(3, 1).fill_(-1.0);  // inf * -1, so that the score of query 7 is never +inf alone
  const Results found = attend(c, in);
  const Reference r = reference(c, in);
  const std::vector<double> y = found.y.contiguous().to_vector<double>(),
                            want = r.y.contiguous().to_vector<double>(),
                            spread = r.spread.contiguous().to_vector<double>();
  int wrong = 0;
  for (std::size_t i = 0; i < y.size(); ++i)
    wrong += std::isnan(want[i]) ? !std::isnan(y[i])
                                 : !(std::fabs(y[i] - want[i]) <= 0x1p-7 * (spread[i] + std::fabs(want[i])));
  CHECK(wrong == 0);
  CHECK(std::isnan(y[5 * 64]));
  CHECK_FALSE(std::isnan(y[6 * 64]));
}

TEST_CASE("the backward kernel computes gradients with the logarithms of wgmma attention") {
  manual_seed(34);
  const Case c{.heads = 2, .queries = 64, .keys = 80, .causal = true, .offset = 16};
  const Inputs in = arrays(c);
  const Tensor dy = numbers({1, 2, 64, 64});
  const auto gradients = [&](Device device, DType dtype) {
    std::vector<Tensor> leaves;
    for (const Tensor& t : {in.q, in.k, in.v}) leaves.push_back(t.to(device).to(dtype).set_requires_grad());
    const AttentionParams params{.is_causal = true, .causal_offset = 16, .enable_gqa = true};
    scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], params).backward(dy.to(device).to(dtype));
    std::vector<Tensor> results;
    for (const Tensor& t : leaves) results.push_back(t.grad().cpu().to(DType::f64));
    return results;
  };
  const std::vector<Tensor> want = gradients({DeviceType::cpu, 0}, DType::f64);
  const AllowWgmma allow;
  const Gpus gpus(1);
  stand_in::Settings settings;
  settings.races = false;
  stand_in::execute(settings);
  const std::vector<Tensor> found = gradients(kFirst, DType::bf16);
  CHECK(ran("attention_wgmma"));
  CHECK(ran("attention_gradients"));
  // y, p and ds are rounded to bf16, and the result once more.
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(largest((found[i] - want[i]).abs()) < 4 * 0x1p-8 * largest(want[i].abs()));
}

TEST_CASE("what wgmma attention cannot compute, the other kernel computes") {
  const AllowWgmma allow;
  const Gpus gpus(1);
  stand_in::Settings settings;
  settings.races = false;
  stand_in::execute(settings);
  const Tensor x = numbers({1, 1, 64, 64}).to(kFirst), wide = numbers({1, 1, 64, 65}).to(kFirst);
  const Tensor odd = wide.narrow(3, 1, 64);  // rows do not begin at multiples of 16 bytes
  const auto other = [&](const Tensor& q, const AttentionParams& params = {}) {
    scaled_dot_product_attention(q, q, q, params).cpu();
  };
  other(odd);
  other(x, {.attn_mask = ones({64, 64}, {DType::boolean, kFirst})});
  other(x, {.dropout_p = 0.5});
  other(x, {.scale = -1.0});
  other(x.to(DType::f16));
  other(x.narrow(2, 0, 63));
  other(x.narrow(3, 0, 32));
  CHECK_FALSE(ran("attention_wgmma"));
  other(x);
  CHECK(ran("attention_wgmma"));
}
#else
#include <cstdio>

#include "tests/support/catch.h"

TEST_CASE("without CUDA or with a static CUDA runtime, attention by wgmma is not executed") {
  std::printf("skipped: the library was not built with CUDA and the shared CUDA runtime\n");
}
#endif
