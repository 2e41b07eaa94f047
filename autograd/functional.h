#pragma once
// Derivatives of functions, as torch.autograd.functional: Jacobians, Hessians and Hessian-vector products.
// The functions are called in grad mode, on tensors that require gradients, and their operations must be
// recorded. autograd/engine.h explains create_graph, which makes the result differentiable itself.
#include <functional>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::autograd::functional {

/// The derivatives of all elements of y = fn(x): a tensor of shape (y.sizes()..., x.sizes()...), which is
/// zero where y does not depend on x. Runs one backward pass for each element of y. Throws AutogradError if y
/// is undefined, and ValueError if the shape has more than kMaxDims dimensions.
Tensor jacobian(const std::function<Tensor(const Tensor&)>& fn, const Tensor& x, bool create_graph = false);

/// The second derivatives of fn, whose result has one element: a tensor of shape (x.sizes()...,
/// x.sizes()...). Runs one backward pass for each element of x. Throws ValueError if the result has several
/// elements, and AutogradError if an operation of fn has no gradients of gradients.
Tensor hessian(const std::function<Tensor(const Tensor&)>& fn, const Tensor& x, bool create_graph = false);

/// The value of fn, which has one element, and the product of its Hessian and the vector v, which has the
/// shapes of the inputs. Takes the time of two backward passes and computes no Hessian (Pearlmutter 1994).
/// The product is that of v and the Hessian too (PyTorch's vhp), because the Hessian is symmetric.
std::pair<Tensor, std::vector<Tensor>> hvp(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                                           const std::vector<Tensor>& inputs, const std::vector<Tensor>& v,
                                           bool create_graph = false);
std::pair<Tensor, Tensor> hvp(const std::function<Tensor(const Tensor&)>& fn, const Tensor& x,
                              const Tensor& v, bool create_graph = false);

}  // namespace tapestry::autograd::functional
