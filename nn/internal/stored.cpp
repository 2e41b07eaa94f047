#include "tapestry/nn/internal/stored.h"

#include <algorithm>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"

namespace tapestry::nn {

bool is_undivided(const TensorSlot& slot) {
  if (!slot.layout()) return true;
  const std::vector<Cut>& cuts = slot.layout()->cuts();
  return std::all_of(cuts.begin(), cuts.end(), [](const Cut& c) { return c.dim == Cut::kHeld; });
}

bool is_of_other_stage(const TensorSlot& slot) {
  if (!slot.layout()) return false;
  const std::vector<Cut>& cuts = slot.layout()->cuts();
  return std::any_of(cuts.begin(), cuts.end(), [](const Cut& c) {
    return c.dim == Cut::kHeld && std::count(c.holders.begin(), c.holders.end(), c.group->rank(0)) == 0;
  });
}

bool is_of_several_stages(const TensorSlot& slot) {
  if (!slot.layout()) return false;
  const std::vector<Cut>& cuts = slot.layout()->cuts();
  return std::any_of(cuts.begin(), cuts.end(),
                     [](const Cut& c) { return c.dim == Cut::kHeld && c.holders.size() > 1; });
}

bool has_whole(const TensorSlot& slot) {
  return gives_whole(slot) || slot.replicas() == slot.layout()->ranks();
}

std::string divided_text(const Layout& layout, int replica) {
  return concat({" is sharded over ", layout.ranks(), " ranks, and this one has ",
                 layout.boxes(replica).str(), " of it"});
}

void check_has_whole(const char* op, std::string_view name, const TensorSlot& slot, const char* remedy) {
  if (has_whole(slot)) return;
  const Layout& layout = *slot.layout();
  const std::string what = name.empty() ? "a parameter" : concat({"'", name, "'"});
  fail("[", op, "] ", what, " of shape ", layout.whole_sizes(),
       divided_text(layout, current_context().replica), "; ", remedy);
}

void check_not_full(const char* op, std::string_view name, const TensorSlot& slot) {
  for (int r = 0; r < slot.replicas(); ++r) {
    if (!slot.is_full(r)) continue;
    const std::string what = name.empty() ? "a parameter" : concat({"'", name, "'"});
    fail("[", op, "] ", what, " of shape ", whole_sizes(slot),
         " is sharded, and whole only while forward() or unshard() lasts, which this change would not "
         "outlast; "
         "call it before or after");
  }
}

Tensor whole_tensor(const TensorSlot& slot, int replica) {
  const auto& layout = slot.layout();
  if (!layout || (slot.is_full(replica) && slot.replica(replica).sizes() == layout->whole_sizes()))
    return slot.replica(replica);
  const NoGradGuard no_grad;
  if (layout->ranks() == 1) return layout->stored(replica).detach().reshape(layout->whole_sizes());
  std::vector<Tensor> parts;
  for (int r = 0; r < slot.replicas(); ++r) parts.push_back(stored_tensor(slot, r));
  return join_parts(*layout, parts);
}

Tensor stored_part(const TensorSlot& slot, int replica, const Tensor& value) {
  if (value.sizes() != whole_sizes(slot)) return {};
  const auto& layout = slot.layout();
  if (!layout) return value;
  return layout->boxes(replica).of(value).reshape(layout->stored(replica).sizes());
}

Tensor join_parts(const Layout& layout, const std::vector<Tensor>& parts) {
  const NoGradGuard no_grad;
  const Tensor whole = empty(layout.whole_sizes(), {parts.at(0).dtype(), kCPU});
  for (std::size_t r = 0; r < parts.size(); ++r)
    layout.boxes(static_cast<int>(r)).copy(parts[r].detach(), whole);
  return whole;
}

void write_whole(const TensorSlot& slot, const Tensor& value) {
  const NoGradGuard no_grad;
  for (int r = 0; r < slot.replicas(); ++r) {
    const Tensor part = stored_part(slot, r, value.detach());
    check(part.defined(), "[write_whole] the value has shape ", value.sizes(), ", and the parameter ",
          whole_sizes(slot));
    stored_tensor(slot, r).detach().copy_(part);
  }
  // Full tensors are written last, because stored_tensor() copies the changes of a full tensor to the stored
  // one.
  for (int r = 0; r < slot.replicas(); ++r)
    if (slot.is_full(r)) {
      const Tensor full = slot.replica(r).detach();
      full.copy_(slot.layout()->full_boxes(r).of(value.detach()).reshape(full.sizes()));
    }
}

void refresh_full(const TensorSlot& slot) {
  const auto& layout = slot.layout();
  if (!layout) return;
  const NoGradGuard no_grad;
  Tensor whole;
  for (int r = 0; r < slot.replicas(); ++r) {
    if (!slot.is_full(r)) continue;
    const Tensor full = slot.replica(r).detach();
    if (slot.replicas() < layout->ranks()) {
      layout->gather_full(r, full);
      continue;
    }
    if (!whole.defined()) {
      std::vector<Tensor> parts;
      for (int i = 0; i < slot.replicas(); ++i) parts.push_back(stored_tensor(slot, i));
      whole = join_parts(*layout, parts);
    }
    full.copy_(layout->full_boxes(r).of(whole).reshape(full.sizes()));
  }
}

std::vector<DividingGroup> dividing_groups(std::span<const Parameter> params) {
  std::vector<DividingGroup> groups;
  for (const Parameter& p : params) {
    if (!p.layout()) continue;
    for (const RankGroup* const group : p.layout()->divided())
      if (std::none_of(groups.begin(), groups.end(),
                       [&](const DividingGroup& g) { return g.group->id(0) == group->id(0); }))
        groups.push_back({group, p.layout().get(), p.replicas()});
  }
  return groups;
}

}  // namespace tapestry::nn
