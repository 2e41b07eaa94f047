// Tests the forward kernels of conv2d, and the choice of tile and split that all conv2d kernels share.
#include "tests/emulated/conv.h"

using namespace tapestry;
using namespace emulated;
namespace conv = tapestry::kernels::cuda::conv;

namespace {

std::string kernels_for(const Conv2dShape& s, const Offsets& at = {}, const Tuning& tuning = {}) {
  const Zeros a(s, at);
  return kernels_of([&] {
    kernels::cuda::launch_conv2d(
        {}, {.shape = s, .x = a.x.data(), .weight = a.weight.data(), .y = a.y.data()}, tuning);
  });
}

}  // namespace

TEST_CASE("conv2d kernels: each tile with each loader, with and without split-K, gives the CPU's values") {
  each_tile({TileKind::wide, TileKind::half, TileKind::slim},
            [](const Tuning& tuning, std::int64_t k, bool last) {
              bool bias = false;
              for (const Conv2dShape& s : tiled_convolutions(k, last)) {
                bias = !bias;
                check_forward(s, bias, {}, tuning);
              }
            });
}

TEST_CASE("conv2d kernels: random ragged shapes give the CPU's values") {
  random_convolutions(50, 1, [](const Conv2dShape& s, bool bias, const Offsets& at, const Tuning& tuning) {
    check_forward(s, bias, at, tuning);
  });
}

TEST_CASE("conv2d kernels: grouped and depthwise convolutions give the CPU's values") {
  const std::int64_t several = 24;  // three channels of y per channel of x
  grouped_convolutions(70, 3, {8, several},
                       [](const Conv2dShape& s) { check_forward(s, s.dilation_h == 1); });
}

TEST_CASE("conv2d kernels: shapes of transposed convolutions and of conv1d give the CPU's values") {
  for (const Conv2dShape& s : transposed_and_lines()) check_forward(s, s.h == 1);
}

TEST_CASE("conv2d kernels: the largest allowed padding and dilation give the CPU's values") {
  largest_paddings([](const Conv2dShape& s) { check_forward(s, true); });
}

TEST_CASE("conv2d kernels: infinities and NaN affect only the outputs whose windows contain them") {
  for (Conv2dShape s : each_grouping()) {
    s.relu = true;
    Values x = numbers(x_size(s), 1), bias = numbers(s.k, 3);
    x[5] = kNaN;
    x[index_of(conv::input_strides(s), 1, 4, 2, 5)] = kNaN;  // where a tap past the last would read
    x[x.size() - 1] = kInfinity;
    x[x.size() / 2] = -kInfinity;
    x[x.size() / 3] = 1e30;
    bias[3] = -1e30;
    check_forward(s, x, numbers(weight_size(s), 2), bias);
  }
}

TEST_CASE("conv2d kernels: empty outputs launch nothing, and without input channels y is the bias") {
  const Conv2dShape s{.n = 2, .c = 4, .h = 5, .w = 5, .k = 4, .r = 3, .s = 3};
  Conv2dShape empty = s;
  empty.n = 0;
  CHECK(kernels_for(sized(empty)).empty());
  empty = s;
  empty.k = 0;
  CHECK(kernels_for(sized(empty)).empty());
  for (const bool last : {false, true}) {
    empty = s;
    empty.c = 0, empty.channels_last = last;
    check_forward(sized(empty), true);
    check_forward(sized(empty), false);
  }
}

TEST_CASE("conv2d kernels: an image or weight of 2^31 elements is refused") {
  Conv2dShape s = sized({.n = 1, .c = 1, .h = 1 << 16, .w = 1 << 15, .k = 1, .r = 1, .s = 1});
  CHECK_THROWS_WITH(kernels::cuda::launch_conv2d({}, {.shape = s}),
                    ContainsSubstring("[conv2d] an image of 2147483648 elements"));
  s = sized({.n = 1, .c = 1 << 16, .h = 1, .w = 1, .k = 1 << 15, .r = 1, .s = 1});
  CHECK_THROWS_WITH(kernels::cuda::launch_conv2d({}, {.shape = s}),
                    ContainsSubstring("a weight of 2147483648 elements"));
}

