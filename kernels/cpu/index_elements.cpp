// CPU kernels that read, write and combine elements by index. The indices of a row are checked first, by code
// that does not depend on the dtype. The kernels then use the indices themselves, or, in rarer cases, offsets
// that were computed from them.
#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/first_bad.h"
#include "tapestry/kernels/ops/index.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kIndexedRow = 256;

// n elements along the last dimension. Their offsets in x are:
//   with `values`:   x + i * x_stride + values[i] * scale; these indices are valid
//   with `offsets`:  offsets[i], or -1 for an invalid index; n is at most kIndexedRow
//   with neither:    x + i * x_stride
struct IndexedRow {
  std::int64_t n, x, x_stride, y, y_stride;
  const std::int64_t* offsets = nullptr;
  const std::int64_t* values = nullptr;
  std::int64_t scale = 0;
};
using IndexedRowFn = void (*)(const void* context, const IndexedRow& row);

// Maps an index that counts from the end to the beginning, and says whether it is valid.
bool resolve_index(const Indexed::Index& index, bool wraps, std::int64_t& value) {
  if (wraps && value < 0) value += index.size;
  return value >= 0 && value < index.size;
}

// Visits the part of the loop dimensions where the coordinate of `dim` is in [begin, end), row by row.
class IndexedWalk {
 public:
  IndexedWalk(const Indexed& at, FirstBad& bad) : at_(at), bad_(bad) {
    std::int64_t step = 1;
    for (int d = at.ndim - 1; d >= 0; --d) {
      const bool counts = d >= at.first && d < at.end;
      position_strides_[d] = counts ? step : 0;
      if (counts) step *= at.sizes[d];
      sizes_[d] = at.sizes[d];
    }
    for (int k = 0; k < at.count; ++k) index_[k] = at.index[k].values;
  }

  // Skips the rows whose first index is not in [begin, end). Only plain rows can be skipped.
  void only(std::int64_t begin, std::int64_t end) { least_ = begin, end_ = end; }

  void run(int dim, std::int64_t begin, std::int64_t end, IndexedRowFn fn, const void* context) {
    sizes_[dim] = end - begin;
    move(dim, begin);
    const int last = at_.ndim - 1;
    const bool indexed = last < at_.end;
    std::int64_t coordinate[kMaxDims] = {};
    while (true) {
      if (indexed) indexed_row(fn, context);
      else plain_row(fn, context);
      int d = last - 1;
      for (; d >= 0; --d) {
        const bool wraps = ++coordinate[d] == sizes_[d];
        move(d, wraps ? 1 - sizes_[d] : 1);
        if (!wraps) break;
        coordinate[d] = 0;
      }
      if (d < 0) return;
    }
  }

 private:
  void move(int d, std::int64_t steps) {
    x_ += steps * at_.x_strides[d];
    y_ += steps * at_.y_strides[d];
    position_ += steps * position_strides_[d];
    for (int k = 0; k < at_.count; ++k) index_[k] += steps * at_.index[k].strides[d];
  }

  // All elements of the row have the same indices.
  void plain_row(IndexedRowFn fn, const void* context) {
    const int last = at_.ndim - 1;
    std::int64_t x = x_;
    for (int k = 0; k < at_.count; ++k) {
      std::int64_t value = *index_[k];
      if (!resolve_index(at_.index[k], at_.wraps, value)) return bad_.report(position_);
      if (k == 0 && (value < least_ || value >= end_)) return;
      x += value * at_.index[k].x_stride;
    }
    fn(context, {.n = sizes_[last],
                 .x = x,
                 .x_stride = at_.x_strides[last],
                 .y = y_,
                 .y_stride = at_.y_strides[last]});
  }

  void indexed_row(IndexedRowFn fn, const void* context) {
    const int last = at_.ndim - 1;
    const std::int64_t x_stride = at_.x_strides[last], y_stride = at_.y_strides[last];
    const bool direct = at_.count == 1 && at_.index[0].strides[last] == 1;
    std::int64_t offsets[kIndexedRow];
    for (std::int64_t begin = 0; begin < sizes_[last]; begin += kIndexedRow) {
      const std::int64_t n = std::min(kIndexedRow, sizes_[last] - begin);
      const std::int64_t y = y_ + begin * y_stride;
      const std::int64_t* const values = index_[0] + begin;
      if (direct && all_inside(values, n, at_.index[0].size)) {
        fn(context, {.n = n,
                     .x = x_ + begin * x_stride,
                     .x_stride = x_stride,
                     .y = y,
                     .y_stride = y_stride,
                     .values = values,
                     .scale = at_.index[0].x_stride});
        continue;
      }
      fill(begin, n, offsets);
      fn(context, {.n = n, .x = 0, .x_stride = 0, .y = y, .y_stride = y_stride, .offsets = offsets});
    }
  }

