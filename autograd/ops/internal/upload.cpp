#include "tapestry/autograd/ops/internal/upload.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/pinned.h"
#include "tapestry/core/stream.h"

namespace tapestry::autograd {

Tensor uploaded(const Tensor& table, Device device) {
  if (!device.is_cuda() || table.numel() == 0) return table.to(device);
  const Tensor pinned = empty_pinned(table.sizes(), table.dtype());
  pinned.copy_(table);
  const Tensor out = empty(table.sizes(), {table.dtype(), device});
  copy_async(out, pinned, current_stream(device));
  return out;
}

Tensor uploaded(const std::vector<std::int64_t>& numbers, Device device) {
  return uploaded(tensor(numbers, TensorOptions(DType::i64, kCPU)), device);
}

}  // namespace tapestry::autograd
