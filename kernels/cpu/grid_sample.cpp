// Sampling of images at the points of a grid. A block of points computes its pixels and weights once for all
// channels.
#include "tapestry/kernels/ops/grid_sample.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>
#include <vector>

#include "tapestry/kernels/cpu/compute.h"

namespace tapestry::kernels::cpu {
namespace {

template <class C>
constexpr C kNaN = std::numeric_limits<C>::quiet_NaN();

constexpr std::int64_t kPoints = 64;   // per block
constexpr std::int64_t kChannels = 8;  // that one thread takes for the gradient of row-major images

// A pixel that a point reads: its offset in the image, its weight, and the derivatives of the weight.
template <class C>
struct Tap {
  std::int64_t offset;
  C weight, slope[3];
};

// The taps of up to kPoints points.
template <class C>
class Block {
 public:
  // Finds the taps of points [first, first + count) of image n. With `slopes`, also the derivatives.
  template <class T>
  void find(const GridShape& s, const T* grid, std::int64_t n, std::int64_t first, std::int64_t count,
            bool slopes) {
    taps_.clear();
    begin_[0] = 0;
    for (std::int64_t p = 0; p < count; ++p) {
      const T* const at = grid + (n * s.points + first + p) * s.dims;
      GridTap<C> axes[3][4] = {{{0, 1, 0}}};
      const int each = grid_taps(s.mode), deep = s.dims == 3 ? each : 1;
      const auto place = [&](int d) {
        const GridPlace<C> found(load(at[d]), s.axes[2 - d].size, s.mode, s.padding, s.align_corners);
        for (int i = 0; i < each; ++i) axes[2 - d][i] = found.tap(i);
        return found;
      };
      const GridPlace<C> columns = place(0), rows = place(1);
      if (s.dims == 3) place(2);
      holes_[p] = holes_of(s.dims, s.mode, rows, columns);
      for (int i = 0; i < deep; ++i)
        for (int j = 0; j < each; ++j)
          for (int k = 0; k < each; ++k) {
            const GridTap<C>&d = axes[0][i], &h = axes[1][j], &w = axes[2][k];
            if (d.index < 0 || h.index < 0 || w.index < 0) continue;
            Tap<C> tap{d.index * s.axes[0].stride + h.index * s.axes[1].stride + w.index * s.axes[2].stride,
                       d.weight * h.weight * w.weight,
                       {}};
            if (slopes) {
              tap.slope[0] = d.weight * h.weight * w.slope;
              tap.slope[1] = d.weight * h.slope * w.weight;
              tap.slope[2] = d.slope * h.weight * w.weight;
            }
            taps_.push_back(tap);
          }
      begin_[p + 1] = taps_.size();
    }
  }
  GridHoles holes(std::int64_t p) const { return holes_[p]; }
  // Calls f(tap) for the taps of point p. Most points of a bilinear grid have four.
  template <class F>
  void for_taps(std::int64_t p, const F& f) const {
    const Tap<C>* const taps = taps_.data() + begin_[p];
    const std::size_t count = begin_[p + 1] - begin_[p];
    if (count == 4) {
      f(taps[0]), f(taps[1]), f(taps[2]), f(taps[3]);
      return;
    }
    for (std::size_t t = 0; t < count; ++t) f(taps[t]);
  }

 private:
  std::vector<Tap<C>> taps_;
  GridHoles holes_[kPoints];
  std::size_t begin_[kPoints + 1];
};

// The four taps of a point of a bilinear grid over row-major images, in f32. Tap 2 h + w is the pixel h of
// the vertical and w of the horizontal axis. A pixel outside the image has offset 0 and mask 0, and the mask
// clears the bits of what is read there.
struct Quad {
  std::int32_t offset[4];
  float weight[4];
  std::int64_t point;  // in the block
  std::uint32_t mask[4];
  float vertical[2], horizontal[2];        // the weights along each axis
  float vertical_slope, horizontal_slope;  // of the pixel of higher index

