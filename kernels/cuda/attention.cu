#include "tapestry/kernels/cuda/attention.cuh"
#include "tapestry/kernels/cuda/vendor/attention.h"

namespace tapestry::kernels::cuda {
namespace {

template <class T>
void forward(const LaunchContext& context, const AttentionArgs& a) {
  launch_attention<T>(a, context);
}

const bool filled = for_types<float, Half, BFloat16>([]<class T>() {
  attention.set(DeviceType::cuda, dtype_of<T>, &attention_by_policy<T, AttentionArgs, &forward<T>>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
