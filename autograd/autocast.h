#pragma once
// Automatic mixed precision, as torch.autocast.
//
//   {
//     const AutocastGuard guard(DType::bf16);
//     loss = cross_entropy(model(x), target);
//   }
//   loss.backward();  // the gradient of a parameter has the parameter's dtype
//
// In the scope of a guard, matrix products and convolutions convert their operands to the low dtype, and
// operations that need the range or the precision of f32 convert theirs to f32. The conversions are recorded
// on the tape. docs/tutorials/mixed-precision.md has the lists, which are those of PyTorch.
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/context.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

struct AutocastOptions {
  std::optional<DeviceType> device_type = {};  ///< cpu or cuda: autocast only there; otherwise on both
  bool enabled = true;                         ///< false: autocast is off in this scope
  bool cache_enabled = true;  ///< keep the casts of parameters until the outermost guard ends
};

/// Turns autocast on in this scope, for operations on CPUs and GPUs. Guards nest; the inner one counts.
/// Scopes belong to a thread; the threads of DataParallel, Pipeline and checkpoint() take over the state of
/// their caller.
///
/// The cast of a leaf that requires a gradient is kept until the outermost guard of the thread ends, so that
/// a weight that is used twice is cast once. A change of the leaf in place makes a new cast.
///
/// Backward functions run with autocast off: their tensors have the dtypes of forward already. Call
/// backward() outside of the scope.
class AutocastGuard {
 public:
  using Options = AutocastOptions;

  /// `low` is bf16 or f16. Throws TypeError for other dtypes, and ValueError if options.device_type is meta.
  explicit AutocastGuard(DType low, const Options& options = {});
  /// false turns autocast off in this scope; true turns it on with PyTorch's default dtypes, bf16 on CPUs and
  /// f16 on GPUs.
  explicit AutocastGuard(bool enabled);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState saved_;
  std::uint16_t created_ = 0;  // id of the cache that this guard created
};

/// The dtype that autocast uses on devices of this type, or nothing if it is off in this thread.
std::optional<DType> autocast_dtype(DeviceType type);

namespace autograd {

using tapestry::CastPolicy;

/// A line of the list of operations: what autocast does on CPUs and on GPUs.
struct CastRule {
  const char* op;
  CastPolicy cpu, cuda;
};
/// The list, in alphabetical order: the rows of kernels/ops that say what autocast does, and the operations
/// of autograd/autocast_rules.cpp. Others have CastPolicy::none.
const std::vector<CastRule>& cast_rules();
CastPolicy cast_policy(const char* op, DeviceType type);
const char* policy_name(CastPolicy policy);

namespace impl {
/// Converts t to `dtype` if autocast is on for its device and it is floating but not f64.
Tensor autocast_input(const Tensor& t, DType dtype);
/// How many casts the caches of this process keep.
std::size_t cached_casts();
}  // namespace impl

}  // namespace autograd
}  // namespace tapestry
