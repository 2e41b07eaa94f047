// Group normalisation. A (n, c, l) input is processed group by group, so that the second pass over a group
// reads from a cache, unless the group is larger than the cache. In a (n, l, c) input the channels are
// adjacent, so chunks of rows are summed over all channels at once. Statistics are computed piece by piece in
// two passes, and the pieces are merged in order as in norm_batch.cpp. So they are accurate for any mean, and
// do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/moments.h"
#include "tapestry/kernels/cpu/sums.h"
#include "tapestry/kernels/ops/norm.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kPiece = 2048;    // elements of a piece of a group of a (n, c, l) input
constexpr std::int64_t kChunkRows = 64;  // rows of a chunk of a (n, l, c) input
/// With fewer groups than this, threads share a group.
constexpr std::int64_t kManyGroups = 16;

std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

// Sums over the l elements of a plane. sum_lanes() is slow for a few elements.
template <class C, class F>
C sum_plane(std::int64_t l, const F& f) {
  if (l >= kLanes) {
    double total = 0;
    for (std::int64_t i = 0; i < l; i += kPiece)
      total += sum_lanes<C>(std::min(kPiece, l - i), [&f, i](std::int64_t j) { return f(i + j); });
    return static_cast<C>(total);
  }
  C total = 0;
  for (std::int64_t i = 0; i < l; ++i) total += f(i);
  return total;
}

template <class T>
struct Forward {
  using C = Compute<T>;
  explicit Forward(const GroupNormArgs& a)
      : s(a.shape),
        width(s.c / s.groups),
        x(a.x.as<T>()),
        weight(a.weight.as<T>()),
        bias(a.bias.as<T>()),
        y(a.y.as<T>()),
        mean(a.mean.as<C>()),
        inv_std(a.inv_std.as<C>()),
        var(a.var.as<C>()),
        eps(static_cast<C>(a.eps)) {}

  C scale_of(std::int64_t c) const { return weight ? load(weight[c]) : C(1); }
  C shift_of(std::int64_t c) const { return bias ? load(bias[c]) : C(0); }

  // Writes the statistics of group `g`, counted over all samples.
  void finish(std::int64_t g, const Moments& all) const {
    const auto variance = static_cast<C>(all.squares / all.count);
    mean[g] = static_cast<C>(all.mean);
    inv_std[g] = C(1) / std::sqrt(variance + eps);
    if (var) var[g] = variance;
  }

