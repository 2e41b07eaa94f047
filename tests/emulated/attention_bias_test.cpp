// Tests the kernels around cuDNN's attention: the bias of a mask, the queries that see no key, and
// logarithms.
#include "tapestry/kernels/cuda/attention_bias.cuh"

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

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

template <class T>
void check(const Case& c) {
  const AttentionShape& s = c.s;
  CAPTURE(s.batch, s.heads, s.queries, s.keys, c.by_batch, c.by_head, c.by_query, c.adds, c.causal);
  const std::int64_t pitch = s.keys + 3;  // of the mask
  AttentionMask mask{.causal = c.causal, .offset = c.offset};
  const std::int64_t queries = c.by_query ? s.queries : 1, heads = c.by_head ? s.heads : 1,
                     batches = c.by_batch ? s.batch : 1, rows = batches * heads * queries;
  mask.key = 1;
  if (c.by_query) mask.query = pitch;
  if (c.by_head) mask.head = queries * pitch;
  if (c.by_batch) mask.batch = heads * queries * pitch;
  const auto elements = static_cast<std::size_t>(rows * pitch);
  const Block<bool> seen(c.adds ? 0 : elements);
  const Block<T> added(c.adds ? elements : 0);
  for (std::int64_t i = 0; i < rows * pitch; ++i) {
    const bool hides = i % pitch < s.keys && hidden(i / pitch, i % pitch, s.keys);
    if (c.adds) added[static_cast<std::size_t>(i)] = T(hides ? -INFINITY : static_cast<float>(i % 7) - 3);
    else seen[static_cast<std::size_t>(i)] = !hides;
  }
  if (c.adds) mask.mask = added.data();
  else mask.mask = seen.data();
  const gpu::AttentionBias shape(s, mask);
  REQUIRE(shape.rows() == rows);
  REQUIRE(shape.pitch % 8 == 0);
  REQUIRE(shape.pitch - s.keys < 8);

  const AttentionStrides of_y{s.queries * s.heads * (s.value_width + 1), s.value_width + 1,
                              s.heads * (s.value_width + 1)};
  in_each_order([&] {
    const Block<T> bias(static_cast<std::size_t>(rows * shape.pitch)),
        y(static_cast<std::size_t>(s.batch * of_y.batch));
    const Block<std::int64_t> first(static_cast<std::size_t>(rows));
    const Block<float> logs(static_cast<std::size_t>(s.batch * s.heads * s.queries)), finite(logs.size());
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = T(7.0F);
    for (std::size_t i = 0; i < logs.size(); ++i) logs[i] = 3;
    gpu::launch_attention_bias<T>({}, {shape, mask, bias.data(), first.data()});
    for (std::int64_t row = 0; row < rows; ++row) {
      std::int64_t want = s.keys;
      for (std::int64_t key = shape.pitch; key-- > 0;) {
        const float got = static_cast<float>(bias[static_cast<std::size_t>(row * shape.pitch + key)]);
        if (key >= s.keys) {
          CHECK(got == 0);
        } else if (hidden(row, key, s.keys)) {
          CHECK(got == gpu::hidden_bias(dtype_of<T>));
        } else {
          want = key;
          CHECK(got == (c.adds ? static_cast<float>((row * pitch + key) % 7) - 3 : 0));
        }
      }
      CHECK(first[static_cast<std::size_t>(row)] == want);
    }

    gpu::launch_attention_blind<T>({}, {s, shape, mask, first.data(), y.data(), of_y, logs.data()});
    gpu::launch_attention_logs({}, {static_cast<std::int64_t>(logs.size()), logs.data(), finite.data()});
    std::size_t blind = 0;
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t q = 0; q < s.queries; ++q) {
          const std::int64_t row =
              ((c.by_batch ? b : 0) * heads + (c.by_head ? h : 0)) * queries + (c.by_query ? q : 0);
          bool sees = false;
          for (std::int64_t key = 0; key < s.keys; ++key)
            sees |= !hidden(row, key, s.keys) && (!c.causal || key <= q + c.offset);
          const auto at = static_cast<std::size_t>((b * s.heads + h) * s.queries + q);
          CHECK(logs[at] == (sees ? 3 : -INFINITY));
          CHECK(finite[at] == (sees ? 3 : gpu::kFiniteLog));
          for (std::int64_t v = 0; v <= s.value_width; ++v)  // the element behind a row stays
            CHECK(static_cast<float>(
                      y[static_cast<std::size_t>(b * of_y.batch + h * of_y.head + q * of_y.row + v)]) ==
                  (sees || v == s.value_width ? 7 : 0));
          blind += !sees;
        }
    CHECK((blind > 0) == (rows > 1 || c.causal));
  });
}

}  // namespace

TEST_CASE("attention bias kernels: masks that hide and that add, broadcast along any dimensions") {
  for_types<Half, BFloat16>([]<class T>() {
    check<T>({{2, 2, 2, 3, 37, 8, 8}, true, true, true, false, false});
    check<T>({{3, 2, 2, 5, 40, 8, 8}, true, false, false, false, false});
    check<T>({{2, 3, 3, 9, 7, 8, 16}, false, false, true, true, true, 1});
    check<T>({{2, 3, 3, 4, 9, 8, 8}, false, true, false, true, false});
    check<T>({{1, 1, 1, 6, 66, 8, 8}, false, false, false, false, false});
  });
}

TEST_CASE("attention bias kernels: hidden keys get a finite number whose weight is 0") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const float hidden = gpu::hidden_bias(dtype);
    CHECK(std::isfinite(hidden));
    CHECK(std::exp(hidden + 100.0F) == 0);
    CHECK(std::exp(hidden - gpu::kFiniteLog) == 0);
  }
  CHECK(static_cast<float>(Half(gpu::hidden_bias(DType::f16))) == gpu::hidden_bias(DType::f16));
  CHECK(static_cast<float>(BFloat16(gpu::hidden_bias(DType::bf16))) == gpu::hidden_bias(DType::bf16));
}

TEST_CASE("attention bias kernels: a mask of another dtype is refused, and no rows launch nothing") {
  const Block<float> mask(8);
  const Block<Half> bias(8);
  const Block<std::int64_t> first(1);
  AttentionMask m{.mask = mask.data(), .key = 1};
  const AttentionShape s{1, 1, 1, 1, 8, 8, 8};
  CHECK_THROWS_AS(
      gpu::launch_attention_bias<Half>({}, {gpu::AttentionBias(s, m), m, bias.data(), first.data()}),
      TypeError);
  CHECK(gpu::AttentionBias(s, {}).rows() == 0);
  CHECK(kernels_of([&] {
          gpu::launch_attention_bias<Half>({}, {gpu::AttentionBias(s, {}), {}, bias.data(), first.data()});
        }).empty());
}
