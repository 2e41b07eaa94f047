#pragma once
// Holds the replicas of a model and keeps them equal.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tapestry/core/generator.h"
#include "tapestry/distributed/common/internal/reducer.h"
#include "tapestry/distributed/data_parallel/data_parallel.h"

namespace tapestry::distributed {

/// Shared by a DataParallel and the graphs of its forward passes, which may outlive it.
class Replicas {
 public:
  Replicas(nn::Module& model, std::vector<Device> devices, const DataParallelOptions& options);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  const std::vector<Device> devices;
  const DataParallelOptions options;
  std::size_t size() const { return devices.size(); }
  std::span<const Device> first(std::size_t count) const { return std::span(devices).first(count); }
  bool are_persistent() const { return options.strategy == Strategy::replicated && size() > 1; }
  std::int64_t bytes_broadcast() const { return bytes_broadcast_; }
  DdpReport report() const { return reducers_.empty() ? DdpReport() : reducers_[0]->report(); }

  /// Makes the other replicas equal to the first. Call it before each forward pass.
  void synchronize();
  /// Removes the replicas from the slots and returns their tensors, as [replica][slot]. Under
  /// Strategy::master replicas exist for one pass only.
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
  /// Copies the first replica's gradients to the others if something else changed them (another backward
  /// pass, the user), so that the mean includes them. Call it before a backward pass.
  void broadcast_gradients();
  /// Records the gradients and their versions for the next broadcast_gradients(). Call it after a backward
  /// pass.
  void record_gradients();
  /// Aborts the group, so that the peers of a failed replica stop waiting. Call it on the replica's worker.
  void abort(int replica, const std::string& why) noexcept;
  /// Drops the process group after a failure. The next pass creates a new one.
  void drop_group() noexcept;
  /// Removes all replicas from the model. Later calls of reducers() throw.
  void close() noexcept;

 private:
  // A parameter or buffer. The vectors describe its replicas at the time when they were last equal.
  struct Slot {
    std::string name;
    nn::TensorSlot slot;
    bool is_parameter;
    std::vector<Tensor> replicas = {};
    std::vector<std::uint32_t> versions = {};
    std::vector<Tensor> gradients = {};
    std::vector<std::uint32_t> gradient_versions = {};

    void record();
    bool holds_recorded(std::size_t size) const;
    bool replicas_agree() const;
    bool gradients_agree() const;
    bool is_trained() const { return is_parameter && slot.replica(0).requires_grad(); }
  };

  void replicate_all();
  void refresh();
  void note_broadcast(const Slot& slot);
  void make_groups();

  nn::Module& model_;
  std::vector<Slot> slots_;
  std::int64_t bytes_broadcast_ = 0;
  std::vector<std::unique_ptr<Generator>> generators_;  // by replica; null for the first
  std::vector<std::shared_ptr<ProcessGroup>> groups_;   // one rank per replica
  std::vector<std::unique_ptr<Reducer>> reducers_;
  std::vector<bool> reduced_;  // by slot: whether the reducers include it
  bool closed_ = false;
};

}  // namespace tapestry::distributed
