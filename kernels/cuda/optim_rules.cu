#include "tapestry/kernels/cuda/optim.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool optim_rules_filled = for_step_rules(
    []<class Rule>(Slot<Rule>& slot) { slot.set(DeviceType::cuda, DType::f32, &launch_rule<Rule>); });

}  // namespace
}  // namespace tapestry::kernels::cuda
