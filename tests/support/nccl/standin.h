#pragma once
// The controls of the stand-in NCCL: a libnccl.so.2 that runs the collectives of several ranks, which are
// threads of one process, on host memory. The library exports NCCL's own functions and
// tapestry_standin_nccl().
//
// The stand-in behaves like NCCL with nonblocking communicators. Calls return ncclInProgress, and
// ncclCommGetAsyncError() returns ncclSuccess after a number of polls. A collective runs when the streams of
// all ranks have reached it; a send runs when both sides have reached it. Ranks hang if they call different
// collectives, or the same one with different counts, types, operations or roots.
//
// The stand-in also records violations: such mismatched calls, and calls on a communicator that is still in
// progress. It supports only ranks that are threads of one process.
extern "C" {

struct StandInNccl {
  // ---- the device that streams belong to ----

  /// `launch(stream, work, argument)` appends work to a stream. The stream must call work(argument) until it
  /// returns nonzero, and hold back its later work. `gpu()` returns the GPU that the calling thread has
  /// chosen, or -1.
  void (*set_device)(void (*launch)(void* stream, int (*work)(void*), void* argument), int (*gpu)());
  /// `at(address, bytes, write)` returns where the host finds bytes of a GPU that an operation reads or writes,
  /// or null if they are not there. Without it, and after set_memory(nullptr), they are at their address.
  void (*set_memory)(void* (*at)(const void* address, unsigned long bytes, int write));

  // ---- faults ----

  /// Makes the `nth` call (from 0) of the function `call` ("ncclAllReduce") fail with `result`, an
  /// ncclResult_t. If `asynchronous`, the call itself returns ncclInProgress and the error comes from
  /// ncclCommGetAsyncError().
  void (*fail)(const char* call, int nth, int result, int asynchronous);
  /// The number of polls for which a call stays in progress; 2 after reset().
  void (*set_polls)(int polls);
  /// hold_aborts(1) makes ncclCommAbort() block until hold_aborts(0).
  void (*hold_aborts)(int on);

  // ---- records ----

  /// Calls of the function so far.
  int (*calls)(const char* name);
  /// Threads that are inside ncclCommAbort().
  int (*aborting)();
  /// Communicators that were neither destroyed nor aborted.
  int (*live)();
  /// Returns the recorded violations, one line each; empty if there are none. The text is valid until the
  /// next call of the stand-in.
  const char* (*violations)();
  /// Forgets faults, counts and violations. No communicator may be alive.
  void (*reset)();
};

const StandInNccl* tapestry_standin_nccl();
}
