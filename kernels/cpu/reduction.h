#pragma once
// The loops of the CPU's reductions. A reduction has two levels. First, elements are accumulated in several
// lanes at once, so that the loop is vectorised. After a bounded number of steps, the lanes are added to a
// total of a wider type. So an f32 sum is limited by memory bandwidth and is nearly as exact as a sum in f64.
//
//   struct Op {
//     using Lane, Total;
//     Lane start() const;                              // identity
//     Lane step(Lane lane, Lane x, Lane center) const; // takes one element in
//     Lane fold(Lane a, Lane b) const;                 // joins two lanes
//     Total begin() const;
//     Total merge(Total, Lane) const;
//     Total join(Total, Total) const;
//     kAddsElements                                    // exists if step() adds x, and nothing else
//   };
//
// The work is divided into blocks that depend only on the shape. Blocks are joined in order. So the result
// does not depend on the number of threads.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "tapestry/core/error.h"
#include "tapestry/core/parallel.h"
#include "tapestry/kernels/cpu/loops.h"
#include "tapestry/kernels/cpu/wide.h"
#include "tapestry/kernels/ops/reduce.h"

namespace tapestry::kernels::cpu {

/// Converts results to the dtype of the output and writes them. The output has dtype T, or may be f32 if T is
/// a 16-bit float.
template <class T>
class ReductionWriter {
 public:
  explicit ReductionWriter(const Reduction& r) {
    if (r.out.dtype() == dtype_of<T>) out_ = r.out.as<T>();
    else wide_out_ = r.out.as<float>();
  }
  template <class V>
  void operator()(std::int64_t i, V value) const {
    if (wide_out_) wide_out_[i] = static_cast<float>(value);
    else out_[i] = convert<T>(value);
  }

 private:
  T* out_ = nullptr;
  float* wide_out_ = nullptr;
};

namespace reduction {

inline constexpr std::int64_t kDepth = 32;        // elements that a lane accumulates before it is merged
inline constexpr std::int64_t kTile = 1024;       // columns that are reduced at the same time
inline constexpr std::int64_t kElements = 16384;  // elements per block
inline constexpr std::int64_t kEnoughTasks = 32;  // with fewer tasks, each task is divided into blocks

inline std::int64_t offset_of(std::int64_t index, int ndim, const std::int64_t* sizes,
                              const std::int64_t* strides) {
  std::int64_t offset = 0;
  for (int d = ndim - 1; d > 0; --d) {
    const std::int64_t rest = index / sizes[d];
    offset += (index - rest * sizes[d]) * strides[d];
    index = rest;
  }
  return offset + index * strides[0];
}

/// Divides the elements that one output reduces into blocks of about kElements. A run is a line of elements
/// along the last reduced dimension. A block is a piece of one long run, or a group of several short runs.
/// `width` is the number of adjacent outputs that are reduced at the same time.
struct Blocks {
  std::int64_t run, runs, pieces, piece, group, count;