  void contiguous(const LaunchContext& context) const {
    const std::int64_t rows = s.n * s.groups, size = width * s.l, count = pieces(size, kPiece);
    const auto moments_of = [&](std::int64_t row, std::int64_t piece, Moments& all) {
      const T* const in = x + row * size + piece * kPiece;
      const std::int64_t n = std::min(kPiece, size - piece * kPiece);
      const C m = sum_lanes<C>(n, [=](std::int64_t i) { return load(in[i]); }) / static_cast<C>(n);
      const C squares = sum_lanes<C>(n, [=](std::int64_t i) {
        const C d = load(in[i]) - m;
        return d * d;
      });
      all.merge(static_cast<double>(n), static_cast<double>(m), static_cast<double>(squares));
    };
    const auto normalize = [&](std::int64_t plane) {
      const std::int64_t c = plane % s.c, g = plane / width;
      const C m = mean[g], scale = inv_std[g] * scale_of(c), shift = shift_of(c);
      const T* const in = x + plane * s.l;
      T* const out = y + plane * s.l;
      for (std::int64_t i = 0; i < s.l; ++i) out[i] = T((load(in[i]) - m) * scale + shift);
    };
    if (rows >= kManyGroups) {
      parallel_for(rows, grain_of(3 * size), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          Moments all;
          for (std::int64_t p = 0; p < count; ++p) moments_of(row, p, all);
          finish(row, all);
          for (std::int64_t i = 0; i < width; ++i) normalize(row * width + i);
        }
      });
      return;
    }
    const Scratch<Moments> parts(context.device, rows * count);
    parallel_for(rows * count, grain_of(2 * kPiece), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Moments own;
        moments_of(i / count, i % count, own);
        parts.data()[i] = own;
      }
    });
    for (std::int64_t row = 0; row < rows; ++row) {
      Moments all;
      for (std::int64_t p = 0; p < count; ++p) {
        const Moments& own = parts.data()[row * count + p];
        all.merge(own.count, own.mean, own.squares);
      }
      finish(row, all);
    }
    parallel_for(s.n * s.c, grain_of(s.l), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t plane = begin; plane < end; ++plane) normalize(plane);
    });
  }

  void channels_last(const LaunchContext& context) const {
    const std::int64_t chunks = pieces(s.l, kChunkRows);
    const Scratch<Moments> parts(context.device, s.n * chunks * s.groups);
    parallel_for(s.n * chunks, grain_of(2 * kChunkRows * s.c), [&](std::int64_t begin, std::int64_t end) {
      const Scratch<C> memory(context.device, 2 * s.c);
      C* const means = memory.data();
      C* const squares = means + s.c;
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        const std::int64_t first = chunk % chunks * kChunkRows, rows = std::min(kChunkRows, s.l - first);
        const T* const in = x + (chunk / chunks * s.l + first) * s.c;
        std::fill_n(means, 2 * s.c, C(0));
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < s.c; ++c) means[c] += load(in[r * s.c + c]);
        for (std::int64_t c = 0; c < s.c; ++c) means[c] /= static_cast<C>(rows);
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < s.c; ++c) {
            const C d = load(in[r * s.c + c]) - means[c];
            squares[c] += d * d;
          }
        for (std::int64_t g = 0; g < s.groups; ++g) {
          Moments own;
          for (std::int64_t c = g * width; c < (g + 1) * width; ++c)
            own.merge(static_cast<double>(rows), static_cast<double>(means[c]),
                      static_cast<double>(squares[c]));
          parts.data()[chunk * s.groups + g] = own;
        }
      }
    });
    for (std::int64_t n = 0; n < s.n; ++n)
      for (std::int64_t g = 0; g < s.groups; ++g) {
        Moments all;
        for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
          const Moments& own = parts.data()[(n * chunks + chunk) * s.groups + g];
          all.merge(own.count, own.mean, own.squares);
        }
        finish(n * s.groups + g, all);
      }
    parallel_for(s.n * chunks, grain_of(kChunkRows * s.c), [&](std::int64_t begin, std::int64_t end) {
      const Scratch<C> memory(context.device, 3 * s.c);
      C *const means = memory.data(), *const scale = means + s.c, *const shift = scale + s.c;
      for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        const std::int64_t n = chunk / chunks, first = chunk % chunks * kChunkRows;
        for (std::int64_t c = 0; c < s.c; ++c) {
          const std::int64_t g = n * s.groups + c / width;
          means[c] = mean[g], scale[c] = inv_std[g] * scale_of(c), shift[c] = shift_of(c);
        }
        for (std::int64_t r = n * s.l + first; r < n * s.l + std::min(s.l, first + kChunkRows); ++r)
          for (std::int64_t c = 0; c < s.c; ++c)
            y[r * s.c + c] = T((load(x[r * s.c + c]) - means[c]) * scale[c] + shift[c]);
      }
    });
  }

  const GroupNormShape& s;
  const std::int64_t width;  // channels of a group
  const T *const x, *const weight, *const bias;
  T* const y;
  C *const mean, *const inv_std, *const var;
  const C eps;
};

// dx = inv_std (dy weight - plain - normal along), where normal = (x - mean) inv_std, `plain` is the mean of
// dy weight over the group and `along` the mean of dy weight normal. Both, dweight and dbias are sums of the
// sums of dy and dy normal over each plane, which are kept in `sums` (2, n, c).
template <class T>
struct BackwardPass {
  using C = Compute<T>;
  BackwardPass(const LaunchContext& context, const GroupNormBackwardArgs& a)
      : s(a.shape),
        width(s.c / s.groups),
        dy(a.dy.as<T>()),
        x(a.x.as<T>()),
        weight(a.weight.as<T>()),
        mean(a.mean.as<C>()),
        inv_std(a.inv_std.as<C>()),
        dx(a.dx.as<T>()),
        sums(context.device, 2 * s.n * s.c),
        plain(sums.data()),
        normals(plain + s.n * s.c) {}

