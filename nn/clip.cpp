#include "tapestry/nn/clip.h"

#include <cmath>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"

namespace tapestry::nn {

namespace {
std::vector<Tensor> gradients(const std::vector<Parameter>& params) {
  std::vector<Tensor> grads;
  for (const Parameter& p : params)
    if (p.defined() && p->grad().defined()) grads.push_back(p->grad());
  return grads;
}
}  // namespace

Tensor clip_grad_norm_(const std::vector<Parameter>& params, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  check(max_norm >= 0, "[clip_grad_norm_] max_norm must not be negative but is ", max_norm);
  check(norm_type > 0, "[clip_grad_norm_] norm_type must be positive but is ", norm_type);
  const NoGradGuard no_grad;
  const std::vector<Tensor> grads = gradients(params);
  if (grads.empty()) return zeros({});
  const Device device = grads[0].device();
  std::vector<Tensor> norms;
  for (const Tensor& g : grads) norms.push_back(norm(g, norm_type).to(device));
  const Tensor total = norm(stack(norms), norm_type);
  if (error_if_nonfinite)
    check(std::isfinite(total.item()), "[clip_grad_norm_] the norm of the gradients is ", total.item(),
          ", so they cannot be clipped; look for the cause (autograd::DetectAnomaly), or skip this step");
  // No branch on the norm: its value may still be on its way on the device.
  const Tensor factor = clamp(rdiv(max_norm, total + 1e-6), {}, 1.0);
  for (const Tensor& g : grads) g.mul_(factor.to(g.device()));
  return total;
}

void clip_grad_value_(const std::vector<Parameter>& params, double clip_value) {
  check(clip_value >= 0, "[clip_grad_value_] clip_value must not be negative but is ", clip_value);
  const NoGradGuard no_grad;
  for (const Tensor& g : gradients(params)) g.clamp_(-clip_value, clip_value);
}

}  // namespace tapestry::nn
