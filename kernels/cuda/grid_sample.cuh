#pragma once
// Sampling of images at the points of a grid. Forward and the gradient of the grid take one thread per point
// and group of channels. For the gradient of the image, the pixels that the points read are sorted, and the
// threads of each pixel add its terms in order of the points, as index.cuh does for rows.
#include "tapestry/kernels/cuda/index.cuh"
#include "tapestry/kernels/ops/grid_sample.h"

namespace tapestry::kernels::cuda {

inline constexpr int kGridThreads = 128;
inline constexpr int kGridChannels = 8;  // of a thread, if the channels are not adjacent in memory

inline unsigned grid_blocks(std::int64_t threads) {
  return static_cast<unsigned>((threads + kGridThreads - 1) / kGridThreads);
}
__device__ __forceinline__ std::int64_t grid_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kGridThreads + threadIdx.x;
}

struct GridPlan {
  std::int64_t total;                 // threads
  WideDivisor points, groups;         // points per image, groups of channels per point or image
  std::int64_t channels, c;           // channels per group, channels
  std::int64_t pixels, image;         // elements of an image of one channel, and of all channels
  std::int64_t x_channel, y_channel;  // strides of channels
  std::int64_t y_point;
  bool channels_last;
  int dims, most_taps;
  GridAxis axes[3];
  GridMode mode;
  GridPadding padding;
  bool align_corners;

  GridPlan(const GridShape& s, std::int64_t group)
      : points(std::max<std::int64_t>(s.points, 1)),
        groups(std::max<std::int64_t>((s.c + group - 1) / group, 1)),
        channels(group),
        c(s.c),
        pixels(s.pixels()),
        image(s.c * s.pixels()),
        x_channel(s.x_channel()),
        y_channel(s.y_channel()),
        y_point(s.y_point()),
        channels_last(s.channels_last),
        dims(s.dims),
        most_taps(s.most_taps()),
        axes{s.axes[0], s.axes[1], s.axes[2]},
        mode(s.mode),
        padding(s.padding),
        align_corners(s.align_corners) {
    total = s.n * s.points * static_cast<std::int64_t>(groups.value);
  }
};

/// The place of a point along one axis.
template <class T>
__device__ __forceinline__ GridPlace<float> place_on(const GridPlan& s, const T* grid, std::int64_t point,
                                                     int axis) {
  return GridPlace<float>(load(grid[point * s.dims + 2 - axis]), s.axes[axis].size, s.mode, s.padding,
                          s.align_corners);
}
/// Calls f(d, h, w) for the taps of the three axes that each pixel of the point has. Axis 0 of a 2-d grid has
/// a single pixel. Returns the coordinates without a pixel that make the sample NaN.
template <class T, class F>
__device__ __forceinline__ GridHoles for_grid_taps(const GridPlan& s, const T* grid, std::int64_t point,
                                                   const F& f) {
  const int each = grid_taps(s.mode), deep = s.dims == 3 ? each : 1;
  const GridPlace<float> rows = place_on(s, grid, point, 1), columns = place_on(s, grid, point, 2),
                         planes = s.dims == 3 ? place_on(s, grid, point, 0) : columns;
#pragma unroll 1
  for (int i = 0; i < deep; ++i) {
    const GridTap<float> d = s.dims == 3 ? planes.tap(i) : GridTap<float>{0, 1, 0};
#pragma unroll 1
    for (int j = 0; j < each; ++j) {
      const GridTap<float> h = rows.tap(j);
#pragma unroll 1
      for (int k = 0; k < each; ++k) f(d, h, columns.tap(k));
    }
  }
  return holes_of(s.dims, s.mode, rows, columns);
}
__device__ __forceinline__ bool is_inside(const GridTap<float>& d, const GridTap<float>& h,
                                          const GridTap<float>& w) {
  return d.index >= 0 && h.index >= 0 && w.index >= 0;
}

/// An image's number, the point's number in it, and the first of the thread's channels. Adjacent threads have
/// adjacent points, or adjacent channels of channels-last images.
struct GridWork {
  std::int64_t n, point, first;
  __device__ GridWork(const GridPlan& s, std::int64_t thread) {
    std::int64_t group;
    if (s.channels_last) {
      n = split(split(thread, s.groups, group), s.points, point);
    } else {
      n = split(split(thread, s.points, point), s.groups, group);
    }
    first = group * s.channels;
  }
};

