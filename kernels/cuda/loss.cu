#include "tapestry/kernels/cuda/loss.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool loss_rows = for_rows_of(ErrorRows(), []<class Row>() { register_pointwise<Row>(); }) &&
                       for_kernels_of(BinaryLosses(), []<class Row>() { register_pointwise<Row>(); });
const bool loss_filled =
    for_types<float, Half, BFloat16>([]<class T>() {
      constexpr DType t = dtype_of<T>;
      cross_entropy.set(kDevice, t, &launch_cross_entropy<T>);
      cross_entropy_backward.set(kDevice, t, &launch_cross_entropy_backward<T>);
      nll_loss.set(kDevice, t, &launch_nll_loss<T>);
      nll_loss_backward.set(kDevice, t, &launch_nll_loss_backward<T>);
    }) &&
    for_types<float, BFloat16>([]<class T>() {
      cross_entropy_target_backward.set(kDevice, dtype_of<T>, &launch_cross_entropy_target_backward<T>);
      sum_squared_error.set(kDevice, dtype_of<T>, &launch_sum_squared_error<T>);
    });

}  // namespace
}  // namespace tapestry::kernels::cuda
