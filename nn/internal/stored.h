#pragma once
// Gives the tensor that a slot stores, which is the shard of a sharded slot even while the full tensor
// exists. Reads and writes the whole value for functions that need all rows.
#include <string>
#include <string_view>

#include "tapestry/nn/parameter.h"

namespace tapestry::nn {

/// The shard of a sharded slot, otherwise the tensor of the replica. Unlike TensorSlot::replica(), it gives
/// the shard inside forward() and unshard() too, with the changes that were made to the full tensor.
inline const Tensor& stored_tensor(const TensorSlot& slot, int replica) {
  const std::shared_ptr<Sharding>& sharding = slot.sharding();
  if (!sharding) return slot.replica(replica);
  if (slot.is_full(replica)) [[unlikely]]
    sharding->keep_changes(replica);
  return sharding->shard(replica);
}

/// The shape of the whole tensor, of which a sharded slot stores some rows.
inline const Shape& full_sizes(const TensorSlot& slot) {
  if (slot.sharding()) return slot.sharding()->full_sizes();
  return (slot.is_computed() ? slot.tensor() : slot.replica(0)).sizes();
}

/// True if slot.tensor() gives the whole tensor now: the slot is not sharded, or is full.
inline bool gives_whole(const TensorSlot& slot) {
  return !slot.sharding() || slot.is_full(current_context().replica);
}

/// True if this process can read the whole value without communication: the slot is not sharded, or is full
/// now, or its replicas have all shards, as in ShardedDataParallel.
bool has_all_rows(const TensorSlot& slot);

/// Throws ValueError unless has_all_rows(). `name` is the parameter's path; if it is empty, the text
/// describes the parameter by its shape. `remedy` says what to do.
inline constexpr const char* kUnshardOrSave =
    "call it on all ranks while FullyShard::unshard(true) lasts, or save with distributed::save_checkpoint() "
    "or distributed::save_sharded(), which write the parts of all ranks";
void check_all_rows(const char* op, std::string_view name, const TensorSlot& slot,
                    const char* remedy = kUnshardOrSave);

/// Throws ValueError if the slot gives a full tensor of a sharded parameter now. For functions that would
/// change the shard's dtype, device or flags, which the full tensor could not follow.
void check_not_full(const char* op, std::string_view name, const TensorSlot& slot);

/// The whole value; has_all_rows() must be true. It shares memory with the slot, unless several replicas have
/// shards and none is full: then it is a copy in host memory.
Tensor whole_tensor(const TensorSlot& slot, int replica);

/// The rows of a whole value that a replica stores, as a view. Undefined if `value` does not have the shape
/// of the whole tensor. A 0-d tensor counts as one row.
Tensor stored_part(const TensorSlot& slot, int replica, const Tensor& value);
/// A tensor like the whole value, in host memory, with the rows that the replicas store. parts[r] has the
/// rows of replica r. The replicas must have all rows.
Tensor join_rows(const Sharding& sharding, const std::vector<Tensor>& parts);

/// Copies a value of full_sizes() to all replicas, and converts devices and dtypes. Shards take their rows,
/// and full tensors that exist now take all.
void write_whole(const TensorSlot& slot, const Tensor& value);
/// Gives full tensors that exist now the values of the shards, to which all ranks have written. Collective
/// then, over the ranks of the sharding.
void refresh_full(const TensorSlot& slot);

}  // namespace tapestry::nn
