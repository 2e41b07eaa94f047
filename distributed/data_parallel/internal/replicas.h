#pragma once
// Holds the replicas of a model and keeps them equal.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tapestry/core/generator.h"
#include "tapestry/distributed/comm/internal/replica_groups.h"
#include "tapestry/distributed/common/internal/reducer.h"
#include "tapestry/distributed/data_parallel/data_parallel.h"

namespace tapestry::distributed {

/// replicate() for some slots.
void replicate_slots(const std::vector<nn::TensorSlot>& slots, std::span<const Device> devices);

/// Throws ValueError, with the device and the difference, unless the replicas of a tensor are equal; NaN
/// equals NaN. `what` names the tensor.
void check_equal(const char* op, const std::string& what, std::span<const Device> devices,
                 const std::vector<Tensor>& replicas);

/// Shared by a DataParallel and the graphs of its forward passes, which may outlive it. ShardedReplicas is
/// derived from it: there, only buffers have replicas, and the replicas wait for one another in forward too.
class Replicas {
 public:
  Replicas(nn::Module& model, std::vector<Device> devices, const DataParallelOptions& options);
  virtual ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  const char* const op;  ///< begins the texts of errors
  const std::vector<Device> devices;
  const DataParallelOptions options;
  /// True if every replica takes part in every pass, because the others wait for it in collectives.
  virtual bool are_sharded() const { return false; }
  std::size_t size() const { return devices.size(); }
  std::span<const Device> first(std::size_t count) const { return std::span(devices).first(count); }
  bool are_persistent() const { return options.mode == DataParallelMode::replicated && size() > 1; }
  std::int64_t bytes_broadcast() const { return bytes_broadcast_; }
  DdpReport report() const { return reducers_.empty() ? DdpReport() : reducers_[0]->report(); }

  /// Makes the other replicas equal to the first. Call it before each forward pass.
  void synchronize();
  /// Runs task(r) for the first `count` replicas, as on_replicas() does. If they are `collective`, they wait
  /// for one another, so the first one that fails aborts the group and the others fail because of it: only
  /// the first exception is rethrown, after drop_group().
  void run(std::size_t count, bool collective, const std::function<void(int)>& task);
  /// Removes the replicas from the slots and returns their tensors, as [replica][slot]. Under
  /// DataParallelMode::master replicas exist for one pass only.
  std::vector<std::vector<Tensor>> detach_replicas();
  /// Puts the tensors of detach_replicas() back into the slots, so that a backward pass that recomputes
  /// activations finds what forward used.
  void attach_replicas(const std::vector<std::vector<Tensor>>& tensors);
  /// Keeps only the first replica in each slot.
  void drop_replicas() noexcept;
  /// Seeds the generators of all replicas but the first for one pass.
  void seed_generators();
  /// The generator of a replica. Null for the first, which uses the current generator of its device.
  Generator* generator(int replica) const { return generators_[static_cast<std::size_t>(replica)].get(); }

  /// One reducer per replica for the parameters that require gradients now. Empty if there are none. Throws
  /// AutogradError after close().
  const std::vector<std::unique_ptr<Reducer>>& reducers();
  /// Drops the gradients of all replicas but the first. Call it before a backward pass: its sum over the
  /// replicas then counts earlier gradients once.
  void leave_gradients_to_first();
  /// In this scope, gradients that arrive at the first replica come from the replicas' own passes. Outside of
  /// it, they come from the caller's graph, which uses parameters outside of the model's call. The other
  /// replicas then get the first one's sum at the end of the caller's pass.
  class PassScope {
   public:
    explicit PassScope(Replicas& replicas) : replicas_(replicas) { replicas_.in_pass_ = true; }
    ~PassScope() { replicas_.in_pass_ = false; }
    PassScope(const PassScope&) = delete;
    PassScope& operator=(const PassScope&) = delete;

   private:
    Replicas& replicas_;
  };
  /// Records the gradients and their versions for the next step of an optimizer.
  /// Call it after a backward pass.
  void record_gradients();
  /// Throws ValueError, with the device and the difference, if the first pass has left the replicas of a
  /// parameter with different values.
  void compare_once();
  /// Removes all replicas from the model. Later calls of reducers() throw.
  void close() noexcept;

 protected:
  struct SomeSlots {};  // the derived class lists the slots with add_slot()
  Replicas(SomeSlots, const char* op, nn::Module& model, std::vector<Device> devices,
           const DataParallelOptions& options);
  void add_slot(const std::string& name, const nn::TensorSlot& slot, bool is_parameter) {
    slots_.push_back({name, slot, is_parameter});
  }
  void replicate_all();
  nn::Module& model() const { return model_; }

  /// Aborts the group, so that the peers of a failed replica stop waiting. Call it on the replica's worker.
  virtual void abort(int replica, const std::string& why) noexcept;
  /// Drops the process group after a failure. The next pass creates a new one.
  virtual void drop_group() noexcept;
  /// Called on the replica's worker when its part of a collective task has ended without an exception.
  virtual void end_task(int replica) { static_cast<void>(replica); }
  /// Called on the caller's thread before and after tasks run.
  virtual void begin_run() {}
  virtual void end_run() noexcept {}

 private:
  // A parameter or buffer. The vectors describe its replicas at the time when they were last equal.
  struct Slot {
    std::string name;
    nn::TensorSlot slot;
    bool is_parameter;
    Tensor watched = {};  // the first replica's tensor that has `hook`
    HookHandle hook = {};
    std::vector<Tensor> replicas = {};
    std::vector<std::uint32_t> versions = {};
    std::vector<Tensor> gradients = {};
    std::vector<std::uint32_t> gradient_versions = {};

    void record();
    bool holds_recorded(std::size_t size) const;
    // How often a replica, or its gradient, was changed since it was recorded.
    std::uint32_t changes(std::size_t r) const { return replicas[r].version() - versions[r]; }
    std::int64_t gradient_changes(std::size_t r) const;
    bool replicas_agree() const;
    bool gradients_agree() const;
    std::vector<Tensor> current_gradients() const;
    bool is_trained() const { return is_parameter && slot.replica(0).requires_grad(); }
  };

  void refresh();
  void watch_gradients();
  void on_gradient();
  void before_step();
  void broadcast_gradients();
  void copy_gradients(const std::vector<const Slot*>& slots);
  void note_broadcast(const Slot& slot);

  /// What optimizers call before they step the parameters.
  const nn::TensorSlot::BeforeStep before_step_ =
      std::make_shared<const std::function<void()>>([this] { before_step(); });
  nn::Module& model_;
  const bool all_slots_;  // of the model
  std::vector<Slot> slots_;
  std::int64_t bytes_broadcast_ = 0;
  std::vector<std::unique_ptr<Generator>> generators_;  // by replica; null for the first
  ReplicaGroups groups_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
  std::vector<bool> reduced_;  // by slot: whether the reducers include it
  bool closed_ = false;
  bool in_pass_ = false, compared_ = false;
  std::uint64_t outside_pass_ = 0;  // the last pass of the caller that gave the first replica a gradient
};

}  // namespace tapestry::distributed
