#include "tapestry/nn/internal/stored.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"

namespace tapestry::nn {

bool has_all_rows(const TensorSlot& slot) {
  const auto& sharding = slot.sharding();
  return gives_whole(slot) || slot.replicas() == sharding->ranks();
}

void check_all_rows(const char* op, std::string_view name, const TensorSlot& slot, const char* remedy) {
  if (has_all_rows(slot)) return;
  const Sharding& sharding = *slot.sharding();
  const int replica = current_context().replica;
  const ShardRows rows = sharding.rows(replica);
  const std::string what = name.empty() ? "a parameter" : concat({"'", name, "'"});
  fail("[", op, "] ", what, " of shape ", sharding.full_sizes(), " is sharded over ", sharding.ranks(),
       " ranks, and rank ", sharding.rank(replica), " has ", rows.rows, " of its rows; ", remedy);
}

void check_not_full(const char* op, std::string_view name, const TensorSlot& slot) {
  for (int r = 0; r < slot.replicas(); ++r) {
    if (!slot.is_full(r)) continue;
    const std::string what = name.empty() ? "a parameter" : concat({"'", name, "'"});
    fail("[", op, "] ", what, " of shape ", full_sizes(slot),
         " is sharded, and whole only while forward() or unshard() lasts, which this change would not "
         "outlast; "
         "call it before or after");
  }
}

Tensor whole_tensor(const TensorSlot& slot, int replica) {
  const auto& sharding = slot.sharding();
  if (!sharding || slot.is_full(replica)) return slot.replica(replica);
  const NoGradGuard no_grad;
  if (sharding->ranks() == 1) return sharding->shard(replica).detach().reshape(sharding->full_sizes());
  std::vector<Tensor> parts;
  for (int r = 0; r < slot.replicas(); ++r) parts.push_back(stored_tensor(slot, r));
  return join_rows(*sharding, parts);
}

Tensor stored_part(const TensorSlot& slot, int replica, const Tensor& value) {
  if (value.sizes() != full_sizes(slot)) return {};
  const auto& sharding = slot.sharding();
  if (!sharding) return value;
  const ShardRows rows = sharding->rows(replica);
  return (value.dim() == 0 ? value.reshape({1}) : value)
      .narrow(0, rows.rows > 0 ? rows.first_row : 0, rows.rows)
      .reshape(sharding->shard(replica).sizes());
}

Tensor join_rows(const Sharding& sharding, const std::vector<Tensor>& parts) {
  const NoGradGuard no_grad;
  const Tensor whole = empty(sharding.full_sizes(), {parts.at(0).dtype(), kCPU});
  const Tensor rows = whole.dim() == 0 ? whole.reshape({1}) : whole;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const ShardRows own = sharding.rows(static_cast<int>(r));
    if (own.rows > 0) rows.narrow(0, own.first_row, own.rows).copy_(parts[r].detach());
  }
  return whole;
}

void write_whole(const TensorSlot& slot, const Tensor& value) {
  const NoGradGuard no_grad;
  for (int r = 0; r < slot.replicas(); ++r) {
    const Tensor part = stored_part(slot, r, value.detach());
    check(part.defined(), "[write_whole] the value has shape ", value.sizes(), ", and the parameter ",
          full_sizes(slot));
    stored_tensor(slot, r).detach().copy_(part);
  }
  // Full tensors are written last, because stored_tensor() copies the changes of a full tensor to its shard.
  for (int r = 0; r < slot.replicas(); ++r)
    if (slot.is_full(r)) slot.replica(r).detach().copy_(value.detach());
}

void refresh_full(const TensorSlot& slot) {
  const auto& sharding = slot.sharding();
  if (!sharding) return;
  const NoGradGuard no_grad;
  Tensor whole;
  for (int r = 0; r < slot.replicas(); ++r) {
    if (!slot.is_full(r)) continue;
    const Tensor full = slot.replica(r).detach();
    if (slot.replicas() < sharding->ranks()) {
      sharding->gather(r, full);
      continue;
    }
    if (!whole.defined()) {
      std::vector<Tensor> parts;
      for (int i = 0; i < slot.replicas(); ++i) parts.push_back(stored_tensor(slot, i));
      whole = join_rows(*sharding, parts);
    }
    full.copy_(whole);
  }
}

}  // namespace tapestry::nn
