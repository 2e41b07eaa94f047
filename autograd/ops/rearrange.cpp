// Copies with the elements in other places. roll and diag_embed move the elements themselves; the
// others are made of existing operations.
#include "tapestry/autograd/ops/rearrange.h"

#include <algorithm>
#include <vector>

#include "tapestry/autograd/deferred.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/bad_index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/parts.h"
#include "tapestry/autograd/ops/pad.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::planned;
using autograd::raw_diagonal;
using autograd::raw_part;
using autograd::result_like;
using detail::check_defined;

const Op kRoll("roll", Grad::twice, kAllDTypes);
const Op kRot90("rot90", Grad::twice, kAllDTypes);
const Op kRepeat("repeat", Grad::twice, kAllDTypes);
const Op kRepeatInterleave("repeat_interleave", Grad::twice, kAllDTypes);
const Op kDiag("diag", Grad::twice, kAllDTypes);
const Op kDiagEmbed("diag_embed", Grad::twice, kAllDTypes);
const Op kTril("tril", Grad::twice, kAllDTypes);
const Op kTriu("triu", Grad::twice, kAllDTypes);
const Op kBlockDiag("block_diag", Grad::twice, kAllDTypes);
const Op kTrilIndices("tril_indices", Grad::none, bit(DType::i64) | bit(DType::i32));
const Op kTriuIndices("triu_indices", Grad::none, bit(DType::i64) | bit(DType::i32));

// Copies x to y, rolled by shifts[d] along each dimension from d on. Both are split in two parts along d, and
// the parts change places. 0 <= shifts[d] < size.
void copy_rolled(const Tensor& y, const Tensor& x, const Shape& shifts, int d) {
  while (d < x.dim() && shifts[d] == 0) ++d;
  if (d == x.dim()) return kernels::copy(y.device(), y.dtype(), planned(y, x));
  const std::int64_t shift = shifts[d], rest = x.sizes()[d] - shift;
  copy_rolled(raw_part(y, {.dim = d, .start = shift, .length = rest}),
              raw_part(x, {.dim = d, .start = 0, .length = rest}), shifts, d + 1);
  copy_rolled(raw_part(y, {.dim = d, .start = 0, .length = shift}),
              raw_part(x, {.dim = d, .start = rest, .length = shift}), shifts, d + 1);
}
Tensor rolled(const Tensor& x, const Shape& shifts) {
  const Tensor y = result_like(x.sizes(), x.dtype(), {&x});
  if (x.numel() > 0) copy_rolled(y, x, shifts, 0);
  return y;
}

Tensor recorded_roll(const Tensor& x, const Shape& shifts, const Shape& back) {
  const Tensor y = rolled(x, shifts);
  if (autograd::recording(x))
    autograd::record(kRoll, y, {&x},
                     [shifts, back](Backward& b) { b.set(0, recorded_roll(b.grad(), back, shifts)); });
  return y;
}

// A copy of `x`, which has been expanded, with shape `sizes`.
Tensor copied_as(const Tensor& x, const Shape& sizes) {
  const Tensor y = reshape(x, sizes);
  return y.storage() == x.storage() ? clone(y) : y;
}

// `length` repeated `times`, as a size of the result.
std::int64_t repeated_size(const Op& op, std::int64_t length, std::int64_t times) {
  std::int64_t size = 0;
  check(times >= 0, "[", op.name, "] ", times, " repeats; give 0 or more");
  check(!__builtin_mul_overflow(length, times, &size), "[", op.name, "] ", times, " repeats of ", length,
        " entries are more than 64 bits can count; ask for fewer");
  return size;
}

// Repeats x along one dimension: the dimension as a whole, or with `each`, each of its entries.
Tensor repeated(const Op& op, const Tensor& x, int dim, std::int64_t times, bool each) {
  std::int64_t outer = 1, inner = 1;
  for (int d = 0; d < x.dim(); ++d) {
    if (d < dim) outer *= x.sizes()[d];
    if (d > dim) inner *= x.sizes()[d];
  }
  Shape to = x.sizes();
  const std::int64_t length = x.sizes()[dim];
  to[dim] = repeated_size(op, length, times);
  checked_numel(op.name, to);
  const Tensor split = reshape(x, each ? Shape{outer, length, 1, inner} : Shape{outer, 1, length, inner});
  return copied_as(
      expand(split, each ? Shape{outer, length, times, inner} : Shape{outer, times, length, inner}), to);
}