  // Whether all values are in [0, size): the sign bit of `signs` is set if a value or size - 1 - value is
  // negative. AVX2 has no comparison of unsigned integers.
  static bool all_inside(const std::int64_t* values, std::int64_t n, std::int64_t size) {
    const auto highest = static_cast<std::uint64_t>(size - 1);
    std::uint64_t signs = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<std::uint64_t>(values[i]);
      signs |= value | (highest - value);
    }
    return signs >> 63 == 0;
  }

  void fill(std::int64_t begin, std::int64_t n, std::int64_t* offsets) const {
    const int last = at_.ndim - 1;
    for (std::int64_t i = 0; i < n; ++i) offsets[i] = x_ + (begin + i) * at_.x_strides[last];
    bool valid = true;
    for (int k = 0; k < at_.count; ++k) {
      const Indexed::Index& index = at_.index[k];
      const std::int64_t* const values = index_[k] + begin * index.strides[last];
      const auto add = [&](std::int64_t stride, std::int64_t x_stride) {
        const std::int64_t wrap = at_.wraps ? index.size : 0;
        std::uint64_t outside = 0;
        for (std::int64_t i = 0; i < n; ++i) {
          std::int64_t value = values[i * stride];
          value += value < 0 ? wrap : 0;
          // Unsigned arithmetic, because the product of an invalid index may overflow.
          const auto bits = static_cast<std::uint64_t>(value);
          outside |= bits >= static_cast<std::uint64_t>(index.size);
          offsets[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(offsets[i]) +
                                                 bits * static_cast<std::uint64_t>(x_stride));
        }
        return outside == 0;
      };
      // AVX2 has no multiplication of 64-bit integers, so a stride of 1 has a loop of its own.
      if (index.strides[last] != 1) valid &= add(index.strides[last], index.x_stride);
      else valid &= index.x_stride == 1 ? add(1, 1) : add(1, index.x_stride);
    }
    if (valid) return;
    for (std::int64_t i = 0; i < n; ++i)
      for (int k = 0; k < at_.count; ++k) {
        std::int64_t value = index_[k][(begin + i) * at_.index[k].strides[last]];
        if (resolve_index(at_.index[k], at_.wraps, value)) continue;
        offsets[i] = -1;
        bad_.report(position_ + (begin + i) * position_strides_[last]);
      }
  }

  const Indexed& at_;
  FirstBad& bad_;
  std::int64_t sizes_[kMaxDims] = {}, position_strides_[kMaxDims] = {};
  std::int64_t x_ = 0, y_ = 0, position_ = 0;
  const std::int64_t* index_[kMaxDims] = {};
  std::int64_t least_ = 0, end_ = std::numeric_limits<std::int64_t>::max();
};

// Whether the threads should divide the index's dimension of x, and each thread visit only the rows with its
// own indices. Each thread then writes one part of x, which is usually the part that it has just copied, so
// it is in that core's cache. It pays if every row has one index, rows are long, and the indices are spread
// evenly.
bool divides_by_index(const Indexed& at, std::int64_t total) {
  constexpr std::int64_t kLong = 64;
  const int last = at.ndim - 1;
  if (at.count != 1 || at.end != at.first + 1 || at.end > last || at.sizes[last] < kLong) return false;
  const Indexed::Index& index = at.index[0];
  const Partition parts(index.size, grain_of(total / index.size), compute_threads());
  if (parts.count < 2) return false;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(parts.count));
  const std::int64_t n = at.sizes[at.first], stride = index.strides[at.first];
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t value = index.values[i * stride];
    if (resolve_index(index, at.wraps, value)) ++rows[static_cast<std::size_t>(value / parts.size)];
  }
  return *std::max_element(rows.begin(), rows.end()) * parts.count <= n + n / 4;
}

// Calls fn for all rows, in parallel. If several elements of y may belong to one element of x, the threads
// divide a dimension along which x has coordinates of its own, so that each thread has all elements that
// belong to its elements of x. If there is no such dimension, one thread does all the work.
void for_indexed_rows(const Indexed& at, bool any_dim, IndexedRowFn fn, const void* context) {
  int dim = -1;
  std::int64_t total = 1;
  for (int d = 0; d < at.ndim; ++d) {
    total *= at.sizes[d];
    if (!any_dim && at.x_strides[d] == 0) continue;
    constexpr std::int64_t kEnough = 256;
    if (dim < 0 || (at.sizes[dim] < kEnough && at.sizes[d] > at.sizes[dim])) dim = d;
  }
  FirstBad bad(at.first_bad);
  if (!any_dim && divides_by_index(at, total)) {
    const std::int64_t size = at.index[0].size;
    return parallel_for(size, grain_of(total / size), [&](std::int64_t begin, std::int64_t end) {
      IndexedWalk walk(at, bad);
      walk.only(begin, end);
      walk.run(0, 0, at.sizes[0], fn, context);
    });
  }
  if (dim < 0) return IndexedWalk(at, bad).run(0, 0, at.sizes[0], fn, context);
  parallel_for(at.sizes[dim], grain_of(total / at.sizes[dim]), [&](std::int64_t begin, std::int64_t end) {
    IndexedWalk(at, bad).run(dim, begin, end, fn, context);
  });
}

