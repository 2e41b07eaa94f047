// Tests that the attention kernels match attention in f64 with the whole matrix of scores, for ragged sizes,
// layouts, masks, dropout and extremes.
#include "tapestry/kernels/cuda/attention.cuh"

#include "tapestry/kernels/cuda/attention_backward.cuh"
#include "tests/emulated/attention.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

/// The rounding of products' operands and of results, relative to them.
template <class T>
constexpr double kRounding = std::is_same_v<T, float>  ? 0
                             : std::is_same_v<T, Half> ? 0x1p-11
                                                       : 0x1p-8;

/// Checks the elements of `got` that belong to rows against dense values, and that the gaps are untouched.
template <class T>
void check_rows(const char* what, const Layout& layout, const Block<T>& got, const Values& want,
                const Values& size, double relative) {
  CAPTURE(what);
  const Values wanted = layout.spread(want), sizes = layout.spread(size);
  std::size_t bad = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double value = static_cast<double>(static_cast<float>(got[i]));
    const double tolerance = relative * sizes[i] + kRounding<T> * std::abs(wanted[i]) + 0x1p-24;
    const bool fits = std::isnan(wanted[i]) ? std::isnan(value) : std::abs(value - wanted[i]) <= tolerance;
    if (fits || ++bad > 3) continue;
    CAPTURE(i, value, wanted[i], tolerance);
    CHECK(fits);
  }
  CHECK(bad == 0);
}

/// Runs all kernels of a case in one thread order. backward: also the gradients.
template <class T>
void check_kernels(const AttentionCase& c, const AttentionInputs& in, const AttentionReference& r,
                   std::int64_t wanted_blocks, bool backward) {
  const AttentionShape& s = c.shape;
  const Layout of_q(c, s.batch, s.heads, s.queries, s.width), of_k(c, s.batch, s.groups, s.keys, s.width),
      of_v(c, s.batch, s.groups, s.keys, s.value_width), of_y(c, s.batch, s.heads, s.queries, s.value_width);
  const Block<T> q(of_q.spread(in.q), c.shift), k(of_k.spread(in.k), c.shift), v(of_v.spread(in.v), c.shift),
      dy(of_y.spread(in.dy), c.shift);
  const Values nothing_q(of_q.elements, kNaN), nothing_k(of_k.elements, kNaN), nothing_v(of_v.elements, kNaN),
      nothing_y(of_y.elements, kNaN);
  const Block<T> y(nothing_y, c.shift), dq(nothing_q, c.shift), dk(nothing_k, c.shift),
      dv(nothing_v, c.shift);
  const Block<float> logs(Values(r.log_sum_exp.size(), kNaN));
  const Block<T> added(c.mask == Mask::added ? in.mask : Values());
  const Block<bool> seen(c.mask == Mask::added ? Values() : in.mask);
  AttentionMask mask = mask_of(c);
  if (c.mask == Mask::added) mask.mask = added.data();
  else if (!in.mask.empty()) mask.mask = seen.data();

  // The exponents of weights have the rounding errors of scores. Weights, and the gradients of scores, are
  // rounded to T before products; delta comes from the rounded y.
  const double score = c.size * std::abs(c.scale) * std::sqrt(static_cast<double>(s.width));
  const double weights = kUnit * (16 * score + roundings(std::max(s.keys, s.queries)));
  gpu::launch_attention<T>({.shape = s,
                            .scale = c.scale,
                            .mask = mask,
                            .q = q.data(),
                            .k = k.data(),
                            .v = v.data(),
                            .q_strides = of_q.strides,
                            .k_strides = of_k.strides,
                            .v_strides = of_v.strides,
                            .y = y.data(),
                            .y_strides = of_y.strides,
                            .log_sum_exp = logs.data(),
                            .dropout = dropout_of(c)},
                           {}, wanted_blocks);
  check_rows("y", of_y, y, r.y, r.y_size, weights + kRounding<T>);
  Values log_error(r.log_sum_exp.size());
  for (std::size_t i = 0; i < log_error.size(); ++i)
    log_error[i] = 16 * score + roundings(s.keys) + 4 * std::abs(r.log_sum_exp[i]);
  check_close("log_sum_exp", logs, r.log_sum_exp, log_error);
  if (!backward) return;
  gpu::launch_attention_backward<T>({.shape = s,
                                     .scale = c.scale,
                                     .mask = mask,
                                     .q = q.data(),
                                     .k = k.data(),
                                     .v = v.data(),
                                     .y = y.data(),
                                     .dy = dy.data(),
                                     .q_strides = of_q.strides,
                                     .k_strides = of_k.strides,
                                     .v_strides = of_v.strides,
                                     .y_strides = of_y.strides,
                                     .dy_strides = of_y.strides,
                                     .log_sum_exp = logs.data(),
                                     .dq = dq.data(),
                                     .dk = dk.data(),
                                     .dv = dv.data(),
                                     .dq_strides = of_q.strides,
                                     .dk_strides = of_k.strides,
                                     .dv_strides = of_v.strides,
                                     .dropout = dropout_of(c)},
                                    {});
  check_rows("dq", of_q, dq, r.dq, r.dq_size, 2 * (weights + kRounding<T>));
  check_rows("dk", of_k, dk, r.dk, r.dk_size, 2 * (weights + kRounding<T>));
  check_rows("dv", of_v, dv, r.dv, r.dv_size, weights + kRounding<T>);
}

