#pragma once
// Implicit GEMM for the convolution and its input gradient (conv_plan.cuh). GEMM rows are pixels of the
// output, GEMM columns ("lines") its channels, and k runs over (tap, channel of the input). Addresses advance
// incrementally, so the mainloop contains no division.
//
//   PixelQuads     channels-last input with aligned groups of 4 channels: 16-byte loads
//   PixelSingles   any other input: 4-byte cp.async, adjacent lanes load adjacent pixels
//
// For a 1 x 1 window the weight is read in place if 16-byte loads are possible: along k for the convolution
// (DenseLines), along the lines for the gradient (DenseSteps). Otherwise a first kernel packs the weight into
// (tap, channel, line). Without packing, the elements of one tap are R S floats apart, and every tile would
// fetch up to 8 times the bytes that it uses.
#include "tapestry/kernels/cuda/conv_plan.cuh"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda::conv {

/// Kernel parameters beside the GatherPlan.
struct GatherLaunch {
  Divisor col_tiles;
  std::int64_t part;  // split-K: elements from one partial result to the next
  Stores stores;
  float floor;
};

/// Loads tiles of A (the input elements under each pixel's window) from an input whose channels are
/// contiguous and whose number of channels per group is a multiple of 4. A thread loads the same 4 channels
/// of kCount pixels. Window corners are needed only when the tap changes, so they live in shared memory
/// instead of registers.
template <int kLines, int kThreads>
class PixelQuads {
 public:
  __device__ PixelQuads(const GatherPlan& p, const PixelClass& c, const float* in, unsigned group,
                        unsigned first_pixel, unsigned first_step)
      : p_(p), c_(c) {
    __shared__ Corner corners[kCount][kThreads];
    corners_ = corners[0];
    const unsigned k = first_step * kDepth + threadIdx.x % 2 * 4;
    tap_ = p.channels.divide(k);
    channel_ = k - tap_ * p.channels.value;
    const unsigned a = c.taps_w.divide(tap_), b = tap_ - a * c.taps_w.value;
    in += a * p.tap_h * p.in.h + b * p.tap_w * p.in.w + channel_ +
          static_cast<std::int64_t>(group) * p.channels.value;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const PixelPlace place(p, c, first_pixel + threadIdx.x / 2 + i * (kThreads / 2));
      from_[i] = in + place.at;
      corners_[i * kThreads + threadIdx.x] = {place.h, place.w};
    }
    look(a, b);
  }
  __device__ void load(float*) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      value_[i] = inside_ >> i & 1 ? *reinterpret_cast<const Quad*>(from_[i]) : Quad{};
      from_[i] += kDepth;
    }
    channel_ += kDepth;
    if (channel_ >= p_.channels.value) next_taps();
  }
  __device__ void store(float* tile) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      store_along_depth<kLines>(tile, static_cast<int>(threadIdx.x) / 2 + i * (kThreads / 2),
                                static_cast<int>(threadIdx.x) % 2 * 4, value_[i]);
  }

 private:
  static constexpr int kCount = kLines * 2 / kThreads;
  struct Corner {
    unsigned h, w;  // corner of a pixel's window
  };
  /// Advances to the tap to which this thread's next channels belong. This may be several taps further: with
  /// 4 channels per group, a k step of 8 spans two taps.
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
      const Corner corner = corners_[i * kThreads + threadIdx.x];
      const bool inside = (tap_ < c_.taps) & (corner.h + h < p_.in_h) & (corner.w + w < p_.in_w);
      inside_ |= static_cast<unsigned>(inside) << i;
    }
  }

  const GatherPlan& p_;
  const PixelClass& c_;
  const float* from_[kCount];
  Corner* corners_;
  Quad value_[kCount];
  unsigned channel_, tap_, inside_;
};

/// The offset and the coordinates of the input element that one k index (tap and channel) selects, relative
/// to a pixel's first tap.
struct alignas(16) DepthEntry {
  std::int64_t at;
  unsigned h, w;
};

