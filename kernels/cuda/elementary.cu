#include "tapestry/kernels/cuda/elementary.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool values = register_selected<float, BFloat16>(Elementary());
const bool gradients = register_selected<float, BFloat16>(ElementaryGradients());

}  // namespace
}  // namespace tapestry::kernels::cuda
