// CPU kernels of SwiGLU's gate and of its gradients.
#include "tapestry/kernels/ops/swiglu.h"

#include "tapestry/kernels/cpu/pointwise.h"

namespace tapestry::kernels::cpu {
namespace {

const bool rows = for_kernels_of(SwigluRows(), []<class Row>() { register_pointwise<Row>(); });

}  // namespace
}  // namespace tapestry::kernels::cpu
