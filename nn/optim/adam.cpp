#include "tapestry/nn/optim/adam.h"

#include "tapestry/core/error.h"
#include "tapestry/kernels/ops/optim.h"

namespace tapestry::optim::detail {

template <class O, bool kDecoupled>
void AdamBase<O, kDecoupled>::check_options(std::size_t group) const {
  const O& o = this->options(group);
  check(o.lr >= 0, "[", name(), "] lr must not be negative but is ", o.lr);
  for (const double beta : o.betas)
    check(beta >= 0 && beta < 1, "[", name(), "] betas must lie in [0, 1) but are ", o.betas[0], " and ",
          o.betas[1]);
  check(o.eps >= 0, "[", name(), "] eps must not be negative but is ", o.eps);
  check(o.weight_decay >= 0, "[", name(), "] weight_decay must not be negative but is ", o.weight_decay);
}

template <class O, bool kDecoupled>
void AdamBase<O, kDecoupled>::update(std::size_t group, Device device, DType dtype,
                                     const kernels::StepItems& items) {
  const O& o = this->options(group);
  kernels::adam_step(device, dtype,
                     {.tensors = items,
                      .beta1 = o.betas[0],
                      .beta2 = o.betas[1],
                      .eps = o.eps,
                      .weight_decay = o.weight_decay,
                      .decoupled = kDecoupled,
                      .amsgrad = o.amsgrad,
                      .maximize = o.maximize});
}

template class AdamBase<AdamOptions, false>;
template class AdamBase<AdamWOptions, true>;

}  // namespace tapestry::optim::detail
