#pragma once
// Runs convolution kernels on the emulator and compares them with the CPU's kernels in f64.
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "tapestry/kernels/cuda/conv.cuh"
#include "tests/emulated/values.h"

namespace emulated {

using tapestry::kernels::Conv2dShape;
using tapestry::kernels::cuda::conv::TileKind;
using tapestry::kernels::cuda::conv::Tuning;

/// Fills in the size of the output.
inline Conv2dShape sized(Conv2dShape s) {
  s.p = (s.h + 2 * s.padding_h - s.dilation_h * (s.r - 1) - 1) / s.stride_h + 1;
  s.q = (s.w + 2 * s.padding_w - s.dilation_w * (s.s - 1) - 1) / s.stride_w + 1;
  return s;
}
/// The index of image n, row h, column w, channel c.
inline std::size_t index_of(const tapestry::kernels::cuda::conv::ImageStrides& p, std::int64_t n,
                            std::int64_t h, std::int64_t w, std::int64_t c) {
  return static_cast<std::size_t>(n * p.n + h * p.h + w * p.w + c * p.c);
}
inline std::int64_t x_size(const Conv2dShape& s) { return s.n * s.c * s.h * s.w; }
inline std::int64_t y_size(const Conv2dShape& s) { return s.n * s.k * s.p * s.q; }
inline std::int64_t weight_size(const Conv2dShape& s) { return s.k * (s.c / s.groups) * s.r * s.s; }
inline std::string text(const Conv2dShape& s) {
  std::string t = s.channels_last ? "channels-last" : "row-major";
  const auto add = [&](const char* name, std::int64_t a) { t += std::string(name) + std::to_string(a); };
  add(" n", s.n), add(" c", s.c), add(" h", s.h), add(" w", s.w), add(" k", s.k), add(" r", s.r),
      add(" s", s.s);
  add(" stride", s.stride_h), add(",", s.stride_w), add(" padding", s.padding_h), add(",", s.padding_w);
  add(" dilation", s.dilation_h), add(",", s.dilation_w), add(" groups", s.groups), add(" relu", s.relu);
  return t;
}

/// Reproducible numbers of different magnitudes, exact in f32.
inline Values numbers(std::int64_t n, unsigned salt) {
  std::mt19937 bits(salt);
  Values v(static_cast<std::size_t>(n));
  for (double& x : v)
    x = static_cast<double>(
        static_cast<float>((static_cast<double>(bits()) / 0x1p31 - 1) * (bits() % 8 + 1)));
  return v;
}
/// The unit roundoff of a 16-bit T, or 0 for float.
template <class T>
inline constexpr double kUnitOf = std::is_same_v<T, float>            ? 0
                                  : std::is_same_v<T, tapestry::Half> ? 0x1p-11
                                                                      : 0x1p-8;

/// An output filled with NaN, between guard elements that must not be written. It starts `offset` elements
/// after a 16-byte boundary.
template <class T = float>
class Result {
 public:
  Result(std::int64_t size, std::size_t offset)
      : memory_(static_cast<std::size_t>(size) + 2 * kGuard, offset), size_(static_cast<std::size_t>(size)) {
    for (std::size_t i = 0; i < memory_.size(); ++i)
      memory_[i] = T(i < kGuard || i >= kGuard + size_ ? kSentinel : std::numeric_limits<float>::quiet_NaN());
  }
  T* data() const { return memory_.data() + kGuard; }

