#include "tapestry/kernels/cuda/embedding.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool embedding_filled = for_types<float, Half, BFloat16>([]<class T>() {
  embedding.set(DeviceType::cuda, dtype_of<T>, &launch_embedding<T>);
  embedding_backward.set(DeviceType::cuda, dtype_of<T>, &launch_embedding_backward<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
