#include "tapestry/nn/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::optim {

namespace {

// Returns a matrix with the singular vectors of g and singular values close to 1. X starts as g / |g|, so
// that its singular values are at most 1. The transposed matrix is used if it gives the smaller product X
// X^T.
Tensor orthogonalized(const Tensor& g, const MuonOptions& o) {
  const bool tall = g.size(0) > g.size(1);
  const auto [a, b, c] = o.ns_coefficients;
  Tensor x = o.bf16 ? g.to(DType::bf16) : g;
  if (tall) x = x.t();
  x = x / clamp(norm(x), o.eps);
  for (std::int64_t i = 0; i < o.ns_steps; ++i) {
    const Tensor gram = matmul(x, x.t());
    x = a * x + matmul(b * gram + c * matmul(gram, gram), x);
  }
  return (tall ? x.t() : x).to(g.dtype());
}

double adjusted_lr(const MuonOptions& o, const Tensor& param) {
  const auto rows = static_cast<double>(param.size(0)), columns = static_cast<double>(param.size(1));
  switch (o.adjust_lr_fn) {
    case AdjustLr::original:
      return o.lr * std::sqrt(std::max(1.0, rows / columns));
    case AdjustLr::match_rms_adamw:
      return o.lr * 0.2 * std::sqrt(std::max(rows, columns));
    case AdjustLr::spectral_unclamped:
      return o.lr * std::sqrt(rows / columns);
  }
  return o.lr;
}

}  // namespace

Muon::Muon(std::vector<Parameter> params, const Options& options) {
  add_param_group({std::move(params), options});
}
Muon::Muon(std::vector<Group> groups) {
  for (Group& g : groups) add_param_group(std::move(g));
}

void Muon::check_options(std::size_t group) const {
  const Options& o = options(group);
  check(o.lr >= 0, "[Muon] lr must not be negative but is ", o.lr);
  check(o.momentum >= 0, "[Muon] momentum must not be negative but is ", o.momentum);
  check(o.weight_decay >= 0, "[Muon] weight_decay must not be negative but is ", o.weight_decay);
  check(o.low_precision != LowPrecision::stochastic,
        "[Muon] low_precision is stochastic, and Muon has no kernel that rounds stochastically; choose "
        "LowPrecision::master");
  check(o.ns_steps >= 0 && o.ns_steps < 100, "[Muon] ns_steps must lie in [0, 100) but is ", o.ns_steps);
}

void Muon::check_param(const Parameter& param) const {
  check(!param.layout(), "[Muon] a parameter of shape ", nn::whole_sizes(param),
        " is sharded, and each rank has some of its rows; Muon needs the whole matrix. Train sharded "
        "parameters "
        "with AdamW, or use DistributedDataParallel");
  check(param.replica(0).dim() == 2, "[Muon] a parameter has shape ", param.replica(0).sizes(),
        "; Muon trains 2-d weights only, so give other parameters to AdamW");
}

void Muon::update_tensors(std::size_t group, const nn::ReplicaDevice&, const std::vector<Update>& updates) {
  const Options& o = options(group);
  const double scale = o.maximize ? -grad_scale() : grad_scale();
  for (const Parameter& p : parameters()) check_param(p);  // it may have been sharded since it was added
  for (const Update& u : updates) {
    const Tensor& buffer = u.state->tensors[0];
    // Of an f16 or bf16 parameter: its master, or an f32 copy for this step.
    const bool low = u.param.dtype() != buffer.dtype();
    const Tensor grad = u.grad.to(buffer.dtype()) * scale;
    const Tensor param = u.state->master.defined() ? u.state->master
                         : low                     ? u.param.detach().to(buffer.dtype())
                                                   : u.param.detach();
    u.state->step.add_(1);
    buffer.add_((grad - buffer) * (1 - o.momentum));
    const Tensor direction = o.nesterov ? grad + (buffer - grad) * o.momentum : buffer;
    param.mul_(1 - o.lr * o.weight_decay);
    if (param.numel() > 0) param.sub_(orthogonalized(direction, o) * adjusted_lr(o, param));
    if (low) u.param.detach().copy_(param);
  }
}

}  // namespace tapestry::optim
