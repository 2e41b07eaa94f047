// Depthwise convolution of channels-last images, with vectors of channels. The rows of images that a row of
// results needs are converted to f32 once, in a ring of rows that fits into the L1 cache. Only products of
// the definition are computed, none with the padding, so what is not finite needs no care.
#include <algorithm>
#include <vector>

#include "tapestry/kernels/cpu/conv.h"
#include "tapestry/kernels/cpu/lanes.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kUnit = 16;              // the channels of buffers are multiples of this
constexpr std::int64_t kNearFloats = 6 * 1024;  // the size of a ring: most of an L1 cache of 32 KiB
constexpr std::int64_t kMostChunks = 64;        // the most parts that sums of weights are divided into
constexpr int kMostTaps = 9;                    // elements of a window that are summed at a time

std::int64_t whole_units(std::int64_t n) { return (n + kUnit - 1) / kUnit * kUnit; }
// n / by, rounded towards minus infinity.
std::int64_t floor_div(std::int64_t n, std::int64_t by) { return n >= 0 ? n / by : -((by - 1 - n) / by); }

// Blocks of channels, in which `per_channel` f32 of buffers for each channel fit into the cache. They have
// two units at least, because pieces of less than a cache line are slow to gather.
struct Blocks {
  std::int64_t channels, size, count;
  Blocks(std::int64_t c, std::int64_t per_channel) : channels(c) {
    const std::int64_t most = std::max(kNearFloats / per_channel / kUnit * kUnit, 2 * kUnit);
    count = (c + most - 1) / most;
    size = whole_units((c + count - 1) / count);
    count = (c + size - 1) / size;
  }
  std::int64_t first(std::int64_t block) const { return block * size; }
  std::int64_t used(std::int64_t block) const { return std::min(size, channels - block * size); }
};

// Some channels of the last few rows that were read of one image, as f32. Pixels are pitch() elements apart.
template <class T>
class Ring {
 public:
  Ring(const Conv2dShape& s, std::int64_t width, std::int64_t block, std::int64_t rows)
      : channels_(s.c),
        width_(width),
        pitch_(block),
        held_(static_cast<std::size_t>(rows), -1),
        memory_(kCPU, rows * width * block) {
    std::fill_n(memory_.data(), rows * width * block, 0.0f);
  }
  std::int64_t pitch() const { return pitch_; }
  // The rows of this image and these channels are read from now on.
  void select(const T* image, std::int64_t first, std::int64_t used) {
    if (image == image_ && first == first_) return;
    image_ = image, first_ = first, used_ = used;
    std::fill(held_.begin(), held_.end(), -1);
  }
  const float* row(std::int64_t h) {
    const T* const from = image_ + h * width_ * channels_ + first_;
    const std::size_t at = static_cast<std::size_t>(h) % held_.size();
    float* const to = memory_.data() + static_cast<std::int64_t>(at) * width_ * pitch_;
    if (held_[at] == h) return to;
    held_[at] = h;
    if (used_ == channels_ && used_ == pitch_) widen_row(width_ * pitch_, from, to);
    else
      for (std::int64_t w = 0; w < width_; ++w) widen_row(used_, from + w * channels_, to + w * pitch_);
    return to;
  }

 private:
  std::int64_t channels_, width_, pitch_;
  std::vector<std::int64_t> held_;  // the row in each place, or -1
  Scratch<float> memory_;
  const T* image_ = nullptr;
  std::int64_t first_ = -1, used_ = 0;
};

// A row of results in f32, which store() rounds to T.
template <class T>
class Results {
 public:
  Results(const Conv2dShape& s, std::int64_t width, std::int64_t block)
      : channels_(s.c), width_(width), pitch_(block), memory_(kCPU, width * block) {}
  std::int64_t pitch() const { return pitch_; }
  float* data() const { return memory_.data(); }
  void store(T* row, std::int64_t used) const {
    if (used == channels_ && used == pitch_) return narrow_row(width_ * pitch_, memory_.data(), row);
    for (std::int64_t w = 0; w < width_; ++w)
      narrow_row(used, memory_.data() + w * pitch_, row + w * channels_);
  }

