#pragma once
// Runs the convolutions in bf16 and f16 on the emulator and compares them with the CPU's kernels in f64.
#include "tapestry/kernels/cuda/conv_tensor_launch.cuh"
#include "tests/emulated/conv.h"

namespace emulated {

using tapestry::kernels::cuda::conv::tensor_cores::Division;

/// The f32 kernels that the test program has, with their default tuning.
inline constexpr tapestry::kernels::cuda::ConvInF32 kEmulatedF32{
    [](const tapestry::kernels::LaunchContext& context, const tapestry::kernels::Conv2dArgs& a) {
      tapestry::kernels::cuda::launch_conv2d(context, a);
    },
    [](const tapestry::kernels::LaunchContext& context, const tapestry::kernels::Conv2dBackwardInputArgs& a) {
      tapestry::kernels::cuda::launch_conv2d_backward_input(context, a);
    },
    [](const tapestry::kernels::LaunchContext& context,
       const tapestry::kernels::Conv2dBackwardWeightArgs& a) {
      tapestry::kernels::cuda::launch_conv2d_backward_weight(context, a);
    }};

template <class T>
void check_forward16(const Conv2dShape& s, const Values& x, const Values& weight, const Values& bias,
                     const Offsets& at = {}, const Division& division = {}) {
  INFO("wide " << division.wide << " parts " << division.parts);
  compare_forward<T>(s, x, weight, bias, at, [&](const auto& a) {
    tapestry::kernels::cuda::launch_conv2d_16<T>({}, a, kEmulatedF32, division);
  });
}
template <class T>
void check_forward16(const Conv2dShape& s, bool bias, const Offsets& at = {}, const Division& division = {}) {
  check_forward16<T>(s, numbers(x_size(s), 1, 1), numbers(weight_size(s), 2, 1),
                     bias ? numbers(s.k, 3, 4) : Values(), at, division);
}

template <class T>
void check_backward_input16(const Conv2dShape& s, const Offsets& at = {}, const Division& division = {}) {
  INFO("wide " << division.wide << " parts " << division.parts);
  compare_backward_input<T>(
      s, numbers(y_size(s), 4, 1), numbers(weight_size(s), 5, 1), at, [&](const auto& a) {
        tapestry::kernels::cuda::launch_conv2d_backward_input_16<T>({}, a, kEmulatedF32, division);
      });
}

template <class T>
void check_backward_weight16(const Conv2dShape& s, const Values& dy, const Values& x, const Offsets& at = {},
                             const Division& division = {}) {
  INFO("wide " << division.wide << " parts " << division.parts);
  compare_backward_weight<T>(s, dy, x, at, [&](const auto& a) {
    tapestry::kernels::cuda::launch_conv2d_backward_weight_16<T>({}, a, kEmulatedF32, division);
  });
}
template <class T>
void check_backward_weight16(const Conv2dShape& s, const Offsets& at = {}, const Division& division = {}) {
  check_backward_weight16<T>(s, numbers(y_size(s), 6, 1), numbers(x_size(s), 7, 1), at, division);
}

/// Calls f.operator()<T>() for Half and BFloat16 in turns, because the kernels differ only in the mma.
template <class F>
void for_one_16bit_dtype(const F& f) {
  static unsigned calls = 0;
  if (next_choice(calls, 2) == 0) f.template operator()<tapestry::Half>();
  else f.template operator()<tapestry::BFloat16>();
}

/// Layers of every kind: each has channels last, or not, if the caller sets it.
inline std::vector<Conv2dShape> layers16() {
  std::vector<Conv2dShape> all;
  const auto add = [&](Conv2dShape s, std::int64_t stride, std::int64_t padding, std::int64_t dilation) {
    s.stride_h = s.stride_w = stride, s.padding_h = s.padding_w = padding;
    s.dilation_h = s.dilation_w = dilation;
    s.relu = all.size() % 2 != 0;
    all.push_back(sized(s));
  };
  add({.n = 2, .c = 40, .h = 9, .w = 8, .k = 72, .r = 1, .s = 1}, 1, 0, 1);  // 1 x 1, read in place
  add({.n = 1, .c = 16, .h = 9, .w = 9, .k = 24, .r = 1, .s = 1}, 2, 0, 1);  // the shortcut of a ResNet
  add({.n = 1, .c = 16, .h = 12, .w = 13, .k = 16, .r = 3, .s = 3}, 1, 1, 1);
  add({.n = 2, .c = 24, .h = 9, .w = 8, .k = 8, .r = 3, .s = 3}, 2, 1, 1);
  add({.n = 1, .c = 3, .h = 17, .w = 18, .k = 16, .r = 7, .s = 7}, 2, 3, 1);  // the first layer of a ResNet
  add({.n = 1, .c = 8, .h = 11, .w = 10, .k = 8, .r = 3, .s = 3}, 1, 2, 2);   // dilation
  add({.n = 1, .c = 13, .h = 7, .w = 6, .k = 10, .r = 2, .s = 3}, 1, 1, 1);   // ragged channels
  add({.n = 1, .c = 16, .h = 6, .w = 7, .k = 32, .r = 3, .s = 3, .groups = 2}, 1, 1, 1);
  add({.n = 2, .c = 6, .h = 5, .w = 6, .k = 9, .r = 3, .s = 2, .groups = 3}, 2, 1, 1);  // too few channels
  add({.n = 1, .c = 8, .h = 6, .w = 6, .k = 8, .r = 3, .s = 3, .groups = 8}, 1, 1, 1);  // depthwise
  return all;
}

/// Calls check.operator()<T>(shape) for the layers in both layouts, in one of the dtypes.
template <class Check>
void each_layer16(const Check& check) {
  unsigned calls = 0;
  for (Conv2dShape s : layers16())
    for (const bool last : {false, true}) {
      s.channels_last = last;
      if (kOnlyRaces && next_choice(calls, 2) != 0) continue;
      for_one_16bit_dtype([&]<class T>() { check.template operator()<T>(s); });
    }
}

/// Calls check.operator()<T>(division, channels) for both tiles, with and without split-K. Each dtype has
/// both tiles and both splits, in half of the combinations. So many channels exceed one tile.
template <class Check>
void each_division(const Check& check) {
  unsigned calls = 0;
  for (const bool wide : {false, true})
    for (const std::int64_t parts : {1, 3}) {
      if (kOnlyRaces && next_choice(calls, 2) != 0) continue;
      const Division division{wide, parts};
      if (wide == (parts == 1)) check.template operator()<tapestry::Half>(division, wide ? 136 : 72);
      else check.template operator()<tapestry::BFloat16>(division, wide ? 136 : 72);
    }
}

}  // namespace emulated
