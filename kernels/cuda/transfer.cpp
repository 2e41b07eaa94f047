// Copies between devices: core does them, in the order of streams.
#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry::kernels {
namespace {

const bool filled = [] {
  transfer.set(DeviceType::cuda, DType::u8, &cuda::copy_bytes);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels
