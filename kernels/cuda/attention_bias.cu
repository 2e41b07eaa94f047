#include "tapestry/kernels/cuda/attention_bias.cuh"

namespace tapestry::kernels::cuda {

const AttentionBiasKernels& attention_bias_kernels(DType dtype) {
  static constexpr AttentionBiasKernels f16{&launch_attention_bias<Half>, &launch_attention_blind<Half>,
                                            &launch_attention_logs<>};
  static constexpr AttentionBiasKernels bf16{&launch_attention_bias<BFloat16>,
                                             &launch_attention_blind<BFloat16>, &launch_attention_logs<>};
  static constexpr AttentionBiasKernels none{};
  return dtype == DType::f16 ? f16 : dtype == DType::bf16 ? bf16 : none;
}

}  // namespace tapestry::kernels::cuda
