#include "tapestry/kernels/cuda/optim_low.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool optim_low_filled = for_types<Half, BFloat16>([]<class T> {
  sgd_step.set(DeviceType::cuda, dtype_of<T>, &launch_low_sgd<T>);
  adam_step.set(DeviceType::cuda, dtype_of<T>, &launch_low_adam<T>);
  for_step_rules([]<class Rule>(Slot<Rule>& slot) {
    slot.set(DeviceType::cuda, dtype_of<T>, &launch_low_rule<T, Rule>);
  });
});

}  // namespace
}  // namespace tapestry::kernels::cuda
