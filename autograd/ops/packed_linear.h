#pragma once
// Products with weights that stay in their blocks (core/packed_tensor.h), for generation and as the frozen
// base of LoRA. No dense copy of a weight is made.
#include <cstdint>

#include "tapestry/autograd/ops/linear_cross_entropy.h"
#include "tapestry/core/packed_tensor.h"

namespace tapestry {

/// In which numbers packed_linear() takes its input.
enum class PackedActivations : std::uint8_t {
  /// int8 for weights of 2 to 8 bits if no gradient of the input is recorded, else f32.
  automatic,
  /// As they are. The weights are unpacked in parts that fit in the cache.
  f32,
  /// Rounded to int8 in blocks of 32 that share a scale, as llama.cpp does (its Q8_1). The products are sums
  /// of
  /// integers, several times as fast as those of f32. An input changes by at most 1/254 of the largest
  /// magnitude in its block. Weights of f32, f16 and bf16 are taken with f32 nevertheless.
  int8,
};

/// Computes x W^T + b as linear() does, for a packed W. Shapes: x is (..., in), weight is (out, in), bias is
/// (out) or undefined, and the result is (..., out). All tensors are f32 on the CPU. Each row of the result
/// depends on the same row of x alone, bit for bit, if the activations are int8. The gradients of x and bias
/// are those of linear() with unpacked weights; the weight gets none. Throws TypeError or DeviceError for
/// other tensors, and ValueError if the shapes do not fit, or for int8 activations in a call that is
/// recorded.
Tensor packed_linear(const Tensor& x, const PackedTensor& weight, const Tensor& bias = {},
                     PackedActivations activations = PackedActivations::automatic);

/// Gathers rows of a packed weight (V, D) by indices of any integer dtype and any shape (...) on the CPU, as
/// embedding() does. The result is f32 (..., D) and has no gradient. Throws IndexError for an index outside
/// [0, V).
Tensor packed_embedding(const PackedTensor& weight, const Tensor& indices);

/// linear_cross_entropy() with a packed weight (V, E), which gets no gradient. x is f32 on the CPU. The
/// activations are f32.
Tensor linear_cross_entropy(const Tensor& x, const PackedTensor& weight, const Tensor& target,
                            const LinearCrossEntropyParams& params = {});

}  // namespace tapestry