  C scale_of(std::int64_t c) const { return weight ? load(weight[c]) : C(1); }

  struct Means {
    C plain, along;
  };
  // `g` is the group's index over all samples.
  Means means_of(std::int64_t g) const {
    double all = 0, along = 0;
    for (std::int64_t plane = g * width; plane < (g + 1) * width; ++plane) {
      const C w = scale_of(plane % s.c);
      all += static_cast<double>(w * plain[plane]);
      along += static_cast<double>(w * normals[plane]);
    }
    const double count = static_cast<double>(width * s.l);
    return {static_cast<C>(all / count), static_cast<C>(along / count)};
  }

  void contiguous() const {
    const auto sum = [&](std::int64_t plane) {
      const C m = mean[plane / width], inv = inv_std[plane / width];
      const T *const g = dy + plane * s.l, *const in = x + plane * s.l;
      plain[plane] = sum_plane<C>(s.l, [=](std::int64_t i) { return load(g[i]); });
      normals[plane] =
          sum_plane<C>(s.l, [=](std::int64_t i) { return load(g[i]) * ((load(in[i]) - m) * inv); });
    };
    const auto map = [&](std::int64_t plane, const Means& of) {
      const C m = mean[plane / width], inv = inv_std[plane / width], w = scale_of(plane % s.c);
      const T *const g = dy + plane * s.l, *const in = x + plane * s.l;
      T* const out = dx + plane * s.l;
      for (std::int64_t i = 0; i < s.l; ++i)
        out[i] = T(inv * (load(g[i]) * w - of.plain - (load(in[i]) - m) * inv * of.along));
    };
    const std::int64_t rows = s.n * s.groups;
    if (rows >= kManyGroups) {
      parallel_for(rows, grain_of(5 * width * s.l), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          for (std::int64_t i = row * width; i < (row + 1) * width; ++i) sum(i);
          if (!dx) continue;
          const Means of = means_of(row);
          for (std::int64_t i = row * width; i < (row + 1) * width; ++i) map(i, of);
        }
      });
      return;
    }
    const auto over_planes = [&](const auto& f) {
      parallel_for(s.n * s.c, grain_of(2 * s.l), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t plane = begin; plane < end; ++plane) f(plane);
      });
    };
    over_planes(sum);
    if (!dx) return;
    Means means[kManyGroups];
    for (std::int64_t row = 0; row < rows; ++row) means[row] = means_of(row);
    over_planes([&](std::int64_t plane) { map(plane, means[plane / width]); });
  }

  void channels_last(const LaunchContext& context) const {
    const std::int64_t chunks = pieces(s.l, kChunkRows);
    const Scratch<C> parts(context.device, s.n * chunks * 2 * s.c);
    // Calls f(sample, first row, end row, chunk) for each chunk, with memory for five numbers per channel.
    const auto over_chunks = [&](const auto& f) {
      parallel_for(s.n * chunks, grain_of(2 * kChunkRows * s.c), [&](std::int64_t begin, std::int64_t end) {
        const Scratch<C> memory(context.device, 5 * s.c);
        for (std::int64_t chunk = begin; chunk < end; ++chunk) {
          const std::int64_t n = chunk / chunks, first = chunk % chunks * kChunkRows;
          f(n, n * s.l + first, n * s.l + std::min(s.l, first + kChunkRows), chunk, memory.data());
        }
      });
    };
    const auto expand = [&](std::int64_t n, C* means, C* invs) {
      for (std::int64_t c = 0; c < s.c; ++c) {
        const std::int64_t g = n * s.groups + c / width;
        means[c] = mean[g], invs[c] = inv_std[g];
      }
    };
    over_chunks([&](std::int64_t n, std::int64_t row, std::int64_t end, std::int64_t chunk, C* const memory) {
      C *const means = memory, *const invs = memory + s.c;
      expand(n, means, invs);
      C *const all = parts.data() + chunk * 2 * s.c, *const along = all + s.c;
      std::fill_n(all, 2 * s.c, C(0));
      for (std::int64_t r = row; r < end; ++r)
        for (std::int64_t c = 0; c < s.c; ++c) {
          const C g = load(dy[r * s.c + c]);
          all[c] += g;
          along[c] += g * ((load(x[r * s.c + c]) - means[c]) * invs[c]);
        }
    });
    for (std::int64_t n = 0; n < s.n; ++n)
      for (std::int64_t c = 0; c < s.c; ++c) {
        double all = 0, along = 0;
        for (std::int64_t chunk = n * chunks; chunk < (n + 1) * chunks; ++chunk) {
          all += static_cast<double>(parts.data()[chunk * 2 * s.c + c]);
          along += static_cast<double>(parts.data()[(chunk * 2 + 1) * s.c + c]);
        }
        plain[n * s.c + c] = static_cast<C>(all);
        normals[n * s.c + c] = static_cast<C>(along);
      }
    if (!dx) return;
    const Scratch<Means> group_means(context.device, s.n * s.groups);
    for (std::int64_t g = 0; g < s.n * s.groups; ++g) group_means.data()[g] = means_of(g);
    over_chunks([&](std::int64_t n, std::int64_t row, std::int64_t end, std::int64_t, C* const memory) {
      C *const means = memory, *const invs = means + s.c, *const scale = invs + s.c, *const all = scale + s.c,
               *const along = all + s.c;
      expand(n, means, invs);
      for (std::int64_t c = 0; c < s.c; ++c) {
        const Means& of = group_means.data()[n * s.groups + c / width];
        scale[c] = scale_of(c), all[c] = of.plain, along[c] = of.along;
      }
      for (std::int64_t r = row; r < end; ++r)
        for (std::int64_t c = 0; c < s.c; ++c)
          dx[r * s.c + c] = T(invs[c] * (load(dy[r * s.c + c]) * scale[c] - all[c] -
                                         (load(x[r * s.c + c]) - means[c]) * invs[c] * along[c]));
    });
  }

  // Adds `planes` (n, c) over n.
  void add_samples(const C* planes, T* out) const {
    if (!out) return;
    parallel_for(s.c, grain_of(4 * s.n), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        double total = 0;
        for (std::int64_t n = 0; n < s.n; ++n) total += static_cast<double>(planes[n * s.c + c]);
        out[c] = T(static_cast<C>(total));
      }
    });
  }

  const GroupNormShape& s;
  const std::int64_t width;
  const T *const dy, *const x, *const weight;
  const C *const mean, *const inv_std;
  T* const dx;
  const Scratch<C> sums;
  C *const plain, *const normals;  // sums of dy and of dy normal over each plane, both (n, c)
};

template <class T>
void forward_kernel(const LaunchContext& context, const GroupNormArgs& a) {
  const Forward<T> pass(a);
  // If a plane is one element, both layouts are the same, and adjacent channels are faster.
  if (a.shape.channels_last || a.shape.l == 1) pass.channels_last(context);
  else pass.contiguous(context);
}

template <class T>
void backward_kernel(const LaunchContext& context, const GroupNormBackwardArgs& a) {
  const BackwardPass<T> pass(context, a);
  if (a.shape.channels_last || a.shape.l == 1) pass.channels_last(context);
  else pass.contiguous();
  pass.add_samples(pass.normals, a.dweight.as<T>());
  pass.add_samples(pass.plain, a.dbias.as<T>());
}

[[maybe_unused]] const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  group_norm.set(DeviceType::cpu, dtype_of<T>, &forward_kernel<T>);
  group_norm_backward.set(DeviceType::cpu, dtype_of<T>, &backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
