#pragma once
// The choice among several implementations of one kernel: see core/kernel_policy.h for the policies.
//
//   const ChoicePoint gemm_choice{"gemm"};                              // kernels/cuda/vendor/matmul.cpp
//
//   const Candidate candidates[] = {{.name = "tapestry"},
//                                   {.name = "cuBLASLt", .version = "13.0.2", .vendor = true}};
//   const std::size_t i = choose(gemm_choice, context, candidates, [&] { return "f32 m=8 n=8 k=8"; },
//                                [&](std::size_t c) { run(c, context, with_scratch_outputs(args)); });
//   run(i, context, args);
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "tapestry/core/kernel_policy.h"
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels {

/// An operation with several implementations, under the name that users give to set_kernel_policy(). A static
/// object of the file that lists the candidates. It is never destroyed before the last choose().
class ChoicePoint {
 public:
  explicit ChoicePoint(const char* name);
  ChoicePoint(const ChoicePoint&) = delete;
  ChoicePoint& operator=(const ChoicePoint&) = delete;
  const char* name() const { return name_; }
  const ChoicePoint* next() const { return next_; }

 private:
  const char* name_;
  const ChoicePoint* next_;
};

/// One implementation. Texts must live until choose() returns.
struct Candidate {
  /// Shown by the profiler and written to tables: "tapestry", "cuBLASLt". It contains no tab and no comma.
  const char* name;
  std::string_view version = {};  ///< of the library; a choice among other versions is measured again
  bool vendor = false;            ///< from NVIDIA's library
  bool deterministic = true;      ///< computes the same bits each time
  std::string_view why_not = {};  ///< why it cannot run these arguments; empty if it can
};

/// Returns the index of the candidate that must run, and names it in the profiler's span. Candidates of one
/// kind are listed in the order of preference.
///
/// `key` returns a text that determines the duration of every candidate: dtypes, sizes, layouts, alignments,
/// and switches such as TF32. It is called only if the choice depends on it. `trial` enqueues candidate i on
/// the context's stream with outputs in scratch memory: it must not touch the real outputs, because it runs
/// several times, and because it may read uninitialised memory where the real output would accumulate. It is
/// called only to measure.
///
/// A trial that throws excludes its candidate. Throws MissingKernelError if there is no candidate that can
/// run the arguments, and ValueError if TAPESTRY_KERNELS is malformed.
std::size_t choose(const ChoicePoint& point, const LaunchContext& context,
                   std::span<const Candidate> candidates, const std::function<std::string()>& key,
                   const std::function<void(std::size_t)>& trial);

/// The policy of the operation, so that a caller under KernelPolicy::custom need not ask the vendor's library
/// what it supports. Throws ValueError if TAPESTRY_KERNELS is malformed.
KernelPolicy policy_of(const ChoicePoint& point);

/// Whether the kernels of kernels/cuda/hopper, which no GPU has run yet, are candidates: TAPESTRY_WGMMA=1.
/// Throws ValueError if the variable is neither empty, 0 nor 1.
bool wgmma_allowed();

/// While one exists, choose() measures nothing on this thread. Recording a stream into a graph needs it: a
/// trial waits for the device.
class NoMeasuring {
 public:
  NoMeasuring();
  ~NoMeasuring();
  NoMeasuring(const NoMeasuring&) = delete;
  NoMeasuring& operator=(const NoMeasuring&) = delete;
};

/// How choose() treats shapes that kernel_choices() does not contain yet, in all threads.
enum class NewShapes : std::uint8_t {
  measure,  ///< measure, and use the result at once
  /// For rank 0 of a job: measure, but use own kernels until set_kernel_choices(). The results are in
  /// kernel_choices().
  measure_for_later,
  own,  ///< for the other ranks of a job: use own kernels, measure nothing, and read no file
};
void set_new_shapes(NewShapes how);

/// For tests: forgets all choices, also what was read from the file, reads TAPESTRY_KERNELS and
/// TAPESTRY_CACHE_DIR again, and restores every default.
void reset_policy();

}  // namespace tapestry::kernels
