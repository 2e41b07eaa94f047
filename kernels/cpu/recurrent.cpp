// The pointwise part of a recurrent step. A unit of work is a block of kColumns columns of one row. The loop
// over its columns computes all gates of an element, so that each array is read and written once.
#include "tapestry/kernels/ops/recurrent.h"

#include <algorithm>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/math.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kColumns = 256;
// The cost of one element of a state, in units of one load. It was estimated from the number of exponentials.
constexpr std::int64_t kCost = 16;

#ifdef __clang__
#define TAPESTRY_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TAPESTRY_INDEPENDENT _Pragma("GCC ivdep")
#endif

// Calls f(first, gates, count) for each block: the index of its first element in a (rows, hidden) array, the
// index of that element in an array of k gates, and its number of elements.
template <class F>
void for_blocks(std::int64_t rows, std::int64_t hidden, int k, const F& f) {
  const std::int64_t blocks = (hidden + kColumns - 1) / kColumns;
  parallel_for(rows * blocks, grain_of(kCost * std::min(hidden, kColumns)),
               [=, &f](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t row = i / blocks, column = (i - row * blocks) * kColumns;
                   f(row * hidden + column, row * k * hidden + column, std::min(kColumns, hidden - column));
                 }
               });
}

// An array that starts `offset` elements later. null stays null.
template <class T>
T* from(T* array, std::int64_t offset) {
  return array ? array + offset : nullptr;
}
template <class T>
void keep(T* to, const T* values, std::int64_t n) {
  if (to) std::copy_n(values, n, to);
}

// The loops are functions of pointers alone: g++ then keeps all pointers in registers and vectorises them.
template <class T>
[[gnu::flatten]] void lstm_block(std::int64_t n, T* gi, T* gf, T* gg, T* go, T* h, T* c, T* y) {
  TAPESTRY_INDEPENDENT
  for (std::int64_t j = 0; j < n; ++j) {
    const auto i = cpu::sigmoid(load(gi[j])), f = cpu::sigmoid(load(gf[j])), o = cpu::sigmoid(load(go[j]));
    const auto g = cpu::tanh(load(gg[j]));
    const auto next = f * load(c[j]) + i * g, out = o * cpu::tanh(next);
    gi[j] = T(i), gf[j] = T(f), gg[j] = T(g), go[j] = T(o);
    c[j] = T(next), h[j] = T(out), y[j] = T(out);
  }
}
template <class T>
[[gnu::flatten]] void lstm_backward_block(std::int64_t n, const T* gi, const T* gf, const T* gg, const T* go,
                                          const T* before, const T* dh, const T* dy, T* dc, T* di, T* df,
                                          T* dg, T* dout) {
  TAPESTRY_INDEPENDENT
  for (std::int64_t j = 0; j < n; ++j) {
    const auto i = load(gi[j]), f = load(gf[j]), g = load(gg[j]), o = load(go[j]), old = load(before[j]);
    const auto t = cpu::tanh(f * old + i * g), d = load(dh[j]) + load(dy[j]);
    const auto dnext = load(dc[j]) + d * o * (1 - t * t);
    di[j] = T(dnext * g * i * (1 - i));
    df[j] = T(dnext * old * f * (1 - f));
    dg[j] = T(dnext * i * (1 - g * g));
    dout[j] = T(d * t * o * (1 - o));
    dc[j] = T(dnext * f);
  }
}
template <class T>
[[gnu::flatten]] void gru_block(std::int64_t n, T* gr, T* gz, T* gn, const T* hr, const T* hz, const T* hn,
                                T* h, T* y) {
  TAPESTRY_INDEPENDENT
  for (std::int64_t j = 0; j < n; ++j) {
    const auto r = cpu::sigmoid(load(gr[j]) + load(hr[j])), z = cpu::sigmoid(load(gz[j]) + load(hz[j]));
    const auto m = cpu::tanh(load(gn[j]) + r * load(hn[j]));
    const auto out = m + z * (load(h[j]) - m);
    gr[j] = T(r), gz[j] = T(z), gn[j] = T(m);
    h[j] = T(out), y[j] = T(out);
  }
}
template <class T>
[[gnu::flatten]] void gru_backward_block(std::int64_t n, const T* gr, const T* gz, const T* gn,
                                         const T* before, const T* hn, const T* dy, T* dh, T* dr, T* dz,
                                         T* dn, T* er, T* ez, T* en) {
  TAPESTRY_INDEPENDENT
  for (std::int64_t j = 0; j < n; ++j) {
    const auto r = load(gr[j]), z = load(gz[j]), m = load(gn[j]), d = load(dh[j]) + load(dy[j]);
    const auto inner = d * (1 - z) * (1 - m * m);  // the gradient of the argument of tanh
    const auto reset = inner * load(hn[j]) * r * (1 - r), update = d * (load(before[j]) - m) * z * (1 - z);
    dr[j] = T(reset), dz[j] = T(update), dn[j] = T(inner);
    er[j] = T(reset), ez[j] = T(update), en[j] = T(inner * r);
    dh[j] = T(d * z);
  }
}