 private:
  std::int64_t channels_, width_, pitch_;
  Scratch<float> memory_;
};

// An element of a window as a line of results meets it: result i, for begin <= i < end, takes the pixel
// row[at + i step] times the weight, or adds their product with the gradient to the weight's sum.
struct Tap {
  const float* row;
  std::int64_t at, begin, end;
  const float* weight;
  float* sum;
};

// Pixels i of `out` are out_step elements apart, and those that taps read are in_step elements apart.
struct Line {
  const Tap* taps;
  std::int64_t count, n, in_step;
  float* out;
  std::int64_t out_step;
  const float* start;  // what the sums begin with, for each channel
  std::int64_t channels;
  Tap* some;  // space for `count` taps
};

template <class V, int kPixels>
void line_tile(const Line& l, const Tap* taps, std::int64_t count, std::int64_t i, std::int64_t c) {
  typename V::Vector sums[kPixels], weight, x;
  V::load(sums[0], l.start + c);
#pragma GCC unroll 8
  for (int k = 1; k < kPixels; ++k) sums[k] = sums[0];
  for (std::int64_t j = 0; j < count; ++j) {
    const float* const from = taps[j].row + (taps[j].at + i * l.in_step + c);
    V::load(weight, taps[j].weight + c);
#pragma GCC unroll 8
    for (int k = 0; k < kPixels; ++k) {
      V::load(x, from + k * l.in_step);
      sums[k] += weight * x;
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < kPixels; ++k) V::store(l.out + (i + k) * l.out_step + c, sums[k]);
}
// Results begin <= i < end, which all of these taps meet.
template <class V>
void line_part(const Line& l, const Tap* taps, std::int64_t count, std::int64_t begin, std::int64_t end) {
  for (std::int64_t c = 0; c < l.channels; c += V::kCount) {
    std::int64_t i = begin;
    for (; i + 8 <= end; i += 8) line_tile<V, 8>(l, taps, count, i, c);
    if (i + 4 <= end) line_tile<V, 4>(l, taps, count, i, c), i += 4;
    if (i + 2 <= end) line_tile<V, 2>(l, taps, count, i, c), i += 2;
    if (i < end) line_tile<V, 1>(l, taps, count, i, c);
  }
}
void compute_line(const Line& l) {
  with_lanes([&]<class V> {
    std::int64_t begin = 0, end = l.n;
    for (std::int64_t j = 0; j < l.count; ++j)
      begin = std::max(begin, l.taps[j].begin), end = std::min(end, l.taps[j].end);
    if (begin >= end) begin = end = l.n;
    line_part<V>(l, l.taps, l.count, begin, end);
    for (std::int64_t i = 0; i < l.n; ++i) {
      if (i == begin) i = end;
      if (i == l.n) break;
      std::int64_t count = 0;
      for (std::int64_t j = 0; j < l.count; ++j)
        if (l.taps[j].begin <= i && i < l.taps[j].end) l.some[count++] = l.taps[j];
      line_part<V>(l, l.some, count, i, i + 1);
    }
  });
}

// Adds to the sums of kTaps taps, for begin <= i < end. The sums of a row begin with 0, which is more
// accurate than to add each product to the sums of all rows.
template <class V, int kTaps>
void add_products(const Tap* taps, const float* dy, std::int64_t dy_step, std::int64_t in_step,
                  std::int64_t begin, std::int64_t end, std::int64_t channels) {
  if (begin >= end) return;
  for (std::int64_t c = 0; c < channels; c += V::kCount) {
    const float* from[kTaps];
    typename V::Vector sums[kTaps] = {}, gradient, x;
#pragma GCC unroll 9
    for (int j = 0; j < kTaps; ++j) from[j] = taps[j].row + (taps[j].at + begin * in_step + c);
    for (std::int64_t i = 0; i < end - begin; ++i) {
      V::load(gradient, dy + (begin + i) * dy_step + c);
#pragma GCC unroll 9
      for (int j = 0; j < kTaps; ++j) {
        V::load(x, from[j] + i * in_step);
        sums[j] += gradient * x;
      }
    }
#pragma GCC unroll 9
    for (int j = 0; j < kTaps; ++j) {
      V::load(x, taps[j].sum + c);
      x += sums[j];
      V::store(taps[j].sum + c, x);
    }
  }
}
void add_line(const std::vector<Tap>& all, const float* dy, std::int64_t dy_step, std::int64_t in_step,
              std::int64_t channels) {
  with_lanes([&]<class V> {
    in_groups<kMostTaps>(static_cast<std::int64_t>(all.size()), [&]<int k>(std::int64_t first) {
      const Tap* const taps = all.data() + first;
      std::int64_t begin = taps[0].begin, end = taps[0].end;
      for (int j = 1; j < k; ++j) begin = std::max(begin, taps[j].begin), end = std::min(end, taps[j].end);
      if (begin >= end) begin = end = taps[0].end;
      add_products<V, k>(taps, dy, dy_step, in_step, begin, end, channels);
      for (int j = 0; j < k; ++j) {
        add_products<V, 1>(taps + j, dy, dy_step, in_step, taps[j].begin, std::min(begin, taps[j].end),
                           channels);
        add_products<V, 1>(taps + j, dy, dy_step, in_step, std::max(end, taps[j].begin), taps[j].end,
                           channels);
      }
    });
  });
}

// The weights as (window, channels), with zeros up to whole units of channels.
Scratch<float> transposed(const Conv2dShape& s, const float* weight) {
  const std::int64_t taps = s.r * s.s, channels = whole_units(s.c);
  Scratch<float> out(kCPU, taps * channels);
  std::fill_n(out.data(), taps * channels, 0.0f);
  for (std::int64_t c = 0; c < s.c; ++c)
    for (std::int64_t j = 0; j < taps; ++j) out.data()[j * channels + c] = weight[c * taps + j];
  return out;
}

// Appends column t of a window whose row is `row`: outputs q read the pixels q stride_w - padding_w + t
// dilation_w.
void add_tap(const Conv2dShape& s, const float* row, std::int64_t pitch, std::int64_t t, const float* weight,
             float* sum, std::vector<Tap>& taps) {
  const std::int64_t shift = t * s.dilation_w - s.padding_w;
  const std::int64_t begin = std::max<std::int64_t>(-floor_div(shift, s.stride_w), 0);
  const std::int64_t end = std::min(floor_div(s.w - 1 - shift, s.stride_w) + 1, s.q);
  if (begin < end) taps.push_back({row, shift * pitch, begin, end, weight, sum});
}

}  // namespace

