#include "tapestry/kernels/cuda/loss.cuh"

namespace tapestry::kernels::cuda {
namespace {

template <class T>
void cross_entropy_kernel(const ClassLoss& a, void* losses, void* weights, std::int64_t* first_bad) {
  launch_cross_entropy<T>(a, losses, weights, first_bad, kernel_stream());
}
template <class T>
void cross_entropy_backward_kernel(const ClassLoss& a, const LossGrad& g, void* dx) {
  launch_cross_entropy_backward<T>(a, g, dx, kernel_stream());
}
template <class T>
void cross_entropy_target_backward_kernel(const ClassLoss& a, const LossGrad& g, void* dtarget) {
  launch_cross_entropy_target_backward<T>(a, g, dtarget, kernel_stream());
}
template <class T>
void nll_loss_kernel(const ClassLoss& a, void* losses, void* weights, std::int64_t* first_bad) {
  launch_nll_loss<T>(a, losses, weights, first_bad, kernel_stream());
}
template <class T>
void nll_loss_backward_kernel(const ClassLoss& a, const LossGrad& g, void* dx) {
  launch_nll_loss_backward<T>(a, g, dx, kernel_stream());
}
void weighted_mean_kernel(std::int64_t n, const void* losses, const void* weights, void* mean, void* total) {
  launch_weighted_mean(n, losses, weights, mean, total, kernel_stream());
}
template <class T>
void squared_error_kernel(const Elementwise<3>& e) {
  launch_squared_error<T>(e, kernel_stream());
}
template <class T>
void squared_error_backward_kernel(const Elementwise<4>& e, double scale) {
  launch_squared_error_backward<T>(e, scale, kernel_stream());
}
template <class T>
void sum_squared_error_kernel(std::int64_t n, const void* x, const void* t, void* out, double divisor) {
  launch_sum_squared_error<T>(n, x, t, out, divisor, kernel_stream());
}

constexpr DeviceType kDevice = DeviceType::cuda;

const bool filled = for_types<float, BFloat16>([]<class T>() {
                      constexpr DType t = dtype_of<T>;
                      cross_entropy.set(kDevice, t, &cross_entropy_kernel<T>);
                      cross_entropy_backward.set(kDevice, t, &cross_entropy_backward_kernel<T>);
                      cross_entropy_target_backward.set(kDevice, t, &cross_entropy_target_backward_kernel<T>);
                      nll_loss.set(kDevice, t, &nll_loss_kernel<T>);
                      nll_loss_backward.set(kDevice, t, &nll_loss_backward_kernel<T>);
                      squared_error.set(kDevice, t, &squared_error_kernel<T>);
                      squared_error_backward.set(kDevice, t, &squared_error_backward_kernel<T>);
                      sum_squared_error.set(kDevice, t, &sum_squared_error_kernel<T>);
                    }) &&
                    (weighted_mean.set(kDevice, DType::f32, &weighted_mean_kernel), true);

}  // namespace
}  // namespace tapestry::kernels::cuda
