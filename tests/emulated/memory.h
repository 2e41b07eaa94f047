#pragma once
// Memory, thread orders and recorded launches for tests of kernels on the emulator. Include after
// portable.cuh.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

#include "tapestry/core/half.h"
#include "tapestry/kernels/cuda/portable.cuh"
#include "tests/support/catch.h"

namespace emulated {

/// The seeds of the thread orders that tests run; 0 runs threads and blocks in order. Under a sanitizer tests
/// run only one shuffled order, because a run costs many times more there, and one order shows the same
/// errors.
#ifdef TAPESTRY_SANITIZED
inline constexpr std::uint64_t kOrders[] = {1};
#else
inline constexpr std::uint64_t kOrders[] = {0, 1, 2};
#endif

/// Calls f once with threads and blocks in order, and then with shuffled orders.
template <class F>
void in_each_order(F f) {
  struct Restore {
    ~Restore() { cuda_emulator::options().seed = 0; }
  } restore;
  for (const std::uint64_t seed : kOrders) {
    CAPTURE(seed);
    cuda_emulator::options().seed = seed;
    f();
  }
}

/// True under ThreadSanitizer, where a kernel runs 60 times longer than without sanitizers. Tests check fewer
/// sizes there, because ThreadSanitizer looks for races only, and most sizes and dtypes synchronize in the
/// same way.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kOnlyRaces = true;
#else
inline constexpr bool kOnlyRaces = false;
#endif

/// A number below `n`, which is a power of 2. Successive calls with the same `calls` return all numbers about
/// equally often, in an order without a period, so that it does not depend on the caller's loops.
inline unsigned next_choice(unsigned& calls, unsigned n) {
  return static_cast<unsigned>((std::uint64_t{calls++ * 0x9E3779B9u} * n) >> 32);
}

/// Calls f.operator()<T>() for float and BFloat16; if kOnlyRaces, for one of them.
template <class F>
void for_float_dtypes(const F& f) {
  static unsigned calls = 0;
  const unsigned chosen = next_choice(calls, 2);
  if (!kOnlyRaces || chosen == 0) f.template operator()<float>();
  if (!kOnlyRaces || chosen == 1) f.template operator()<tapestry::BFloat16>();
}

/// The mangled names of the kernels that f launches, one per line. The kernels do not run.
template <class F>
std::string kernels_of(const F& f) {
  struct Restore {
    ~Restore() { cuda_emulator::options().record_only = false; }
  } restore;
  cuda_emulator::options().record_only = true;
  cuda_emulator::take_launches();
  f();
  std::string names;
  for (const auto& launch : cuda_emulator::take_launches()) names += launch.kernel + "\n";
  return names;
}

/// Device memory: a heap block that ends exactly after its last element, so that AddressSanitizer detects
/// overruns. The first element is `offset` elements after a 16-byte boundary.
template <class T>
class Block {
 public:
  explicit Block(std::size_t size, std::size_t offset = 0)
      : base_(static_cast<T*>(operator new ((size + offset) * sizeof(T), std::align_val_t{16}))),
        size_(size),
        offset_(offset) {
    std::fill_n(base_, size + offset, T());
  }
  template <class Values>
  requires requires(const Values& v) { v.size(); }
  Block(const Values& values, std::size_t offset = 0) : Block(values.size(), offset) {
    for (std::size_t i = 0; i < size_; ++i) data()[i] = static_cast<T>(values[i]);
  }
  ~Block() { operator delete (base_, std::align_val_t{16}); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  T* data() const { return base_ + offset_; }
  T& operator[](std::size_t i) const { return data()[i]; }
  std::size_t size() const { return size_; }

 private:
  T* base_;
  std::size_t size_, offset_;
};

}  // namespace emulated
