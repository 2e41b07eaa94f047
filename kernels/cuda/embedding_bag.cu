#include "tapestry/kernels/cuda/embedding_bag.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool embedding_bag_filled = for_types<float, BFloat16>(
    []<class T>() { embedding_bag.set(DeviceType::cuda, dtype_of<T>, &launch_embedding_bag<T>); });

}  // namespace
}  // namespace tapestry::kernels::cuda
