// Splits tensors along a dimension (split, chunk, tensor_split, unbind) and joins them (cat, stack, hstack,
// vstack, dstack).
#include <algorithm>
#include <utility>

#include "tapestry/autograd/deferred.h"
#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/internal/parts.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::Part;
using autograd::raw_part;
using autograd::recorded_part;
using detail::check_defined;

const Op kSplit("split", Grad::twice, kAllDTypes);
const Op kChunk("chunk", Grad::twice, kAllDTypes);
const Op kTensorSplit("tensor_split", Grad::twice, kAllDTypes);
const Op kUnbind("unbind", Grad::twice, kAllDTypes);
const Op kCat("cat", Grad::twice, kAllDTypes);
const Op kStack("stack", Grad::twice, kAllDTypes);
const Op kHstack("hstack", Grad::twice, kAllDTypes);
const Op kVstack("vstack", Grad::twice, kAllDTypes);
const Op kDstack("dstack", Grad::twice, kAllDTypes);

constexpr int kSkipped = -1;  // marks a part that takes no place, because its tensor is skipped

// Copies tensors[i] to parts[i] of y by one kernel. The parts cover y. Returns false and does nothing unless
// the elements of each tensor lie in memory as those of its part, apart from the rest of y's lines.
bool join_lines(const Tensor& y, std::span<const Tensor> tensors, std::span<const Part> parts) {
  if (y.device().is_meta() || y.numel() == 0) return false;
  const MemoryFormat format = y.is_contiguous() ? MemoryFormat::contiguous : MemoryFormat::channels_last;
  int dim = kSkipped;
  std::vector<kernels::JoinPiece> pieces;
  pieces.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    if (parts[i].dim == kSkipped) continue;
    dim = parts[i].dim;
    const bool fits = t.defined() && t.dtype() == y.dtype() && t.device() == y.device() &&
                      t.is_contiguous(format) &&
                      (format == MemoryFormat::contiguous || (dim < 2 && !parts[i].drop));
    if (!fits) return false;
    pieces.push_back({t.raw_data(), parts[i].length});
  }
  if (dim == kSkipped) return false;
  // With channels last, the channels are the innermost dimension, and the images still the outermost.
  std::int64_t lines = 1, inner = 1;
  for (int d = 0; d < y.dim(); ++d) {
    const bool outer = format == MemoryFormat::contiguous ? d < dim : dim == 1;
    if (d != dim) (outer ? lines : inner) *= y.sizes()[d];
  }
  const std::int64_t bytes = inner * static_cast<std::int64_t>(dtype_size(y.dtype()));
  for (kernels::JoinPiece& piece : pieces) piece.bytes *= bytes;
  kernels::join(y.device(), DType::u8,
                {.lines = lines,
                 .pieces = pieces.data(),
                 .count = static_cast<std::int64_t>(pieces.size()),
                 .out = y.raw_data()});
  return true;
}

// The tensor of these sizes whose parts in memory are the gradients, or an undefined one if there is none.
Tensor around(const Shape& sizes, std::span<const Tensor> grads, std::span<const Part> parts) {
  if (sizes.empty() || !grads[0].defined() || grads[0].numel() == 0) return {};
  const Tensor whole =
      tapestry::detail::raw_view(grads[0], sizes, contiguous_strides(sizes), grads[0].storage_offset());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Tensor &g = grads[i], place = raw_part(whole, parts[i]);
    if (!g.defined() || g.storage() != whole.storage() || g.dtype() != whole.dtype() ||
        g.storage_offset() != place.storage_offset())
      return {};
    for (int d = 0; d < g.dim(); ++d)
      if (g.sizes()[d] != 1 && g.strides()[d] != place.strides()[d]) return {};
  }
  return whole;
}

