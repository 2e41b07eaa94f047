// im2col and col2im, each of which is the gradient of the other, and pixel_shuffle with its inverse. Windows
// are strided views, so the copy kernel moves them.
#include "tapestry/autograd/ops/fold.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/parts.h"
#include "tapestry/autograd/ops/pad.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::raw_part;
using detail::check_defined;

const Op kIm2col("im2col", Grad::twice, kFloats);
const Op kCol2im("col2im", Grad::twice, kFloats);
const Op kPixelShuffle("pixel_shuffle", Grad::twice, kAllDTypes);
const Op kPixelUnshuffle("pixel_unshuffle", Grad::twice, kAllDTypes);

// The windows of an image of size (h, w): there are (rows, cols) of them.
struct Windows {
  FoldParams p;
  std::int64_t rows, cols;
  Pair padded;  // the image's size with padding

  Windows(const Op& op, Pair image, const FoldParams& params) : p(params) {
    const auto positive = [](Pair v) { return v.h > 0 && v.w > 0; };
    check(positive(p.kernel_size) && positive(p.stride) && positive(p.dilation) && p.padding.h >= 0 &&
              p.padding.w >= 0,
          "[", op.name, "] kernel_size (", p.kernel_size.h, ", ", p.kernel_size.w, "), stride (", p.stride.h,
          ", ", p.stride.w, "), dilation (", p.dilation.h, ", ", p.dilation.w, ") and padding (", p.padding.h,
          ", ", p.padding.w, "); padding is 0 or more, the others are 1 or more");
    rows = count(op, image.h, p.kernel_size.h, p.stride.h, p.dilation.h, p.padding.h, padded.h);
    cols = count(op, image.w, p.kernel_size.w, p.stride.w, p.dilation.w, p.padding.w, padded.w);
  }
  bool has_padding() const { return p.padding.h > 0 || p.padding.w > 0; }

 private:
  static std::int64_t count(const Op& op, std::int64_t size, std::int64_t kernel, std::int64_t stride,
                            std::int64_t dilation, std::int64_t padding, std::int64_t& padded) {
    std::int64_t span = 0;
    const bool counts = !__builtin_mul_overflow(kernel - 1, dilation, &span) &&
                        !__builtin_mul_overflow(padding, 2, &padded) &&
                        !__builtin_add_overflow(padded, size, &padded);
    check(counts && span < padded, "[", op.name, "] a window of ", kernel, " elements, ", dilation,
          " apart, does not fit an image of size ", size, " with padding ", padding,
          "; choose a smaller window or more padding");
    return (padded - span - 1) / stride + 1;
  }
};

// The windows of x (N, C, H, W) as a matrix of columns (N, C R S, rows cols). Not recorded.
Tensor lowered(const Tensor& x, const Windows& w) {
  const NoGradGuard no_grad;
  const Pair pad_by = w.p.padding;
  const Tensor t = w.has_padding() ? pad(x, {pad_by.w, pad_by.w, pad_by.h, pad_by.h}) : x;
  const Shape& s = t.strides();
  const Pair k = w.p.kernel_size;
  const Tensor view =
      detail::raw_view(t, {t.sizes()[0], t.sizes()[1], k.h, k.w, w.rows, w.cols},
                       {s[0], s[1], s[2] * w.p.dilation.h, s[3] * w.p.dilation.w,
                        w.rows > 1 ? s[2] * w.p.stride.h : 1, w.cols > 1 ? s[3] * w.p.stride.w : 1},
                       t.storage_offset());
  const Tensor dense = empty(view.sizes(), TensorOptions(x.dtype(), x.device()));
  if (dense.numel() > 0) dense.copy_(view);
  return dense.view({x.sizes()[0], x.sizes()[1] * k.h * k.w, w.rows * w.cols});
}

// Adds the columns (N, C R S, rows cols) at their windows of an image (N, C, H, W). Not recorded. Each of the
// R S additions is a strided one, so the order of the sums is fixed.
Tensor raised(const Tensor& columns, std::int64_t channels, Pair image, const Windows& w) {
  const NoGradGuard no_grad;
  const std::int64_t n = columns.sizes()[0];
  const Pair k = w.p.kernel_size;
  const Tensor sums = zeros({n, channels, w.padded.h, w.padded.w},
                            TensorOptions(autograd::accumulation_dtype(columns.dtype()), columns.device()));
  const Tensor split = columns.reshape({n, channels, k.h, k.w, w.rows, w.cols});
  if (split.numel() > 0)
    for (std::int64_t i = 0; i < k.h; ++i)
      for (std::int64_t j = 0; j < k.w; ++j) {
        const Tensor lines = raw_part(
            sums,
            {.dim = 2, .start = i * w.p.dilation.h, .length = w.rows, .step = w.rows > 1 ? w.p.stride.h : 1});
        raw_part(
            lines,
            {.dim = 3, .start = j * w.p.dilation.w, .length = w.cols, .step = w.cols > 1 ? w.p.stride.w : 1})
            .add_(split.select(2, i).select(2, j));
      }
  Tensor y = sums;
  if (w.has_padding()) y = y.narrow(2, w.p.padding.h, image.h).narrow(3, w.p.padding.w, image.w);
  y = y.to(columns.dtype());
  return w.has_padding() ? y.contiguous() : y;
}

}  // namespace

