// Tests the weight and bias gradient kernels of conv2d.
#include "tests/emulated/conv.h"

using namespace tapestry;
using namespace emulated;

TEST_CASE(
    "conv2d weight gradient: each tile with each loader, with one split or several, gives the CPU's values") {
  each_tile({TileKind::wide, TileKind::small}, [](const Tuning& tuning, std::int64_t k, bool last) {
    Conv2dShape dense{.n = 2, .c = 20, .h = 7, .w = 6, .k = k, .r = 1, .s = 1, .channels_last = last};
    Conv2dShape packs{.n = 1, .c = 12, .h = 9, .w = 8, .k = 16, .r = 3, .s = 4, .channels_last = last};
    Conv2dShape singles{.n = 3, .c = 3, .h = 6, .w = 5, .k = k, .r = 3, .s = 3, .channels_last = last};
    packs.stride_h = 2;
    for (Conv2dShape* const s : {&packs, &singles}) s->padding_h = s->padding_w = 1;
    for (const Conv2dShape& s : {dense, packs, singles}) check_backward_weight(sized(s), {}, tuning);
  });
}

TEST_CASE("conv2d weight gradient: random ragged shapes give the CPU's values") {
  random_convolutions(50, 3, [](const Conv2dShape& s, bool, const Offsets& at, const Tuning& tuning) {
    check_backward_weight(s, at, tuning);
  });
}

TEST_CASE("conv2d weight gradient: more splits than adding threads or k steps give the CPU's values") {
  for (const bool last : {false, true})
    for (const std::int64_t groups : {1, 4})
      check_backward_weight(sized({.n = 2,
                                   .c = 4,
                                   .h = 7,
                                   .w = 6,
                                   .k = 4,
                                   .r = 2,
                                   .s = 3,
                                   .groups = groups,
                                   .channels_last = last}),
                            {}, {TileKind::small, last ? 23 : 9});
}

TEST_CASE("conv2d weight gradient: 1 x 1 windows with and without stride and padding give the CPU's values") {
  for (const bool last : {false, true})
    for (const std::int64_t stride : {1, 2})
      for (const std::int64_t padding : {0, 1}) {
        Conv2dShape s{.n = 2, .c = 8, .h = 7, .w = 6, .k = 12, .r = 1, .s = 1, .channels_last = last};
        s.stride_h = stride;
        s.padding_h = padding;
        check_backward_weight(sized(s));
        std::swap(s.stride_h, s.stride_w);
        std::swap(s.padding_h, s.padding_w);
        check_backward_weight(sized(s));
      }
}

TEST_CASE("conv2d weight gradient: each gradient computed alone has the same bits") {
  for (const bool last : {false, true})
    for (const std::int64_t groups : {1, 4}) {
      const Conv2dShape s = sized(
          {.n = 2, .c = 4, .h = 7, .w = 6, .k = 8, .r = 2, .s = 3, .groups = groups, .channels_last = last});
      INFO(text(s));
      const Block<float> x(numbers(x_size(s), 1)), dy(numbers(y_size(s), 2));
      Block<float> both_weight(static_cast<std::size_t>(weight_size(s))), both_bias(8),
          weight(both_weight.size()), bias(8);
      const auto run = [&](const float* in, float* dweight, float* dbias) {
        kernels::cuda::launch_conv2d_backward_weight(
            {}, {.shape = s, .dy = dy.data(), .x = in, .dweight = dweight, .dbias = dbias});
      };
      run(x.data(), both_weight.data(), both_bias.data());
      run(x.data(), weight.data(), nullptr);
      run(nullptr, nullptr, bias.data());
      CHECK(std::equal(weight.data(), weight.data() + weight.size(), both_weight.data()));
      CHECK(std::equal(bias.data(), bias.data() + 8, both_bias.data()));
    }
}

TEST_CASE("conv2d weight gradient: grouped and depthwise convolutions give the CPU's values") {
  const std::int64_t many = 40;  // more channels than one block has
  grouped_convolutions(30, 4, {8, many}, [](const Conv2dShape& s) { check_backward_weight(s); });
}

TEST_CASE("conv2d weight gradient: shapes of transposed convolutions and of conv1d give the CPU's values") {
  for (const Conv2dShape& s : transposed_and_lines()) check_backward_weight(s);
}

TEST_CASE("conv2d weight gradient: the largest allowed padding and dilation give the CPU's values") {
  largest_paddings([](const Conv2dShape& s) { check_backward_weight(s); });
}

TEST_CASE("conv2d weight gradient: infinities and NaN affect only the weights whose sums contain them") {
  for (const Conv2dShape& s : each_grouping()) {
    Values x = numbers(x_size(s), 1), dy = numbers(y_size(s), 2);
    x[5] = kNaN;
    x[x.size() / 3] = 1e30;
    dy[dy.size() - 1] = kInfinity;
    check_backward_weight(s, dy, x);
  }
}

TEST_CASE("conv2d weight gradient: without images the gradients are zero") {
  for (const bool last : {false, true})
    for (const std::int64_t groups : {1, 4}) {
      Conv2dShape s = sized(
          {.n = 0, .c = 4, .h = 5, .w = 5, .k = 4, .r = 3, .s = 3, .groups = groups, .channels_last = last});
      check_backward_weight(s);
      s.n = 1, s.k = 0;
      check_backward_weight(s);
    }
}

TEST_CASE(
    "conv2d weight gradient: shape, layout and alignment choose the kernel, and every thread order gives the "
    "same bits") {
  const auto names = [](Conv2dShape s, const Offsets& at = {}) {
    s = sized(s);
    const Zeros a(s, at);
    return kernels_of([&] {
      kernels::cuda::launch_conv2d_backward_weight(
          {}, {.shape = s, .dy = a.y.data(), .x = a.x.data(), .dweight = a.weight.data()});
    });
  };
  const Conv2dShape s{.n = 1, .c = 8, .h = 6, .w = 6, .k = 8, .r = 3, .s = 3, .channels_last = true};
  CHECK_THAT(names(s), ContainsSubstring("DenseSteps") && ContainsSubstring("InputQuads") &&
                           ContainsSubstring("sum_parts"));
  CHECK_THAT(names(s, {.x = 1}), ContainsSubstring("DenseSteps") && ContainsSubstring("InputSingles"));
  CHECK_THAT(names(s, {.y = 1}), ContainsSubstring("OutputSingles") && ContainsSubstring("InputSingles"));
  Conv2dShape other = s;
  other.c = 3;
  CHECK_THAT(names(other), ContainsSubstring("DenseSteps") && ContainsSubstring("InputSingles"));
  other = s;
  other.k = 6;
  CHECK_THAT(names(other), ContainsSubstring("OutputSingles"));
  other = s;
  other.channels_last = false;
  CHECK_THAT(names(other), ContainsSubstring("OutputSingles"));
  other = s;
  other.groups = 8;
  CHECK_THAT(names(other), ContainsSubstring("channel_sums") && !ContainsSubstring("conv2d_weight_parts"));

  const Conv2dShape shape = sized(s);
  const Block<float> x(numbers(x_size(shape), 1)), dy(numbers(y_size(shape), 2));
  std::vector<float> first;
  in_each_order([&] {
    const Result dweight(weight_size(shape), 0);
    kernels::cuda::launch_conv2d_backward_weight(
        {}, {.shape = shape, .dy = dy.data(), .x = x.data(), .dweight = dweight.data()},
        {TileKind::small, 13});
    const std::vector<float> now(dweight.data(), dweight.data() + weight_size(shape));
    if (first.empty()) first = now;
    CHECK(now == first);
  });
}
