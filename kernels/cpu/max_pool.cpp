// Maxima of windows. Row-major images are done a row of outputs at a time, channels-last ones a block of
// channels at a time, so that the inner loop runs over neighbours in memory in either layout.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/ops/pool.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kLine = 64;  // outputs in progress: they stay in registers and L1
constexpr std::int64_t kGrain = 32768;

std::int64_t grain(std::int64_t work_each) {
  return std::max<std::int64_t>(kGrain / std::max<std::int64_t>(work_each, 1), 1);
}

// Best values so far of a line of windows, and where in the window they were; -1: nowhere yet.
template <class C>
struct Line {
  C best[kLine];
  std::int32_t place[kLine];

  void clear(std::int64_t n) {
    std::fill_n(best, n, -std::numeric_limits<C>::infinity());
    std::fill_n(place, n, -1);
  }
  template <class T>
  void visit(const T* x, std::int64_t step, std::int64_t begin, std::int64_t end, std::int32_t at) {
    if (step == 1) visit_by<1>(x, step, begin, end, at);
    else if (step == 2) visit_by<2>(x, step, begin, end, at);
    else visit_by<0>(x, step, begin, end, at);
  }
  template <class T, class I>
  void store(T* y, I* places, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) y[i] = T(best[i]);
    if (places)
      for (std::int64_t i = 0; i < n; ++i) places[i] = static_cast<I>(place[i]);
  }

 private:
  // Step: known when compiled, or 0.
  template <int Step, class T>
  void visit_by(const T* x, std::int64_t step, std::int64_t begin, std::int64_t end, std::int32_t at) {
    if constexpr (Step != 0) step = Step;
    for (std::int64_t i = begin; i < end; ++i) {
      const C v = load(x[i * step]);
      const bool take = (v > best[i]) | (v != v) | (place[i] < 0);
      best[i] = take ? v : best[i];
      place[i] = take ? at : place[i];
    }
  }
};

// A window without elements: as -1 converts.
template <class I>
constexpr I kNowhere = static_cast<I>(-1);

template <class T, class I>
void forward_row_major(const Pool2d& s, const T* x, T* y, I* places) {
  parallel_for(s.n * s.c, grain(s.p * s.q * s.kernel_h * s.kernel_w),
               [&](std::int64_t begin, std::int64_t end) {
                 Line<Compute<T>> line;
                 for (std::int64_t plane = begin; plane < end; ++plane)
                   for (std::int64_t p = 0; p < s.p; ++p)
                     for (std::int64_t q0 = 0; q0 < s.q; q0 += kLine) {
                       const std::int64_t n = std::min(kLine, s.q - q0), out = (plane * s.p + p) * s.q + q0;
                       line.clear(n);
                       for (std::int64_t r = 0; r < s.kernel_h; ++r) {
                         const std::int64_t h = p * s.stride_h - s.padding_h + r * s.dilation_h;
                         if (h < 0 || h >= s.h) continue;
                         for (std::int64_t t = 0; t < s.kernel_w; ++t) {
                           // Output i of the line reads column first + i stride.
                           const std::int64_t first = q0 * s.stride_w - s.padding_w + t * s.dilation_w;
                           const std::int64_t from = first < 0 ? (-first + s.stride_w - 1) / s.stride_w : 0;
                           const std::int64_t to =
                               first < s.w ? std::min(n, (s.w - first + s.stride_w - 1) / s.stride_w) : 0;
                           line.visit(x + (plane * s.h + h) * s.w + first, s.stride_w, from, to,
                                      static_cast<std::int32_t>(r * s.kernel_w + t));
                         }
                       }
                       line.store(y + out, places ? places + out : nullptr, n);
                     }
               });
}

template <class T, class I>
void forward_channels_last(const Pool2d& s, const T* x, T* y, I* places) {
  parallel_for(s.n * s.p, grain(s.q * s.c * s.kernel_h * s.kernel_w),
               [&](std::int64_t begin, std::int64_t end) {
                 Line<Compute<T>> line;
                 for (std::int64_t row = begin; row < end; ++row) {
                   const std::int64_t image = row / s.p, p = row % s.p;
                   for (std::int64_t q = 0; q < s.q; ++q)
                     for (std::int64_t c = 0; c < s.c; c += kLine) {
                       const std::int64_t n = std::min(kLine, s.c - c), out = (row * s.q + q) * s.c + c;
                       line.clear(n);
                       for (std::int64_t r = 0; r < s.kernel_h; ++r) {
                         const std::int64_t h = p * s.stride_h - s.padding_h + r * s.dilation_h;
                         if (h < 0 || h >= s.h) continue;
                         for (std::int64_t t = 0; t < s.kernel_w; ++t) {
                           const std::int64_t w = q * s.stride_w - s.padding_w + t * s.dilation_w;
                           if (w < 0 || w >= s.w) continue;
                           line.visit(x + ((image * s.h + h) * s.w + w) * s.c + c, 1, 0, n,
                                      static_cast<std::int32_t>(r * s.kernel_w + t));
                         }
                       }
                       line.store(y + out, places ? places + out : nullptr, n);
                     }
                 }
               });
}

