// Tests the convolutions in bf16 and f16 on tensor cores: y, dx, dweight and dbias.
#include "tests/emulated/conv_16.h"

using namespace tapestry;
using namespace emulated;
namespace gpu = tapestry::kernels::cuda;

namespace {

template <class T>
std::string forward_kernels(const Conv2dShape& s, const Offsets& at = {}, const Division& division = {}) {
  const Block<T> x(static_cast<std::size_t>(x_size(s)), at.x),
      weight(static_cast<std::size_t>(weight_size(s)), at.weight),
      y(static_cast<std::size_t>(y_size(s)), at.y);
  return kernels_of([&] {
    gpu::launch_conv2d_16<T>({}, {.shape = s, .x = x.data(), .weight = weight.data(), .y = y.data()},
                             kEmulatedF32, division);
  });
}

/// A random convolution's tuning, in the terms of the tensor-core kernels.
Division division_of(const Tuning& t) { return {t.tile == TileKind::wide, t.parts, t.max_pixels}; }

}  // namespace

TEST_CASE("conv2d in 16 bits: layers of every kind give the CPU's values") {
  bool bias = false;
  each_layer16([&]<class T>(const Conv2dShape& s) {
    bias = !bias;
    check_forward16<T>(s, bias);
  });
}

TEST_CASE("conv2d in 16 bits: each tile, with one split or several, gives the CPU's values") {
  each_division([]<class T>(const Division& division, std::int64_t k) {
    Conv2dShape s{.n = 2, .c = 16, .h = 9, .w = 9, .k = k, .r = 3, .s = 3, .channels_last = true};
    s.padding_h = s.padding_w = 1, s.relu = true;
    check_forward16<T>(sized(s), true, {}, division);
  });
}

TEST_CASE("conv2d in 16 bits: random ragged shapes give the CPU's values") {
  random_convolutions(24, 5, [](const Conv2dShape& s, bool bias, const Offsets& at, const Tuning& tuning) {
    for_one_16bit_dtype([&]<class T>() { check_forward16<T>(s, bias, at, division_of(tuning)); });
  });
}

TEST_CASE("conv2d in 16 bits: infinities and NaN affect only the outputs whose windows contain them") {
  for (const bool last : {false, true}) {
    Conv2dShape s{.n = 2, .c = 8, .h = 6, .w = 7, .k = 8, .r = 3, .s = 3, .channels_last = last};
    s.padding_h = s.padding_w = 1, s.relu = true;
    s = sized(s);
    Values x = numbers(x_size(s), 1, 1);
    x[5] = kNaN;
    x[index_of(gpu::conv::input_strides(s), 1, 4, 2, 5)] = kNaN;  // where a tap past the last would read
    x[x.size() / 2] = kInfinity;
    check_forward16<BFloat16>(s, x, numbers(weight_size(s), 2, 1), numbers(s.k, 3, 1));
  }
}

TEST_CASE("conv2d in 16 bits: empty outputs launch nothing, and without input channels y is the bias") {
  const Conv2dShape s{.n = 2, .c = 4, .h = 5, .w = 5, .k = 4, .r = 3, .s = 3};
  Conv2dShape none = s;
  none.n = 0;
  CHECK(forward_kernels<Half>(sized(none)).empty());
  none = s;
  none.k = 0;
  CHECK(forward_kernels<Half>(sized(none)).empty());
  for (const bool last : {false, true}) {
    none = s;
    none.c = 0, none.channels_last = last;
    check_forward16<Half>(sized(none), true);
  }
}