template <class T>
__global__ void __launch_bounds__(kGridThreads) sample_grid(GridPlan s, const T* x, const T* grid, T* y) {
  const std::int64_t thread = grid_thread();
  if (thread >= s.total) return;
  const GridWork at(s, thread);
  const std::int64_t point = at.n * static_cast<std::int64_t>(s.points.value) + at.point;
  const std::int64_t left = s.c - at.first, channels = left < s.channels ? left : s.channels;
  const T* const in = x + at.n * s.image;
  T* const out = y + at.n * s.c * static_cast<std::int64_t>(s.points.value) + at.point * s.y_point;
  float sum[kGridChannels] = {};
  const GridHoles holes = for_grid_taps(s, grid, point, [&](const auto& d, const auto& h, const auto& w) {
    if (!is_inside(d, h, w)) return;
    const T* const pixel = in + d.index * s.axes[0].stride + h.index * s.axes[1].stride +
                           w.index * s.axes[2].stride + at.first * s.x_channel;
    const float weight = d.weight * h.weight * w.weight;
#pragma unroll
    for (int i = 0; i < kGridChannels; ++i)
      if (i < channels) sum[i] += weight * load(pixel[i * s.x_channel]);
  });
#pragma unroll
  for (int i = 0; i < kGridChannels; ++i)
    if (i < channels)
      out[(at.first + i) * s.y_channel] = store<T>(holes ? std::numeric_limits<float>::quiet_NaN() : sum[i]);
}

template <class T>
__global__ void __launch_bounds__(kGridThreads, 3)
    sample_grid_backward_grid(GridPlan s, const T* x, const T* grid, const T* dy, T* dgrid) {
  const std::int64_t point = grid_thread();
  if (point >= s.total) return;
  std::int64_t own;
  const std::int64_t n = split(point, s.points, own);
  const T* const in = x + n * s.image;
  const T* const g = dy + n * s.c * static_cast<std::int64_t>(s.points.value) + own * s.y_point;
  float sum[3] = {};
  const GridHoles holes = for_grid_taps(s, grid, point, [&](const auto& d, const auto& h, const auto& w) {
    if (!is_inside(d, h, w)) return;
    const T* const pixel =
        in + d.index * s.axes[0].stride + h.index * s.axes[1].stride + w.index * s.axes[2].stride;
    float dot = 0;
    for (std::int64_t c = 0; c < s.c; ++c) dot += load(pixel[c * s.x_channel]) * load(g[c * s.y_channel]);
    sum[0] += d.weight * h.weight * w.slope * dot;
    sum[1] += d.weight * h.slope * w.weight * dot;
    sum[2] += d.slope * h.weight * w.weight * dot;
  });
#pragma unroll
  for (int i = 0; i < 3; ++i)
    if (i < s.dims)
      dgrid[point * s.dims + i] =
          store<T>(holes.in_slope(2 - i) ? std::numeric_limits<float>::quiet_NaN() : sum[i]);
}

/// Writes the pixels that each point reads, numbered over all images, and their weights. A pixel outside is
/// -1.
template <class T>
__global__ void __launch_bounds__(kGridThreads)
    grid_pixels(GridPlan s, const T* grid, std::int64_t* pixels, float* weights) {
  const std::int64_t point = grid_thread();
  if (point >= s.total) return;
  const GridWork at(s, point);
  std::int64_t to = point * s.most_taps;
  for_grid_taps(s, grid, point, [&](const auto& d, const auto& h, const auto& w) {
    pixels[to] =
        is_inside(d, h, w)
            ? ((at.n * s.axes[0].size + d.index) * s.axes[1].size + h.index) * s.axes[2].size + w.index
            : -1;
    weights[to++] = d.weight * h.weight * w.weight;
  });
}

struct PixelKey {
  const std::int64_t* pixels;
  /// As an unsigned number, -1 is above all pixels.
  __device__ std::uint64_t operator()(std::int64_t i) const { return static_cast<std::uint64_t>(pixels[i]); }
};

struct GridSum {
  std::int64_t total;         // threads: groups x entries
  WideDivisor entries, taps;  // sorted entries, entries per point
  WideDivisor per_image;      // pixels per image
  const std::uint64_t* keys;  // the sorted pixels
  const std::int64_t* positions;
  const float* weights;
};

