#pragma once
// Checking a gradient against finite differences.
#include <functional>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

struct GradcheckOptions {
  double eps = 1e-6;  ///< half the difference: x - eps, x + eps
  /// Central differences are good to eps^2 f''' / 6 + u |f| / eps: about 1e-9 for values near 1.
  double atol = 1e-6;
  double rtol = 1e-4;
};

/// Compares, for every input that requires a gradient and every floating output of `fn`, the whole Jacobian
/// that backward gives (zeros for an output that was not recorded) with the one that central differences
/// give: |backward - numeric| <= atol + rtol |numeric|. Inputs must be f64 (TypeError): f32 has no room for
/// differences. `fn` must be deterministic and must not change its inputs; steer inputs away from kinks.
/// Returns true, or throws AutogradError that names input, element, output and both values.
bool gradcheck(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& fn,
               const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});
bool gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn, const std::vector<Tensor>& inputs,
               const GradcheckOptions& options = {});

}  // namespace tapestry::autograd
