#include "tapestry/nn/internal/optimizers_of.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

namespace tapestry::optim {
namespace {

struct Enlisted {
  std::mutex mutex;
  std::unordered_map<const void*, std::vector<Optimizer*>> by_slot;
  std::atomic<std::uint64_t> version{0};
};
Enlisted& enlisted() {
  static Enlisted& all = *new Enlisted;  // never destroyed: optimizers may be static
  return all;
}

}  // namespace

std::vector<Optimizer*> optimizers_of(const std::vector<std::pair<std::string, nn::TensorSlot>>& parameters) {
  Enlisted& all = enlisted();
  const std::lock_guard lock(all.mutex);
  std::vector<Optimizer*> found;
  for (const auto& [name, slot] : parameters) {
    const auto known = all.by_slot.find(slot.id());
    if (known == all.by_slot.end()) continue;
    for (Optimizer* o : known->second)
      if (std::find(found.begin(), found.end(), o) == found.end()) found.push_back(o);
  }
  return found;
}

void set_steps(Optimizer& optimizer, std::uint64_t steps) { optimizer.steps_ = steps; }

std::uint64_t optimizers_version() { return enlisted().version.load(std::memory_order_acquire); }

void enlist(Optimizer& optimizer, const std::vector<Parameter>& parameters) {
  Enlisted& all = enlisted();
  const std::lock_guard lock(all.mutex);
  for (const Parameter& p : parameters) all.by_slot[p.id()].push_back(&optimizer);
  all.version.fetch_add(1, std::memory_order_release);
}

void delist(Optimizer& optimizer) {
  Enlisted& all = enlisted();
  const std::lock_guard lock(all.mutex);
  for (const Parameter& p : optimizer.parameters()) {
    const auto known = all.by_slot.find(p.id());
    if (known == all.by_slot.end()) continue;
    std::erase(known->second, &optimizer);
    if (known->second.empty()) all.by_slot.erase(known);
  }
  all.version.fetch_add(1, std::memory_order_release);
}

}  // namespace tapestry::optim
