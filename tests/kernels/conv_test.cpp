#include "tapestry/kernels/cpu/conv.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tapestry/core/threads.h"
#include "tapestry/kernels/cpu/isa.h"
#include "tapestry/kernels/cpu/onednn_faults.h"
#include "tapestry/kernels/cpu/wide.h"
#include "tests/support/catch.h"
#include "tests/support/kernel_paths.h"

using namespace tapestry;
using namespace tapestry::kernels;
using tapestry::kernels::conv2d;

namespace {

template <class T>
constexpr bool kLow = std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>;
/// The type in which T is summed.
template <class T>
using Compute = std::conditional_t<kLow<T>, float, T>;

std::mt19937 random_bits(11);
std::int64_t between(std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random_bits);
}

// Chooses the sizes of images and outputs for these windows.
void choose_sizes(Conv2dShape& s) {
  const std::int64_t span_h = s.dilation_h * (s.r - 1) + 1, span_w = s.dilation_w * (s.s - 1) + 1;
  s.h = std::max<std::int64_t>(span_h - 2 * s.padding_h, 1) + between(0, 7);
  s.w = std::max<std::int64_t>(span_w - 2 * s.padding_w, 1) + between(0, 20);
  s.p = (s.h + 2 * s.padding_h - span_h) / s.stride_h + 1;
  s.q = (s.w + 2 * s.padding_w - span_w) / s.stride_w + 1;
}

Conv2dShape random_shape() {
  Conv2dShape s;
  s.n = between(1, 4);
  s.groups = between(0, 2) == 0 ? between(2, 3) : 1;
  s.c = s.groups * (between(0, 3) == 0 ? between(16, 20) : between(1, 5));
  s.k = s.groups * (between(0, 3) == 0 ? between(16, 20) : between(1, 5));
  s.r = between(1, 4), s.s = between(1, 4);
  s.stride_h = between(1, 3), s.stride_w = between(1, 3);
  s.padding_h = between(0, 3), s.padding_w = between(0, 3);
  s.dilation_h = between(1, 2), s.dilation_w = between(1, 2);
  choose_sizes(s);
  s.channels_last = between(0, 1);
  if (between(0, 5) == 0) s.h += between(0, 2), s.w += between(0, 2);  // as in transposed convolutions
  return s;
}

std::int64_t place(bool channels_last, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w,
                   std::int64_t channels, std::int64_t height, std::int64_t width) {
  return channels_last ? ((n * height + h) * width + w) * channels + c
                       : ((n * channels + c) * height + h) * width + w;
}

// Calls f(index in y, k, index in x, index in weight) for each product in the definition of the convolution.
template <class F>
void each_product(const Conv2dShape& s, F&& f) {
  const std::int64_t c_each = s.c / s.groups, k_each = s.k / s.groups;
  for (std::int64_t n = 0; n < s.n; ++n)
    for (std::int64_t k = 0; k < s.k; ++k)
      for (std::int64_t p = 0; p < s.p; ++p)
        for (std::int64_t q = 0; q < s.q; ++q)
          for (std::int64_t c = 0; c < c_each; ++c)
            for (std::int64_t r = 0; r < s.r; ++r)
              for (std::int64_t t = 0; t < s.s; ++t) {
                const std::int64_t h = p * s.stride_h - s.padding_h + r * s.dilation_h;
                const std::int64_t w = q * s.stride_w - s.padding_w + t * s.dilation_w;
                if (h < 0 || h >= s.h || w < 0 || w >= s.w) continue;
                f(place(s.channels_last, n, k, p, q, s.k, s.p, s.q),
                  place(s.channels_last, n, k / k_each * c_each + c, h, w, s.c, s.h, s.w),
                  ((k * c_each + c) * s.r + r) * s.s + t);
              }
}

struct Values {
  std::vector<double> x, weight, bias, dy;                        // inputs
  std::vector<double> y, dx, dweight, dbias;                      // expected results
  std::vector<double> y_size, dx_size, dweight_size, dbias_size;  // sums of magnitudes

