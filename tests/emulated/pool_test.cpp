// Tests that pooling kernels match the CPU's kernels in f64 on every launch path, for ragged windows and
// extremes.
#include "tapestry/kernels/cuda/pool.cuh"

#include <cmath>
#include <string>
#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;
using tapestry::kernels::adaptive_avg_pool2d, tapestry::kernels::avg_pool2d;

namespace {

std::size_t input_size(const Pool2dShape& s) { return static_cast<std::size_t>(s.n * s.c * s.h * s.w); }
std::size_t output_size(const Pool2dShape& s) { return static_cast<std::size_t>(s.n * s.c * s.p * s.q); }
/// The number of windows, computed as by the public functions.
std::int64_t windows(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                     std::int64_t dilation, bool ceil) {
  const std::int64_t room = in + 2 * padding - dilation * (kernel - 1) - 1;
  std::int64_t out = (room + (ceil ? stride - 1 : 0)) / stride + 1;
  if (ceil && (out - 1) * stride >= in + padding) --out;
  return out;
}
Pool2dShape sized(Pool2dShape s, bool ceil = false) {
  s.p = windows(s.h, s.kernel_h, s.stride_h, s.padding_h, s.dilation_h, ceil);
  s.q = windows(s.w, s.kernel_w, s.stride_w, s.padding_w, s.dilation_w, ceil);
  return s;
}

template <class T, class I>
void check_max(const Pool2dShape& s, const Values& x, std::size_t offset) {
  Values y(output_size(s)), dx(x.size()), error(x.size());
  std::vector<I> places(y.size());
  kernels::max_pool2d(kCPU, DType::f64, {.shape = s, .x = x.data(), .y = y.data(), .places = places.data()});
  const Values dy = numbers(static_cast<std::int64_t>(y.size()), 5, 2);
  kernels::max_pool2d_backward(kCPU, DType::f64,
                               {.shape = s, .dy = dy.data(), .places = places.data(), .dx = dx.data()});
  for (double& e : error) e = 64 * 2;  // a few additions of numbers below 2
  in_each_order([&] {
    const Block<T> in(x, offset), out(Values(y.size(), 77), offset), plain(y.size()), grad(dy, offset),
        din(Values(x.size(), 77), offset);
    const Block<I> found(y.size());
    gpu::launch_max_pool2d<T>({}, {.shape = s, .x = in.data(), .y = out.data(), .places = found.data()});
    check_close("y", out, y, Values(y.size()));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < y.size(); ++i) wrong += found[i] != places[i];
    CHECK(wrong == 0);
    gpu::launch_max_pool2d<T>({}, {.shape = s, .x = in.data(), .y = plain.data()});
    check_close("y without places", plain, y, Values(y.size()));
    gpu::launch_max_pool2d_backward<T>(
        {}, {.shape = s, .dy = grad.data(), .places = found.data(), .dx = din.data()});
    check_close("dx", din, dx, error);
  });
}
template <class T>
void check_max(const Pool2dShape& s, const Values& x, std::size_t offset) {
  CAPTURE(s.n, s.c, s.h, s.w, s.p, s.q, s.kernel_h, s.kernel_w, s.stride_h, s.stride_w, s.padding_h,
          s.padding_w, s.dilation_h, s.dilation_w, s.channels_last, offset, sizeof(T));
  if (s.kernel_h * s.kernel_w <= kSmallWindow) check_max<T, std::uint8_t>(s, x, offset);
  else check_max<T, std::int32_t>(s, x, offset);
}

template <class T>
void check_average(const Pool2dShape& s, bool adaptive, std::size_t offset) {
  CAPTURE(s.n, s.c, s.h, s.w, s.p, s.q, s.kernel_h, s.kernel_w, s.stride_h, s.stride_w, s.padding_h,
          s.padding_w, s.count_include_pad, s.channels_last, adaptive, offset, sizeof(T));
  const Values x = numbers(static_cast<std::int64_t>(input_size(s)), 1, 2);
  Values y(output_size(s)), dx(x.size());
  const Values dy = numbers(static_cast<std::int64_t>(y.size()), 5, 2);
  (adaptive ? adaptive_avg_pool2d : avg_pool2d)(kCPU, DType::f64, {.shape = s, .x = x.data(), .y = y.data()});
  (adaptive ? adaptive_avg_pool2d_backward : avg_pool2d_backward)(
      kCPU, DType::f64, {.shape = s, .dy = dy.data(), .dx = dx.data()});
  const std::int64_t window = adaptive ? (s.h / s.p + 2) * (s.w / s.q + 2) : s.kernel_h * s.kernel_w;
  const double error =
      2 * (roundings(window) + static_cast<double>(window));  // a lane adds its elements in turn
  in_each_order([&] {
    const Block<T> in(x, offset), out(Values(y.size(), 77), offset), grad(dy, offset),
        din(Values(x.size(), 77), offset);
    (adaptive ? &gpu::launch_average_pool<T, true>
              : &gpu::launch_average_pool<T, false>)({}, {.shape = s, .x = in.data(), .y = out.data()});
    check_close("y", out, y, Values(y.size(), error));
    (adaptive
         ? &gpu::launch_average_pool_backward<T, true>
         : &gpu::launch_average_pool_backward<T, false>)({},
                                                         {.shape = s, .dy = grad.data(), .dx = din.data()});
    check_close("dx", din, dx, Values(dx.size(), 2 * roundings(64)));
  });
}

