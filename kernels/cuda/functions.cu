#include "tapestry/kernels/cuda/functions.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool rows = for_rows_of(Functions(), []<class F>() {
  register_pointwise<F>();
  if constexpr (kHasOwnGradient<F>) register_pointwise<GradientOf<F>>();
});
const bool others = [] {
  register_pointwise<Neg>();
  for_types<float, BFloat16>([]<class T>() {
    clamp.set(DeviceType::cuda, dtype_of<T>, &launch_clamp<T>);
    clamp_backward.set(DeviceType::cuda, dtype_of<T>, &launch_clamp_backward<T>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
