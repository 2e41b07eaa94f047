#include "tapestry/distributed/pipeline/internal/stage_parameters.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/error.h"
#include "tapestry/nn/materialize.h"

namespace tapestry::distributed {
namespace {

class StageRanks final : public nn::RankGroup {
 public:
  explicit StageRanks(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  int size() const override { return group_->size(); }
  int rank(int) const override { return group_->rank(); }
  const void* id(int) const override { return group_.get(); }
  void sum(int, const Tensor& values) const override {
    group_->all_reduce(values, ReduceOp::sum, "pipeline: sum over the stages").wait();
  }

 private:
  const std::shared_ptr<ProcessGroup> group_;
};

// The ranks whose stages use a slot, and its name in each of them.
struct Use {
  std::vector<int> ranks;
  std::vector<std::string> names;
  bool is_buffer = false;
};
using Uses = std::unordered_map<const void*, Use>;

Uses uses_in(const std::vector<Stage>& stages) {
  Uses uses;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto add = [&](const auto& slots, bool is_buffer) {
      for (const auto& [name, slot] : slots) {
        Use& use = uses[slot.id()];
        use.ranks.push_back(static_cast<int>(s));
        if (std::find(use.names.begin(), use.names.end(), name) == use.names.end()) use.names.push_back(name);
        use.is_buffer = is_buffer;
      }
    };
    add(stages[s].named_parameters(), false);
    add(stages[s].named_buffers(), true);
  }
  return uses;
}

}  // namespace

std::vector<std::vector<std::string>> keep_own_stage(nn::Module& model, const std::vector<Stage>& stages,
                                                     const std::shared_ptr<ProcessGroup>& group) {
  const Device device = stages.at(static_cast<std::size_t>(group->rank())).device();
  const Uses uses = uses_in(stages);
  const auto is_elsewhere = [&](const nn::TensorSlot& slot) {
    const auto found = uses.find(slot.id());
    return found != uses.end() &&
           std::count(found->second.ranks.begin(), found->second.ranks.end(), group->rank()) == 0;
  };
  nn::NamedSlots own;
  const auto add_own = [&](const auto& slots) {
    for (const auto& [name, slot] : slots)
      if (!is_elsewhere(slot)) own.emplace_back(name, slot);
  };
  add_own(model.named_parameters());
  add_own(model.named_buffers());
  nn::materialize(own, device);

  // All ranks go through the model in one order, and so list the tied parameters in one order.
  const auto ranks = std::make_shared<StageRanks>(group);
  std::vector<std::vector<std::string>> tied;
  std::unordered_set<const void*> seen;
  for (auto& [name, slot] : model.named_state()) {
    const auto found = uses.find(slot.id());
    if (found == uses.end() || !seen.insert(slot.id()).second) continue;
    const Use& use = found->second;
    check(!slot.layout() && slot.replicas() == 1, "[Pipeline] '", name,
          "' is sharded or replicated already; pass the bare model");
    check(use.ranks.size() == 1 || !use.is_buffer, "[Pipeline] the buffer '", name,
          "' is in the stages of ranks ", use.ranks[0], " and ", use.ranks.back(),
          "; give each stage a module of its own");
    if (use.ranks.size() > 1) tied.push_back(use.names);
    const Tensor whole = slot.tensor();
    Tensor stored = whole;
    if (is_elsewhere(slot)) {
      Shape none = nn::Region::whole(whole.sizes()).sizes;
      none[0] = 0;
      stored = empty(none, {whole.dtype(), device});
      if (is_floating(whole.dtype())) stored.set_requires_grad(whole.requires_grad());
    }
    slot.set_layout(std::make_shared<nn::Layout>(whole.sizes(),
                                                 std::vector<nn::Cut>{{ranks, nn::Cut::kHeld, use.ranks}},
                                                 std::vector<Tensor>{stored}));
  }
  // A stage that used such a parameter would get a gradient that no other rank knows of.
  for (const auto& [name, slot] : model.named_parameters())
    check(uses.contains(slot.id()) || !slot.tensor().requires_grad(), "[Pipeline] the parameter '", name,
          "' is in no stage; list its module in the stage that uses it, or freeze it");
  return tied;
}

}  // namespace tapestry::distributed