TEST_CASE("conv2d in 16 bits: shape, layout and alignment choose the kernels") {
  const auto names = [](const Conv2dShape& s, const Offsets& at = {}, const Division& division = {}) {
    return forward_kernels<BFloat16>(sized(s), at, division);
  };
  // Whether the operands are read and written where they are, by one kernel.
  const auto one_kernel = [](const std::string& list) {
    return std::count(list.begin(), list.end(), '\n') == 1 && list.find("conv2d_tensor_gather") != list.npos;
  };
  const Conv2dShape one{.n = 1, .c = 8, .h = 4, .w = 4, .k = 8, .r = 1, .s = 1, .channels_last = true};
  CHECK(one_kernel(names(one)));
  CHECK_THAT(names(one), ContainsSubstring("TileILi128ELi64ELi3EE"));
  Conv2dShape s = one;
  s.stride_h = s.stride_w = 2;
  CHECK(one_kernel(names(s)));
  CHECK_THAT(names(one, {.weight = 1}), ContainsSubstring("pack_weight_chunks"));
  CHECK_THAT(names(one, {.x = 1}), ContainsSubstring("to_chunks"));
  CHECK_THAT(names(one, {}, {false, 2}), ContainsSubstring("sum_parts"));
  s = one;
  s.k = 72;
  CHECK_THAT(names(s), ContainsSubstring("TileILi128ELi128ELi2EE"));
  s = one;
  s.channels_last = false;
  CHECK_THAT(names(s), ContainsSubstring("to_chunks") && ContainsSubstring("from_chunks"));
  s = one;
  s.groups = 2;
  CHECK_THAT(names(s), ContainsSubstring("convert_elements") && !ContainsSubstring("tensor_gather"));
  s.groups = 8;  // reads the image where it is, in packs of 4 channels; only the weight is converted
  CHECK_THAT(names(s), ContainsSubstring("BFloat16ELi4ELi1E"));
  CHECK_THAT(names(s, {.x = 1}), ContainsSubstring("BFloat16ELi1ELi1E"));
  s.channels_last = false;
  CHECK_THAT(names(s), ContainsSubstring("BFloat16ELi1ELi32E") && !ContainsSubstring("chunks"));
}

TEST_CASE("conv2d in 16 bits: depthwise convolutions give the CPU's values in three directions") {
  const auto check = []<class T>(Conv2dShape s, const Offsets& at = {}) {
    s = sized(s);
    for (const bool last : {false, true}) {
      s.channels_last = last;
      check_forward16<T>(s, last, at);
      check_backward_input16<T>(s, at);
      check_backward_weight16<T>(s, at);
    }
  };
  kernels::for_types<Half, BFloat16>([&]<class T>() {
    Conv2dShape s{.n = 2, .c = 12, .h = 9, .w = 7, .k = 12, .r = 3, .s = 3, .groups = 12};
    s.padding_h = s.padding_w = 1, s.relu = true;
    check.template operator()<T>(s);
    check.template operator()<T>(s, {.x = 1});
    s.stride_h = s.stride_w = 3, s.r = s.s = 2, s.padding_h = 0;  // dx has pixels that no window covers
    check.template operator()<T>(s);
    // Two outputs a channel, no packs, and a window of more taps than one pass of the sums takes.
    Conv2dShape wide{.n = 1, .c = 5, .h = 8, .w = 9, .k = 10, .r = 4, .s = 3, .groups = 5};
    wide.dilation_w = 2, wide.padding_w = 2;
    check.template operator()<T>(wide);
    // More classes of pixels than a launch takes: those that no window covers are filled with zeros before.
    check.template operator()<T>({.n = 1,
                                  .c = 4,
                                  .h = 14,
                                  .w = 15,
                                  .k = 4,
                                  .r = 2,
                                  .s = 3,
                                  .stride_h = 6,
                                  .stride_w = 5,
                                  .groups = 4});
  });
}

TEST_CASE("conv2d in 16 bits: the chosen splits fill the GPU for typical layers") {
  using namespace gpu::conv::tensor_cores;
  // Layers of ResNet-50 with 64 images: blocks, steps of k, outputs.
  const std::int64_t large = 64 * 28 * 28;
  CHECK(choose_parts<WideTile>(large / 128, 9 * 128 / 32, large * 128, false) == 1);
  CHECK(choose_parts<SlimTile>(64 * 56 * 56 / 128, 9 * 64 / 32, 64 * 56 * 56 * 64, false) == 1);
  CHECK(choose_parts<WideTile>(4, 9 * 512 / 32, 49 * 512, false) >= 8);  // one image of 7 x 7
  const std::int64_t parts = choose_parts<FlatTile>(5, 64 * 56 * 56 / 32, 64 * 576, true);
  CHECK(5 * parts >= 240);
  CHECK(choose_parts<WideTile>(1, 1, 8, true) == 1);
}

TEST_CASE("conv2d input gradient in 16 bits: layers of every kind give the CPU's values") {
  each_layer16([]<class T>(const Conv2dShape& s) { check_backward_input16<T>(s); });
}

