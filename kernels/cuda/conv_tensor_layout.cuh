#pragma once
// What the tensor-core convolutions read: images with channels last and weights with the channels of a tap
// contiguous, both in whole chunks of 8 channels. Other arrays are copied to scratch memory first.
//
// An image with fewer than 8 channels would become mostly padding. So its copy takes the S pixels of a
// window's row together as channels of one pixel, and the window of R x S becomes one of R x 1. In the first
// layer of a ResNet (3 channels, a window of 7 x 7), a row of 7 pixels has 21 channels, padded to 24. The
// depth k of the product is then 7 x 24, instead of 49 pixels x 8 channels.
#include "tapestry/kernels/cuda/conv_tensor.cuh"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda::conv::tensor_cores {

inline std::int64_t padded(std::int64_t channels) { return ceil_div(channels, kChunk) * kChunk; }

/// A copy between an image of any layout and one with whole chunks of channels last, (n, h, width, 8 chunks).
struct LayoutPlan {
  ImageStrides strides;   // of the image of any layout
  Divisor width, pixels;  // of the other image: pixels of a row, pixels
  Divisor pairs;          // of chunks: lanes take two chunks of 16 pixels, which are whole sectors in both
  Divisor channels;       // of a tap
  unsigned across;        // 2, or 1 if there is a single chunk
  unsigned chunks, taps;
  unsigned w;                              // width of the image of any layout
  std::int64_t stride, padding, dilation;  // along the width; 1, 0 and 1 if there is one tap
  /// One tap: the same pixels in both images.
  static LayoutPlan same(const ImageStrides& strides, std::int64_t h, std::int64_t w, std::int64_t c) {
    LayoutPlan p{};
    p.strides = strides;
    p.width = divisor(w), p.pixels = divisor(h * w), p.channels = divisor(c);
    p.taps = 1, p.w = static_cast<unsigned>(w);
    p.stride = 1, p.dilation = 1;
    p.set_chunks(c);
    return p;
  }
  void set_chunks(std::int64_t c) {
    chunks = static_cast<unsigned>(padded(c) / kChunk);
    across = chunks == 1 ? 1 : 2;
    pairs = divisor(ceil_div(chunks, across));
  }
  std::int64_t threads() const { return std::int64_t{pixels.value} * pairs.value * across; }  // per image
};

inline constexpr int kLayoutThreads = 256;

/// The chunk of a thread.
struct LayoutPlace {
  unsigned n, row, column, chunk;
  std::int64_t at;  // offset in the image with whole chunks
  __device__ __forceinline__ LayoutPlace(const LayoutPlan& p, unsigned index) {
    const unsigned both = p.across == 2 ? index / 2 : index, rest = p.pixels.divide(both);
    const unsigned pixel = both - rest * p.pixels.value;
    n = p.pairs.divide(rest);
    chunk = (rest - n * p.pairs.value) * p.across + (index - both * p.across);
    row = p.width.divide(pixel);
    column = pixel - row * p.width.value;
    at = ((static_cast<std::int64_t>(n) * p.pixels.value + pixel) * p.chunks + chunk) * kChunk;
  }
};

template <class T>
__global__ void __launch_bounds__(kLayoutThreads)
    to_chunks(LayoutPlan p, unsigned count, const T* from, T* to) {
  const unsigned index = blockIdx.x * kLayoutThreads + threadIdx.x;
  if (index >= count) return;
  const LayoutPlace place(p, index);
  if (place.chunk >= p.chunks) return;
  from += place.n * p.strides.n + place.row * p.strides.h;
  Pack<T, kChunk> pack;
#pragma unroll
  for (int u = 0; u < kChunk; ++u) {
    const unsigned e = place.chunk * kChunk + u, tap = p.channels.divide(e);
    const std::int64_t w = place.column * p.stride - p.padding + tap * p.dilation;
    const bool inside = tap < p.taps && w >= 0 && w < p.w;
    pack.v[u] = inside ? from[w * p.strides.w + (e - tap * p.channels.value) * p.strides.c] : T();
  }
  *reinterpret_cast<Pack<T, kChunk>*>(to + place.at) = pack;
}
template <class T>
__global__ void __launch_bounds__(kLayoutThreads)
    from_chunks(LayoutPlan p, unsigned count, const T* from, T* to) {
  const unsigned index = blockIdx.x * kLayoutThreads + threadIdx.x;
  if (index >= count) return;
  const LayoutPlace place(p, index);
  if (place.chunk >= p.chunks) return;
  const Pack<T, kChunk> pack = *reinterpret_cast<const Pack<T, kChunk>*>(from + place.at);
  to += place.n * p.strides.n + place.row * p.strides.h + place.column * p.strides.w;
#pragma unroll
  for (int u = 0; u < kChunk; ++u) {
    const unsigned channel = place.chunk * kChunk + u;
    if (channel < p.channels.value) to[channel * p.strides.c] = pack.v[u];
  }
}

