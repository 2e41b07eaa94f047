#pragma once
// The convolution and its input gradient in bf16 and f16 as implicit GEMMs on tensor cores (conv_plan.cuh).
// GEMM rows are pixels of the output, GEMM columns ("lines") its channels, and k runs over (tap, chunk of 8
// channels of the input). Addresses advance incrementally, so the mainloop contains no division.
#include "tapestry/kernels/cuda/conv_tensor_layout.cuh"

namespace tapestry::kernels::cuda::conv::tensor_cores {

/// Loads tiles of A: the chunks of 8 channels under each pixel's window. A thread loads the same chunk of
/// kCount pixels. Window corners are needed only when the tap changes, so they live in shared memory instead
/// of registers.
template <class T, class Tile>
class WindowChunks {
 public:
  __device__ WindowChunks(const GatherPlan& p, const PixelClass& c, const T* in, unsigned group,
                          unsigned first_pixel, unsigned first_step)
      : p_(p), c_(c) {
    __shared__ Corner corners[kCount][Tile::kThreads];
    corners_ = corners[0];
    const unsigned own_k = threadIdx.x % kAcross * kChunk, k = first_step * kDepth + own_k;
    to_ = chunk_at<Tile::kRows, true>(static_cast<int>(threadIdx.x) / kAcross, static_cast<int>(own_k));
    tap_ = p.channels.divide(k);
    channel_ = k - tap_ * p.channels.value;
    const unsigned a = c.taps_w.divide(tap_), b = tap_ - a * c.taps_w.value;
    in += a * p.tap_h * p.in.h + b * p.tap_w * p.in.w + channel_ +
          static_cast<std::int64_t>(group) * p.channels.value;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const PixelPlace place(p, c, first_pixel + threadIdx.x / kAcross + i * kStep);
      from_[i] = in + place.at;
      corners_[i * Tile::kThreads + threadIdx.x] = {place.h, place.w};
    }
    look(a, b);
  }
  __device__ __forceinline__ void load(T* tile) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      ptx::cp_async16(tile + to_ + i * (kStep * kDepth), from_[i], inside_ >> i & 1);
      from_[i] += kDepth;
    }
    channel_ += kDepth;
    if (channel_ >= p_.channels.value) next_taps();
  }

 private:
  static constexpr int kAcross = kDepth / kChunk, kStep = Tile::kThreads / kAcross;
  static constexpr int kCount = Tile::kRows / kStep;
  struct Corner {
    unsigned h, w;  // corner of a pixel's window
  };
  /// Advances to the tap to which this thread's next chunk belongs. With fewer than 32 channels, a k step
  /// spans several taps.
  __device__ void next_taps() {
    unsigned a = c_.taps_w.divide(tap_), b = tap_ - a * c_.taps_w.value;
    do {
      ++tap_;
      channel_ -= p_.channels.value;
      std::int64_t by = p_.next_column;
      if (++b == c_.taps_w.value) {
        b = 0;
        ++a;
        by = c_.next_row;
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) from_[i] += by;
    } while (channel_ >= p_.channels.value);
    look(a, b);
  }
  __device__ void look(unsigned a, unsigned b) {
    inside_ = 0;
    const unsigned h = a * static_cast<unsigned>(p_.tap_h), w = b * static_cast<unsigned>(p_.tap_w);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Corner corner = corners_[i * Tile::kThreads + threadIdx.x];
      const bool inside = (tap_ < c_.taps) & (corner.h + h < p_.in_h) & (corner.w + w < p_.in_w);
      inside_ |= static_cast<unsigned>(inside) << i;
    }
  }

  const GatherPlan& p_;
  const PixelClass& c_;
  const T* from_[kCount];
  Corner* corners_;
  int to_;
  unsigned channel_, tap_, inside_;
};

/// Loads tiles of B: lines of the packed weight, which are contiguous along k.
template <class T, class Tile>
class WeightChunks {
 public:
  __device__ WeightChunks(const T* weight, unsigned depth, unsigned first_line, unsigned lines,
                          unsigned first_step)
      : pitch_(depth) {
    const unsigned own_line = threadIdx.x / kAcross, own_k = threadIdx.x % kAcross * kChunk;
    const unsigned k = first_step * kDepth + own_k;
    to_ = chunk_at<Tile::kCols, true>(static_cast<int>(own_line), static_cast<int>(own_k));
    from_ = weight + static_cast<std::int64_t>(first_line + own_line) * depth + k;
    lines_ = static_cast<int>(lines - first_line - own_line);
    left_ = static_cast<int>(depth - k);
  }
  __device__ __forceinline__ void load(T* tile) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      ptx::cp_async16(tile + to_ + i * (kStep * kDepth), from_ + std::int64_t{i * kStep} * pitch_,
                      (i * kStep < lines_) & (left_ > 0));
    from_ += kDepth;
    left_ -= kDepth;
  }

 private:
  static constexpr int kAcross = kDepth / kChunk, kStep = Tile::kThreads / kAcross;
  static constexpr int kCount = Tile::kCols / kStep;
  const T* from_;
  unsigned pitch_;
  int to_, lines_, left_;  // lines_, left_: lines and elements of k that remain
};