template <class T, class I, class D = Compute<T>>
void backward_row_major(const Pool2d& s, const T* dy, const I* places, D* dx) {
  parallel_for(s.n * s.c, grain(s.h * s.w), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane) {
      D* const image = dx + plane * s.h * s.w;
      std::fill_n(image, s.h * s.w, D(0));
      for (std::int64_t p = 0; p < s.p; ++p)
        for (std::int64_t q = 0; q < s.q; ++q) {
          const std::int64_t out = (plane * s.p + p) * s.q + q;
          const I place = places[out];
          if (place == kNowhere<I>) continue;
          const std::int64_t r = place / s.kernel_w, t = place % s.kernel_w;
          const std::int64_t h = p * s.stride_h - s.padding_h + r * s.dilation_h;
          const std::int64_t w = q * s.stride_w - s.padding_w + t * s.dilation_w;
          image[h * s.w + w] += load(dy[out]);
        }
    }
  });
}

// Each pixel of a window takes the gradient of the channels whose maximum it was: no branch in the inner
// loop.
template <class T, class I, class D = Compute<T>>
void backward_channels_last(const Pool2d& s, const T* dy, const I* places, D* dx) {
  const bool covers = s.stride_h == s.kernel_h && s.stride_w == s.kernel_w && s.dilation_h == 1 &&
                      s.dilation_w == 1 && s.padding_h == 0 && s.padding_w == 0 && s.p * s.stride_h == s.h &&
                      s.q * s.stride_w == s.w;
  // Rows of outputs may share input rows, images share nothing.
  const std::int64_t rows = covers ? s.n * s.p : s.n, per = covers ? 1 : s.p;
  parallel_for(rows, grain(per * s.q * s.c * s.kernel_h * s.kernel_w),
               [&](std::int64_t begin, std::int64_t end) {
                 if (!covers) std::fill(dx + begin * s.h * s.w * s.c, dx + end * s.h * s.w * s.c, D(0));
                 for (std::int64_t row = begin * per; row < end * per; ++row) {
                   const std::int64_t image = row / s.p, p = row % s.p;
                   for (std::int64_t q = 0; q < s.q; ++q) {
                     const T* const grad = dy + (row * s.q + q) * s.c;
                     const I* const place = places + (row * s.q + q) * s.c;
                     for (std::int64_t r = 0; r < s.kernel_h; ++r) {
                       const std::int64_t h = p * s.stride_h - s.padding_h + r * s.dilation_h;
                       if (h < 0 || h >= s.h) continue;
                       for (std::int64_t t = 0; t < s.kernel_w; ++t) {
                         const std::int64_t w = q * s.stride_w - s.padding_w + t * s.dilation_w;
                         if (w < 0 || w >= s.w) continue;
                         D* const out = dx + ((image * s.h + h) * s.w + w) * s.c;
                         const I at = static_cast<I>(r * s.kernel_w + t);
                         if (covers)
                           for (std::int64_t c = 0; c < s.c; ++c)
                             out[c] = place[c] == at ? load(grad[c]) : D(0);
                         else
                           for (std::int64_t c = 0; c < s.c; ++c)
                             out[c] += place[c] == at ? load(grad[c]) : D(0);
                       }
                     }
                   }
                 }
               });
}

template <class F>
void with_place_type(const Pool2d& s, F&& f) {
  if (s.kernel_h * s.kernel_w <= kSmallWindow) f(std::uint8_t{});
  else f(std::int32_t{});
}

template <class T>
void max_pool2d_kernel(const Pool2d& s, const void* x, void* y, void* places) {
  with_place_type(s, [&]<class I>(I) {
    const T* const in = static_cast<const T*>(x);
    if (s.channels_last) forward_channels_last(s, in, static_cast<T*>(y), static_cast<I*>(places));
    else forward_row_major(s, in, static_cast<T*>(y), static_cast<I*>(places));
  });
}

template <class T>
void backward_kernel(const Pool2d& s, const void* dy, const void* places, void* dx) {
  const ComputeOutput<T> sum(s.device, dx, s.n * s.c * s.h * s.w);
  with_place_type(s, [&]<class I>(I) {
    const T* const grad = static_cast<const T*>(dy);
    if (s.channels_last) backward_channels_last(s, grad, static_cast<const I*>(places), sum.data());
    else backward_row_major(s, grad, static_cast<const I*>(places), sum.data());
  });
  sum.store();
}

[[maybe_unused]] const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  max_pool2d.set(DeviceType::cpu, dtype_of<T>, &max_pool2d_kernel<T>);
  max_pool2d_backward.set(DeviceType::cpu, dtype_of<T>, &backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