  float masked(int k, float x) const {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & mask[k]);
  }
};

// The quads of up to kPoints points. First come those whose pixels are all inside, which need no masks.
class Quads {
 public:
  static bool fits(const GridShape& s) {
    return s.mode == GridMode::bilinear && s.dims == 2 && !s.channels_last &&
           s.pixels() < std::numeric_limits<std::int32_t>::max();
  }
  template <class T>
  void find(const GridShape& s, const T* grid, std::int64_t n, std::int64_t first, std::int64_t count) {
    whole_ = 0, count_ = count;
    std::int64_t end = count;
    for (std::int64_t p = 0; p < count; ++p) {
      const T* const at = grid + (n * s.points + first + p) * 2;
      const GridPlace<float> x(load(at[0]), s.axes[2].size, GridMode::bilinear, s.padding, s.align_corners);
      const GridPlace<float> y(load(at[1]), s.axes[1].size, GridMode::bilinear, s.padding, s.align_corners);
      const GridTap<float> w[2] = {x.tap(0), x.tap(1)}, h[2] = {y.tap(0), y.tap(1)};
      const bool all = w[0].index >= 0 && w[1].index >= 0 && h[0].index >= 0 && h[1].index >= 0;
      Quad& q = quads_[all ? whole_++ : --end];
      q.point = p;
      q.vertical_slope = h[1].slope;
      q.horizontal_slope = w[1].slope;
      for (int i = 0; i < 2; ++i) {
        // A weight of NaN makes the sample NaN, and the derivative along the other axis (GridHoles).
        q.vertical[i] = y.is_hole() ? kNaN<float> : h[i].weight;
        q.horizontal[i] = x.is_hole() ? kNaN<float> : w[i].weight;
        for (int j = 0; j < 2; ++j) {
          const bool inside = h[i].index >= 0 && w[j].index >= 0;
          const std::int64_t offset = h[i].index * s.axes[1].stride + w[j].index * s.axes[2].stride;
          q.offset[2 * i + j] = inside ? static_cast<std::int32_t>(offset) : 0;
          q.mask[2 * i + j] = inside ? ~0u : 0u;
        }
      }
      for (int k = 0; k < 4; ++k) q.weight[k] = q.vertical[k / 2] * q.horizontal[k % 2];
    }
  }
  /// Calls whole(quad) or partial(quad) for each point.
  template <class Whole, class Partial>
  void each(const Whole& whole, const Partial& partial) const {
    for (std::int64_t i = 0; i < whole_; ++i) whole(quads_[i]);
    for (std::int64_t i = whole_; i < count_; ++i) partial(quads_[i]);
  }

 private:
  Quad quads_[kPoints];
  std::int64_t whole_ = 0, count_ = 0;
};

template <class T>
void forward_quads(const GridShape& s, const T* x, const T* grid, T* y) {
  const std::int64_t blocks = (s.points + kPoints - 1) / kPoints, image = s.c * s.pixels();
  parallel_for(s.n * blocks, grain_of(kPoints * (16 + 4 * s.c)), [&](std::int64_t begin, std::int64_t end) {
    Quads q;
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t n = b / blocks, first = b % blocks * kPoints,
                         count = std::min(kPoints, s.points - first);
      q.find(s, grid, n, first, count);
      for (std::int64_t c = 0; c < s.c; ++c) {
        const T* const plane = x + n * image + c * s.x_channel();
        T* const out = y + n * s.c * s.points + c * s.y_channel() + first;
        q.each(
            [&](const Quad& at) {
              out[at.point] =
                  T(at.weight[0] * load(plane[at.offset[0]]) + at.weight[1] * load(plane[at.offset[1]]) +
                    (at.weight[2] * load(plane[at.offset[2]]) + at.weight[3] * load(plane[at.offset[3]])));
            },
            [&](const Quad& at) {
              float sum = 0;
              for (int k = 0; k < 4; ++k) sum += at.weight[k] * at.masked(k, load(plane[at.offset[k]]));
              out[at.point] = T(sum);
            });
      }
    }
  });
}

template <class T>
void forward(const LaunchContext&, const GridSampleArgs& a) {
  using C = Compute<T>;
  const GridShape& s = a.shape;
  const T *const x = a.x.as<T>(), *const grid = a.grid.as<T>();
  T* const y = a.y.as<T>();
  if constexpr (!std::is_same_v<T, double>)
    if (Quads::fits(s)) return forward_quads(s, x, grid, y);
  const std::int64_t blocks = (s.points + kPoints - 1) / kPoints, image = s.c * s.pixels();
  const std::int64_t x_channel = s.x_channel(), y_channel = s.y_channel();
  parallel_for(s.n * blocks, grain_of(kPoints * (16 + 4 * s.c)), [&](std::int64_t begin, std::int64_t end) {
    Block<C> block;
    std::vector<C> sum(static_cast<std::size_t>(s.c));
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t n = b / blocks, first = b % blocks * kPoints,
                         count = std::min(kPoints, s.points - first);
      block.find(s, grid, n, first, count, false);
      const T* const in = x + n * image;
      T* const out = y + n * s.c * s.points + first * s.y_point();
      if (s.channels_last) {
        for (std::int64_t p = 0; p < count; ++p) {
          std::fill(sum.begin(), sum.end(), block.holes(p) ? kNaN<C> : C(0));
          block.for_taps(p, [&](const Tap<C>& t) {
            const T* const pixel = in + t.offset;
            C* const to = sum.data();
            for (std::int64_t c = 0; c < s.c; ++c) to[c] += t.weight * load(pixel[c]);
          });
          for (std::int64_t c = 0; c < s.c; ++c) out[p * s.c + c] = T(sum[static_cast<std::size_t>(c)]);
        }
        continue;
      }
      for (std::int64_t c = 0; c < s.c; ++c) {
        const T* const plane = in + c * x_channel;
        for (std::int64_t p = 0; p < count; ++p) {
          C value = block.holes(p) ? kNaN<C> : C(0);
          block.for_taps(p, [&](const Tap<C>& t) { value += t.weight * load(plane[t.offset]); });
          out[c * y_channel + p] = T(value);
        }
      }
    }
  });
}

