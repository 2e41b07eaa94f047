// CPU kernels of the scans. A scan is a chain of dependent joins, so a thread scans several rows or blocks at
// the same time, which hides the latency of the joins.
#include "tapestry/kernels/scan.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "tapestry/kernels/cpu/grain.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr int kLanes = 4;               // rows or blocks that a thread scans at the same time
constexpr std::int64_t kBlock = 4096;   // elements per block of a long row
constexpr std::int64_t kManyRows = 64;  // at least so many rows are not divided into blocks

/// Scans kLanes segments of the same length. Segment k begins at position first[k] of row row[k], in the
/// order of the scan, and s[k] is the State before it. Writes results if kWrites. Sets s[k] to the State
/// after it.
template <bool kWrites, class Op>
void scan_segments(const Op& op, const std::int64_t* row, const std::int64_t* first, std::int64_t length,
                   typename Op::State* s) {
  std::int64_t element[kLanes], at[kLanes];
  typename Op::State state[kLanes];
  const std::int64_t step = op.reverse ? -1 : 1;
  for (int k = 0; k < kLanes; ++k) {
    at[k] = op.reverse ? op.n - 1 - first[k] : first[k];
    element[k] = row[k] * op.n + at[k];
    state[k] = s[k];
  }
  for (std::int64_t i = 0; i < length; ++i)
    for (int k = 0; k < kLanes; ++k) {
      const std::int64_t e = element[k] + i * step, p = at[k] + i * step;
      state[k] = op.join(state[k], op.at(e, p));
      if constexpr (kWrites) op.put(e, p, state[k]);
    }
  std::copy_n(state, kLanes, s);
}

/// Scans blocks [begin, end), where a row has `blocks` blocks of `size` elements. states[b] is the State
/// before block b, and becomes the State after it.
template <bool kWrites, class Op>
void scan_blocks(const Op& op, std::int64_t blocks, std::int64_t size, std::int64_t begin, std::int64_t end,
                 typename Op::State* states) {
  const auto length = [&](std::int64_t b) { return std::min(size, op.n - b % blocks * size); };
  for (std::int64_t b = begin; b < end;) {
    int count = 1;
    while (count < kLanes && b + count < end && length(b + count) == length(b)) ++count;
    // Lanes without a block repeat the first block, so that one loop serves any count. This costs little,
    // because the loop is limited by the latency of the joins.
    std::int64_t row[kLanes], first[kLanes];
    typename Op::State lanes[kLanes];
    for (int k = 0; k < kLanes; ++k) {
      const std::int64_t block = k < count ? b + k : b;
      row[k] = block / blocks;
      first[k] = block % blocks * size;
      lanes[k] = states[block];
    }
    scan_segments<kWrites>(op, row, first, length(b), lanes);
    std::copy_n(lanes, count, states + b);
    b += count;
  }
}

template <class Op>
void scan(std::int64_t rows, const Op& op) {
  using State = typename Op::State;
  if (rows == 0 || op.n == 0) return;
  const bool whole = rows >= kManyRows || op.n <= kBlock;
  const std::int64_t size = whole ? op.n : kBlock, blocks = (op.n + size - 1) / size, count = rows * blocks;
  const auto states = std::make_unique_for_overwrite<State[]>(static_cast<std::size_t>(count));
  std::fill_n(states.get(), count, Op::identity());
  const std::int64_t grain = std::max<std::int64_t>(grain_of(size), kLanes);
  if (blocks > 1) {
    parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
      scan_blocks<false>(op, blocks, size, begin, end, states.get());
    });
    for (std::int64_t row = 0; row < rows; ++row) {
      State before = Op::identity();
      for (std::int64_t b = row * blocks; b < (row + 1) * blocks; ++b) {
        const State after = op.join(before, states[b]);
        states[b] = before;
        before = after;
      }
    }
  }
  parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    scan_blocks<true>(op, blocks, size, begin, end, states.get());
  });
}

/// CumulativeExtreme (kernels/scan.h) with fewer comparisons, for two reasons. The template says whether the
/// largest or the smallest element is wanted. And the state begins as the worst value, which any element
/// replaces, so no comparison asks whether there was an element before.
template <class T, bool kLargest>
struct Extreme : CumulativeExtreme<T> {
  using State = typename CumulativeExtreme<T>::State;
  using CumulativeExtreme<T>::CumulativeExtreme;
  static State identity() {
    using Limits = std::numeric_limits<T>;
    if constexpr (Limits::has_infinity) return {kLargest ? -Limits::infinity() : Limits::infinity(), -1};
    else return {kLargest ? Limits::lowest() : Limits::max(), -1};
  }
  static State join(State a, State b) {
    const bool replaces = kLargest ? b.value >= a.value : b.value <= a.value;
    return replaces | (b.value != b.value) ? b : a;  // no number replaces NaN
  }
};
template <class T>
void cummax_kernel(const LaunchContext&, const CummaxArgs& a) {
  if (a.largest) scan(a.rows, Extreme<T, true>(a));
  else scan(a.rows, Extreme<T, false>(a));
}

template <class Op, class Args>
void scan_kernel(const LaunchContext&, const Args& a) {
  scan(a.rows, Op(a));
}

template <class T, class C>
void fill_slots() {
  constexpr DType dtype = dtype_of<T>;
  cumsum.set(DeviceType::cpu, dtype, &scan_kernel<Cumulative<T, C, false>, ScanArgs>);
  cumprod.set(DeviceType::cpu, dtype, &scan_kernel<Cumulative<T, C, true>, ScanArgs>);
  cummax.set(DeviceType::cpu, dtype, &cummax_kernel<T>);
  if constexpr (is_floating(dtype)) {
    cumprod_backward.set(DeviceType::cpu, dtype, &scan_kernel<CumprodBackward<T, C>, CumprodBackwardArgs>);
    cummax_backward.set(DeviceType::cpu, dtype, &scan_kernel<CummaxBackward<T, C>, CummaxBackwardArgs>);
    logcumsumexp.set(DeviceType::cpu, dtype, &scan_kernel<LogCumulative<T, C>, ScanArgs>);
    logcumsumexp_backward.set(DeviceType::cpu, dtype,
                              &scan_kernel<LogCumulativeBackward<T, C>, CumprodBackwardArgs>);
  }
}

const bool filled = [] {
  fill_slots<float, double>();
  fill_slots<double, double>();
  fill_slots<std::int64_t, std::uint64_t>();  // unsigned, because signed overflow is undefined
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
