#pragma once
// A function on a stack of its own that can stop in the middle and be resumed: what a CUDA thread runs on
// here. One OS thread runs all fibers. Sanitizers are told of every switch.
#include <cstddef>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace cuda_emulator {

class Fiber {
 public:
  using Function = void (*)(void* argument);

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next resume() begins `function`. Whatever ran here before is forgotten, finished or not.
  void start(Function function, void* argument);
  /// Runs the fiber until it suspends or its function returns. ThreadSanitizer: what the caller did before
  /// the first resume() happens before what the fiber does; later switches order nothing.
  void resume();
  /// For a fiber that is never resumed again: what it did happens before what the caller does next.
  void abandon();
  /// Called on a fiber: back to whoever resumed it.
  static void suspend();
  /// Called once on the main stack before fibers run.
  static void enter_scheduler();

 private:
  static void body();
  static void leave(bool for_good);

  char* stack_;
  Function function_ = nullptr;
  void* argument_ = nullptr;
  bool begun_ = false, finished_ = true;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
  [[maybe_unused]] void* fake_stack_ = nullptr;  // AddressSanitizer's
  [[maybe_unused]] void* shadow_ = nullptr;      // ThreadSanitizer's
};

}  // namespace cuda_emulator
