#include "tapestry/autograd/autocast.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/node.h"
#include "tapestry/autograd/ops/copy.h"
#include "tapestry/core/error.h"

namespace tapestry {
namespace autograd {
namespace {

// The casts of the leaves of one outermost guard. Threads that inherited the guard's state share it.
class CastCache {
 public:
  /// The cast of `leaf`, from the cache if it is still right.
  Tensor cast(const Tensor& leaf, DType dtype) {
    const Key key(leaf.impl(), std::this_thread::get_id());
    {
      const std::lock_guard lock(mutex_);
      const auto at = entries_.find(key);
      // A cast that was not recorded gives no gradient, so that grad mode needs another one.
      if (at != entries_.end() && at->second.cast.dtype() == dtype && at->second.version == leaf.version() &&
          at->second.storage == leaf.storage().get() && (at->second.recorded || !grad_enabled()))
        return at->second.cast;
    }
    // The lock is not held here, because a parameter of fully_shard may wait for other ranks.
    Entry entry{leaf, to(leaf, leaf.device(), dtype), 0, nullptr, grad_enabled()};
    entry.version = leaf.version();  // to() may have filled released memory, which changes the version
    entry.storage = leaf.storage().get();
    const Tensor cast = entry.cast;
    const std::lock_guard lock(mutex_);
    entries_.insert_or_assign(key, std::move(entry));
    return cast;
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    Tensor leaf, cast;  // the leaf is kept so that no other tensor gets its address
    std::uint32_t version = 0;
    const void* storage = nullptr;
    bool recorded = false;
  };
  // Each thread has casts of its own: passes that run at the same time must not share nodes of the tape.
  using Key = std::pair<const void*, std::thread::id>;
  std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

// The caches of the guards that exist. A Context has the id of its cache and not its address, because nodes
// of the tape keep their contexts longer than the guard lives.
class Caches {
 public:
  std::uint16_t create() {
    const std::lock_guard lock(mutex_);
    for (;;) {
      const std::uint16_t id = ++last_;
      if (id == 0 || caches_.contains(id)) continue;
      caches_[id] = std::make_shared<CastCache>();
      return id;
    }
  }
  void destroy(std::uint16_t id) {
    std::shared_ptr<CastCache> last;  // destroyed without the lock, because it frees nodes of the tape
    const std::lock_guard lock(mutex_);
    const auto at = caches_.find(id);
    if (at == caches_.end()) return;
    last = std::move(at->second);
    caches_.erase(at);
  }
  std::shared_ptr<CastCache> find(std::uint16_t id) {
    if (id == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    const auto at = caches_.find(id);
    return at == caches_.end() ? nullptr : at->second;
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    std::size_t n = 0;
    for (const auto& [id, cache] : caches_) n += cache->size();
    return n;
  }

 private:
  std::mutex mutex_;
  std::uint16_t last_ = 0;
  std::unordered_map<std::uint16_t, std::shared_ptr<CastCache>> caches_;
};
Caches& caches() {
  static Caches* const all = new Caches;  // never destroyed, because threads may outlive static objects
  return *all;
}

std::optional<DType> low_dtype(const AutocastState& state, DeviceType type) {
  if (type == DeviceType::meta) return {};
  const int coded = state.low[static_cast<int>(type)];
  if (coded == 0) return {};
  return static_cast<DType>(coded - 1);
}
bool eligible(const Tensor& t, DeviceType type) {
  return t.defined() && t.device().type == type && is_floating(t.dtype()) && t.dtype() != DType::f64;
}

Tensor cast_to(const Tensor& t, DType dtype, const AutocastState& state) {
  if (t.dtype() == dtype) return t;
  const bool low = dtype == DType::bf16 || dtype == DType::f16;
  if (low && t.dtype() == DType::f32 && t.requires_grad() && t.is_leaf())
    if (const auto cache = caches().find(state.cache)) return cache->cast(t, dtype);
  return to(t, t.device(), dtype);
}

}  // namespace

CastPolicy cast_policy(const char* op, DeviceType type) {
  if (type == DeviceType::meta) return CastPolicy::none;
  const auto& rules = cast_rules();
  const std::string_view name = op;
  const auto at = std::lower_bound(rules.begin(), rules.end(), name,
                                   [](const CastRule& r, std::string_view n) { return r.op < n; });
  if (at == rules.end() || at->op != name) return CastPolicy::none;
  return type == DeviceType::cuda ? at->cuda : at->cpu;
}

const char* policy_name(CastPolicy policy) {
  static constexpr const char* kNames[] = {"none", "low", "f32", "promote", "through"};
  return kNames[static_cast<int>(policy)];
}

namespace impl {
Tensor autocast_input(const Tensor& t, DType dtype) {
  const AutocastState& state = current_context().autocast;
  if (!t.defined() || !low_dtype(state, t.device().type) || !eligible(t, t.device().type)) return t;
  return cast_to(t, dtype, state);
}
std::size_t cached_casts() { return caches().size(); }
}  // namespace impl

void Autocast::enter(const char* op, std::span<const Tensor* const> operands) {
  saved_ = current_context().autocast;
  const auto first =
      std::find_if(operands.begin(), operands.end(), [](const Tensor* t) { return t->defined(); });
  if (first == operands.end()) return;
  device_ = (*first)->device().type;
  const std::optional<DType> low = low_dtype(saved_, device_);
  if (!low) return;
  policy_ = cast_policy(op, device_);
  result_ = (*first)->dtype();
  switch (policy_) {
    case CastPolicy::none:
      return;
    case CastPolicy::low:
      to_ = *low;
      break;
    case CastPolicy::f32:
      to_ = DType::f32;
      break;
    case CastPolicy::promote:
      // torch.autocast: f32 if an operand is f32, or f16 meets bf16; otherwise the low dtype itself.
      to_ = *low;
      for (const Tensor* t : operands)
        if (eligible(*t, device_)) to_ = promote(to_, t->dtype());
      break;
    case CastPolicy::through: {
      const bool same = std::all_of(operands.begin(), operands.end(), [this](const Tensor* t) {
        return !eligible(*t, device_) || t->dtype() == result_;
      });
      if (same || !eligible(**first, device_)) return;
      to_ = DType::f32;
      break;
    }
  }
  // The operation runs with autocast off, as in PyTorch: the operations that it calls cast nothing.
  casts_ = true;
  current_context().autocast = {};
}

Tensor Autocast::operator()(const Tensor& operand) const {
  return eligible(operand, device_) ? cast_to(operand, to_, saved_) : operand;
}
std::vector<Tensor> Autocast::operator()(const std::vector<Tensor>& operands) const {
  std::vector<Tensor> casted;
  for (const Tensor& t : operands) casted.push_back((*this)(t));
  return casted;
}
Tensor Autocast::result(const Tensor& y) const {
  return policy_ == CastPolicy::through ? to(y, y.device(), result_) : y;
}

}  // namespace autograd

// ---- AutocastGuard

namespace {
void set(AutocastState& state, DeviceType type, std::optional<DType> low) {
  state.low[static_cast<int>(type)] = static_cast<std::uint8_t>(low ? 1 + static_cast<int>(*low) : 0);
}
}  // namespace

AutocastGuard::AutocastGuard(DType low, const Options& options) : saved_(current_context().autocast) {
  check<TypeError>(low == DType::bf16 || low == DType::f16, "[AutocastGuard] takes bfloat16 or float16, got ",
                   low, "; AutocastGuard(false) turns autocast off");
  const std::optional<DeviceType> only = options.device_type;
  check(!only || *only != DeviceType::meta,
        "[AutocastGuard] device_type must be cpu or cuda: tensors on the meta device are not cast");
  AutocastState& state = current_context().autocast;
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda})
    if (!only || *only == type) set(state, type, options.enabled ? std::optional(low) : std::nullopt);
  if (!options.cache_enabled) state.cache = 0;
  else if (state.cache == 0 && state.active()) state.cache = created_ = autograd::caches().create();
}

AutocastGuard::AutocastGuard(bool enabled) : saved_(current_context().autocast) {
  AutocastState& state = current_context().autocast;
  set(state, DeviceType::cpu, enabled ? std::optional(DType::bf16) : std::nullopt);
  set(state, DeviceType::cuda, enabled ? std::optional(DType::f16) : std::nullopt);
  if (enabled && state.cache == 0) state.cache = created_ = autograd::caches().create();
}

AutocastGuard::~AutocastGuard() {
  current_context().autocast = saved_;
  if (created_ != 0) autograd::caches().destroy(created_);
}

std::optional<DType> autocast_dtype(DeviceType type) {
  return autograd::low_dtype(current_context().autocast, type);
}

}  // namespace tapestry
