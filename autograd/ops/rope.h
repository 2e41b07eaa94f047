#pragma once
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Computes rotary position embeddings (Su et al. 2021): rotates pair i of the features of each row by an
/// angle, so that products of rotated queries and keys depend on the distance of their positions alone. x is
/// (..., L, E). cos and sin have the cosines and sines of the angles, with P <= E / 2 pairs: (L, P), or
/// (N, L, P) for an x of (N, ..., L, E) whose sequences have different positions. They get no gradient, and
/// their dtype is f32, or f64 for an x of f64. nn::RotaryEmbedding computes them.
///
/// Pair i is (x[i], x[i + P]), as in the models of Hugging Face, or with `interleaved` (x[2 i], x[2 i + 1]),
/// as in the paper and in GGUF files of Llama. (a, b) becomes (a cos - b sin, a sin + b cos). Features from
/// 2 P on are copied. The two layouts give different numbers for the same weights, and no error.
///
/// The result is dense and has x's shape and dtype; x may be a transposed view, such as heads that are split
/// from a projection. Throws TypeError unless x is floating, and ValueError if shapes do not fit or a table
/// requires a gradient.
Tensor rotary_embedding(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved = false);

}  // namespace tapestry