  /// Checks that |error| is at most `roundings` unit roundoffs of f32 of the sum of magnitudes `size`, plus
  /// one rounding to T; that NaN is where `want` has NaN; and that the guards are unchanged.
  void check(const char* what, const Values& want, const Values& size, double roundings) const {
    INFO(what);
    constexpr double least = std::is_same_v<T, float> ? 0x1p-126 : 0x1p-25, unit = kUnitOf<T>;
    std::size_t bad = 0, touched = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      const double got = static_cast<double>(static_cast<float>(data()[i]));
      const double tolerance = roundings * kUnit * size[i] * (1 + unit) + unit * std::abs(want[i]) + least;
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

/// Misalignment of each tensor from a 16-byte boundary, in elements.
struct Offsets {
  std::size_t x = 0, weight = 0, y = 0;
};

/// The arrays of a convolution, filled with zeros, for tests that only look at which kernels are launched.
struct Zeros {
  Zeros(const Conv2dShape& s, const Offsets& at)
      : x(static_cast<std::size_t>(x_size(s)), at.x),
        weight(static_cast<std::size_t>(weight_size(s)), at.weight),
        y(static_cast<std::size_t>(y_size(s)), at.y) {}
  Block<float> x, weight, y;
};

/// Calls launch(arguments) with tensors of T, with the threads in each order, and compares the output with
/// that of the CPU in f64. The two functions below do the same for gradients.
template <class T, class Launch>
void compare_forward(const Conv2dShape& s, const Values& x, const Values& weight, const Values& bias,
                     const Offsets& at, const Launch& launch) {
  using namespace tapestry;
  INFO(text(s) << ' ' << dtype_of<T> << " bias " << !bias.empty() << " offsets " << at.x << at.weight
               << at.y);
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
    const Result<T> out(y_size(s), at.y);
    launch(kernels::Conv2dArgs{.shape = s,
                               .x = in.data(),
                               .weight = w.data(),
                               .bias = bias.empty() ? nullptr : b.data(),
                               .y = out.data()});
    out.check("y", want, size, static_cast<double>(s.c / s.groups * s.r * s.s + 2));
  });
}
template <class T, class Launch>
void compare_backward_input(const Conv2dShape& s, const Values& dy, const Values& weight, const Offsets& at,
                            const Launch& launch) {
  using namespace tapestry;
  INFO(text(s) << ' ' << dtype_of<T> << " offsets " << at.x << at.weight << at.y);
  Values want(static_cast<std::size_t>(x_size(s))), size(want.size());
  const auto run = [&](const Values& dy_values, const Values& weights, Values& dx) {
    kernels::conv2d_backward_input(
        kCPU, DType::f64, {.shape = s, .dy = dy_values.data(), .weight = weights.data(), .dx = dx.data()});
  };
  run(dy, weight, want);
  run(magnitudes(dy), magnitudes(weight), size);
  in_each_order([&] {
    const Block<T> in(dy, at.y), w(weight, at.weight);
    const Result<T> out(x_size(s), at.x);
    launch(
        kernels::Conv2dBackwardInputArgs{.shape = s, .dy = in.data(), .weight = w.data(), .dx = out.data()});
    out.check("dx", want, size, static_cast<double>(s.k / s.groups * s.r * s.s + 2));
  });
}
template <class T, class Launch>
void compare_backward_weight(const Conv2dShape& s, const Values& dy, const Values& x, const Offsets& at,
                             const Launch& launch) {
  using namespace tapestry;
  INFO(text(s) << ' ' << dtype_of<T> << " offsets " << at.x << at.weight << at.y);
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
    const Result<T> dweight(weight_size(s), at.weight), dbias(s.k, 0);
    launch(kernels::Conv2dBackwardWeightArgs{
        .shape = s, .dy = out.data(), .x = in.data(), .dweight = dweight.data(), .dbias = dbias.data()});
    dweight.check("dweight", weight, weight_sizes, roundings);
    dbias.check("dbias", bias, bias_sizes, roundings);
  });
}

inline void check_forward(const Conv2dShape& s, const Values& x, const Values& weight, const Values& bias,
                          const Offsets& at = {}, const Tuning& tuning = {}) {
  INFO("tile " << static_cast<int>(tuning.tile) << " parts " << tuning.parts);
  compare_forward<float>(s, x, weight, bias, at,
                         [&](const auto& a) { tapestry::kernels::cuda::launch_conv2d({}, a, tuning); });
}
inline void check_forward(const Conv2dShape& s, bool bias, const Offsets& at = {},
                          const Tuning& tuning = {}) {
  check_forward(s, numbers(x_size(s), 1), numbers(weight_size(s), 2), bias ? numbers(s.k, 3) : Values(), at,
                tuning);
}

inline void check_backward_input(const Conv2dShape& s, const Values& dy, const Values& weight,
                                 const Offsets& at = {}, const Tuning& tuning = {}) {
  INFO("tile " << static_cast<int>(tuning.tile) << " parts " << tuning.parts);
  compare_backward_input<float>(s, dy, weight, at, [&](const auto& a) {
    tapestry::kernels::cuda::launch_conv2d_backward_input({}, a, tuning);
  });
}
inline void check_backward_input(const Conv2dShape& s, const Offsets& at = {}, const Tuning& tuning = {}) {
  check_backward_input(s, numbers(y_size(s), 4), numbers(weight_size(s), 5), at, tuning);
}