  Blocks(const Reduction& r, std::int64_t width) {
    run = r.reduced_sizes[r.reduced_ndim - 1];
    runs = run > 0 ? r.count / run : 0;
    const std::int64_t steps = std::max(kElements / width, kDepth);
    pieces = std::max<std::int64_t>((run + steps - 1) / steps, 1);
    piece = pieces == 1 ? run : steps;
    group = pieces == 1 ? std::max<std::int64_t>(steps / std::max<std::int64_t>(run, 1), 1) : 1;
    count = (runs * pieces + group - 1) / group;
  }
  /// Visits blocks [begin, end). Calls f(offset, length) for each piece of a run in them.
  template <class F>
  void each(const Reduction& r, std::int64_t begin, std::int64_t end, const F& f) const {
    const std::int64_t stride = r.reduced_strides[r.reduced_ndim - 1];
    const std::int64_t last = std::min(end * group, runs * pieces);
    for (std::int64_t i = begin * group; i < last; ++i) {
      const std::int64_t which = pieces == 1 ? i : i / pieces, at = (i - which * pieces) * piece;
      f((r.reduced_ndim == 1 ? 0 : offset_of(which, r.reduced_ndim - 1, r.reduced_sizes, r.reduced_strides)) +
            at * stride,
        std::min(piece, run - at));
    }
  }
};

/// Converts blocks of f16 or bf16 elements to f32. Elements of other types are not converted.
template <class T>
struct Elements {
  const T* block(const T* x, std::int64_t) { return x; }
};
template <class T>
requires is_half<T>
struct Elements<T> {
  float buffer[64 * kDepth];
  const float* block(const T* x, std::int64_t n) {
    to_float(x, buffer, n);
    return buffer;
  }
};

#if defined(__GNUC__)
/// The sum of 64 * steps contiguous bf16 numbers. Two neighbours are read as one word, whose halves are two
/// f32 numbers after a shift and a mask. Four vectors of sums hide the latency of an addition.
inline float sum_of_words(const BFloat16* x, std::int64_t steps) {
  using Words = std::uint32_t __attribute__((vector_size(64)));
  using Floats = float __attribute__((vector_size(64)));
  Floats a{}, b{}, c{}, d{};
  for (std::int64_t i = 0; i < steps; ++i) {
    Words left, right;
    std::memcpy(&left, x + 64 * i, sizeof left);
    std::memcpy(&right, x + 64 * i + 32, sizeof right);
    a += reinterpret_cast<Floats>(left << 16), b += reinterpret_cast<Floats>(left & 0xffff0000u);
    c += reinterpret_cast<Floats>(right << 16), d += reinterpret_cast<Floats>(right & 0xffff0000u);
  }
  const Floats sums = (a + b) + (c + d);
  float lane[16];
  std::memcpy(lane, &sums, sizeof lane);
  for (int half = 8; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  return lane[0];
}
inline constexpr bool kSumsWords = std::endian::native == std::endian::little;
#else
inline float sum_of_words(const BFloat16*, std::int64_t) { return 0; }
inline constexpr bool kSumsWords = false;
#endif

/// Folds 2 * half lanes into lane[0]. Loops of constant length stay in registers.
template <int half, class Op, class Lane>
inline void fold_lanes(const Op& op, Lane* lane) {
  for (int j = 0; j < half; ++j) lane[j] = op.fold(lane[j], lane[j + half]);
  if constexpr (half > 1) fold_lanes<half / 2>(op, lane);
}

/// Folds n elements, `stride` apart, into a total.
template <class T, class Op>
void fold_run(const Op& op, const T* x, std::int64_t n, std::int64_t stride, typename Op::Lane center,
              typename Op::Total& total) {
  using Lane = typename Op::Lane;
  if constexpr (std::is_same_v<T, BFloat16> && kSumsWords && requires { Op::kAddsElements; })
    while (stride == 1 && n >= 64) {
      const std::int64_t steps = std::min(n / 64, kDepth);
      total = op.merge(total, sum_of_words(x, steps));
      x += 64 * steps;
      n -= 64 * steps;
    }
  // Eight vectors of AVX2. With fewer, the additions wait for each other.
  constexpr std::int64_t lanes = sizeof(Lane) == 8 ? 32 : 64;
  if (stride == 1 && n >= 16) {
    Elements<T> elements;
    do {
      const std::int64_t steps = std::min(n / lanes, kDepth);
      // The elements that do not fill the lanes are the last step of some lanes.
      const std::int64_t rest = steps < kDepth ? n - steps * lanes : 0, count = steps * lanes + rest;
      const auto* const in = elements.block(x, count);
      const auto take = [&op, in, center](Lane lane, std::int64_t i) {
        return op.step(lane, static_cast<Lane>(in[i]), center);
      };
      Lane lane[lanes];
      if (steps > 0)
        for (std::int64_t j = 0; j < lanes; ++j) lane[j] = take(op.start(), j);
      else
        for (std::int64_t j = 0; j < lanes; ++j) lane[j] = op.start();
      for (std::int64_t i = 1; i < steps; ++i)
        for (std::int64_t j = 0; j < lanes; ++j) lane[j] = take(lane[j], i * lanes + j);
      for (std::int64_t j = 0; j < rest; ++j) lane[j] = take(lane[j], steps * lanes + j);
      fold_lanes<lanes / 2>(op, lane);
      total = op.merge(total, lane[0]);
      x += count;
      n -= count;
    } while (n > 0);
  }
  while (n > 0) {
    const std::int64_t steps = std::min(n, kDepth);
    Lane lane = op.start();
    for (std::int64_t i = 0; i < steps; ++i)
      lane = op.step(lane, static_cast<Lane>(static_cast<Compute<T>>(x[i * stride])), center);
    total = op.merge(total, lane);
    x += steps * stride;
    n -= steps;
  }
}

/// Reduces each of `columns` adjacent columns over `rows` rows, into one total per column. There are at most
/// kTile columns.
template <class T, class Op>
void fold_columns(const Op& op, const T* x, std::int64_t rows, std::int64_t stride, std::int64_t columns,
                  const typename Op::Lane* centers, typename Op::Total* totals) {
  using Lane = typename Op::Lane;
  Elements<T> elements;
  Lane lane[kTile], none[kTile];
  if (!centers) {
    std::fill_n(none, columns, Lane());
    centers = none;
  }
  while (rows > 0) {
    const std::int64_t steps = std::min(rows, kDepth);
    std::fill_n(lane, columns, op.start());
    std::int64_t i = 0;
    // Four rows for each access to the lanes.
    if constexpr (!is_half<T>)
      for (; i + 4 <= steps; i += 4) {
        const T* const in = x + i * stride;
        for (std::int64_t j = 0; j < columns; ++j) {
          Lane sum = lane[j];
          for (int k = 0; k < 4; ++k) sum = op.step(sum, static_cast<Lane>(in[k * stride + j]), centers[j]);
          lane[j] = sum;
        }
      }
    for (; i < steps; ++i) {
      const auto* const in = elements.block(x + i * stride, columns);
      for (std::int64_t j = 0; j < columns; ++j)
        lane[j] = op.step(lane[j], static_cast<Lane>(in[j]), centers[j]);
    }
    for (std::int64_t j = 0; j < columns; ++j) totals[j] = op.merge(totals[j], lane[j]);
    x += steps * stride;
    rows -= steps;
  }
}

}  // namespace reduction

/// Reduces elements of type T and calls finish(output, total) for every output. `centers` has one value per
/// output that the Op needs for each element, such as the mean. It is null if the Op needs none. `cost` is
/// the cost of one element, in units of one load.
template <class T, class Op, class Finish>
void reduce(const Reduction& r, const Op& op, const typename Op::Lane* centers, const Finish& finish,
            std::int64_t cost = 1) {
  using namespace reduction;
  using Total = typename Op::Total;
  if (r.outputs == 0) return;
  const T* const x = r.x.as<T>();
  const std::int64_t stride = r.reduced_strides[r.reduced_ndim - 1];
  // True if the elements of the last kept dimension are contiguous. Then adjacent outputs are reduced at the
  // same time. Otherwise each run along the reduced dimension is reduced by itself.
  const bool side_by_side = r.kept_strides[r.kept_ndim - 1] == 1 && stride != 1;
  const std::int64_t row = side_by_side ? r.kept_sizes[r.kept_ndim - 1] : 1;
  const std::int64_t width = std::min(row, kTile), tiles = (row + width - 1) / width;
  const std::int64_t tasks = r.outputs / row * tiles;
  const Blocks blocks(r, width);

  // f32 is as fast as the memory, and converting 16-bit elements is not.
  const auto run = [](const auto& f) {
    if constexpr (is_half<T>) with_wide_vectors(f);
    else f();
  };
  if (!side_by_side && r.reduced_ndim == 1 && blocks.count <= 1) {  // short rows, with little to do for each
    parallel_for(r.outputs, grain_of(r.count * cost), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Total total = op.begin();
        const T* const from = x + offset_of(i, r.kept_ndim, r.kept_sizes, r.kept_strides);
        const auto center = centers ? centers[i] : typename Op::Lane();
        run([&] { fold_run(op, from, r.count, stride, center, total); });
        finish(i, total);
      }
    });
    return;
  }

