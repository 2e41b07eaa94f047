#pragma once
// Sharding: how the tensor of a slot is divided among ranks. distributed::fully_shard() gives each of its
// parameters one.
#include <cstdint>
#include <string>

#include "tapestry/core/tensor.h"

namespace tapestry::nn {

/// The rows [first_row, first_row + rows) of dimension 0 that one rank stores. A rank may store none.
struct ShardRows {
  std::int64_t first_row = 0, rows = 0;
};

/// A slot's tensor has two forms. The full tensor exists only while the slot's unit computes, or while it is
/// unsharded by hand. The shard, a leaf of its own with this rank's rows, exists always. Optimizers,
/// nn::clip_grad_norm_ and hooks see the shard.
class Sharding {
 public:
  virtual ~Sharding() = default;
  /// Returns the shard of one replica.
  virtual const Tensor& shard(int replica) const = 0;
  /// Called when the slot is read while its full tensor does not exist. Returns the shard of the replica.
  /// Throws ValueError with the parameter's path if the calling thread is inside forward() of the sharded
  /// model, which needs the full tensor.
  virtual const Tensor& read(int replica) const = 0;
  /// Replaces the shard, for example by its copy on another device. The shape must be the shard's.
  virtual void set_shard(int replica, const Tensor& tensor) = 0;

  /// The shape of the full tensor.
  virtual const Shape& full_sizes() const = 0;
  /// The rows that this replica's rank stores, and those that another rank stores.
  virtual ShardRows rows(int replica) const = 0;
  virtual ShardRows rows_of_rank(int rank) const = 0;
  virtual int rank(int replica) const = 0;
  virtual int ranks() const = 0;
  /// Identifies the group of ranks: shardings with equal group() have the same ranks in the same order.
  virtual const void* group(int replica) const = 0;
  /// Collective: adds `values`, a tensor on the shard's device, over all ranks in place, and waits. All ranks
  /// get the same bits.
  virtual void sum_over_ranks(int replica, const Tensor& values) const = 0;
  /// Collective: gathers the full tensor into `full`, which has full_sizes() and the shard's device, and
  /// waits.
  virtual void gather(int replica, const Tensor& full) = 0;
  /// If the full tensor exists and was changed in place, this rank's rows of it become the shard's values.
  virtual void keep_changes(int replica) = 0;
};

}  // namespace tapestry::nn