/// Adds the terms of each pixel in order of position. Only the threads at the start of a run of equal pixels
/// add; all others return at once.
template <class T>
__global__ void __launch_bounds__(kGridThreads) add_pixels(GridPlan s, GridSum a, const T* dy, T* dx) {
  const std::int64_t thread = grid_thread();
  if (thread >= a.total) return;
  std::int64_t first;
  const std::int64_t c0 = split(thread, a.entries, first) * kGridChannels;
  const std::uint64_t key = a.keys[first];
  if (static_cast<std::int64_t>(key) < 0 || (first > 0 && a.keys[first - 1] == key)) return;
  const std::int64_t end = segment_end(a.keys, first, static_cast<std::int64_t>(a.entries.value));
  std::int64_t pixel;
  const std::int64_t n = split(static_cast<std::int64_t>(key), a.per_image, pixel);
  const auto points = static_cast<std::int64_t>(s.points.value);
  const T* const in = dy + n * s.c * points;
  float sum[kGridChannels] = {};
  for (std::int64_t e = first; e < end; ++e) {
    std::int64_t tap;
    const std::int64_t position = a.positions[e], point = split(position, a.taps, tap) - n * points;
    const float weight = a.weights[position];
#pragma unroll
    for (int i = 0; i < kGridChannels; ++i)
      if (c0 + i < s.c) sum[i] += weight * load(in[(c0 + i) * s.y_channel + point * s.y_point]);
  }
  T* const out = dx + n * s.image + pixel * (s.channels_last ? s.c : 1);
#pragma unroll
  for (int i = 0; i < kGridChannels; ++i)
    if (c0 + i < s.c) out[(c0 + i) * s.x_channel] = store<T>(sum[i]);
}

// ---- launches

template <class T>
void launch_grid_sample(const LaunchContext& context, const GridSampleArgs& a) {
  const GridPlan plan(a.shape, a.shape.channels_last ? 1 : kGridChannels);
  if (plan.total == 0 || plan.c == 0) return;
  launch(&sample_grid<T>, grid_blocks(plan.total), kGridThreads, 0, stream_of(context), plan, a.x.as<T>(),
         a.grid.as<T>(), a.y.as<T>());
}

template <class T>
void launch_grid_sample_backward_grid(const LaunchContext& context, const GridSampleBackwardGridArgs& a) {
  const GridPlan plan(a.shape, std::max<std::int64_t>(a.shape.c, 1));
  if (plan.total == 0) return;
  launch(&sample_grid_backward_grid<T>, grid_blocks(plan.total), kGridThreads, 0, stream_of(context), plan,
         a.x.as<T>(), a.grid.as<T>(), a.dy.as<T>(), a.dgrid.as<T>());
}

template <class T>
void launch_grid_sample_backward_input(const LaunchContext& context, const GridSampleBackwardInputArgs& a) {
  const GridPlan plan(a.shape, std::max<std::int64_t>(a.shape.c, 1));
  T* const dx = a.dx.as<T>();
  Elementwise<1> e;
  e.ndim = 1, e.numel = e.sizes[0] = a.shape.n * plan.image;
  e.strides[0][0] = 1;
  e.out = dx, e.dtypes[0] = dtype_of<T>;
  map<T>(e, Constant<float>{0}, stream_of(context));
  const std::int64_t entries = plan.total * plan.most_taps;
  if (entries == 0 || plan.c == 0) return;
  const Scratch<std::int64_t> pixels(context.device, entries);
  const Scratch<float> weights(context.device, entries);
  launch(&grid_pixels<T>, grid_blocks(plan.total), kGridThreads, 0, stream_of(context), plan, a.grid.as<T>(),
         pixels.data(), weights.data());
  const Sorted sorted(PixelKey{pixels.data()}, entries, context);
  const std::int64_t groups = (plan.c + kGridChannels - 1) / kGridChannels;
  const GridSum sum{groups * entries,
                    WideDivisor(entries),
                    WideDivisor(plan.most_taps),
                    WideDivisor(plan.pixels),
                    sorted.keys(),
                    sorted.positions(),
                    weights.data()};
  launch(&add_pixels<T>, grid_blocks(sum.total), kGridThreads, 0, stream_of(context), plan, sum, a.dy.as<T>(),
         dx);
}

}  // namespace tapestry::kernels::cuda
