// Depthwise convolution of row-major images in f32: one input and one output channel per group. oneDNN has
// kernels only for blocked and channels-last layouts, and to copy images there and back takes several times
// as long as the convolution. Here each plane is copied to a buffer with its padding. In the buffer, all
// elements of a window have fixed distances from its first element, so that a loop over the buffer computes
// all windows, those across the ends of rows included, which nobody reads.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/conv.h"
#include "tapestry/kernels/cpu/sums.h"
#include "tapestry/kernels/cpu/tile.h"

namespace tapestry::kernels::cpu {
namespace {

// Rows are short. For them a call of memmove(), which g++ makes of a loop, takes longer than the copy.
inline void copy_row(std::int64_t n, const float* from, float* to) {
  if (n < 8) return static_cast<void>(std::copy_n(from, n, to));
  TileVector v;
  for (std::int64_t i = 0; i + 8 < n; i += 8) {
    detail::load_tile(v, from + i);
    detail::store_tile(to + i, v);
  }
  detail::load_tile(v, from + n - 8);
  detail::store_tile(to + n - 8, v);
}

// A plane in a buffer whose rows are `pitch` apart. Its element (i, j) lies at (top + i step_h, left + j
// step_w), where the steps are 1 for images and the strides for the gradients of their windows.
struct Place {
  std::int64_t height, width, pitch, top, left, step_h, step_w;

  void copy(const float* from, float* to) const {
    for (std::int64_t i = 0; i < height; ++i) {
      const float* const in = from + i * width;
      float* const out = to + (top + i * step_h) * pitch + left;
      if (step_w == 1) copy_row(width, in, out);
      else
        for (std::int64_t j = 0; j < width; ++j) out[j * step_w] = in[j];
    }
  }
};

// The sizes of one plane, and the buffers of it and of its output.
struct Plane {
  std::int64_t area, out_area, taps;
  std::int64_t pitch, rows;
  std::vector<std::int64_t> offsets;  // of the elements of a window, in the order of the weight
  Place image, windows;               // windows: the output, at the first element of each window

  explicit Plane(const Conv2dShape& s)
      : area(s.h * s.w),
        out_area(s.p * s.q),
        taps(s.r * s.s),
        pitch(std::max((s.q - 1) * s.stride_w + (s.s - 1) * s.dilation_w + 1, s.w + s.padding_w)),
        rows(std::max((s.p - 1) * s.stride_h + (s.r - 1) * s.dilation_h + 1, s.h + s.padding_h)),
        image{s.h, s.w, pitch, s.padding_h, s.padding_w, 1, 1},
        windows{s.p, s.q, pitch, 0, 0, s.stride_h, s.stride_w} {
    for (std::int64_t r = 0; r < s.r; ++r)
      for (std::int64_t t = 0; t < s.s; ++t) offsets.push_back(r * s.dilation_h * pitch + t * s.dilation_w);
  }
  std::int64_t size() const { return pitch * rows; }
  std::int64_t last_offset() const { return offsets.back(); }
  // The elements up to the first one of the last window.
  std::int64_t span() const { return size() - last_offset(); }
};

#ifdef __clang__
#define TAPESTRY_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TAPESTRY_INDEPENDENT _Pragma("GCC ivdep")
#endif

// y[i] (+)= sum of w[j] x[i + at[j]]. The loops are functions of pointers alone: g++ then vectorises them.
template <int kTaps>
void add_taps(std::int64_t n, const float* x, const std::int64_t* at, const float* w, float* y, bool add) {
  const float* from[kTaps];
  float factor[kTaps];
  for (int j = 0; j < kTaps; ++j) from[j] = x + at[j], factor[j] = w[j];
  if (!add) std::fill_n(y, n, 0.0f);
  TAPESTRY_INDEPENDENT
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = y[i];
    for (int j = 0; j < kTaps; ++j) sum += factor[j] * from[j][i];
    y[i] = sum;
  }
}
void correlate(std::int64_t n, const float* x, const std::vector<std::int64_t>& at, const float* w,
               float* y) {
  const auto taps = static_cast<std::int64_t>(at.size());
  std::int64_t j = 0;
  for (; j + 9 <= taps; j += 9) add_taps<9>(n, x, at.data() + j, w + j, y, j > 0);
  for (; j + 3 <= taps; j += 3) add_taps<3>(n, x, at.data() + j, w + j, y, j > 0);
  for (; j < taps; ++j) add_taps<1>(n, x, at.data() + j, w + j, y, j > 0);
}

// sums[j] += sum of x[i + at[j]] dy[i]. The partial sums are vectors, because g++ does not keep an array of
// partial sums in registers.
template <int kTaps>
void dot_taps(std::int64_t n, const float* x, const std::int64_t* at, const float* dy, double* sums) {
  const float* from[kTaps];
  TileVector lanes[kTaps] = {};
  for (int j = 0; j < kTaps; ++j) from[j] = x + at[j];
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    TileVector d, v;
    detail::load_tile(d, dy + i);
    for (int j = 0; j < kTaps; ++j) {
      detail::load_tile(v, from[j] + i);
      lanes[j] += d * v;
    }
  }
  for (int j = 0; j < kTaps; ++j) {
    float rest = 0;
    for (std::int64_t l = i; l < n; ++l) rest += dy[l] * from[j][l];
    double total = static_cast<double>(rest);
    for (int l = 0; l < 8; ++l) total += static_cast<double>(lanes[j][l]);
    sums[j] += total;
  }
}

