#pragma once
// Gradients that are divided among ranks: each rank has a part of the elements. The reducer of ZeRO's stage 2
// makes them, and nn::clip_grad_norm_ reads them.
#include <cstdint>

#include "tapestry/core/storage.h"
#include "tapestry/core/tensor.h"

namespace tapestry::nn {

/// The source of the storage of a divided gradient. grad() of the parameter is a tensor of the parameter's
/// shape whose memory is released, so that reading it throws instead of giving one rank's part.
class DividedGradients : public StorageSource {
 public:
  /// This rank's elements of the gradient that has this storage, in one dimension. Changes of the result
  /// change the gradient. Empty if other ranks have all elements.
  virtual Tensor part(const Storage& storage) = 0;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// Collective: adds `values` over all ranks in place, and waits. All ranks get the same bits.
  virtual void sum_over_ranks(const Tensor& values) = 0;

 protected:
  ~DividedGradients() = default;
};

/// The source of a divided gradient; null if the gradient is an ordinary tensor or undefined.
inline DividedGradients* divided_gradients(const Tensor& grad) {
  if (!grad.defined() || !grad.storage()->is_released()) return nullptr;
  return dynamic_cast<DividedGradients*>(grad.storage()->source());
}

}  // namespace tapestry::nn