/// Loads tiles of A (the input elements under each pixel's window) from an input of any layout. A thread
/// loads kCount k indices of one or two pixels. The first kDepth threads look up the DepthEntry of each k
/// index for the next step, and share them through double-buffered shared memory.
template <int kLines, int kThreads>
class PixelSingles {
 public:
  __device__ PixelSingles(const GatherPlan& p, const PixelClass& c, const float* in, unsigned group,
                          unsigned first_pixel, unsigned first_step)
      : p_(p), c_(c), k_(first_step * kDepth) {
    __shared__ DepthEntry entries[2][kDepth];
    entries_ = entries[0];
    in += static_cast<std::int64_t>(group) * p.channels.value * p.in.c;
#pragma unroll
    for (int pixel = 0; pixel < kPixels; ++pixel) {
      const PixelPlace place(p, c, first_pixel + threadIdx.x % kLines + pixel * kThreads);
      from_[pixel] = in + place.at;
      row_[pixel] = place.h;
      col_[pixel] = place.w;
    }
    look_up();
    __syncthreads();
  }
  __device__ void load(float* tile) {
    const DepthEntry* const own = entries_ + (k_ / kDepth % 2 * kDepth + own_k());
    const int left = static_cast<int>(c_.depth - k_ - own_k());
    float* const to = tile + own_k() * (kLines + 4) + threadIdx.x % kLines;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int pixel = 0; pixel < kPixels; ++pixel) {
        const bool inside =
            (i < left) & (row_[pixel] + own[i].h < p_.in_h) & (col_[pixel] + own[i].w < p_.in_w);
        ptx::cp_async4(to + i * (kLines + 4) + pixel * kThreads, from_[pixel] + own[i].at, inside);
      }
    ptx::cp_async_commit();
    k_ += kDepth;
    look_up();
  }
  __device__ void store(float*) const { ptx::cp_async_wait<0>(); }

 private:
  static constexpr int kPixels = kThreads < kLines ? kLines / kThreads : 1;
  static constexpr int kCount = kDepth * kLines / kThreads / kPixels;
  static_assert(kCount * kPixels * kThreads == kDepth * kLines);
  __device__ static unsigned own_k() { return threadIdx.x / kLines * kCount; }
  /// Writes the entries of the k step that begins at k_. They go into the buffer that all threads had
  /// finished reading at the last barrier.
  __device__ void look_up() {
    if (threadIdx.x >= kDepth) return;
    const unsigned k = k_ + threadIdx.x;
    if (k >= c_.depth) return;
    const unsigned tap = p_.channels.divide(k), channel = k - tap * p_.channels.value;
    const unsigned a = c_.taps_w.divide(tap), b = tap - a * c_.taps_w.value;
    const std::int64_t h = a * p_.tap_h, w = b * p_.tap_w;
    entries_[k_ / kDepth % 2 * kDepth + threadIdx.x] = {h * p_.in.h + w * p_.in.w + channel * p_.in.c,
                                                        static_cast<unsigned>(h), static_cast<unsigned>(w)};
  }

  const GatherPlan& p_;
  const PixelClass& c_;
  const float* from_[kPixels];
  DepthEntry* entries_;
  unsigned row_[kPixels], col_[kPixels], k_;
};

