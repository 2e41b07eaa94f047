#pragma once
// A sharding for tests of nn/, without units, prefetching and full tensors: each rank keeps its rows.
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/nn/parameter.h"

namespace tapestry::test {

/// The groups of the ranks that this process has: one, or one per replica.
using RankGroups = std::vector<std::shared_ptr<distributed::ProcessGroup>>;

class TestSharding final : public nn::Sharding {
 public:
  /// Takes the rows of this process's ranks from `full`. Replica r's shard is on the device of replica r.
  TestSharding(const nn::TensorSlot& slot, RankGroups groups) : groups_(std::move(groups)) {
    const Tensor full = slot.replica(0);
    sizes_ = full.sizes();
    const Tensor rows_of_full = full.dim() == 0 ? full.detach().reshape({1}) : full.detach();
    for (std::size_t r = 0; r < groups_.size(); ++r) {
      const auto [first, count] = rows(static_cast<int>(r));
      const Device device =
          slot.replicas() > static_cast<int>(r) ? slot.replica(static_cast<int>(r)).device() : kCPU;
      const Tensor part = rows_of_full.narrow(0, count > 0 ? first : 0, count).clone().to(device);
      part.set_requires_grad(full.requires_grad());
      shards_.push_back(part);
    }
  }
  const Tensor& shard(int replica) const override { return shards_.at(static_cast<std::size_t>(replica)); }
  const Tensor& read(int replica) const override {
    check(!computing, "[test] the parameter is read inside forward()");
    return shard(replica);
  }
  void set_shard(int replica, const Tensor& tensor) override {
    check(tensor.sizes() == shard(replica).sizes(), "[test] a shard of another shape");
    shards_.at(static_cast<std::size_t>(replica)) = tensor;
  }
  const Shape& full_sizes() const override { return sizes_; }
  nn::ShardRows rows(int replica) const override { return rows_of_rank(rank(replica)); }
  nn::ShardRows rows_of_rank(int of) const override {
    const std::int64_t all = sizes_.size() == 0 ? 1 : sizes_[0], each = (all + ranks() - 1) / ranks();
    const std::int64_t first = (std::min)(all, each * of);
    return {first, (std::min)(all, first + each) - first};
  }
  int rank(int replica) const override { return groups_.at(static_cast<std::size_t>(replica))->rank(); }
  int ranks() const override { return groups_[0]->size(); }
  const void* group(int replica) const override {
    return groups_.at(static_cast<std::size_t>(replica)).get();
  }
  void sum_over_ranks(int replica, const Tensor& values) const override {
    ++sums;
    groups_.at(static_cast<std::size_t>(replica))->all_reduce(values).wait();
  }
  void gather(int replica, const Tensor& full) override {
    const auto [first, count] = rows(replica);
    full.zero_();
    if (count > 0)
      (full.dim() == 0 ? full.reshape({1}) : full).narrow(0, first, count).copy_(shard(replica).detach());
    sum_over_ranks(replica, full);
  }

  void keep_changes(int) override {}  // there are no full tensors

  bool computing = false;               // as if the thread were inside forward()
  inline static std::atomic<int> sums;  // calls of sum_over_ranks()

 private:
  RankGroups groups_;
  Shape sizes_;
  std::vector<Tensor> shards_;
};

/// Shards the slot over the ranks of the groups, which has as many replicas as there are groups.
inline std::shared_ptr<TestSharding> shard(nn::TensorSlot slot, const RankGroups& groups) {
  auto sharding = std::make_shared<TestSharding>(slot, groups);
  slot.set_sharding(sharding);
  return sharding;
}

}  // namespace tapestry::test
