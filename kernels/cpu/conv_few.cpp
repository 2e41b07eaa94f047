#include "tapestry/kernels/cpu/conv_few.h"

#include "tapestry/kernels/cpu/compute.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tapestry/kernels/cpu/bf16_dot.h"

#define TAPESTRY_BF16_CODE [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]]

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kLanes = 16;  // f32 in a vector
constexpr std::int64_t kPixels = 8;  // outputs of a row that are computed at a time, channels-last
constexpr std::int64_t kTaps =
    14;  // sums that are held at a time: 28 are 3 windows of 3 x 3 and one of 5 x 5
constexpr std::int64_t kChunkImages = 4;     // images whose gradients of the weight are summed first
constexpr std::int64_t kSlack = 2 * kLanes;  // elements that vectors may read behind an image

bool fits(const Conv2dShape& s) {
  return bf16_dot_pays() && s.groups == 1 && s.c <= 4 && s.s <= 5 && s.r * s.c <= 32 && s.k % kLanes == 0 &&
         s.stride_w == 1 && s.dilation_w == 1 && s.n > 0 && s.p > 0 && s.q > 0;
}

// One padded image as planes. `pairs` has in 32 bits each element with its right neighbour, and `singles`
// with 0. The instruction multiplies such pairs.
struct Image {
  std::int64_t rows, columns, plane;
  std::vector<std::uint16_t> elements;
  std::vector<std::uint32_t> pairs, singles;

  Image(const Conv2dShape& s, bool with_pairs)
      : rows(s.h + 2 * s.padding_h), columns(s.w + 2 * s.padding_w), plane(rows * columns) {
    const auto size = static_cast<std::size_t>(s.c * plane + kSlack);
    elements.assign(size + 1, 0);
    if (with_pairs) pairs.assign(size, 0), singles.assign(size, 0);
  }
  void load(const Conv2dShape& s, const BFloat16* x) {
    for (std::int64_t c = 0; c < s.c; ++c)
      for (std::int64_t h = 0; h < s.h; ++h) {
        std::uint16_t* const to =
            &elements[static_cast<std::size_t>(c * plane + (h + s.padding_h) * columns + s.padding_w)];
        if (s.channels_last)
          for (std::int64_t w = 0; w < s.w; ++w) to[w] = x[(h * s.w + w) * s.c + c].bits;
        else
          for (std::int64_t w = 0; w < s.w; ++w) to[w] = x[(c * s.h + h) * s.w + w].bits;
      }
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      singles[i] = elements[i];
      pairs[i] = elements[i] | static_cast<std::uint32_t>(elements[i + 1]) << 16;
    }
  }
};

// A column, or two adjacent columns, of a window's row. `offset` is counted in an Image from where the window
// begins.
struct Tap {
  std::int64_t offset;
  bool pair;
};
std::vector<Tap> taps_of(const Conv2dShape& s, const Image& image) {
  std::vector<Tap> taps;
  for (std::int64_t c = 0; c < s.c; ++c)
    for (std::int64_t r = 0; r < s.r; ++r)
      for (std::int64_t t = 0; t < s.s; t += 2)
        taps.push_back({c * image.plane + r * s.dilation_h * image.columns + t, t + 1 < s.s});
  return taps;
}
// The weights of each tap, for all output channels.
std::vector<std::uint32_t> weights_of(const Conv2dShape& s, const BFloat16* weight) {
  std::vector<std::uint32_t> out;
  for (std::int64_t row = 0; row < s.c * s.r; ++row)
    for (std::int64_t t = 0; t < s.s; t += 2)
      for (std::int64_t k = 0; k < s.k; ++k) {
        const BFloat16* const w = weight + (k * s.c * s.r + row) * s.s + t;
        out.push_back(w[0].bits | (t + 1 < s.s ? static_cast<std::uint32_t>(w[1].bits) << 16 : 0));
      }
  return out;
}

