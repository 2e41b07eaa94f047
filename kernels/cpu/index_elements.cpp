// CPU kernels that read, write and combine elements by index. The offsets of a row's elements are computed
// first, by code that does not depend on the dtype.
#include <algorithm>
#include <type_traits>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/first_bad.h"
#include "tapestry/kernels/ops/index.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr std::int64_t kIndexedRow = 256;

// n elements along the last dimension. If `offsets` is null, their offsets in x begin at `x` and have
// x_stride. Otherwise n is at most kIndexedRow, and `offsets` has the offset of each element in x, or -1 if
// its index is invalid, which only happens if not `all_valid`.
struct IndexedRow {
  std::int64_t n, x, x_stride, y, y_stride;
  const std::int64_t* offsets;
  bool all_valid = true;

  // The usual rows, whose loops need no multiplication and no branch.
  bool simple() const { return all_valid && y_stride == 1; }
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
      x += value * at_.index[k].x_stride;
    }
    fn(context, {sizes_[last], x, at_.x_strides[last], y_, at_.y_strides[last], nullptr});
  }

  void indexed_row(IndexedRowFn fn, const void* context) {
    const int last = at_.ndim - 1;
    std::int64_t offsets[kIndexedRow];
    for (std::int64_t begin = 0; begin < sizes_[last]; begin += kIndexedRow) {
      const std::int64_t n = std::min(kIndexedRow, sizes_[last] - begin);
      const bool all_valid = fill(begin, n, offsets);
      fn(context, {n, 0, 0, y_ + begin * at_.y_strides[last], at_.y_strides[last], offsets, all_valid});
    }
  }

  // Returns whether all indices are valid.
  bool fill(std::int64_t begin, std::int64_t n, std::int64_t* offsets) const {
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
    if (valid) return true;
    for (std::int64_t i = 0; i < n; ++i)
      for (int k = 0; k < at_.count; ++k) {
        std::int64_t value = index_[k][(begin + i) * at_.index[k].strides[last]];
        if (resolve_index(at_.index[k], at_.wraps, value)) continue;
        offsets[i] = -1;
        bad_.report(position_ + (begin + i) * position_strides_[last]);
      }
    return false;
  }

  const Indexed& at_;
  FirstBad& bad_;
  std::int64_t sizes_[kMaxDims] = {}, position_strides_[kMaxDims] = {};
  std::int64_t x_ = 0, y_ = 0, position_ = 0;
  const std::int64_t* index_[kMaxDims] = {};
};

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
  if (dim < 0) return IndexedWalk(at, bad).run(0, 0, at.sizes[0], fn, context);
  parallel_for(at.sizes[dim], grain_of(total / at.sizes[dim]), [&](std::int64_t begin, std::int64_t end) {
    IndexedWalk(at, bad).run(dim, begin, end, fn, context);
  });
}

// ---- kernels that move elements: one per element size

template <class Bits>
struct MoveArrays {
  const Bits* from;
  Bits* to;
};

template <class Bits>
void read_row(const void* context, const IndexedRow& r) {
  const auto& [from, to] = *static_cast<const MoveArrays<Bits>*>(context);
  Bits* const y = to + r.y;
  if (r.offsets && r.simple()) {
    for (std::int64_t i = 0; i < r.n; ++i) y[i] = from[r.offsets[i]];
  } else if (r.offsets) {
    for (std::int64_t i = 0; i < r.n; ++i)
      if (r.offsets[i] >= 0) y[i * r.y_stride] = from[r.offsets[i]];
  } else if (r.x_stride == 1 && r.y_stride == 1) {
    std::copy_n(from + r.x, r.n, y);
  } else {
    for (std::int64_t i = 0; i < r.n; ++i) y[i * r.y_stride] = from[r.x + i * r.x_stride];
  }
}
template <class Bits>
void write_row(const void* context, const IndexedRow& r) {
  const auto& [from, to] = *static_cast<const MoveArrays<Bits>*>(context);
  const Bits* const y = from + r.y;
  if (r.offsets && r.simple()) {
    for (std::int64_t i = 0; i < r.n; ++i) to[r.offsets[i]] = y[i];
  } else if (r.offsets) {
    for (std::int64_t i = 0; i < r.n; ++i)
      if (r.offsets[i] >= 0) to[r.offsets[i]] = y[i * r.y_stride];
  } else if (r.x_stride == 1 && r.y_stride == 1) {
    std::copy_n(y, r.n, to + r.x);
  } else {
    for (std::int64_t i = 0; i < r.n; ++i) to[r.x + i * r.x_stride] = y[i * r.y_stride];
  }
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
  const auto combine = [y](Compute<T>& to, std::int64_t i) { to = combined<op>(to, load(y[i])); };
  if (r.offsets && r.simple()) {
    for (std::int64_t i = 0; i < r.n; ++i) combine(x[r.offsets[i]], i);
    return;
  }
  if (!r.offsets && r.x_stride == 1 && r.y_stride == 1) {
    Compute<T>* const to = x + r.x;
    for (std::int64_t i = 0; i < r.n; ++i) combine(to[i], i);
    return;
  }
  for (std::int64_t i = 0; i < r.n; ++i) {
    const std::int64_t to = r.offsets ? r.offsets[i] : r.x + i * r.x_stride;
    if (to >= 0) x[to] = combined<op>(x[to], load(y[i * r.y_stride]));
  }
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
