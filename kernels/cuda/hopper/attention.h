#pragma once
// Attention by wgmma, for GPUs of compute capability 9.0.
#include <string_view>

#include "tapestry/kernels/ops/attention.h"

namespace tapestry::kernels::cuda {

/// Why wgmma_attention() cannot compute this on the current device. Empty if it can: the dtype is bf16, heads
/// have 64 or 128 elements, rows begin at multiples of 16 bytes, there is neither a mask (but `causal`) nor
/// dropout, and the shapes are not small.
std::string_view wgmma_attention_why_not(DType dtype, const AttentionArgs& a);
/// Computes what wgmma_attention_why_not() returned an empty text for.
void wgmma_attention(const LaunchContext& context, const AttentionArgs& a);

}  // namespace tapestry::kernels::cuda