TAPESTRY_BF16_CODE inline __m512bh as_bf16(__m512i v) { return reinterpret_cast<__m512bh>(v); }
// 16 elements, each in the lower half of 32 bits. g++ 12 warns of the intrinsics without masks (its bug
// 105593).
TAPESTRY_BF16_CODE inline __m512i lower_halves(const BFloat16* x) {
  return _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
TAPESTRY_BF16_CODE inline float sum_of(__m512 v) {
  float lanes[kLanes];
  _mm512_storeu_ps(lanes, v);
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
    for (std::int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

// Rounds as BFloat16's constructor does, except for the instruction's subnormal numbers, which are rounded
// one by one.
TAPESTRY_BF16_CODE inline void store(BFloat16* y, __m512 v, std::int64_t n) {
  constexpr int kSubnormal = 1 << 5;
  const auto first = static_cast<__mmask16>((1u << n) - 1);
  if ((_mm512_fpclass_ps_mask(v, kSubnormal) & first) != 0) [[unlikely]] {
    float all[kLanes];
    _mm512_storeu_ps(all, v);
    for (std::int64_t i = 0; i < n; ++i) y[i] = BFloat16(all[i]);
    return;
  }
  _mm256_mask_storeu_epi16(y, first, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}

// A row of outputs, row-major: the lanes are adjacent pixels of one channel.
TAPESTRY_BF16_CODE void forward_row_major(const Conv2dShape& s, const Image& image,
                                          const std::vector<Tap>& taps, const std::uint32_t* weights,
                                          const float* bias, std::int64_t p, BFloat16* y) {
  const std::int64_t at = p * s.stride_h * image.columns;
  for (std::int64_t q = 0; q < s.q; q += kLanes)
    for (std::int64_t k = 0; k < s.k; k += kLanes) {
      __m512 sums[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) sums[i] = _mm512_set1_ps(bias[k + i]);
      const std::uint32_t* w = weights + k;
      for (const Tap& tap : taps) {
        const auto& from = tap.pair ? image.pairs : image.singles;
        const __m512bh x = as_bf16(_mm512_loadu_si512(from.data() + at + tap.offset + q));
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i)
          sums[i] = _mm512_dpbf16_ps(sums[i], x, as_bf16(_mm512_set1_epi32(static_cast<int>(w[i]))));
        w += s.k;
      }
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        store(y + ((k + i) * s.p + p) * s.q + q, sums[i], std::min(kLanes, s.q - q));
    }
}
// The same channels-last: the lanes are adjacent channels of one pixel.
TAPESTRY_BF16_CODE void forward_channels_last(const Conv2dShape& s, const Image& image,
                                              const std::vector<Tap>& taps, const std::uint32_t* weights,
                                              const float* bias, std::int64_t p, BFloat16* y) {
  const std::int64_t at = p * s.stride_h * image.columns;
  for (std::int64_t q = 0; q < s.q; q += kPixels)
    for (std::int64_t k = 0; k < s.k; k += kLanes) {
      __m512 sums[kPixels];
#pragma GCC unroll 8
      for (int i = 0; i < kPixels; ++i) sums[i] = _mm512_loadu_ps(bias + k);
      const std::uint32_t* w = weights + k;
      for (const Tap& tap : taps) {
        const std::uint32_t* const x = (tap.pair ? image.pairs : image.singles).data() + at + tap.offset + q;
        const __m512bh factor = as_bf16(_mm512_loadu_si512(w));
#pragma GCC unroll 8
        for (int i = 0; i < kPixels; ++i)
          sums[i] = _mm512_dpbf16_ps(sums[i], factor, as_bf16(_mm512_set1_epi32(static_cast<int>(x[i]))));
        w += s.k;
      }
#pragma GCC unroll 8
      for (int i = 0; i < kPixels; ++i)
        if (q + i < s.q) store(y + (p * s.q + q + i) * s.k + k, sums[i], kLanes);
    }
}

// Adds the products of dy's rows with the inputs below them: dweight[k][c][r][t] for one c and r, all t, and
// kChannels channels k. Row-major: the lanes are adjacent pixels.
template <int kColumns, int kChannels>
TAPESTRY_BF16_CODE void weight_row_major(const Conv2dShape& s, const Image* images, std::int64_t count,
                                         const BFloat16* dy, std::int64_t c, std::int64_t r, std::int64_t k,
                                         float* dweight) {
  __m512 sums[kChannels][kColumns];
#pragma GCC unroll 8
  for (int i = 0; i < kChannels; ++i)
#pragma GCC unroll 8
    for (int t = 0; t < kColumns; ++t) sums[i][t] = _mm512_setzero_ps();
  for (std::int64_t n = 0; n < count; ++n)
    for (std::int64_t p = 0; p < s.p; ++p) {
      const std::uint16_t* const x = images[n].elements.data() + c * images[n].plane +
                                     (p * s.stride_h + r * s.dilation_h) * images[n].columns;
      const BFloat16* const grad = dy + ((n * s.k + k) * s.p + p) * s.q;
      for (std::int64_t q = 0; q < s.q; q += 2 * kLanes) {
        const std::int64_t left = s.q - q;
        const __mmask32 used = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
        __m512i in[kColumns];
#pragma GCC unroll 8
        for (int t = 0; t < kColumns; ++t) in[t] = _mm512_maskz_loadu_epi16(used, x + q + t);
#pragma GCC unroll 8
        for (int i = 0; i < kChannels; ++i) {
          const __m512bh g = as_bf16(_mm512_maskz_loadu_epi16(used, grad + i * s.p * s.q + q));
#pragma GCC unroll 8
          for (int t = 0; t < kColumns; ++t) sums[i][t] = _mm512_dpbf16_ps(sums[i][t], g, as_bf16(in[t]));
        }
      }
    }
#pragma GCC unroll 8
  for (int i = 0; i < kChannels; ++i)
#pragma GCC unroll 8
    for (int t = 0; t < kColumns; ++t)
      dweight[(((k + i) * s.c + c) * s.r + r) * kColumns + t] = sum_of(sums[i][t]);
}
template <int kColumns>
void weight_row_major(const Conv2dShape& s, const Image* images, std::int64_t count, const BFloat16* dy,
                      float* dweight) {
  constexpr int kChannels = kColumns <= 3 ? 8 : 4;
  for (std::int64_t k = 0; k < s.k; k += kChannels)
    for (std::int64_t c = 0; c < s.c; ++c)
      for (std::int64_t r = 0; r < s.r; ++r)
        weight_row_major<kColumns, kChannels>(s, images, count, dy, c, r, k, dweight);
}

// The same channels-last: the lanes are channels, and the instruction adds the products of two adjacent
// pixels.
TAPESTRY_BF16_CODE void weight_channels_last(const Conv2dShape& s, const Image* images, std::int64_t count,
                                             const BFloat16* dy, float* dweight) {
  const std::int64_t taps = s.c * s.r * s.s;
  for (std::int64_t first = 0; first < taps; first += kTaps) {
    std::int64_t offsets[kTaps];
    for (std::int64_t i = 0; i < kTaps; ++i) {  // missing taps repeat the last one
      const std::int64_t tap = std::min(first + i, taps - 1), t = tap % s.s, r = tap / s.s % s.r,
                         c = tap / s.s / s.r;
      offsets[i] = c * images[0].plane + r * s.dilation_h * images[0].columns + t;
    }
    for (std::int64_t k = 0; k < s.k; k += kLanes) {
      __m512 sums[kTaps];
#pragma GCC unroll 14
      for (int i = 0; i < kTaps; ++i) sums[i] = _mm512_setzero_ps();
      for (std::int64_t n = 0; n < count; ++n)
        for (std::int64_t p = 0; p < s.p; ++p)
          for (std::int64_t q = 0; q < s.q; q += 2) {
            const bool pair = q + 1 < s.q;
            const BFloat16* const grad = dy + ((n * s.p + p) * s.q + q) * s.k + k;
            __m512i both = lower_halves(grad);
            if (pair)
              both = _mm512_or_si512(both, _mm512_maskz_slli_epi32(0xffff, lower_halves(grad + s.k), 16));
            const std::uint32_t* const x =
                (pair ? images[n].pairs : images[n].singles).data() + p * s.stride_h * images[n].columns + q;
#pragma GCC unroll 14
            for (int i = 0; i < kTaps; ++i)
              sums[i] = _mm512_dpbf16_ps(sums[i], as_bf16(both),
                                         as_bf16(_mm512_set1_epi32(static_cast<int>(x[offsets[i]]))));
          }
      for (int i = 0; i < kTaps; ++i) {
        float lanes[kLanes];
        _mm512_storeu_ps(lanes, sums[i]);
        if (first + i < taps)
          for (std::int64_t j = 0; j < kLanes; ++j) dweight[(k + j) * taps + first + i] = lanes[j];
      }
    }
  }
}

// The sums of dy over the pixels of some images.
void add_up(const Conv2dShape& s, std::int64_t count, const BFloat16* dy, float* dbias) {
  std::fill_n(dbias, s.k, 0.0f);
  const std::int64_t pixels = s.p * s.q;
  if (s.channels_last) {
    for (std::int64_t i = 0; i < count * pixels; ++i)
      for (std::int64_t k = 0; k < s.k; ++k) dbias[k] += static_cast<float>(dy[i * s.k + k]);
    return;
  }
  for (std::int64_t plane = 0; plane < count * s.k; ++plane) {
    const BFloat16* const from = dy + plane * pixels;
    float lanes[kLanes] = {}, rest = 0;
    std::int64_t i = 0;
    for (; i + kLanes <= pixels; i += kLanes)
      for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<float>(from[i + j]);
    for (; i < pixels; ++i) rest += static_cast<float>(from[i]);
    for (const float lane : lanes) rest += lane;
    dbias[plane % s.k] += rest;
  }
}

}  // namespace

bool FewChannels::forward(const LaunchContext&, const Conv2dShape& s, const BFloat16* x,
                          const BFloat16* weight, const BFloat16* bias, BFloat16* y) {
  if (!fits(s)) return false;
  const std::vector<std::uint32_t> weights = weights_of(s, weight);
  std::vector<float> biases(static_cast<std::size_t>(s.k), 0.0f);
  if (bias) to_float(bias, biases.data(), s.k);
  parallel_for(s.n, grain_of(s.k * s.p * s.q * s.c * s.r), [&](std::int64_t begin, std::int64_t end) {
    Image image(s, true);
    const std::vector<Tap> taps = taps_of(s, image);
    for (std::int64_t n = begin; n < end; ++n) {
      image.load(s, x + n * s.c * s.h * s.w);
      BFloat16* const out = y + n * s.k * s.p * s.q;
      for (std::int64_t p = 0; p < s.p; ++p)
        if (s.channels_last) forward_channels_last(s, image, taps, weights.data(), biases.data(), p, out);
        else forward_row_major(s, image, taps, weights.data(), biases.data(), p, out);
    }
  });
  return true;
}

bool FewChannels::backward_weight(const LaunchContext& context, const Conv2dShape& s, const BFloat16* dy,
                                  const BFloat16* x, BFloat16* dweight, BFloat16* dbias) {
  if (!fits(s)) return false;
  // Chunks of a fixed number of images are added in order, so the result does not depend on the threads.
  const std::int64_t chunks = (s.n + kChunkImages - 1) / kChunkImages, size = s.k * (s.c * s.r * s.s + 1);
  const Scratch<float> parts(context.device, chunks * size);
  parallel_for(chunks, grain_of(kChunkImages * s.k * s.p * s.q * s.c * s.r),
               [&](std::int64_t begin, std::int64_t end) {
                 std::vector<Image> images(kChunkImages, Image(s, s.channels_last));
                 for (std::int64_t chunk = begin; chunk < end; ++chunk) {
                   const std::int64_t first = chunk * kChunkImages,
                                      count = std::min(kChunkImages, s.n - first);
                   for (std::int64_t n = 0; n < count; ++n)
                     images[static_cast<std::size_t>(n)].load(s, x + (first + n) * s.c * s.h * s.w);
                   const BFloat16* const grad = dy + first * s.k * s.p * s.q;
                   float* const to = parts.data() + chunk * size;
                   if (s.channels_last) weight_channels_last(s, images.data(), count, grad, to);
                   else if (s.s == 1) weight_row_major<1>(s, images.data(), count, grad, to);
                   else if (s.s == 2) weight_row_major<2>(s, images.data(), count, grad, to);
                   else if (s.s == 3) weight_row_major<3>(s, images.data(), count, grad, to);
                   else if (s.s == 4) weight_row_major<4>(s, images.data(), count, grad, to);
                   else weight_row_major<5>(s, images.data(), count, grad, to);
                   if (dbias) add_up(s, count, grad, to + size - s.k);
                 }
               });
  float* const sums = parts.data();
  for (std::int64_t chunk = 1; chunk < chunks; ++chunk)
    for (std::int64_t i = 0; i < size; ++i) sums[i] += sums[chunk * size + i];
  from_float(sums, dweight, size - s.k);
  if (dbias) from_float(sums + size - s.k, dbias, s.k);
  return true;
}

}  // namespace tapestry::kernels::cpu

#else

namespace tapestry::kernels::cpu {
bool FewChannels::forward(const LaunchContext&, const Conv2dShape&, const BFloat16*, const BFloat16*,
                          const BFloat16*, BFloat16*) {
  return false;
}
bool FewChannels::backward_weight(const LaunchContext&, const Conv2dShape&, const BFloat16*, const BFloat16*,
                                  BFloat16*, BFloat16*) {
  return false;
}
}  // namespace tapestry::kernels::cpu

#endif