template <class T>
void backward_input(const LaunchContext& context, const GridSampleBackwardInputArgs& a) {
  using C = Compute<T>;
  const GridShape& s = a.shape;
  const T *const grid = a.grid.as<T>(), *const dy = a.dy.as<T>();
  const std::int64_t image = s.c * s.pixels();
  const ComputeOutput<T> total(context, a.dx, s.n * image);
  C* const dx = total.data();
  // Each task owns some channels of an image, so no two threads add to one element, and the order of the sums
  // does not depend on the number of threads. Every task finds all taps of its image. So it has more channels
  // if there are images enough for the threads, or if its loops run over channels.
  const bool many = s.channels_last || s.n >= 16;
  const std::int64_t channels = many ? 8 * kChannels : kChannels, groups = (s.c + channels - 1) / channels;
  const std::int64_t work = s.points * (16 + 4 * std::min(channels, s.c));
  bool quads = false;
  if constexpr (!std::is_same_v<T, double>) quads = Quads::fits(s);
  parallel_for(s.n * groups, grain_of(work), [&](std::int64_t begin, std::int64_t end) {
    Block<C> block;
    Quads q;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t n = task / groups, c0 = task % groups * channels, c1 = std::min(c0 + channels, s.c);
      C* const out = dx + n * image;
      if (s.channels_last)
        for (std::int64_t i = 0; i < s.pixels(); ++i) std::fill(out + i * s.c + c0, out + i * s.c + c1, C(0));
      else std::fill(out + c0 * s.x_channel(), out + c1 * s.x_channel(), C(0));
      for (std::int64_t first = 0; first < s.points; first += kPoints) {
        const std::int64_t count = std::min(kPoints, s.points - first);
        const T* const in = dy + n * s.c * s.points + first * s.y_point();
        if constexpr (!std::is_same_v<T, double>)
          if (quads) {
            q.find(s, grid, n, first, count);
            for (std::int64_t c = c0; c < c1; ++c) {
              float* const plane = out + c * s.x_channel();
              const T* const g = in + c * s.y_channel();
              q.each(
                  [&](const Quad& at) {
                    const float d = load(g[at.point]);
                    for (int k = 0; k < 4; ++k) plane[at.offset[k]] += at.weight[k] * d;
                  },
                  [&](const Quad& at) {
                    const float d = load(g[at.point]);
                    for (int k = 0; k < 4; ++k) plane[at.offset[k]] += at.masked(k, at.weight[k] * d);
                  });
            }
            continue;
          }
        block.find(s, grid, n, first, count, false);
        if (s.channels_last) {
          for (std::int64_t p = 0; p < count; ++p)
            block.for_taps(p, [&](const Tap<C>& t) {
              C* const pixel = out + t.offset;
              for (std::int64_t c = c0; c < c1; ++c) pixel[c] += t.weight * load(in[p * s.c + c]);
            });
        } else {
          for (std::int64_t c = c0; c < c1; ++c) {
            C* const plane = out + c * s.x_channel();
            for (std::int64_t p = 0; p < count; ++p) {
              const C g = load(in[c * s.y_channel() + p]);
              block.for_taps(p, [&](const Tap<C>& t) { plane[t.offset] += t.weight * g; });
            }
          }
        }
      }
    }
  });
  total.store();
}

