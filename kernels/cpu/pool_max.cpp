// Max pooling. In both layouts the inner loop runs over outputs that are adjacent in memory: outputs of one
// row (row-major), or channels of one output pixel (channels-last).
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tapestry/kernels/cpu/wide.h"
#include "tapestry/kernels/ops/pool.h"

namespace tapestry::kernels::cpu {
namespace {

// One element of a window, inside the input. `offset` is counted from the `x` that search() gets. `place` is
// the element's index in the window, row * kernel_w + column; elements in the padding are counted too.
struct Element {
  std::int64_t offset;
  std::int32_t place;
};

// The place that is stored for a window without elements: -1, converted to I.
template <class I>
constexpr I kNowhere = static_cast<I>(-1);

// The element that load() made this value from. It needs no rounding.
template <class T>
T stored(Compute<T> v) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return T::from_bits(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16));
  else return T(v);
}

// Compares every second element, from x[1] on, with the best ones. Two adjacent bf16 numbers are read as 32
// bits, whose upper half is the second number, so that the loop is vectorised.
template <int Width>
inline void search_pairs(const BFloat16* x, std::int32_t at, float (&best)[Width],
                         std::int32_t (&place)[Width]) {
  std::uint32_t pairs[Width];
  std::memcpy(pairs, static_cast<const void*>(x), sizeof pairs);
#pragma GCC unroll 1
  for (int i = 0; i < Width; ++i) {
    const float v = std::bit_cast<float>(pairs[i] & 0xffff0000u);
    const bool take = (v > best[i]) | (v != v);
    best[i] = take ? v : best[i];
    place[i] = take ? at : place[i];
  }
}

// Finds the maxima of the windows of Width outputs. `array` is where the array of x begins. The inputs of
// adjacent outputs are Step elements apart, or `step` elements apart if Step is 0.
template <int Width, int Step, class T, class I>
inline void search(const T* x, [[maybe_unused]] const T* array, std::int64_t step,
                   const std::vector<Element>& window, T* y, I* places) {
  using C = Compute<T>;
  if constexpr (Step != 0) step = Step;
  C best[Width];
  std::int32_t place[Width];
  std::fill_n(best, Width, -std::numeric_limits<C>::infinity());
  std::fill_n(place, Width,
              window.empty() ? -1 : window[0].place);  // so the place is valid even if all elements are -inf
  for (std::size_t e = 0; e < window.size(); ++e) {
    const T* const in = x + window[e].offset;
    const std::int32_t at = window[e].place;
    if constexpr (Step == 2 && std::is_same_v<T, BFloat16> && Width > 1) {
      if (in > array) {
        search_pairs(in - 1, at, best, place);
        continue;
      }
    }
#pragma GCC unroll 1  // GCC does not vectorise the loop if it unrolls it
    for (int i = 0; i < Width; ++i) {
      const C v = load(in[i * step]);
      const bool take = (v > best[i]) | (v != v);
      best[i] = take ? v : best[i];
      place[i] = take ? at : place[i];
    }
  }
  for (int i = 0; i < Width; ++i) y[i] = stored<T>(best[i]);
  if (places)
    for (int i = 0; i < Width; ++i) places[i] = static_cast<I>(place[i]);
}

// Finds the maxima of the windows of n adjacent outputs. It processes Width outputs at a time, or fewer if n
// is smaller than Width. The last call may overlap the previous one: computing some outputs twice is cheaper
// than computing the rest one by one.
template <int Step, int Width = 16, class T, class I>
void search_line(const T* x, const T* array, std::int64_t step, const std::vector<Element>& window,
                 std::int64_t n, T* y, I* places) {
  if constexpr (Width > 1) {
    constexpr int fewer = Width == 16 ? 8 : Width == 8 ? 4 : 1;
    if (n < Width) return search_line<Step, fewer>(x, array, step, window, n, y, places);
  }
  for (std::int64_t i = 0; i < n; i += Width) {
    const std::int64_t at = std::min(i, n - Width);
    search<Width, Step>(x + at * step, array, step, window, y + at, places ? places + at : places);
  }
}

typedef float Floats __attribute__((vector_size(32)));          // NOLINT: GNU's vector types
typedef std::int32_t Places __attribute__((vector_size(32)));   // NOLINT
typedef std::uint32_t Words __attribute__((vector_size(32)));   // NOLINT
typedef std::uint16_t Shorts __attribute__((vector_size(16)));  // NOLINT
typedef std::uint8_t Bytes __attribute__((vector_size(8)));     // NOLINT