  explicit Values(const Conv2dShape& s) {
    const auto random = [](std::int64_t n) {
      std::vector<double> v(static_cast<std::size_t>(n));
      for (double& e : v) e = static_cast<double>(between(-32, 32)) / 16;
      return v;
    };
    x = random(s.n * s.c * s.h * s.w), weight = random(s.k * (s.c / s.groups) * s.r * s.s);
    bias = random(s.k), dy = random(s.n * s.k * s.p * s.q);
    y.assign(dy.size(), 0), dx.assign(x.size(), 0), dweight.assign(weight.size(), 0),
        dbias.assign(bias.size(), 0);
    y_size = y, dx_size = dx, dweight_size = dweight, dbias_size = dbias;
    const auto add = [](std::vector<double>& sum, std::vector<double>& size, std::int64_t at, double v) {
      sum[static_cast<std::size_t>(at)] += v;
      size[static_cast<std::size_t>(at)] += std::abs(v);
    };
    for (std::int64_t n = 0; n < s.n; ++n)
      for (std::int64_t k = 0; k < s.k; ++k)
        for (std::int64_t p = 0; p < s.p; ++p)
          for (std::int64_t q = 0; q < s.q; ++q) {
            const std::int64_t at = place(s.channels_last, n, k, p, q, s.k, s.p, s.q);
            add(y, y_size, at, bias[static_cast<std::size_t>(k)]);
            add(dbias, dbias_size, k, dy[static_cast<std::size_t>(at)]);
          }
    each_product(s, [&](std::int64_t out, std::int64_t in, std::int64_t w) {
      const auto i = static_cast<std::size_t>(in), j = static_cast<std::size_t>(w),
                 o = static_cast<std::size_t>(out);
      add(y, y_size, out, x[i] * weight[j]);
      add(dx, dx_size, in, dy[o] * weight[j]);
      add(dweight, dweight_size, w, dy[o] * x[i]);
    });
  }
};

template <class T>
std::vector<T> as(const std::vector<double>& v) {
  std::vector<T> out(v.size());
  std::transform(v.begin(), v.end(), out.begin(), [](double x) { return T(static_cast<Compute<T>>(x)); });
  return out;
}

// The bound is |error| <= terms eps sum |terms|. It holds for any order of the sum. Sums of bf16 and f16 are
// f32, and are rounded at the end.
template <class T>
void check_close(const char* what, const std::vector<T>& got, const std::vector<double>& expected,
                 const std::vector<double>& size, std::int64_t terms) {
  const double eps = std::numeric_limits<Compute<T>>::epsilon() * static_cast<double>(terms + 2);
  const double storing = std::is_same_v<T, BFloat16> ? 0x1p-8 : std::is_same_v<T, Half> ? 0x1p-11 : 0;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<Compute<T>>(got[i]) - expected[i]);
    wrong += !(error <= eps * size[i] + storing * std::abs(expected[i]) + 1e-30);
  }
  INFO(what);
  CHECK(wrong == 0);
}

template <class T, class Way>
void check_way(const char* name, const Conv2dShape& s, const Values& v, bool with_bias) {
  INFO(name << (s.channels_last ? " channels-last" : " row-major") << " n " << s.n << " c " << s.c << " h "
            << s.h << " w " << s.w << " k " << s.k << " r " << s.r << " s " << s.s << " stride " << s.stride_h
            << "," << s.stride_w << " padding " << s.padding_h << "," << s.padding_w << " dilation "
            << s.dilation_h << "," << s.dilation_w << " groups " << s.groups << " bias " << with_bias);
  const std::vector<T> x = as<T>(v.x), weight = as<T>(v.weight), bias = as<T>(v.bias), dy = as<T>(v.dy);
  std::vector<T> y(dy.size(), T(9)), dx(x.size(), T(9)), dweight(weight.size(), T(9)),
      dbias(bias.size(), T(9));
  Way::forward({}, s, x.data(), weight.data(), with_bias ? bias.data() : nullptr, y.data());
  Way::backward_input({}, s, dy.data(), weight.data(), dx.data());
  Way::backward_weight({}, s, dy.data(), x.data(), dweight.data(), with_bias ? dbias.data() : nullptr);
  std::vector<double> expected = v.y;
  if (!with_bias)
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(y.size()); ++i)
      expected[static_cast<std::size_t>(i)] -=
          v.bias[static_cast<std::size_t>(s.channels_last ? i % s.k : i / (s.p * s.q) % s.k)];
  const std::int64_t window = s.c / s.groups * s.r * s.s, outputs = s.n * s.p * s.q;
  check_close("y", y, expected, v.y_size, window + 1);
  check_close("dx", dx, v.dx, v.dx_size, s.k / s.groups * s.r * s.s);
  check_close("dweight", dweight, v.dweight, v.dweight_size, outputs);
  if (with_bias) check_close("dbias", dbias, v.dbias, v.dbias_size, outputs);
}

