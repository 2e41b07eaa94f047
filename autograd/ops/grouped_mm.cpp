#include "tapestry/autograd/ops/grouped_mm.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/matmul.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/internal/capture_state.h"

namespace tapestry {
namespace {

using autograd::save_if;
using detail::raw_view;

const autograd::Op kGroupedMm("grouped_mm", autograd::Grad::twice, kFloats);

// The end of each group. Nodes of the tape share it.
using Ends = std::shared_ptr<const std::vector<std::int64_t>>;

Ends ends_of(const Tensor& offs, std::int64_t rows) {
  const char* const op = kGroupedMm.name;
  detail::check_host_reads(op, offs);
  std::vector<std::int64_t> ends = offs.detach().to_vector<std::int64_t>();
  std::int64_t last = 0;
  for (std::size_t g = 0; g < ends.size(); ++g) {
    check(ends[g] >= last, "[", op, "] offs[", g, "] is ", ends[g], ", but group ", g, " begins at row ",
          last, "; offs are the ends of the groups, and must not decrease");
    last = ends[g];
  }
  check(last == rows, "[", op, "] offs end at row ", last, ", but there are ", rows,
        " rows; let the last group end at ", rows, ", or narrow() the operand to the rows of the groups");
  return std::make_shared<const std::vector<std::int64_t>>(std::move(ends));
}

// Rows or columns of a matrix. A part of size 0 begins at 0, so that it lies inside of the matrix.
Tensor part(const Tensor& t, int dim, std::int64_t begin, std::int64_t count) {
  Shape sizes = t.sizes();
  sizes[dim] = count;
  return raw_view(t, sizes, t.strides(), t.storage_offset() + (count > 0 ? begin * t.strides()[dim] : 0));
}
Tensor matrix(const Tensor& t, std::int64_t index) {
  return raw_view(t, {t.sizes()[1], t.sizes()[2]}, {t.strides()[1], t.strides()[2]},
                  t.storage_offset() + index * t.strides()[0]);
}

// All arguments are checked. `ends` is null on the meta device, which has no elements. The function records
// itself. Its gradients are grouped products too, so a pass with create_graph records these.
Tensor multiply(const Tensor& a, const Tensor& b, std::int64_t groups, const Ends& ends) {
  const bool inner = b.dim() == 2;  // the groups cut the inner dimension
  const Shape sizes = inner ? Shape{groups, a.sizes()[0], b.sizes()[1]} : Shape{a.sizes()[0], b.sizes()[2]};
  const Tensor y = empty(sizes, {a.dtype(), a.device()});
  if (ends && y.numel() > 0) {
    std::int64_t begin = 0;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t end = (*ends)[static_cast<std::size_t>(g)], count = end - begin;
      if (inner) autograd::product_into(matrix(y, g), part(a, 1, begin, count), part(b, 0, begin, count));
      else if (count > 0)
        autograd::product_into(part(y, 0, begin, count), part(a, 0, begin, count), matrix(b, g));
      begin = end;
    }
  }
  if (autograd::recording(a, b)) {
    // The gradient of transposed matrices, such as a layer's weights (E, N, K), gets their layout.
    const bool columns = !inner && b.strides()[1] == 1 && b.strides()[2] != 1;
    autograd::record(
        kGroupedMm, y, {&a, &b},
        [a = save_if(b, a), b = save_if(a, b), inner, columns, groups, ends](autograd::Backward& back) {
          const Tensor& g = back.grad();
          if (back.needs(0)) {
            const Tensor right = back.saved(b);
            back.set(0, inner ? transpose(multiply(right, transpose(g, 1, 2), groups, ends), 0, 1)
                              : multiply(g, transpose(right, 1, 2), groups, ends));
          }
          if (back.needs(1)) {
            const Tensor left = back.saved(a);
            back.set(1, columns ? transpose(multiply(transpose(g, 0, 1), left, groups, ends), 1, 2)
                                : multiply(transpose(left, 0, 1), g, groups, ends));
          }
        });
  }
  return y;
}

}  // namespace

Tensor grouped_mm(const Tensor& a, const Tensor& b, const Tensor& offs) {
  if (const autograd::Autocast cast(kGroupedMm, a, b); cast) return grouped_mm(cast(a), cast(b), offs);
  const char* const op = kGroupedMm.name;
  detail::check_defined(op, a, "left operand");
  detail::check_defined(op, b, "right operand");
  detail::check_defined(op, offs, "offs");
  kGroupedMm.check_dtype(a.dtype());
  check<TypeError>(a.dtype() == b.dtype(), "[", op, "] dtypes ", a.dtype(), " and ", b.dtype(),
                   " differ; convert one with to(dtype)");
  check<DeviceError>(a.device() == b.device(), "[", op, "] operands are on ", a.device(), " and ", b.device(),
                     "; move one with to(device)");
  check<TypeError>(offs.dtype() == DType::i32 || offs.dtype() == DType::i64, "[", op, "] offs are ",
                   offs.dtype(), "; they must be i32 or i64");
  check(a.dim() == 2 && (b.dim() == 2 || b.dim() == 3), "[", op, "] shapes ", a.sizes(), " and ", b.sizes(),
        "; expected (T, K) and (E, K, N), or (M, T) and (T, N); bmm() multiplies groups of equal size");
  const std::int64_t inner = b.dim() == 3 ? b.sizes()[1] : b.sizes()[0];
  check(a.sizes()[1] == inner, "[", op, "] shapes ", a.sizes(), " and ", b.sizes(),
        " do not fit: ", a.sizes()[1], " columns on the left, ", inner,
        " rows on the right; they must be equal");
  check(offs.dim() == 1, "[", op, "] offs have shape ", offs.sizes(),
        "; expected one dimension, with the end of each group");
  const std::int64_t groups = offs.sizes()[0];
  check(b.dim() == 2 || groups == b.sizes()[0], "[", op, "] offs end ", groups, " groups, but there are ",
        b.sizes()[0], " matrices; give the end of the rows of each matrix");
  const std::int64_t rows = b.dim() == 3 ? a.sizes()[0] : inner;
  return multiply(a, b, groups, a.device().is_meta() ? nullptr : ends_of(offs, rows));
}

}  // namespace tapestry