inline void check_backward_weight(const Conv2dShape& s, const Values& dy, const Values& x,
                                  const Offsets& at = {}, const Tuning& tuning = {}) {
  INFO("tile " << static_cast<int>(tuning.tile) << " parts " << tuning.parts);
  compare_backward_weight<float>(s, dy, x, at, [&](const auto& a) {
    tapestry::kernels::cuda::launch_conv2d_backward_weight({}, a, tuning);
  });
}
inline void check_backward_weight(const Conv2dShape& s, const Offsets& at = {}, const Tuning& tuning = {}) {
  check_backward_weight(s, numbers(y_size(s), 6), numbers(x_size(s), 7), at, tuning);
}

/// Calls check(tuning, channels, channels_last) for each of these tiles, with and without split-K, in both
/// layouts; if kOnlyRaces, for half of the combinations. So many channels exceed one tile.
template <class Check>
void each_tile(std::initializer_list<TileKind> tiles, const Check& check) {
  unsigned calls = 0;
  for (const TileKind tile : tiles)
    for (const std::int64_t parts : {1, 3})
      for (const bool last : {false, true}) {
        if (next_choice(calls, 2) != 0 && kOnlyRaces) continue;
        check(Tuning{tile, parts}, tile == TileKind::wide ? 132 : tile == TileKind::slim ? 36 : 68, last);
      }
}

/// Convolutions with more pixels and more channels of y than one tile has. There is one for each loader: 1 x
/// 1 windows, channels that are a multiple of 4, and other channels. `stride_h` applies to the second.
inline std::vector<Conv2dShape> tiled_convolutions(std::int64_t k, bool last, std::int64_t stride_h = 1) {
  Conv2dShape dense{.n = 2, .c = 20, .h = 9, .w = 8, .k = k, .r = 1, .s = 1, .channels_last = last};
  Conv2dShape packs{.n = 1, .c = 12, .h = 13, .w = 12, .k = k, .r = 3, .s = 2, .channels_last = last};
  Conv2dShape singles{.n = 3, .c = 3, .h = 7, .w = 7, .k = k + 1, .r = 3, .s = 3, .channels_last = last};
  packs.stride_h = stride_h;
  packs.relu = singles.relu = true;
  for (Conv2dShape* const s : {&packs, &singles}) s->padding_h = s->padding_w = 1;
  return {sized(dense), sized(packs), sized(singles)};
}

/// Convolutions with one group, several groups and one channel per group, in both layouts.
inline std::vector<Conv2dShape> each_grouping(std::int64_t stride_h = 1) {
  std::vector<Conv2dShape> all;
  for (const bool last : {false, true})
    for (const std::int64_t groups : {1, 2, 8}) {
      Conv2dShape s{.n = 2, .c = 8, .h = 6, .w = 7, .k = 8, .r = 3, .s = 3, .groups = groups};
      s.stride_h = stride_h, s.padding_h = s.padding_w = 1, s.channels_last = last;
      all.push_back(sized(s));
    }
  return all;
}

/// Calls check(shape) for grouped and depthwise convolutions in both layouts. Some of the latter have images
/// of width w, windows of 3 x s, and each of these numbers of channels of y for 8 channels of x.
template <class Check>
void grouped_convolutions(std::int64_t w, std::int64_t s, std::initializer_list<std::int64_t> channels,
                          const Check& check) {
  for (const bool last : {false, true}) {
    Conv2dShape grouped{.n = 1, .c = 16, .h = 5, .w = 5, .k = 24, .r = 3, .s = 3, .groups = 4};
    grouped.padding_h = grouped.padding_w = 1, grouped.channels_last = last;
    check(sized(grouped));
    for (const std::int64_t k : channels) {
      Conv2dShape depthwise{.n = 2, .c = 8, .h = 9, .w = w, .k = k, .r = 3, .s = s, .groups = 8};
      depthwise.padding_h = depthwise.padding_w = 1;
      depthwise.channels_last = last, depthwise.relu = true;
      check(sized(depthwise));
    }
    Conv2dShape dilated{.n = 1, .c = 5, .h = 9, .w = 9, .k = 5, .r = 5, .s = 5, .groups = 5};
    dilated.stride_w = 2, dilated.padding_h = 4, dilated.dilation_h = 2, dilated.channels_last = last;
    check(sized(dilated));
  }
}