// Calls f(element of y, offset in x) for the elements of a row that are not contiguous in both arrays.
template <class F>
inline void visit_row(const IndexedRow& r, const F& f) {
  const std::int64_t n = r.n, x = r.x, x_stride = r.x_stride, y_stride = r.y_stride, scale = r.scale;
  if (r.values && x_stride == 0 && scale == 1 && y_stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) f(i, x + r.values[i]);
  } else if (r.values) {
    for (std::int64_t i = 0; i < n; ++i) f(i * y_stride, x + i * x_stride + r.values[i] * scale);
  } else if (r.offsets) {
    for (std::int64_t i = 0; i < n; ++i)
      if (r.offsets[i] >= 0) f(i * y_stride, r.offsets[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) f(i * y_stride, x + i * x_stride);
  }
}
bool contiguous(const IndexedRow& r) { return !r.values && !r.offsets && r.x_stride == 1 && r.y_stride == 1; }

// ---- kernels that move elements: one per element size

template <class Bits>
struct MoveArrays {
  const Bits* from;
  Bits* to;
};

template <class Bits>
void read_row(const void* context, const IndexedRow& r) {
  const auto& [from, to] = *static_cast<const MoveArrays<Bits>*>(context);
  if (contiguous(r)) std::copy_n(from + r.x, r.n, to + r.y);
  else visit_row(r, [x = from, y = to + r.y](std::int64_t i, std::int64_t offset) { y[i] = x[offset]; });
}
template <class Bits>
void write_row(const void* context, const IndexedRow& r) {
  const auto& [from, to] = *static_cast<const MoveArrays<Bits>*>(context);
  if (contiguous(r)) std::copy_n(from + r.y, r.n, to + r.x);
  else visit_row(r, [x = to, y = from + r.y](std::int64_t i, std::int64_t offset) { x[offset] = y[i]; });
}

template <class Bits>
void read_kernel(const LaunchContext&, const IndexedReadArgs& a) {
  const MoveArrays<Bits> arrays{static_cast<const Bits*>(a.x.address()), static_cast<Bits*>(a.y.address())};
  for_indexed_rows(a.at, true, &read_row<Bits>, &arrays);
}
template <class Bits>
void write_kernel(const LaunchContext&, const IndexedWriteArgs& a) {
  const MoveArrays<Bits> arrays{static_cast<const Bits*>(a.y.address()), static_cast<Bits*>(a.x.address())};
  for_indexed_rows(a.at, a.unique, &write_row<Bits>, &arrays);
}

// ---- kernels that compute: one per dtype

template <Combine op, class C>
C combined(C a, C b) {
  if constexpr (op == Combine::maximum || op == Combine::minimum) {
    // Two selections instead of one condition with ||, which would become a branch that is often
    // mispredicted.
    const C better = (op == Combine::maximum ? b > a : b < a) ? b : a;
    return b != b ? b : better;
  } else if constexpr (std::is_integral_v<C>) {
    const auto ua = static_cast<std::uint64_t>(a), ub = static_cast<std::uint64_t>(b);
    return static_cast<C>(op == Combine::sum ? ua + ub : ua * ub);
  } else {
    return op == Combine::sum ? a + b : a * b;
  }
}

template <class T>
struct CombineArrays {
  const T* y;
  Compute<T>* x;
};
template <class T, Combine op>
void combine_row(const void* context, const IndexedRow& r) {
  const auto& arrays = *static_cast<const CombineArrays<T>*>(context);
  const T* const y = arrays.y + r.y;
  Compute<T>* const x = arrays.x;
  if (contiguous(r)) {
    Compute<T>* const to = x + r.x;
    for (std::int64_t i = 0; i < r.n; ++i) to[i] = combined<op>(to[i], load(y[i]));
    return;
  }
  visit_row(r,
            [x, y](std::int64_t i, std::int64_t offset) { x[offset] = combined<op>(x[offset], load(y[i])); });
}

template <class T>
void combine_kernel(const LaunchContext&, const IndexedCombineArgs& a) {
  const CombineArrays<T> arrays{a.y.as<T>(), a.x.as<Compute<T>>()};
  constexpr IndexedRowFn rows[] = {&combine_row<T, Combine::sum>, &combine_row<T, Combine::product>,
                                   &combine_row<T, Combine::maximum>, &combine_row<T, Combine::minimum>};
  for_indexed_rows(a.at, false, rows[static_cast<int>(a.op)], &arrays);
}

template <class Bits, class... Ts>
void set_moves() {
  for_types<Ts...>([]<class T> {
    static_assert(sizeof(T) == sizeof(Bits));
    indexed_read.set(DeviceType::cpu, dtype_of<T>, &read_kernel<Bits>);
    indexed_write.set(DeviceType::cpu, dtype_of<T>, &write_kernel<Bits>);
  });
}

const bool filled = [] {
  set_moves<std::uint64_t, double, std::int64_t>();
  set_moves<std::uint32_t, float, std::int32_t>();
  set_moves<std::uint16_t, Half, BFloat16>();
  set_moves<std::uint8_t, std::uint8_t, bool>();
  return for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t>(
      []<class T> { indexed_combine.set(DeviceType::cpu, dtype_of<T>, &combine_kernel<T>); });
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
