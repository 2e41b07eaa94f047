#include "tapestry/nn/functional.h"

#include <algorithm>
#include <cmath>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/product.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry::nn::functional {

Tensor bilinear(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias) {
  tapestry::detail::check_defined("bilinear", a);
  tapestry::detail::check_defined("bilinear", b, "the second input");
  tapestry::detail::check_defined("bilinear", weight, "weight");
  check(weight.dim() == 3, "[bilinear] expected a weight of shape (out, in1, in2), got ", weight.sizes());
  const std::int64_t out = weight.size(0), in1 = weight.size(1), in2 = weight.size(2);
  bool fits = a.dim() > 0 && a.dim() == b.dim() && a.size(-1) == in1 && b.size(-1) == in2;
  for (int d = 0; fits && d + 1 < a.dim(); ++d) fits = a.size(d) == b.size(d);
  check(fits, "[bilinear] expected inputs of shapes (..., ", in1, ") and (..., ", in2, "), got ", a.sizes(),
        " and ", b.sizes(), "; all but their last dimensions must be equal");
  check(!bias.defined() || bias.sizes() == Shape(out), "[bilinear] expected a bias of shape [", out,
        "], got ", bias.defined() ? bias.sizes() : Shape());
  Shape sizes = a.sizes();
  sizes.back() = out;
  const std::int64_t rows = out == 0 ? 0 : sizes.numel() / out;
  // (rows, in1) (in1, out in2) = (rows, out in2), and then one product of a matrix and b's row for each row.
  const Tensor products = a.reshape({rows, in1})
                              .matmul(weight.permute({1, 0, 2}).reshape({in1, out * in2}))
                              .reshape({rows, out, in2});
  const Tensor y = products.bmm(b.reshape({rows, in2, 1})).reshape(sizes);
  return bias.defined() ? y + bias : y;
}

Tensor local_response_norm(const Tensor& x, std::int64_t size, double alpha, double beta, double k) {
  tapestry::detail::check_defined("local_response_norm", x);
  check(x.dim() >= 3,
        "[local_response_norm] expected an input of shape (N, C, ...) with at least 3 dimensions, got ",
        x.sizes());
  check(size > 0, "[local_response_norm] size is ", size, "; give the number of channels of a window");
  if (x.numel() == 0) return x;
  // Channels as rows of an image, so that a pool of size x 1 averages over neighbours. Channels further than
  // the last one away are zeros, and need no padding.
  const std::int64_t channels = x.size(1), before = std::min(size / 2, channels),
                     after = std::min((size - 1) / 2, channels), window = before + after + 1;
  const Tensor squares = pad((x * x).reshape({x.size(0), 1, channels, -1}), {0, 0, before, after});
  const Tensor means = avg_pool2d(squares, {.kernel_size = {window, 1}, .stride = 1}).reshape(x.sizes());
  const double share = alpha * static_cast<double>(window) / static_cast<double>(size);
  return x / (means * share + k).pow(beta);
}

Tensor gumbel_softmax(const Tensor& logits, double tau, bool hard, std::int64_t dim) {
  tapestry::detail::check_defined("gumbel_softmax", logits, "logits");
  check(tau > 0 && std::isfinite(tau), "[gumbel_softmax] tau is ", tau, "; give a positive number");
  check<TypeError>(is_floating(logits.dtype()), "[gumbel_softmax] does not take ", logits.dtype(),
                   "; convert the logits to a floating dtype");
  Tensor noise;
  {
    const NoGradGuard no_grad;
    // In f16 and bf16, uniform numbers would often be 0 or 1.
    const DType dtype = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
    noise = rand(logits.sizes(), {dtype, logits.device()}).log().neg().log().neg().to(logits.dtype());
  }
  const Tensor soft = ((logits + noise) / tau).softmax(dim);
  if (!hard) return soft;
  const Tensor one_hot = zeros_like(soft.detach()).scatter(dim, soft.detach().argmax(dim, true), 1);
  return one_hot - soft.detach() + soft;
}

}  // namespace tapestry::nn::functional
