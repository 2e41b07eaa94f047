#pragma once
// cuDNN's handles, with the plans that were made for them.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tapestry/kernels/cuda/vendor/cudnn_graph.h"
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels::cuda::cudnn {

/// Everything that a plan depends on: the operation, its shapes, strides and options, the dtype, the
/// alignment, and the rules for engines.
using PlanKey = std::vector<std::int64_t>;

/// A plan, or the reason why cuDNN cannot do the operation.
struct CachedPlan {
  std::optional<Plan> plan;
  std::string why_not;
};

/// One handle, and the plans that it has run. One thread at a time uses a session.
class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Later work goes to this stream (cudaStream_t).
  void use_stream(void* stream);
  /// Returns the plan for the key. At the first call for a key, builds the graph and the plan. What cuDNN
  /// refused once is remembered, too. Throws CudnnError for failures that are not refusals; they are not
  /// remembered.
  const CachedPlan& plan(const PlanKey& key, const EngineRules& rules, const std::function<Graph()>& build);
  /// Runs the plan with a workspace on `device`.
  void run(const Plan& plan, Device device, std::span<void* const> addresses) const;

 private:
  // A cache that reaches this size is emptied. Shapes can be many, such as the lengths of sentences.
  static constexpr std::size_t kMostPlans = 1024;

  const Functions* functions_;
  Handle handle_;
  void* stream_ = nullptr;
  bool has_stream_ = false;
  std::map<PlanKey, CachedPlan> plans_;
};

/// Borrows a session of the context's device for as long as it exists. Threads never share a session: a
/// thread gets the one that was given back last, or a new one. The caller has made the device's GPU the
/// current one, as slots do.
class BorrowedSession {
 public:
  explicit BorrowedSession(const LaunchContext& context);
  ~BorrowedSession();
  BorrowedSession(const BorrowedSession&) = delete;
  BorrowedSession& operator=(const BorrowedSession&) = delete;
  Session* operator->() const { return session_.get(); }

 private:
  Device device_;
  std::unique_ptr<Session> session_;
};

/// Empty if this process can use cuDNN on a CUDA device. Otherwise the reason: there is no library, it does
/// not start on the device's GPU, or the device is a fake of the tests and the library is real. cuDNN is
/// started at the first call.
std::string why_unusable(Device device);

/// Destroys all sessions that nobody has borrowed, and forgets what why_unusable() has found.
void forget_sessions();

/// The largest power of two up to 16 that divides all addresses. Null addresses do not count.
std::int64_t common_alignment(std::span<const void* const> addresses);

}  // namespace tapestry::kernels::cuda::cudnn