// A build without oneDNN refuses all shapes, and a processor without bf16 instructions those of bf16.
template <class T>
bool onednn_takes(const Conv2dShape& s) {
  const std::vector<T> x(static_cast<std::size_t>(s.n * s.c * s.h * s.w)),
      weight(static_cast<std::size_t>(s.k * s.c / s.groups * s.r * s.s));
  std::vector<T> y(static_cast<std::size_t>(s.n * s.k * s.p * s.q));
  return cpu::OneDnnConv<T>::forward({}, s, x.data(), weight.data(), nullptr, y.data());
}

/// The kernels, which choose between implementations.
template <class T>
struct Slots {
  static void forward(const LaunchContext&, const Conv2dShape& s, const T* x, const T* weight, const T* bias,
                      T* y) {
    conv2d(kCPU, dtype_of<T>, {.shape = s, .x = x, .weight = weight, .bias = bias, .y = y});
  }
  static void backward_input(const LaunchContext&, const Conv2dShape& s, const T* dy, const T* weight,
                             T* dx) {
    conv2d_backward_input(kCPU, dtype_of<T>, {.shape = s, .dy = dy, .weight = weight, .dx = dx});
  }
  static void backward_weight(const LaunchContext&, const Conv2dShape& s, const T* dy, const T* x, T* dweight,
                              T* dbias) {
    conv2d_backward_weight(kCPU, dtype_of<T>,
                           {.shape = s, .dy = dy, .x = x, .dweight = dweight, .dbias = dbias});
  }
};

/// Calls cpu::Depthwise or cpu::DepthwiseLast, without the fallback to oneDNN. They must not refuse finite
/// inputs.
template <class T>
struct OnlyDepthwise {
  static bool fits(const Conv2dShape& s) {
    return cpu::Depthwise<T>::fits(s) || cpu::DepthwiseLast<T>::fits(s);
  }
  static std::vector<float> wide(std::int64_t n, const T* from) {
    std::vector<float> all(static_cast<std::size_t>(n));
    std::transform(from, from + n, all.begin(), [](T v) { return static_cast<float>(v); });
    return all;
  }
  static void forward(const LaunchContext&, const Conv2dShape& s, const T* x, const T* weight, const T* bias,
                      T* y) {
    const auto w = wide(s.c * s.r * s.s, weight), b = bias ? wide(s.c, bias) : std::vector<float>();
    const float* const start = bias ? b.data() : nullptr;
    if (cpu::Depthwise<T>::fits(s)) CHECK(cpu::Depthwise<T>::forward(s, x, w.data(), start, y));
    else CHECK(cpu::DepthwiseLast<T>::forward(s, x, w.data(), start, y));
  }
  static void backward_input(const LaunchContext&, const Conv2dShape& s, const T* dy, const T* weight,
                             T* dx) {
    const auto w = wide(s.c * s.r * s.s, weight);
    if (cpu::Depthwise<T>::fits(s)) CHECK(cpu::Depthwise<T>::backward_input(s, dy, w.data(), dx));
    else CHECK(cpu::DepthwiseLast<T>::backward_input(s, dy, w.data(), dx));
  }
  static void backward_weight(const LaunchContext&, const Conv2dShape& s, const T* dy, const T* x, T* dweight,
                              T* dbias) {
    std::vector<float> dw(static_cast<std::size_t>(s.c * s.r * s.s), 9.0f),
        db(static_cast<std::size_t>(s.c), 9.0f);
    float* const bias = dbias ? db.data() : nullptr;
    if (cpu::Depthwise<T>::fits(s)) CHECK(cpu::Depthwise<T>::backward_weight(s, dy, x, dw.data(), bias));
    else CHECK(cpu::DepthwiseLast<T>::backward_weight(s, dy, x, dw.data(), bias));
    std::transform(dw.begin(), dw.end(), dweight, [](float v) { return T(v); });
    if (dbias) std::transform(db.begin(), db.end(), dbias, [](float v) { return T(v); });
  }
};

