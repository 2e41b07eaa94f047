#pragma once
// gradcheck: compares gradients with finite differences, as torch.autograd.gradcheck.
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

}  // namespace tapestry::autograd