  // Reduces blocks [begin, end) of a task into totals. Returns the first output, and sets `n` to the number
  // of outputs.
  const auto fold = [&](std::int64_t task, std::int64_t begin, std::int64_t end, Total* totals,
                        std::int64_t& n) {
    const std::int64_t line = tiles == 1 ? task : task / tiles, tile = task - line * tiles;
    const std::int64_t first = line * row + tile * width;
    n = std::min(width, row - tile * width);
    const T* const from = x + offset_of(first, r.kept_ndim, r.kept_sizes, r.kept_strides);
    std::fill_n(totals, n, op.begin());
    const auto* const center = centers ? centers + first : nullptr;
    blocks.each(r, begin, end, [&](std::int64_t offset, std::int64_t length) {
      run([&] {
        if (side_by_side) fold_columns(op, from + offset, length, stride, n, center, totals);
        else fold_run(op, from + offset, length, stride, center ? *center : typename Op::Lane(), *totals);
      });
    });
    return first;
  };

  if (tasks >= kEnoughTasks || blocks.count <= 1) {
    parallel_for(tasks, grain_of(r.count * width * cost), [&](std::int64_t begin, std::int64_t end) {
      Total totals[kTile];
      for (std::int64_t task = begin; task < end; ++task) {
        std::int64_t n;
        const std::int64_t first = fold(task, 0, blocks.count, totals, n);
        for (std::int64_t j = 0; j < n; ++j) finish(first + j, totals[j]);
      }
    });
    return;
  }
  // An expanded tensor may have more elements than memory could hold.
  const std::unique_ptr<Total[]> partial(new (std::nothrow)
                                             Total[static_cast<std::size_t>(tasks * blocks.count * width)]);
  check<OutOfMemoryError>(partial != nullptr, "[reduce] the partial results of ", tasks, " x ", r.count,
                          " elements do not fit into memory; reduce fewer elements at a time");
  parallel_for(tasks * blocks.count, grain_of(kElements * cost), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t n;
      fold(i / blocks.count, i % blocks.count, i % blocks.count + 1, &partial[i * width], n);
    }
  });
  for (std::int64_t task = 0; task < tasks; ++task) {
    Total* const totals = &partial[task * blocks.count * width];
    const std::int64_t tile = task % tiles, n = std::min(width, row - tile * width);
    for (std::int64_t block = 1; block < blocks.count; ++block)
      for (std::int64_t j = 0; j < n; ++j) totals[j] = op.join(totals[j], totals[block * width + j]);
    for (std::int64_t j = 0; j < n; ++j) finish(task / tiles * row + tile * width + j, totals[j]);
  }
}

}  // namespace tapestry::kernels::cpu
