// Registers the kernel for copies between devices. core/cuda implements the copies, in stream order.
#include "tapestry/core/cuda/internal/copy.h"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry::kernels {
namespace {

const bool filled = [] {
  transfer.set(DeviceType::cuda, DType::u8, [](const LaunchContext&, const TransferArgs& a) {
    cuda::copy_bytes(a.to, a.out, a.from, a.x, a.bytes);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels
