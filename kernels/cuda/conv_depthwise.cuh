#pragma once
// Direct kernels for depthwise convolutions (groups = channels of x), which are not matrix products, and for
// the gradient of the bias in f32. Images are f32, bf16 or f16. Weights, bias, products and sums are f32.
//
//   depthwise      y or dx. A thread computes 4 pixels of one channel, or of 4 channels in channels-last
//                  tensors if the shape and the alignment allow it. The weight of each tap is loaded once,
//                  and overlapping windows hit in L1.
//   channel_sums   the gradient of a depthwise weight or of a bias: for each channel a sum over all pixels,
//                  split into parts, which sum_parts() adds in a fixed order
#include "tapestry/kernels/cuda/conv_plan.cuh"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda::conv {

inline bool is_depthwise(const Conv2dShape& s) { return s.groups == s.c && s.groups > 1; }

inline constexpr int kDepthwiseThreads = 128, kSumsThreads = 256;

/// Kernel parameters of depthwise() beside the GatherPlan. The weight is packed as (tap, channel of y).
struct DepthwisePlan {
  Divisor channels;    // packs of channels of `out`
  Divisor strips;      // threads that share the pixels of an image
  Divisor multiplier;  // channels of y per channel of x
  bool gradient;       // `out` is dx
  float floor;
};

/// Each thread computes kChannels channels of 4 pixels, which are kApart pixels apart. Adjacent threads
/// compute adjacent channels if kApart is 1 (channels-last), otherwise adjacent pixels. The launch bounds
/// limit a thread to 128 registers, so that 16 warps fit on an SM.
template <class T, int kChannels, int kApart>
__global__ void __launch_bounds__(kDepthwiseThreads, 4)
    depthwise(GatherPlan p, DepthwisePlan d, unsigned count, const T* in, const float* weight,
              const float* bias, T* out) {
  using Channels = Pack<T, kChannels>;
  const PixelClass& c = p.classes[blockIdx.y];
  const unsigned index = blockIdx.x * kDepthwiseThreads + threadIdx.x;
  if (index >= count) return;
  const Divisor inner = kApart == 1 ? d.channels : d.strips, outer = kApart == 1 ? d.strips : d.channels;
  const unsigned rest = inner.divide(index), fast = index - rest * inner.value;
  const unsigned n = outer.divide(rest), slow = rest - n * outer.value;
  const unsigned channel = (kApart == 1 ? fast : slow) * kChannels, strip = kApart == 1 ? slow : fast;
  const unsigned first = strip / kApart * (4 * kApart) + strip % kApart;

  std::int64_t from[4], to[4];
  unsigned h[4], w[4];
  bool some[4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned pixel = first + u * kApart, i = c.width.divide(pixel), j = pixel - i * c.width.value;
    const std::int64_t y = i * p.stride_h + c.origin_h, x = j * p.stride_w + c.origin_w;
    some[u] = i < c.height.value;
    from[u] = n * p.in.n + y * p.in.h + x * p.in.w;
    to[u] = c.out + n * p.out.n + i * p.out.h + j * p.out.w + channel * p.out.c;
    h[u] = static_cast<unsigned>(y);
    w[u] = static_cast<unsigned>(x);
  }
  float sum[4][kChannels] = {};
  const unsigned terms = d.gradient ? d.multiplier.value : 1;
  for (unsigned term = 0; term < terms; ++term) {
    const unsigned line = d.gradient ? channel * terms + term : channel;  // channel of y
    const T* const source = in + (d.gradient ? line : d.multiplier.divide(channel)) * p.in.c;
    const float* tap_weight = weight + c.weight + line;
    std::int64_t at = 0;
    unsigned tap_h = 0, tap_w = 0, column = 0;
    for (unsigned tap = 0; tap < c.taps; ++tap) {
      const auto factor = *reinterpret_cast<const Pack<float, kChannels>*>(tap_weight);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        if (!some[u] || h[u] + tap_h >= p.in_h || w[u] + tap_w >= p.in_w) continue;
        const auto value = unpacked(*reinterpret_cast<const Channels*>(source + from[u] + at));
#pragma unroll
        for (int v = 0; v < kChannels; ++v) sum[u][v] = fmaf(value.v[v], factor.v[v], sum[u][v]);
      }
      tap_weight += p.weight_line;
      tap_w += static_cast<unsigned>(p.tap_w);
      at += p.tap_w * p.in.w;
      if (++column < c.taps_w.value) continue;
      column = 0;
      tap_w = 0;
      tap_h += static_cast<unsigned>(p.tap_h);
      at += p.tap_h * p.in.h - c.taps_w.value * p.tap_w * p.in.w;
    }
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    if (!some[u]) continue;
    Channels result;
#pragma unroll
    for (int v = 0; v < kChannels; ++v)
      result.v[v] = store<T>(epilogue(sum[u][v], bias ? bias[channel + v] : 0, d.floor));
    *reinterpret_cast<Channels*>(out + to[u]) = result;
  }
}

template <class T>
void launch_depthwise(GatherClasses g, const Conv2dShape& s, bool gradient, const T* in, const float* weight,
                      const float* bias, T* out, const Tuning& tuning, const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  GatherPlan& p = g.plan;
  PackPlan pack{};
  pack.lines = static_cast<unsigned>(s.k);
  pack.padded = divisor(ceil_div(s.k, 4) * 4), pack.channels = divisor(1);
  pack.line = s.r * s.s;
  const Scratch<float> packed(context.device, place_weights(g, 1, 1, pack.padded.value));
  launch_pack(g, pack, 1, weight, packed.data(), stream);
  p.weight_line = pack.padded.value;

  const std::int64_t image = gradient ? s.h * s.w : s.p * s.q, channels = gradient ? s.c : s.k;
  if (!covers(g, image))
    launch(&fill_zeros<T>, static_cast<unsigned>(ceil_div(s.n * image * channels, kPackThreads)),
           kPackThreads, 0, stream, out, s.n * image * channels);
  const bool quads = s.channels_last && s.k == s.c && s.c % 4 == 0 && aligned<T, 4>(in) && aligned<T, 4>(out);
  DepthwisePlan d{};
  d.channels = divisor(quads ? channels / 4 : channels);
  d.multiplier = divisor(s.k / s.c);
  d.gradient = gradient;
  d.floor = floor_of(s.relu && !gradient);
  const std::int64_t apart = s.channels_last ? 1 : 32;
  for (std::size_t at = 0; at < g.pixels.size(); at += kMaxClasses) {
    const int classes = static_cast<int>(std::min<std::size_t>(kMaxClasses, g.pixels.size() - at));
    std::copy_n(g.pixels.begin() + static_cast<std::ptrdiff_t>(at), classes, p.classes);
    std::int64_t pixels = 1;
    for (int i = 0; i < classes; ++i) pixels = std::max<std::int64_t>(pixels, p.classes[i].pixels);
    const std::int64_t strips = ceil_div(pixels, 4 * apart) * apart;
    d.strips = divisor(strips);
    for_images(s.n, strips * d.channels.value, tuning.max_pixels, [&](std::int64_t n, std::int64_t images) {
      const std::int64_t count = images * strips * d.channels.value;
      const dim3 grid(static_cast<unsigned>(ceil_div(count, kDepthwiseThreads)),
                      static_cast<unsigned>(classes));
      const auto go = [&](auto kernel) {
        launch(kernel, grid, kDepthwiseThreads, 0, stream, p, d, checked_u31("an image", count),
               in + n * p.in.n, packed.data(), bias, out + n * p.out.n);
      };
      if (quads) go(&depthwise<T, 4, 1>);
      else if (s.channels_last) go(&depthwise<T, 1, 1>);
      else go(&depthwise<T, 1, 32>);
    });
  }
}

// ---- sums over pixels

/// Describes dy, which channel_sums() reduces to sums per channel. In both layouts, consecutive pixels of an
/// image are equally far apart. In channels-last tensors this also holds across images.
template <class T>
struct ChannelSums {
  const T* dy;
  unsigned pixels, channels;  // pixels of all images
  Divisor height, width, image;
  ImageStrides strides;
};

/// For the gradient of a bias, channel_sums() adds the terms dy. kSums is the number of accumulators in
/// registers.
struct BiasTerm {
  static constexpr int kSums = 1;
  unsigned sums = 1;

  struct OfChannel {
    __device__ OfChannel(const BiasTerm&, unsigned, unsigned) {}
    __device__ void add(const BiasTerm&, const ChannelSums<float>&, float dy, unsigned,
                        float (&sum)[1]) const {
      sum[0] += dy;
    }
  };
};

/// For the gradient of a depthwise weight, channel_sums() adds the products dy x, for 9 taps of the window
/// per pass.
template <class T>
struct DepthwiseTerm {
  static constexpr int kSums = 9;
  unsigned sums;  // taps
  const T* x;
  unsigned in_h, in_w;
  ImageStrides in;
  Divisor window_w, multiplier;
  std::int64_t stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;

  struct OfChannel {
    const T* x;
    unsigned h[kSums], w[kSums];
    std::int64_t at[kSums];
    __device__ OfChannel(const DepthwiseTerm& t, unsigned channel, unsigned first_tap) {
      x = t.x + t.multiplier.divide(channel) * t.in.c;
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const unsigned tap = first_tap + i, a = t.window_w.divide(tap);
        const std::int64_t y = a * t.dilation_h - t.padding_h;
        const std::int64_t z = (tap - a * t.window_w.value) * t.dilation_w - t.padding_w;
        h[i] = tap < t.sums ? static_cast<unsigned>(y) : 0;
        w[i] = tap < t.sums ? static_cast<unsigned>(z) : 0;
        at[i] = tap < t.sums ? y * t.in.h + z * t.in.w : 0;  // sums of taps past the end are not stored
      }
    }
    __device__ void add(const DepthwiseTerm& t, const ChannelSums<T>& p, float dy, unsigned pixel,
                        float (&sum)[kSums]) const {
      const unsigned row = p.width.divide(pixel), j = pixel - row * p.width.value;
      const unsigned n = p.height.divide(row), i = row - n * p.height.value;
      const std::int64_t y = i * t.stride_h, z = j * t.stride_w;
      const T* const from = x + n * t.in.n + y * t.in.h + z * t.in.w;
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        const bool inside =
            (static_cast<unsigned>(y) + h[k] < t.in_h) & (static_cast<unsigned>(z) + w[k] < t.in_w);
        sum[k] = fmaf(dy, inside ? load(from[at[k]]) : 0.0f, sum[k]);
      }
    }
  };
};

/// Computes the sums of each channel (`term.sums` of them, such as one per tap of the window) over one part
/// of the pixels. Block (32, 8). In channels-last tensors a block takes 32 channels, and 8 pixels per step;
/// in row-major tensors it takes one channel, and 256 pixels per step. Grid: (blocks needed for all channels,
/// groups of Term::kSums sums, parts). The output `parts` is (part, channel, sum).
template <bool channels_last, class T, class Term>
__global__ void __launch_bounds__(kSumsThreads) channel_sums(ChannelSums<T> p, Term term, float* parts) {
  __shared__ float sums[8][32];
  constexpr unsigned kStep = channels_last ? 8 : kSumsThreads;
  const unsigned channel = channels_last ? blockIdx.x * 32 + threadIdx.x : blockIdx.x;
  const bool inside = channel < p.channels;
  const unsigned first_sum = blockIdx.y * Term::kSums;
  float sum[Term::kSums] = {};
  if (inside) {
    const typename Term::OfChannel own(term, channel, first_sum);
    const Steps part(p.pixels, blockIdx.z, gridDim.z);  // counted in groups of 8 pixels
    const unsigned first = part.first * kDepth, end = first + part.count * kDepth;
    const unsigned last = end < p.pixels ? end : p.pixels;
    for (unsigned pixel = first + (channels_last ? threadIdx.y : threadIdx.y * 32 + threadIdx.x);
         pixel < last; pixel += kStep) {
      std::int64_t at = pixel * p.strides.w;
      if (!channels_last) {
        const unsigned n = p.image.divide(pixel);
        at = n * p.strides.n + (pixel - n * p.image.value);
      }
      own.add(term, p, load(p.dy[at + channel * p.strides.c]), pixel, sum);
    }
  }
#pragma unroll
  for (int k = 0; k < Term::kSums; ++k) {
    if (k > 0) __syncthreads();
    sums[threadIdx.y][threadIdx.x] = sum[k];
    __syncthreads();
    if (threadIdx.y > 0) continue;
    float total = 0;
#pragma unroll
    for (int y = 0; y < 8; ++y) total += sums[y][threadIdx.x];
    if (!channels_last) {
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) total += __shfl_xor_sync(kAllLanes, total, lanes);
    }
    if (inside && first_sum + k < term.sums && (channels_last || threadIdx.x == 0))
      parts[(static_cast<std::int64_t>(blockIdx.z) * p.channels + channel) * term.sums + first_sum + k] =
          total;
  }
}

template <class T, class Term>
void launch_channel_sums(const Conv2dShape& s, const T* dy, Term term, float* out, const Tuning& tuning,
                         const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  const std::int64_t image = s.p * s.q, size = s.k * term.sums;
  const std::int64_t across = s.channels_last ? ceil_div(s.k, 32) : s.k;
  const std::int64_t groups = ceil_div(term.sums, Term::kSums);
  std::int64_t launches = 0;
  for_images(s.n, image, tuning.max_pixels, [&](std::int64_t, std::int64_t) { ++launches; });
  // The number of parts is limited to at most 8 blocks per SM and at least 8 pixels per thread.
  const std::int64_t most = ceil_div(8 * kMultiprocessors, across * groups);
  const std::int64_t count =
      tuning.parts
          ? tuning.parts
          : std::clamp<std::int64_t>(s.n * image / (s.channels_last ? 64 : 8 * kSumsThreads), 1, most);
  const Scratch<float> parts(context.device, launches * count * size);
  float* to = parts.data();
  for_images(s.n, image, tuning.max_pixels, [&](std::int64_t first, std::int64_t images) {
    const ChannelSums<T> p{dy + first * output_strides(s).n,
                           static_cast<unsigned>(images * image),
                           static_cast<unsigned>(s.k),
                           divisor(s.p),
                           divisor(s.q),
                           divisor(image),
                           output_strides(s)};
    Term own = term;
    if constexpr (requires { own.x; }) own.x += first * own.in.n;
    const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(groups),
                    static_cast<unsigned>(count));
    launch(s.channels_last ? &channel_sums<true, T, Term> : &channel_sums<false, T, Term>, grid, {32, 8}, 0,
           stream, p, own, to);
    to += count * size;
  });
  launch_sum_parts(parts.data(), launches * count, size, OutputTarget{out, nullptr, floor_of(false), {}, {}},
                   stream);
}

template <class T>
void launch_depthwise_weight(const Conv2dShape& s, const T* dy, const T* x, float* dweight,
                             const Tuning& tuning, const LaunchContext& context) {
  const DepthwiseTerm<T> term{static_cast<unsigned>(s.r * s.s),
                              x,
                              static_cast<unsigned>(s.h),
                              static_cast<unsigned>(s.w),
                              input_strides(s),
                              divisor(s.s),
                              divisor(s.k / s.c),
                              s.stride_h,
                              s.stride_w,
                              s.padding_h,
                              s.padding_w,
                              s.dilation_h,
                              s.dilation_w};
  launch_channel_sums(s, dy, term, dweight, tuning, context);
}
template <class = void>
void launch_bias_gradient(const Conv2dShape& s, const float* dy, float* dbias, const Tuning& tuning,
                          const LaunchContext& context) {
  launch_channel_sums(s, dy, BiasTerm{}, dbias, tuning, context);
}

}  // namespace tapestry::kernels::cuda::conv
