#include "tapestry/distributed/comm/store.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/key_table.h"

namespace tapestry::distributed {
namespace {

class MemoryStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    check_key(key), check_value(value);
    const std::lock_guard lock(mutex_);
    put(key, value);
  }

  std::string get(std::string_view key, Milliseconds timeout) override {
    check_key(key);
    std::unique_lock lock(mutex_);
    const std::string* value = nullptr;
    const bool there =
        changed_.wait_until(lock, deadline_after(timeout), [&] { return (value = table_.find(key)); });
    check<TimeoutError>(there, "[store] key \"", key, "\" was not set within ", timeout.count(),
                        " ms (memory store); check that the rank that sets it is running");
    return *value;
  }

  std::optional<std::string> try_get(std::string_view key) override {
    check_key(key);
    const std::lock_guard lock(mutex_);
    const std::string* const value = table_.find(key);
    return value ? std::optional(*value) : std::nullopt;
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    check_key(key);
    const std::lock_guard lock(mutex_);
    const std::int64_t sum = table_.sum(key, amount);
    put(key, std::to_string(sum));
    return sum;
  }

  std::string compare_set(std::string_view key, std::optional<std::string_view> expected,
                          std::string_view desired) override {
    check_key(key), check_value(desired);
    const std::lock_guard lock(mutex_);
    if (table_.holds(key, expected)) put(key, desired);
    const std::string* const now = table_.find(key);
    return now ? *now : std::string();
  }

  bool erase(std::string_view key) override {
    check_key(key);
    const std::lock_guard lock(mutex_);
    return table_.erase(key);
  }

  std::string str() const override { return "memory"; }

 private:
  void put(std::string_view key, std::string_view value) {
    table_.set(key, value);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  KeyTable table_;
};

class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> base)
      : prefix_(std::move(prefix)), base_(std::move(base)) {}

  void set(std::string_view key, std::string_view value) override { base_->set(full(key), value); }
  std::string get(std::string_view key, Milliseconds timeout) override {
    return base_->get(full(key), timeout);
  }
  std::optional<std::string> try_get(std::string_view key) override { return base_->try_get(full(key)); }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return base_->add(full(key), amount);
  }
  std::string compare_set(std::string_view key, std::optional<std::string_view> expected,
                          std::string_view desired) override {
    return base_->compare_set(full(key), expected, desired);
  }
  bool erase(std::string_view key) override { return base_->erase(full(key)); }
  std::string str() const override { return base_->str(); }

 private:
  std::string full(std::string_view key) const { return std::string(prefix_).append(key); }

  const std::string prefix_;
  const std::shared_ptr<Store> base_;
};

}  // namespace

std::shared_ptr<Store> memory_store() { return std::make_shared<MemoryStore>(); }

std::shared_ptr<Store> prefix_store(std::string prefix, std::shared_ptr<Store> base) {
  check(base != nullptr, "[prefix_store] the store for the prefix \"", prefix, "\" is null; pass a store");
  return std::make_shared<PrefixStore>(std::move(prefix), std::move(base));
}

}  // namespace tapestry::distributed
