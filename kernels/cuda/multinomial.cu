#include "tapestry/kernels/cuda/multinomial.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool multinomial_filled = [] {
  multinomial_weights.set(DeviceType::cuda, DType::f32, &launch_multinomial_weights<>);
  multinomial_scores.set(DeviceType::cuda, DType::f32, &launch_multinomial_scores<>);
  multinomial_draw.set(DeviceType::cuda, DType::i64, &launch_multinomial_draw<>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