template <class T>
void check_case_of(const AttentionCase& c, const AttentionInputs& in, std::int64_t wanted_blocks) {
  const AttentionReference r = reference(c, in);
  in_each_order([&] { check_kernels<T>(c, in, r, wanted_blocks, false); });
}
template <class T>
void check_case(const AttentionCase& c, std::int64_t wanted_blocks) {
  const AttentionShape& s = c.shape;
  const char* const dtype = dtype_name(dtype_of<T>);
  CAPTURE(s.batch, s.heads, s.groups, s.queries, s.keys, s.width, s.value_width, int(c.mask), c.offset,
          c.by_rows, c.shift, c.gap, c.threshold, dtype);
  const AttentionInputs in = inputs_of(c);
  const AttentionReference r = reference(c, in);
  in_each_order([&] { check_kernels<T>(c, in, r, wanted_blocks, wanted_blocks == 1); });
}
/// With one wanted block the keys are not divided, and the gradients are checked too. Under ThreadSanitizer,
/// one of the dtypes.
void check_all(const AttentionCase& c, std::int64_t wanted_blocks = 1) {
  static unsigned calls = 0;
  const unsigned chosen = next_choice(calls, 4);
  if (!kOnlyRaces || chosen == 0) check_case<float>(c, wanted_blocks);
  if (!kOnlyRaces || chosen == 1) check_case<Half>(c, wanted_blocks);
  if (!kOnlyRaces || chosen >= 2) check_case<BFloat16>(c, wanted_blocks);
}

constexpr std::uint32_t kHalf = 1u << 23;  // drops half of the weights

}  // namespace

TEST_CASE("attention kernels: ragged queries, keys and widths give the values of f64") {
  check_all({.shape = {1, 1, 1, 1, 1, 1, 1}});
  check_all({.shape = {1, 1, 1, 66, 70, 64, 64}});
  check_all({.shape = {1, 1, 1, 40, 63, 24, 40}, .by_rows = true});  // one key is missing in a tile
  check_all({.shape = {2, 1, 1, 17, 40, 100, 128}});
  check_all({.shape = {1, 2, 1, 66, 70, 32, 25}});
  check_all({.shape = {1, 1, 1, 70, 67, 96, 96}});
  check_all({.shape = {1, 1, 1, 33, 40, 72, 90}, .by_rows = true});
}

TEST_CASE("attention kernels: groups of heads, and heads within rows, give the values of f64") {
  check_all({.shape = {2, 4, 2, 18, 35, 16, 16}, .by_rows = true});
  check_all({.shape = {1, 3, 1, 9, 70, 100, 8}});
}

TEST_CASE("attention kernels: rows that are misaligned or have gaps give the same values") {
  check_all({.shape = {1, 2, 2, 20, 34, 16, 24}, .shift = 1});
  check_all({.shape = {1, 2, 1, 20, 34, 17, 23}, .by_rows = true, .gap = 3});
  check_all({.shape = {1, 1, 1, 5, 9, 80, 65}, .gap = 8});
  check_all({.shape = {1, 1, 1, 5, 9, 96, 31}, .shift = 1});
}

TEST_CASE("attention kernels: causal masks, also after a cache, give the values of f64") {
  check_all({.shape = {1, 1, 1, 140, 130, 32, 32}, .mask = Mask::causal});
  check_all({.shape = {1, 1, 1, 70, 133, 64, 64}, .mask = Mask::causal, .offset = 63});
  check_all({.shape = {1, 1, 1, 3, 40, 128, 128}, .mask = Mask::causal, .offset = 1000});
  check_all({.shape = {1, 1, 1, 20, 140, 32, 32}, .mask = Mask::causal});  // no query sees the last blocks
}

