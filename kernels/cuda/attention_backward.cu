#include "tapestry/kernels/cuda/attention_backward.cuh"
#include "tapestry/kernels/cuda/vendor/attention.h"

namespace tapestry::kernels::cuda {
namespace {

template <class T>
void backward_of_attention(const LaunchContext& context, const AttentionBackwardArgs& a) {
  launch_attention_backward<T>(a, context);
}

const bool attention_backward_filled = for_types<float, Half, BFloat16>([]<class T>() {
  attention_backward.set(DeviceType::cuda, dtype_of<T>,
                         &attention_by_policy<T, AttentionBackwardArgs, &backward_of_attention<T>>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
