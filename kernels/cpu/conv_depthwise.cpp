// Depthwise convolution of row-major images: one input and one output channel per group. oneDNN has kernels
// only for blocked and channels-last layouts, and to copy images there and back takes several times as long
// as the convolution. Here each plane is copied to f32 buffers with its padding. Strides divide the plane
// into phases, the rows and columns whose positions have the same remainder, and each phase has a buffer of
// its own. In it, all elements of a window have fixed distances from its first element, and the windows lie
// side by side as their outputs do. So loops over the buffers compute all windows, those across the ends of
// rows included, which nobody reads.
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "tapestry/kernels/cpu/conv.h"
#include "tapestry/kernels/cpu/lanes.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kMostWindow = 81;  // elements of a window
constexpr int kMostTaps = 9;              // elements of a window that a loop combines at a time
constexpr std::int64_t kSlack = 16;  // elements that the vectors of a loop may read and write behind its end

// The element (row, column) of the padded plane is (row / stride_h, column / stride_w) of its phase. A phase
// of rows has buffers, one for each phase of columns, only if windows read it.
struct Plane {
  std::int64_t area, out_area, taps;
  std::int64_t rows, pitch, size;        // of a buffer
  std::int64_t buffers;                  // of all phases
  std::int64_t span;                     // from the first window's output to behind the last one's
  std::int64_t columns;                  // of the image, that windows may read
  std::int64_t last_at;                  // the largest of `at`
  std::vector<std::int64_t> row_at;      // of each row of the image: where its buffers have it; -1 if nowhere
  std::vector<std::int64_t> buffer, at;  // of the elements of a window, in the order of the weight

  explicit Plane(const Conv2dShape& s)
      : area(s.h * s.w),
        out_area(s.p * s.q),
        taps(s.r * s.s),
        rows(s.p + (s.r - 1) * s.dilation_h / s.stride_h),
        pitch(s.q + (s.s - 1) * s.dilation_w / s.stride_w),
        size(rows * pitch),
        span((s.p - 1) * pitch + s.q),
        columns(std::clamp<std::int64_t>(pitch * s.stride_w - s.padding_w, 0, s.w)),
        last_at(size - span) {
    std::vector<std::int64_t> first(static_cast<std::size_t>(s.stride_h), -1);  // buffer of each phase
    buffers = 0;
    for (std::int64_t r = 0; r < s.r; ++r) {
      const std::int64_t row = r * s.dilation_h;
      std::int64_t& own = first[static_cast<std::size_t>(row % s.stride_h)];
      if (own < 0) own = std::exchange(buffers, buffers + s.stride_w);
      for (std::int64_t t = 0; t < s.s; ++t) {
        const std::int64_t column = t * s.dilation_w;
        buffer.push_back(own + column % s.stride_w);
        at.push_back(row / s.stride_h * pitch + column / s.stride_w);
      }
    }
    for (std::int64_t h = 0; h < s.h; ++h) {
      const std::int64_t own = first[static_cast<std::size_t>((h + s.padding_h) % s.stride_h)],
                         row = (h + s.padding_h) / s.stride_h;
      row_at.push_back(own < 0 || row >= rows ? -1 : own * size + row * pitch);
    }
  }
};

// Divides pairs of elements among two arrays, and joins them again.
template <class T>
void split_pairs(std::int64_t n, const T* from, float* even, float* odd) {
  for (std::int64_t i = 0; i < n; ++i) even[i] = load(from[2 * i]), odd[i] = load(from[2 * i + 1]);
}
void split_pairs(std::int64_t n, const BFloat16* from, float* even, float* odd) {
  if (n < 8) return split_pairs<BFloat16>(n, from, even, odd);
  const auto eight = [=](std::int64_t i) {
    detail::Words pairs;
    std::memcpy(&pairs, from + 2 * i, sizeof(pairs));
    const detail::Words low = pairs << 16, high = pairs & 0xffff0000u;
    std::memcpy(even + i, &low, sizeof(low));
    std::memcpy(odd + i, &high, sizeof(high));
  };
  for (std::int64_t i = 0; i + 8 < n; i += 8) eight(i);
  eight(n - 8);
}
template <class T>
void join_pairs(std::int64_t n, const float* even, const float* odd, T* to) {
  for (std::int64_t i = 0; i < n; ++i) to[2 * i] = T(even[i]), to[2 * i + 1] = T(odd[i]);
}
void join_pairs(std::int64_t n, const float* even, const float* odd, BFloat16* to) {
  if (n < 8) return join_pairs<BFloat16>(n, even, odd, to);
  const auto eight = [=](std::int64_t i) {
    detail::Words low, high;
    detail::round_eight(low, even + i);
    detail::round_eight(high, odd + i);
    const detail::Words pairs = low | high << 16;
    std::memcpy(static_cast<void*>(to + 2 * i), &pairs, sizeof(pairs));
  };
  for (std::int64_t i = 0; i + 8 < n; i += 8) eight(i);
  eight(n - 8);
}