/// Runs to_chunks (kTo) or from_chunks for n images. `chunks` is the image with whole chunks.
template <bool kTo, class T>
void launch_layout(const LayoutPlan& p, std::int64_t n, const T* any, T* to_any, T* chunks,
                   cudaStream_t stream) {
  const std::int64_t image = std::int64_t{p.pixels.value} * p.chunks * kChunk;
  for_images(n, p.threads(), 0x7fffffff, [&](std::int64_t first, std::int64_t images) {
    const unsigned count = checked_u31("an image", images * p.threads());
    const unsigned blocks = static_cast<unsigned>(ceil_div(count, kLayoutThreads));
    if constexpr (kTo)
      launch(&to_chunks<T>, blocks, kLayoutThreads, 0, stream, p, count, any + first * p.strides.n,
             chunks + first * image);
    else
      launch(&from_chunks<T>, blocks, kLayoutThreads, 0, stream, p, count, chunks + first * image,
             to_any + first * p.strides.n);
  });
}

/// An image in the layout that the kernels read: the caller's array, or a copy.
template <class T>
struct Chunked {
  Scratch<T> copy;
  const T* data = nullptr;
};
template <class T>
Chunked<T> chunked(const LayoutPlan& p, std::int64_t n, bool channels_last, const T* from,
                   const LaunchContext& context) {
  Chunked<T> result;
  const bool as_is = channels_last && p.taps == 1 && p.channels.value % kChunk == 0;
  result.data = from;
  if ((as_is && aligned<T, kChunk>(from)) || !from) return result;
  result.copy = Scratch<T>(context.device, n * p.pixels.value * p.chunks * kChunk);
  if (n * p.threads() > 0)
    launch_layout<true, T>(p, n, from, nullptr, result.copy.data(), stream_of(context));
  result.data = result.copy.data();
  return result;
}

// ---- the packed weight: for each class, group and line, a row with the elements (tap, channel)

struct WeightLayout {
  TapClass classes[kMaxClasses];
  int count;                          // number of classes
  std::int64_t line, channel, group;  // strides of the unpacked weight between lines, channels and groups
  std::int64_t next_tap;              // from one tap to the next within a row of the window
  Divisor lines, padded, channels;    // padded: channels of the packed weight; channels: of a tap
  unsigned taps;                      // taps of the window's row that are channels of the packed weight
};

/// A thread copies one channel of one line, whose taps are contiguous in the weight.
template <class T>
__global__ void __launch_bounds__(kLayoutThreads)
    pack_weight_chunks(WeightLayout p, unsigned count, const T* weight, T* packed) {
  const unsigned index = blockIdx.x * kLayoutThreads + threadIdx.x;
  if (index >= count) return;
  const unsigned rest = p.padded.divide(index), e = index - rest * p.padded.value;
  const unsigned group = p.lines.divide(rest), line = rest - group * p.lines.value;
  const unsigned row_tap = p.channels.divide(e), channel = e - row_tap * p.channels.value;
  const bool inside = row_tap < p.taps;
  const T* const from = weight + group * p.group + line * p.line + channel * p.channel + row_tap * p.next_tap;
  for (int k = 0; k < p.count; ++k) {
    const TapClass& c = p.classes[k];
    std::int64_t at = c.first;
    unsigned column = 0;
    T* to = packed + c.weight + static_cast<std::int64_t>(rest) * c.taps * p.padded.value + e;
    for (unsigned tap = 0; tap < c.taps; ++tap) {
      *to = inside ? from[at] : T();
      to += p.padded.value;
      at += c.step_w;
      if (++column == c.taps_w) {
        column = 0;
        at += c.step_h - c.taps_w * c.step_w;
      }
    }
  }
}

template <class T>
void launch_pack_chunks(const GatherClasses& g, WeightLayout p, std::int64_t groups, const T* weight,
                        T* packed, cudaStream_t stream) {
  const std::int64_t count = groups * p.lines.value * p.padded.value;
  for (std::size_t first = 0; first < g.taps.size(); first += kMaxClasses) {
    p.count = static_cast<int>(std::min<std::size_t>(kMaxClasses, g.taps.size() - first));
    std::copy_n(g.taps.begin() + static_cast<std::ptrdiff_t>(first), p.count, p.classes);
    launch(&pack_weight_chunks<T>, static_cast<unsigned>(ceil_div(count, kLayoutThreads)), kLayoutThreads, 0,
           stream, p, checked_u31("a weight", count), weight, packed);
  }
}

template <class To, class From>
__global__ void __launch_bounds__(kLayoutThreads) convert_elements(const From* from, To* to, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kLayoutThreads + threadIdx.x;
  if (i < n) to[i] = store<To>(load(from[i]));
}
template <class To, class From>
void launch_convert(const From* from, To* to, std::int64_t n, cudaStream_t stream) {
  if (n > 0)
    launch(&convert_elements<To, From>, static_cast<unsigned>(ceil_div(n, kLayoutThreads)), kLayoutThreads, 0,
           stream, from, to, n);
}

}  // namespace tapestry::kernels::cuda::conv::tensor_cores
