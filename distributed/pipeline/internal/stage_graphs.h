#pragma once
// What one stage computes in one pass: a graph a micro-batch, from leaves that stand for what came from the
// stage before to what goes to the stage after.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/core/stream.h"
#include "tapestry/distributed/pipeline/internal/hand_over.h"
#include "tapestry/distributed/pipeline/pipeline.h"

namespace tapestry::distributed {

/// What goes from a stage to its neighbour: values, and which of them want gradients; or gradients.
struct Parcel {
  std::vector<Tensor> tensors;
  std::vector<bool> wants_gradient = {};
  std::shared_ptr<const Departure> departure = {};  ///< from a GPU
};

/// A point in a device's work, by its own clock.
class Stamp {
 public:
  explicit Stamp(Device device);
  /// Waits for the GPU.
  double seconds_since(const Stamp& begin) const;

 private:
  Device device_;
  std::chrono::steady_clock::time_point time_;
  Event event_{true};
};

/// What the last stage needs to go on to the loss of a micro-batch, and that loss.
struct LossPart {
  const Pipeline::LossFunction& fn;
  const std::vector<Tensor>& targets;
  double weight;  ///< its share of the loss of the batch
  Tensor value = {};
};

/// Used by one thread at a time, that of the stage's device, with the device and the generator of the stage
/// in its context. `stage` outlives it.
class StageGraphs {
 public:
  /// `records`: backward will follow. `row`: of the timeline, if not the device's. `ways`: of the device,
  /// which outlive it; without them tensors come from other GPUs in the order of all work of both.
  StageGraphs(const Stage& stage, const PipelineOptions& options, int micro_batches, bool records,
              const char* row = nullptr, const Ways* ways = nullptr);

  /// Computes what the next stage needs, or, if there is none, the loss.
  Parcel forward(int micro_batch, const Parcel& inputs, LossPart* loss = nullptr);
  /// From the gradients of what forward returned (none after a loss) to those of what it got. Frees the
  /// graph, unless the schedule leaves the gradients of the weights to weights().
  Parcel backward(int micro_batch, const Parcel& gradients = {});
  void weights(int micro_batch);

  /// The seconds and bytes of this pass so far; waits for the GPU. Without `idle_s`.
  StageReport report() const;

 private:
  enum class Part { forward, backward, weights, receive };
  struct Lap {
    Part part;
    Stamp begin, end;
  };
  struct Graph {
    std::vector<Tensor> inputs;   // undefined where no gradient is wanted
    std::vector<Tensor> outputs;  // of the last stage the loss
    std::vector<Tensor> seeds;    // gradients of outputs, where there are any
    std::optional<autograd::WeightGradients> rest;
  };
  std::vector<Tensor> receive(const std::vector<Tensor>& tensors, int micro_batch,
                              const Departure* departure = nullptr);
  void send_off(Parcel& parcel) const;
  void compute_loss(Graph& graph, LossPart& loss, const std::vector<Tensor>& targets);
  template <class F>
  void timed(Part part, int micro_batch, Device clock, const F& f);

  const Stage& stage_;
  const bool records_, checkpoints_, postpones_weights_;
  std::string row_;
  const Ways* const ways_;
  std::vector<Graph> graphs_;
  std::vector<Lap> laps_;
  std::int64_t bytes_received_ = 0;
  int alive_ = 0, peak_ = 0;
};

}  // namespace tapestry::distributed