/// The epilogue: writes one thread's sums, with bias and ReLU, to the output. `line` is the thread's first
/// line in the group. `bias` (or null) and `out` point to the group's first channel.
template <class Tile>
__device__ __forceinline__ void store_pixels(const GatherPlan& p, const PixelClass& c, const GatherLaunch& l,
                                             const float (&sum)[Tile::kThreadRows][Tile::kThreadCols],
                                             unsigned pixel, unsigned line, const float* bias, float* out) {
  using At = ThreadPlace<Tile>;
  float offset[Tile::kThreadCols];
#pragma unroll
  for (int j = 0; j < Tile::kThreadCols; ++j)
    offset[j] = bias && line + At::col_at(j) < p.lines ? bias[line + At::col_at(j)] : 0;
  const auto place = [&](unsigned at) {
    const unsigned row = c.width.divide(at), j = at - row * c.width.value;
    const unsigned n = c.height.divide(row), i = row - n * c.height.value;
    return out + c.out + n * p.out.n + i * p.out.h + j * p.out.w + line * p.out.c;
  };
  if (l.stores == Stores::pixel_quads) {
#pragma unroll
    for (int i = 0; i < Tile::kThreadRows; i += 4) {
      if (pixel + At::row_at(i) >= c.pixels) continue;
      float* const to = place(pixel + At::row_at(i));
#pragma unroll
      for (int j = 0; j < Tile::kThreadCols; ++j) {
        if (line + At::col_at(j) >= p.lines) continue;
        Quad quad;
#pragma unroll
        for (int u = 0; u < 4; ++u) quad.v[u] = epilogue(sum[i + u][j], offset[j], l.floor);
        *reinterpret_cast<Quad*>(to + At::col_at(j) * p.out.c) = quad;
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < Tile::kThreadRows; ++i) {
    if (pixel + At::row_at(i) >= c.pixels) continue;
    float* const to = place(pixel + At::row_at(i));
#pragma unroll
    for (int j = 0; j < Tile::kThreadCols; j += 4) {
      Quad quad;
#pragma unroll
      for (int u = 0; u < 4; ++u) quad.v[u] = epilogue(sum[i][j + u], offset[j + u], l.floor);
      if (l.stores == Stores::channel_quads) {
        if (line + At::col_at(j) < p.lines) *reinterpret_cast<Quad*>(to + At::col_at(j)) = quad;
      } else {
#pragma unroll
        for (int u = 0; u < 4; ++u)
          if (line + At::col_at(j + u) < p.lines) to[At::col_at(j + u) * p.out.c] = quad.v[u];
      }
    }
  }
}

/// The gather kernel: computes `out`, or the partial sums of each k split. Grid (pixel tiles x groups x line
/// tiles, classes, k splits). Consecutive blocks share their pixels, and find the weight in L2.
template <class Tile, template <int, int> class Pixels, template <int, int> class Weight>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv2d_gather(GatherPlan p, GatherLaunch l, const float* in, const float* weight, const float* bias,
                  float* out) {
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

  const Steps steps(c.depth, blockIdx.z, gridDim.z);
  Pixels<Tile::kRows, Tile::kThreads> a(p, c, in, block.group, block.first_pixel, steps.first);
  constexpr bool lines = std::is_same_v<Weight<128, 256>, DenseLines<128, 256>>;
  const std::int64_t weight_lines = static_cast<std::int64_t>(block.group) * (lines ? p.lines : c.depth);
  const DenseMatrix matrix{weight + c.weight + weight_lines * p.weight_line, p.weight_line,
                           lines ? p.lines : p.weight_line, c.depth};
  Weight<Tile::kCols, Tile::kThreads> b(matrix, block.first_line, steps.first);
  float sum[Tile::kThreadRows][Tile::kThreadCols];
  multiply<Tile>(a, b, steps.count, sum);
  using At = ThreadPlace<Tile>;
  const std::int64_t first_channel = static_cast<std::int64_t>(block.group) * p.lines;
  store_pixels<Tile>(p, c, l, sum, block.first_pixel + static_cast<unsigned>(At::row()),
                     block.first_line + static_cast<unsigned>(At::col()),
                     bias ? bias + first_channel : nullptr,
                     out + blockIdx.z * l.part + first_channel * p.out.c);
}

// ---- launches

/// Operands of one gather: x to y in forward, dy to dx in backward.
struct GatherCall {
  const float *in, *weight, *bias;  // bias may be null
  float* out;
  bool relu, quads;  // quads: the loader PixelQuads loads `in`
  bool lines;        // the loader DenseLines loads `weight`, else DenseSteps does
};

template <class Tile>
void launch_gather_tile(const GatherPlan& p, const GatherCall& call, std::int64_t part, Stores stores,
                        int classes, std::int64_t parts, cudaStream_t stream) {
  std::int64_t pixels = 0;
  for (int i = 0; i < classes; ++i) pixels = std::max<std::int64_t>(pixels, p.classes[i].pixels);
  const std::int64_t col_tiles = ceil_div(p.lines, Tile::kCols);
  const std::int64_t blocks = ceil_div(pixels, Tile::kRows) * col_tiles * p.groups.value;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(classes),
                  static_cast<unsigned>(parts));
  const GatherLaunch l{divisor(col_tiles), part, stores, floor_of(call.relu)};
  const auto go = [&](auto kernel) {
    launch(kernel, grid, Tile::kThreads, 0, stream, p, l, call.in, call.weight, call.bias, call.out);
  };
  if (call.lines) go(&conv2d_gather<Tile, PixelQuads, DenseLines>);
  else if (call.quads) go(&conv2d_gather<Tile, PixelQuads, DenseSteps>);
  else go(&conv2d_gather<Tile, PixelSingles, DenseSteps>);
}

/// The widest vector store that `out` allows: 4 channels, 4 pixels, or scalars. `one_class` means that a
/// single class covers all pixels, so consecutive pixels of the class are contiguous.
inline Stores stores_of(const GatherPlan& p, bool one_class, std::int64_t image, const float* out) {
  if (!aligned<float, 4>(out)) return Stores::singles;
  if (p.out.c == 1) return p.lines % 4 == 0 ? Stores::channel_quads : Stores::singles;
  return one_class && p.out.w == 1 && image % 4 == 0 ? Stores::pixel_quads : Stores::singles;
}

/// Computes `out` by as many launches as the limits of a launch require. `image` is the number of pixels in
/// one image of `out`, and `channels` is the number of channels of `out`.
inline void launch_gather_parts(GatherClasses& g, GatherCall call, const Conv2dShape& s, std::int64_t image,
                                std::int64_t channels, Tuning tuning, const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  GatherPlan& p = g.plan;
  const auto blocks = [&](const TileCost& tile) {
    std::int64_t tiles = 0;
    for (const PixelClass& c : g.pixels) tiles += ceil_div(s.n * c.pixels, tile.rows);
    return tiles * ceil_div(p.lines, tile.cols) * s.groups;
  };
  if (tuning.parts == 0) {
    double steps = 0;
    for (const PixelClass& c : g.pixels)
      steps += static_cast<double>(ceil_div(c.depth, kDepth)) * c.pixels / static_cast<double>(image);
    const std::int64_t most = tuning.max_pixels;
    tuning = choose_tuning(0, 3, blocks, steps, static_cast<double>(s.n * image * channels));
    tuning.max_pixels = most;
  }
  const bool whole = covers(g, image);  // a split launch needs every pixel written
  // A launch is limited to 2^31 - 1 blocks and to 2^31 - 1 pixels.
  const std::int64_t tiles = ceil_div(p.lines, 32) * s.groups;
  const std::int64_t most = std::min(tuning.max_pixels, std::int64_t{0x7fffffff} / tiles * 64);
  for_images(s.n, image, most, [&](std::int64_t first, std::int64_t images) {
    GatherCall part = call;
    part.in += first * p.in.n;
    part.out += first * p.out.n;
    const std::int64_t size = images * image * channels;
    const bool split = tuning.parts > 1 && size <= 0x7fffffff && whole;
    Scratch<float> sums;
    float* const out = part.out;
    if (split) {
      sums = Scratch<float>(context.device, tuning.parts * size);
      part.out = sums.data();
      part.bias = nullptr;
      part.relu = false;
    }
    const Stores stores = stores_of(p, whole && g.pixels.size() == 1, image, part.out);
    for (std::size_t at = 0; at < g.pixels.size(); at += kMaxClasses) {
      const int classes = static_cast<int>(std::min<std::size_t>(kMaxClasses, g.pixels.size() - at));
      std::copy_n(g.pixels.begin() + static_cast<std::ptrdiff_t>(at), classes, p.classes);
      for (int i = 0; i < classes; ++i) p.classes[i].pixels *= static_cast<unsigned>(images);
      const auto go = [&]<class Tile>() {
        launch_gather_tile<Tile>(p, part, split ? size : 0, stores, classes, split ? tuning.parts : 1,
                                 stream);
      };
      if (tuning.tile == TileKind::wide) go.template operator()<WideTile>();
      else if (tuning.tile == TileKind::half) go.template operator()<HalfTile>();
      else go.template operator()<SlimTile>();
    }
    if (split)
      launch_sum_parts(sums.data(), tuning.parts, size,
                       OutputTarget{out, call.bias, floor_of(call.relu), divisor(p.out.c == 1 ? 1 : image),
                                    divisor(channels)},
                       stream);
  });
}

/// Computes y or dx, and packs the weight first if necessary. The weight is packed at every call: a training
/// step changes the weight and needs each packed form once. A cache for inference would need to know when the
/// weight changes, but a kernel sees only its address.
inline void launch_gather(GatherClasses g, GatherCall call, const Conv2dShape& s, bool forward,
                          const Tuning& tuning, const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  const std::int64_t area = s.r * s.s, c_each = s.c / s.groups, k_each = s.k / s.groups;
  const std::int64_t channels = forward ? c_each : k_each, lines = forward ? k_each : c_each;
  call.quads = g.plan.in.c == 1 && channels % 4 == 0 && aligned<float, 4>(call.in) && channels > 0;
  const bool as_it_lies = area == 1 && c_each % 4 == 0 && c_each > 0 && aligned<float, 4>(call.weight) &&
                          (call.quads || !forward);
  call.lines = as_it_lies && forward;
  Scratch<float> packed;
  if (as_it_lies) {
    g.plan.weight_line = static_cast<unsigned>(c_each);
  } else {
    PackPlan pack{};
    pack.lines = static_cast<unsigned>(lines);
    pack.padded = divisor(ceil_div(lines, 4) * 4), pack.channels = divisor(channels);
    pack.line = forward ? c_each * area : area, pack.channel = forward ? area : c_each * area;
    pack.group = k_each * c_each * area;
    g.plan.weight_line = pack.padded.value;
    packed = Scratch<float>(context.device, place_weights(g, s.groups, channels, pack.padded.value));
    if (channels > 0) launch_pack(g, pack, s.groups, call.weight, packed.data(), stream);
    call.weight = packed.data();
  }
  const std::int64_t image = forward ? s.p * s.q : s.h * s.w, of_all = s.n * image * (forward ? s.k : s.c);
  if (!covers(g, image))
    launch(&fill_zeros<float>, static_cast<unsigned>(ceil_div(of_all, kPackThreads)), kPackThreads, 0, stream,
           call.out, of_all);
  launch_gather_parts(g, call, s, image, forward ? s.k : s.c, tuning, context);
}

}  // namespace tapestry::kernels::cuda::conv
