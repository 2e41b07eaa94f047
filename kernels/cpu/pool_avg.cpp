// Average pooling, with fixed or adaptive windows. Both kinds share the kernels: an output is the sum over a
// range of rows and columns, divided by a divisor.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/sums.h"
#include "tapestry/kernels/ops/pool.h"

namespace tapestry::kernels::cpu {
namespace {

// The windows along one axis. A window covers the elements [begin, end). The divisor of an output is the
// product of the divisors of its window of rows and its window of columns.
struct Side {
  struct Window {
    std::int64_t begin, end, divisor;
  };
  std::vector<Window> windows;

  static Side fixed(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                    std::int64_t padding, bool count_pad) {
    Side side;
    for (std::int64_t i = 0; i < out; ++i) {
      const std::int64_t start = i * stride - padding, stop = std::min(start + kernel, in + padding);
      const std::int64_t begin = std::clamp<std::int64_t>(start, 0, in), end = std::clamp(stop, begin, in);
      side.windows.push_back({begin, end, count_pad ? stop - start : end - begin});
    }
    return side;
  }
  static Side adaptive(std::int64_t in, std::int64_t out) {
    Side side;
    for (std::int64_t i = 0; i < out; ++i) {
      const std::int64_t begin = i * in / out, end = ((i + 1) * in + out - 1) / out;
      side.windows.push_back({begin, end, end - begin});
    }
    return side;
  }
};

template <class C>
C reciprocal(const Side::Window& h, const Side::Window& w) {
  const std::int64_t divisor = h.divisor * w.divisor;
  return divisor > 0 ? C(1) / static_cast<C>(divisor) : C(0);
}

template <class T>
void forward(const AvgPool2dArgs& a, const Side& rows, const Side& cols) {
  using C = Compute<T>;
  const Pool2dShape& s = a.shape;
  const T* const x = a.x.as<T>();
  T* const y = a.y.as<T>();
  if (s.channels_last) {
    parallel_for(s.n * s.p, grain_of(s.h * s.w * s.c / s.p), [&](std::int64_t begin, std::int64_t end) {
      constexpr std::int64_t kBlock = 64;
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t image = row / s.p;
        const Side::Window& hs = rows.windows[row % s.p];
        for (std::int64_t q = 0; q < s.q; ++q)
          for (std::int64_t c0 = 0; c0 < s.c; c0 += kBlock) {
            const Side::Window& ws = cols.windows[q];
            const std::int64_t n = std::min(kBlock, s.c - c0);
            C sum[kBlock] = {};
            for (std::int64_t h = hs.begin; h < hs.end; ++h)
              for (std::int64_t w = ws.begin; w < ws.end; ++w) {
                const T* const in = x + ((image * s.h + h) * s.w + w) * s.c + c0;
                for (std::int64_t c = 0; c < n; ++c) sum[c] += load(in[c]);
              }
            const C scale = reciprocal<C>(hs, ws);
            T* const out = y + (row * s.q + q) * s.c + c0;
            for (std::int64_t c = 0; c < n; ++c) out[c] = T(sum[c] * scale);
          }
      }
    });
    return;
  }
  parallel_for(s.n * s.c, grain_of(s.h * s.w), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane)
      for (std::int64_t p = 0; p < s.p; ++p)
        for (std::int64_t q = 0; q < s.q; ++q) {
          const Side::Window &hs = rows.windows[p], &ws = cols.windows[q];
          C sum = 0;
          // Rows that a window covers as a whole follow each other, so they are one row.
          const bool whole = ws.end - ws.begin == s.w;
          const std::int64_t height = hs.end - hs.begin,
                             lines = whole ? std::min<std::int64_t>(height, 1) : height;
          const std::int64_t width = whole ? height * s.w : ws.end - ws.begin;
          for (std::int64_t h = 0; h < lines; ++h) {
            const T* const in = x + (plane * s.h + hs.begin + h) * s.w + ws.begin;
            if (width >= kLanes) sum += sum_lanes<C>(width, [=](std::int64_t w) { return load(in[w]); });
            else
              for (std::int64_t w = 0; w < width; ++w) sum += load(in[w]);
          }
          y[(plane * s.p + p) * s.q + q] = T(sum * reciprocal<C>(hs, ws));
        }
  });
}