/// What the three passes give for these values of type T.
template <class T, class Way>
std::vector<std::vector<float>> results(const Conv2dShape& s, const Values& v) {
  const std::vector<T> x = as<T>(v.x), weight = as<T>(v.weight), bias = as<T>(v.bias), dy = as<T>(v.dy);
  std::vector<T> y(dy.size()), dx(x.size()), dweight(weight.size()), dbias(bias.size());
  Way::forward({}, s, x.data(), weight.data(), bias.data(), y.data());
  Way::backward_input({}, s, dy.data(), weight.data(), dx.data());
  Way::backward_weight({}, s, dy.data(), x.data(), dweight.data(), dbias.data());
  std::vector<std::vector<float>> all;
  for (const std::vector<T>& part : {y, dx, dweight, dbias}) {
    all.emplace_back(part.size());
    std::transform(part.begin(), part.end(), all.back().begin(), [](T e) { return static_cast<float>(e); });
  }
  return all;
}

}  // namespace

TEST_CASE(
    "conv2d: every implementation gives the values of the definition in f64, for random ragged shapes") {
  const int before = get_num_threads();
  int by_onednn = 0, in_bf16 = 0;
  for (int trial = 0; trial < 60; ++trial) {
    set_num_threads(1 + trial % 3);
    Conv2dShape s = random_shape();
    if (trial % 4 == 0) s.c = 16 * s.groups, s.k = 32 * s.groups;  // a shape that bf16 kernels take
    const Values v(s);
    check_way<double, cpu::Im2col<double>>("im2col", s, v, trial % 2);
    check_way<float, cpu::Im2col<float>>("im2col", s, v, trial % 2);
    check_way<BFloat16, Slots<BFloat16>>("bf16", s, v, trial % 2);
    in_bf16 += onednn_takes<BFloat16>(s);
    if (onednn_takes<float>(s)) {
      check_way<float, cpu::OneDnnConv<float>>("oneDNN", s, v, trial % 2);
      ++by_onednn;
    }
  }
  if (in_bf16 == 0) WARN("no bf16 instructions, or no oneDNN: convolutions in bf16 were not tested");
  if (by_onednn == 0) WARN("this build has no oneDNN: its convolutions were not tested");
  set_num_threads(before);
}

TEST_CASE(
    "conv2d: depthwise convolutions give the values of the definition, and the same bits on 1 and 3 "
    "threads and for AVX2 and AVX-512") {
  const int before = get_num_threads();
  constexpr std::int64_t kChannels[] = {1, 3, 7, 8, 17, 32, 33};
  for (int trial = 0; trial < 70; ++trial) {
    Conv2dShape s = random_shape();
    s.groups = s.c = s.k = kChannels[trial % 7];
    s.channels_last = trial % 2;
    if (trial % 3 == 0) s.r = between(0, 1) ? 5 : 7, s.s = between(0, 1) ? 5 : 7;
    choose_sizes(s);
    if (trial % 5 == 0) s.h += 8, s.p += 8 / s.stride_h, s.w += 20, s.q += 20 / s.stride_w;
    if (trial % 5 == 1) s.h += between(0, 2), s.w += between(0, 2);  // as in transposed convolutions
    const Values v(s);
    set_num_threads(1 + trial % 3);
    cpu::set_wide_loops(trial % 4 < 2);
    REQUIRE(OnlyDepthwise<float>::fits(s));
    check_way<float, OnlyDepthwise<float>>("depthwise f32", s, v, trial % 4 == 3);
    check_way<BFloat16, OnlyDepthwise<BFloat16>>("depthwise bf16", s, v, trial % 4 == 3);
    check_way<Half, OnlyDepthwise<Half>>("depthwise f16", s, v, trial % 4 == 3);
    check_way<BFloat16, Slots<BFloat16>>("bf16", s, v, trial % 4 == 3);
    check_way<float, Slots<float>>("f32", s, v, trial % 4 == 3);
    if (trial % 7 != 4 || trial > 50) continue;
    s.n = 40;  // enough work for 3 threads
    const Values more(s);
    const auto compare = [&]<class T>() {
      set_num_threads(1);
      cpu::set_wide_loops(true);
      const auto one = results<T, OnlyDepthwise<T>>(s, more);
      set_num_threads(3);
      CHECK(results<T, OnlyDepthwise<T>>(s, more) == one);
      cpu::set_wide_loops(false);
      CHECK(results<T, OnlyDepthwise<T>>(s, more) == one);
    };
    compare.operator()<float>();
    compare.operator()<BFloat16>();
  }
  cpu::set_wide_loops(true);
  set_num_threads(before);
  Conv2dShape empty{.n = 0, .c = 8, .h = 4, .w = 4, .k = 8, .r = 3, .s = 3, .p = 2, .q = 2};
  empty.groups = 8;
  for (const bool last : {false, true}) {
    empty.channels_last = last;
    check_way<BFloat16, Slots<BFloat16>>("empty batch", empty, Values(empty), true);
  }
}

