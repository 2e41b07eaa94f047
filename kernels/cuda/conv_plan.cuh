#pragma once
// Convolution and its input gradient as one gather:
//   out[pixel, line] = sum over taps t, channels c of in[position(pixel) + offset(t), c] weight[line][t, c]
// position() and offset() are affine. PixelClass and GatherPlan describe them to the kernels.
//
// For the input gradient, `in` is dy and `out` is dx. Row h of dx receives dy[p] weight[r] where h = p stride
// - padding + r dilation. So r dilation must be congruent to h + padding modulo the stride. The pixels of dx
// fall into residue classes modulo the stride, and each class is a dense convolution with stride 1 over every
// (stride / gcd(stride, dilation))-th tap. No product with a zero is computed. A class without taps is zero.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/conv_gemm.cuh"
#include "tapestry/kernels/ops/conv.h"

namespace tapestry::kernels::cuda::conv {

/// Strides of a tensor in elements: between images, rows, columns and channels.
struct ImageStrides {
  std::int64_t n, h, w, c;
};
inline ImageStrides input_strides(const Conv2dShape& s) {
  if (s.channels_last) return {s.h * s.w * s.c, s.w * s.c, s.c, 1};
  return {s.c * s.h * s.w, s.w, 1, s.h * s.w};
}
inline ImageStrides output_strides(const Conv2dShape& s) {
  if (s.channels_last) return {s.p * s.q * s.k, s.q * s.k, s.k, 1};
  return {s.k * s.p * s.q, s.q, 1, s.p * s.q};
}

inline Divisor divisor(std::int64_t d) {
  return Divisor(static_cast<unsigned>(std::max<std::int64_t>(d, 1)));
}
inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Output pixels that use the same taps (a residue class; forward has only one).
struct PixelClass {
  unsigned pixels;  // number of pixels of this class in all images of a launch
  unsigned taps;
  unsigned depth;                   // length of the reduction: taps x channels per group
  Divisor height, width, taps_w;    // height, width: number of pixels of the class per image
  std::int64_t origin_h, origin_w;  // position of the first pixel's first tap in `in`
  std::int64_t next_row;            // elements from the end of a tap row's last tap to the next tap row
  std::int64_t out;                 // offset of the class's first pixel in `out`
  std::int64_t weight;              // offset of the class's first tap in the packed weight
};
/// The taps of a residue class, as indices r S + s into the window. They are first + a step_h + b step_w for
/// a = 0, 1, ... and b < taps_w.
struct TapClass {
  std::int64_t first, step_h, step_w, weight;
  unsigned taps, taps_w;
};
inline constexpr int kMaxClasses = 16;  // the most classes that one launch takes

enum class Stores { singles, channel_quads, pixel_quads };

struct GatherPlan {
  PixelClass classes[kMaxClasses];
  unsigned in_h, in_w, lines;  // lines: channels of `out` per group
  unsigned weight_line;        // leading dimension of the weight (DenseMatrix::line)
  Divisor channels;            // channels of `in` per group
  Divisor groups;
  ImageStrides in, out;             // out: strides between pixels of one class
  std::int64_t stride_h, stride_w;  // distance in `in` between adjacent pixels' positions
  std::int64_t tap_h, tap_w;        // distance in `in` between adjacent taps
  std::int64_t next_column;         // elements from the end of a tap's channels to the next tap
};

/// A vector with inline storage for kMaxClasses elements, so that almost all calls allocate no memory.
template <class T>
class SmallVector {
 public:
  void push_back(const T& x) {
    if (size_ == kMaxClasses) heap_.assign(inline_, inline_ + size_);
    if (size_ < kMaxClasses) inline_[size_] = x;
    else heap_.push_back(x);
    ++size_;
  }
  std::size_t size() const { return size_; }
  T* begin() { return size_ <= kMaxClasses ? inline_ : heap_.data(); }
  T* end() { return begin() + size_; }
  const T* begin() const { return size_ <= kMaxClasses ? inline_ : heap_.data(); }
  const T* end() const { return begin() + size_; }
  T& back() { return end()[-1]; }
  T& operator[](std::size_t i) { return begin()[i]; }
  const T& operator[](std::size_t i) const { return begin()[i]; }

