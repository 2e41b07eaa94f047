#pragma once
#include "tapestry/nn/layers/attention.h"
#include "tapestry/nn/layers/rope.h"

namespace tapestry::nn::detail {

/// The angles of the rows of x (N, L, features): those of the positions after the tokens in the cache, or of
/// this rank's part of a divided sequence.
inline RotaryEmbedding::Angles angles_of(RotaryEmbedding& rotary, const KeyValueCache* cache,
                                         const DividedSequence* sequence, const Tensor& x) {
  return sequence ? rotary.angles(sequence->positions(x.size(1), x.device()), x.dtype())
                  : rotary.angles(cache ? cache->length() : 0, x.size(1), x.dtype(), x.device());
}

}  // namespace tapestry::nn::detail
