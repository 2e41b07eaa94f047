#pragma once
// A row adds a mode: what one axis of a mesh does to a model. Each row is a file row.cpp in the folder of its
// strategy, with a class derived from StrategyLayer and a registration:
//
//   const RowRegistration registration{{.axis = "replicate", .order = 70, .options = "compress", .make =
//   ...}};
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/distributed/strategy/strategy.h"

namespace tapestry::distributed {

/// Where a layer works.
struct LayerContext {
  std::optional<Axis> axis;  ///< empty for a strategy without axes
  AxisSpec spec;
  std::vector<Device> devices;  ///< on which this process computes
  int parts = 1;                ///< of a step
};

/// Transfers add up to bytes_sent; add_transfer() adds to both.
struct LayerReport : AxisReport {
  std::vector<Transfer> transfers = {};
};

/// What the layers of a strategy share: the model, what the application says of it, and the divisor.
class StrategyLayer {
 public:
  explicit StrategyLayer(LayerContext context) : context_(std::move(context)) {}
  virtual ~StrategyLayer() = default;

  // ---- facts: see Strategy ----
  virtual bool builds_in_parts() const { return false; }
  virtual bool calls_are_collective() const { return false; }
  virtual bool can_call_model() const { return true; }
  /// True if gradients() takes the whole step at once and divides it into parts itself.
  virtual bool takes_whole_step() const { return false; }

  /// Changes the model. The base class moves it to the first device.
  virtual void wrap(nn::Module& model, const ModelParts& parts);
  /// Computes the loss of a batch, divided by the step's count, and adds its gradients. The base class
  /// computes on one device.
  virtual StepLoss gradients(const Part& part, const Batch& batch, double count, optim::GradScaler* scaler);
  /// Called before an evaluation. Collective.
  virtual void before_evaluation() {}
  /// The loss of a batch, without gradients. `outputs` is null if nobody wants them.
  virtual Loss evaluate(const Batch& batch, std::vector<Tensor>* outputs);
  virtual OptimizerDivision optimizer_division() const { return {}; }
  /// The tensors of the whole model in host memory, if `keep`. Collective.
  nn::StateDict whole_state(bool keep) const;
  virtual std::shared_ptr<void> unshard() const { return nullptr; }
  /// Members of transfers are coordinates along the axis.
  virtual LayerReport report() const { return {}; }
  /// The targets that losses have counted since the last call. NaN if the layer does not know.
  virtual double take_counted() { return counted_.exchange(0); }

 protected:
  const LayerContext& context() const { return context_; }
  Device device() const { return context_.devices[0]; }
  nn::Module& model() const { return *model_; }
  const ModelParts& parts() const { return *parts_; }
  void attach(nn::Module& model, const ModelParts& parts) { model_ = &model, parts_ = &parts; }
  /// Both ModelParts::forward and ModelParts::loss, or forward_loss. Stores the outputs, if they are wanted.
  Loss compute(const Batch& batch, std::vector<Tensor>* outputs = nullptr) const;
  /// ModelParts::loss. A mean over no targets becomes 0, and gives the outputs gradients of 0.
  Loss loss_of(const std::vector<Tensor>& outputs, const std::vector<Tensor>& targets) const;
  /// A loss of a step as its part of the mean over `count` targets. May be called on several threads.
  Tensor part_of_mean(const Loss& loss, double count);

 private:
  const LayerContext context_;
  nn::Module* model_ = nullptr;
  const ModelParts* parts_ = nullptr;
  std::atomic<double> counted_ = 0;
};

/// Throws ValueError if the losses of two parts or turns have different numbers of Loss::sums.
void check_sums(std::size_t before, std::size_t now);

/// Bytes that each of n devices sends in a ring: an all-reduce sends 2 (n - 1) / n of the bytes, and an
/// all-gather or a reduce-scatter (n - 1) / n (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
/// for clusters of workstations", 2009).
inline std::int64_t all_reduce_bytes(std::int64_t bytes, int n) { return 2 * (n - 1) * bytes / n; }
inline std::int64_t gather_bytes(std::int64_t bytes, int n) { return (n - 1) * bytes / n; }

/// Adds what one member of an axis has sent to another one in the step. Members are coordinates along the
/// axis.
void add_transfer(LayerReport& report, int from, int to, std::int64_t bytes, const char* what);
/// Adds what a member has sent to the next one in the ring of all members.
inline void add_to_ring(LayerReport& report, const Axis& axis, std::int64_t bytes, const char* what) {
  const int from = axis.coordinate();
  add_transfer(report, from, (from + 1) % axis.size(), bytes, what);
}

struct StrategyRow {
  const char* axis;
  bool over_devices = false;
  /// The option of the axis that adds this row to the axis's own; null: the row of the axis.
  const char* option = nullptr;
  int order;                 ///< of wrapping: rows with smaller numbers wrap first
  const char* options = "";  ///< names of the options that it reads, separated by spaces
  bool splits_model = false;
  const char* about = "";  ///< for lists of modes
  /// Adds to what the rows before it say of the axis's step, for predictions. False, or no function: the
  /// planner cannot predict these options.
  bool (*divide)(const AxisSpec&, StepDivision&) = nullptr;
  std::unique_ptr<StrategyLayer> (*make)(const LayerContext&);
  const StrategyRow* next = nullptr;
};

/// Adds a row when the program starts, and removes it at its end.
class RowRegistration {
 public:
  explicit RowRegistration(StrategyRow row);
  ~RowRegistration();
  RowRegistration(const RowRegistration&) = delete;
  RowRegistration& operator=(const RowRegistration&) = delete;

 private:
  StrategyRow row_;
};

/// The rows of an axis with these options, by ascending order.
std::vector<const StrategyRow*> rows_of(const AxisSpec& axis, bool over_devices);

}  // namespace tapestry::distributed
