// Batch normalisation. The input is divided into pieces of a fixed size that fit into a cache: in f32 128 KiB
// (L2) of a (rows, channels) input, and 8 KiB (L1) of other inputs. The statistics of each piece are computed
// in two passes over it. Then the statistics of the pieces are merged in order (Chan, Golub and LeVeque,
// "Updating formulae and a pairwise algorithm for computing sample variances", 1979). So they are accurate
// for any mean, and they do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/moments.h"
#include "tapestry/kernels/cpu/sums.h"
#include "tapestry/kernels/ops/norm.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kPieceRows = 128;  // size of a piece of a (rows, channels) input
constexpr std::int64_t kPieceColumns = 256;
constexpr std::int64_t kPiecePixels = 2048;  // size of a piece: part of one plane of a (n, c, l) input

std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

// Divides a (rows, channels) input into pieces and calls f(chunk, row, end row, channel, end channel) for
// each piece. The piece has rows [row, end row) and channels [channel, end channel). `chunk` is the index of
// its chunk of rows.
template <class F>
void over_pieces(std::int64_t rows, std::int64_t channels, F&& f) {
  const std::int64_t blocks = pieces(channels, kPieceColumns);
  parallel_for(pieces(rows, kPieceRows) * blocks, grain_of(kPieceRows * std::min(channels, kPieceColumns)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t chunk = i / blocks, c = i % blocks * kPieceColumns;
                   f(chunk, chunk * kPieceRows, std::min(rows, (chunk + 1) * kPieceRows), c,
                     std::min(channels, c + kPieceColumns));
                 }
               });
}

// Element i of an array of T or of the accumulation type.
template <class T>
Compute<T> number(const ConstArray& a, std::int64_t i) {
  return a.dtype() == dtype_of<T> ? load(a.as<T>()[i]) : a.as<Compute<T>>()[i];
}
template <class T>
void set_number(const MutableArray& a, std::int64_t i, Compute<T> value) {
  if (a.dtype() == dtype_of<T>) a.as<T>()[i] = T(value);
  else a.as<Compute<T>>()[i] = value;
}

// Writes the statistics of channel c to the outputs that are not null.
template <class T>
void write_stats(const BatchNormStatsArgs& to, std::int64_t c, const Moments& all) {
  using C = Compute<T>;
  const auto mean = static_cast<C>(all.mean), var = static_cast<C>(all.squares / all.count);
  if (to.mean) to.mean.as<C>()[c] = mean;
  if (to.var) to.var.as<C>()[c] = var;
  if (to.inv_std) to.inv_std.as<C>()[c] = C(1) / std::sqrt(var + static_cast<C>(to.eps));
  const C momentum = static_cast<C>(to.momentum);
  const auto update_running = [&](const MutableArray& running, C value) {
    const C old = running.dtype() == dtype_of<T> ? load(running.as<T>()[c]) : running.as<C>()[c];
    set_number<T>(running, c, (C(1) - momentum) * old + momentum * value);
  };
  if (to.running_mean) update_running(to.running_mean, mean);
  if (to.running_var) update_running(to.running_var, static_cast<C>(all.squares / (all.count - 1)));
}

template <class T>
void stats_kernel(const LaunchContext& context, const BatchNormStatsArgs& to) {
  using C = Compute<T>;
  const BatchNormShape& s = to.shape;
  const T* const x = to.x.as<T>();
  if (s.l > 1) {
    parallel_for(s.c, grain_of(s.n * s.l), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        Moments all;
        for (std::int64_t n = 0; n < s.n; ++n)
          for (std::int64_t i = 0; i < s.l; i += kPiecePixels) {
            const T* const in = x + (n * s.c + c) * s.l + i;
            const std::int64_t size = std::min(kPiecePixels, s.l - i);
            const C m =
                sum_lanes<C>(size, [=](std::int64_t j) { return load(in[j]); }) / static_cast<C>(size);
            const C squares = sum_lanes<C>(size, [=](std::int64_t j) {
              const C d = load(in[j]) - m;
              return d * d;
            });
            all.merge(static_cast<double>(size), m, squares);
          }
        write_stats<T>(to, c, all);
      }
    });
    return;
  }
  const std::int64_t chunks = pieces(s.n, kPieceRows);
  const Scratch<C> memory(context.device, 2 * chunks * s.c);
  C* const means = memory.data();
  C* const squares = means + chunks * s.c;
  over_pieces(s.n, s.c,
              [&](std::int64_t chunk, std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
                C* const m = means + chunk * s.c;
                C* const sq = squares + chunk * s.c;
                std::fill(m + c0, m + c1, C(0));
                std::fill(sq + c0, sq + c1, C(0));
                for (std::int64_t r = r0; r < r1; ++r)
                  for (std::int64_t c = c0; c < c1; ++c) m[c] += load(x[r * s.c + c]);
                const C scale = C(1) / static_cast<C>(r1 - r0);
                for (std::int64_t c = c0; c < c1; ++c) m[c] *= scale;
                for (std::int64_t r = r0; r < r1; ++r)
                  for (std::int64_t c = c0; c < c1; ++c) {
                    const C d = load(x[r * s.c + c]) - m[c];
                    sq[c] += d * d;
                  }
              });
  for (std::int64_t c = 0; c < s.c; ++c) {
    Moments all;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
      all.merge(static_cast<double>(std::min(kPieceRows, s.n - chunk * kPieceRows)), means[chunk * s.c + c],
                squares[chunk * s.c + c]);
    write_stats<T>(to, c, all);
  }
}