 private:
  std::size_t size_ = 0;
  T inline_[kMaxClasses];
  std::vector<T> heap_;
};

struct GatherClasses {
  GatherPlan plan;  // plan.classes is filled from `pixels` for each launch
  SmallVector<PixelClass> pixels;
  SmallVector<TapClass> taps;
};

/// A residue class along one axis.
struct AxisClass {
  std::int64_t first, count;  // the pixels of the class: first + i stride, for i < count
  std::int64_t tap, taps, tap_step, origin;
};
/// Describes, along one axis, the residue class of the input pixels whose index is `rest` modulo the stride.
inline AxisClass gradient_axis(std::int64_t rest, std::int64_t in, std::int64_t window, std::int64_t stride,
                               std::int64_t padding, std::int64_t dilation) {
  AxisClass a{rest, ceil_div(in - rest, stride), 0, 0, stride / std::gcd(stride, dilation), 0};
  const std::int64_t end = std::min(window, a.tap_step);
  while (a.tap < end && (rest + padding - a.tap * dilation) % stride != 0) ++a.tap;
  if (a.tap == end) return a;
  a.taps = ceil_div(window - a.tap, a.tap_step);
  a.origin = (rest + padding - a.tap * dilation) / stride;
  return a;
}

/// Converts `count` to 32 bits. Throws if it does not fit.
inline unsigned checked_u31(const char* what, std::int64_t count) {
  check(count <= 0x7fffffff, "[conv2d] ", what, " of ", count,
        " elements is too large for a CUDA kernel; use at most 2147483647 elements");
  return static_cast<unsigned>(count);
}

/// Checks that the kernels' 32-bit indices suffice for one image and for the weight. The batch may be larger,
/// because launches are split along it.
inline void check_sizes(const Conv2dShape& s) {
  checked_u31("an image", s.h * s.w);
  checked_u31("an image", s.p * s.q);
  checked_u31("a weight", s.k * (s.c / s.groups) * s.r * s.s);
}

inline void add_class(GatherClasses& g, const Conv2dShape& s, const AxisClass& h, const AxisClass& w,
                      std::int64_t channels) {
  PixelClass c{};
  TapClass t{};
  c.taps = t.taps = static_cast<unsigned>(h.taps * w.taps);
  t.taps_w = static_cast<unsigned>(w.taps);
  c.depth = static_cast<unsigned>(c.taps * channels);
  c.height = divisor(h.count), c.width = divisor(w.count), c.taps_w = divisor(w.taps);
  c.origin_h = h.origin, c.origin_w = w.origin;
  const GatherPlan& p = g.plan;
  c.next_row = p.tap_h * p.in.h - (w.taps - 1) * p.tap_w * p.in.w - channels;
  t.first = h.tap * s.s + w.tap, t.step_h = h.tap_step * s.s, t.step_w = w.tap_step;
  c.pixels = checked_u31("an image", h.count * w.count);  // multiplied by the images of a launch later
  g.pixels.push_back(c);
  g.taps.push_back(t);
}

inline GatherClasses forward_classes(const Conv2dShape& s) {
  GatherClasses g{};
  GatherPlan& p = g.plan;
  p.in = input_strides(s), p.out = output_strides(s);
  p.in_h = static_cast<unsigned>(s.h), p.in_w = static_cast<unsigned>(s.w);
  p.channels = divisor(s.c / s.groups), p.lines = static_cast<unsigned>(s.k / s.groups);
  p.groups = divisor(s.groups);
  p.stride_h = s.stride_h, p.stride_w = s.stride_w;
  p.tap_h = s.dilation_h, p.tap_w = s.dilation_w;
  p.next_column = p.tap_w * p.in.w - s.c / s.groups;
  add_class(g, s, {0, s.p, 0, s.r, 1, -s.padding_h}, {0, s.q, 0, s.s, 1, -s.padding_w}, s.c / s.groups);
  return g;
}

/// Classes are sorted by falling number of taps, so that long blocks start first. If there are more classes
/// than a launch takes, classes without taps are dropped; the launch then fills `out` with zeros first.
inline GatherClasses gradient_classes(const Conv2dShape& s) {
  GatherClasses g{};
  GatherPlan& p = g.plan;
  p.in = output_strides(s), p.out = input_strides(s);
  p.out.h *= s.stride_h, p.out.w *= s.stride_w;
  p.in_h = static_cast<unsigned>(s.p), p.in_w = static_cast<unsigned>(s.q);
  p.channels = divisor(s.k / s.groups), p.lines = static_cast<unsigned>(s.c / s.groups);
  p.groups = divisor(s.groups);
  p.stride_h = p.stride_w = 1;
  p.tap_h = -s.dilation_h / std::gcd(s.stride_h, s.dilation_h);
  p.tap_w = -s.dilation_w / std::gcd(s.stride_w, s.dilation_w);
  p.next_column = p.tap_w * p.in.w - s.k / s.groups;
  const ImageStrides dx = input_strides(s);
  const std::int64_t rests_h = std::min(s.stride_h, s.h), rests_w = std::min(s.stride_w, s.w);
  const bool all = rests_h * rests_w <= kMaxClasses;
  const auto axes = [all](std::int64_t rests, auto&&... shape) {
    SmallVector<AxisClass> found;
    for (std::int64_t rest = 0; rest < rests; ++rest) {
      const AxisClass a = gradient_axis(rest, shape...);
      if (all || a.taps > 0) found.push_back(a);
    }
    std::sort(found.begin(), found.end(), [](const AxisClass& a, const AxisClass& b) {
      return a.taps != b.taps ? a.taps > b.taps : a.first < b.first;  // std::stable_sort allocates memory
    });
    return found;
  };
  for (const AxisClass& h : axes(rests_h, s.h, s.r, s.stride_h, s.padding_h, s.dilation_h))
    for (const AxisClass& w : axes(rests_w, s.w, s.s, s.stride_w, s.padding_w, s.dilation_w)) {
      add_class(g, s, h, w, s.k / s.groups);
      g.pixels.back().out = h.first * dx.h + w.first * dx.w;
    }
  return g;
}

/// Whether the classes cover all pixels of the output.
inline bool covers(const GatherClasses& g, std::int64_t image) {
  for (const PixelClass& c : g.pixels) image -= c.pixels;
  return image == 0;
}

/// The top left corner of a pixel's window in the input. Coordinates are unsigned 32-bit numbers, so one
/// comparison tests both bounds. Padding and dilation are below 2^31, therefore no coordinate outside wraps
/// to one inside.
struct PixelPlace {
  std::int64_t at;  // offset of the first tap, which may lie outside the image
  unsigned h, w;
  __device__ PixelPlace(const GatherPlan& p, const PixelClass& c, unsigned pixel) {
    pixel = pixel < c.pixels ? pixel : c.pixels - 1;
    const unsigned line = c.width.divide(pixel), j = pixel - line * c.width.value;
    const unsigned n = c.height.divide(line), i = line - n * c.height.value;
    const std::int64_t y = i * p.stride_h + c.origin_h, x = j * p.stride_w + c.origin_w;
    at = n * p.in.n + y * p.in.h + x * p.in.w;
    h = static_cast<unsigned>(y);
    w = static_cast<unsigned>(x);
  }
};

/// Values that are uniform over the block. They live in shared memory because the mainloop needs all
/// registers.
struct GatherBlock {
  PixelClass c;
  unsigned group, first_pixel, first_line;
};

// ---- the weight gradient

struct WeightPlan {
  unsigned pixels;      // pixels of dy in all images: the depth of the GEMM
  unsigned rows, cols;  // rows and columns of the GEMM per group
  unsigned in_h, in_w;
  Divisor height, width, image;  // sizes of dy; image: pixels per image
  Divisor channels, window_w;    // channels: channels of x per group
  Divisor groups, col_tiles;
  ImageStrides in, out;
  std::int64_t stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  bool plain;  // 1 x 1 window, stride 1, no padding: x and dy have the same pixels
};

/// Offset of a column's tap and channel in x, relative to the position (i stride_h, j stride_w) of a pixel
/// (i, j) of dy.
struct alignas(16) ColumnEntry {
  std::int64_t at;
  unsigned h, w;
  /// Returns the ColumnEntry of `column`, the first of `count` contiguous columns. Columns past the end are
  /// clamped.
  __device__ static ColumnEntry of(const WeightPlan& p, unsigned column, unsigned count) {
    column = column < p.cols ? column : p.cols - count;
    const unsigned tap = p.channels.divide(column), a = p.window_w.divide(tap);
    const std::int64_t y = a * p.dilation_h - p.padding_h;
    const std::int64_t x = (tap - a * p.window_w.value) * p.dilation_w - p.padding_w;
    return {y * p.in.h + x * p.in.w + (column - tap * p.channels.value) * p.in.c, static_cast<unsigned>(y),
            static_cast<unsigned>(x)};
  }
};
/// A pixel (i, j) of dy and the position (i stride_h, j stride_w) in x.
struct PixelInX {
  std::int64_t at;
  unsigned h, w;
  __device__ PixelInX(const WeightPlan& p, unsigned pixel) {
    const unsigned row = p.width.divide(pixel), j = pixel - row * p.width.value;
    const unsigned n = p.height.divide(row), i = row - n * p.height.value;
    const std::int64_t y = i * p.stride_h, x = j * p.stride_w;
    at = n * p.in.n + y * p.in.h + x * p.in.w;
    h = static_cast<unsigned>(y);
    w = static_cast<unsigned>(x);
  }
};

/// Values that are uniform over the block. They live in shared memory because the mainloop needs all
/// registers.
struct WeightBlock {
  unsigned group, first_row, first_col;
};

inline WeightPlan weight_plan(const Conv2dShape& s) {
  WeightPlan p{};
  p.rows = static_cast<unsigned>(s.k / s.groups);
  p.cols = static_cast<unsigned>(s.c / s.groups * s.r * s.s);
  p.in_h = static_cast<unsigned>(s.h), p.in_w = static_cast<unsigned>(s.w);
  p.height = divisor(s.p), p.width = divisor(s.q), p.image = divisor(s.p * s.q);
  p.channels = divisor(s.c / s.groups), p.window_w = divisor(s.s), p.groups = divisor(s.groups);
  p.in = input_strides(s), p.out = output_strides(s);
  p.stride_h = s.stride_h, p.stride_w = s.stride_w;
  p.padding_h = s.padding_h, p.padding_w = s.padding_w;
  p.dilation_h = s.dilation_h, p.dilation_w = s.dilation_w;
  p.plain =
      s.r == 1 && s.s == 1 && s.stride_h == 1 && s.stride_w == 1 && s.padding_h == 0 && s.padding_w == 0;
  return p;
}

// ---- the packed weight: per class and group a matrix with rows (tap, channel) and lines padded to a
// multiple of 4

struct PackPlan {
  TapClass classes[kMaxClasses];
  int count;                          // number of classes
  std::int64_t line, channel, group;  // strides of the unpacked weight between lines, channels and groups
  unsigned lines;
  Divisor padded, channels;  // padded: lines, rounded up to a multiple of 4
};

inline constexpr int kPackThreads = 256;

/// A thread copies one line of one channel, whose taps are contiguous in the weight.
template <class = void>
__global__ void __launch_bounds__(kPackThreads)
    pack_weight(PackPlan p, unsigned count, const float* weight, float* packed) {
  const unsigned index = blockIdx.x * kPackThreads + threadIdx.x;
  if (index >= count) return;
  const unsigned rest = p.padded.divide(index), line = index - rest * p.padded.value;
  const unsigned group = p.channels.divide(rest), channel = rest - group * p.channels.value;
  const bool inside = line < p.lines;
  const float* const from = weight + group * p.group + line * p.line + channel * p.channel;
  for (int k = 0; k < p.count; ++k) {
    const TapClass& c = p.classes[k];
    std::int64_t at = c.first;
    unsigned column = 0;
    for (unsigned tap = 0; tap < c.taps; ++tap) {
      const std::int64_t step =
          (static_cast<std::int64_t>(group) * c.taps + tap) * p.channels.value + channel;
      packed[c.weight + step * p.padded.value + line] = inside ? from[at] : 0;
      at += c.step_w;
      if (++column == c.taps_w) {
        column = 0;
        at += c.step_h - c.taps_w * c.step_w;
      }
    }
  }
}

/// Assigns each class its offset in the packed weight. Returns the size of the packed weight.
inline std::int64_t place_weights(GatherClasses& g, std::int64_t groups, std::int64_t channels,
                                  std::int64_t padded) {
  std::int64_t at = 0;
  for (std::size_t i = 0; i < g.pixels.size(); ++i) {
    g.pixels[i].weight = g.taps[i].weight = at;
    at += g.taps[i].taps * groups * channels * padded;
  }
  return at;
}

template <class = void>
void launch_pack(const GatherClasses& g, PackPlan p, std::int64_t groups, const float* weight, float* packed,
                 cudaStream_t stream) {
  const std::int64_t count = groups * p.channels.value * p.padded.value;
  for (std::size_t first = 0; first < g.taps.size(); first += kMaxClasses) {
    p.count = static_cast<int>(std::min<std::size_t>(kMaxClasses, g.taps.size() - first));
    std::copy_n(g.taps.begin() + static_cast<std::ptrdiff_t>(first), p.count, p.classes);
    launch(&pack_weight<>, static_cast<unsigned>(ceil_div(count, kPackThreads)), kPackThreads, 0, stream, p,
           checked_u31("a weight", count), weight, packed);
  }
}

template <class T>
__global__ void __launch_bounds__(kPackThreads) fill_zeros(T* out, std::int64_t size) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kPackThreads + threadIdx.x;
  if (i < size) out[i] = T();
}

// ---- splitting the batch

/// Calls run(first image, images) so that no launch has more than `most` pixels.
template <class Run>
void for_images(std::int64_t n, std::int64_t pixels, std::int64_t most, const Run& run) {
  const std::int64_t each = std::max<std::int64_t>(1, most / std::max<std::int64_t>(pixels, 1));
  for (std::int64_t first = 0; first < n; first += each) run(first, std::min(each, n - first));
}

}  // namespace tapestry::kernels::cuda::conv