// Broadcasts to the matrices of x: true in the triangle that includes the diagonal.
Tensor triangle(const Tensor& x, std::int64_t diagonal, bool lower) {
  const std::int64_t rows = x.size(-2), cols = x.size(-1);
  diagonal = std::clamp(diagonal, -rows, cols);  // the same triangle, and no sum overflows
  const TensorOptions options(DType::i64, x.device());
  const Tensor ends = unsqueeze(arange(diagonal, diagonal + rows, 1, options), 1);
  const Tensor columns = arange(cols, options);
  return lower ? le(columns, ends) : ge(columns, ends);
}
Tensor kept(const Op& op, const Tensor& x, std::int64_t diagonal, bool lower) {
  check_defined(op.name, x);
  check(x.dim() >= 2, "[", op.name, "] a tensor of shape ", x.sizes(), " has no matrices; give at least 2-d");
  const Tensor zero = zeros({x.size(-1)}, TensorOptions(x.dtype(), x.device()));
  return where(triangle(x, diagonal, lower), x, zero);
}

// The elements of the lower triangle of a rows x cols matrix, up to diagonal `offset`.
std::int64_t triangle_numel(std::int64_t rows, std::int64_t cols, std::int64_t offset) {
  // Row i has i + offset + 1 of them, limited to [0, cols].
  const std::int64_t first = std::clamp<std::int64_t>(-offset, 0, rows);  // the rows before have none
  const std::int64_t full = std::clamp<std::int64_t>(cols - offset - 1, first, rows);
  const __int128 growing = static_cast<__int128>(full - first) * (first + full + 2 * offset + 1) / 2;
  return static_cast<std::int64_t>(growing) + (rows - full) * cols;
}

Tensor triangle_indices(const Op& op, std::int64_t rows, std::int64_t cols, std::int64_t offset, bool lower,
                        const TensorOptions& options) {
  const std::int64_t all = checked_numel(op.name, {rows, cols});
  const DType dtype = options.dtype.value_or(DType::i64);
  op.check_dtype(dtype);
  check<AutogradError>(!options.requires_grad, "[", op.name, "] integers have no gradient");
  offset = std::clamp(offset, -rows, cols);
  const std::int64_t count =
      lower ? triangle_numel(rows, cols, offset) : all - triangle_numel(rows, cols, offset - 1);
  checked_numel(op.name, {2, count});
  // Allocated first, so that more indices than the memory holds are an error before any is computed.
  const Tensor indices = empty({2, count}, {DType::i64, kCPU});
  std::int64_t* row = indices.data<std::int64_t>();
  std::int64_t* column = row + count;
  const std::int64_t* const end_of_rows = row + count;
  for (std::int64_t i = lower ? std::clamp<std::int64_t>(-offset, 0, rows) : 0; row != end_of_rows; ++i) {
    const std::int64_t end = std::clamp<std::int64_t>(i + offset + (lower ? 1 : 0), 0, cols);
    for (std::int64_t j = lower ? 0 : end; j < (lower ? end : cols); ++j) {
      *row++ = i;
      *column++ = j;
    }
  }
  const Device device = options.device.value_or(current_context().device);
  if (!device.is_meta()) return indices.to(device, dtype);
  const Tensor deferred = empty({2, count}, {dtype, device});
  autograd::defer_values(op.name, deferred, {indices},
                         [](const Tensor& t, const std::vector<Tensor>& v) { t.copy_(v[0]); });
  return deferred;
}

}  // namespace

