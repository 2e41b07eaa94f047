#pragma once
// A fiber: a function on its own stack that can suspend itself and be resumed. Each emulated CUDA thread is a
// fiber. One OS thread runs all fibers. The sanitizers are notified of every switch.
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

  /// The next resume() starts `function`. The previous function is discarded even if it has not returned.
  void start(Function function, void* argument);
  /// Runs the fiber until it suspends or its function returns. For ThreadSanitizer, only the first resume()
  /// creates a happens-before edge, from caller to fiber.
  void resume();
  /// Must be called if the fiber is never resumed again. It tells ThreadSanitizer that everything the fiber
  /// did happens before what the caller does next.
  void abandon();
  /// Called on a fiber: returns to the caller of resume().
  static void suspend();
  /// Initialises the fibers. It must be called on the main stack before any fiber runs.
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
  [[maybe_unused]] void* fake_stack_ = nullptr;  // the handle of AddressSanitizer for this fiber's stack
  [[maybe_unused]] void* shadow_ = nullptr;      // the handle of ThreadSanitizer for this fiber
};

}  // namespace cuda_emulator
