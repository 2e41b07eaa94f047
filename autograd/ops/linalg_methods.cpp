// The methods of Tensor for functions of linalg. PyTorch has no methods for the others.
#include "tapestry/autograd/ops/linalg.h"

namespace tapestry {

Tensor Tensor::det() const { return linalg::det(*this); }
std::pair<Tensor, Tensor> Tensor::slogdet() const { return linalg::slogdet(*this); }
Tensor Tensor::inverse() const { return linalg::inv(*this); }
Tensor Tensor::pinverse(double rcond) const { return linalg::pinv(*this, 0.0, rcond); }
Tensor Tensor::matrix_power(std::int64_t n) const { return linalg::matrix_power(*this, n); }
Tensor Tensor::cholesky(bool upper) const { return linalg::cholesky(*this, upper); }
std::pair<Tensor, Tensor> Tensor::qr(bool some) const {
  return linalg::qr(*this, some ? linalg::QrMode::reduced : linalg::QrMode::complete);
}

}  // namespace tapestry
