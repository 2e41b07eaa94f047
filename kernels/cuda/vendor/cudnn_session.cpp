#include "tapestry/kernels/cuda/vendor/cudnn_session.h"

#include <mutex>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/error.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda::cudnn {
namespace {

/// The sessions that nobody has borrowed. Never freed, because kernels may run during exit.
struct Sessions {
  std::mutex mutex;
  std::map<int, std::vector<std::unique_ptr<Session>>> of_device;
  std::map<int, std::string> why_unusable;  // by device
};
Sessions& sessions() {
  static auto& one = *new Sessions;
  return one;
}

}  // namespace

Session::Session() : functions_(&functions()) {
  check_status(*functions_, functions_->cudnnCreate(&handle_.value), "cudnnCreate", "");
}

Session::~Session() {
  plans_.clear();
  static_cast<void>(functions_->cudnnDestroy(handle_.value));
}

void Session::use_stream(void* stream) {
  if (has_stream_ && stream_ == stream) return;
  check_status(*functions_, functions_->cudnnSetStream(handle_.value, stream), "cudnnSetStream", "");
  stream_ = stream;
  has_stream_ = true;
}

const CachedPlan& Session::plan(const PlanKey& key, const EngineRules& rules,
                                const std::function<Graph()>& build) {
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  CachedPlan made;
  try {
    made.plan.emplace(Target{handle_}, build(), rules);
  } catch (const CudnnError& e) {
    if (!e.refused()) throw;
    made.why_not = e.what();
  }
  if (plans_.size() >= kMostPlans) plans_.clear();
  return plans_.emplace(key, std::move(made)).first->second;
}

void Session::run(const Plan& plan, Device device, std::span<void* const> addresses) const {
  const Scratch<unsigned char> workspace(device, plan.workspace());
  plan.run(handle_, addresses, workspace.data());
}

BorrowedSession::BorrowedSession(const LaunchContext& context) : device_(context.device) {
  {
    Sessions& all = sessions();
    const std::lock_guard lock(all.mutex);
    auto& free = all.of_device[device_.index];
    if (!free.empty()) {
      session_ = std::move(free.back());
      free.pop_back();
    }
  }
  if (!session_) session_ = std::make_unique<Session>();
  session_->use_stream(context.stream);
}

BorrowedSession::~BorrowedSession() {
  Sessions& all = sessions();
  const std::lock_guard lock(all.mutex);
  all.of_device[device_.index].push_back(std::move(session_));
}

std::string why_unusable(Device device) {
  Sessions& all = sessions();
  {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.why_unusable.find(device.index); found != all.why_unusable.end())
      return found->second;
  }
  std::string reason = why_unavailable();
  // A fake GPU's streams mean nothing to the real cuDNN.
  if (reason.empty() && !is_library_replaced() &&
      &::tapestry::cuda::devices().runtime() != ::tapestry::cuda::cuda_runtime())
    reason = "the device is not a GPU";
  if (reason.empty()) try {
      auto first = std::make_unique<Session>();
      const std::lock_guard lock(all.mutex);
      all.of_device[device.index].push_back(std::move(first));
    } catch (const Error& e) {
      reason = e.what();
    }
  const std::lock_guard lock(all.mutex);
  return all.why_unusable.emplace(device.index, std::move(reason)).first->second;
}

void forget_sessions() {
  std::map<int, std::vector<std::unique_ptr<Session>>> old;
  Sessions& all = sessions();
  const std::lock_guard lock(all.mutex);
  old.swap(all.of_device);
  all.why_unusable.clear();
}

std::int64_t common_alignment(std::span<const void* const> addresses) {
  std::uintptr_t bits = 16;
  for (const void* const address : addresses) bits |= reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

}  // namespace tapestry::kernels::cuda::cudnn
