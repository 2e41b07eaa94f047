#include "tapestry/kernels/cuda/optim_low.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool filled = [] {
  sgd_step.set(DeviceType::cuda, DType::bf16, &launch_low_sgd<BFloat16>);
  adam_step.set(DeviceType::cuda, DType::bf16, &launch_low_adam<BFloat16>);
  return for_step_rules([]<class Rule>(Slot<Rule>& slot) {
    slot.set(DeviceType::cuda, DType::bf16, &launch_low_rule<BFloat16, Rule>);
  });
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
