// Tests the attention kernel of CPUs, which never stores the scores, against attention in f64, which does.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/ops/attention.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/threads.h"
#include "tapestry/kernels/cpu/matmul_amx.h"
#include "tapestry/kernels/ops/attention.h"
#include "tests/support/amx.h"
#include "tests/support/catch.h"
#include "tests/support/kernel_paths.h"

using namespace tapestry;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  std::int64_t batch, heads, groups, queries, keys, width, value_width;
  enum Mask { none, causal, seen, seen_by_head, seen_by_query, added, added_by_columns } mask = none;
};

// Values with full mantissas and a mean that is not 0.
Tensor numbers(const Shape& sizes, DType dtype) { return (randn(sizes) * 0.8 + 0.3).to(dtype); }

// The tensor with its heads and rows exchanged in memory, as a layer makes it.
Tensor by_rows(const Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); }

Tensor mask_of(const Case& c, DType dtype) {
  switch (c.mask) {
    case Case::seen: {
      Tensor m = rand({c.queries, c.keys}) > 0.4;
      m[c.queries - 1].fill_(false);  // the last query sees nothing
      return m;
    }
    case Case::seen_by_head:
      return rand({c.batch, c.heads, 1, c.keys}) > 0.3;
    case Case::seen_by_query:
      return rand({c.queries, 1}) > 0.3;
    case Case::added_by_columns:
      return randn({c.keys, c.queries}).to(dtype).t();
    case Case::added: {
      Tensor m = randn({c.batch, 1, c.queries, c.keys}).to(dtype);
      m.select(2, 0).fill_(-kInf);
      return m;
    }
    default:
      return {};
  }
}

struct Results {
  std::vector<Tensor> values;  // y, dq, dk, dv
};

Results attend(const std::vector<Tensor>& inputs, const Tensor& dy, const AttentionParams& params) {
  std::vector<Tensor> leaves;
  for (const Tensor& t : inputs) leaves.push_back(t.detach().set_requires_grad());
  const Tensor y = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], params);
  y.backward(dy);
  return {{y.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()}};
}

// The largest error relative to the largest element.
double error_of(const Tensor& value, const Tensor& expected) {
  const Tensor e = expected.to(DType::f64);
  const double size = std::max(e.abs().max().item<double>(), 1e-3);
  return (value.to(DType::f64) - e).abs().max().item<double>() / size;
}

void check_case(const Case& c, DType dtype, bool rows) {
  CAPTURE(c.batch, c.heads, c.groups, c.queries, c.keys, c.width, c.value_width, int(c.mask), dtype, rows);
  manual_seed(7);
  std::vector<Tensor> inputs = {numbers({c.batch, c.heads, c.queries, c.width}, dtype),
                                numbers({c.batch, c.groups, c.keys, c.width}, dtype),
                                numbers({c.batch, c.groups, c.keys, c.value_width}, dtype)};
  Tensor dy = numbers({c.batch, c.heads, c.queries, c.value_width}, dtype);
  if (rows)
    for (Tensor* t : {&inputs[0], &inputs[1], &inputs[2], &dy}) *t = by_rows(*t);
  AttentionParams params{
      .attn_mask = mask_of(c, dtype), .is_causal = c.mask == Case::causal, .enable_gqa = c.heads != c.groups};
  const Results result = attend(inputs, dy, params);
  std::vector<Tensor> exact;
  for (const Tensor& t : inputs) exact.push_back(t.to(DType::f64));
  if (params.attn_mask.defined() && params.attn_mask.dtype() == dtype)
    params.attn_mask = params.attn_mask.to(DType::f64);
  const Results expected = attend(exact, dy.to(DType::f64), params);
  // Scores of at most about 8 have an error of width eps 8, which is the relative error of the weights. The
  // sums over keys and queries add roundings of sqrt(n) eps. Results in 16 bits are rounded once more.
  const double eps = std::numeric_limits<float>::epsilon();
  const double f32 =
      eps * (8 * static_cast<double>(c.width) + 4 * std::sqrt(static_cast<double>(c.keys + c.queries)));
  const double rounding = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
  const char* const names[] = {"y", "dq", "dk", "dv"};
  for (std::size_t i = 0; i < 4; ++i) {
    INFO(names[i]);
    CHECK(result.values[i].sizes() == expected.values[i].sizes());
    // The gradients of q and k are products of differences p (dp - delta), where delta is a sum over the
    // rounded result. AMX's kernels also round the weights and these differences before the last sums.
    const double roundings =
        (i == 1 || i == 2 ? 4 : 1) + (dtype == DType::bf16 && kernels::cpu::amx_tiles() ? 1 : 0);
    CHECK(error_of(result.values[i], expected.values[i]) < f32 + rounding * roundings);
  }
}