// ---- epilogues: of(line, count) gives what `count` (at most 8) adjacent channels of the output need, and
// (sum, i) of that gives the result of the i-th channel. A fused activation is another type of this form.

/// Adds the bias, if there is one, and applies ReLU by a lower bound: 0, or -infinity without ReLU.
template <class T>
struct BiasRelu {
  const T* bias;
  float floor;

  struct Lines {
    float bias[kChunk];
    float floor;
    __device__ __forceinline__ float operator()(float sum, int i) const {
      sum += bias[i];
      return sum < floor ? floor : sum;  // NaN passes through
    }
  };
  __device__ __forceinline__ Lines of(unsigned line, int count) const {
    Lines own;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) own.bias[i] = bias && i < count ? load(bias[line + i]) : 0;
    own.floor = floor;
    return own;
  }
};

/// Writes output i, of which `parts` has the sums of the k splits.
template <class T, class Epilogue>
struct SumTarget {
  T* out;
  Epilogue epilogue;
  Divisor channels;
  __device__ static unsigned from(unsigned i) { return i; }
  __device__ void operator()(unsigned i, float sum) const {
    out[i] = store<T>(epilogue.of(i - channels.divide(i) * channels.value, 1)(sum, 0));
  }
};

/// Kernel parameters beside the GatherPlan.
struct GatherLaunch {
  Divisor col_tiles;
  std::int64_t part;  // elements from one split's sums to the next; 0 without splits
  bool packs;         // the output allows stores of 8 channels
};

/// The gather kernel: computes `out`, or the partial sums of each k split. Grid (pixel tiles x groups x line
/// tiles, classes, k splits). Consecutive blocks share their pixels, and find the weight in L2.
template <class T, class Tile, class Epilogue>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv2d_tensor_gather(GatherPlan p, GatherLaunch l, const T* in, const T* weight, Epilogue epilogue,
                         T* out, float* parts) {
  __shared__ std::uint64_t
      storage[sizeof(GatherBlock) / 8];  // raw storage, because Divisor has a constructor
  GatherBlock& block = *reinterpret_cast<GatherBlock*>(storage);
  if (threadIdx.x == 0) {
    const unsigned rest = l.col_tiles.divide(blockIdx.x), pixel_tile = p.groups.divide(rest);
    block = {p.classes[blockIdx.y], rest - pixel_tile * p.groups.value, pixel_tile * Tile::kRows,
             (blockIdx.x - rest * l.col_tiles.value) * Tile::kCols};
  }
  __syncthreads();
  const PixelClass& c = block.c;
  if (block.first_pixel >= c.pixels) return;  // this class has fewer pixels than the largest

  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  T* const ring = reinterpret_cast<T*>(dynamic_shared);
  Sums<Tile> sums;
  {
    const StepRange steps(c.depth, blockIdx.z, gridDim.z);
    WindowChunks<T, Tile> a(p, c, in, block.group, block.first_pixel, steps.first);
    WeightChunks<T, Tile> b(weight + c.weight + static_cast<std::int64_t>(block.group) * p.lines * c.depth,
                            c.depth, block.first_line, p.lines, steps.first);
    multiply<Tile, true>(a, b, steps.count, ring, sums);
  }

  const unsigned line = block.first_line + static_cast<unsigned>(slice_column<Tile>());
  const unsigned channel = block.group * p.lines + line;
  const int count = static_cast<int>(p.lines - line);  // channels that exist
  const auto own = epilogue.of(channel, count);
  for_rows<Tile>(sums, reinterpret_cast<float*>(ring), [&](int row, const Pack<float, 4>(&v)[2]) {
    const unsigned pixel = block.first_pixel + static_cast<unsigned>(row);
    if (pixel >= c.pixels || count <= 0) return;
    const unsigned image_row = c.width.divide(pixel), j = pixel - image_row * c.width.value;
    const unsigned n = c.height.divide(image_row), i = image_row - n * c.height.value;
    const std::int64_t at = c.out + n * p.out.n + i * p.out.h + j * p.out.w + channel;
    if (l.part > 0) {
      float* const to = parts + blockIdx.z * l.part + at;
      if (l.packs) {
#pragma unroll
        for (int u = 0; u < 2; ++u) reinterpret_cast<Pack<float, 4>*>(to)[u] = v[u];
      } else {
#pragma unroll
        for (int u = 0; u < kChunk; ++u)
          if (u < count) to[u] = v[u / 4].v[u % 4];
      }
      return;
    }
    Pack<T, kChunk> pack;
#pragma unroll
    for (int u = 0; u < kChunk; ++u) pack.v[u] = store<T>(own(v[u / 4].v[u % 4], u));
    if (l.packs) {
      *reinterpret_cast<Pack<T, kChunk>*>(out + at) = pack;
    } else {
#pragma unroll
      for (int u = 0; u < kChunk; ++u)
        if (u < count) out[at + u] = pack.v[u];
    }
  });
}

