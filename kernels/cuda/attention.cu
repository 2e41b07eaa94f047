#include "tapestry/kernels/cuda/attention.cuh"
#include "tapestry/kernels/cuda/hopper/attention.h"
#include "tapestry/kernels/cuda/vendor/attention.h"

namespace tapestry::kernels::cuda {
namespace {

template <class T>
void attention_forward(const LaunchContext& context, const AttentionArgs& a) {
  launch_attention<T>(a, context);
}

constexpr SpecialAttention<AttentionArgs> kWgmmaAttention{"tapestry wgmma", &wgmma_attention_why_not,
                                                          &wgmma_attention};
const bool attention_filled =
    (attention.set(DeviceType::cuda, dtype_of<float>,
                   &attention_by_policy<float, AttentionArgs, &attention_forward<float>>),
     attention.set(DeviceType::cuda, dtype_of<Half>,
                   &attention_by_policy<Half, AttentionArgs, &attention_forward<Half>>),
     attention.set(
         DeviceType::cuda, dtype_of<BFloat16>,
         &attention_by_policy<BFloat16, AttentionArgs, &attention_forward<BFloat16>, &kWgmmaAttention>),
     true);

}  // namespace
}  // namespace tapestry::kernels::cuda