// Calls f(element, channel) for all elements.
template <class F>
void over_elements(const BatchNormShape& s, F&& f) {
  if (s.l > 1)
    parallel_for(s.n * s.c, grain_of(s.l), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t plane = begin; plane < end; ++plane) {
        const std::int64_t c = plane % s.c;
        for (std::int64_t i = plane * s.l; i < (plane + 1) * s.l; ++i) f(i, c);
      }
    });
  else
    parallel_for(s.n, grain_of(s.c), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        for (std::int64_t c = 0; c < s.c; ++c) f(row * s.c + c, c);
    });
}

template <class T>
void forward_kernel(const LaunchContext& context, const BatchNormArgs& a) {
  using C = Compute<T>;
  const BatchNormShape& s = a.shape;
  const T* const x = a.x.as<T>();
  const C *const mean = a.mean.as<C>(), *const inv_std = a.inv_std.as<C>();
  T* const y = a.y.as<T>();
  const Scratch<C> memory(context.device, 2 * s.c);
  C* const scale = memory.data();
  C* const shift = scale + s.c;
  for (std::int64_t c = 0; c < s.c; ++c) {
    scale[c] = inv_std[c] * (a.weight ? number<T>(a.weight, c) : C(1));
    shift[c] = a.bias ? number<T>(a.bias, c) : C(0);
  }
  const auto run = [&]<bool kResidual, bool kRelu>() {
    const auto finish = [=, residual = a.residual.as<T>()](std::int64_t i, C m, C by, C plus) {
      C v = (load(x[i]) - m) * by + plus;
      if constexpr (kResidual) v += load(residual[i]);
      if constexpr (kRelu) v = v < 0 ? C(0) : v;
      y[i] = T(v);
    };
    if (s.l == 1)
      return parallel_for(s.n, grain_of(s.c), [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
#pragma GCC ivdep
          for (std::int64_t c = 0; c < s.c; ++c) finish(row * s.c + c, mean[c], scale[c], shift[c]);
        }
      });
    // The numbers of a channel stay in registers, so that the loop has few arrays that might overlap.
    parallel_for(s.n * s.c, grain_of(s.l), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t plane = begin; plane < end; ++plane) {
        const C m = mean[plane % s.c], by = scale[plane % s.c], plus = shift[plane % s.c];
        for (std::int64_t i = plane * s.l; i < (plane + 1) * s.l; ++i) finish(i, m, by, plus);
      }
    });
  };
  if (a.residual) a.relu ? run.template operator()<true, true>() : run.template operator()<true, false>();
  else a.relu ? run.template operator()<false, true>() : run.template operator()<false, false>();
}

