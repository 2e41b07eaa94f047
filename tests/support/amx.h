#pragma once
// AMX for tests on every x86-64 processor with AVX2.

/// While an object lives, bf16 kernels use AMX. If this process has no AMX, a handler of SIGILL executes the
/// instructions as Intel's manual defines them. It reads and writes memory by memcpy, so AddressSanitizer
/// sees accesses beyond the operands. A use that the processor would answer with a fault ends the program
/// with a message.
class Amx {
 public:
  Amx();
  ~Amx();
  Amx(const Amx&) = delete;
  Amx& operator=(const Amx&) = delete;

  /// False where there is neither AMX nor AVX2: then kernels do not use AMX.
  bool on() const;
  /// The number of TDPBF16PS that the handler has executed in this process. Without a handler, 0.
  static long products();
  /// The number of threads whose tiles the handler has configured and not released.
  static long configured_threads();
};

/// Whether the processor executes the instructions.
bool amx_in_hardware();