template <class T>
bool DepthwiseLast<T>::fits(const Conv2dShape& s) {
  return s.groups == s.c && s.k == s.c && s.channels_last && s.c > 0 && s.n > 0 && s.p > 0 && s.q > 0 &&
         s.h > 0 && s.w > 0 && s.r > 0 && s.s > 0;
}

template <class T>
bool DepthwiseLast<T>::forward(const Conv2dShape& s, const T* x, const float* weight, const float* bias,
                               T* y) {
  const std::int64_t rows = (s.r - 1) * s.dilation_h + 1, channels = whole_units(s.c);
  const Scratch<float> weights = transposed(s, weight);
  std::vector<float> start(static_cast<std::size_t>(channels), 0.0f);
  if (bias) std::copy_n(bias, s.c, start.begin());
  const Blocks blocks(s.c, rows * s.w + s.q);
  const std::int64_t items = s.n * blocks.count * s.p;  // an item is a row of a block of channels
  parallel_for(items, grain_of(s.q * blocks.size * s.r), [&](std::int64_t first, std::int64_t last) {
    Ring<T> ring(s, s.w, blocks.size, rows);
    const Results<T> results(s, s.q, blocks.size);
    std::vector<Tap> taps, some(static_cast<std::size_t>(s.r * s.s));
    for (std::int64_t item = first; item < last; ++item) {
      const std::int64_t p = item % s.p, block = item / s.p % blocks.count, n = item / s.p / blocks.count;
      const std::int64_t c = blocks.first(block);
      ring.select(x + n * s.h * s.w * s.c, c, blocks.used(block));
      taps.clear();
      for (std::int64_t r = 0; r < s.r; ++r) {
        const std::int64_t h = p * s.stride_h - s.padding_h + r * s.dilation_h;
        if (h < 0 || h >= s.h) continue;
        const float* const row = ring.row(h);
        for (std::int64_t t = 0; t < s.s; ++t)
          add_tap(s, row, ring.pitch(), t, weights.data() + (r * s.s + t) * channels + c, nullptr, taps);
      }
      T* const to = y + (n * s.p + p) * s.q * s.c + c;
      compute_line({taps.data(), static_cast<std::int64_t>(taps.size()), s.q, s.stride_w * ring.pitch(),
                    results.data(), results.pitch(), start.data() + c, whole_units(blocks.used(block)),
                    some.data()});
      results.store(to, blocks.used(block));
    }
  });
  return true;
}