template <class T>
void backward(const LaunchContext& context, const AvgPool2dBackwardArgs& a, const Side& rows,
              const Side& cols) {
  using C = Compute<T>;
  const Pool2dShape& s = a.shape;
  const T* const dy = a.dy.as<T>();
  const std::int64_t image_size = s.h * s.w * s.c;
  const ComputeOutput<T> sum(context, a.dx, s.n * image_size);
  C* const grad = sum.data();
  if (s.channels_last) {
    parallel_for(s.n, grain_of(image_size), [&](std::int64_t begin, std::int64_t end) {
      std::fill(grad + begin * image_size, grad + end * image_size, C(0));
      for (std::int64_t row = begin * s.p; row < end * s.p; ++row) {
        const std::int64_t image = row / s.p;
        const Side::Window& hs = rows.windows[row % s.p];
        for (std::int64_t q = 0; q < s.q; ++q) {
          const Side::Window& ws = cols.windows[q];
          const C scale = reciprocal<C>(hs, ws);
          const T* const in = dy + (row * s.q + q) * s.c;
          for (std::int64_t h = hs.begin; h < hs.end; ++h)
            for (std::int64_t w = ws.begin; w < ws.end; ++w) {
              C* const out = grad + ((image * s.h + h) * s.w + w) * s.c;
              for (std::int64_t c = 0; c < s.c; ++c) out[c] += load(in[c]) * scale;
            }
        }
      }
    });
  } else {
    parallel_for(s.n * s.c, grain_of(s.h * s.w), [&](std::int64_t begin, std::int64_t end) {
      std::fill(grad + begin * s.h * s.w, grad + end * s.h * s.w, C(0));
      for (std::int64_t plane = begin; plane < end; ++plane)
        for (std::int64_t p = 0; p < s.p; ++p)
          for (std::int64_t q = 0; q < s.q; ++q) {
            const Side::Window &hs = rows.windows[p], &ws = cols.windows[q];
            const C part = load(dy[(plane * s.p + p) * s.q + q]) * reciprocal<C>(hs, ws);
            for (std::int64_t h = hs.begin; h < hs.end; ++h) {
              C* const out = grad + (plane * s.h + h) * s.w;
              for (std::int64_t w = ws.begin; w < ws.end; ++w) out[w] += part;
            }
          }
    });
  }
  sum.store();
}

Side fixed_rows(const Pool2dShape& s) {
  return Side::fixed(s.h, s.p, s.kernel_h, s.stride_h, s.padding_h, s.count_include_pad);
}
Side fixed_cols(const Pool2dShape& s) {
  return Side::fixed(s.w, s.q, s.kernel_w, s.stride_w, s.padding_w, s.count_include_pad);
}

template <class T>
void avg_pool2d_kernel(const LaunchContext&, const AvgPool2dArgs& a) {
  forward<T>(a, fixed_rows(a.shape), fixed_cols(a.shape));
}
template <class T>
void avg_pool2d_backward_kernel(const LaunchContext& context, const AvgPool2dBackwardArgs& a) {
  backward<T>(context, a, fixed_rows(a.shape), fixed_cols(a.shape));
}
template <class T>
void adaptive_kernel(const LaunchContext&, const AvgPool2dArgs& a) {
  forward<T>(a, Side::adaptive(a.shape.h, a.shape.p), Side::adaptive(a.shape.w, a.shape.q));
}
template <class T>
void adaptive_backward_kernel(const LaunchContext& context, const AvgPool2dBackwardArgs& a) {
  backward<T>(context, a, Side::adaptive(a.shape.h, a.shape.p), Side::adaptive(a.shape.w, a.shape.q));
}

[[maybe_unused]] const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  avg_pool2d.set(DeviceType::cpu, dtype_of<T>, &avg_pool2d_kernel<T>);
  avg_pool2d_backward.set(DeviceType::cpu, dtype_of<T>, &avg_pool2d_backward_kernel<T>);
  adaptive_avg_pool2d.set(DeviceType::cpu, dtype_of<T>, &adaptive_kernel<T>);
  adaptive_avg_pool2d_backward.set(DeviceType::cpu, dtype_of<T>, &adaptive_backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