TEST_CASE("conv2d: an infinite number affects what it meets in a depthwise convolution, and nothing else") {
  // The first shape has strides and padding, where a kernel may multiply zeros that the definition does not
  // have. The second one has 16 channels and no strides: channels-last, f32 copies compute it.
  Conv2dShape s{.n = 1, .c = 2, .h = 6, .w = 9, .k = 2, .r = 3, .s = 3, .p = 3, .q = 5};
  s.stride_h = s.stride_w = 2, s.padding_h = s.padding_w = 1;
  if (GENERATE(false, true)) s.c = s.k = 16, s.stride_h = s.stride_w = 1, s.p = s.h, s.q = s.w;
  s.groups = s.c;
  Values v(s);
  for (double& x : v.x) x = 1 + std::abs(x);
  for (double& w : v.weight) w = 1 + std::abs(w);
  for (double& d : v.dy) d = 1 + std::abs(d);
  const double infinity = std::numeric_limits<double>::infinity();
  SECTION("input") { v.x[13] = infinity; }
  SECTION("weight") { v.weight[4] = infinity; }
  SECTION("weight at an edge") { v.weight[0] = infinity; }
  SECTION("gradient") { v.dy[6] = infinity; }
  for (const bool last : {false, true}) {
    if (!last && cpu::isa() < cpu::Isa::avx2) {
      // Row-major results that are not finite are left to oneDNN, whose kernels without AVX2 multiply the
      // zeros of the padding.
      WARN("no AVX2: row-major depthwise convolutions of infinities were not tested");
      continue;
    }
    s.channels_last = last;
    std::vector<double> y(v.y.size()), dx(v.dx.size()), dweight(v.dweight.size());
    for (std::size_t i = 0; i < y.size(); ++i)
      y[i] = v.bias[s.channels_last ? i % v.bias.size() : i / static_cast<std::size_t>(s.p * s.q)];
    each_product(s, [&](std::int64_t out, std::int64_t in, std::int64_t w) {
      const auto i = static_cast<std::size_t>(in), j = static_cast<std::size_t>(w),
                 o = static_cast<std::size_t>(out);
      y[o] += v.x[i] * v.weight[j], dx[i] += v.dy[o] * v.weight[j], dweight[j] += v.dy[o] * v.x[i];
    });
    const std::vector<double>* const want[] = {&y, &dx, &dweight};
    const auto check_results = [&](const std::vector<std::vector<float>>& got) {
      for (std::size_t t = 0; t < 3; ++t)
        for (std::size_t i = 0; i < want[t]->size(); ++i) {
          CAPTURE(s.channels_last, t, i, got[t][i], (*want[t])[i]);
          CHECK(std::isinf((*want[t])[i]) == std::isinf(got[t][i]));
          CHECK_FALSE(std::isnan(got[t][i]));
        }
    };
    check_results(results<float, Slots<float>>(s, v));
    check_results(results<BFloat16, Slots<BFloat16>>(s, v));
  }
}