Tensor roll(const Tensor& x, const Shape& shifts, const Dims& dims) {
  check_defined("roll", x);
  if (dims.empty() && shifts.size() == 1) return reshape(roll(flatten(x), shifts, {0}), x.sizes());
  check(shifts.size() == dims.size() && !dims.empty(), "[roll] ", shifts.size(), " shifts ", shifts, " for ",
        dims.size(), " dimensions ", dims, "; give one shift per dimension");
  check<IndexError>(x.dim() > 0, "[roll] a 0-d tensor has no dimension ", dims[0], "; leave dims out");
  Shape forward = Shape::filled(x.dim(), 0), back = forward;
  for (int i = 0; i < dims.size(); ++i) {
    const int d = wrap_dim("roll", dims[i], x.dim());
    const std::int64_t size = std::max<std::int64_t>(x.sizes()[d], 1);
    forward[d] = (forward[d] + (shifts[i] % size + size) % size) % size;
    back[d] = (size - forward[d]) % size;
  }
  return recorded_roll(x, forward, back);
}
Tensor Tensor::roll(const Shape& shifts, const Dims& dims) const {
  return tapestry::roll(*this, shifts, dims);
}

Tensor rot90(const Tensor& x, std::int64_t k, const Dims& dims) {
  check_defined("rot90", x);
  check(dims.size() == 2 && x.dim() >= 2, "[rot90] dimensions ", dims, " of a tensor of shape ", x.sizes(),
        "; name two dimensions");
  const int a = wrap_dim("rot90", dims[0], x.dim()), b = wrap_dim("rot90", dims[1], x.dim());
  check(a != b, "[rot90] dimensions ", dims, " are the same; name two");
  switch ((k % 4 + 4) % 4) {
    case 1:
      return flip(transpose(x, a, b), a);
    case 2:
      return flip(x, {a, b});
    case 3:
      return flip(transpose(x, a, b), b);
    default:
      return clone(x);
  }
}
Tensor Tensor::rot90(std::int64_t k, const Dims& dims) const { return tapestry::rot90(*this, k, dims); }

Tensor repeat(const Tensor& x, const Shape& repeats) {
  check_defined("repeat", x);
  const int extra = repeats.size() - x.dim();
  check(extra >= 0, "[repeat] ", repeats.size(), " repeats ", repeats, " for a tensor of shape ", x.sizes(),
        "; give one per dimension, or use tile()");
  // Dimension i of n entries becomes two dimensions, of sizes repeats[i] and n, and then one of their
  // product. A dimension that is not repeated, or of size 1, stays one.
  Shape sizes, to = repeats;
  std::vector<std::int64_t> split, expanded;
  for (int i = 0; i < repeats.size(); ++i) {
    const std::int64_t length = i < extra ? 1 : x.sizes()[i - extra];
    sizes.push_back(length);
    to[i] = repeated_size(kRepeat, length, repeats[i]);
    if (repeats[i] != 1 && length != 1) {
      split.push_back(1);
      expanded.push_back(repeats[i]);
    }
    split.push_back(length);
    expanded.push_back(length == 1 ? repeats[i] : length);
  }
  checked_numel("repeat", to);
  if (split.size() <= kMaxDims) return copied_as(expand(reshape(x, split), expanded), to);
  Tensor y = reshape(x, sizes);  // there are too many dimensions for one copy
  for (int i = 0; i < repeats.size(); ++i)
    if (repeats[i] != 1) y = repeated(kRepeat, y, i, repeats[i], false);
  return y;
}
Tensor Tensor::repeat(const Shape& repeats) const { return tapestry::repeat(*this, repeats); }

Tensor tile(const Tensor& x, const Shape& repeats) {
  check_defined("tile", x);
  Shape all = repeats;
  while (all.size() < x.dim()) all.insert(0, 1);
  return repeat(x, all);
}
Tensor Tensor::tile(const Shape& repeats) const { return tapestry::tile(*this, repeats); }

Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::optional<std::int64_t> dim) {
  check_defined("repeat_interleave", x);
  if (!dim || x.dim() == 0) {
    if (dim) wrap_dim("repeat_interleave", *dim, 0);
    return repeated(kRepeatInterleave, flatten(x), 0, repeats, true);
  }
  return repeated(kRepeatInterleave, x, wrap_dim("repeat_interleave", *dim, x.dim()), repeats, true);
}
Tensor Tensor::repeat_interleave(std::int64_t repeats, std::optional<std::int64_t> dim) const {
  return tapestry::repeat_interleave(*this, repeats, dim);
}