Tensor im2col(const Tensor& x, const FoldParams& params) {
  check_defined("im2col", x);
  kIm2col.check_dtype(x.dtype());
  check(x.dim() == 3 || x.dim() == 4, "[im2col] an input of shape ", x.sizes(),
        "; expected (N, C, H, W) or (C, H, W)");
  if (x.dim() == 3) return squeeze(im2col(unsqueeze(x, 0), params), 0);
  const std::int64_t channels = x.sizes()[1];
  const Pair image(x.sizes()[2], x.sizes()[3]);
  const Windows windows(kIm2col, image, params);
  const Tensor y = lowered(x, windows);
  if (autograd::recording(x))
    autograd::record(kIm2col, y, {&x}, [channels, image, windows](Backward& b) {
      b.set(0, b.create_graph() ? col2im(b.grad(), image, windows.p)
                                : raised(b.grad(), channels, image, windows));
    });
  return y;
}

Tensor col2im(const Tensor& x, Pair output_size, const FoldParams& params) {
  check_defined("col2im", x);
  kCol2im.check_dtype(x.dtype());
  check(x.dim() == 2 || x.dim() == 3, "[col2im] an input of shape ", x.sizes(),
        "; expected (N, C R S, L) or (C R S, L)");
  if (x.dim() == 2) return squeeze(col2im(unsqueeze(x, 0), output_size, params), 0);
  check(output_size.h > 0 && output_size.w > 0, "[col2im] output_size (", output_size.h, ", ", output_size.w,
        "); use 1 or more");
  const Windows windows(kCol2im, output_size, params);
  std::int64_t window = 0;
  check(!__builtin_mul_overflow(params.kernel_size.h, params.kernel_size.w, &window) &&
            x.sizes()[1] % window == 0,
        "[col2im] columns of ", x.sizes()[1], " elements for windows of ", params.kernel_size.h, " x ",
        params.kernel_size.w, "; their length must be a multiple of the window's");
  check(x.sizes()[2] == windows.rows * windows.cols, "[col2im] ", x.sizes()[2], " columns in shape ",
        x.sizes(), ", but ", windows.rows, " x ", windows.cols, " windows in an image of output_size (",
        output_size.h, ", ", output_size.w, "); the numbers must be equal");
  const Tensor y = raised(x, x.sizes()[1] / window, output_size, windows);
  if (autograd::recording(x))
    autograd::record(kCol2im, y, {&x}, [windows](Backward& b) {
      b.set(0, b.create_graph() ? im2col(b.grad(), windows.p) : lowered(b.grad(), windows));
    });
  return y;
}

Tensor pixel_shuffle(const Tensor& x, std::int64_t upscale_factor) {
  check_defined("pixel_shuffle", x);
  check(x.dim() >= 3 && x.dim() <= kMaxDims - 2, "[pixel_shuffle] an input of shape ", x.sizes(),
        "; expected (..., C r r, H, W) of at most ", kMaxDims - 2, " dimensions");
  const std::int64_t r = upscale_factor, channels = x.size(-3);
  check(r > 0 && r < std::int64_t{1} << 31 && channels % (r * r) == 0, "[pixel_shuffle] ", channels,
        " channels for upscale_factor ", r, "; their number must be a multiple of its square");
  const int d = x.dim() - 3;
  Shape split = x.sizes(), to = x.sizes();
  split[d] /= r * r;
  to[d] = split[d], to[d + 1] *= r, to[d + 2] *= r;
  split.insert(d + 1, r);
  split.insert(d + 1, r);  // (..., C, r, r, H, W)
  Dims order;
  for (int i = 0; i <= d; ++i) order.push_back(i);
  for (const int i : {3, 1, 4, 2}) order.push_back(d + i);  // (..., C, H, r, W, r)
  return reshape(permute(reshape(x, split), order), to);
}

Tensor pixel_unshuffle(const Tensor& x, std::int64_t downscale_factor) {
  check_defined("pixel_unshuffle", x);
  check(x.dim() >= 3 && x.dim() <= kMaxDims - 2, "[pixel_unshuffle] an input of shape ", x.sizes(),
        "; expected (..., C, H r, W r) of at most ", kMaxDims - 2, " dimensions");
  const std::int64_t r = downscale_factor;
  check(r > 0 && x.size(-2) % r == 0 && x.size(-1) % r == 0, "[pixel_unshuffle] an image of shape ",
        x.sizes(), " for downscale_factor ", r, "; it must divide height and width");
  const int d = x.dim() - 3;
  Shape split = x.sizes(), to = x.sizes();
  split[d + 1] /= r, split[d + 2] /= r;
  to[d + 1] = split[d + 1], to[d + 2] = split[d + 2];
  check(!__builtin_mul_overflow(to[d], r, &to[d]) && !__builtin_mul_overflow(to[d], r, &to[d]),
        "[pixel_unshuffle] downscale_factor ", r, " gives more channels than 64 bits can count");
  split.insert(d + 3, r);
  split.insert(d + 2, r);  // (..., C, H, r, W, r)
  Dims order;
  for (int i = 0; i <= d; ++i) order.push_back(i);
  for (const int i : {2, 4, 1, 3}) order.push_back(d + i);  // (..., C, r, r, H, W)
  return reshape(permute(reshape(x, split), order), to);
}

}  // namespace tapestry