// The elements of eight columns of two: those of the left columns and of the right ones.
struct Columns {
  Floats left, right;
};
inline Columns columns_of(const float* first, const float* last) {
  Floats low, high;
  std::memcpy(&low, first, sizeof(low));
  std::memcpy(&high, last, sizeof(high));
  return {__builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14),
          __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15)};
}
// Two neighbours are one word of 32 bits. The left one becomes f32 by a shift to the upper half, and the
// right one by a mask that clears the lower half.
inline Columns columns_of(const BFloat16* first, const BFloat16* last) {
  std::uint32_t words[8];
  std::memcpy(words, static_cast<const void*>(first), sizeof(words) / 2);
  std::memcpy(words + 4, static_cast<const void*>(last), sizeof(words) / 2);
  Words all;
  std::memcpy(&all, words, sizeof(all));
  return {reinterpret_cast<Floats>(all << 16), reinterpret_cast<Floats>(all & 0xffff0000u)};
}
inline void store(const Floats& v, float* y) { std::memcpy(y, &v, sizeof(v)); }
inline void store(const Floats& v, BFloat16* y) {  // values that columns_of() made
  const Shorts upper = __builtin_convertvector(reinterpret_cast<Words>(v) >> 16, Shorts);
  std::memcpy(static_cast<void*>(y), &upper, sizeof(upper));
}

// Finds the maxima of eight windows of 2 x 2 elements that are 2 apart, from the upper and lower rows of the
// first four windows and of the last four. Each element is read once.
template <class T>
inline void search_squares(const T* upper, const T* lower, const T* last_upper, const T* last_lower, T* y,
                           std::uint8_t* places) {
  const Columns top = columns_of(upper, last_upper), bottom = columns_of(lower, last_lower);
  Floats best = top.left;
  Places place = {};
  const auto compare = [&](const Floats& v, std::int32_t at) {
    const Places take = (v > best) | (v != v);
    best = take ? v : best;
    place = take ? Places{} + at : place;
  };
  compare(top.right, 1);
  compare(bottom.left, 2);
  compare(bottom.right, 3);
  store(best, y);
  if (!places) return;
  const Bytes bytes = __builtin_convertvector(place, Bytes);
  std::memcpy(places, &bytes, sizeof(bytes));
}
// The outputs of `rows` output rows of one image, of at least eight outputs each, or of exactly four if
// `rows` is even. x is where the first window begins; a row of the input has `width` elements.
template <class T>
void search_squares_of(const T* x, std::int64_t width, std::int64_t rows, std::int64_t n, T* y,
                       std::uint8_t* places) {
  const auto eight = [&](const T* upper, const T* last, std::int64_t at) {
    search_squares(upper, upper + width, last, last + width, y + at, places ? places + at : nullptr);
  };
  for (std::int64_t row = 0; row < rows; row += n == 4 ? 2 : 1) {
    const T* const upper = x + 2 * row * width;
    if (n == 4) eight(upper, upper + 2 * width, row * n);
    else  // the last eight may overlap those before
      for (std::int64_t i = 0; i < n; i += 8) {
        const std::int64_t at = std::min(i, n - 8);
        eight(upper + 2 * at, upper + 2 * at + 8, row * n + at);
      }
  }
}
constexpr bool kLittleEndian = std::endian::native == std::endian::little;

// A run of adjacent outputs of one row that share a list of window elements, because none of their windows
// loses columns at the image's border. The window of each next output is shifted by stride_w pixels. An
// output at the border is a segment of its own.
struct Segment {
  std::int64_t q, count;
  std::vector<Element> window;  // the window of output q; a pixel has `pixel` elements
};

// The segments of each output row p.
std::vector<std::vector<Segment>> segments(const Pool2dShape& s, std::int64_t pixel) {
  const std::int64_t begin = std::min(s.q, (s.padding_w + s.stride_w - 1) / s.stride_w);
  const std::int64_t room = s.w + s.padding_w - (s.kernel_w - 1) * s.dilation_w - 1;
  const std::int64_t end = std::clamp(room < 0 ? 0 : room / s.stride_w + 1, begin, s.q);
  std::vector<std::vector<Segment>> rows(static_cast<std::size_t>(s.p));
  for (std::int64_t p = 0; p < s.p; ++p)
    for (std::int64_t q = 0; q < s.q;) {
      Segment segment{q, q == begin && begin < end ? end - begin : 1, {}};
      for (std::int64_t r = 0; r < s.kernel_h; ++r) {
        const std::int64_t h = p * s.stride_h - s.padding_h + r * s.dilation_h;
        for (std::int64_t t = 0; t < s.kernel_w; ++t) {
          const std::int64_t w = q * s.stride_w - s.padding_w + t * s.dilation_w;
          if (h >= 0 && h < s.h && w >= 0 && w < s.w)
            segment.window.push_back({(h * s.w + w) * pixel, static_cast<std::int32_t>(r * s.kernel_w + t)});
        }
      }
      q += segment.count;
      rows[static_cast<std::size_t>(p)].push_back(std::move(segment));
    }
  return rows;
}