Tensor repeat_interleave(const Tensor& x, const Tensor& repeats, std::optional<std::int64_t> dim) {
  check_defined("repeat_interleave", x);
  check_defined("repeat_interleave", repeats, "the tensor of repeats");
  check<TypeError>(autograd::is_index(repeats.dtype()), "[repeat_interleave] repeats are ", repeats.dtype(),
                   "; give integers");
  check<DeviceError>(repeats.device() == x.device(), "[repeat_interleave] repeats are on ", repeats.device(),
                     ", the tensor on ", x.device(), "; move one of them with .to()");
  check(repeats.dim() <= 1, "[repeat_interleave] repeats have shape ", repeats.sizes(),
        "; give a 1-d tensor");
  if (!dim || x.dim() == 0) {
    if (dim) wrap_dim("repeat_interleave", *dim, 0);
    if (x.dim() != 1) return repeat_interleave(flatten(x), repeats, 0);
  }
  const int d = wrap_dim("repeat_interleave", dim.value_or(0), x.dim());
  const std::int64_t length = x.sizes()[d];
  check(repeats.numel() == length || repeats.numel() == 1, "[repeat_interleave] ", repeats.numel(),
        " repeats for dimension ", d, " of shape ", x.sizes(), "; give ", length, ", or one for all");
  tapestry::detail::check_host_reads("repeat_interleave", repeats);
  const Tensor counts = repeats.to(kCPU, DType::i64).contiguous();
  const std::int64_t* const count = counts.data<std::int64_t>();
  std::vector<std::int64_t> index;
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t times = count[counts.numel() == 1 ? 0 : i];
    check(times >= 0, "[repeat_interleave] ", times, " repeats of entry ", i, "; give 0 or more");
    index.insert(index.end(), static_cast<std::size_t>(times), i);
  }
  return index_select(x, d, tensor(index, x.device()));
}
Tensor Tensor::repeat_interleave(const Tensor& repeats, std::optional<std::int64_t> dim) const {
  return tapestry::repeat_interleave(*this, repeats, dim);
}

Tensor diag(const Tensor& x, std::int64_t diagonal) {
  check_defined("diag", x);
  check(x.dim() == 1 || x.dim() == 2, "[diag] a tensor of shape ", x.sizes(),
        "; give a vector or a matrix, or use diagonal() or diag_embed()");
  return x.dim() == 1 ? diag_embed(x, diagonal) : clone(x.diagonal(diagonal));
}
Tensor Tensor::diag(std::int64_t diagonal) const { return tapestry::diag(*this, diagonal); }

Tensor diag_embed(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
  check_defined("diag_embed", x);
  check(x.dim() >= 1 && x.dim() < kMaxDims, "[diag_embed] a tensor of shape ", x.sizes(), " has ", x.dim(),
        " dimensions; give 1 to ", kMaxDims - 1);
  const int d1 = wrap_dim("diag_embed", dim1, x.dim() + 1), d2 = wrap_dim("diag_embed", dim2, x.dim() + 1);
  check(d1 != d2, "[diag_embed] dim1 ", dim1, " and dim2 ", dim2, " are the same dimension; name two");
  std::int64_t size = 0;
  check(!__builtin_sub_overflow(x.size(-1), offset < 0 ? offset : 0, &size) &&
            !__builtin_add_overflow(size, offset > 0 ? offset : 0, &size),
        "[diag_embed] offset ", offset, " makes a matrix that 64 bits cannot count; choose a smaller one");
  Shape sizes = x.sizes();
  sizes.erase(x.dim() - 1);
  sizes.insert(std::min(d1, d2), size);
  sizes.insert(std::max(d1, d2), size);
  const Tensor y = zeros(sizes, TensorOptions(x.dtype(), x.device()));
  if (x.numel() > 0) kernels::copy(y.device(), y.dtype(), planned(raw_diagonal(y, offset, d1, d2), x));
  if (autograd::recording(x))
    autograd::record(kDiagEmbed, y, {&x},
                     [offset, d1, d2](Backward& b) { b.set(0, diagonal(b.grad(), offset, d1, d2)); });
  return y;
}
Tensor Tensor::diag_embed(std::int64_t offset, std::int64_t dim1, std::int64_t dim2) const {
  return tapestry::diag_embed(*this, offset, dim1, dim2);
}

