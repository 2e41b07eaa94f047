#pragma once
// Backward functions that write their result into the memory of the gradient they got.
#include "tapestry/autograd/ops/internal/common.h"

namespace tapestry::autograd {

/// The gradient of the output, for a backward function that replaces each of its elements by one of the
/// result, which has the layout of `t`. Undefined if memory of its own must be allocated: because the pass is
/// recorded, anyone else may read the gradient (a hook, a user, another node), or the layouts differ. At the
/// peak of a step, one tensor of the size of an activation is then saved.
inline Tensor own_gradient(const Backward& g, const Tensor& t) {
  const Tensor& dy = g.grad();
  const bool ours = !g.create_graph() && dy.impl()->refs.load(std::memory_order_acquire) == 1 &&
                    dy.storage()->use_count() == 1 && !dy.device().is_meta() && dy.dtype() == t.dtype() &&
                    dy.sizes() == t.sizes() && dy.strides() == t.strides() &&
                    (dy.is_contiguous() || dy.is_contiguous(MemoryFormat::channels_last)) &&
                    static_cast<std::size_t>(dy.nbytes()) == dy.storage()->bytes();
  return ours ? dy : Tensor();
}

}  // namespace tapestry::autograd
