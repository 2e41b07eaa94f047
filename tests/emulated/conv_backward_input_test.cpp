// Tests the input gradient kernels of conv2d.
#include "tests/emulated/conv.h"

using namespace tapestry;
using namespace emulated;
namespace conv = tapestry::kernels::cuda::conv;

TEST_CASE(
    "conv2d input gradient: each tile with each loader, with and without split-K, gives the CPU's values") {
  each_tile({TileKind::wide, TileKind::half, TileKind::slim},
            [](const Tuning& tuning, std::int64_t channels, bool last) {
              for (Conv2dShape s : tiled_convolutions(channels, last, 2)) {
                std::swap(s.c, s.k);  // the tiles are those of dx
                check_backward_input(s, {}, tuning);
              }
            });
}

TEST_CASE("conv2d input gradient: random ragged shapes give the CPU's values") {
  random_convolutions(50, 2, [](const Conv2dShape& s, bool, const Offsets& at, const Tuning& tuning) {
    check_backward_input(s, at, tuning);
  });
}

TEST_CASE(
    "conv2d input gradient: strides that share factors with dilations, or skip pixels, give the CPU's "
    "values") {
  for (const bool last : {false, true})
    for (const std::int64_t groups : {1, 8})
      for (const auto& [stride, dilation, window] :
           {std::tuple{2, 2, 3}, {4, 2, 3}, {3, 2, 2}, {4, 6, 3}, {6, 4, 4}, {4, 1, 4}, {5, 1, 2}, {2, 1, 1}})
        for (const std::int64_t padding : {0, 2})
          check_backward_input(sized({.n = 2,
                                      .c = 8,
                                      .h = 13,
                                      .w = 9,
                                      .k = 8,
                                      .r = window,
                                      .s = 1,
                                      .stride_h = stride,
                                      .stride_w = window,
                                      .padding_h = padding,
                                      .padding_w = padding,
                                      .dilation_h = dilation,
                                      .groups = groups,
                                      .channels_last = last}));
}

TEST_CASE("conv2d input gradient: more residue classes than one launch takes give the CPU's values") {
  for (const bool last : {false, true})
    for (const std::int64_t groups : {1, 4}) {
      Conv2dShape s = sized({.n = 1,
                             .c = 4,
                             .h = 14,
                             .w = 15,
                             .k = 4,
                             .r = 2,
                             .s = 3,
                             .stride_h = 6,
                             .stride_w = 5,
                             .groups = groups,
                             .channels_last = last});  // no window contains some of the pixels
      CHECK(conv::gradient_classes(s).pixels.size() == 6);
      check_backward_input(s);
      check_backward_input(s, {}, {TileKind::slim, 4});
      s.r = 7, s.s = 6, s = sized(s);
      CHECK(conv::gradient_classes(s).pixels.size() == 30);
      check_backward_input(s);
    }
}

TEST_CASE(
    "conv2d input gradient: a single class with gaps between rows is not stored four pixels at a time") {
  // With this stride, some rows of dx lie in no window. A store of four pixels at once would wrongly run from
  // one row into such a row.
  for (const bool last : {false, true})
    for (const std::int64_t window : {1, 3}) {
      const Conv2dShape s = sized({.n = 2,
                                   .c = 4,
                                   .h = 20,
                                   .w = 6,
                                   .k = 4,
                                   .r = 1,
                                   .s = window,
                                   .stride_h = 17,
                                   .channels_last = last});
      CHECK(conv::gradient_classes(s).pixels.size() == 1);
      check_backward_input(s);
    }
}

TEST_CASE("conv2d input gradient: no product with a zero is computed") {
  for (const auto& [stride, dilation, window] :
       {std::tuple{1, 1, 3}, {2, 1, 3}, {3, 1, 3}, {2, 2, 3}, {4, 6, 3}, {3, 2, 5}, {2, 1, 1}, {7, 3, 4}}) {
    // Without padding, each tap of each window hits a pixel. The height is a multiple of the stride, so that
    // the classes are complete.
    const Conv2dShape s = sized({.n = 1,
                                 .c = 1,
                                 .h = 40 * stride,
                                 .w = 6,
                                 .k = 1,
                                 .r = window,
                                 .s = 1,
                                 .stride_h = stride,
                                 .dilation_h = dilation});
    std::int64_t products = 0;
    for (const auto& c : conv::gradient_classes(s).pixels) products += std::int64_t{c.pixels} * c.taps;
    CHECK(products == 40 * window * 6);
  }
}

TEST_CASE("conv2d input gradient: shapes of transposed convolutions and of conv1d give the CPU's values") {
  for (const Conv2dShape& s : transposed_and_lines()) check_backward_input(s);
}

TEST_CASE("conv2d input gradient: the largest allowed padding and stride give the CPU's values") {
  largest_paddings([](const Conv2dShape& s) { check_backward_input(s); });
}

TEST_CASE("conv2d input gradient: infinities and NaN affect only the pixels in their windows") {
  for (const std::int64_t stride : {1, 2})
    for (const Conv2dShape& s : each_grouping(stride)) {
      Values dy = numbers(y_size(s), 1);
      dy[5] = kNaN;
      dy[index_of(conv::output_strides(s), 1, 2, 3, 5)] = dy[5];  // where a tap past the last would read
      dy[dy.size() - 1] = kInfinity;
      dy[dy.size() / 3] = 1e30;
      check_backward_input(s, dy, numbers(weight_size(s), 2));
    }
}

TEST_CASE(
    "conv2d input gradient: shape, layout and alignment choose the kernel; empty shapes launch nothing") {
  const auto names = [](Conv2dShape s, const Offsets& at = {}) {
    s = sized(s);
    const Zeros a(s, at);
    return kernels_of([&] {
      kernels::cuda::launch_conv2d_backward_input(
          {}, {.shape = s, .dy = a.y.data(), .weight = a.weight.data(), .dx = a.x.data()});
    });
  };
  const Conv2dShape one{.n = 1, .c = 8, .h = 4, .w = 4, .k = 8, .r = 1, .s = 1, .channels_last = true};
  CHECK_THAT(names(one), ContainsSubstring("PixelQuads") && ContainsSubstring("DenseSteps") &&
                             !ContainsSubstring("pack_weight"));
  CHECK_THAT(names(one, {.weight = 1}), ContainsSubstring("pack_weight"));
  CHECK_THAT(names(one, {.y = 1}), ContainsSubstring("PixelSingles"));
  Conv2dShape s = one;
  s.channels_last = false;
  CHECK_THAT(names(s), ContainsSubstring("PixelSingles") && !ContainsSubstring("pack_weight"));
  s = one;
  s.r = s.s = 3;
  CHECK_THAT(names(s), ContainsSubstring("PixelQuads") && ContainsSubstring("pack_weight"));
  s = one;
  s.groups = 8;
  CHECK_THAT(names(s), ContainsSubstring("9depthwiseIfLi4ELi1E"));
  s = one;
  s.n = 0;
  CHECK(names(s).empty());
  s = one;
  s.c = 0;
  CHECK(names(s).empty());
  s = one;
  s.k = 0;
  check_backward_input(sized(s));
}
