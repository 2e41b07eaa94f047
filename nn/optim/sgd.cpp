#include "tapestry/nn/optim/sgd.h"

#include "tapestry/core/error.h"
#include "tapestry/kernels/ops/optim.h"

namespace tapestry::optim {

SGD::SGD(std::vector<Parameter> params, const Options& options) {
  add_param_group({std::move(params), options});
}
SGD::SGD(std::vector<Group> groups) {
  for (Group& g : groups) add_param_group(std::move(g));
}

void SGD::check_options(std::size_t group) const {
  const Options& o = options(group);
  check(o.lr >= 0, "[SGD] lr must not be negative but is ", o.lr);
  check(o.momentum >= 0, "[SGD] momentum must not be negative but is ", o.momentum);
  check(o.weight_decay >= 0, "[SGD] weight_decay must not be negative but is ", o.weight_decay);
  check(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
        "[SGD] nesterov needs a momentum and no dampening but they are ", o.momentum, " and ", o.dampening);
}

void SGD::update(std::size_t group, Device device, DType dtype, const kernels::StepItems& items) {
  const Options& o = options(group);
  kernels::sgd_step(device, dtype,
                    {.tensors = items,
                     .momentum = o.momentum,
                     .dampening = o.dampening,
                     .weight_decay = o.weight_decay,
                     .nesterov = o.nesterov,
                     .maximize = o.maximize});
}

}  // namespace tapestry::optim