TEST_CASE("conv2d input gradient in 16 bits: each tile, with one split or several, gives the CPU's values") {
  each_division([]<class T>(const Division& division, std::int64_t c) {
    Conv2dShape s{.n = 2, .c = c, .h = 9, .w = 9, .k = 16, .r = 3, .s = 3, .channels_last = true};
    s.padding_h = s.padding_w = 1;
    if (division.wide) s.stride_h = 2;
    check_backward_input16<T>(sized(s), {}, division);
  });
}

TEST_CASE("conv2d input gradient in 16 bits: random ragged shapes give the CPU's values") {
  random_convolutions(20, 6, [](const Conv2dShape& s, bool, const Offsets& at, const Tuning& tuning) {
    for_one_16bit_dtype([&]<class T>() { check_backward_input16<T>(s, at, division_of(tuning)); });
  });
}

TEST_CASE("conv2d input gradient in 16 bits: shapes of transposed convolutions give the CPU's values") {
  for (const Conv2dShape& s : transposed_and_lines())
    for_one_16bit_dtype([&]<class T>() { check_backward_input16<T>(s); });
}

TEST_CASE("conv2d input gradient in 16 bits: more strides than windows leave zeros") {
  Conv2dShape s{.n = 1, .c = 8, .h = 11, .w = 12, .k = 8, .r = 2, .s = 1, .channels_last = true};
  s.stride_h = s.stride_w = 5;  // 25 classes, more than a launch takes
  check_backward_input16<Half>(sized(s));
  s.channels_last = false;
  check_backward_input16<BFloat16>(sized(s));
}

TEST_CASE("conv2d weight gradient in 16 bits: layers of every kind give the CPU's values") {
  each_layer16([]<class T>(const Conv2dShape& s) { check_backward_weight16<T>(s); });
}

TEST_CASE("conv2d weight gradient in 16 bits: each tile, with one split or several, gives the CPU's values") {
  each_division([]<class T>(const Division& division, std::int64_t k) {
    Conv2dShape s{.n = 2, .c = 16, .h = 8, .w = 9, .k = k, .r = 3, .s = 3, .channels_last = true};
    s.padding_h = s.padding_w = 1;
    check_backward_weight16<T>(sized(s), {}, division);
  });
}

TEST_CASE("conv2d weight gradient in 16 bits: random ragged shapes give the CPU's values") {
  random_convolutions(20, 7, [](const Conv2dShape& s, bool, const Offsets& at, const Tuning& tuning) {
    for_one_16bit_dtype([&]<class T>() { check_backward_weight16<T>(s, at, division_of(tuning)); });
  });
}

TEST_CASE("conv2d weight gradient in 16 bits: the bias's gradient adds many pixels of ragged channels") {
  for (const bool last : {false, true})
    check_backward_weight16<Half>(
        sized({.n = 2, .c = 8, .h = 9, .w = 10, .k = 10, .r = 1, .s = 1, .channels_last = last}));
}

TEST_CASE("conv2d weight gradient in 16 bits: without images the gradients are zero") {
  for (const bool last : {false, true})
    for (const std::int64_t groups : {1, 4}) {
      Conv2dShape s = sized(
          {.n = 0, .c = 4, .h = 5, .w = 5, .k = 4, .r = 3, .s = 3, .groups = groups, .channels_last = last});
      check_backward_weight16<BFloat16>(s);
      s.n = 1, s.k = 0;
      check_backward_weight16<Half>(s);
    }
}

TEST_CASE("conv2d in 16 bits: every thread order gives the same bits") {
  Conv2dShape s{.n = 2, .c = 16, .h = 7, .w = 6, .k = 8, .r = 3, .s = 3, .channels_last = true};
  s.padding_h = s.padding_w = 1;
  s = sized(s);
  const Block<Half> x(numbers(x_size(s), 1, 1)), dy(numbers(y_size(s), 2, 1));
  std::vector<std::uint16_t> first;
  in_each_order([&] {
    const Result<Half> dweight(weight_size(s), 0);
    gpu::launch_conv2d_backward_weight_16<Half>(
        {}, {.shape = s, .dy = dy.data(), .x = x.data(), .dweight = dweight.data()}, kEmulatedF32,
        {false, 3});
    std::vector<std::uint16_t> now;
    for (std::int64_t i = 0; i < weight_size(s); ++i) now.push_back(dweight.data()[i].bits);
    if (first.empty()) first = now;
    CHECK(now == first);
  });
}
