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
  std::optional<Axis> axis;  ///< empty for a strategy without axes; `copies` for `replicate`
  AxisSpec spec;
  std::vector<Device> devices;  ///< on which this process computes
  int parts = 1;                ///< of a step
  std::vector<Axis> axes = {};  ///< all of the strategy, outermost first
  /// All axes over ranks along which parameters are copied (StrategyRow::copies), joined to one. Empty: none.
  std::optional<Axis> copies = {};
  /// Of these, the axes along which rows divide some parameters instead (StrategyRow::divides), and the
  /// others joined to one: the copies of such a parameter are along them. Empty: none.
  std::vector<Axis> dividing = {};
  std::optional<Axis> copies_of_parts = {};

  /// True if the ranks of an axis of `dividing` have different parts of the parameter.
  bool is_part(const nn::TensorSlot& slot) const;
  /// The axis of this name, or null if the strategy has none.
  const Axis* other(std::string_view name) const {
    for (const Axis& a : axes)
      if (a.name() == name) return &a;
    return nullptr;
  }
};

/// The modules of a model that this process computes. A layer that leaves it a part of the model narrows
/// them for the layers behind it.
struct LocalModules {
  std::vector<nn::Module*> roots;  ///< those that are called: the model, or the modules of a stage
  std::vector<nn::Module*> units;  ///< those of ModelParts::units that are inside the roots
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

  /// What this process computes of the samples that it has read: all of them, or its positions of their
  /// sequences.
  virtual Batch own_part(Batch batch) const { return batch; }
  /// Changes the model, or what earlier layers have left this process of it. In the first layer, the base
  /// class moves the model to the first device, unless parameters are on the meta device.
  virtual void wrap(nn::Module& model, const ModelParts& parts, LocalModules& local);
  /// Computes the loss of a batch, divided by the step's count, and adds its gradients. Only the first layer
  /// computes. It calls forward_begins(), backward_begins() and backward_ended() of this class around each
  /// part of the step, which may be a micro-batch. The base class computes on one device.
  virtual StepLoss gradients(const Part& part, const Batch& batch, double count, optim::GradScaler* scaler);
  /// Called before forward of a part. May be collective: all ranks with the same parameters call it.
  virtual void before_forward(const Part&) {}
  /// Called before backward of a part, whose gradients are added to those of earlier ones. Part::last says
  /// that the gradients are complete then. The result is destroyed when backward has ended.
  virtual std::shared_ptr<void> before_backward(const Part&) { return nullptr; }
  /// Called when backward of a part has ended without an exception. May be collective, as before_forward().
  virtual void after_backward(const Part&) {}
  /// Called before forward of a stage, in training and in evaluation. The result is destroyed when it has
  /// ended. For functions that use parameters without calling the modules that have them.
  virtual std::shared_ptr<void> around_stage() { return nullptr; }
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
  /// report(), and what the layer sends along other axes, if it does the work of their rows.
  virtual std::vector<LayerReport> reports() const { return {report()}; }
  /// The targets that losses have counted since the last call. NaN if the layer does not know.
  virtual double take_counted() { return counted_.exchange(0); }

 protected:
  const LayerContext& context() const { return context_; }
  Device device() const { return context_.devices[0]; }
  nn::Module& model() const { return *model_; }
  const ModelParts& parts() const { return *parts_; }
  /// True for the layer that wraps the model first, and computes.
  bool is_first() const { return all_[0] == this; }
  void attach(nn::Module& model, const ModelParts& parts) { model_ = &model, parts_ = &parts; }
  /// Calls before_forward() of all layers.
  void forward_begins(const Part& part);
  /// Calls before_backward() of all layers. Keep the result until backward has ended.
  [[nodiscard]] std::vector<std::shared_ptr<void>> backward_begins(const Part& part);
  /// Calls after_backward() of all layers.
  void backward_ended(const Part& part);
  /// Calls around_stage() of all layers. Keep the result until forward has ended.
  [[nodiscard]] std::vector<std::shared_ptr<void>> stage_begins();
  /// Both ModelParts::forward and ModelParts::loss, or forward_loss. Stores the outputs, if they are wanted.
  Loss compute(const Batch& batch, std::vector<Tensor>* outputs = nullptr) const;
  /// ModelParts::loss. A mean over no targets becomes 0, and gives the outputs gradients of 0.
  Loss loss_of(const std::vector<Tensor>& outputs, const std::vector<Tensor>& targets) const;
  /// A loss of a step as its part of the mean over `count` targets. May be called on several threads.
  Tensor part_of_mean(const Loss& loss, double count);

 private:
  friend class Strategy;
  const LayerContext context_;
  std::vector<StrategyLayer*> all_{this};  // the layers of the strategy, in the order of wrapping
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

/// Adds what one member of an axis has sent to another one in a phase of the step: see Transfer. Members are
/// coordinates along the axis.
void add_transfer(LayerReport& report, int from, int to, std::int64_t bytes, const char* what,
                  const char* phase = "");
/// Adds what a member has sent to the next one in the ring of all members.
inline void add_to_ring(LayerReport& report, const Axis& axis, std::int64_t bytes, const char* what,
                        const char* phase = "") {
  const int from = axis.coordinate();
  add_transfer(report, from, (from + 1) % axis.size(), bytes, what, phase);
}

/// What the members of an axis compute of a step.
enum class Computes : std::uint8_t {
  own_samples,    ///< samples that no other member reads
  own_positions,  ///< the same samples as the others, and positions of their sequences that no other one has
  own_stage,      ///< the same samples, and a part of the model after the others or before them
  own_elements    ///< the same samples, and parts of each layer: all members know the same loss
};

struct StrategyRow {
  const char* axis;
  bool over_devices = false;
  /// The option of the axis that adds this row to the axis's own; null: the row of the axis.
  const char* option = nullptr;
  int order;                 ///< of wrapping: rows with smaller numbers wrap first
  const char* options = "";  ///< names of the options that it reads, separated by spaces
  Computes computes = Computes::own_samples;
  /// The ranks of the axis have the same parameters, and add their gradients. That is the work of the row
  /// `replicate`, or of `shard` if there is that axis, along all such axes at once.
  bool copies = false;
  /// With `copies`: but some parameters the row divides among the ranks of its axis (nn::Layout). Their
  /// gradients are complete along it when backward ends, and are not added along it.
  bool divides = false;
  bool splits_model = false;
  std::string_view excludes = {};   ///< an axis with which the row cannot be combined
  const char* excluding = nullptr;  ///< the option that must be off ("none", "0") then; null: never
  const char* instead = "";         ///< what to do then
  const char* about = "";           ///< for lists of modes
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