bool all_finite(const float* x, std::int64_t n) {
  int bad = 0;
  for (std::int64_t i = 0; i < n; ++i)
    bad |= (std::bit_cast<std::uint32_t>(x[i]) & 0x7f800000u) == 0x7f800000u;
  return bad == 0;
}

// Calls f(i, buffer) for i in [0, n), with a buffer of `size` zeros that calls on one thread share. Stops and
// returns false if a call does.
template <class F>
bool with_buffers(std::int64_t n, std::int64_t work, std::int64_t size, F&& f) {
  std::atomic<bool> right = true;
  parallel_for(n, grain_of(work), [&](std::int64_t begin, std::int64_t end) {
    const Scratch<float> memory(kCPU, size);
    std::fill_n(memory.data(), size, 0.0f);
    for (std::int64_t i = begin; i < end; ++i)
      if (!f(i, memory.data())) return right.store(false, std::memory_order_relaxed);
  });
  return right;
}

}  // namespace

bool Depthwise::fits(const Conv2dShape& s) {
  return s.groups == s.c && s.k == s.c && !s.channels_last && s.c > 0 && s.n > 0 && s.p > 0 && s.q > 0 &&
         s.h > 0 && s.w > 0 && s.r > 0 && s.s > 0 && s.stride_h <= 2 && s.stride_w <= 2 && s.r * s.s <= 81;
}

bool Depthwise::forward(const Conv2dShape& s, const float* x, const float* weight, const float* bias,
                        float* y) {
  const Plane plane(s);
  return with_buffers(s.n * s.c, plane.size() * 2, 2 * plane.size(), [&](std::int64_t i, float* buffer) {
    const std::int64_t c = i % s.c;
    float *const sums = buffer + plane.size(), *const out = y + i * plane.out_area;
    plane.image.copy(x + i * plane.area, buffer);
    correlate(plane.span(), buffer, plane.offsets, weight + c * plane.taps, sums);
    const float start = bias ? bias[c] : 0.0f;
    for (std::int64_t p = 0; p < s.p; ++p) {
      const float* const row = sums + p * s.stride_h * plane.pitch;
      if (s.stride_w == 1)
        for (std::int64_t q = 0; q < s.q; ++q) out[p * s.q + q] = row[q] + start;
      else
        for (std::int64_t q = 0; q < s.q; ++q) out[p * s.q + q] = row[q * s.stride_w] + start;
    }
    return all_finite(out, plane.out_area);
  });
}

bool Depthwise::backward_input(const Conv2dShape& s, const float* dy, const float* weight, float* dx) {
  const Plane plane(s);
  // Element i of the image takes part in the window that begins offsets[j] before it. Counted from the last
  // offset, these distances are not negative.
  std::vector<std::int64_t> back;
  for (const std::int64_t at : plane.offsets) back.push_back(plane.last_offset() - at);
  const std::int64_t lead = plane.last_offset(), size = plane.size();
  return with_buffers(s.n * s.c, size * 2, 2 * size + lead, [&](std::int64_t i, float* buffer) {
    float* const sums = buffer + lead + size;
    plane.windows.copy(dy + i * plane.out_area, buffer + lead);
    correlate(size, buffer, back, weight + i % s.c * plane.taps, sums);
    float* const out = dx + i * plane.area;
    for (std::int64_t h = 0; h < s.h; ++h)
      copy_row(s.w, sums + (h + s.padding_h) * plane.pitch + s.padding_w, out + h * s.w);
    return all_finite(out, plane.area);
  });
}

bool Depthwise::backward_weight(const Conv2dShape& s, const float* dy, const float* x, float* dweight,
                                float* dbias) {
  const Plane plane(s);
  // A thread has its own channels, so the order of the sums does not depend on the number of threads.
  return with_buffers(s.c, s.n * plane.size() * 2, 2 * plane.size(), [&](std::int64_t c, float* buffer) {
    float* const grad = buffer + plane.size();
    std::vector<double> sums(static_cast<std::size_t>(plane.taps));
    double total = 0;
    for (std::int64_t n = 0; n < s.n; ++n) {
      const float* const from = dy + (n * s.c + c) * plane.out_area;
      plane.image.copy(x + (n * s.c + c) * plane.area, buffer);
      plane.windows.copy(from, grad);
      const auto add = [&]<int kTaps>(std::int64_t j) {
        dot_taps<kTaps>(plane.span(), buffer, plane.offsets.data() + j, grad, sums.data() + j);
      };
      std::int64_t j = 0;
      for (; j + 9 <= plane.taps; j += 9) add.template operator()<9>(j);
      for (; j + 3 <= plane.taps; j += 3) add.template operator()<3>(j);
      for (; j < plane.taps; ++j) add.template operator()<1>(j);
      if (dbias)
        total +=
            static_cast<double>(sum_lanes<float>(plane.out_area, [=](std::int64_t i) { return from[i]; }));
    }
    float* const out = dweight + c * plane.taps;
    for (std::int64_t j = 0; j < plane.taps; ++j)
      out[j] = static_cast<float>(sums[static_cast<std::size_t>(j)]);
    if (dbias) dbias[c] = static_cast<float>(total);
    return all_finite(out, plane.taps);
  });
}

}  // namespace tapestry::kernels::cpu
