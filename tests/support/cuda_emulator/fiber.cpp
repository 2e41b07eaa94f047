// This file is compiled without sanitizer instrumentation, because it switches stacks while instrumented code
// is running.
#include "tests/support/cuda_emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#if CUDA_EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if CUDA_EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__)
// Saves the callee-saved registers, exchanges the stacks, and restores. A round trip takes 26 ns.
// swapcontext() takes 480 ns, because it also saves the signal mask by a system call.
extern "C" void cuda_emulator_switch(void** save, void* load);
asm(R"(
.text
.globl cuda_emulator_switch
.type cuda_emulator_switch, @function
cuda_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_emulator_switch, .-cuda_emulator_switch
)");
#endif

namespace cuda_emulator {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;  // reserved; pages are committed when touched

Fiber* running = nullptr;

struct Scheduler {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
  void* fake_stack = nullptr;
  const void* stack = nullptr;
  std::size_t stack_bytes = 0;
  void* shadow = nullptr;
} scheduler;

std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

Fiber::Fiber() {
  void* const memory = mmap(nullptr, kStackBytes + page(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, page(), PROT_NONE);  // guard page: a stack overflow crashes here
  stack_ = static_cast<char*>(memory) + page();
}

Fiber::~Fiber() {
#if CUDA_EMULATOR_ASAN
  __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
#if CUDA_EMULATOR_TSAN
  if (shadow_) __tsan_destroy_fiber(shadow_);
#endif
  munmap(stack_ - page(), kStackBytes + page());
}

void Fiber::start(Function function, void* argument) {
#if CUDA_EMULATOR_ASAN
  // The stack frames of the discarded function are still poisoned.
  if (!finished_) __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
#if CUDA_EMULATOR_TSAN
  if (shadow_ && !finished_) {
    __tsan_destroy_fiber(shadow_);
    shadow_ = nullptr;
  }
  if (!shadow_) shadow_ = __tsan_create_fiber(0);
#endif
  function_ = function;
  argument_ = argument;
  begun_ = finished_ = false;
#if defined(__x86_64__)
  void** top = reinterpret_cast<void**>(stack_ + kStackBytes);
  *--top = nullptr;                              // return address of body(); also aligns its stack
  *--top = reinterpret_cast<void*>(&body);       // return address of the first switch
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // the registers that the switch restores
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &body, 0);
#endif
}

void Fiber::abandon() {
#if CUDA_EMULATOR_TSAN
  __tsan_switch_to_fiber(shadow_, 0);
  __tsan_switch_to_fiber(scheduler.shadow, 0);
#endif
}

void Fiber::enter_scheduler() {
#if CUDA_EMULATOR_TSAN
  scheduler.shadow = __tsan_get_current_fiber();
#endif
}

void Fiber::resume() {
  running = this;
#if CUDA_EMULATOR_ASAN
  __sanitizer_start_switch_fiber(&scheduler.fake_stack, stack_, kStackBytes);
#endif
#if CUDA_EMULATOR_TSAN
  __tsan_switch_to_fiber(shadow_, begun_ ? __tsan_switch_to_fiber_no_sync : 0);
#endif
  begun_ = true;
#if defined(__x86_64__)
  cuda_emulator_switch(&scheduler.stack_pointer, stack_pointer_);
#else
  swapcontext(&scheduler.context, &context_);
#endif
#if CUDA_EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(scheduler.fake_stack, nullptr, nullptr);
#endif
  running = nullptr;
}

void Fiber::leave(bool for_good) {
  Fiber* const self = running;
#if CUDA_EMULATOR_ASAN
  __sanitizer_start_switch_fiber(for_good ? nullptr : &self->fake_stack_, scheduler.stack,
                                 scheduler.stack_bytes);
#else
  static_cast<void>(for_good);
#endif
#if CUDA_EMULATOR_TSAN
  __tsan_switch_to_fiber(scheduler.shadow, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__x86_64__)
  cuda_emulator_switch(&self->stack_pointer_, scheduler.stack_pointer);
#else
  swapcontext(&self->context_, &scheduler.context);
#endif
#if CUDA_EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(self->fake_stack_, &scheduler.stack, &scheduler.stack_bytes);
#endif
}

void Fiber::suspend() { leave(false); }

void Fiber::body() {
  Fiber* const self = running;
#if CUDA_EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack, &scheduler.stack_bytes);
#endif
  self->function_(self->argument_);
  self->finished_ = true;
  leave(true);
  std::abort();  // a finished fiber is never resumed
}

}  // namespace cuda_emulator