// Computes sums[c] = sum dy and sums[channels + c] = sum dy (x - mean).
template <class T, class C = Compute<T>>
void gradient_sums(const LaunchContext& context, const BatchNormShape& s, const T* dy, const T* x,
                   const C* mean, C* sums) {
  if (s.l > 1) {
    parallel_for(s.c, grain_of(s.n * s.l), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        double plain = 0, centred = 0;
        const C m = mean[c];
        for (std::int64_t n = 0; n < s.n; ++n)
          for (std::int64_t i = 0; i < s.l; i += kPiecePixels) {
            const std::int64_t at = (n * s.c + c) * s.l + i, size = std::min(kPiecePixels, s.l - i);
            plain += sum_lanes<C>(size, [=](std::int64_t j) { return load(dy[at + j]); });
            centred +=
                sum_lanes<C>(size, [=](std::int64_t j) { return load(dy[at + j]) * (load(x[at + j]) - m); });
          }
        sums[c] = static_cast<C>(plain);
        sums[s.c + c] = static_cast<C>(centred);
      }
    });
    return;
  }
  const std::int64_t chunks = pieces(s.n, kPieceRows);
  const Scratch<C> memory(context.device, 2 * chunks * s.c);
  over_pieces(s.n, s.c,
              [&](std::int64_t chunk, std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
                C* const plain = memory.data() + 2 * chunk * s.c;
                C* const centred = plain + s.c;
                std::fill(plain + c0, plain + c1, C(0));
                std::fill(centred + c0, centred + c1, C(0));
                for (std::int64_t r = r0; r < r1; ++r)
                  for (std::int64_t c = c0; c < c1; ++c) {
                    const C g = load(dy[r * s.c + c]);
                    plain[c] += g;
                    centred[c] += g * (load(x[r * s.c + c]) - mean[c]);
                  }
              });
  for (std::int64_t c = 0; c < 2 * s.c; ++c) {
    double total = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += memory.data()[2 * chunk * s.c + c];
    sums[c] = static_cast<C>(total);
  }
}

template <class T>
void backward_kernel(const LaunchContext& context, const BatchNormBackwardArgs& a) {
  using C = Compute<T>;
  const BatchNormShape& s = a.shape;
  const T *dy = a.dy.as<T>(), *const x = a.x.as<T>();
  Scratch<T> counted;  // dy where it counts
  if (a.relu_y || a.dresidual) {
    const std::int64_t n = s.n * s.c * s.l;
    T* to = a.dresidual.as<T>();
    if (!to) {
      counted = Scratch<T>(context.device, n);
      to = counted.data();
    }
    parallel_for(n, grain_of(2), [=, y = a.relu_y.as<T>()](std::int64_t begin, std::int64_t end) {
      if (y)
        for (std::int64_t i = begin; i < end; ++i) {
          const T g = dy[i];  // loaded in any case, so that the loop is vectorised
          to[i] = load(y[i]) <= 0 ? T(0) : g;
        }
      else std::copy(dy + begin, dy + end, to + begin);
    });
    dy = to;
  }
  const C *const mean = a.mean.as<C>(), *const inv_std = a.inv_std.as<C>();
  T* const dx = a.dx.as<T>();
  const Scratch<C> memory(context.device, 5 * s.c);
  C* const sums = memory.data();
  C* const slope = sums + 2 * s.c;  // dx = slope dy - centred (x - mean) - offset
  C* const centred = slope + s.c;
  C* const offset = centred + s.c;
  if (a.training || a.dweight || a.dbias) gradient_sums(context, s, dy, x, mean, sums);
  const C count = static_cast<C>(s.n * s.l);
  for (std::int64_t c = 0; c < s.c; ++c) {
    if (a.dweight) set_number<T>(a.dweight, c, sums[s.c + c] * inv_std[c]);
    if (a.dbias) set_number<T>(a.dbias, c, sums[c]);
    slope[c] = inv_std[c] * (a.weight ? number<T>(a.weight, c) : C(1));
    if (!a.training) continue;
    // The products are taken in this order because inv_std * inv_std alone may underflow.
    centred[c] = slope[c] * (inv_std[c] * (inv_std[c] * (sums[s.c + c] / count)));
    offset[c] = slope[c] * (sums[c] / count);
  }
  if (!dx) return;
  if (a.training)
    over_elements(s, [=](std::int64_t i, std::int64_t c) {
      dx[i] = T(slope[c] * load(dy[i]) - centred[c] * (load(x[i]) - mean[c]) - offset[c]);
    });
  else over_elements(s, [=](std::int64_t i, std::int64_t c) { dx[i] = T(slope[c] * load(dy[i])); });
}

[[maybe_unused]] const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  batch_norm_stats.set(DeviceType::cpu, dtype_of<T>, &stats_kernel<T>);
  batch_norm.set(DeviceType::cpu, dtype_of<T>, &forward_kernel<T>);
  batch_norm_backward.set(DeviceType::cpu, dtype_of<T>, &backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