TEST_CASE(
    "conv2d: products of matrices and what oneDNN computes give the values of the definition through the "
    "slots") {
  const int before = get_num_threads();
  for (int trial = 0; trial < 24; ++trial) {
    Conv2dShape s = random_shape();
    if (trial % 3) {  // a window of 1; images on both sides of the least size of products
      s.r = s.s = s.stride_h = s.stride_w = s.groups = 1;
      s.padding_h = s.padding_w = 0;
      s.n = between(1, 4), s.c = between(4, 20), s.k = between(4, 20);
      s.h = s.p = between(5, 8), s.w = s.q = between(7, 12);
      s.channels_last = trial % 2;
      CHECK(cpu::is_product(s) == !s.channels_last);
    }
    const Values v(s);
    set_num_threads(1 + trial % 3);
    check_way<float, Slots<float>>("f32", s, v, trial % 2);
    check_way<double, Slots<double>>("f64", s, v, trial % 2);
  }
  set_num_threads(before);
}

TEST_CASE("conv2d: the gradient of the weight for images of a few pixels has the values of the definition") {
  const int before = get_num_threads();
  struct Way : Slots<float> {
    static void backward_weight(const LaunchContext& context, const Conv2dShape& s, const float* dy,
                                const float* x, float* dweight, float* dbias) {
      cpu::SmallImages::backward_weight(context, s, dy, x, dweight, dbias);
    }
  };
  for (int trial = 0; trial < 10; ++trial) {
    Conv2dShape s = random_shape();
    s.groups = 1, s.channels_last = false;
    s.c = between(32, 35), s.k = between(32, 40);
    s.h = std::max<std::int64_t>(s.dilation_h * (s.r - 1) + 1 - 2 * s.padding_h, 1) + between(0, 2);
    s.w = std::max<std::int64_t>(s.dilation_w * (s.s - 1) + 1 - 2 * s.padding_w, 1) + between(0, 2);
    s.p = (s.h + 2 * s.padding_h - s.dilation_h * (s.r - 1) - 1) / s.stride_h + 1;
    s.q = (s.w + 2 * s.padding_w - s.dilation_w * (s.s - 1) - 1) / s.stride_w + 1;
    s.n = between(9, 12);
    const std::int64_t pixels = s.p * s.q;
    CHECK(cpu::SmallImages::fits(s) == (pixels <= 8 && s.n * pixels >= 32 && s.r * s.s > 1));
    set_num_threads(1 + trial % 3);
    check_way<float, Way>("small images", s, Values(s), trial % 2);
    s.channels_last = true;
    CHECK_FALSE(cpu::SmallImages::fits(s));
  }
  set_num_threads(before);
}

TEST_CASE("conv2d: the fused relu sets negative values to zero and keeps NaN") {
  for (const bool channels_last : {false, true}) {
    Conv2dShape s{.n = 2, .c = 4, .h = 5, .w = 5, .k = 8, .r = 3, .s = 3, .p = 3, .q = 3};
    s.channels_last = channels_last;
    Values v(s);
    v.x[7] = std::numeric_limits<double>::quiet_NaN();
    const auto check_type = [&]<class T>() {
      const std::vector<T> x = as<T>(v.x), weight = as<T>(v.weight), bias = as<T>(v.bias);
      std::vector<T> plain(v.y.size()), cleared(v.y.size());
      s.relu = false;
      conv2d(kCPU, dtype_of<T>,
             {.shape = s, .x = x.data(), .weight = weight.data(), .bias = bias.data(), .y = plain.data()});
      s.relu = true;
      conv2d(kCPU, dtype_of<T>,
             {.shape = s, .x = x.data(), .weight = weight.data(), .bias = bias.data(), .y = cleared.data()});
      int negative = 0, nan = 0;
      for (std::size_t i = 0; i < plain.size(); ++i) {
        const auto was = static_cast<Compute<T>>(plain[i]), is = static_cast<Compute<T>>(cleared[i]);
        negative += was < 0;
        nan += std::isnan(was);
        if (std::isnan(was)) CHECK(std::isnan(is));
        else CHECK(is == std::max(was, Compute<T>(0)));
      }
      CHECK(negative > 0);
      CHECK(nan > 0);
    };
    check_type.operator()<float>();
    check_type.operator()<double>();
    check_type.operator()<BFloat16>();
  }
}