template <class T>
void step_kernel(const LaunchContext&, const RecurrentStepArgs& a) {
  T *const gates = a.gates.as<T>(), *const h = a.h.as<T>(), *const c = a.c.as<T>(), *const y = a.y.as<T>();
  T *const h_before = a.h_before.as<T>(), *const c_before = a.c_before.as<T>();
  T* const candidate = a.candidate.as<T>();
  const T* const hidden_part = a.hidden_part.as<T>();
  const std::int64_t size = a.hidden;
  const auto cell = a.cell;
  for_blocks(a.rows, size, gates_of(cell), [=](std::int64_t at, std::int64_t gate, std::int64_t n) {
    T *const g = gates + gate, *const state = h + at;
    keep(from(h_before, at), state, n);
    if (cell == RecurrentCell::lstm) {
      keep(from(c_before, at), c + at, n);
      lstm_block(n, g, g + size, g + 2 * size, g + 3 * size, state, c + at, y + at);
    } else if (cell == RecurrentCell::gru) {
      const T* const part = hidden_part + gate;
      keep(from(candidate, at), part + 2 * size, n);
      gru_block(n, g, g + size, g + 2 * size, part, part + size, part + 2 * size, state, y + at);
    } else {
      if (cell == RecurrentCell::tanh)
        for (std::int64_t j = 0; j < n; ++j) g[j] = T(cpu::tanh(load(g[j])));
      else
        for (std::int64_t j = 0; j < n; ++j) g[j] = load(g[j]) < 0 ? T(0) : g[j];  // keeps NaN
      std::copy_n(g, n, state);
    }
  });
}

template <class T>
void step_backward_kernel(const LaunchContext&, const RecurrentStepBackwardArgs& a) {
  const T *const gates = a.gates.as<T>(), *const before = a.before.as<T>(), *const dy = a.dy.as<T>();
  const T* const candidate = a.candidate.as<T>();
  T *const dh = a.dh.as<T>(), *const dc = a.dc.as<T>(), *const dgates = a.dgates.as<T>();
  T* const dhidden_part = a.dhidden_part.as<T>();
  const std::int64_t size = a.hidden;
  const auto cell = a.cell;
  for_blocks(a.rows, size, gates_of(cell), [=](std::int64_t at, std::int64_t gate, std::int64_t n) {
    static constexpr T zeros[kColumns] = {};
    const T *const g = gates + gate, *const out = dy ? dy + at : zeros;
    T* const d = dgates + gate;
    if (cell == RecurrentCell::lstm) {
      lstm_backward_block(n, g, g + size, g + 2 * size, g + 3 * size, before + at, dh + at, out, dc + at, d,
                          d + size, d + 2 * size, d + 3 * size);
    } else if (cell == RecurrentCell::gru) {
      T* const e = dhidden_part + gate;
      gru_backward_block(n, g, g + size, g + 2 * size, before + at, candidate + at, out, dh + at, d, d + size,
                         d + 2 * size, e, e + size, e + 2 * size);
    } else {
      for (std::int64_t j = 0; j < n; ++j) {
        const auto y = load(g[j]), sum = load(dh[at + j]) + load(out[j]);
        d[j] = T(cell == RecurrentCell::tanh ? sum * (1 - y * y) : y <= 0 ? 0 : sum);
      }
    }
  });
}

[[maybe_unused]] const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  recurrent_step.set(DeviceType::cpu, dtype_of<T>, &step_kernel<T>);
  recurrent_step_backward.set(DeviceType::cpu, dtype_of<T>, &step_backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
