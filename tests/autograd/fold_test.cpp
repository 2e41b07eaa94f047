#include "tapestry/autograd/ops/fold.h"

#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/nn/functional.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;
namespace F = tapestry::nn::functional;

namespace {
FoldParams params(const OpCase& c) {
  return {.kernel_size = c.pair("kernel_size"),
          .dilation = c.pair("dilation", 1),
          .padding = c.pair("padding", 0),
          .stride = c.pair("stride", 1)};
}
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
}  // namespace

GOLDEN_OP("im2col", "fold", [](const OpCase& c) { return F::unfold(c[0], params(c)); });
GOLDEN_OP("col2im", "fold", [](const OpCase& c) { return F::fold(c[0], c.pair("output_size"), params(c)); });
GOLDEN_OP("pixel_shuffle", "fold", [](const OpCase& c) { return pixel_shuffle(c[0], c.integer("factor")); });
GOLDEN_OP("pixel_unshuffle", "fold",
          [](const OpCase& c) { return pixel_unshuffle(c[0], c.integer("factor")); });

BAD_INPUT("im2col", "does not fit", [] { im2col(zeros({1, 1, 2, 2}), {.kernel_size = 3}); });
BAD_INPUT("im2col", "does not fit", [] {
  im2col(zeros({1, 1, 4, 4}), {.kernel_size = 3, .dilation = kMost});
});
BAD_INPUT("im2col", "does not fit", [] {
  im2col(zeros({1, 1, 4, 4}), {.kernel_size = 3, .padding = kMost});
});
BAD_INPUT("im2col", "padding is 0 or more", [] { im2col(zeros({1, 1, 4, 4}), {.kernel_size = 0}); });
BAD_INPUT("im2col", "padding is 0 or more", [] {
  im2col(zeros({1, 1, 4, 4}), {.kernel_size = 2, .padding = -1});
});
BAD_INPUT("im2col", "expected (N, C, H, W)", [] { im2col(zeros({4, 4}), {.kernel_size = 2}); });
BAD_INPUT("col2im", "must be a multiple", [] { col2im(zeros({1, 5, 9}), 4, {.kernel_size = 2}); });
BAD_INPUT("col2im", "8 columns", [] { col2im(zeros({1, 4, 8}), 4, {.kernel_size = 2}); });
BAD_INPUT("col2im", "output_size (0, 0)", [] { col2im(zeros({1, 4, 9}), 0, {.kernel_size = 2}); });
BAD_INPUT("col2im", "expected (N, C R S, L)", [] { col2im(zeros({4}), 4, {.kernel_size = 2}); });
BAD_INPUT("pixel_shuffle", "multiple of its square", [] { pixel_shuffle(zeros({6, 2, 2}), 2); });
BAD_INPUT("pixel_shuffle", "multiple of its square", [] { pixel_shuffle(zeros({4, 2, 2}), -2); });
BAD_INPUT("pixel_shuffle", "expected (..., C r r, H, W)", [] { pixel_shuffle(zeros({2, 2}), 1); });
BAD_INPUT("pixel_unshuffle", "divide height and width", [] { pixel_unshuffle(zeros({1, 4, 3}), 2); });
BAD_INPUT("pixel_unshuffle", "expected (..., C, H r, W r)", [] { pixel_unshuffle(zeros({2}), 1); });

TEST_CASE("im2col: a convolution is a product with the columns") {
  const Tensor x = randn({2, 3, 7, 6}, DType::f64), w = randn({4, 3, 3, 2}, DType::f64);
  const FoldParams p{.kernel_size = {3, 2}, .dilation = {1, 2}, .padding = {2, 1}, .stride = {2, 1}};
  const Tensor y = conv2d(x, w, {}, {.stride = p.stride, .padding = p.padding, .dilation = p.dilation});
  CHECK(allclose(matmul(w.flatten(1), im2col(x, p)).reshape(y.sizes()), y, 1e-12, 1e-12));
}

TEST_CASE("im2col adds up the gradients of overlapping windows in f32 for bf16") {
  // Pixel 16 lies in 17 windows, each of which has the gradient 1.0625: their sum is 18.0625, rounded to 18.
  // In bf16, every partial sum from 8 on would be rounded to a multiple of 1/16, and from 16 on of 1/8.
  const Tensor x = zeros({1, 1, 1, 33}, DType::bf16).set_requires_grad();
  const Tensor y = im2col(x, {.kernel_size = {1, 17}});
  y.backward(full(y.sizes(), 1.0625, DType::bf16));
  CHECK(x.grad()[0][0][0][16].item() == 18);
}