TEST_CASE(
    "conv2d in bf16: an infinite input affects the outputs and the weights that it meets, and no others") {
  Conv2dShape s{.n = 1, .c = 16, .h = 5, .w = 7, .k = 16, .r = 3, .s = 2, .p = 3, .q = 6};
  s.channels_last = true;
  Values v(s);
  v.x[3] = std::numeric_limits<double>::infinity();
  const std::vector<BFloat16> x = as<BFloat16>(v.x), weight = as<BFloat16>(v.weight), dy = as<BFloat16>(v.dy);
  std::vector<BFloat16> y(dy.size()), dweight(weight.size());
  conv2d(kCPU, DType::bf16, {.shape = s, .x = x.data(), .weight = weight.data(), .y = y.data()});
  conv2d_backward_weight(kCPU, DType::bf16,
                         {.shape = s, .dy = dy.data(), .x = x.data(), .dweight = dweight.data()});
  std::vector<bool> meets_y(y.size()), meets_weight(weight.size());
  each_product(s, [&](std::int64_t out, std::int64_t in, std::int64_t w) {
    if (in != 3) return;
    meets_y[static_cast<std::size_t>(out)] = meets_weight[static_cast<std::size_t>(w)] = true;
  });
  const auto finite = [](BFloat16 b) { return std::isfinite(static_cast<float>(b)); };
  for (std::size_t i = 0; i < y.size(); ++i)
    if (!meets_y[i]) CHECK(finite(y[i]));
  for (std::size_t i = 0; i < dweight.size(); ++i)
    if (!meets_weight[i]) CHECK(finite(dweight[i]));
  CHECK_FALSE(std::all_of(y.begin(), y.end(), finite));
}

TEST_CASE("conv2d in bf16 is computed by AMX or in f32 where vdpbf16ps does not pay") {
  const Bf16DotPays pays(false);
  for (const bool channels_last : {false, true}) {
    Conv2dShape s{.n = 3, .c = 16, .h = 7, .w = 9, .k = 32, .r = 3, .s = 3, .p = 5, .q = 7};
    s.channels_last = channels_last;
    const Values v(s);
    check_way<BFloat16, Slots<BFloat16>>("bf16", s, v, true);
    CHECK(onednn_takes<BFloat16>(s) == (cpu::bf16_conv_kernel(s).find("amx") != std::string::npos));
  }
}

TEST_CASE("AMX kernels of oneDNN versions with the stride fault take no stride beyond the window") {
  using cpu::has_stride_fault;
  const Conv2dShape high{.r = 1, .s = 3, .stride_h = 2, .stride_w = 2},
      wide{.r = 3, .s = 2, .stride_h = 2, .stride_w = 3}, three{.r = 3, .s = 4, .stride_h = 1, .stride_w = 3},
      two{.r = 2, .s = 2, .stride_h = 2, .stride_w = 2};
  for (const char* amx : {"brgconv:avx512_core_amx_bf16", "brg_conv_fwd:avx10_1_512_amx"}) {
    for (const cpu::OneDnnVersion faulty : {cpu::OneDnnVersion{2, 6, 3}, {2, 7, 5}, {3, 7, 2}, {3, 13, 0}}) {
      CHECK(has_stride_fault(amx, high, faulty));
      CHECK(has_stride_fault(amx, wide, faulty));
      CHECK(has_stride_fault(amx, three, faulty));
      CHECK_FALSE(has_stride_fault(amx, two, faulty));
    }
    for (const cpu::OneDnnVersion mended : {cpu::OneDnnVersion{3, 14, 0}, {4, 0, 0}})
      CHECK_FALSE(has_stride_fault(amx, high, mended));
  }
  for (const char* right :
       {"brgconv:avx512_core_bf16", "brgconv_1x1:avx512_core_amx_bf16", "jit:avx512_core_amx_bf16"})
    CHECK_FALSE(has_stride_fault(right, high, {2, 6, 3}));
}

