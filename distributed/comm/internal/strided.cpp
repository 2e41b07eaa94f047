#include "tapestry/distributed/comm/internal/strided.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

namespace tapestry::distributed {
namespace {

// The lowest and highest offset of an element, in elements, relative to the tensor's first element.
std::pair<std::int64_t, std::int64_t> span(const Tensor& t) {
  std::int64_t low = 0, high = 0;
  for (int i = 0; i < t.dim(); ++i) {
    const std::int64_t reach = (t.sizes()[i] - 1) * t.strides()[i];
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

// Calls f(address, i) for the i-th row of the tensor, where a row runs along the last dimension.
template <class T, class F>
void for_each_row(const Tensor& t, F f) {
  const Shape& sizes = t.sizes();
  const Shape& strides = t.strides();
  const int outer = t.dim() - 1;
  std::int64_t index[kMaxDims] = {}, rows = t.numel() / sizes.back();
  T* row = static_cast<T*>(t.raw_data());
  for (std::int64_t r = 0; r < rows; ++r) {
    f(row, r);
    for (int i = outer - 1; i >= 0; --i) {
      row += strides[i];
      if (++index[i] < sizes[i]) break;
      row -= sizes[i] * strides[i];
      index[i] = 0;
    }
  }
}

template <class T>
void pack(const Tensor& t, T* dense) {
  const std::int64_t n = t.sizes().back(), step = t.strides().back();
  for_each_row<T>(t, [=](const T* row, std::int64_t r) {
    for (std::int64_t i = 0; i < n; ++i) dense[r * n + i] = row[i * step];
  });
}

template <class T>
void unpack(const Tensor& t, const T* dense) {
  const std::int64_t n = t.sizes().back(), step = t.strides().back();
  for_each_row<T>(t, [=](T* row, std::int64_t r) {
    for (std::int64_t i = 0; i < n; ++i) row[i * step] = dense[r * n + i];
  });
}

// Integers that may alias elements of any type.
using Bits8 = std::uint8_t __attribute__((may_alias));
using Bits16 = std::uint16_t __attribute__((may_alias));
using Bits32 = std::uint32_t __attribute__((may_alias));
using Bits64 = std::uint64_t __attribute__((may_alias));

// Calls f(q), where q is `p` as a pointer to unsigned integers that are as wide as elements of `dtype`.
template <class F>
void by_width(DType dtype, void* p, F f) {
  switch (dtype_size(dtype)) {
    case 1:
      return f(static_cast<Bits8*>(p));
    case 2:
      return f(static_cast<Bits16*>(p));
    case 4:
      return f(static_cast<Bits32*>(p));
    default:
      return f(static_cast<Bits64*>(p));
  }
}

}  // namespace

bool may_overlap_itself(const Tensor& t) {
  if (t.numel() <= 1 || t.is_contiguous()) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride and size
  for (int i = 0; i < t.dim(); ++i)
    if (t.sizes()[i] > 1) dims.emplace_back(std::abs(t.strides()[i]), t.sizes()[i]);
  std::sort(dims.begin(), dims.end());
  std::int64_t reach = 0;  // the highest offset that the dimensions with smaller strides reach
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

std::pair<std::intptr_t, std::intptr_t> address_range(const Tensor& t) {
  if (t.numel() == 0) return {0, 0};
  const auto width = static_cast<std::int64_t>(dtype_size(t.dtype()));
  const auto first = reinterpret_cast<std::intptr_t>(t.raw_data());
  const auto [low, high] = span(t);
  return {first + low * width, first + (high + 1) * width};
}

bool may_overlap(const Tensor& a, const Tensor& b) {
  const auto [a_begin, a_end] = address_range(a);
  const auto [b_begin, b_end] = address_range(b);
  return a_begin < b_end && b_begin < a_end;
}

namespace {

// The stride of dimensions [begin, end) as one dimension, if they are one as far as strides go. A dimension
// of one element has the stride 0.
std::optional<std::int64_t> stride_of(const Tensor& t, int begin, int end) {
  std::optional<std::int64_t> step;
  std::int64_t reached = 0;  // the dimensions so far step so many elements further in all
  for (int d = end; d-- > begin;) {
    if (t.sizes()[d] == 1) continue;
    if (!step) step = t.strides()[d];
    else if (t.strides()[d] != reached) return std::nullopt;
    reached = t.strides()[d] * t.sizes()[d];
  }
  return step.value_or(0);
}

// The first of the last dimensions that together are contiguous.
int first_dense(const Tensor& t) {
  std::int64_t run = 1;
  int d = t.dim();
  for (; d > 0 && (t.sizes()[d - 1] == 1 || t.strides()[d - 1] == run); --d) run *= t.sizes()[d - 1];
  return d;
}

}  // namespace

std::optional<std::size_t> block_pitch(const Tensor& t, int blocks) {
  const std::int64_t block = t.numel() / blocks;
  const auto width = static_cast<std::int64_t>(dtype_size(t.dtype()));
  // The innermost dimensions must form runs of whole blocks or of one block. Dimensions outside of the run
  // must be one dimension as far as strides go, with one block per step.
  const int dense = first_dense(t);
  std::int64_t run = 1;
  for (int d = dense; d < t.dim(); ++d) run *= t.sizes()[d];
  if (run == t.numel()) return static_cast<std::size_t>(block * width);
  const auto step = stride_of(t, 0, dense);
  if (run != block || !step || *step < block) return std::nullopt;
  return static_cast<std::size_t>(*step * width);
}

std::optional<RowLayout> row_layout(const Tensor& t, std::int64_t rows) {
  int end = 1;  // of the dimensions that count rows
  for (std::int64_t counted = 1; counted < rows; ++end) counted *= t.sizes()[end];
  if (first_dense(t) > end) return std::nullopt;
  const auto row_step = stride_of(t, 1, end);
  const std::int64_t row = t.numel() / t.sizes()[0] / rows, step = t.sizes()[0] > 1 ? t.strides()[0] : row;
  if (!row_step || (rows > 1 && *row_step < row) || step < row) return std::nullopt;
  const auto width = static_cast<std::int64_t>(dtype_size(t.dtype()));
  return RowLayout{static_cast<std::size_t>(step * width), static_cast<std::size_t>(rows),
                   static_cast<std::size_t>(*row_step * width)};
}

std::optional<RowLayout> row_layout(const Tensor& t) {
  const int begin = first_dense(t);
  std::int64_t rows = 1;
  for (int d = 0; d < begin; ++d) rows *= t.sizes()[d];
  const auto step = stride_of(t, 0, begin);
  if (!step || (rows > 1 && *step < t.numel() / rows)) return std::nullopt;
  return RowLayout{0, static_cast<std::size_t>(rows),
                   static_cast<std::size_t>(*step) * dtype_size(t.dtype())};
}

Tensor blocks_along(const Tensor& t, int dim, int blocks) {
  const std::int64_t each = t.size(dim) / blocks;
  Shape sizes{blocks}, strides{each * t.strides()[dim]};
  for (int d = 0; d < t.dim(); ++d) {
    sizes.push_back(d == dim ? each : t.sizes()[d]);
    strides.push_back(t.strides()[d]);
  }
  return detail::raw_view(t, sizes, strides, t.storage_offset());
}

Dense::Dense(const Tensor& t, Fill fill) : t_(t) {
  if (t.is_contiguous() && fill != Fill::copy) return;
  copy_ = std::make_unique_for_overwrite<std::byte[]>(t.nbytes());
  if (fill == Fill::no || t.numel() == 0) return;
  by_width(t.dtype(), copy_.get(), [&](auto* dense) {
    if (t.is_contiguous()) std::copy_n(static_cast<decltype(dense)>(t.raw_data()), t.numel(), dense);
    else pack(t, dense);
  });
}

void Dense::store() const {
  if (!copy_ || t_.numel() == 0) return;
  by_width(t_.dtype(), copy_.get(), [this](auto* dense) {
    if (t_.is_contiguous()) std::copy_n(dense, t_.numel(), static_cast<decltype(dense)>(t_.raw_data()));
    else unpack(t_, dense);
  });
}

}  // namespace tapestry::distributed
