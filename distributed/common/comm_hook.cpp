#include "tapestry/distributed/common/comm_hook.h"

#include "tapestry/autograd/ops/elementwise.h"

namespace tapestry::distributed {
namespace {

InFlight compress(ProcessGroup& group, GradBucket& bucket, DType dtype) {
  const NoGradGuard no_grad;
  const Tensor half = (bucket.gradients / static_cast<double>(group.size())).to(dtype);
  return {group.all_reduce(half, ReduceOp::sum, bucket.name),
          [half, gradients = bucket.gradients] { gradients.copy_(half); }};
}

}  // namespace

InFlight f16_compress(ProcessGroup& group, GradBucket& bucket) { return compress(group, bucket, DType::f16); }
InFlight bf16_compress(ProcessGroup& group, GradBucket& bucket) {
  return compress(group, bucket, DType::bf16);
}

}  // namespace tapestry::distributed
