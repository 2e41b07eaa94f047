#pragma once
// What two nodes of a backward pass may agree to leave out, so that a step needs fewer launches on a GPU. An
// operation lists itself once, by an object next to its Op:
//
//   const Op kLoss("loss", Grad::twice, kFloats);
//   const TakesOne takes_one(kLoss);
#include <cstdint>

#include "tapestry/autograd/op.h"

namespace tapestry::autograd {

/// The operation's backward calls gradient_is_one() before it reads b.grad().
struct TakesOne {
  explicit TakesOne(const Op& op);
};
/// In a backward: true if the pass begins at this node with the implied gradient 1, as loss.backward() does.
/// Then b.grad() is undefined.
bool gradient_is_one();

/// The operation's result is that of relu, and its backward calls gradient_is_masked() before it multiplies
/// by relu's derivative.
struct TakesMasked {
  explicit TakesMasked(const Op& op);
};
/// In the backward of a node whose input `input` may be such a result: true if the node must multiply the
/// gradient that it sets for this input by relu's derivative, which is 0 where the result is 0. That is so if
/// no other node contributes to that gradient, and neither a hook nor the caller of the pass sees it.
bool masks_gradient(std::uint32_t input);
/// In a backward: true if the node that uses the result has multiplied its gradient by relu's derivative.
bool gradient_is_masked();

}  // namespace tapestry::autograd
