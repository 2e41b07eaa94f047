#pragma once
// The controls of the stand-in NCCL: a libnccl.so.2 that runs the collectives of several ranks, which are
// threads of one process, on host memory. The library exports NCCL's own functions and
// tapestry_standin_nccl().
//
// The stand-in keeps to NCCL's contract for communicators that do not block:
//  - Calls return ncclInProgress; ncclCommGetAsyncError() returns ncclSuccess after a number of polls. A call
//  on a
//    communicator that is still in progress is a violation.
//  - A collective happens on its stream when all ranks' streams have reached it. A send happens when both
//  sides have.
//  - Ranks that call different collectives, or with different counts, types, operations or roots, hang, as
//  they do in
//    NCCL. In addition the stand-in notes a violation.
// It does not run ranks in several processes.
extern "C" {

struct StandInNccl {
  // ---- the device that streams belong to ----

  /// `launch(stream, work, argument)` appends work to a stream. The stream must call work(argument) until it
  /// returns nonzero, and hold back its later work. `gpu()` returns the GPU that the calling thread has
  /// chosen, or -1.
  void (*set_device)(void (*launch)(void* stream, int (*work)(void*), void* argument), int (*gpu)());

  // ---- faults ----

  /// Makes the `nth` call (from 0) of the function `call` ("ncclAllReduce") fail with `result`, an
  /// ncclResult_t. If `asynchronous`, the call itself returns ncclInProgress and the error comes from
  /// ncclCommGetAsyncError().
  void (*fail)(const char* call, int nth, int result, int asynchronous);
  /// The number of polls for which a call stays in progress; 2 after reset().
  void (*set_polls)(int polls);
  /// While `on`, ncclCommAbort() does not return.
  void (*hold_aborts)(int on);

  // ---- what happened ----

  /// Calls of the function so far.
  int (*calls)(const char* name);
  /// Threads that are inside ncclCommAbort().
  int (*aborting)();
  /// Communicators that were neither destroyed nor aborted.
  int (*live)();
  /// Broken rules, one line each; empty if there are none. Valid until the next call of the stand-in.
  const char* (*violations)();
  /// Forgets faults, counts and violations. No communicator may be alive.
  void (*reset)();
};

const StandInNccl* tapestry_standin_nccl();
}
