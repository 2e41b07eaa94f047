#include "tapestry/autograd/ops/rope.h"

#include <array>

#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/kernels/ops/rope.h"

namespace tapestry {
namespace {

using namespace autograd;  // NOLINT: this file is autograd's

const Op kRotaryEmbedding("rotary_embedding", Grad::twice, kFloats);

// The layout of the result: row-major, or as a transposed view of (N, L, heads, E).
enum class Result : std::uint8_t { row_major, heads_inside };

std::array<std::int64_t, 3> row_strides(const Tensor& t) {
  const int dims = t.dim();
  return {dims > 3    ? t.strides()[0]
          : dims == 3 ? t.strides()[0]
                      : 0,
          dims > 3 ? t.strides()[1] : 0, t.strides()[dims - 2]};
}

// All arguments are checked. x is (..., L, E), of at most 4 dimensions unless it is dense.
//
// A rotation is linear, and its transpose is its inverse. So the gradient is the same operation with
// `inverse` flipped, and records itself in a pass with create_graph.
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved, bool inverse,
              Result layout) {
  const int dims = x.dim();
  Tensor y;
  {
    const NoGradGuard no_grad;
    const TensorOptions options(x.dtype(), x.device());
    if (layout == Result::heads_inside)
      y = empty({x.size(0), x.size(2), x.size(1), x.size(3)}, options).transpose(1, 2);
    else y = empty(x.sizes(), options);
    const bool as_is = dims <= 4 && (x.size(-1) <= 1 || x.strides()[dims - 1] == 1);
    const Tensor in = as_is ? x : raw_contiguous(x);
    kernels::RopeArgs args;
    args.batch = dims > 2 ? x.size(0) : 1;
    args.length = x.size(-2);
    args.width = x.size(-1);
    args.heads = 1;
    for (int i = 1; i < dims - 2; ++i) args.heads *= x.size(i);
    args.pairs = cos.size(-1);
    const auto strides = [&](const Tensor& t) -> std::array<std::int64_t, 3> {
      if (dims <= 4) return row_strides(t);
      return {args.heads * args.length * args.width, args.length * args.width, args.width};
    };
    args.x_strides = strides(in);
    args.y_strides = strides(y);
    args.table_stride = cos.dim() == 3 && cos.size(0) > 1 ? args.length * args.pairs : 0;
    args.interleaved = interleaved;
    args.inverse = inverse;
    const Tensor c = raw_contiguous(cos), s = raw_contiguous(sin);
    args.x = in, args.cos = c, args.sin = s, args.y = y;
    kernels::rope(x.device(), x.dtype(), args);
  }
  const CallNote note({.constants = {&cos, &sin}});
  if (recording(x)) {
    // The gradient of heads that were split from a projection gets the projection's layout, so that joining
    // the heads needs no copy.
    const bool split = dims == 4 && !x.is_contiguous() && x.transpose(1, 2).is_contiguous();
    record(kRotaryEmbedding, y, {&x},
           [cos = save(cos), sin = save(sin), interleaved, inverse,
            split = split ? Result::heads_inside : Result::row_major](Backward& b) {
             b.set(0, rotate(b.grad(), b.saved(cos), b.saved(sin), interleaved, !inverse, split));
           });
  }
  return y;
}

}  // namespace

Tensor rotary_embedding(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved) {
  const char* const op = kRotaryEmbedding.name;
  tapestry::detail::check_defined(op, x);
  tapestry::detail::check_defined(op, cos, "cos");
  tapestry::detail::check_defined(op, sin, "sin");
  kRotaryEmbedding.check_dtype(x.dtype());
  check(x.dim() >= 2, "[", op, "] the input has shape ", x.sizes(), "; expected (..., L, E)");
  check(cos.sizes() == sin.sizes(), "[", op, "] cos ", cos.sizes(), " and sin ", sin.sizes(),
        " have different shapes; they must be equal");
  const DType wanted = accumulation_dtype(x.dtype());
  for (const Tensor* table : {&cos, &sin}) {
    check<TypeError>(table->dtype() == wanted, "[", op, "] cos and sin have dtype ", table->dtype(),
                     "; for an input of ", x.dtype(), " they must have ", wanted);
    check<DeviceError>(table->device() == x.device(), "[", op, "] cos and sin are on ", table->device(),
                       ", the input on ", x.device(), "; move one of them with .to()");
    check(!recording(*table), "[", op,
          "] cos and sin get no gradient, and one of them requires it; pass its detach()");
  }
  const std::int64_t length = x.size(-2), width = x.size(-1);
  const bool each = cos.dim() == 3 && x.dim() >= 3;
  check((cos.dim() == 2 || each) && cos.size(-2) == length && (!each || cos.size(0) == x.size(0)), "[", op,
        "] cos and sin have shape ", cos.sizes(), ", the input ", x.sizes(), "; expected (", length,
        ", pairs), or (N, ", length, ", pairs) with the input's N");
  check(2 * cos.size(-1) <= width, "[", op, "] ", cos.size(-1), " pairs need ", 2 * cos.size(-1),
        " features, but the input ", x.sizes(), " has ", width, "; pass at most half as many pairs");
  return rotate(x, cos, sin, interleaved, false, Result::row_major);
}

}  // namespace tapestry