template <class T>
__global__ void __launch_bounds__(kLayoutThreads) fill_chunks(T* out, std::int64_t size) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kLayoutThreads + threadIdx.x;
  if (i < size) out[i] = T();
}

/// Computes y or dx from channels-last operands. `in` has whole, aligned chunks, `weight` is packed, and
/// `out` has s.k or s.c channels per pixel, of which the first g.plan.lines of each group are written.
/// `image` is the number of pixels in one image of `out`.
template <class T, class Epilogue>
void launch_tensor_gather(GatherClasses& g, const T* in, const T* weight, const Epilogue& epilogue, T* out,
                          std::int64_t n, std::int64_t image, Division division,
                          const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  GatherPlan& p = g.plan;
  const std::int64_t channels = p.out.n / image;  // of a pixel of `out`
  const bool whole = covers(g, image);            // a split launch needs every pixel written
  if (!whole)
    launch(&fill_chunks<T>, static_cast<unsigned>(ceil_div(n * p.out.n, kLayoutThreads)), kLayoutThreads, 0,
           stream, out, n * p.out.n);
  if (division.parts == 0) {
    std::int64_t steps = 1;
    for (const PixelClass& c : g.pixels) steps = std::max(steps, ceil_div(c.depth, kDepth));
    division.wide = p.lines > 64;
    const auto choose = [&]<class Tile>() {
      std::int64_t tiles = 0;
      for (const PixelClass& c : g.pixels) tiles += ceil_div(n * c.pixels, Tile::kRows);
      return choose_parts<Tile>(tiles * ceil_div(p.lines, Tile::kCols) * p.groups.value, steps, n * p.out.n,
                                false);
    };
    division.parts =
        division.wide ? choose.template operator()<WideTile>() : choose.template operator()<SlimTile>();
  }
  // A launch is limited to 2^31 - 1 blocks and to 2^31 - 1 pixels.
  const std::int64_t tiles = ceil_div(p.lines, 64) * p.groups.value;
  const std::int64_t most = std::min(division.max_pixels, std::int64_t{0x7fffffff} / tiles * 64);
  for_images(n, image, most, [&](std::int64_t first, std::int64_t images) {
    const std::int64_t size = images * p.out.n;
    // Every element of the sums must be written, so the lines must fill the pixel.
    const bool split = division.parts > 1 && size <= 0x7fffffff && whole &&
                       channels == std::int64_t{p.lines} * p.groups.value;
    const Scratch<float> parts(context.device, split ? division.parts * size : 0);
    T* const to = out + first * p.out.n;
    for (std::size_t at = 0; at < g.pixels.size(); at += kMaxClasses) {
      const int classes = static_cast<int>(std::min<std::size_t>(kMaxClasses, g.pixels.size() - at));
      std::copy_n(g.pixels.begin() + static_cast<std::ptrdiff_t>(at), classes, p.classes);
      std::int64_t pixels = 0;
      for (int i = 0; i < classes; ++i) {
        p.classes[i].pixels *= static_cast<unsigned>(images);
        pixels = std::max<std::int64_t>(pixels, p.classes[i].pixels);
      }
      const auto go = [&]<class Tile>() {
        const std::int64_t col_tiles = ceil_div(p.lines, Tile::kCols);
        const dim3 grid(static_cast<unsigned>(ceil_div(pixels, Tile::kRows) * col_tiles * p.groups.value),
                        static_cast<unsigned>(classes), static_cast<unsigned>(split ? division.parts : 1));
        // The last chunk may reach past the lines, into the padding of a pixel.
        const bool packs = channels % kChunk == 0 && aligned<T, kChunk>(to);
        launch(&conv2d_tensor_gather<T, Tile, Epilogue>, grid, Tile::kThreads, kSharedBytes<Tile>, stream, p,
               GatherLaunch{divisor(col_tiles), split ? size : 0, packs}, in + first * p.in.n, weight,
               epilogue, to, parts.data());
      };
      if (division.wide) go.template operator()<WideTile>();
      else go.template operator()<SlimTile>();
    }
    if (split)
      launch_sum_parts(parts.data(), division.parts, size,
                       SumTarget<T, Epilogue>{to, epilogue, divisor(channels)}, stream);
  });
}

}  // namespace tapestry::kernels::cuda::conv::tensor_cores
