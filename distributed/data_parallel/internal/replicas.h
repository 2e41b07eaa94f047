#pragma once
// The replicas of a model and what keeps them equal.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tapestry/core/generator.h"
#include "tapestry/distributed/data_parallel/data_parallel.h"
#include "tapestry/distributed/ddp/reducer.h"

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

  /// Before a forward pass: the others become equal to the first, where they are not.
  void prepare();
  /// Under Strategy::master the others are for one pass only: the tensors of all slots, by replica, which the
  /// slots then no longer hold.
  std::vector<std::vector<Tensor>> take_replicas();
  /// The reverse: what a forward pass used is there for backward, which may compute some of it again.
  void put_replicas(const std::vector<std::vector<Tensor>>& tensors);
  /// The slots keep the first replica alone.
  void drop_replicas() noexcept;
  /// Which stream of random numbers a replica draws from in this pass: none of its own for the first.
  void seed_generators();
  Generator* generator(int replica) const { return generators_[static_cast<std::size_t>(replica)].get(); }

  /// One a replica, over the parameters that are trained now; none if nothing is to be averaged. Throws
  /// AutogradError after close().
  const std::vector<std::unique_ptr<Reducer>>& reducers();
  /// Before a pass: gradients that the first replica has from elsewhere (a backward pass around this object,
  /// a change by hand) go to the others, so that the mean keeps them. After it: what they are is remembered.
  void spread_gradients();
  void remember_gradients();
  /// Ends what a failed replica's peers wait for. From its worker.
  void abort(int replica, const std::string& why) noexcept;
  /// After a failure: the next pass makes another group.
  void drop_group() noexcept;
  /// The model is the user's alone again.
  void close() noexcept;

 private:
  // A parameter or buffer, and what its replicas were when they were equal.
  struct Slot {
    std::string name;
    nn::TensorSlot slot;
    bool is_parameter;
    std::vector<Tensor> replicas = {};
    std::vector<std::uint32_t> versions = {};
    std::vector<Tensor> gradients = {};
    std::vector<std::uint32_t> gradient_versions = {};

    void remember();
    bool is_known(std::size_t size) const;
    bool in_step() const;
    bool gradients_in_step() const;
    bool is_trained() const { return is_parameter && slot.replica(0).requires_grad(); }
  };

  void replicate_all();
  void refresh();
  void note_broadcast(const Slot& slot);
  void make_groups();

  nn::Module& model_;
  std::vector<Slot> slots_;
  std::int64_t bytes_broadcast_ = 0;
  std::vector<std::unique_ptr<Generator>> generators_;  // null for the first
  std::vector<std::shared_ptr<ProcessGroup>> groups_;   // a rank a replica
  std::vector<std::unique_ptr<Reducer>> reducers_;
  std::vector<bool> reduced_;  // which slots they have
  bool closed_ = false;
};

}  // namespace tapestry::distributed