// The sum over channels of dy times the pixel of each tap gives both gradients of a point: the slopes of the
// weights are the differences along one axis, weighted along the other.
template <class T>
void backward_grid_quads(const GridShape& s, const T* x, const T* grid, const T* dy, T* dgrid) {
  const std::int64_t blocks = (s.points + kPoints - 1) / kPoints, image = s.c * s.pixels();
  parallel_for(s.n * blocks, grain_of(kPoints * (16 + 4 * s.c)), [&](std::int64_t begin, std::int64_t end) {
    Quads q;
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t n = b / blocks, first = b % blocks * kPoints,
                         count = std::min(kPoints, s.points - first);
      q.find(s, grid, n, first, count);
      float sum[kPoints][4] = {};
      for (std::int64_t c = 0; c < s.c; ++c) {
        const T* const plane = x + n * image + c * s.x_channel();
        const T* const g = dy + n * s.c * s.points + c * s.y_channel() + first;
        const auto add = [&](const Quad& at) {
          const float d = load(g[at.point]);
          float* const to = sum[at.point];
          for (int k = 0; k < 4; ++k) to[k] += d * load(plane[at.offset[k]]);
        };
        q.each(add, add);
      }
      const auto finish = [&](const Quad& at) {
        float v[4];
        for (int k = 0; k < 4; ++k) v[k] = at.masked(k, sum[at.point][k]);
        const float across = at.vertical[0] * (v[1] - v[0]) + at.vertical[1] * (v[3] - v[2]);
        const float down = at.horizontal[0] * (v[2] - v[0]) + at.horizontal[1] * (v[3] - v[1]);
        T* const to = dgrid + (n * s.points + first + at.point) * 2;
        to[0] = T(at.horizontal_slope * across);
        to[1] = T(at.vertical_slope * down);
      };
      q.each(finish, finish);
    }
  });
}

template <class T>
void backward_grid(const LaunchContext&, const GridSampleBackwardGridArgs& a) {
  using C = Compute<T>;
  const GridShape& s = a.shape;
  const T *const x = a.x.as<T>(), *const grid = a.grid.as<T>(), *const dy = a.dy.as<T>();
  T* const dgrid = a.dgrid.as<T>();
  if constexpr (!std::is_same_v<T, double>)
    if (Quads::fits(s)) return backward_grid_quads(s, x, grid, dy, dgrid);
  const std::int64_t blocks = (s.points + kPoints - 1) / kPoints, image = s.c * s.pixels();
  parallel_for(s.n * blocks, grain_of(kPoints * (16 + 4 * s.c)), [&](std::int64_t begin, std::int64_t end) {
    Block<C> block;
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t n = b / blocks, first = b % blocks * kPoints,
                         count = std::min(kPoints, s.points - first);
      block.find(s, grid, n, first, count, true);
      const T* const in = x + n * image;
      if (!s.channels_last) {
        // Plane by plane: the pixels of one point in all planes often share one set of the cache.
        C sums[kPoints][3] = {};
        for (std::int64_t c = 0; c < s.c; ++c) {
          const T* const plane = in + c * s.x_channel();
          const T* const g = dy + n * s.c * s.points + c * s.y_channel() + first;
          for (std::int64_t p = 0; p < count; ++p) {
            const C dp = load(g[p]);
            C* const sum = sums[p];
            block.for_taps(p, [&](const Tap<C>& t) {
              const C v = load(plane[t.offset]) * dp;
              for (int d = 0; d < 3; ++d) sum[d] += t.slope[d] * v;
            });
          }
        }
        for (std::int64_t p = 0; p < count; ++p)
          for (int d = 0; d < s.dims; ++d)
            dgrid[(n * s.points + first + p) * s.dims + d] =
                T(block.holes(p).in_slope(2 - d) ? kNaN<C> : sums[p][d]);
        continue;
      }
      for (std::int64_t p = 0; p < count; ++p) {
        const T* const g = dy + n * s.c * s.points + (first + p) * s.y_point();
        C sum[3] = {};
        block.for_taps(p, [&](const Tap<C>& t) {
          C dot = 0;
          for (std::int64_t c = 0; c < s.c; ++c)
            dot += load(in[t.offset + c * s.x_channel()]) * load(g[c * s.y_channel()]);
          for (int d = 0; d < 3; ++d) sum[d] += t.slope[d] * dot;
        });
        for (int d = 0; d < s.dims; ++d)
          dgrid[(n * s.points + first + p) * s.dims + d] =
              T(block.holes(p).in_slope(2 - d) ? kNaN<C> : sum[d]);
      }
    }
  });
}

const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  grid_sample.set(DeviceType::cpu, dtype_of<T>, &forward<T>);
  grid_sample_backward_input.set(DeviceType::cpu, dtype_of<T>, &backward_input<T>);
  grid_sample_backward_grid.set(DeviceType::cpu, dtype_of<T>, &backward_grid<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
