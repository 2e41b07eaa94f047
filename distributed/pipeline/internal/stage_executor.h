#pragma once
// StageExecutor runs one stage in one pass. Per micro-batch it records a graph from leaves, which stand for
// the tensors of the previous stage, to the tensors for the next stage.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/internal/leaf_guard.h"
#include "tapestry/core/stream.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/distributed/pipeline/internal/copy_between_stages.h"
#include "tapestry/distributed/pipeline/pipeline.h"
#include "tapestry/distributed/placement/placement.h"

namespace tapestry::distributed {

/// A message from a stage to its neighbour. It holds outputs, and whether each requires a gradient, or it
/// holds gradients.
struct Message {
  std::vector<Tensor> tensors;
  std::vector<bool> requires_grad = {};
  std::shared_ptr<const ReadyEvent> ready = {};  ///< null if the tensors are not on a GPU
  /// How each tensor is placed along each axis that the stages check; empty while nothing is checked.
  std::vector<std::vector<std::optional<Placement>>> placements = {};
};

/// A point in a device's work, as a time. It is the host's time for a CPU, and an event in the current stream
/// for a GPU.
class Timestamp {
 public:
  explicit Timestamp(Device device);
  /// Synchronizes with the GPU.
  double seconds_since(const Timestamp& begin) const;

 private:
  Device device_;
  std::chrono::steady_clock::time_point time_;
  Event event_{true};
};

/// The loss of one micro-batch: what the last stage needs to compute it, and the result.
struct MicroBatchLoss {
  const Pipeline::LossFunction& fn;
  const std::vector<Tensor>& targets;
  double weight;      ///< the weight of this micro-batch in the mean over the batch
  Tensor value = {};  ///< the result, times weight
};

/// Runs one stage in one pass. Use it from one thread at a time, whose context must have the device and the
/// generator of the stage. `stage` must outlive it.
class StageExecutor {
 public:
  /// `records` is true if backward follows. `row` is the row of the timeline; null means the name of the
  /// device. `copy_streams` belong to the device and must outlive this object. If they are null, copies
  /// between GPUs are ordered with all other work of both GPUs. While placements are checked, inputs get the
  /// placements along `axes` that their message carries, and outputs carry theirs.
  StageExecutor(const Stage& stage, const PipelineOptions& options, int micro_batches, bool records,
                const char* row = nullptr, const CopyStreams* copy_streams = nullptr,
                const std::vector<Axis>& axes = {});

  /// Computes the outputs for the next stage. With `loss`, computes the loss too.
  Message forward(int micro_batch, const Message& inputs, MicroBatchLoss* loss = nullptr);
  /// Takes the gradients of forward's outputs (none if forward computed a loss) and returns those of its
  /// inputs. Frees the graph unless the schedule postpones the gradients of the weights to weights(). A
  /// caller that moves the message lets its memory go as soon as it is copied and used.
  Message backward(int micro_batch, Message gradients = {});
  void weights(int micro_batch);

  /// The times and bytes of this pass so far, except `idle_s`. Synchronizes with the GPU.
  StageReport report() const;

 private:
  enum class Part { forward, backward, weights, receive };
  struct Interval {
    Part part;
    Timestamp begin, end;
  };
  struct Graph {
    std::vector<Tensor> inputs;   // undefined if no gradient is required
    std::vector<Tensor> outputs;  // the loss, if there is one
    std::vector<Tensor> seeds;    // the gradients of the outputs; undefined if there is none
    std::optional<autograd::WeightGradients> postponed;
  };
  std::vector<Tensor> receive(std::vector<Tensor> tensors, int micro_batch,
                              const ReadyEvent* ready = nullptr);
  void record_ready_event(Message& message) const;
  void compute_loss(Graph& graph, MicroBatchLoss& loss, const std::vector<Tensor>& targets);
  void allow_parameters();
  [[noreturn]] void refuse(const Tensor& leaf, const char* op) const;
  template <class F>
  void timed(Part part, int micro_batch, Device clock, const F& f, std::int64_t bytes = 0);

  const Stage& stage_;
  const bool records_, checkpoints_, postpones_weights_;
  std::string row_;
  const CopyStreams* const copy_streams_;
  std::vector<Axis> axes_;  // not const, so that executors move
  std::vector<Graph> graphs_;
  autograd::LeafSet leaves_;  // the leaves that may get gradients
  bool parameters_allowed_ = false;
  std::vector<Interval> intervals_;
  std::int64_t bytes_received_ = 0;
  int alive_ = 0, peak_ = 0;
};

}  // namespace tapestry::distributed
