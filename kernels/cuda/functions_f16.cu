// The functions in f16 whose rows ask for it. Others lack it, because each kernel takes time to compile.
#include "tapestry/kernels/cuda/functions.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool functions_f16_rows = for_kernels_of(Functions(), []<class Row>() {
  if constexpr (Row::kF16OnGpus) slot<Row>.set(DeviceType::cuda, DType::f16, &launch_pointwise<Row, Half>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
