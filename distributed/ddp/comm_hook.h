#pragma once
// How one bucket of gradients is averaged: the default, compressed to half, or a user's own way.
//
//   ddp.set_comm_hook(distributed::bf16_compress);
//   ddp.set_comm_hook([](distributed::ProcessGroup& group, distributed::GradBucket& bucket) {
//     const NoGradGuard no_grad;
//     const Tensor sent = bucket.gradients.clamp(-1, 1);  // on the thread that runs backward
//     return distributed::InFlight{group.all_reduce(sent, distributed::ReduceOp::mean, bucket.name),
//                                  [sent, gradients = bucket.gradients] { gradients.copy_(sent); }};
//   });
#include <functional>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// Gradients that travel together.
struct GradBucket {
  int index = 0;
  int count = 0;                        ///< of all buckets
  std::string name;                     ///< for the record: "bucket 1 (fc.weight, fc.bias)"
  std::vector<std::string> parameters;  ///< in the order of the elements
  /// One-dimensional; this rank's sums, not yet divided by the number of ranks. The result replaces it. Each
  /// parameter's begin at a multiple of 64 bytes, with zeros before them.
  Tensor gradients;
};

/// A bucket on its way. `finish`, if given, runs at the end of backward on the thread that ran it, after
/// `work`.
struct InFlight {
  Work work;
  std::function<void()> finish = {};
};

/// Starts the reduction of a bucket; called during backward, on all ranks in the same order. The group must
/// not be waited for in here: that would end the overlap.
using CommHook = std::function<InFlight(ProcessGroup& group, GradBucket& bucket)>;

/// Averages in half precision: half the bytes of f32. Each addition rounds to 11 bits (f16; overflows beyond
/// 65504) or 8 bits (bf16). The division by the number of ranks comes first, so that the sum cannot overflow.
InFlight f16_compress(ProcessGroup& group, GradBucket& bucket);
InFlight bf16_compress(ProcessGroup& group, GradBucket& bucket);

}  // namespace tapestry::distributed