TEST_CASE("attention kernels: masks that hide, or add to, scores give the values of f64") {
  check_all({.shape = {2, 2, 1, 20, 70, 40, 16}, .mask = Mask::seen});
  check_all({.shape = {2, 2, 2, 20, 70, 16, 16}, .mask = Mask::seen_by_key});
  check_all({.shape = {2, 2, 2, 20, 37, 16, 72}, .mask = Mask::added});
  check_all({.shape = {1, 1, 1, 20, 37, 104, 16}, .mask = Mask::added});
}

TEST_CASE("attention kernels: scales that are negative or 0 give the values of f64") {
  check_all({.shape = {1, 1, 1, 20, 40, 16, 16}, .mask = Mask::causal, .scale = -0.5});
  check_all({.shape = {1, 1, 1, 20, 40, 16, 16}, .scale = 0});
}

TEST_CASE("attention kernels: few queries whose keys are divided give the values of f64") {
  check_all({.shape = {1, 2, 1, 1, 570, 16, 20}}, 40);
  check_all({.shape = {1, 1, 1, 3, 530, 72, 64}, .mask = Mask::causal, .offset = 300}, 40);
  check_all({.shape = {1, 1, 1, 2, 530, 16, 16}, .mask = Mask::seen}, 40);
}

TEST_CASE("attention kernels: dropout keeps the weights that the contract names") {
  check_all({.shape = {2, 2, 1, 18, 37, 16, 16}, .threshold = kHalf});
  check_all({.shape = {1, 2, 1, 18, 37, 40, 16}, .threshold = kHalf});
  check_all({.shape = {1, 1, 1, 18, 37, 104, 16}, .threshold = kHalf});
  check_all({.shape = {1, 2, 2, 18, 36, 72, 16}, .mask = Mask::causal, .threshold = kHalf / 2});
  check_all({.shape = {1, 1, 1, 2, 530, 16, 16}, .threshold = kHalf}, 40);
  check_all({.shape = {1, 1, 1, 5, 6, 16, 16}, .threshold = 2 * kHalf});  // drops everything
}

TEST_CASE("attention kernels: scores of ten thousand give the values of f64") {
  check_all({.shape = {1, 1, 1, 40, 100, 64, 16}, .mask = Mask::causal, .offset = 60, .size = 4096});
}

TEST_CASE("attention kernels: NaN and infinities reach the queries that see them, and no others") {
  for (const bool infinite : {false, true})
    for (const bool in_key : {false, true}) {
      const AttentionCase c{
          .shape = {1, 2, 2, 70, 80, 16, 16}, .mask = in_key ? Mask::causal : Mask::none, .offset = 10};
      AttentionInputs in = inputs_of(c);
      // In the first key of the second tile of head 0, or in the last query of head 1.
      const std::size_t at = in_key ? 64 * 16 + 3 : (2 * 70 - 1) * 16;
      (in_key ? in.k : in.q)[at] = infinite ? kInfinity : kNaN;
      const AttentionReference r = reference(c, in);
      CAPTURE(infinite, in_key);
      CHECK(std::isnan(r.y.front()) == false);
      in_each_order([&] {
        check_kernels<float>(c, in, r, 1, !in_key);
        check_kernels<BFloat16>(c, in, r, 1, !in_key);
      });
    }
  // Keys whose scores are -inf by themselves count as hidden only if there is a mask.
  AttentionCase c{.shape = {1, 1, 1, 2, 300, 8, 8}, .mask = Mask::seen_by_key};
  for (const Mask mask : {Mask::seen_by_key, Mask::none})
    for (const std::int64_t wanted : {1, 40}) {
      c.mask = mask;
      AttentionInputs in = inputs_of(c);
      for (double& x : in.mask) x = 1;
      for (double& x : in.q) x = 1;
      for (double& x : in.k) x = -kInfinity;
      check_case_of<float>(c, in, wanted);
      check_case_of<Half>(c, in, wanted);
    }
}

TEST_CASE("attention kernels: empty arrays launch nothing that reads them") {
  for (const AttentionShape& s : {AttentionShape{0, 2, 2, 3, 3, 8, 8}, AttentionShape{2, 2, 2, 0, 3, 8, 8}}) {
    const AttentionCase c{.shape = s};
    const AttentionInputs in = inputs_of(c);
    check_kernels<float>(c, in, reference(c, in), 1, true);  // dk and dv of keys that no query sees are 0
  }
}

