#pragma once
// HookList: hooks that one thread may register or remove while another thread runs them.
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tapestry/core/intrusive.h"
#include "tapestry/core/tensor_fwd.h"

namespace tapestry {

namespace detail {
/// Holds the mutex of all hook lists. One mutex suffices, because it is held only while pointers are copied;
/// no code of a user runs under it.
class HookListLock {
 public:
  HookListLock();
  ~HookListLock();
  HookListLock(const HookListLock&) = delete;
  HookListLock& operator=(const HookListLock&) = delete;
};
}  // namespace detail

/// A list of hooks of type F, in the order of registration. All methods except the destructor may run on
/// several threads at the same time. A list is replaced and never changed, so a thread that runs the hooks of
/// hooks() sees neither later registrations nor later removals: a hook may still run once after
/// HookHandle::remove() has returned on another thread.
template <class F>
class HookList {
 public:
  struct Entry {
    std::uint64_t id;
    std::shared_ptr<const F> hook;
  };
  using Hooks = std::shared_ptr<const std::vector<Entry>>;

  HookList() = default;
  /// Destroys the hooks. Handles may outlive the list; remove() then does nothing.
  ~HookList() {
    State* const state = state_.load(std::memory_order_relaxed);
    if (!state) return;
    state->replace([](std::vector<Entry>& list) { list.clear(); });
    state->release();
  }
  HookList(const HookList&) = delete;
  HookList& operator=(const HookList&) = delete;

  /// Costs one load if no hook was ever registered.
  bool empty() const {
    const State* const state = state_.load(std::memory_order_acquire);
    return !state || state->empty.load(std::memory_order_relaxed);
  }
  /// The hooks that are registered now; null if none was ever registered.
  Hooks hooks() const {
    const State* const state = state_.load(std::memory_order_acquire);
    if (!state) return nullptr;
    const detail::HookListLock lock;
    return state->hooks;
  }
  HookHandle add(F hook) {
    State* const state = get_state();
    Entry entry{state->next_id.fetch_add(1, std::memory_order_relaxed),
                std::make_shared<const F>(std::move(hook))};
    const std::uint64_t id = entry.id;
    state->replace([&](std::vector<Entry>& list) { list.push_back(std::move(entry)); });
    // The handle keeps the state alive, but not the hooks: what they capture may own this list.
    return HookHandle([state = Ref<State>(state), id] {
      state->replace([id](std::vector<Entry>& list) {
        std::erase_if(list, [id](const Entry& e) { return e.id == id; });
      });
    });
  }

 private:
  struct State {
    mutable std::atomic<int> refs{1};
    std::atomic<bool> empty{true};
    std::atomic<std::uint64_t> next_id{0};
    Hooks hooks = std::make_shared<const std::vector<Entry>>();  // guarded by HookListLock

    void retain() const { refs.fetch_add(1, std::memory_order_relaxed); }
    void release() const {
      if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }
    // Publishes a changed copy of the list. The old list dies after the lock, because the destructor of a
    // hook may register or remove other hooks.
    template <class Change>
    void replace(const Change& change) {
      Hooks old;
      const detail::HookListLock lock;
      std::vector<Entry> list = *hooks;
      change(list);
      empty.store(list.empty(), std::memory_order_relaxed);
      old = std::exchange(hooks, std::make_shared<const std::vector<Entry>>(std::move(list)));
    }
  };

  State* get_state() {
    if (State* const state = state_.load(std::memory_order_acquire)) return state;
    State* const fresh = new State;
    State* expected = nullptr;
    if (state_.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) return fresh;
    fresh->release();
    return expected;
  }

  std::atomic<State*> state_{nullptr};
};

}  // namespace tapestry
