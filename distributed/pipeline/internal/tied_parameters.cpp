#include "tapestry/distributed/pipeline/internal/tied_parameters.h"

#include <algorithm>
#include <set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::distributed {

namespace {

constexpr const char* kSharded =
    " is sharded by fully_shard(), which gathers parameters over all ranks while they compute; shard a model "
    "or split it into stages, not both";

}  // namespace

void TiedParameters::add_use(const std::string& name, const nn::TensorSlot& slot, std::size_t stage,
                             bool is_parameter) {
  check(nn::is_undivided(slot), "[Pipeline] '", name, "' of stage ", first_number_ + stage, kSharded);
  check(slot.replicas() == 1, "[Pipeline] '", name, "' of stage ", first_number_ + stage, " has ",
        slot.replicas(), " replicas; destroy its DataParallel first, or call unreplicate()");
  const auto [known, is_new] = index_.emplace(slot.id(), used_.size());
  if (is_new) used_.push_back({name, slot, {stage}, is_parameter});
  else used_[known->second].stages.push_back(stage);
}

TiedParameters::TiedParameters(const std::vector<Stage>& stages, const std::vector<Device>& devices,
                               const std::vector<std::size_t>& device_of, std::size_t first_number)
    : stages_(stages),
      devices_(devices),
      device_of_(device_of),
      first_number_(first_number),
      replica_(stages.size()) {
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const auto& [name, slot] : stages[s].named_parameters()) add_use(name, slot, s, true);
    for (const auto& [name, slot] : stages[s].named_buffers()) add_use(name, slot, s, false);
  }
  for (UsedSlot& used : used_) {
    const std::size_t home = home_of(used);
    std::set<std::size_t> others;
    for (const std::size_t s : used.stages) {
      if (device_of_[s] == home) continue;
      check(used.is_parameter, "[Pipeline] the buffer '", used.name, "' belongs to stage ",
            first_number_ + used.stages[0], " on ", devices_[home], " and to stage ", first_number_ + s,
            " on ", devices_[device_of_[s]],
            "; put both stages on one device, or give each stage its own module");
      others.insert(device_of_[s]);
      replica_[s] = static_cast<std::int16_t>(device_of_[s] + 1);
    }
    for (const std::size_t d : others) used.copies.push_back({d, {}, {}, 0});
  }
  // The stages move in reverse order, so that a parameter of several stages ends on the device of the first
  // of them.
  for (std::size_t s = stages.size(); s-- > 0;)
    for (nn::Module& module : stages[s].modules()) module.to(stages[s].device());
}

void TiedParameters::check_places(bool may_be_sharded) const {
  for (const UsedSlot& used : used_) {
    check(may_be_sharded || nn::is_undivided(used.slot), "[Pipeline] '", used.name, "' of stage ",
          first_number_ + used.stages[0], kSharded);
    const Device here = nn::stored_tensor(used.slot, 0).device(), home = devices_[home_of(used)];
    const bool offloads = !nn::is_undivided(used.slot) && here.is_cpu();  // shards in host memory
    check(used.slot.replicas() == 1 && (here == home || offloads), "[Pipeline] '", used.name, "' of stage ",
          first_number_ + used.stages[0], " (", stages_[used.stages[0]].name(), ") is on ", here, " with ",
          used.slot.replicas(), " replicas, not on ", home,
          " alone; leave it where the Pipeline put it, or construct a new Pipeline");
  }
}

void TiedParameters::attach_replicas() {
  const EnableGradGuard no_inference;  // inference tensors could not be trained later
  for (UsedSlot& used : used_) {
    if (std::all_of(used.stages.begin(), used.stages.end(), [&](std::size_t s) { return !replica_[s]; }))
      continue;
    const Tensor home = used.slot.replica(0);
    std::vector<Tensor> replicas(devices_.size() + 1, home);
    for (Copy& copy : used.copies) {
      if (!copy.tensor.defined() || copy.tensor.sizes() != home.sizes() ||
          copy.tensor.dtype() != home.dtype())
        copy = {copy.device, empty(home.sizes(), {home.dtype(), devices_[copy.device]}), {}, 0};
      copy.tensor.set_requires_grad(home.requires_grad());
      copy.tensor.set_grad({});
      replicas[copy.device + 1] = copy.tensor;
    }
    used.slot.set_replicas(std::move(replicas));
  }
}

void TiedParameters::detach_replicas() {
  for (UsedSlot& used : used_)
    if (used.slot.replicas() > 1) used.slot.set_replicas({used.slot.replica(0)});
}

void TiedParameters::update_replicas(std::size_t device) {
  const EnableGradGuard no_inference;
  const NoGradGuard no_grad;
  for (UsedSlot& used : used_)
    for (Copy& copy : used.copies) {
      const Tensor home = used.slot.replica(0);
      if (copy.device != device || (copy.source.is_same(home) && copy.version == home.version())) continue;
      copy.tensor.detach().copy_(home.detach());
      copy.source = home;
      copy.version = home.version();
    }
}

void TiedParameters::add_gradients() {
  std::vector<Device> homes;
  for (const UsedSlot& used : used_)
    if (!used.copies.empty() && std::count(homes.begin(), homes.end(), devices_[home_of(used)]) == 0)
      homes.push_back(devices_[home_of(used)]);
  if (homes.empty()) return;
  on_workers(homes, [&](int i) {
    const NoGradGuard no_grad;
    const Device here = homes[static_cast<std::size_t>(i)];
    for (const UsedSlot& used : used_)
      for (const Copy& copy : used.copies) {
        const Tensor gradient = copy.tensor.grad(), first = used.slot.replica(0);
        if (!(first.device() == here) || !gradient.defined()) continue;
        copy.tensor.set_grad({});
        if (first.grad().defined()) first.grad().add_(gradient.to(here));
        else first.set_grad(gradient.to(here));
      }
  });
}

}  // namespace tapestry::distributed
