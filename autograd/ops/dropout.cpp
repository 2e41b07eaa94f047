#include "tapestry/autograd/ops/dropout.h"

#include <cmath>

#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/own_gradient.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/generator.h"
#include "tapestry/kernels/ops/random.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

namespace {

const Op kDropout{"dropout", Grad::twice, kFloats};

// The random numbers are assigned to elements in row-major order, whatever the layout of x. The result has
// x's memory format, so that the layers after it stay channels-last.
// `y` is the memory of the result, row-major, which may be that of x.
void mask_into(const Tensor& y, const Tensor& in, PhiloxRange range, double p) {
  // An element is kept if its random 24-bit integer is at least p * 2^24. If p is 1, no element is kept.
  const auto threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24));
  kernels::dropout(y.device(), y.dtype(),
                   {.out = y,
                    .x = in,
                    .n = y.numel(),
                    .range = range,
                    .threshold = threshold,
                    .scale = p < 1 ? 1 / (1 - p) : 0});
}
Tensor masked(const Tensor& x, PhiloxRange range, double p) {
  const Tensor y = empty(x.sizes(), {x.dtype(), x.device()});
  mask_into(y, contiguous(x), range, p);
  return contiguous(y, x.memory_format());
}

Tensor recorded_masked(const Tensor& x, PhiloxRange range, double p) {
  Tensor y = masked(x.detach(), range, p);
  if (recording(x))
    record(kDropout, y, {&x}, [range, p](Backward& g) {
      const Tensor own = own_gradient(g, g.grad());
      if (!own.defined() || !own.is_contiguous()) return g.set(0, recorded_masked(g.grad(), range, p));
      mask_into(own, own, range, p);
      g.set(0, own);
    });
  return y;
}

// Dropout of whole channels. x is (N, C, ...), or (C, ...) with `spatial` dimensions after C.
Tensor channel_dropout(const char* op, const Tensor& x, int spatial, double p, bool training) {
  tapestry::detail::check_defined(op, x);
  kDropout.check_dtype(x.dtype());
  check(x.dim() == spatial + 1 || x.dim() == spatial + 2, "[", op, "] an input of shape ", x.sizes(),
        "; expected ", spatial + 1, " or ", spatial + 2, " dimensions");
  Shape channels = x.sizes();
  for (int d = x.dim() - spatial; d < x.dim(); ++d) channels[d] = 1;
  const Tensor mask = dropout(ones(channels, TensorOptions(x.dtype(), x.device())), p, training);
  return training && p > 0 ? mul(x, mask) : x;
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
  tapestry::detail::check_defined(kDropout.name, x);
  kDropout.check_dtype(x.dtype());
  check(p >= 0 && p <= 1, "[dropout] p is ", p, "; give a probability, from 0 to 1");
  if (!training || p == 0) return x;
  const auto counters = static_cast<std::uint64_t>((x.numel() + 3) / 4);
  const PhiloxRange range = current_generator(x.device()).take(counters);
  return recorded_masked(x, range, p);
}

Tensor dropout1d(const Tensor& x, double p, bool training) {
  return channel_dropout("dropout1d", x, 1, p, training);
}
Tensor dropout2d(const Tensor& x, double p, bool training) {
  return channel_dropout("dropout2d", x, 2, p, training);
}

}  // namespace tapestry
