// Padding. The elements are copied to the middle of the result, and the border is then filled from the result
// itself, one dimension after the other. Backward does the same in reverse.
#include "tapestry/autograd/ops/pad.h"

#include <algorithm>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/parts.h"
#include "tapestry/autograd/ops/rearrange.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::planned;
using autograd::raw_flip;
using autograd::raw_part;

const Op kPad("pad", Grad::twice, kAllDTypes);

// The numbers of elements that each dimension gets before and after its own; negative ones are removed.
struct Borders {
  Shape before, after;

  bool any_negative() const {
    const auto negative = [](std::int64_t n) { return n < 0; };
    return std::any_of(before.begin(), before.end(), negative) ||
           std::any_of(after.begin(), after.end(), negative);
  }
};

Borders borders_of(const Tensor& x, const std::vector<std::int64_t>& padding) {
  check(padding.size() % 2 == 0, "[pad] ", padding.size(),
        " numbers of padding; give two for each dimension, before and after it");
  check(padding.size() / 2 <= static_cast<std::size_t>(x.dim()), "[pad] ", padding.size(),
        " numbers of padding for a tensor of shape ", x.sizes(), "; give at most ", 2 * x.dim());
  Borders b{Shape::filled(x.dim(), 0), Shape::filled(x.dim(), 0)};
  for (std::size_t i = 0; i < padding.size() / 2; ++i) {
    const int d = x.dim() - 1 - static_cast<int>(i);
    b.before[d] = padding[2 * i];
    b.after[d] = padding[2 * i + 1];
  }
  return b;
}

// The elements of x that are left after negative borders have removed some. Recorded if x is.
Tensor cropped(const Tensor& x, const Borders& borders) {
  Tensor y = x;
  for (int d = 0; d < x.dim(); ++d) {
    const std::int64_t start = std::max<std::int64_t>(-borders.before[d], 0);
    const std::int64_t end = std::max<std::int64_t>(-borders.after[d], 0);
    if (start > 0 || end > 0) y = narrow(y, d, start, x.sizes()[d] - start - end);
  }
  return y;
}

// Parts of a padded tensor. The dimensions are padded in order: when the borders of dimension d are filled,
// the dimensions before d are complete, and of the dimensions after d only the middle is filled.
struct Slab {
  const Borders& borders;
  const Shape& inner;  // the sizes of the middle

  /// The part of t with `length` elements from `start` in dimension d, restricted to what is filled then.
  Tensor of(const Tensor& t, int d, std::int64_t start, std::int64_t length) const {
    Tensor part = raw_part(t, {.dim = d, .start = start, .length = length});
    for (int i = d + 1; i < t.dim(); ++i)
      part = raw_part(part, {.dim = i, .start = borders.before[i], .length = inner[i]});
    return part;
  }
  /// Calls f(border, source) for both borders of dimension d. The border gets the elements of the source. If
  /// the mode is reflect, their order is reversed. If the mode is replicate, the source has size 1 in
  /// dimension d.
  template <class F>
  void each_border(const Tensor& t, int d, PadMode mode, const F& f) const {
    const std::int64_t low = borders.before[d], high = borders.after[d], size = inner[d];
    if (low > 0) {
      const std::int64_t from = mode == PadMode::reflect ? low + 1 : mode == PadMode::circular ? size : low;
      f(of(t, d, 0, low), of(t, d, from, mode == PadMode::replicate ? 1 : low));
    }
    if (high > 0) {
      const std::int64_t end = low + size;
      const std::int64_t from = mode == PadMode::reflect    ? end - 1 - high
                                : mode == PadMode::circular ? low
                                                            : end - 1;
      f(of(t, d, end, high), of(t, d, from, mode == PadMode::replicate ? 1 : high));
    }
  }
};

// The middle of a padded tensor.
Tensor middle(const Tensor& padded, const Borders& borders, const Shape& inner) {
  Tensor part = padded;
  for (int d = 0; d < padded.dim(); ++d)
    if (borders.before[d] > 0 || borders.after[d] > 0)
      part = raw_part(part, {.dim = d, .start = borders.before[d], .length = inner[d]});
  return part;
}

void copy_to(const Tensor& out, const Tensor& x) {
  if (out.numel() > 0) kernels::copy(out.device(), out.dtype(), planned(out, x));
}

// The numbers that pad() takes for these borders.
std::vector<std::int64_t> padding_of(const Borders& borders) {
  std::vector<std::int64_t> padding;
  for (int d = borders.before.size() - 1; d >= 0; --d) {
    padding.push_back(borders.before[d]);
    padding.push_back(borders.after[d]);
  }
  return padding;
}

