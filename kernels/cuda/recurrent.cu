#include "tapestry/kernels/cuda/recurrent.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool recurrent_filled = for_types<float, BFloat16>([]<class T>() {
  recurrent_step.set(DeviceType::cuda, dtype_of<T>, &launch_recurrent_step<T>);
  recurrent_step_backward.set(DeviceType::cuda, dtype_of<T>, &launch_recurrent_step_backward<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
