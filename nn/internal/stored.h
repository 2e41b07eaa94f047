#pragma once
// The tensors that a slot stores: for a sharded slot its shard, also while the full tensor exists.
#include <string>

#include "tapestry/nn/parameter.h"

namespace tapestry::nn {

/// The shard of a sharded slot, otherwise the tensor of the replica. Unlike TensorSlot::replica(), it gives
/// the shard inside forward() and unshard() too.
inline const Tensor& stored_tensor(const TensorSlot& slot, int replica) {
  return slot.sharding() ? slot.sharding()->shard(replica) : slot.replica(replica);
}

/// The shape of the whole tensor, of which a sharded slot stores some rows.
inline const Shape& full_sizes(const TensorSlot& slot) {
  if (slot.sharding()) return slot.sharding()->full_sizes();
  return (slot.is_computed() ? slot.tensor() : slot.replica(0)).sizes();
}

/// Describes the shapes that load_state_dict() accepts for this slot, for messages.
inline std::string accepted_sizes(const TensorSlot& slot, int replica) {
  const std::string stored = stored_tensor(slot, replica).sizes().str();
  if (!slot.sharding()) return stored;
  const ShardRows rows = slot.sharding()->rows(replica);
  return concat({stored, " (rank ", slot.sharding()->rank(replica), "'s shard, ", rows.rows,
                 " rows from row ", rows.first_row, " on) or the full ", slot.sharding()->full_sizes()});
}

/// The part of `value` that a replica stores, as a view. `value` has the shape of the whole tensor or, if it
/// is for the replica `own`, of the stored tensor. Undefined if it has neither. A 0-d tensor counts as one
/// row.
inline Tensor stored_part(const TensorSlot& slot, int replica, int own, const Tensor& value) {
  const Tensor& stored = stored_tensor(slot, replica);
  const auto& sharding = slot.sharding();
  if (value.sizes() == stored.sizes() && (!sharding || replica == own)) return value;
  if (!sharding || value.sizes() != sharding->full_sizes()) return {};
  const ShardRows rows = sharding->rows(replica);
  return (value.dim() == 0 ? value.reshape({1}) : value)
      .narrow(0, rows.rows > 0 ? rows.first_row : 0, rows.rows)
      .reshape(stored.sizes());
}

}  // namespace tapestry::nn