// The gradient of the middle: each border's gradient is added to the elements that the border was copied
// from.
Tensor unpadded(const Tensor& g, const Borders& borders, const Shape& inner, PadMode mode) {
  const NoGradGuard no_grad;
  if (mode == PadMode::constant) return middle(g, borders, inner);
  if (inner.numel() == 0) return zeros(inner, TensorOptions(g.dtype(), g.device()));
  Tensor sums = empty(g.sizes(), TensorOptions(autograd::accumulation_dtype(g.dtype()), g.device()));
  copy_to(sums, g);
  const Slab slab{borders, inner};
  for (int d = g.dim() - 1; d >= 0; --d)
    slab.each_border(sums, d, mode, [&](const Tensor& border, const Tensor& source) {
      if (border.numel() == 0) return;
      if (mode == PadMode::reflect) source.add_(flip(border, d));
      else if (mode == PadMode::circular) source.add_(border);
      else source.add_(sum(border, d, true));
    });
  return middle(sums, borders, inner).to(g.dtype());
}

}  // namespace

Tensor pad(const Tensor& x, const std::vector<std::int64_t>& padding, PadMode mode, const Scalar& value) {
  detail::check_defined("pad", x);
  const Borders all = borders_of(x, padding);
  Shape sizes = x.sizes();
  for (int d = 0; d < x.dim(); ++d) {
    const bool counts = !__builtin_add_overflow(sizes[d], all.before[d], &sizes[d]) &&
                        !__builtin_add_overflow(sizes[d], all.after[d], &sizes[d]);
    const std::int64_t removed =  // at most twice the size, so that the sum does not overflow
        std::clamp<std::int64_t>(all.before[d], -x.sizes()[d] - 1, 0) +
        std::clamp<std::int64_t>(all.after[d], -x.sizes()[d] - 1, 0);
    check(counts || all.before[d] < 0 || all.after[d] < 0, "[pad] ", all.before[d], " and ", all.after[d],
          " elements at the ends of dimension ", d, " of shape ", x.sizes(),
          " are more than 64 bits can count; pad less");
    check(counts && sizes[d] >= 0 && x.sizes()[d] + removed >= 0, "[pad] ", all.before[d], " and ",
          all.after[d], " elements at the ends of dimension ", d, " of shape ", x.sizes(),
          "; remove at most as many as there are");
  }
  checked_numel("pad", sizes);
  if (all.any_negative()) {
    std::vector<std::int64_t> rest = padding;
    for (std::int64_t& n : rest) n = std::max<std::int64_t>(n, 0);
    const Tensor left = cropped(x, all);
    return pad(left, rest, mode, value);
  }
  for (int d = 0; d < x.dim() && mode != PadMode::constant; ++d) {
    const std::int64_t most = std::max(all.before[d], all.after[d]), size = x.sizes()[d];
    const std::int64_t source = mode == PadMode::reflect ? size - 1 : size;
    check(most == 0 || (mode == PadMode::replicate ? size > 0 : most <= source), "[pad] ", most,
          " elements of padding for dimension ", d, " of shape ", x.sizes(), "; this mode gives at most ",
          mode == PadMode::replicate ? 0 : std::max<std::int64_t>(source, 0));
  }

  const TensorOptions options(x.dtype(), x.device());
  const Tensor y = empty(sizes, options, x.memory_format());
  if (mode == PadMode::constant) y.fill_(value);
  copy_to(middle(y, all, x.sizes()), x);
  const Slab slab{all, x.sizes()};
  for (int d = 0; d < x.dim() && mode != PadMode::constant && y.numel() > 0; ++d)
    slab.each_border(y, d, mode, [&](const Tensor& border, const Tensor& source) {
      if (border.numel() > 0) copy_to(border, mode == PadMode::reflect ? raw_flip(source, 1u << d) : source);
    });
  if (autograd::recording(x))
    autograd::record(kPad, y, {&x}, [all, inner = x.sizes(), mode](Backward& b) {
      const Tensor &g = b.grad(), dx = unpadded(g, all, inner, mode);
      if (autograd::recording(g) && !dx.is_same(g))
        autograd::record(kPad, dx, {&g}, [all, mode](Backward& back) {
          back.set(0, pad(back.grad(), padding_of(all), mode));
        });
      b.set(0, dx);
    });
  return y;
}

}  // namespace tapestry