template <class T, class I>
void forward_row_major(const Pool2dShape& s, const T* x, T* y, I* places) {
  if constexpr ((std::is_same_v<T, float> || (std::is_same_v<T, BFloat16> && kLittleEndian)) &&
                std::is_same_v<I, std::uint8_t>) {
    const bool squares = s.kernel_h == 2 && s.kernel_w == 2 && s.stride_h == 2 && s.stride_w == 2 &&
                         s.dilation_h == 1 && s.dilation_w == 1 && s.padding_h == 0 && s.padding_w == 0 &&
                         2 * s.p <= s.h && 2 * s.q <= s.w;  // not with ceil_mode
    if (squares && (s.q >= 8 || (s.q == 4 && s.p % 2 == 0)))
      return parallel_for(s.n * s.c, grain_of(4 * s.p * s.q), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          search_squares_of(x + i * s.h * s.w, s.w, s.p, s.q, y + i * s.p * s.q,
                            places ? places + i * s.p * s.q : nullptr);
      });
  }
  const auto rows = segments(s, 1);
  const auto work = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* const in = x + row / s.p * s.h * s.w;
      for (const Segment& segment : rows[static_cast<std::size_t>(row % s.p)]) {
        const std::int64_t out = row * s.q + segment.q;
        I* const at = places ? places + out : nullptr;
        if (s.stride_w == 1) search_line<1>(in, x, 1, segment.window, segment.count, y + out, at);
        else if (s.stride_w == 2) search_line<2>(in, x, 2, segment.window, segment.count, y + out, at);
        else search_line<0>(in, x, s.stride_w, segment.window, segment.count, y + out, at);
      }
    }
  };
  parallel_for(s.n * s.c * s.p, grain_of(s.q * s.kernel_h * s.kernel_w), work);
}

template <class T, class I>
void forward_channels_last(const Pool2dShape& s, const T* x, T* y, I* places) {
  const auto rows = segments(s, s.c);
  const auto work = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      for (const Segment& segment : rows[static_cast<std::size_t>(row % s.p)])
        for (std::int64_t i = 0; i < segment.count; ++i) {
          const T* const in = x + (row / s.p * s.h * s.w + i * s.stride_w) * s.c;
          const std::int64_t out = (row * s.q + segment.q + i) * s.c;
          const auto line = [&] {
            search_line<1>(in, x, 1, segment.window, s.c, y + out, places ? places + out : nullptr);
          };
          if constexpr (is_half<T>) with_wide_vectors(line);
          else line();
        }
  };
  parallel_for(s.n * s.p, grain_of(s.q * s.c * s.kernel_h * s.kernel_w), work);
}

// If no two windows share an input, each input has at most one gradient, and dx needs no sums. Then `Out` is
// T; otherwise it is the compute type.
bool windows_are_disjoint(const Pool2dShape& s) {
  return s.stride_h > (s.kernel_h - 1) * s.dilation_h && s.stride_w > (s.kernel_w - 1) * s.dilation_w;
}

template <class Out, class T, class I>
void backward_row_major(const Pool2dShape& s, const T* dy, const I* places, Out* dx) {
  std::vector<std::int64_t> offsets;  // offset of each place from the window's first element
  for (std::int64_t r = 0; r < s.kernel_h; ++r)
    for (std::int64_t t = 0; t < s.kernel_w; ++t)
      offsets.push_back(r * s.dilation_h * s.w + t * s.dilation_w);
  parallel_for(s.n * s.c, grain_of(s.h * s.w), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane) {
      Out* const image = dx + plane * s.h * s.w;
      std::fill_n(image, s.h * s.w, Out(0));
      for (std::int64_t p = 0; p < s.p; ++p) {
        const std::int64_t out = (plane * s.p + p) * s.q;
        const std::int64_t first = (p * s.stride_h - s.padding_h) * s.w - s.padding_w;
        for (std::int64_t q = 0; q < s.q; ++q) {
          const I place = places[out + q];
          if (place == kNowhere<I>) continue;
          Out& to = image[first + q * s.stride_w + offsets[static_cast<std::size_t>(place)]];
          if constexpr (is_half<Out>) to = dy[out + q];
          else to += load(dy[out + q]);
        }
      }
    }
  });
}