/// The shapes of transposed convolutions and of conv1d: images with rows and columns below and right of the
/// last window, of which some are at least a stride away, and images of one row.
inline std::vector<Conv2dShape> transposed_and_lines() {
  std::vector<Conv2dShape> all;
  for (const bool last : {false, true})
    for (const std::int64_t groups : {1, 2, 8}) {
      Conv2dShape s{.n = 2, .c = 8, .h = 9, .w = 11, .k = 8, .r = 4, .s = 3, .groups = groups};
      s.channels_last = last;
      s.stride_h = 2, s.padding_h = s.padding_w = 1, s.dilation_w = 3;
      s = sized(s);
      ++s.h, s.w += 2;  // output_padding 1 of stride 2, and 2 of stride 1 with dilation 3
      all.push_back(s);
      s = {.n = 2, .c = 8, .h = 1, .w = 37, .k = 8, .r = 1, .s = 5, .groups = groups, .channels_last = last};
      s.stride_w = 2, s.padding_w = 3, s.dilation_w = 2;
      all.push_back(sized(s));
    }
  return all;
}

/// Calls check(shape, bias, offsets, tuning) for random ragged shapes, misalignments and tunings.
template <class Check>
void random_convolutions(int trials, unsigned salt, const Check& check) {
  std::mt19937 bits(salt);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<unsigned>(high - low + 1));
  };
  for (int trial = 0; trial < (kOnlyRaces ? trials / 4 : trials); ++trial) {
    Conv2dShape s;
    s.channels_last = trial % 2 != 0;
    s.n = between(1, 3);
    s.groups = between(0, 2) == 0 ? between(2, 4) : 1;
    const std::int64_t unit = between(0, 1) ? 4 : 1;  // channels are a multiple of 4, or not
    s.c = s.groups * unit * between(1, 5), s.k = s.groups * unit * between(1, 5);
    if (trial % 7 == 0) s.c = s.groups = unit * between(2, 5), s.k = s.c * between(1, 2);  // depthwise
    s.r = between(1, 4), s.s = between(1, 4);
    if (trial % 3 == 0) s.r = s.s = 1;
    s.stride_h = between(1, 3), s.stride_w = between(1, 3);
    s.padding_h = between(0, 3), s.padding_w = between(0, 3);
    s.dilation_h = between(1, 2), s.dilation_w = between(1, 3);
    s.h = std::max<std::int64_t>(s.dilation_h * (s.r - 1) + 1 - 2 * s.padding_h, 1) + between(0, 6);
    s.w = std::max<std::int64_t>(s.dilation_w * (s.s - 1) + 1 - 2 * s.padding_w, 1) + between(0, 9);
    s.relu = between(0, 1);
    Offsets at;
    if (between(0, 3) == 0) (between(0, 1) ? at.x : between(0, 1) ? at.weight : at.y) = 1;
    Tuning tuning;
    if (between(0, 1)) tuning = {static_cast<TileKind>(between(0, 3)), between(1, 4)};
    if (between(0, 5) == 0) tuning.max_pixels = between(1, 40);
    check(sized(s), between(0, 1) != 0, at, tuning);
  }
}

/// Calls check(shape) with the largest allowed paddings, strides and dilations: windows start up to 2^31 - 1
/// before or after the image, and only some of them overlap it.
template <class Check>
void largest_paddings(const Check& check) {
  constexpr std::int64_t most = 0x7fffffff;
  for (const bool last : {false, true})
    for (const std::int64_t groups : {1, 4}) {
      Conv2dShape s{
          .n = 1, .c = 4, .h = 3, .w = 5, .k = 4, .r = 3, .s = 3, .groups = groups, .channels_last = last};
      s.stride_h = s.stride_w = s.padding_h = s.padding_w = most;
      check(sized(s));
      s.h = 4, s.s = 2;
      s.stride_h = 1 << 29, s.stride_w = 1 << 30;
      s.padding_w = (1 << 30) - 1;
      s.dilation_h = (1 << 30) - 1, s.dilation_w = 1 << 30;
      check(sized(s));
    }
}

}  // namespace emulated
