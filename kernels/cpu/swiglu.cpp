// CPU kernels of the gates of SwiGLU and GLU, and of their gradients.
#include "tapestry/kernels/ops/swiglu.h"

#include "tapestry/kernels/cpu/wide.h"

namespace tapestry::kernels::cpu {
namespace {

const bool rows = for_kernels_of(SwigluRows(), []<class Row>() { register_wide<Row>(); });

}  // namespace
}  // namespace tapestry::kernels::cpu
