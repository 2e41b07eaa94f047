#pragma once
// Communication hooks replace the way in which DDP averages a bucket of gradients: compressed to half
// precision, or by a function of the user.
//
//   ddp.set_comm_hook(distributed::bf16_compress);
//   ddp.set_comm_hook([](distributed::ProcessGroup& group, distributed::GradBucket& bucket) {
//     const NoGradGuard no_grad;
//     const Tensor sent = bucket.gradients.clamp(-1, 1);  // runs on the thread of backward
//     return distributed::InFlight{group.all_reduce(sent, distributed::ReduceOp::mean, bucket.name),
//                                  [sent, gradients = bucket.gradients] { gradients.copy_(sent); }};
//   });
#include <functional>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// One bucket: gradients that are reduced in one collective.
struct GradBucket {
  int index = 0;
  int count = 0;                        ///< the number of buckets
  std::string name;                     ///< for the flight recorder: "bucket 1 (fc.weight, fc.bias)"
  std::vector<std::string> parameters;  ///< in the order of the elements
  /// This rank's gradients in one dimension, not yet divided by the number of ranks. The hook overwrites them
  /// with the mean. Each parameter begins at a multiple of 64 bytes; the gaps are zero.
  Tensor gradients;
};

/// A bucket whose reduction is in flight. After `work` is done, `finish`, if given, runs on the thread of
/// backward: at the end of backward, or, in stage 2 of ZeroRedundancyOptimizer, when a later bucket is
/// posted. In stage 2 the bucket has no memory after that.
struct InFlight {
  Work work;
  std::function<void()> finish = {};
};

/// Starts the reduction of a bucket. It is called during backward, in the same order on all ranks. It must
/// not wait for the group, because waiting would end the overlap.
using CommHook = std::function<InFlight(ProcessGroup& group, GradBucket& bucket)>;

/// Averages in half precision, which halves the bytes of f32. Each addition rounds to 11 significant bits
/// (f16) or 8 (bf16). f16 overflows beyond 65504; gradients are divided by the number of ranks before they
/// are summed, so the sum does not overflow if they fit.
InFlight f16_compress(ProcessGroup& group, GradBucket& bucket);
InFlight bf16_compress(ProcessGroup& group, GradBucket& bucket);

}  // namespace tapestry::distributed
