// The f16 kernels of functions whose row sets kF16OnGpus. nvcc takes a second for each, so others have none.
#include "tapestry/kernels/cuda/functions.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool functions_f16_rows = for_kernels_of(Functions(), []<class Row>() {
  if constexpr (Row::kF16OnGpus) slot<Row>.set(DeviceType::cuda, DType::f16, &launch_pointwise<Row, Half>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
