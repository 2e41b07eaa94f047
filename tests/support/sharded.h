#pragma once
// Layouts for tests, without units, prefetching and full tensors: each rank keeps its box.
#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/autograd/ops/view.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/nn/module.h"

namespace tapestry::test {

/// The groups of the ranks that this process has: one, or one per replica.
using RankGroups = std::vector<std::shared_ptr<distributed::ProcessGroup>>;

/// Process groups as nn sees them.
class GroupRanks final : public nn::RankGroup {
 public:
  explicit GroupRanks(RankGroups groups) : groups_(std::move(groups)) {}
  int size() const override { return groups_[0]->size(); }
  int rank(int replica) const override { return groups_.at(static_cast<std::size_t>(replica))->rank(); }
  const void* id(int replica) const override { return groups_.at(static_cast<std::size_t>(replica)).get(); }
  void sum(int replica, const Tensor& values) const override {
    ++sums;
    groups_.at(static_cast<std::size_t>(replica))->all_reduce(values).wait();
  }
  inline static std::atomic<int> sums;  ///< calls of sum()

 private:
  RankGroups groups_;
};

/// Ranks that do not communicate, for tests of what reads slots, such as checkpoints.
class SilentRanks final : public nn::RankGroup {
 public:
  SilentRanks(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  int size() const override { return ranks_; }
  int rank(int) const override { return rank_; }
  const void* id(int) const override { return nullptr; }
  void sum(int, const Tensor&) const override { throw std::logic_error("SilentRanks do not communicate"); }

 private:
  int rank_, ranks_;
};

/// A layout that can refuse reads, as in forward() of a model that needs whole tensors.
class TestLayout final : public nn::Layout {
 public:
  using Layout::Layout;
  const Tensor& read(int replica) const override {
    check(!computing, "[test] the parameter is read inside forward()");
    return stored(replica);
  }
  bool computing = false;  ///< as if the thread were inside forward()
};

/// Adds a cut to the slot, which then stores this rank's box of what it stored. Of a slot with one tensor per
/// replica of `ranks`, each replica gets its own box.
inline std::shared_ptr<TestLayout> cut(nn::TensorSlot slot, std::shared_ptr<const nn::RankGroup> ranks,
                                       int dim, int replicas = 1) {
  const NoGradGuard no_grad;
  const auto now = slot.layout();
  std::vector<nn::Cut> cuts = now ? now->cuts() : std::vector<nn::Cut>();
  std::vector<Tensor> stored;
  for (int r = 0; r < replicas; ++r) {
    const Tensor all = slot.replica(slot.replicas() > r ? r : 0);
    const nn::Region box = nn::Region::whole(all.sizes());
    stored.push_back(dim == nn::Cut::kCopied
                         ? all.detach().clone()
                         : box.part(dim, ranks->rank(r), ranks->size()).of(all.detach()).clone());
    if (is_floating(all.dtype())) stored.back().set_requires_grad(all.requires_grad());
  }
  const Shape whole = now ? now->whole_sizes() : slot.replica(0).sizes();
  cuts.push_back({std::move(ranks), dim});
  auto layout = std::make_shared<TestLayout>(whole, std::move(cuts), std::move(stored));
  slot.set_layout(layout);
  return layout;
}

/// Divides the rows of the slot among the ranks of the groups, one per replica.
inline std::shared_ptr<TestLayout> shard(const nn::TensorSlot& slot, const RankGroups& groups) {
  return cut(slot, std::make_shared<GroupRanks>(groups), 0, static_cast<int>(groups.size()));
}

/// Divides the rows of a module's parameters, except those whose names `whole` contains, as rank `rank` sees
/// them, without communication.
inline void shard_rows(const nn::Module& module, int rank, int ranks,
                       const std::vector<std::string>& whole = {}) {
  for (auto& [name, slot] : module.named_parameters())
    if (std::find(whole.begin(), whole.end(), name) == whole.end())
      cut(slot, std::make_shared<SilentRanks>(rank, ranks), 0);
}

}  // namespace tapestry::test