/// Checks max pooling in every dtype and both layouts, and average pooling of the same windows unless
/// dilated.
void check_windows(Pool2dShape s, std::size_t offset = 0) {
  for (const bool channels_last : {false, true}) {
    s.channels_last = channels_last;
    const Values x = numbers(static_cast<std::int64_t>(input_size(s)), 1, 2);
    for_float_dtypes([&]<class T>() { check_max<T>(s, x, offset); });
    if (s.dilation_h != 1 || s.dilation_w != 1) continue;
    for (const bool count_pad : {false, true}) {
      s.count_include_pad = count_pad;
      for_float_dtypes([&]<class T>() { check_average<T>(s, false, offset); });
    }
  }
}
void check_adaptive(Pool2dShape s, std::size_t offset = 0) {
  for (const bool channels_last : {false, true}) {
    s.channels_last = channels_last;
    for_float_dtypes([&]<class T>() { check_average<T>(s, true, offset); });
  }
}

Pool2dShape square(std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                   std::int64_t dilation = 1) {
  return {.n = 2,
          .c = 8,
          .h = 9,
          .w = 7,
          .kernel_h = kernel,
          .kernel_w = kernel,
          .stride_h = stride,
          .stride_w = stride,
          .padding_h = padding,
          .padding_w = padding,
          .dilation_h = dilation,
          .dilation_w = dilation};
}

}  // namespace

TEST_CASE("pool kernels: padded, ragged, dilated and ceil-mode windows give the CPU's values") {
  for (const std::int64_t c : {3, 8})
    for (Pool2dShape s : {square(2, 2, 0), square(3, 2, 1), square(3, 1, 1), square(1, 3, 0)}) {
      s.c = c;
      check_windows(sized(s));
    }
  check_windows(sized(square(3, 2, 1), true));
  check_windows(sized(square(2, 2, 0), true));
  check_windows(sized(square(3, 1, 1, 2)));
  check_windows(sized(square(2, 3, 1, 3)));
  check_windows(sized({.n = 1,
                       .c = 8,
                       .h = 5,
                       .w = 12,
                       .kernel_h = 2,
                       .kernel_w = 5,
                       .stride_h = 1,
                       .stride_w = 3,
                       .padding_h = 1,
                       .padding_w = 2}));
}

TEST_CASE("pool kernels: windows with more than 255 elements store i32 positions") {
  const Pool2dShape large{.n = 1,
                          .c = 8,
                          .h = 20,
                          .w = 19,
                          .kernel_h = 17,
                          .kernel_w = 16,
                          .stride_h = 2,
                          .stride_w = 3,
                          .padding_h = 8,
                          .padding_w = 5};
  check_windows(sized(large));
  check_windows(
      sized({.n = 2, .c = 3, .h = 9, .w = 9, .kernel_h = 6, .kernel_w = 6, .stride_h = 3, .stride_w = 3}));
}

TEST_CASE("pool kernels: windows of 254 to 257 elements whose last element is the largest") {
  for (const std::int64_t window : {254, 255, 256, 257})
    for (const bool tall : {false, true})
      for (const bool channels_last : {false, true}) {
        Pool2dShape s{.n = 2, .c = 4, .h = tall ? window : 1, .w = tall ? 1 : window};
        s.kernel_h = s.h, s.kernel_w = s.w, s.p = s.q = 1, s.channels_last = channels_last;
        Values x(input_size(s));
        // Rising values along the window, in either layout.
        for (std::size_t i = 0; i < x.size(); ++i)
          x[i] = static_cast<double>(channels_last ? i / 4 % static_cast<std::size_t>(window)
                                                   : i % static_cast<std::size_t>(window)) /
                 128;
        check_max<float>(s, x, 0);
      }
}