TEST_CASE("attention kernels: width and number of blocks choose the kernels") {
  const auto kernels = [](const AttentionShape& shape, std::int64_t wanted) {
    const AttentionCase c{.shape = shape};
    const AttentionInputs in = inputs_of(c);
    const AttentionReference r = reference(c, in);
    const Block<BFloat16> x(1 << 16);
    const Block<float> logs(1 << 12);
    const AttentionStrides strides{shape.heads * shape.keys * shape.width, shape.keys * shape.width,
                                   shape.width};
    return kernels_of([&] {
      gpu::launch_attention<BFloat16>({.shape = shape,
                                       .scale = 1,
                                       .mask = {},
                                       .q = x.data(),
                                       .k = x.data(),
                                       .v = x.data(),
                                       .q_strides = strides,
                                       .k_strides = strides,
                                       .v_strides = strides,
                                       .y = x.data(),
                                       .y_strides = strides,
                                       .log_sum_exp = logs.data()},
                                      {}, wanted);
    });
  };
  CHECK_THAT(kernels({1, 1, 1, 4, 600, 64, 64}, 1),
             ContainsSubstring("Li64E") && !ContainsSubstring("attention_merge"));
  CHECK_THAT(kernels({1, 1, 1, 4, 400, 32, 32}, 1), ContainsSubstring("Li32E"));
  CHECK_THAT(kernels({1, 1, 1, 4, 400, 33, 8}, 1), ContainsSubstring("Li64E"));
  CHECK_THAT(kernels({1, 1, 1, 4, 400, 65, 64}, 1), ContainsSubstring("Li96E"));
  CHECK_THAT(kernels({1, 1, 1, 4, 400, 64, 96}, 1), ContainsSubstring("Li96E"));
  CHECK_THAT(kernels({1, 1, 1, 4, 400, 97, 64}, 1), ContainsSubstring("Li128E"));
  CHECK_THAT(kernels({1, 1, 1, 4, 400, 64, 128}, 1), ContainsSubstring("Li128E"));
  CHECK_THAT(kernels({1, 1, 1, 4, 600, 64, 64}, 2), ContainsSubstring("attention_merge"));
  CHECK(gpu::key_splits(1, 3, 264) == 1);  // too few keys
  CHECK(gpu::key_splits(1, 8, 264) == 2);  // 4 tiles each
  CHECK(gpu::key_splits(100, 800, 264) == 2);
  CHECK(gpu::key_splits(133, 800, 264) == 1);
  CHECK(gpu::key_splits(1, 800, 264) == 32);
}

TEST_CASE(
    "attention kernels: a column of chunks in 8 rows lies in different banks, and no place is used twice") {
  const auto check = []<class T, int kWidth>() {
    CAPTURE(dtype_name(dtype_of<T>), kWidth);
    constexpr int kLine = 128 / static_cast<int>(sizeof(T));  // the elements of all banks
    std::vector<int> uses(64 * kWidth);
    for (int row = 0; row < 64; row += 8)
      for (int column = 0; column < kWidth; column += gpu::kChunkOf<T>) {
        unsigned banks = 0;
        for (int r = row; r < row + 8; ++r)
          banks |= 1u << gpu::tile_at<T, kWidth>(r, column) % kLine / gpu::kChunkOf<T>;
        CHECK(banks == 0xff);
      }
    for (int row = 0; row < 64; ++row)
      for (int column = 0; column < kWidth; ++column) {
        const int at = gpu::tile_at<T, kWidth>(row, column);
        REQUIRE(at >= row * kWidth);
        REQUIRE(at < (row + 1) * kWidth);
        ++uses[static_cast<std::size_t>(at)];
        if constexpr (sizeof(T) == 2)
          if (column % 16 == 0 && row < 16)
            CHECK(gpu::tile_behind<T, kWidth>(gpu::tile_at<T, kWidth>(row, 8), column) ==
                  gpu::tile_at<T, kWidth>(row, 8 + column));
      }
    CHECK(std::count(uses.begin(), uses.end(), 1) == 64 * kWidth);
  };
  const auto widths = [&]<class T>() {
    check.template operator()<T, 32>();
    check.template operator()<T, 64>();
    check.template operator()<T, 96>();
    check.template operator()<T, 128>();
  };
  widths.template operator()<float>();
  widths.template operator()<BFloat16>();
}

TEST_CASE("attention kernels: sizes beyond the kernel's are refused") {
  const Block<float> x(1);
  AttentionArgs args{.shape = {1, 1, 1, 1, 1, 129, 1},
                     .scale = 1,
                     .mask = {},
                     .q = x.data(),
                     .k = x.data(),
                     .v = x.data(),
                     .q_strides = {},
                     .k_strides = {},
                     .v_strides = {},
                     .y = x.data(),
                     .y_strides = {},
                     .log_sum_exp = x.data()};
  CHECK_THROWS_WITH(gpu::launch_attention<float>(args, {}), ContainsSubstring("widths 129 and 1"));
  args.shape = {1, 1, 1, 1, std::int64_t{1} << 30, 1, 1};
  CHECK_THROWS_WITH(gpu::launch_attention<float>(args, {}), ContainsSubstring("fewer than 2^29"));
}