// Splits `dim` into pieces of the given sizes, whose sum is the size of `dim`. With `drop`, all sizes are 1,
// and the pieces lack the dimension. All pieces share one node, whose backward writes each piece's gradient
// into one tensor.
std::vector<Tensor> pieces(const Op& op, const Tensor& x, int dim, const std::vector<std::int64_t>& sizes,
                           bool drop = false) {
  std::vector<Tensor> out;
  out.reserve(sizes.size());
  std::int64_t start = 0;
  for (const std::int64_t length : sizes) {
    out.push_back(raw_part(x, {.dim = dim, .start = start, .length = length, .drop = drop}));
    start += length;
  }
  if (out.empty() || !autograd::recording(x)) return out;

  const autograd::CallNote note({.dims = 1u << dim});
  std::vector<const Tensor*> outputs;
  for (const Tensor& t : out) outputs.push_back(&t);
  const Tensor* const input = &x;
  autograd::record(
      op.name, outputs, {&input, 1},
      [dim, sizes, drop, from = x.sizes(), options = TensorOptions(x.dtype(), x.device())](Backward& b) {
        if (b.create_graph()) {
          std::vector<Tensor> grads;
          for (std::uint32_t i = 0; i < sizes.size(); ++i) grads.push_back(b.grad_or_zeros(i));
          return b.set(0, drop ? stack(grads, dim) : cat(grads, dim));
        }
        std::vector<Part> parts;
        std::vector<Tensor> grads;
        std::int64_t at = 0;
        for (std::uint32_t i = 0; i < sizes.size(); ++i) {
          parts.push_back({.dim = dim, .start = at, .length = sizes[i], .drop = drop});
          grads.push_back(b.grad(i));
          at += sizes[i];
        }
        if (const Tensor whole = around(from, grads, parts); whole.defined()) return b.set(0, whole);
        const Tensor dx = empty(from, options);
        if (!join_lines(dx, grads, parts))
          for (std::size_t i = 0; i < parts.size(); ++i) {
            const Tensor place = raw_part(dx, parts[i]);
            if (place.numel() == 0) continue;
            if (grads[i].defined()) place.copy_(grads[i]);
            else place.zero_();
          }
        b.set(0, dx);
      },
      op.twice);
  for (const Tensor& t : out) autograd::mark_view(t);
  return out;
}

std::vector<std::int64_t> equal_sizes(std::int64_t total, std::int64_t size) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t start = 0; start < total; start += size) sizes.push_back(std::min(size, total - start));
  if (sizes.empty()) sizes.push_back(0);
  return sizes;
}

int split_dim(const Op& op, const Tensor& x, std::int64_t dim) {
  check_defined(op.name, x);
  check<IndexError>(x.dim() > 0, "[", op.name,
                    "] a 0-d tensor has no dimension to split; unsqueeze(0) gives it one");
  return wrap_dim(op.name, dim, x.dim());
}

// Joins the tensors for cat and stack: copies tensors[i] to parts[i] of a new tensor. The gradient of
// tensors[i] is parts[i] of the new tensor's gradient.
Tensor joined(const Op& op, const std::vector<Tensor>& tensors, const std::vector<Part>& parts,
              const Shape& sizes, DType dtype, MemoryFormat format) {
  const Tensor y = empty(sizes, TensorOptions(dtype, tensors[0].device()), format);
  {
    const NoGradGuard no_grad;
    if (!join_lines(y, tensors, parts))
      for (std::size_t i = 0; i < parts.size(); ++i)
        if (parts[i].length > 0 && tensors[i].numel() > 0) raw_part(y, parts[i]).copy_(tensors[i]);
  }
  if (autograd::recording(std::span<const Tensor>(tensors))) {
    std::vector<DType> dtypes;
    for (const Tensor& t : tensors) dtypes.push_back(t.dtype());
    const auto part = std::find_if(parts.begin(), parts.end(), [](Part p) { return p.dim != kSkipped; });
    const autograd::CallNote note({.dims = part == parts.end() ? 0u : 1u << part->dim});
    autograd::record(op, y, tensors, [&op, parts, dtypes = std::move(dtypes)](Backward& b) {
      for (std::uint32_t i = 0; i < parts.size(); ++i)
        if (b.needs(i) && parts[i].dim != kSkipped)
          b.set(i, recorded_part(op, b.grad(), parts[i]).to(dtypes[i]));
    });
  }
  return y;
}

void check_devices(const Op& op, const std::vector<Tensor>& tensors) {
  for (std::size_t i = 1; i < tensors.size(); ++i)
    check<DeviceError>(tensors[i].device() == tensors[0].device(), "[", op.name, "] tensor ", i, " is on ",
                       tensors[i].device(), ", tensor 0 on ", tensors[0].device(),
                       "; move them to one device with .to()");
}

// The tensors with at least `dims` dimensions, as hstack, vstack and dstack need them. A new dimension comes
// first, but the third comes last.
std::vector<Tensor> with_dims(const Op& op, const std::vector<Tensor>& tensors, int dims) {
  check(!tensors.empty(), "[", op.name, "] an empty list of tensors; pass at least one");
  std::vector<Tensor> out;
  for (const Tensor& t : tensors) {
    check_defined(op.name, t, "a tensor of the list");
    Tensor wide = t;
    while (wide.dim() < std::min(dims, 2)) wide = unsqueeze(wide, 0);
    if (wide.dim() < dims) wide = unsqueeze(wide, 2);
    out.push_back(wide);
  }
  return out;
}

}  // namespace

std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim) {
  const int d = split_dim(kSplit, x, dim);
  check(size > 0 || (size == 0 && x.sizes()[d] == 0), "[split] size ", size, " of the pieces of dimension ",
        d, " of shape ", x.sizes(), "; use 1 or more");
  return pieces(kSplit, x, d, equal_sizes(x.sizes()[d], std::max<std::int64_t>(size, 1)));
}
std::vector<Tensor> Tensor::split(std::int64_t size, std::int64_t dim) const {
  return tapestry::split(*this, size, dim);
}

std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim) {
  const int d = split_dim(kSplit, x, dim);
  std::int64_t left = x.sizes()[d];
  for (const std::int64_t size : sizes) {
    check(size >= 0, "[split] size ", size, " is negative; use 0 or more");
    check(size <= left, "[split] the ", sizes.size(), " sizes add up to more than dimension ", d,
          " of shape ", x.sizes(), "; they must add up to ", x.sizes()[d]);
    left -= size;
  }
  check(left == 0, "[split] the ", sizes.size(), " sizes add up to ", x.sizes()[d] - left, ", dimension ", d,
        " of shape ", x.sizes(), " is ", x.sizes()[d], "; they must be equal");
  return pieces(kSplit, x, d, sizes);
}
std::vector<Tensor> Tensor::split(const std::vector<std::int64_t>& sizes, std::int64_t dim) const {
  return tapestry::split(*this, sizes, dim);
}

std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim) {
  const int d = split_dim(kChunk, x, dim);
  check(chunks > 0, "[chunk] ", chunks, " chunks; ask for at least 1");
  const std::int64_t total = x.sizes()[d];
  if (total == 0) return pieces(kChunk, x, d, std::vector<std::int64_t>(static_cast<std::size_t>(chunks), 0));
  return pieces(kChunk, x, d, equal_sizes(total, total / chunks + (total % chunks != 0)));
}
std::vector<Tensor> Tensor::chunk(std::int64_t chunks, std::int64_t dim) const {
  return tapestry::chunk(*this, chunks, dim);
}

std::vector<Tensor> tensor_split(const Tensor& x, std::int64_t sections, std::int64_t dim) {
  const int d = split_dim(kTensorSplit, x, dim);
  check(sections > 0, "[tensor_split] ", sections, " sections; ask for at least 1");
  const std::int64_t size = x.sizes()[d] / sections, longer = x.sizes()[d] % sections;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(sections), size);
  for (std::int64_t i = 0; i < longer; ++i) ++sizes[static_cast<std::size_t>(i)];
  return pieces(kTensorSplit, x, d, sizes);
}
std::vector<Tensor> Tensor::tensor_split(std::int64_t sections, std::int64_t dim) const {
  return tapestry::tensor_split(*this, sections, dim);
}

std::vector<Tensor> tensor_split(const Tensor& x, const std::vector<std::int64_t>& indices,
                                 std::int64_t dim) {
  const int d = split_dim(kTensorSplit, x, dim);
  // The slices need not cover `dim`, and they overlap if the indices are not sorted. So each is a view of its
  // own.
  std::vector<Tensor> out;
  std::int64_t start = 0;
  for (const std::int64_t end : indices) out.push_back(slice(x, d, std::exchange(start, end), end));
  out.push_back(slice(x, d, start));
  return out;
}
std::vector<Tensor> Tensor::tensor_split(const std::vector<std::int64_t>& indices, std::int64_t dim) const {
  return tapestry::tensor_split(*this, indices, dim);
}

std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim) {
  const int d = split_dim(kUnbind, x, dim);
  return pieces(kUnbind, x, d, std::vector<std::int64_t>(static_cast<std::size_t>(x.sizes()[d]), 1), true);
}
std::vector<Tensor> Tensor::unbind(std::int64_t dim) const { return tapestry::unbind(*this, dim); }

Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim) {
  if (const autograd::Autocast cast(kCat, tensors); cast) return cat(cast(tensors), dim);
  check(!tensors.empty(), "[cat] an empty list of tensors; pass at least one");
  // As in PyTorch, a tensor of shape [0] joins with anything.
  const auto skipped = [](const Tensor& t) { return t.dim() == 1 && t.numel() == 0; };
  const Tensor* model = nullptr;
  DType dtype = DType::f32;
  bool channels_last = true;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    check_defined("cat", t, "a tensor of the list");
    check(t.dim() > 0, "[cat] tensor ", i, " is 0-d and has no dimension to join; use stack()");
    dtype = i == 0 ? t.dtype() : promote(dtype, t.dtype());
    if (skipped(t)) continue;
    if (!model) model = &t;
    channels_last &= t.memory_format() == MemoryFormat::channels_last;
  }
  check_devices(kCat, tensors);
  channels_last &= model != nullptr;
  if (!model) model = &tensors[0];

  const int d = wrap_dim("cat", dim, model->dim());
  Shape sizes = model->sizes();
  sizes[d] = 0;
  std::vector<Part> parts;
  parts.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    if (skipped(t)) {
      parts.push_back({.dim = kSkipped, .start = 0, .length = 0});
      continue;
    }
    bool fits = t.dim() == model->dim();
    for (int k = 0; fits && k < t.dim(); ++k) fits = k == d || t.sizes()[k] == sizes[k];
    check(fits, "[cat] tensor ", i, " has shape ", t.sizes(), ", the first ", model->sizes(),
          "; all sizes but that of dimension ", d, " must agree");
    parts.push_back({.dim = d, .start = sizes[d], .length = t.sizes()[d]});
    check(!__builtin_add_overflow(sizes[d], t.sizes()[d], &sizes[d]), "[cat] the sizes of dimension ", d,
          " add up to more than 64 bits can count; join fewer tensors");
  }
  const Tensor y = joined(kCat, tensors, parts, sizes, dtype,
                          channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous);
  if (y.device().is_meta())
    autograd::defer_values(kCat.name, y, tensors,
                           [dim](const Tensor& t, const std::vector<Tensor>& v) { t.copy_(cat(v, dim)); });
  return y;
}

Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim) {
  if (const autograd::Autocast cast(kStack, tensors); cast) return stack(cast(tensors), dim);
  check(!tensors.empty(), "[stack] an empty list of tensors; pass at least one");
  DType dtype = DType::f32;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    check_defined("stack", t, "a tensor of the list");
    check(t.sizes() == tensors[0].sizes(), "[stack] tensor ", i, " has shape ", t.sizes(), ", the first ",
          tensors[0].sizes(), "; all must be equal");
    dtype = i == 0 ? t.dtype() : promote(dtype, t.dtype());
  }
  check_devices(kStack, tensors);
  const int d = wrap_dim("stack", dim, tensors[0].dim() + 1);
  Shape sizes = tensors[0].sizes();
  sizes.insert(d, static_cast<std::int64_t>(tensors.size()));
  std::vector<Part> parts;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    parts.push_back({.dim = d, .start = static_cast<std::int64_t>(i), .length = 1, .drop = true});
  const Tensor y = joined(kStack, tensors, parts, sizes, dtype, MemoryFormat::contiguous);
  if (y.device().is_meta())
    autograd::defer_values(kStack.name, y, tensors,
                           [dim](const Tensor& t, const std::vector<Tensor>& v) { t.copy_(stack(v, dim)); });
  return y;
}

Tensor hstack(const std::vector<Tensor>& tensors) {
  const std::vector<Tensor> wide = with_dims(kHstack, tensors, 1);
  return cat(wide, wide[0].dim() == 1 ? 0 : 1);
}
Tensor vstack(const std::vector<Tensor>& tensors) { return cat(with_dims(kVstack, tensors, 2), 0); }
Tensor dstack(const std::vector<Tensor>& tensors) { return cat(with_dims(kDstack, tensors, 3), 2); }

}  // namespace tapestry
