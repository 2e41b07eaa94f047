#include "tapestry/kernels/cuda/functions.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool functions_rows = for_kernels_of(Functions(), []<class Row>() { register_pointwise<Row>(); });
const bool functions_limits = for_types<float, BFloat16>([]<class T>() {
  clamp.set(DeviceType::cuda, dtype_of<T>, &launch_clamp<T>);
  clamp_backward.set(DeviceType::cuda, dtype_of<T>, &launch_clamp_backward<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
