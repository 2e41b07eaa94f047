#pragma once
// Functions of 16-bit floats by table. A 16-bit argument has 65536 values, so a table of a function's results
// costs no more than a call with 65536 elements. Looking a result up takes a third of the time of computing
// a gelu in vectors of 512 bits, and gives the same bits, because the table is computed by the row's own f32
// formula and rounded once.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "tapestry/kernels/cpu/wide.h"

namespace tapestry::kernels::cpu {

/// A table is made when this many elements have been computed without it, so a program that rarely calls the
/// function does not pay for one.
inline constexpr std::int64_t kElementsBeforeTable = 1 << 18;

/// The results of one function: T rounded, or f32.
template <class To>
class FunctionTable {
 public:
  /// The 65536 results, or null if `n` more elements do not yet pay for them. `fill(table)` computes them.
  template <class Fill>
  const To* get(std::int64_t n, const Fill& fill) {
    if (const To* const ready = ready_.load(std::memory_order_acquire)) return ready;
    if (seen_.fetch_add(n, std::memory_order_relaxed) + n < kElementsBeforeTable) return nullptr;
    const std::lock_guard lock(mutex_);
    if (!table_) {
      auto table = std::make_unique<Results>();
      fill(table->data());
      table_ = std::move(table);
      ready_.store(table_->data(), std::memory_order_release);
    }
    return table_->data();
  }

 private:
  using Results = std::array<To, 65536>;
  std::atomic<const To*> ready_{nullptr};
  std::atomic<std::int64_t> seen_{0};
  std::mutex mutex_;
  std::unique_ptr<Results> table_;
};

/// Calls f(first, values, n) for the 65536 values of T, in blocks. `values` has n of them as f32.
template <class T, class F>
void for_all_values(const F& f) {
  constexpr int kBlock = 512;
  float x[kBlock];
  for (int first = 0; first < 65536; first += kBlock) {
    for (int i = 0; i < kBlock; ++i)
      x[i] = static_cast<float>(T::from_bits(static_cast<std::uint16_t>(first + i)));
    f(first, x, kBlock);
  }
}

template <int N>
bool dense_in(const Elementwise<N>& e, DType dtype) {
  bool dense = e.ndim == 1;
  for (int i = 0; i < N; ++i) dense = dense && e.strides[i][0] == 1 && e.dtypes[i] == dtype;
  return dense;
}

/// out = Row(x) by table. Does nothing and returns false if the operands are not dense arrays of T, or if a
/// table does not pay yet.
template <class Row, class M, class T>
bool look_up(const Elementwise<2>& e) {
  if (!dense_in(e, dtype_of<T>)) return false;
  static FunctionTable<T> made;
  const T* const table = made.get(e.numel, [](T* to) {
    for_all_values<T>([to](int first, float* x, int n) {
      simple_loop(
          n, [](float v) { return Row::template value<M>(v); }, x, x);
      for (int i = 0; i < n; ++i) to[first + i] = T(x[i]);
    });
  });
  if (!table) return false;
  parallel_for(e.numel, kGrain,
               [table, x = static_cast<const T*>(e.in[0]), y = static_cast<T*>(e.out)](auto begin, auto end) {
                 for (auto i = begin; i < end; ++i) y[i] = table[x[i].bits];
               });
  return true;
}

/// For gradients dx = dy f'(x): looks f'(x) up in a table in f32, and multiplies. `Row` must have such a
/// formula: with dy = 1 it gives f'(x).
template <class Row, class M, class T>
bool scale_by_table(const Elementwise<3>& e) {
  if (!dense_in(e, dtype_of<T>)) return false;
  static FunctionTable<float> made;
  const float* const table = made.get(e.numel, [](float* to) {
    for_all_values<T>([to](int first, float* x, int n) {
      simple_loop(
          n, [](float v) { return Row::template value<M>(1.0f, v); }, to + first, x);
    });
  });
  if (!table) return false;
  const auto run = [table, dy = static_cast<const T*>(e.in[0]), x = static_cast<const T*>(e.in[1]),
                    dx = static_cast<T*>(e.out)](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kBlock = 256;
    float factor[kBlock], grad[kBlock];
    for (; begin < end; begin += kBlock) {
      const std::int64_t n = std::min(kBlock, end - begin);
      for (std::int64_t i = 0; i < n; ++i) factor[i] = table[x[begin + i].bits];
      to_float(dy + begin, grad, n);
      for (std::int64_t i = 0; i < n; ++i) grad[i] *= factor[i];
      from_float(grad, dx + begin, n);
    }
  };
  parallel_for(e.numel, kGrain, run);
  return true;
}

/// The kernel of a row without parameters for f16 or bf16. kScales: the row is a gradient dy f'(x).
template <class Row, class M, class T, bool kScales>
void table_kernel(const LaunchContext& context, const Elementwise<Row::kOperands>& e) {
  bool done = false;
  if constexpr (kScales) done = scale_by_table<Row, M, T>(e);
  else done = look_up<Row, M, T>(e);
  if (!done) wide_kernel<Row, M>(context, e);
}
/// Gives such a row tables. Call it after the row's kernels are registered.
template <class Row, bool kScales>
void register_tables() {
  for_types<Half, BFloat16>(
      []<class T> { slot<Row>.set(DeviceType::cpu, dtype_of<T>, &table_kernel<Row, Math, T, kScales>); });
}

}  // namespace tapestry::kernels::cpu