TEST_CASE("conv2d kernels: shape, layout and alignment choose the kernel") {
  const auto names = [](const Conv2dShape& s, const Offsets& at = {}, const Tuning& tuning = {}) {
    return kernels_for(sized(s), at, tuning);
  };
  const Conv2dShape one{.n = 1, .c = 8, .h = 4, .w = 4, .k = 8, .r = 1, .s = 1, .channels_last = true};
  CHECK_THAT(names(one), ContainsSubstring("PixelQuads") && ContainsSubstring("DenseLines") &&
                             !ContainsSubstring("pack_weight"));
  Conv2dShape s = one;
  s.stride_h = s.stride_w = 2;
  CHECK_THAT(names(s), ContainsSubstring("DenseLines") && !ContainsSubstring("pack_weight"));
  CHECK_THAT(names(one, {.weight = 1}), ContainsSubstring("PixelQuads") && ContainsSubstring("pack_weight"));
  CHECK_THAT(names(one, {.x = 1}), ContainsSubstring("PixelSingles"));
  s = one;
  s.r = s.s = 3;
  CHECK_THAT(names(s), ContainsSubstring("PixelQuads") && ContainsSubstring("DenseSteps") &&
                           ContainsSubstring("pack_weight") && !ContainsSubstring("sum_parts"));
  CHECK_THAT(names(s, {}, {TileKind::slim, 2}), ContainsSubstring("sum_parts"));
  s.channels_last = false;
  CHECK_THAT(names(s), ContainsSubstring("PixelSingles"));
  s = one;
  s.c = 6;
  CHECK_THAT(names(s), ContainsSubstring("PixelSingles"));
  s = one;
  s.groups = 8;
  CHECK_THAT(names(s), ContainsSubstring("9depthwiseIfLi4ELi1E") && !ContainsSubstring("conv2d_gather"));
  CHECK_THAT(names(s, {.x = 1}), ContainsSubstring("9depthwiseIfLi1ELi1E"));
  CHECK_THAT(names(s, {.y = 1}), ContainsSubstring("9depthwiseIfLi1ELi1E"));
  s.k = 16;
  CHECK_THAT(names(s), ContainsSubstring("9depthwiseIfLi1ELi1E"));
  s.channels_last = false;
  CHECK_THAT(names(s), ContainsSubstring("9depthwiseIfLi1ELi32E"));
}

TEST_CASE("conv2d kernels: the chosen tile and split fill the GPU for typical layers") {
  const auto choice = [](std::int64_t pixels, std::int64_t lines, std::int64_t depth) {
    const auto blocks = [&](const conv::TileCost& t) {
      return conv::ceil_div(pixels, t.rows) * conv::ceil_div(lines, t.cols);
    };
    return conv::choose_tuning(0, 3, blocks, static_cast<double>(depth) / 8,
                               static_cast<double>(pixels * lines));
  };
  // Layers of ResNet-50 with 64 images.
  CHECK(choice(64 * 56 * 56, 64, 576).tile == TileKind::half);
  CHECK(choice(64 * 56 * 56, 64, 576).parts == 1);
  CHECK(choice(64 * 56 * 56, 256, 64).tile == TileKind::wide);
  CHECK(choice(64 * 28 * 28, 128, 1152).tile == TileKind::wide);
  CHECK(choice(64 * 28 * 28, 128, 1152).parts == 1);
  CHECK(choice(64 * 7 * 7, 512, 4608).parts > 1);
  CHECK(choice(64 * 224 * 224, 16, 27).tile == TileKind::slim);
  CHECK(choice(49, 512, 4608).parts >= 8);  // one image
  CHECK(choice(1, 1, 8).parts == 1);
}

TEST_CASE("conv2d kernels: the weight gradient is split into enough blocks to fill the GPU") {
  const auto parts = [](std::int64_t rows, std::int64_t cols, std::int64_t pixels) {
    const auto blocks = [&](const conv::TileCost& t) {
      return conv::ceil_div(rows, t.rows) * conv::ceil_div(cols, t.cols);
    };
    const Tuning t =
        conv::choose_tuning(2, 4, blocks, static_cast<double>(pixels) / 8, static_cast<double>(rows * cols));
    return t.parts * blocks(conv::kTileCosts[t.tile == TileKind::wide ? 2 : 3]);
  };
  for (const auto& [rows, cols, pixels] : {std::tuple{64, 64, 64 * 56 * 56},
                                           {64, 576, 64 * 56 * 56},
                                           {128, 1152, 64 * 28 * 28},
                                           {64, 147, 64 * 112 * 112}})
    CHECK(parts(rows, cols, pixels) >= 240);
}
