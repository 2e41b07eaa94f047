#pragma once
// The scope in which a strategy leaves gradients on their own rank, for steps of several backward passes.
#include <memory>
#include <utility>

namespace tapestry::distributed {

/// While it exists, backward passes leave their gradients where they are, without communication. The first
/// pass after it reduces the sums. It takes effect when backward runs; forward may run inside or outside. The
/// no_sync() of a strategy returns it.
class NoSync {
 public:
  /// Sets the strategy's switch to false.
  explicit NoSync(std::shared_ptr<bool> synchronize)
      : synchronize_(std::move(synchronize)), outer_(std::exchange(*synchronize_, false)) {}
  ~NoSync() {
    if (synchronize_) *synchronize_ = outer_;
  }
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<bool> synchronize_;
  bool outer_;
};

}  // namespace tapestry::distributed