// Gives one pixel of dx the gradients of the channels whose maximum it was. `first` says that they are the
// pixel's only ones.
template <class Out, class T, class I>
void take_gradients(std::int64_t channels, const T* grad, const I* place, I at, bool first, Out* out) {
  if constexpr (is_half<Out>) {
    // Integers of one width, so that the loop is vectorised.
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto mine = static_cast<std::uint16_t>(-(place[c] == at));
      out[c].bits = static_cast<std::uint16_t>((grad[c].bits & mine) | (out[c].bits & (first - 1) & ~mine));
    }
  } else if (first) {
    for (std::int64_t c = 0; c < channels; ++c) out[c] = place[c] == at ? load(grad[c]) : Out(0);
  } else {
#pragma GCC ivdep
    for (std::int64_t c = 0; c < channels; ++c) {
      const Out g = load(grad[c]);  // in any case, so that the loop is vectorised
      out[c] += place[c] == at ? g : Out(0);
    }
  }
}

// For each output pixel, adds dy to dx at every pixel of its window, in the channels in which that pixel was
// the maximum. The inner loop over channels has no branch.
template <class Out, class T, class I>
void backward_channels_last(const Pool2dShape& s, const T* dy, const I* places, Out* dx) {
  const bool covers = s.stride_h == s.kernel_h && s.stride_w == s.kernel_w && s.dilation_h == 1 &&
                      s.dilation_w == 1 && s.padding_h == 0 && s.padding_w == 0 && s.p * s.stride_h == s.h &&
                      s.q * s.stride_w == s.w;
  // Windows of different output rows may overlap in the input, so threads divide the batch by images. If the
  // windows tile the input without overlap (`covers`), threads divide it by output rows.
  const std::int64_t rows = covers ? s.n * s.p : s.n, per = covers ? 1 : s.p;
  parallel_for(rows, grain_of(per * s.q * s.c * s.kernel_h * s.kernel_w),
               [&](std::int64_t begin, std::int64_t end) {
                 if (!covers) std::fill(dx + begin * s.h * s.w * s.c, dx + end * s.h * s.w * s.c, Out(0));
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
                         Out* const out = dx + ((image * s.h + h) * s.w + w) * s.c;
                         take_gradients(s.c, grad, place, static_cast<I>(r * s.kernel_w + t), covers, out);
                       }
                     }
                   }
                 }
               });
}

template <class F>
void with_place_type(const Pool2dShape& s, F&& f) {
  if (s.kernel_h * s.kernel_w <= kSmallWindow) f(std::uint8_t{});
  else f(std::int32_t{});
}

template <class T>
void max_pool2d_kernel(const LaunchContext&, const MaxPool2dArgs& a) {
  with_place_type(a.shape, [&]<class I>(I) {
    const auto forward = a.shape.channels_last ? &forward_channels_last<T, I> : &forward_row_major<T, I>;
    forward(a.shape, a.x.as<T>(), a.y.as<T>(), a.places.as<I>());
  });
}

template <class T>
void backward_kernel(const LaunchContext& context, const MaxPool2dBackwardArgs& a) {
  const Pool2dShape& s = a.shape;
  const auto into = [&]<class Out>(Out* dx) {
    with_place_type(s, [&]<class I>(I) {
      const auto backward =
          s.channels_last ? &backward_channels_last<Out, T, I> : &backward_row_major<Out, T, I>;
      backward(s, a.dy.as<T>(), a.places.as<I>(), dx);
    });
  };
  if constexpr (is_half<T>)
    if (windows_are_disjoint(s)) return into(a.dx.as<T>());
  const ComputeOutput<T> sum(context, a.dx, s.n * s.c * s.h * s.w);
  into(sum.data());
  sum.store();
}

[[maybe_unused]] const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  max_pool2d.set(DeviceType::cpu, dtype_of<T>, &max_pool2d_kernel<T>);
  max_pool2d_backward.set(DeviceType::cpu, dtype_of<T>, &backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