template <class T>
bool DepthwiseLast<T>::backward_input(const Conv2dShape& s, const T* dy, const float* weight, T* dx) {
  const std::int64_t rows = (s.r - 1) * s.dilation_h / s.stride_h + 2, channels = whole_units(s.c);
  const Scratch<float> weights = transposed(s, weight);
  const std::vector<float> start(static_cast<std::size_t>(channels), 0.0f);
  const Blocks blocks(s.c, rows * s.q + s.w);
  parallel_for(
      s.n * blocks.count * s.h, grain_of(s.w * blocks.size * s.r),
      [&](std::int64_t first, std::int64_t last) {
        Ring<T> ring(s, s.q, blocks.size, rows);
        const Results<T> results(s, s.w, blocks.size);
        std::vector<Tap> taps, some(static_cast<std::size_t>(s.r * s.s));
        for (std::int64_t item = first; item < last; ++item) {
          const std::int64_t h = item % s.h, block = item / s.h % blocks.count, n = item / s.h / blocks.count;
          const std::int64_t c = blocks.first(block);
          ring.select(dy + n * s.p * s.q * s.c, c, blocks.used(block));
          T* const to = dx + (n * s.h + h) * s.w * s.c + c;
          // The windows that contain a pixel do so with the same elements for every stride_w-th pixel. So
          // these pixels are computed together, with one list of taps.
          for (std::int64_t phase = 0; phase < std::min(s.stride_w, s.w); ++phase) {
            const std::int64_t pixels = (s.w - 1 - phase) / s.stride_w + 1;
            taps.clear();
            for (std::int64_t r = 0; r < s.r; ++r) {
              const std::int64_t down = h + s.padding_h - r * s.dilation_h, p = floor_div(down, s.stride_h);
              if (p < 0 || p >= s.p || p * s.stride_h != down) continue;
              const float* const row = ring.row(p);
              for (std::int64_t t = 0; t < s.s; ++t) {
                const std::int64_t right = phase + s.padding_w - t * s.dilation_w,
                                   q = floor_div(right, s.stride_w);
                const std::int64_t begin = std::max<std::int64_t>(-q, 0), end = std::min(s.q - q, pixels);
                if (q * s.stride_w != right || begin >= end) continue;
                taps.push_back({row, q * ring.pitch(), begin, end,
                                weights.data() + (r * s.s + t) * channels + c, nullptr});
              }
            }
            compute_line({taps.data(), static_cast<std::int64_t>(taps.size()), pixels, ring.pitch(),
                          results.data() + phase * results.pitch(), s.stride_w * results.pitch(),
                          start.data() + c, whole_units(blocks.used(block)), some.data()});
          }
          results.store(to, blocks.used(block));
        }
      });
  return true;
}

