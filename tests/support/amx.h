#pragma once
// AMX for tests on every x86-64 processor with AVX2.

/// While an object lives, bf16 kernels use AMX. There must be one object at a time. If this process has no
/// AMX, a handler of SIGILL executes the instructions as Intel's manual defines them. The handler reads and
/// writes memory by memcpy, so AddressSanitizer sees accesses beyond the operands. An instruction that the
/// processor would answer with a fault ends the program with a message.
class Amx {
 public:
  Amx();
  ~Amx();
  Amx(const Amx&) = delete;
  Amx& operator=(const Amx&) = delete;

  /// False without AVX2, and on a processor with AMX which the system or the environment forbids to use.
  bool on() const;
  /// The number of TDPBF16PS that the handler has executed in this process. Without a handler, 0.
  static long products();
  /// The number of threads whose tiles the handler has configured and not released.
  static long configured_threads();
};

/// Whether the processor executes the instructions.
bool amx_in_hardware();
