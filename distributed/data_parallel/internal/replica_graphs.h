#pragma once
// The graphs of one forward pass of DataParallel.
//
// Each replica's forward is recorded by its own worker, from leaves of its own (its part of the inputs, its
// parameters) to its own outputs. To the tape of the calling thread all of them are one node, whose inputs
// are the scattered tensors and whose outputs are the gathered ones. The node's backward hands each worker
// its part of the gradients; there it is an ordinary pass over an ordinary graph, so that leaves' hooks fire,
// and a Reducer overlaps, as in the process of a DDP rank. The engine needs to know nothing of threads:
// neither does it lock nor does a pass move between them, and what a hook sees is one thread's pass,
// complete.
#include <functional>
#include <memory>
#include <vector>

#include "tapestry/autograd/internal/nested.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/distributed/data_parallel/internal/replicas.h"

namespace tapestry::distributed {

/// Throws ValueError unless the first output is one floating number.
void check_loss(const std::vector<Tensor>& outputs);

class ReplicaGraphs : public std::enable_shared_from_this<ReplicaGraphs> {
 public:
  ReplicaGraphs(std::shared_ptr<Replicas> replicas, bool is_loss)
      : replicas_(std::move(replicas)), is_loss_(is_loss) {}

  /// Deals the batch out; inputs that need gradients become leaves.
  void scatter(const TensorList& batch);
  using Compute = std::function<std::vector<Tensor>(int replica, const std::vector<Tensor>& inputs)>;
  /// Runs compute on each replica that got a part.
  void apply(const Compute& compute);
  /// The outputs on the first device, recorded on the calling thread's tape as coming from `batch`.
  std::vector<Tensor> gather(const TensorList& batch);

 private:
  std::size_t parts() const { return inputs_.size(); }
  std::vector<Tensor> gathered_values() const;
  Tensor seed(const Tensor& gradient, std::size_t output, std::size_t replica) const;
  void backward(autograd::Backward& b);
  std::vector<Tensor> backward_of(std::size_t replica, const autograd::Backward& b, autograd::NestedPass mode,
                                  Reducer* reducer) const;
  void reduce_on_master() const;
  Tensor join_input(std::size_t input, const std::vector<std::vector<Tensor>>& gradients) const;

  struct Input {
    std::size_t index;  // in the batch
    bool whole;
    Device device;  // where it came from
  };
  const std::shared_ptr<Replicas> replicas_;
  const bool is_loss_;                        // the first output is the mean over the part
  std::vector<std::int64_t> shares_;          // samples, by replica
  std::vector<std::vector<Tensor>> inputs_;   // [replica][tensor of the batch]
  std::vector<std::vector<Tensor>> outputs_;  // [replica][output]
  std::vector<std::vector<Tensor>> masters_;  // [replica][slot], under Strategy::master
  std::vector<Input> node_inputs_;            // the node's, in its order
  std::vector<std::size_t> node_outputs_;     // indices of outputs
};

}  // namespace tapestry::distributed