// A row of n elements of an image in the buffers of its phases, of which the first begins at `to` and the
// others lie `size` elements apart.
template <class T>
void read_row(const Conv2dShape& s, std::int64_t n, const T* from, std::int64_t size, float* to) {
  if (s.stride_w == 1) return widen_row(n, from, to + s.padding_w);
  if (s.stride_w == 2) {
    const std::int64_t lead = std::min(n, s.padding_w % 2), at = (s.padding_w + 1) / 2,
                       pairs = (n - lead) / 2;
    if (lead) to[size + at - 1] = load(from[0]);
    split_pairs(pairs, from + lead, to + at, to + size + at);
    if (n > lead + 2 * pairs) to[at + pairs] = load(from[n - 1]);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t j = s.padding_w + i;
    to[j % s.stride_w * size + j / s.stride_w] = load(from[i]);
  }
}
template <class T>
void write_row(const Conv2dShape& s, std::int64_t n, const float* from, std::int64_t size, T* to) {
  if (s.stride_w == 1) return narrow_row(n, from + s.padding_w, to);
  if (s.stride_w == 2) {
    const std::int64_t lead = std::min(n, s.padding_w % 2), at = (s.padding_w + 1) / 2,
                       pairs = (n - lead) / 2;
    if (lead) to[0] = T(from[size + at - 1]);
    join_pairs(pairs, from + at, from + size + at, to + lead);
    if (n > lead + 2 * pairs) to[n - 1] = T(from[at + pairs]);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t j = s.padding_w + i;
    to[i] = T(from[j % s.stride_w * size + j / s.stride_w]);
  }
}

// An element of a window: where a loop reads it, and its weight.
struct Tap {
  const float* from;
  float weight;
};

// y[i] = start + sum of taps[j].weight taps[j].from[i]. `more`: y[i] takes the place of `start`.
template <class V, int kTaps>
void add_taps(std::int64_t n, const Tap* taps, float start, bool more, float* y) {
  const float* from[kTaps];
  typename V::Vector weight[kTaps];
#pragma GCC unroll 9
  for (int j = 0; j < kTaps; ++j) {
    from[j] = taps[j].from;
    weight[j] = typename V::Vector{} + taps[j].weight;
  }
  for (std::int64_t i = 0; i < n; i += V::kCount) {
    typename V::Vector sum = typename V::Vector{} + start, x;
    if (more) V::load(sum, y + i);
#pragma GCC unroll 9
    for (int j = 0; j < kTaps; ++j) {
      V::load(x, from[j] + i);
      sum += weight[j] * x;
    }
    V::store(y + i, sum);
  }
}
void correlate(std::int64_t n, const Tap* taps, std::int64_t count, float start, float* y) {
  with_lanes([&]<class V> {
    in_groups<kMostTaps>(
        count, [&]<int k>(std::int64_t first) { add_taps<V, k>(n, taps + first, start, first > 0, y); });
  });
}

// sums[j] += sum of taps[j].from[i] dy[i]. The vectors have 8 elements in every instruction set, so that all
// give the same bits.
template <int kTaps>
void dot_taps(std::int64_t n, const Tap* taps, const float* dy, double* sums) {
  const float* from[kTaps];
  TileVector lanes[kTaps] = {};
#pragma GCC unroll 9
  for (int j = 0; j < kTaps; ++j) from[j] = taps[j].from;
  for (std::int64_t i = 0; i < n; i += 8) {
    TileVector d, v;
    detail::load_tile(d, dy + i);
#pragma GCC unroll 9
    for (int j = 0; j < kTaps; ++j) {
      detail::load_tile(v, from[j] + i);
      lanes[j] += d * v;
    }
  }
#pragma GCC unroll 9
  for (int j = 0; j < kTaps; ++j)
    for (int l = 0; l < 8; ++l) sums[j] += static_cast<double>(lanes[j][l]);
}
double sum_of(std::int64_t n, const float* x) {
  TileVector lanes = {}, v;
  for (std::int64_t i = 0; i < n; i += 8) {
    detail::load_tile(v, x + i);
    lanes += v;
  }
  double total = 0;
  for (int l = 0; l < 8; ++l) total += static_cast<double>(lanes[l]);
  return total;
}

bool all_finite(const float* x, std::int64_t n) {
  std::uint32_t bad = 0;
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

template <class T>
void read_image(const Conv2dShape& s, const Plane& plane, const T* x, float* to) {
  for (const std::int64_t at : plane.row_at) {
    if (at >= 0) read_row(s, plane.columns, x, plane.size, to + at);
    x += s.w;
  }
}
template <class T>
void read_outputs(const Conv2dShape& s, const Plane& plane, const T* dy, float* to) {
  for (std::int64_t p = 0; p < s.p; ++p) widen_row(s.q, dy + p * s.q, to + p * plane.pitch);
}

// The elements of a window. Their weights are left out if `weight` is null.
class Taps {
 public:
  Taps(const Plane& plane, const float* buffers, const float* weight) : count_(plane.taps) {
    for (std::size_t j = 0; j < plane.at.size(); ++j)
      taps_[j] = {buffers + plane.buffer[j] * plane.size + plane.at[j], weight ? weight[j] : 0.0f};
  }
  const Tap* data() const { return taps_; }
  std::int64_t size() const { return count_; }

 private:
  std::int64_t count_;
  Tap taps_[kMostWindow];
};

}  // namespace

template <class T>
bool Depthwise<T>::fits(const Conv2dShape& s) {
  return s.groups == s.c && s.k == s.c && (!s.channels_last || s.c == 1) && s.c > 0 && s.n > 0 && s.p > 0 &&
         s.q > 0 && s.h > 0 && s.w > 0 && s.r > 0 && s.s > 0 && s.r * s.s <= kMostWindow;
}

template <class T>
bool Depthwise<T>::forward(const Conv2dShape& s, const T* x, const float* weight, const float* bias, T* y) {
  const Plane plane(s);
  const std::int64_t inputs = plane.buffers * plane.size + kSlack, sums = plane.span + kSlack;
  return with_buffers(s.n * s.c, 2 * (inputs + sums), inputs + sums, [&](std::int64_t i, float* buffer) {
    const std::int64_t c = i % s.c;
    float* const sum = buffer + inputs;
    T* const out = y + i * plane.out_area;
    read_image(s, plane, x + i * plane.area, buffer);
    const Taps taps(plane, buffer, weight + c * plane.taps);
    correlate(plane.span, taps.data(), taps.size(), bias ? bias[c] : 0.0f, sum);
    for (std::int64_t p = 0; p < s.p; ++p) narrow_row(s.q, sum + p * plane.pitch, out + p * s.q);
    return all_finite(sum, plane.span);
  });
}

template <class T>
bool Depthwise<T>::backward_input(const Conv2dShape& s, const T* dy, const float* weight, T* dx) {
  const Plane plane(s);
  // Element i of a phase takes part in the window that begins `at` elements before it. So the gradients of
  // the windows follow zeros, as many as the largest distance.
  const std::int64_t gradients = plane.last_at + plane.size + kSlack,
                     sums = plane.buffers * plane.size + kSlack;
  return with_buffers(s.n * s.c, 2 * (gradients + sums), gradients + sums,
                      [&](std::int64_t i, float* buffer) {
                        float *const grad = buffer + plane.last_at, *const sum = buffer + gradients;
                        const float* const own = weight + i % s.c * plane.taps;
                        read_outputs(s, plane, dy + i * plane.out_area, grad);
                        for (std::int64_t phase = 0; phase < plane.buffers; ++phase) {
                          Tap taps[kMostWindow];
                          std::int64_t count = 0;
                          for (std::size_t j = 0; j < plane.at.size(); ++j)
                            if (plane.buffer[j] == phase) taps[count++] = {grad - plane.at[j], own[j]};
                          float* const own_sum = sum + phase * plane.size;
                          if (count == 0) std::fill_n(own_sum, plane.size, 0.0f);
                          else correlate(plane.size, taps, count, 0, own_sum);
                        }
                        T* out = dx + i * plane.area;
                        for (const std::int64_t at : plane.row_at) {
                          const std::int64_t written = at < 0 ? 0 : plane.columns;
                          if (written > 0) write_row(s, written, sum + at, plane.size, out);
                          if (written < s.w) std::fill_n(out + written, s.w - written, T(0));
                          out += s.w;
                        }
                        return all_finite(sum, plane.buffers * plane.size);
                      });
}

template <class T>
bool Depthwise<T>::backward_weight(const Conv2dShape& s, const T* dy, const T* x, float* dweight,
                                   float* dbias) {
  const Plane plane(s);
  const std::int64_t inputs = plane.buffers * plane.size + kSlack, gradients = plane.span + kSlack,
                     work = s.n * 2 * (inputs + gradients);
  // A thread has its own channels, so the order of the sums does not depend on the number of threads.
  return with_buffers(s.c, work, inputs + gradients, [&](std::int64_t c, float* buffer) {
    float* const grad = buffer + inputs;
    const Taps taps(plane, buffer, nullptr);
    std::vector<double> sums(static_cast<std::size_t>(plane.taps));
    double total = 0;
    for (std::int64_t n = 0; n < s.n; ++n) {
      read_image(s, plane, x + (n * s.c + c) * plane.area, buffer);
      read_outputs(s, plane, dy + (n * s.c + c) * plane.out_area, grad);
      in_groups<kMostTaps>(plane.taps, [&]<int k>(std::int64_t first) {
        dot_taps<k>(plane.span, taps.data() + first, grad, sums.data() + first);
      });
      if (dbias) total += sum_of(plane.span, grad);
    }
    float* const out = dweight + c * plane.taps;
    for (std::size_t j = 0; j < sums.size(); ++j) out[j] = static_cast<float>(sums[j]);
    if (dbias) dbias[c] = static_cast<float>(total);
    return all_finite(out, plane.taps);
  });
}

template struct Depthwise<float>;
template struct Depthwise<Half>;
template struct Depthwise<BFloat16>;

}  // namespace tapestry::kernels::cpu
