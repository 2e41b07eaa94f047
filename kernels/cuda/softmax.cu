#include "tapestry/kernels/cuda/softmax.cuh"

namespace tapestry::kernels::cuda {
namespace {

template <class T, bool log>
void forward(const SoftmaxShape& shape, const void* x, void* y) {
  launch_softmax<SoftmaxForward<T, log>, T>(shape, {{static_cast<const T*>(x)}}, static_cast<T*>(y),
                                            kernel_stream());
}
template <class T, bool log>
void backward(const SoftmaxShape& shape, const void* y, const void* dy, void* dx) {
  launch_softmax<SoftmaxBackward<T, log>, T>(shape, {{static_cast<const T*>(y), static_cast<const T*>(dy)}},
                                             static_cast<T*>(dx), kernel_stream());
}

const bool filled = for_types<float, BFloat16>([]<class T>() {
  constexpr DeviceType device = DeviceType::cuda;
  softmax.set(device, dtype_of<T>, &forward<T, false>);
  log_softmax.set(device, dtype_of<T>, &forward<T, true>);
  softmax_backward.set(device, dtype_of<T>, &backward<T, false>);
  log_softmax_backward.set(device, dtype_of<T>, &backward<T, true>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