TEST_CASE("conv2d in bf16: strides of AMX's faulty kernels, and others") {
  const int before = get_num_threads();
  set_num_threads(2);
  for (const bool channels_last : {false, true})
    for (const auto& [r, s, stride_h, stride_w] :
         {std::array{1, 2, 2, 2}, {1, 3, 4, 3}, {2, 2, 3, 4}, {3, 4, 1, 3}, {3, 3, 2, 2}}) {
      CAPTURE(channels_last, r, s, stride_h, stride_w);
      Conv2dShape shape{.n = 7, .c = 64, .k = 128, .r = r, .s = s};
      shape.stride_h = stride_h, shape.stride_w = stride_w, shape.padding_w = 1;
      shape.h = 9, shape.w = 16, shape.channels_last = channels_last;
      shape.p = (9 - r) / stride_h + 1, shape.q = (18 - s) / stride_w + 1;
      const auto random = [](std::int64_t n) {
        std::vector<double> v(static_cast<std::size_t>(n));
        for (double& e : v) e = static_cast<double>(between(-32, 32)) / 16;
        return v;
      };
      std::vector<double> x64 = random(shape.n * shape.c * shape.h * shape.w),
                          weight64 = random(shape.k * shape.c * r * s), bias64 = random(shape.k);
      const std::vector<BFloat16> x = as<BFloat16>(x64), weight = as<BFloat16>(weight64),
                                  bias = as<BFloat16>(bias64);
      // Im2col in f64, which the first test case compares with the definition, is the reference.
      std::vector<double> expected(static_cast<std::size_t>(shape.n * shape.k * shape.p * shape.q)),
          magnitudes = expected;
      cpu::Im2col<double>::forward({}, shape, x64.data(), weight64.data(), bias64.data(), expected.data());
      for (std::vector<double>* all : {&x64, &weight64, &bias64})
        for (double& e : *all) e = std::abs(e);
      cpu::Im2col<double>::forward({}, shape, x64.data(), weight64.data(), bias64.data(), magnitudes.data());
      const auto check = [&] {
        std::vector<BFloat16> y(expected.size());
        conv2d(kCPU, DType::bf16,
               {.shape = shape, .x = x.data(), .weight = weight.data(), .bias = bias.data(), .y = y.data()});
        check_close("y", y, expected, magnitudes, shape.c * r * s);
      };
      for (int repeat = 0; repeat < 4; ++repeat) check();
      // On a processor without AMX, the kernel that oneDNN prefers stands for the faulty one.
      const std::string first = cpu::bf16_conv_kernel(shape);
      if (first.empty()) continue;
      const bool beyond = stride_h > r || stride_w > s || stride_w > 2;
      for (const std::string& part : {first, std::string(":")}) {
        cpu::plant_stride_fault(part);
        CHECK((cpu::bf16_conv_kernel(shape) == first) == !beyond);
        check();
      }
      CHECK(cpu::bf16_conv_kernel(shape).empty() == beyond);
      cpu::plant_stride_fault("");
    }
  set_num_threads(before);
}

TEST_CASE(
    "conv2d: the gradient of the weight of strided 1 x 1 windows over few channels of channels-last images") {
  using cpu::has_copy_fault;
  Conv2dShape s{.n = 63, .c = 7, .h = 12, .w = 16, .k = 80, .r = 1, .s = 1, .p = 12, .q = 8};
  s.stride_w = 2, s.channels_last = true;
  CHECK(has_copy_fault("jit_1x1:avx512_core", s));
  CHECK(has_copy_fault("jit_1x1:avx2", s));
  CHECK_FALSE(has_copy_fault("jit:avx512_core", s));
  Conv2dShape other = s;
  other.channels_last = false;
  CHECK_FALSE(has_copy_fault("jit_1x1:avx512_core", other));
  other = s, other.stride_w = 1;
  CHECK_FALSE(has_copy_fault("jit_1x1:avx512_core", other));
  other = s, other.c = 32, other.groups = 2;
  CHECK_FALSE(has_copy_fault("jit_1x1:avx512_core", other));

  const int before = get_num_threads();
  set_num_threads(2);
  const Values v(s);
  for (int repeat = 0; repeat < 10; ++repeat) check_way<float, Slots<float>>("slots", s, v, true);
  set_num_threads(before);
}
