#include "tapestry/kernels/cuda/swiglu.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool swiglu_rows = for_kernels_of(SwigluRows(), []<class Row>() { register_pointwise<Row>(); });

}  // namespace
}  // namespace tapestry::kernels::cuda
