#pragma once
// A parameter that fully_shard() has sharded: the rows of each rank, and the memory of the full tensor.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/internal/part_memory.h"
#include "tapestry/core/storage.h"
#include "tapestry/core/stream.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/nn/layout.h"
#include "tapestry/nn/parameter.h"

namespace tapestry::distributed {

class ShardedUnit;

/// The slot owns this object, so shards outlive the module as the tensors of a slot do. Every rank has room
/// for the same number of rows, ceil(rows / ranks); the last ranks may use fewer of them, or none. If the
/// slot was divided already, for example by columns, its box is what the ranks divide, and is the full tensor
/// here.
class ShardedParameter final : public nn::Layout,
                               public StorageSource,
                               public tapestry::detail::DividedMemory,
                               public std::enable_shared_from_this<ShardedParameter> {
 public:
  /// Takes the values of the slot's tensors. `name` is relative to the unit's module. groups[r] is the group
  /// in which replica r is a rank. If `devices` is not empty, the slot has one tensor, and the shard of
  /// replica r is on devices[r].
  ShardedParameter(std::string name, const nn::Parameter& slot,
                   const std::vector<std::shared_ptr<ProcessGroup>>& groups,
                   const std::vector<Device>& devices = {}, bool offload = false);
  ~ShardedParameter();
  ShardedParameter(const ShardedParameter&) = delete;
  ShardedParameter& operator=(const ShardedParameter&) = delete;

  // nn::Layout
  const Tensor& stored(int replica) const override { return at(replica).shard; }
  const Tensor& read(int replica) const override;
  void set_stored(int replica, const Tensor& tensor) override;
  std::vector<Tensor> leaves(int replica) const override;
  void gather_full(int replica, const Tensor& full) override;
  /// With several replicas, all take over the changes of the first one, and no replica may compute.
  void keep_changes(int replica) override;

  // StorageSource
  void refill(Storage& storage) override;
  std::string why_released(const Storage& storage) const override;
  bool is_divided() const override { return ranks() > 1; }

  /// Replaces groups that have failed by new ones of the same ranks.
  void set_groups(const std::vector<std::shared_ptr<ProcessGroup>>& groups) { groups_ = groups; }
  /// The unit that gathers this parameter; null after the unit's module was destroyed.
  ShardedUnit* unit = nullptr;
  std::string name;  ///< relative to the unit's module
  /// "blocks.3.fc.weight"
  std::string path() const;

  /// The device on which the full tensor exists.
  Device device(int replica) const { return at(replica).device; }
  /// True if the shard is in pinned host memory, and the full tensor on a GPU.
  bool is_offloaded(int replica) const { return offload_ && at(replica).device.is_cuda(); }

  /// The number of elements that each rank contributes to a gather, padding included.
  std::int64_t padded_numel() const { return rows_per_rank_ * row_numel_; }
  /// The bytes of the full tensor, and of this replica's shard with its padding.
  std::size_t full_bytes(int replica) const;
  std::size_t shard_bytes(int replica) const;
  bool is_trained(int replica) const { return at(replica).shard.requires_grad(); }
  /// The dtypes of the full tensor, and in which gradients are reduced (MixedPrecisionPolicy).
  DType full_dtype(int replica) const;
  DType reduce_dtype(int replica) const;

  /// Makes the full tensor agree with full_dtype(), the shard's device and its requires_grad.
  void prepare(int replica);
  /// The full tensor: a leaf whose memory exists while the unit is full.
  const Tensor& full(int replica) const { return at(replica).full; }
  /// The shard with its padding, in one dimension and in full_dtype(), as the input of a gather.
  Tensor gather_input(int replica) const;
  /// A copy of gather_input() on the GPU that `copies` belongs to. Copy and cast run on that stream, which
  /// owns the result.
  Tensor upload(int replica, const Stream& copies) const;
  /// Allocates the memory of the full tensor, and returns it with the padding of all ranks, in one dimension,
  /// as the output of a gather. It has a version counter of its own: a gather does not count as a change of
  /// the full tensor. If the shard was changed since the last gather, the full tensor gets a new version, so
  /// that a graph with the old values throws.
  Tensor acquire(int replica);
  /// True if the shard was changed since it was gathered.
  bool is_stale(int replica) const {
    const Replica& r = at(replica);
    return r.gathered_from && (r.gathered_from != r.shard.impl() || r.gathered_version != r.shard.version());
  }
  /// True if the full tensor exists and was changed in place since it was gathered.
  bool has_changes(int replica) const;
  /// Like keep_changes(), for the thread of one replica: takes over what was changed in its own full tensor.
  void keep_own_changes(int replica);
  /// Keeps changes, and frees the memory of the full tensor.
  void release(int replica);
  /// Frees the memory of the full tensor, into which no gather was completed.
  void discard(int replica) noexcept;

  /// True if backward passes have left a gradient on the full tensor.
  bool has_gradient(int replica) const {
    return at(replica).full.grad().defined() || at(replica).unreduced.defined();
  }
  /// If gradients are reduced in another dtype than the full tensor's, adds the full tensor's gradient to a
  /// sum in that dtype: the sum of many passes in bf16 would lose their last digits.
  void keep_unreduced(int replica);
  void drop_gradient(int replica) noexcept;
  /// Takes the full tensor's gradient as the input of a reduce-scatter, in one dimension with padding and in
  /// reduce_dtype(). Zeros if there is none.
  Tensor take_gradient(int replica);
  /// Gives this rank's part of a reduced gradient to the shard, in the shard's dtype. Pass the only
  /// reference.
  void deliver(int replica, Tensor reduced);

 private:
  struct Replica {
    Device device;
    Tensor shard;
    Tensor padded;       // the memory of the shard with its padding; undefined if set_shard() replaced it
    StorageRef storage;  // of the full tensor, with the padding of all ranks
    Tensor full;
    Tensor unreduced;                     // see keep_unreduced()
    bool hooked = false;                  // the hooks on `full` are registered
    const void* gathered_from = nullptr;  // the shard that was gathered last, and its version
    std::uint32_t gathered_version = 0;
    std::uint32_t full_version = 0;  // the version of `storage` at the last gather
  };
  Replica& at(int replica) { return replicas_[static_cast<std::size_t>(replica)]; }
  const Replica& at(int replica) const { return replicas_[static_cast<std::size_t>(replica)]; }
  class Ranks;
  const ProcessGroup& group(int replica) const { return *groups_[static_cast<std::size_t>(replica)]; }
  int shard_ranks() const { return group(0).size(); }
  void sum_over_ranks(int replica, const Tensor& values) const;
  /// The rows of the full tensor that a replica stores: a box of sizes_, which has at least one dimension.
  nn::Region own_rows(int replica) const;
  Shape row_strides() const { return sizes_.empty() ? Shape{1} : strides_; }
  void make_full(Replica& r, DType dtype);
  void mark_shard(Replica& r);
  Tensor empty_shard(Device device, DType dtype) const;
  Tensor padded_shard(int replica) const;

  const bool offload_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
  Shape sizes_, strides_;
  std::int64_t row_numel_, rows_per_rank_;
  std::vector<Replica> replicas_;
  tapestry::detail::PartMemory shard_memory_{tapestry::detail::PartMemory::Of::parameter,
                                             [this] { return path(); }};
};

}  // namespace tapestry::distributed