TEST_CASE("pool kernels: misaligned arrays give the same values") {
  check_windows(sized(square(3, 2, 1)), 1);
  check_adaptive({.n = 2, .c = 8, .h = 5, .w = 4, .p = 2, .q = 2}, 1);
}

TEST_CASE("pool kernels: large adaptive windows, one warp per output, give the CPU's values") {
  check_adaptive({.n = 2, .c = 8, .h = 7, .w = 9, .p = 2, .q = 5});
  check_adaptive({.n = 1, .c = 3, .h = 33, .w = 35, .p = 1, .q = 1});
  check_adaptive({.n = 1, .c = 2, .h = 16, .w = 100, .p = 2, .q = 3});
  check_adaptive({.n = 1, .c = 2, .h = 100, .w = 3, .p = 2, .q = 1});
}

TEST_CASE("pool kernels: NaN, infinities and windows without an element give the CPU's values") {
  for (const bool channels_last : {false, true}) {
    Pool2dShape s = sized(square(3, 2, 1));
    s.channels_last = channels_last;
    Values x = numbers(static_cast<std::int64_t>(input_size(s)), 1, 2);
    for (std::size_t i = 0; i < x.size(); i += 13) x[i] = kNaN;
    for (std::size_t i = 5; i < x.size(); i += 17) x[i] = kInfinity;
    for (std::size_t i = x.size() / 2; i < x.size() * 3 / 4; ++i) x[i] = -kInfinity;
    for_float_dtypes([&]<class T>() { check_max<T>(s, x, 0); });
    s = sized({.n = 1,
               .c = 8,
               .h = 1,
               .w = 3,
               .kernel_h = 2,
               .kernel_w = 2,
               .stride_h = 2,
               .stride_w = 1,
               .padding_h = 1,
               .padding_w = 1,
               .dilation_h = 2,
               .dilation_w = 2});
    s.channels_last = channels_last;
    x = numbers(static_cast<std::int64_t>(input_size(s)), 1, 2);
    for_float_dtypes([&]<class T>() { check_max<T>(s, x, 0); });
  }
}

TEST_CASE("pool kernels: empty tensors launch nothing") {
  cuda_emulator::take_launches();
  Pool2dShape s = sized(square(2, 2, 0));
  s.n = 0;
  gpu::launch_max_pool2d<float>({}, {.shape = s});
  gpu::launch_max_pool2d_backward<float>({}, {.shape = s});
  gpu::launch_average_pool<float, false>({}, {.shape = s});
  gpu::launch_average_pool_backward<float, true>({}, {.shape = s});
  CHECK(cuda_emulator::take_launches().empty());
}

TEST_CASE("pool kernels: Division is exact beyond 2^31") {
  const auto divide = [](std::int64_t n, std::int64_t d) { return gpu::Division(d).divide(n); };
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 31,
                               (std::int64_t{1} << 31) - 1, (std::int64_t{1} << 40) + 12345})
    for (const std::int64_t d : {std::int64_t{1}, std::int64_t{7}, (std::int64_t{1} << 31) - 1,
                                 std::int64_t{1} << 31, std::int64_t{1} << 33}) {
      CAPTURE(n, d);
      CHECK(divide(n, d) == n / d);
    }
}

TEST_CASE("pool kernels: layout and window size choose the kernel") {
  const auto kernel = [](Pool2dShape s, bool channels_last, bool adaptive) {
    s.channels_last = channels_last;
    const Block<float> x(input_size(s)), y(output_size(s));
    return kernels_of([&] {
      (adaptive ? &gpu::launch_average_pool<float, true>
                : &gpu::launch_average_pool<float, false>)({}, {.shape = s, .x = x.data(), .y = y.data()});
    });
  };
  const Pool2dShape s = sized(square(2, 2, 0)), global{.n = 2, .c = 8, .h = 7, .w = 7, .p = 1, .q = 1};
  CHECK_THAT(kernel(s, true, false), ContainsSubstring("average_poolIfLi4ELi1E"));
  CHECK_THAT(kernel(s, false, false), ContainsSubstring("average_poolIfLi1ELi1E"));
  CHECK_THAT(kernel(global, false, true), ContainsSubstring("average_poolIfLi1ELi32E"));
  CHECK_THAT(kernel(global, true, true), ContainsSubstring("average_poolIfLi4ELi1E"));
}
