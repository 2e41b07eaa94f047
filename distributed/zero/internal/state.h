#pragma once
// The state of a ZeroRedundancyOptimizer: this rank's parts of the parameters, and how they are gathered.
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/distributed/common/internal/reducer.h"
#include "tapestry/distributed/zero/zero.h"

namespace tapestry::distributed {

struct ZeroBase::State {
  struct Item {
    optim::Parameter slot;
    Tensor tensor;              // the slot's tensor when the optimizer was constructed
    std::string label;          // for error messages
    int place = -1;             // the index of the parameter in the division; -1 if it is frozen
    std::size_t share = 0;      // of `shares`
    optim::Parameter part;      // this rank's elements, in one dimension: what `inner` updates
    std::uint32_t version = 0;  // of the tensor's memory after the last step
    bool trained() const { return place >= 0; }
  };

  // Parameters whose state the same ranks divide. The first share has all parameters but ZeroOptions::parts,
  // and the second one has these.
  struct Share {
    std::shared_ptr<ProcessGroup> group;
    std::vector<int> item_of = {};  // by place
    Division division = {};         // valid when `settled`
    std::vector<int> order = {};    // of the parameters in the buckets; stage 2
    Reducer* reducer = nullptr;     // stage 2; null after the DistributedDataParallel was destroyed

    /// The end of the keys of local_state_dict(): "" for the first share, ".parts" for the second.
    const char* suffix = "";
  };

  explicit State(const ZeroOptions& options);
  ~State();

  void add_items(const Groups& groups);
  void make_division(Share& share);
  /// Makes the parts, whose places do not change any more. Collective if the reducer has learned an order.
  void settle();
  ElementRange range(const Item& item) const {
    const Share& share = shares[item.share];
    return share.division.part(item.place, share.group->rank());
  }
  Item& item_at(const Share& share, int place) {
    return items[static_cast<std::size_t>(share.item_of[static_cast<std::size_t>(place)])];
  }

  /// True if this rank updates a parameter.
  bool is_trained() const;
  /// What is wrong with this rank's parameters or gradients; empty if step() can run.
  std::string problem();
  /// True if step() updates this parameter.
  bool has_gradient(const Item& item);
  Tensor gradient(const Item& item) const;
  void compare_ranks(const std::string& options, bool has_stepped);
  void update(double grad_scale, const Tensor& loss_scale, const Tensor& found_inf);
  /// The names of the tensors that `inner` may keep for a parameter of this dtype.
  std::vector<const char*> state_names(DType parameter) const;

  /// In join(): gives the ranks that have joined the gradients of the rank `lead`, which may be clipped.
  void broadcast_gradients(int lead);

  const std::shared_ptr<ProcessGroup> group;  // of the first share: all ranks that step together
  JoinScope* join = nullptr;
  int stage;
  const double bucket_cap_mb;
  const std::vector<optim::Parameter> parts;
  std::vector<Item> items;    // in the order of parameters()
  std::vector<Share> shares;  // one, or two if other ranks divide `parts`
  std::unique_ptr<detail::DividedOptimizer> inner;
  bool settled = false, on_cpu = true;
  std::uint64_t loaded = 0;  // a hash of the numbers that load_state_dict() has loaded
  StateDict whole;           // of consolidate_state_dict()
  bool has_whole = false;    // this rank has the state of all parameters
  bool has_parts = false;    // it has the state of `parts`
  bool collected = false;    // consolidate_state_dict() was called since the last step

 private:
  struct Gathering {
    Share* share = nullptr;
    int bucket = 0;
    Tensor own, all;
    Work work;
  };
  Gathering start_gathering(Share& share, int bucket, const std::vector<bool>& updated);
  void finish_gathering(const Gathering& g, const std::vector<bool>& updated);
};

}  // namespace tapestry::distributed