Tensor tril(const Tensor& x, std::int64_t diagonal) { return kept(kTril, x, diagonal, true); }
Tensor triu(const Tensor& x, std::int64_t diagonal) { return kept(kTriu, x, diagonal, false); }
Tensor Tensor::tril(std::int64_t diagonal) const { return tapestry::tril(*this, diagonal); }
Tensor Tensor::triu(std::int64_t diagonal) const { return tapestry::triu(*this, diagonal); }
const Tensor& Tensor::tril_(std::int64_t diagonal) const {
  return autograd::compute_in_place(kTril, *this, {},
                                    [&](const Tensor& x) { return tapestry::tril(x, diagonal); });
}
const Tensor& Tensor::triu_(std::int64_t diagonal) const {
  return autograd::compute_in_place(kTriu, *this, {},
                                    [&](const Tensor& x) { return tapestry::triu(x, diagonal); });
}

Tensor block_diag(const std::vector<Tensor>& tensors) {
  check(!tensors.empty(), "[block_diag] no tensors; give at least one");
  std::int64_t columns = 0, before = 0;
  for (const Tensor& t : tensors) {
    check_defined(kBlockDiag.name, t);
    kBlockDiag.check_dtype(t.dtype());
    check(t.dim() <= 2, "[block_diag] a tensor of shape ", t.sizes(), "; give at most 2 dimensions");
    columns += t.dim() == 0 ? 1 : t.size(-1);
  }
  std::vector<Tensor> rows;
  for (const Tensor& t : tensors) {
    const Tensor block = atleast_2d(t);
    const std::int64_t after = columns - before - block.size(1);
    rows.push_back(pad(block, {before, after}));
    before += block.size(1);
  }
  return cat(rows);
}

const Tensor& Tensor::fill_diagonal_(const Scalar& value, bool wrap) const {
  check_defined("fill_diagonal_", *this);
  check(dim() >= 2, "[fill_diagonal_] a tensor of shape ", sizes(), "; it needs at least 2 dimensions");
  // A change of views would not be recorded, so a mask selects the elements.
  const Tensor mask = zeros(sizes(), TensorOptions(DType::boolean, device()));
  if (dim() == 2) {
    // Without `wrap`, a tall matrix has one diagonal. With it, a new one begins after each row that is left
    // out.
    const std::int64_t period = wrap ? size(1) + 1 : std::max<std::int64_t>(size(0), 1);
    for (std::int64_t row = 0; row < size(0) && size(1) > 0; row += period)
      mask.narrow(0, row, std::min(period, size(0) - row)).diagonal().fill_(true);
  } else {
    for (const std::int64_t n : sizes())
      check(n == size(0), "[fill_diagonal_] a tensor of shape ", sizes(),
            "; with more than 2 dimensions, all sizes must be equal");
    Tensor along = mask;
    while (along.dim() > 1) along = along.diagonal(0, 0, 1);
    along.fill_(true);
  }
  return masked_fill_(mask, autograd::as_element("fill_diagonal_", value, dtype()));
}

Tensor tril_indices(std::int64_t rows, std::int64_t cols, std::int64_t offset, const TensorOptions& options) {
  return triangle_indices(kTrilIndices, rows, cols, offset, true, options);
}
Tensor triu_indices(std::int64_t rows, std::int64_t cols, std::int64_t offset, const TensorOptions& options) {
  return triangle_indices(kTriuIndices, rows, cols, offset, false, options);
}

}  // namespace tapestry
