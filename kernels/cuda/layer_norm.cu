#include "tapestry/kernels/cuda/layer_norm.cuh"

namespace tapestry::kernels::cuda {
namespace {

template <class T>
void forward(std::int64_t rows, std::int64_t cols, const void* x, const void* weight, const void* bias,
             double eps, void* y, void* mean, void* inv_std) {
  launch_layer_norm<T>(rows, cols, x, weight, bias, eps, y, mean, inv_std, kernel_stream());
}
template <class T>
void backward(const LayerNormBackward& s) {
  launch_layer_norm_backward<T>(s, kernel_stream());
}

const bool filled = for_types<float, BFloat16>([]<class T>() {
  layer_norm.set(DeviceType::cuda, dtype_of<T>, &forward<T>);
  layer_norm_backward.set(DeviceType::cuda, dtype_of<T>, &backward<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
