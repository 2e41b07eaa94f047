#include "tapestry/distributed/common/internal/cut_parameter.h"

#include <algorithm>
#include <memory>

#include "tapestry/core/error.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/materialize.h"

namespace tapestry::distributed {

void fill_from_first(const std::string& name, const nn::TensorSlot& slot, const Axis& axis, Device device,
                     const char* op) {
  nn::materialize(nn::NamedSlots{{name, slot}}, device);
  broadcast_values(*axis.group(), {{name, slot.tensor()}}, concat({op, ": values"}));
}

void cut_parameter(nn::Parameter& slot, const std::vector<nn::Cut>& more) {
  const NoGradGuard no_grad;
  const Tensor now = slot.tensor();
  std::vector<nn::Cut> cuts = slot.layout() ? slot.layout()->cuts() : std::vector<nn::Cut>();
  cuts.insert(cuts.end(), more.begin(), more.end());
  const bool divides = std::any_of(more.begin(), more.end(), [](const nn::Cut& c) { return c.dim >= 0; });
  const auto part_of = [&](const Tensor& t) {
    return divides ? nn::Layout(now.sizes(), more, std::vector<Tensor>()).boxes(0).of(t).clone() : t;
  };
  Tensor stored = part_of(now.detach());
  // The old layout owns marks of its tensor's memory, and removes them when it is destroyed.
  if (!divides && slot.layout()) stored = stored.clone();
  if (is_floating(now.dtype())) stored.set_requires_grad(now.requires_grad());
  if (now.grad().defined()) stored.set_grad(part_of(now.grad()));
  const Shape whole = nn::whole_sizes(slot);
  slot.set_layout(std::make_shared<nn::Layout>(whole, std::move(cuts), std::vector{stored}));
}

}  // namespace tapestry::distributed
