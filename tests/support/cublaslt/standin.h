#pragma once
// The controls of the stand-in cuBLASLt: a library with the functions that kernels/cuda/vendor calls. It
// computes products on host memory from the descriptors alone, and describes each of them. It also records
// violations: calls that cuBLASLt's documentation forbids. The library exports cuBLASLt's own functions and
// tapestry_standin_cublaslt().
#include <cstddef>

extern "C" {

struct StandInCublasLt {
  /// `launch(stream, work, argument)` appends work to a stream, which must call work(argument) once. `gpu()`
  /// returns the GPU that the calling thread has chosen.
  void (*set_device)(void (*launch)(void* stream, void (*work)(void*), void* argument), int (*gpu)());
  /// Makes the `nth` call (from 0) of the function return the cublasStatus_t `status`.
  void (*fail)(const char* call, int nth, int status);
  /// Sets how many algorithms the heuristics return, and how many bytes of workspace each needs. After
  /// reset() these are 2 and 1000.
  void (*set_algorithms)(int count, std::size_t workspace);

  /// Calls of the function so far.
  int (*calls)(const char* name);
  /// Handles that were not destroyed.
  int (*live)();
  /// One line for each cublasLtMatmul(), and the stream of the last one.
  const char* (*products)();
  void* (*last_stream)();
  /// One line for each question to the heuristics: what was preferred.
  const char* (*preferences)();
  /// The recorded violations, one line each; empty if there are none.
  const char* (*violations)();
  /// Forgets faults, counts and records.
  void (*reset)();
};

const StandInCublasLt* tapestry_standin_cublaslt();
}
