#include "tapestry/kernels/cuda/composite.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool composite_rows = for_rows_of(Composites(), []<class Row>() { register_pointwise<Row>(); });

}  // namespace
}  // namespace tapestry::kernels::cuda