const std::vector<Case> kCases = {
    {1, 1, 1, 1, 1, 1, 1},
    {2, 3, 3, 1, 300, 16, 16},  // few queries
    {1, 4, 2, 4, 129, 20, 8},
    {2, 2, 2, 5, 127, 5, 7, Case::causal},     // one block that is not full
    {1, 2, 1, 49, 128, 64, 64, Case::causal},  // one query in the second block
    {2, 4, 2, 200, 200, 40, 40, Case::causal},
    {1, 2, 2, 193, 385, 72, 33, Case::causal},  // two tasks, three blocks of keys
    {1, 1, 1, 50, 1100, 24, 24},                // the keys are divided between tasks of the backward pass
    {2, 2, 2, 60, 150, 16, 16, Case::seen},
    {2, 6, 3, 51, 140, 16, 24, Case::seen_by_head},
    {2, 4, 2, 3, 140, 16, 24, Case::seen},
    {2, 2, 2, 97, 131, 16, 16, Case::added},
    {2, 2, 2, 50, 131, 16, 16, Case::seen_by_query},
    {1, 2, 2, 50, 131, 16, 16, Case::added_by_columns},
    {1, 3, 1, 300, 90, 8, 8, Case::causal},     // later queries see all keys
    {1, 1, 1, 129, 129, 16, 16, Case::causal},  // one query sees the second block of keys, and one key of it
};

}  // namespace

TEST_CASE("attention kernel: values and gradients are those of f64") {
  REQUIRE(kernels::attention.has(DeviceType::cpu, DType::f32));
  for (const Case& c : kCases)
    for (const bool rows : {false, true}) check_case(c, DType::f32, rows);
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const std::size_t i : {1u, 2u, 5u, 9u, 11u}) check_case(kCases[i], dtype, i % 2 == 0);
}

TEST_CASE("attention kernel: in bf16 by AMX, values and gradients are those of f64") {
  const Amx amx;
  if (!amx.on()) return;
  for (const std::size_t i : {2u, 3u, 4u, 6u, 8u, 13u}) check_case(kCases[i], DType::bf16, i % 2 == 0);
  CHECK((amx_in_hardware() || Amx::products() > 0));
  CHECK(Amx::configured_threads() == 0);
}

TEST_CASE("attention kernel: AMX reads no key that no query sees, and the number of threads changes no bit") {
  const Amx amx;
  if (!amx.on()) return;
  manual_seed(5);
  const int threads = get_num_threads();
  for (const std::int64_t queries : {20, 45}) {  // even and odd
    const std::int64_t keys = queries + 60;
    std::vector<Tensor> inputs;
    for (const std::int64_t rows : {queries, keys, keys})
      inputs.push_back(numbers({1, 3, rows, 24}, DType::bf16));
    const Tensor dy = numbers({1, 3, queries, 24}, DType::bf16);
    for (const int i : {1, 2})
      inputs[i].narrow(2, queries, 60).fill_(std::numeric_limits<float>::quiet_NaN());
    std::vector<Results> results;
    for (const int count : {1, 3}) {
      set_num_threads(count);
      results.push_back(attend(inputs, dy, {.is_causal = true}));
    }
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(results[0].values[i].isnan().any().item<bool>() == false);
      CHECK(results[0].values[i].equal(results[1].values[i]));
    }
  }
  set_num_threads(threads);
}

TEST_CASE("attention kernel: inputs of two and three dimensions, and rows that are not contiguous") {
  const Tensor q = randn({2, 3, 20, 8}), k = randn({2, 3, 30, 8}), v = randn({2, 3, 30, 8});
  const Tensor y = scaled_dot_product_attention(q, k, v);
  CHECK(allclose(scaled_dot_product_attention(q[1], k[1], v[1]), y[1]));
  CHECK(allclose(scaled_dot_product_attention(q[1][2], k[1][2], v[1][2]), y[1][2]));
  const auto columns = [](const Tensor& t) { return t.transpose(2, 3).contiguous().transpose(2, 3); };
  CHECK(allclose(scaled_dot_product_attention(columns(q), columns(k), columns(v)), y));
  const Tensor wide = randn({2, 3, 20, 24});  // the three operands in one tensor
  const auto parts = wide.chunk(3, -1);
  CHECK(allclose(
      scaled_dot_product_attention(parts[0], parts[1], parts[2]),
      scaled_dot_product_attention(parts[0].contiguous(), parts[1].contiguous(), parts[2].contiguous())));
}