template <class T>
bool DepthwiseLast<T>::backward_weight(const Conv2dShape& s, const T* dy, const T* x, float* dweight,
                                       float* dbias) {
  const std::int64_t rows = (s.r - 1) * s.dilation_h + 1, channels = whole_units(s.c), taps = s.r * s.s;
  const Blocks blocks(s.c, rows * s.w + s.q);
  // Chunks of rows are summed first, and then added in order. They depend on the shape alone, and so does the
  // result. Whole images share no rows with other chunks.
  const std::int64_t all = s.n * s.p, wanted = std::max<std::int64_t>(kMostChunks / blocks.count, 1);
  std::int64_t each = (all + wanted - 1) / wanted;
  if (each > s.p) each = (each + s.p - 1) / s.p * s.p;
  const std::int64_t chunks = (all + each - 1) / each, size = (taps + 1) * channels;
  const Scratch<float> parts(kCPU, chunks * size);
  std::fill_n(parts.data(), chunks * size, 0.0f);
  parallel_for(chunks * blocks.count, grain_of(each * s.q * blocks.size * s.r),
               [&](std::int64_t begin, std::int64_t end) {
                 Ring<T> ring(s, s.w, blocks.size, rows), gradients(s, s.q, blocks.size, 1);
                 std::vector<Tap> met;
                 for (std::int64_t item = begin; item < end; ++item) {
                   const std::int64_t block = item % blocks.count, chunk = item / blocks.count,
                                      c = blocks.first(block);
                   float* const sums = parts.data() + chunk * size + c;
                   for (std::int64_t i = chunk * each; i < std::min(all, (chunk + 1) * each); ++i) {
                     const std::int64_t p = i % s.p, n = i / s.p;
                     ring.select(x + n * s.h * s.w * s.c, c, blocks.used(block));
                     gradients.select(dy + n * s.p * s.q * s.c, c, blocks.used(block));
                     const float* const gradient = gradients.row(p);
                     met.clear();
                     for (std::int64_t r = 0; r < s.r; ++r) {
                       const std::int64_t h = p * s.stride_h - s.padding_h + r * s.dilation_h;
                       if (h < 0 || h >= s.h) continue;
                       const float* const row = ring.row(h);
                       for (std::int64_t t = 0; t < s.s; ++t)
                         add_tap(s, row, ring.pitch(), t, nullptr, sums + (r * s.s + t) * channels, met);
                     }
                     const std::int64_t used = whole_units(blocks.used(block));
                     add_line(met, gradient, gradients.pitch(), s.stride_w * ring.pitch(), used);
                     if (!dbias) continue;
                     float* const bias = sums + taps * channels;
                     for (std::int64_t q = 0; q < s.q; ++q)
                       for (std::int64_t j = 0; j < used; ++j) bias[j] += gradient[q * gradients.pitch() + j];
                   }
                 }
               });
  const auto total = [&](std::int64_t at) {
    double sum = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
      sum += static_cast<double>(parts.data()[chunk * size + at]);
    return static_cast<float>(sum);
  };
  for (std::int64_t c = 0; c < s.c; ++c) {
    for (std::int64_t j = 0; j < taps; ++j) dweight[c * taps + j] = total(j * channels + c);
    if (dbias) dbias[c] = total(taps * channels + c);
  }
  return true;
}

template struct DepthwiseLast<float>;
template struct DepthwiseLast<Half>;
template struct DepthwiseLast<BFloat16>;

}  // namespace tapestry::kernels::cpu
