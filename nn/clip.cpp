#include "tapestry/nn/clip.h"

#include <cmath>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/worker.h"

namespace tapestry::nn {

namespace {
std::vector<Tensor> gradients(const std::vector<Parameter>& params, int replica = 0) {
  std::vector<Tensor> grads;
  for (const Parameter& p : params)
    if (replica < p.replicas() && p.replica(replica).grad().defined())
      grads.push_back(p.replica(replica).grad());
  return grads;
}

// change(r) for each replica r: a single one on the calling thread, several each on its device's worker.
template <class F>
void for_replicas(const std::vector<Parameter>& params, const F& change) {
  std::vector<Device> devices;
  for (const Parameter& p : params)
    for (int r = static_cast<int>(devices.size()); r < p.replicas(); ++r)
      devices.push_back(p.replica(r).device());
  if (devices.size() <= 1) return change(0);
  on_workers(devices, [&](int r) {
    const NoGradGuard no_grad;
    change(r);
  });
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
  for_replicas(params, [&](int r) {
    for (const Tensor& g : gradients(params, r)) g.mul_(factor.to(g.device()));
  });
  return total;
}

void clip_grad_value_(const std::vector<Parameter>& params, double clip_value) {
  check(clip_value >= 0, "[clip_grad_value_] clip_value must not be negative but is ", clip_value);
  const NoGradGuard no_grad;
  for_replicas(params, [&](int r) {
    for (const Tensor& g : gradients(params, r)) g.clamp_(-clip_value, clip_value);
  });
}

}  // namespace tapestry::nn
