// Resampling of images and volumes. For each output row, the input rows that it depends on are added up with
// their weights, in a loop over adjacent elements. The sum is resampled along the row.
#include "tapestry/kernels/ops/resample.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tapestry/kernels/cpu/compute.h"

namespace tapestry::kernels::cpu {
namespace {

template <class C>
struct Axis {
  std::int64_t in, out;
  const std::int32_t *begin, *index;
  const C* weight;
  std::int64_t taps = -1;  // per output, or -1 if outputs differ

  explicit Axis(const ResampleAxis& a)
      : in(a.in),
        out(a.out),
        begin(a.begin.as<std::int32_t>()),
        index(a.index.as<std::int32_t>()),
        weight(a.weight.as<C>()) {
    if (!begin) return;
    taps = begin[1] - begin[0];
    for (std::int64_t o = 1; o < out; ++o)
      if (begin[o + 1] - begin[o] != taps) taps = -1;
  }
  // Calls f(index, weight) for the inputs of output o.
  template <class F>
  void for_inputs(std::int64_t o, const F& f) const {
    if (!begin) return f(o, C(1));
    for (std::int32_t t = begin[o]; t < begin[o + 1]; ++t) f(std::int64_t{index[t]}, weight[t]);
  }
};

// An input row and its weight.
template <class C>
struct WeightedRow {
  std::int64_t row;
  C weight;
};

// Computes the weighted sum of rows of n elements in `sum`, or returns the only row if its weight is 1.
// `line` is memory for one row of 16-bit floats after their conversion.
template <class T, class C>
const C* combined(const T* x, const std::vector<WeightedRow<C>>& rows, std::int64_t n, C* sum, C* line) {
  const auto at = [&](const WeightedRow<C>& r, [[maybe_unused]] C* to) -> const C* {
    if constexpr (is_half<T>) {
      to_float(x + r.row * n, to, n);
      return to;
    } else {
      return x + r.row * n;
    }
  };
  if (rows.empty()) {
    std::fill_n(sum, n, C(0));
    return sum;
  }
  if (rows.size() == 1 && rows[0].weight == 1) return at(rows[0], sum);
  {
    const C* const first = at(rows[0], line);
    const C w = rows[0].weight;
    for (std::int64_t i = 0; i < n; ++i) sum[i] = w * first[i];
  }
  for (std::size_t r = 1; r < rows.size(); ++r) {
    const C* const next = at(rows[r], line);
    const C w = rows[r].weight;
    for (std::int64_t i = 0; i < n; ++i) sum[i] += w * next[i];
  }
  return sum;
}

// Resamples a row of single elements. Each output has Taps inputs, or any number if Taps is 0.
template <int Taps, class C>
void resample_elements(const Axis<C>& axis, const C* row, C* out) {
  const std::int32_t* const index = axis.index;
  const C* const weight = axis.weight;
  for (std::int64_t o = 0; o < axis.out; ++o) {
    C sum = 0;
    if constexpr (Taps > 0) {
      sum = weight[o * Taps] * row[index[o * Taps]];
      for (int t = 1; t < Taps; ++t) sum += weight[o * Taps + t] * row[index[o * Taps + t]];
    } else {
      for (std::int32_t t = axis.begin[o]; t < axis.begin[o + 1]; ++t) sum += weight[t] * row[index[t]];
    }
    out[o] = sum;
  }
}

// Resamples a row of pixels of `inner` channels.
template <class C>
void resample_pixels(const Axis<C>& axis, const C* row, std::int64_t inner, C* out) {
  for (std::int64_t o = 0; o < axis.out; ++o) {
    C* const to = out + o * inner;
    std::int32_t t = axis.begin[o];
    const std::int32_t end = axis.begin[o + 1];
    const auto pixel = [&](std::int32_t i) { return row + axis.index[i] * inner; };
    if (t == end) {
      std::fill_n(to, inner, C(0));
      continue;
    }
    if (end - t >= 2) {
      const C *const a = pixel(t), *const b = pixel(t + 1);
      const C wa = axis.weight[t], wb = axis.weight[t + 1];
      for (std::int64_t c = 0; c < inner; ++c) to[c] = wa * a[c] + wb * b[c];
      t += 2;
    } else {
      const C* const a = pixel(t);
      const C w = axis.weight[t];
      for (std::int64_t c = 0; c < inner; ++c) to[c] = w * a[c];
      ++t;
    }
    for (; t < end; ++t) {
      const C* const a = pixel(t);
      const C w = axis.weight[t];
      for (std::int64_t c = 0; c < inner; ++c) to[c] += w * a[c];
    }
  }
}

template <class C>
void resample_row(const Axis<C>& axis, const C* row, std::int64_t inner, C* out) {
  if (!axis.begin) std::copy_n(row, axis.out * inner, out);
  else if (inner > 1) resample_pixels(axis, row, inner, out);
  else if (axis.taps == 1) resample_elements<1>(axis, row, out);
  else if (axis.taps == 2) resample_elements<2>(axis, row, out);
  else if (axis.taps == 4) resample_elements<4>(axis, row, out);
  else resample_elements<0>(axis, row, out);
}

template <class T>
void resample_kernel(const LaunchContext&, const ResampleArgs& a) {
  using C = Compute<T>;
  const Axis<C> depth(a.axes[0]), height(a.axes[1]), width(a.axes[2]);
  const T* const x = a.x.as<T>();
  T* const y = a.y.as<T>();
  const std::int64_t in_row = width.in * a.inner, out_row = width.out * a.inner,
                     planes = depth.out * height.out;
  const std::int64_t work = (depth.in * height.in * in_row) / planes + 4 * out_row;
  parallel_for(a.n * planes, grain_of(work), [&](std::int64_t begin, std::int64_t end) {
    std::vector<C> sum(static_cast<std::size_t>(in_row)), line, result;
    if constexpr (is_half<T>) {
      line.resize(static_cast<std::size_t>(in_row));
      result.resize(static_cast<std::size_t>(out_row));
    }
    std::vector<WeightedRow<C>> rows;
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t n = at / planes, d = at % planes / height.out, h = at % height.out;
      rows.clear();
      depth.for_inputs(d, [&](std::int64_t di, C wd) {
        height.for_inputs(h, [&](std::int64_t hi, C wh) {
          rows.push_back({(n * depth.in + di) * height.in + hi, wd * wh});
        });
      });
      const C* const row = combined(x, rows, in_row, sum.data(), line.data());
      if constexpr (is_half<T>) {
        resample_row(width, row, a.inner, result.data());
        from_float(result.data(), y + at * out_row, out_row);
      } else {
        resample_row(width, row, a.inner, y + at * out_row);
      }
    }
  });
}

const bool filled = for_types<float, double, Half, BFloat16>(
    []<class T> { resample.set(DeviceType::cpu, dtype_of<T>, &resample_kernel<T>); });

}  // namespace
}  // namespace tapestry::kernels::cpu
