#pragma once
// The graphs of one forward pass of DataParallel.
//
// Each worker records the graph of its replica, from leaves (the replica's parameters and its part of the
// inputs) to the replica's outputs. The calling thread's tape records all graphs together as one node. The
// node's inputs are the scattered tensors, and its outputs are the gathered ones. Its backward gives each
// worker a part of the gradients. The worker then runs an ordinary pass over an ordinary graph. So hooks of
// leaves fire, and a Reducer overlaps communication with backward, as in the process of a DDP rank. The
// engine needs neither locks nor passes that move between threads.
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tapestry/autograd/internal/nested.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/distributed/data_parallel/internal/replicas.h"

namespace tapestry::distributed {

/// Throws ValueError unless the first output is one floating-point number. `op` begins the text.
void check_loss(const char* op, const std::vector<Tensor>& outputs);

class ReplicaGraphs : public std::enable_shared_from_this<ReplicaGraphs> {
 public:
  /// If `loss` is given, the first output is a loss.
  ReplicaGraphs(std::shared_ptr<Replicas> replicas, std::optional<LossKind> loss)
      : replicas_(std::move(replicas)), loss_(loss) {}

  /// Scatters the batch. Inputs that require gradients become leaves. If the replicas are shards, one without
  /// a part of the batch computes the first part too, because the others wait for it; its results have weight
  /// 0.
  void scatter(const TensorList& batch);
  using Compute = std::function<std::vector<Tensor>(int replica, const std::vector<Tensor>& inputs)>;
  /// Runs `compute` on each replica that has inputs.
  void apply(const Compute& compute);
  /// Gathers the outputs on the first device and records them on the calling thread's tape as results of
  /// `batch`.
  std::vector<Tensor> gather(const TensorList& batch);

 private:
  std::size_t parts() const { return parts_; }
  double weight(std::size_t replica) const {
    return loss_ == LossKind::sum ? 1 : chunk_weight(sizes_, replica);
  }
  std::vector<Tensor> gathered_values() const;
  Tensor seed(const Tensor& gradient, std::size_t output, std::size_t replica) const;
  void backward(autograd::Backward& b);
  std::vector<Tensor> backward_of(std::size_t replica, const autograd::Backward& b, autograd::NestedPass mode,
                                  Reducer* reducer) const;
  void reduce_on_master() const;
  Tensor join_input(std::size_t input, const std::vector<std::vector<Tensor>>& gradients) const;

  struct Input {
    std::size_t index;  // its position in the batch
    bool whole;
    Device device;  // the device of the caller's tensor
  };
  const std::shared_ptr<Replicas> replicas_;
  const std::optional<LossKind> loss_;
  std::vector<std::int64_t> sizes_;           // samples, by replica
  std::size_t parts_ = 0;                     // the number of replicas that got a part of the batch
  std::vector<std::vector<Tensor>> inputs_;   // [replica][tensor of the batch]
  std::vector<std::vector<Tensor>> outputs_;  // [replica][output]
  std::vector<std::vector<Tensor>> masters_;  // [replica][slot], under DataParallelMode::master
  std::vector<Input> node_inputs_;            // the inputs that require gradients
  std::vector<std::size_t> node_outputs_;     // indices of the outputs that require gradients
};

}  // namespace tapestry::distributed
