#pragma once
// Attention by cuDNN, for the slots of kernels/ops/attention.h. Forward and backward are graphs of products,
// pointwise operations and reductions, which cuDNN's heuristics recognise as fused attention and give one
// kernel for.
#include <string>

#include "tapestry/kernels/cuda/attention_bias.h"
#include "tapestry/kernels/cuda/vendor/cudnn_graph.h"

namespace tapestry::kernels::cuda::cudnn {

/// Empty if cuDNN computes this on the context's device. Otherwise the reason. cuDNN does not get dropout
/// (its random numbers are others than those of the contract), f32 (it would round to TF32), gradients that
/// are left out, and widths that are not multiples of 8 up to 128. With `deterministic`, the gradient of q is
/// not accumulated by atomic additions. Makes the plan that run() needs. Throws CudnnError if cuDNN fails for
/// another reason than that it cannot do this.
std::string why_not(const LaunchContext& context, DType dtype, const AttentionArgs& args, bool deterministic);
std::string why_not(const LaunchContext& context, DType dtype, const AttentionBackwardArgs& args,
                    bool deterministic);
/// Enqueues the work on the context's stream. why_not() was empty for the same arguments. If there is a mask,
/// `bias` has the kernels that make it a bias and write the results of queries that see no key.
void run(const LaunchContext& context, DType dtype, const AttentionArgs& args, bool deterministic,
         const AttentionBiasKernels& bias);
void run(const LaunchContext& context, DType dtype, const AttentionBackwardArgs& args, bool deterministic,
         const AttentionBiasKernels& bias);

/// The operation graphs for arrays that are aligned to `alignment` bytes. Tensors in the order of their
/// addresses: q, k, v, y, log_sum_exp, and the bias if there is a mask.
Graph attention_graph(DType dtype, const AttentionArgs& args, std::int64_t alignment);
/// q, k, v, y, dy, log_sum_exp, dq, dk, dv, the f32 scratch array (batch, heads, queries), the bias if there
/// is a mask, and unless `deterministic` the f32 scratch array (batch, heads, queries, width), in which cuDNN
/// accumulates dq.
Graph attention_backward_graph(DType dtype, const AttentionBackwardArgs& args, std::int64_t alignment,
                               bool deterministic);

}  // namespace tapestry::kernels::cuda::cudnn
