#pragma once
// The controls of the stand-in cuDNN: a libcudnn.so.9 that has the backend API and computes operation graphs
// on host memory, from nothing but their descriptors. The library exports cuDNN's own functions and
// tapestry_standin_cudnn().
//
// The stand-in knows the attributes that this library sets, their types and counts, and which of them are
// required. It records every call that breaks a rule as a violation. It does not know which graphs the real
// cuDNN supports: that is what tests/cudnn/real_library_test.cpp checks.
#include <cstdint>

extern "C" {

struct StandInCudnn {
  /// `launch(stream, work, argument)` appends work(argument) to a stream, and work frees the argument.
  void (*set_device)(void (*launch)(void* stream, void (*work)(void*), void* argument));

  // ---- faults ----

  /// Makes the `nth` call (from 0) of the function ("cudnnBackendFinalize") return `status`, a cudnnStatus_t.
  void (*fail)(const char* call, int nth, int status);

  // ---- engines ----

  /// Heuristics of `mode` (cudnnBackendHeurMode_t) propose this engine after those that were added before.
  /// Bit i of `notes` is the numerical note i. A plan with an unsupported engine is refused with
  /// CUDNN_STATUS_NOT_SUPPORTED.
  void (*add_engine)(int mode, std::int64_t engine, unsigned notes, std::int64_t workspace, int supported);
  /// After reset(), mode A proposes engine 1 with the note TENSOR_CORE and 256 bytes of workspace, and the
  /// fallback proposes engine 0. This call removes all engines.
  void (*clear_engines)();
  /// The engine of the last plan that ran; -1 if none has.
  std::int64_t (*last_engine)();

  // ---- records ----

  /// Calls of the function so far.
  int (*calls)(const char* name);
  int (*live_descriptors)();
  int (*live_handles)();
  /// The recorded violations, one line each; empty if there are none. Valid until the next call of the
  /// stand-in.
  const char* (*violations)();
  /// Describes the last operation graph that was finalized. Valid until the next call of the stand-in.
  const char* (*last_graph)();
  /// Forgets faults, engines, counts and violations. No descriptor and no handle may exist.
  void (*reset)();
};

const StandInCudnn* tapestry_standin_cudnn();
}
