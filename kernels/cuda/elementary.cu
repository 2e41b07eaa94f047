#include "tapestry/kernels/cuda/elementary.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool elementary_values = register_selected<float, BFloat16>(Elementary());
const bool elementary_gradients = register_selected<float, BFloat16>(ElementaryGradients());

}  // namespace
}  // namespace tapestry::kernels::cuda
