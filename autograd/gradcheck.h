#pragma once
// gradcheck and gradgradcheck: compare gradients, and gradients of gradients, with finite differences, as in
// torch.autograd.
#include <functional>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

struct GradcheckOptions {
  double eps = 1e-6;  ///< the function is evaluated at x - eps and x + eps
  /// The error of central differences is eps^2 f''' / 6 + u |f| / eps, where u is the unit roundoff: about
  /// 1e-9 for values near 1.
  double atol = 1e-6;
  double rtol = 1e-4;
  /// Compare u^T J v for one pair of vectors u and v of norm 1 with mixed elements, instead of each element
  /// of the Jacobian J. Takes two evaluations for each input, instead of two for each of its elements.
  bool fast_mode = false;
};

/// Computes the Jacobian of every floating output of `fn` with respect to every input that requires a
/// gradient, by backward and by central differences, and checks |backward - numeric| <= atol + rtol |numeric|
/// for each element. An output that was not recorded has gradient zero. `fn` must be deterministic, must not
/// change its inputs, and must be differentiable near them. Returns true. Throws AutogradError, which names
/// the input, the output, the elements and both values, if they differ. Throws TypeError if an input that
/// requires a gradient is not f64, because f32 is too inexact for differences.
bool gradcheck(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& fn,
               const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});
bool gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn, const std::vector<Tensor>& inputs,
               const GradcheckOptions& options = {});

/// Checks the gradients of the gradients of `fn`: gradcheck() of the function that maps the inputs and the
/// gradients of the outputs to the gradients of the inputs. `grad_outputs` has one gradient for each output
/// that is recorded. If it is empty, numbers of different size and sign are used. Throws AutogradError if a
/// gradient differs from the finite differences of first gradients, or if an operation has no gradients of
/// gradients.
bool gradgradcheck(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& fn,
                   const std::vector<Tensor>& inputs, const std::vector<Tensor>& grad_outputs = {},
                   const GradcheckOptions& options = {});
bool gradgradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                   const std::vector<Tensor>& inputs, const std::vector<Tensor>& grad_outputs = {},
                   const GradcheckOptions& options = {});

}  // namespace tapestry::autograd
