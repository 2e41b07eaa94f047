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

/// The unit roundoff of T.
template <class T>
inline constexpr double kUnitOf = std::is_same_v<T, tapestry::Half> ? 0x1p-11 : 0x1p-8;

/// An output filled with NaN, between guard elements that must not be written.
template <class T>
class Result16 {
 public:
  Result16(std::int64_t size, std::size_t offset)
      : memory_(static_cast<std::size_t>(size) + 2 * kGuard, offset), size_(static_cast<std::size_t>(size)) {
    for (std::size_t i = 0; i < memory_.size(); ++i)
      memory_[i] = T(i < kGuard || i >= kGuard + size_ ? kSentinel : std::numeric_limits<float>::quiet_NaN());
  }
  T* data() const { return memory_.data() + kGuard; }

  /// Checks that |error| is at most `roundings` unit roundoffs of f32 of the sum of magnitudes `size`, plus
  /// one rounding to T; that NaN is where `want` has NaN; and that the guards are unchanged.
  void check(const char* what, const Values& want, const Values& size, double roundings) const {
    INFO(what);
    std::size_t bad = 0, touched = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      const double got = static_cast<double>(static_cast<float>(data()[i]));
      const double tolerance =
          roundings * kUnit * size[i] * (1 + kUnitOf<T>)+kUnitOf<T> * std::abs(want[i]) + 0x1p-25;
      const bool fits =
          std::isnan(want[i]) ? std::isnan(got) : got == want[i] || std::abs(got - want[i]) <= tolerance;
      if (fits || ++bad > 3) continue;
      CAPTURE(i, got, want[i], tolerance);
      CHECK(fits);
    }
    for (std::size_t i = 0; i < kGuard; ++i)
      touched += static_cast<float>(memory_[i]) != kSentinel ||
                 static_cast<float>(memory_[kGuard + size_ + i]) != kSentinel;
    CHECK(bad == 0);
    CHECK(touched == 0);
  }

 private:
  static constexpr std::size_t kGuard = 8;
  static constexpr float kSentinel = 1024;
  Block<T> memory_;
  std::size_t size_;
};

template <class T>
void check_forward16(const Conv2dShape& s, const Values& x, const Values& weight, const Values& bias,
                     const Offsets& at = {}, const Division& division = {}) {
  using namespace tapestry;
  INFO(text(s) << ' ' << dtype_of<T> << " bias " << !bias.empty() << " offsets " << at.x << at.weight << at.y
               << " wide " << division.wide << " parts " << division.parts);
  Values want(static_cast<std::size_t>(y_size(s))), size(want.size());
  const auto run = [&](const Values& x_values, const Values& weights, const Values& biases, Values& y) {
    kernels::conv2d(kCPU, DType::f64,
                    {.shape = s,
                     .x = x_values.data(),
                     .weight = weights.data(),
                     .bias = bias.empty() ? nullptr : biases.data(),
                     .y = y.data()});
  };
  run(x, weight, bias, want);
  run(magnitudes(x), magnitudes(weight), magnitudes(bias), size);
  in_each_order([&] {
    const Block<T> in(x, at.x), w(weight, at.weight), b(bias);
    const Result16<T> out(y_size(s), at.y);
    kernels::cuda::launch_conv2d_16<T>({},
                                       {.shape = s,
                                        .x = in.data(),
                                        .weight = w.data(),
                                        .bias = bias.empty() ? nullptr : b.data(),
                                        .y = out.data()},
                                       kEmulatedF32, division);
    out.check("y", want, size, static_cast<double>(s.c / s.groups * s.r * s.s + 2));
  });
}
template <class T>
void check_forward16(const Conv2dShape& s, bool bias, const Offsets& at = {}, const Division& division = {}) {
  check_forward16<T>(s, numbers(x_size(s), 1, 1), numbers(weight_size(s), 2, 1),
                     bias ? numbers(s.k, 3, 4) : Values(), at, division);
}

template <class T>
void check_backward_input16(const Conv2dShape& s, const Offsets& at = {}, const Division& division = {}) {
  using namespace tapestry;
  INFO(text(s) << ' ' << dtype_of<T> << " offsets " << at.x << at.weight << at.y << " wide " << division.wide
               << " parts " << division.parts);
  const Values dy = numbers(y_size(s), 4, 1), weight = numbers(weight_size(s), 5, 1);
  Values want(static_cast<std::size_t>(x_size(s))), size(want.size());
  const auto run = [&](const Values& dy_values, const Values& weights, Values& dx) {
    kernels::conv2d_backward_input(
        kCPU, DType::f64, {.shape = s, .dy = dy_values.data(), .weight = weights.data(), .dx = dx.data()});
  };
  run(dy, weight, want);
  run(magnitudes(dy), magnitudes(weight), size);
  in_each_order([&] {
    const Block<T> in(dy, at.y), w(weight, at.weight);
    const Result16<T> out(x_size(s), at.x);
    kernels::cuda::launch_conv2d_backward_input_16<T>(
        {}, {.shape = s, .dy = in.data(), .weight = w.data(), .dx = out.data()}, kEmulatedF32, division);
    out.check("dx", want, size, static_cast<double>(s.k / s.groups * s.r * s.s + 2));
  });
}

template <class T>
void check_backward_weight16(const Conv2dShape& s, const Values& dy, const Values& x, const Offsets& at = {},
                             const Division& division = {}) {
  using namespace tapestry;
  INFO(text(s) << ' ' << dtype_of<T> << " offsets " << at.x << at.weight << at.y << " wide " << division.wide
               << " parts " << division.parts);
  Values weight(static_cast<std::size_t>(weight_size(s))), bias(static_cast<std::size_t>(s.k));
  Values weight_sizes(weight.size()), bias_sizes(bias.size());
  const auto run = [&](const Values& dy_values, const Values& x_values, Values& dweight, Values& dbias) {
    kernels::conv2d_backward_weight(kCPU, DType::f64,
                                    {.shape = s,
                                     .dy = dy_values.data(),
                                     .x = x_values.data(),
                                     .dweight = dweight.data(),
                                     .dbias = dbias.data()});
  };
  run(dy, x, weight, bias);
  run(magnitudes(dy), magnitudes(x), weight_sizes, bias_sizes);
  const double roundings = static_cast<double>(s.n * s.p * s.q + 2);
  in_each_order([&] {
    const Block<T> in(x, at.x), out(dy, at.y);
    const Result16<T> dweight(weight_size(s), at.weight), dbias(s.k, 0);
    kernels::cuda::launch_conv2d_backward_weight_16<T>(
        {}, {.shape = s, .dy = out.data(), .x = in.data(), .dweight = dweight.data(), .dbias = dbias.data()},
        kEmulatedF32, division);
    dweight.check("dweight", weight, weight_sizes, roundings);
    dbias.check("dbias", bias, bias_sizes, roundings);
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
