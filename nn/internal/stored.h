#pragma once
// Gives the tensor that a slot stores, which is this rank's box of a divided slot even while a full tensor
// exists. Reads and writes the whole value for functions that need all of it.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/nn/parameter.h"

namespace tapestry::nn {

/// The stored tensor of a divided slot, otherwise the tensor of the replica. Unlike TensorSlot::replica(), it
/// gives the stored tensor inside forward() and unshard() too, with the changes that were made to the full
/// tensor.
inline const Tensor& stored_tensor(const TensorSlot& slot, int replica) {
  const std::shared_ptr<Layout>& layout = slot.layout();
  if (!layout) return slot.replica(replica);
  if (slot.is_full(replica)) [[unlikely]]
    layout->keep_changes(replica);
  return layout->stored(replica);
}

/// The shape of the whole tensor, of which a divided slot stores a box.
inline const Shape& whole_sizes(const TensorSlot& slot) {
  if (slot.layout()) return slot.layout()->whole_sizes();
  return (slot.is_computed() ? slot.tensor() : slot.replica(0)).sizes();
}

/// The leaves to which a backward pass may give gradients of the slot.
inline std::vector<Tensor> leaves_of(const TensorSlot& slot, int replica) {
  if (slot.layout()) return slot.layout()->leaves(replica);
  return {slot.is_computed() ? slot.tensor() : slot.replica(replica)};
}

/// True if slot.tensor() gives the whole tensor now: the slot is not divided, or is full.
inline bool gives_whole(const TensorSlot& slot) {
  const int replica = current_context().replica;
  return !slot.layout() ||
         (slot.is_full(replica) && slot.replica(replica).sizes() == slot.layout()->whole_sizes());
}

/// True if no rank has a part of the tensor: the slot has no layout, or the stages of a pipeline that use it
/// hold all of it (Cut::kHeld), such as this rank's stage or another one.
bool is_undivided(const TensorSlot& slot);
/// True if stages of a pipeline on other ranks hold the tensor, and this rank has no elements of it.
bool is_of_other_stage(const TensorSlot& slot);
/// True if stages of a pipeline on several ranks hold the tensor: a tied weight.
bool is_of_several_stages(const TensorSlot& slot);

/// True if this process can read the whole value without communication: the slot is not divided, or is full
/// now, or its replicas have all boxes, as in ShardedDataParallel.
bool has_whole(const TensorSlot& slot);

/// " is sharded over 4 ranks, and this one has [2:4, 0:3] of it"
std::string divided_text(const Layout& layout, int replica);

/// Throws ValueError unless has_whole(). `name` is the parameter's path; if it is empty, the text describes
/// the parameter by its shape. `remedy` says what to do.
inline constexpr const char* kUnshardOrSave =
    "call it on all ranks while FullyShard::unshard(true) lasts, or save with distributed::save_checkpoint() "
    "or distributed::save_sharded(), which write the parts of all ranks";
void check_has_whole(const char* op, std::string_view name, const TensorSlot& slot,
                     const char* remedy = kUnshardOrSave);

/// Throws ValueError if the slot gives a full tensor of a sharded parameter now. For functions that would
/// change the shard's dtype, device or flags, which the full tensor could not follow.
void check_not_full(const char* op, std::string_view name, const TensorSlot& slot);

/// The whole value; has_whole() must be true. It shares memory with the slot, unless several replicas have
/// boxes and none is full: then it is a copy in host memory.
Tensor whole_tensor(const TensorSlot& slot, int replica);

/// The part of a whole value that a replica stores: a view, or a copy of several boxes. Undefined if `value`
/// does not have the shape of the whole tensor.
Tensor stored_part(const TensorSlot& slot, int replica, const Tensor& value);
/// Joins parts[r], which replica r stores, into a tensor like the whole value, in host memory. Together the
/// parts must cover the whole value.
Tensor join_parts(const Layout& layout, const std::vector<Tensor>& parts);

/// Copies a value of whole_sizes() to all replicas, and converts devices and dtypes. Stored tensors take
/// their boxes, and so do full tensors that exist now.
void write_whole(const TensorSlot& slot, const Tensor& value);
/// Gives full tensors that exist now the values of the stored tensors, to which all ranks have written.
/// Collective then, over the ranks of Layout::gather_full().
void refresh_full(const TensorSlot& slot);

/// A group of ranks that divides or copies parameters, and one of them.
struct DividingGroup {
  const RankGroup* group;
  const Layout* layout;
  int replicas;
};
/// The groups of all layouts, each once, in the order of the parameters and of their cuts. All ranks get the
/// same order.
std::vector<DividingGroup> dividing_groups(std::span<const Parameter> params);

}  // namespace tapestry::nn
