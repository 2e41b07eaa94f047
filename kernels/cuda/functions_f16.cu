// The activations in f16. The other functions lack it, because each kernel takes time to compile.
#include "tapestry/kernels/cuda/functions.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool functions_f16_rows = for_kernels_of(
    RowList<Relu, Tanh, Sigmoid, Silu, Gelu, GeluTanh>(),
    []<class Row>() { slot<Row>.set(DeviceType::cuda, DType::f16, &launch_pointwise<Row, Half>); });

}  // namespace
}  // namespace tapestry::kernels::cuda