TEST_CASE("attention kernel: extreme scores") {
  SECTION("large scores do not overflow") {
    const Tensor q = full({1, 1, 60, 4}, 1e4), k = full({1, 1, 200, 4}, 1e4), v = randn({1, 1, 200, 4});
    const Tensor y = scaled_dot_product_attention(q, k, v);
    CHECK(allclose(y, v.mean(2, true).expand({1, 1, 60, 4}), 1e-5, 1e-5));
    CHECK(allclose(scaled_dot_product_attention(-q, k, v), y, 1e-5, 1e-5));
  }
  SECTION("NaN reaches the queries that see it, and no others") {
    for (const std::int64_t queries : {3, 60}) {
      Tensor q = randn({1, 1, queries, 4}), k = randn({1, 1, 60, 4});
      k.index_put_({0, 0, 1}, std::nanf(""));
      const Tensor y = scaled_dot_product_attention(q, k, randn({1, 1, 60, 4}), {.is_causal = true});
      CHECK_FALSE(isnan(y.narrow(2, 0, 1)).any().item<bool>());
      CHECK(isnan(y.narrow(2, 1, queries - 1)).all().item<bool>());
    }
  }
  SECTION("the first block of keys may be hidden") {
    const Tensor q = randn({1, 1, 60, 4}), k = randn({1, 1, 300, 4}), v = randn({1, 1, 300, 4});
    Tensor mask = ones({60, 300}, DType::boolean);
    mask.narrow(1, 0, 200).fill_(false);
    CHECK(allclose(scaled_dot_product_attention(q, k, v, {.attn_mask = mask}),
                   scaled_dot_product_attention(q, k.narrow(2, 200, 100), v.narrow(2, 200, 100)), 1e-5,
                   1e-6));
  }
}

TEST_CASE("attention kernel: results depend neither on the number of threads nor on AVX-512") {
  const int before = get_num_threads();
  // Widths of one panel of the products, and of an odd number of them.
  for (const std::int64_t width : {16, 40}) {
    manual_seed(2);
    const std::vector<Tensor> inputs = {randn({2, 4, 210, width}), randn({2, 2, 700, width}),
                                        randn({2, 2, 700, width})};
    const Tensor dy = randn({2, 4, 210, width});
    std::vector<Results> results;
    for (const auto& [threads, wide] : {std::pair(1, true), {3, true}, {2, false}}) {
      set_num_threads(threads);
      const WideLoops use(wide);
      results.push_back(attend(inputs, dy, {.enable_gqa = true}));
    }
    set_num_threads(before);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(results[0].values[i].equal(results[1].values[i]));
      CHECK(results[0].values[i].equal(results[2].values[i]));
    }
  }
}

TEST_CASE("attention: the gradients of one projection's parts are not copied") {
  struct Parts {
    std::int64_t batch, rows, heads, groups, width, value_width;
  };
  for (const Parts& p : {Parts{2, 50, 4, 4, 16, 16}, {1, 30, 4, 2, 8, 24}, {2, 1, 2, 1, 8, 8}}) {
    CAPTURE(p.batch, p.rows, p.heads, p.groups, p.width, p.value_width);
    manual_seed(5);
    const std::vector<std::int64_t> sizes = {p.heads * p.width, p.groups * p.width, p.groups * p.value_width};
    const std::int64_t heads[] = {p.heads, p.groups, p.groups}, columns = sizes[0] + sizes[1] + sizes[2];
    const Tensor x = randn({p.batch, p.rows, columns}).set_requires_grad();
    const Tensor dy = randn({p.batch, p.heads, p.rows, p.value_width});
    const AttentionParams params{.is_causal = true, .enable_gqa = p.heads != p.groups};
    const auto parts = x.split(sizes, 2);
    std::vector<Tensor> q;
    std::vector<const float*> places(3);  // of the gradients of the parts
    for (std::size_t i = 0; i < 3; ++i) {
      parts[i].register_hook([&places, i](const Tensor& g) {
        places[i] = g.data<float>();
        return g;
      });
      q.push_back(parts[i].view({p.batch, p.rows, heads[i], -1}).transpose(1, 2));
    }
    const Tensor y = scaled_dot_product_attention(q[0], q[1], q[2], params);
    y.backward(dy);
    const float* const first = x.grad().data<float>();
    CHECK(places == std::vector{first, first + sizes[0], first + sizes[0] + sizes[1]});
    std::vector<Tensor> dense;
    for (const Tensor& t : q) dense.push_back(t.detach().contiguous());
    const Results expected = attend(dense, dy, params);
    std::vector<Tensor> joined;
    for (std::size_t i = 0; i < 3; ++i)
      joined.push_back(expected.values[i + 1].transpose(1, 2).reshape({p.batch, p.rows, sizes[i]}));
    CHECK(x.grad().equal(cat(joined, 2)));
  }
}

TEST_CASE("attention saves no matrix of scores") {
  const std::int64_t n = 512;
  const Tensor q = randn({1, 2, n, 8}).set_requires_grad(), k = randn({1, 2, n, 8}), v = randn({1, 2, n, 8});
  const auto before = memory_stats(kCPU).allocated;
  const Tensor y = scaled_dot_product_attention(q, k, v, {.is_causal = true});
  const auto added = memory_stats(kCPU).allocated - before;
  CHECK(added < 2 * n * n * 4);  // one matrix of scores
}
