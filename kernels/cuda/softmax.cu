#include "tapestry/kernels/cuda/softmax.cuh"

namespace tapestry::kernels::cuda {
namespace {

template <class T, bool log>
void softmax_forward_of(const LaunchContext& context, const SoftmaxArgs& a) {
  launch_softmax<SoftmaxForward<T, log>, T>(a.shape, {{a.x.as<T>()}}, a.y.as<T>(), context);
}
template <class T, bool log>
void softmax_backward_of(const LaunchContext& context, const SoftmaxBackwardArgs& a) {
  launch_softmax<SoftmaxBackward<T, log>, T>(a.shape, {{a.y.as<T>(), a.dy.as<T>()}}, a.dx.as<T>(), context);
}

const bool softmax_filled = for_types<float, BFloat16>([]<class T>() {
  constexpr DeviceType device = DeviceType::cuda;
  softmax.set(device, dtype_of<T>, &softmax_forward_of<T, false>);
  log_softmax.set(device, dtype_of<T>, &softmax_forward_of<T, true>);
  softmax_backward.set(device, dtype_of<T>, &softmax_backward_of<T, false>);
  log_softmax_backward.set(device, dtype_of<T>, &softmax_backward_of<T, true>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
