// The kernels around cuDNN's attention, which no operation launches without cuDNN: the bias of a mask, the
// queries that see no key, and logarithms.
#include "tapestry/kernels/cuda/attention_bias.h"

#include <cmath>

#include "tapestry/core/stream.h"
#include "tests/device/compare.h"

using namespace device_tests;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;

namespace {

/// A mask with gaps between its rows: which dimensions it has, and whether it adds or hides.
struct Case {
  AttentionShape s;
  bool by_batch, by_head, by_query, adds, causal;
  std::int64_t offset = 0;
};

/// Whether the mask hides a key. All keys of the second row of the mask are hidden, and only the last key of
/// the third row is not.
bool hidden(std::int64_t row, std::int64_t key, std::int64_t keys) {
  return row == 1 || (row == 2 && key + 1 < keys) || (row + key) % 5 == 3;
}

void check(const Case& c, DType dtype) {
  const AttentionShape& s = c.s;
  CAPTURE(s.batch, s.heads, s.queries, s.keys, c.by_batch, c.by_head, c.by_query, c.adds, c.causal, dtype);
  const std::int64_t pitch = s.keys + 3;  // of the mask
  AttentionMask mask{.causal = c.causal, .offset = c.offset};
  const std::int64_t queries = c.by_query ? s.queries : 1, heads = c.by_head ? s.heads : 1,
                     batches = c.by_batch ? s.batch : 1, rows = batches * heads * queries;
  mask.key = 1;
  if (c.by_query) mask.query = pitch;
  if (c.by_head) mask.head = queries * pitch;
  if (c.by_batch) mask.batch = heads * queries * pitch;
  std::vector<float> values(static_cast<std::size_t>(rows * pitch));
  for (std::int64_t i = 0; i < rows * pitch; ++i) {
    const bool hides = i % pitch < s.keys && hidden(i / pitch, i % pitch, s.keys);
    values[static_cast<std::size_t>(i)] =
        c.adds ? hides ? -INFINITY : static_cast<float>(i % 7) - 3 : static_cast<float>(!hides);
  }
  const Tensor masks = tensor(values).to(c.adds ? dtype : DType::boolean).to(kGpu);
  mask.mask = masks;
  const gpu::AttentionBias shape(s, mask);
  REQUIRE(shape.rows() == rows);
  REQUIRE(shape.pitch % 8 == 0);
  REQUIRE(shape.pitch - s.keys < 8);

  const AttentionStrides of_y{s.queries * s.heads * (s.value_width + 1), s.value_width + 1,
                              s.heads * (s.value_width + 1)};
  const Tensor bias = zeros({rows * shape.pitch}, {dtype, kGpu}),
               y = full({s.batch * of_y.batch}, 7, {dtype, kGpu}), first = zeros({rows}, {DType::i64, kGpu}),
               logs = full({s.batch * s.heads * s.queries}, 3.0, kGpu), finite = zeros_like(logs);
  const LaunchContext context{kGpu, current_stream(kGpu).native()};
  const gpu::AttentionBiasKernels& kernels = gpu::attention_bias_kernels(dtype);
  kernels.bias(context, {shape, mask, bias, first.data<std::int64_t>()});
  kernels.blind(context, {s, shape, mask, first.data<std::int64_t>(), y, of_y, logs});
  kernels.logs(context, {logs.numel(), logs.data<float>(), finite.data<float>()});
  const auto of_bias = bias.cpu().to_float().to_vector<float>(),
             of_results = y.cpu().to_float().to_vector<float>(), of_logs = logs.cpu().to_vector<float>(),
             of_finite = finite.cpu().to_vector<float>();
  const auto firsts = first.cpu().to_vector<std::int64_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t want = s.keys;
    for (std::int64_t key = shape.pitch; key-- > 0;) {
      const float got = of_bias[static_cast<std::size_t>(row * shape.pitch + key)];
      if (key >= s.keys) {
        CHECK(got == 0);
      } else if (hidden(row, key, s.keys)) {
        CHECK(got == gpu::hidden_bias(dtype));
      } else {
        want = key;
        CHECK(got == (c.adds ? static_cast<float>((row * pitch + key) % 7) - 3 : 0));
      }
    }
    CHECK(firsts[static_cast<std::size_t>(row)] == want);
  }
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t q = 0; q < s.queries; ++q) {
        const std::int64_t row =
            ((c.by_batch ? b : 0) * heads + (c.by_head ? h : 0)) * queries + (c.by_query ? q : 0);
        bool sees = false;
        for (std::int64_t key = 0; key < s.keys; ++key)
          sees |= !hidden(row, key, s.keys) && (!c.causal || key <= q + c.offset);
        const auto at = static_cast<std::size_t>((b * s.heads + h) * s.queries + q);
        CHECK(of_logs[at] == (sees ? 3 : -INFINITY));
        // No difference to a score gives a weight, and none is NaN.
        CHECK((sees ? of_finite[at] == 3 : std::isfinite(of_finite[at]) && of_finite[at] > 1e4F));
        for (std::int64_t v = 0; v <= s.value_width; ++v)  // the element behind a row stays
          CHECK(of_results[static_cast<std::size_t>(b * of_y.batch + h * of_y.head + q * of_y.row + v)] ==
                (sees || v == s.value_width ? 7 : 0));
      }
}

}  // namespace

TEST_CASE("the bias of a mask, and the queries that see no key, for any dimensions of the mask") {
  if (no_gpu()) return;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    check({{2, 2, 2, 3, 37, 8, 8}, true, true, true, false, false}, dtype);
    check({{3, 2, 2, 5, 40, 8, 8}, true, false, false, false, false}, dtype);
    check({{2, 3, 3, 9, 7, 8, 16}, false, false, true, true, true, 1}, dtype);
    check({{2, 3, 3, 4, 9, 8, 8}, false, true, false, true, false}, dtype);
    check({{1, 1, 1, 6, 66, 8, 8}, false, false, false, false, false}, dtype);
    CHECK(std::exp(gpu::hidden_bias(dtype) + 100.0F) == 0);
  }
  const Tensor mask = zeros({8}, {DType::f32, kGpu}), bias = zeros({8}, {DType::f16, kGpu}),
               first = zeros({1}, {DType::i64, kGpu});
  AttentionMask m{.mask = mask, .key = 1};
  const AttentionShape s{1, 1, 1, 1, 8, 8, 8};
  CHECK_THROWS_AS(gpu::attention_bias_kernels(DType::f16)
                      .bias({kGpu, current_stream(kGpu).native()},
                            {gpu::AttentionBias(s, m), m, bias, first.data<std::int64_t>()}),
                  TypeError);
  CHECK(gpu::AttentionBias(s, {}).rows() == 0);
}
