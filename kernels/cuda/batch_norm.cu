#include "tapestry/kernels/cuda/batch_norm.cuh"

namespace tapestry::kernels::cuda {
namespace {

template <class T>
void stats(const BatchNorm& s, const void* x, const BatchNormStats& to) {
  launch_batch_norm_stats<T>(s, x, to, kernel_stream());
}
template <class T>
void forward(const BatchNorm& s, const void* x, const void* mean, const void* inv_std, const void* weight,
             const void* bias, void* y) {
  launch_batch_norm<T>(s, x, mean, inv_std, weight, bias, y, kernel_stream());
}
template <class T>
void backward(const BatchNorm& s, const void* dy, const void* x, const void* mean, const void* inv_std,
              const void* weight, bool training, void* dx, void* dweight, void* dbias) {
  launch_batch_norm_backward<T>(s, dy, x, mean, inv_std, weight, training, dx, dweight, dbias,
                                kernel_stream());
}

const bool filled = for_types<float, BFloat16>([]<class T>() {
  batch_norm_stats.set(DeviceType::cuda, dtype_of<T>, &stats<T>);
  batch_norm.set(DeviceType::cuda, dtype_of<T>, &forward<T>);
  batch_norm_backward.set(DeviceType::cuda, dtype_of<T>, &backward<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
