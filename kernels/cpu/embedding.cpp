// Gathers rows by index, and sums their gradients.
#include "tapestry/kernels/ops/embedding.h"

#include <algorithm>
#include <vector>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/first_bad.h"

namespace tapestry::kernels::cpu {
namespace {

// Reads i64 or i32 indices.
class Indices {
 public:
  explicit Indices(const ConstArray& a)
      : wide_(a.dtype() == DType::i64 ? a.as<std::int64_t>() : nullptr),
        narrow_(wide_ ? nullptr : a.as<std::int32_t>()) {}
  std::int64_t operator[](std::int64_t i) const { return wide_ ? wide_[i] : narrow_[i]; }

 private:
  const std::int64_t* wide_;
  const std::int32_t* narrow_;
};

bool in_range(std::int64_t index, std::int64_t rows) { return index >= 0 && index < rows; }

template <class T>
void embedding_kernel(const LaunchContext&, const EmbeddingArgs& a) {
  const T* const weight = a.weight.as<T>();
  T* const out = a.out.as<T>();
  const Indices indices(a.indices);
  FirstBad bad(a.first_bad);
  parallel_for(a.count, grain_of(a.columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t index = indices[i];
      if (!in_range(index, a.rows)) {
        bad.report(i);
        continue;
      }
      const T* const from = weight + index * a.row_stride;
      T* const to = out + i * a.columns;
      if (a.column_stride == 1) std::copy_n(from, a.columns, to);
      else
        for (std::int64_t c = 0; c < a.columns; ++c) to[c] = from[c * a.column_stride];
    }
  });
}

template <class T>
void embedding_backward_kernel(const LaunchContext&, const EmbeddingBackwardArgs& a) {
  const std::int64_t n = a.count, rows = a.rows, columns = a.columns, padding = a.padding;
  const Indices indices(a.indices);
  const T* const grad = a.grad.as<T>();
  T* const dweight = a.dweight.as<T>();
  // For each row, a linked list has the positions of the indices that select it, in order. So each row is
  // written by one thread, and no sum depends on the number of threads.
  std::vector<std::int64_t> first(static_cast<std::size_t>(rows), -1), next(static_cast<std::size_t>(n));
  for (std::int64_t i = n - 1; i >= 0; --i) {
    if (!in_range(indices[i], rows)) continue;
    std::int64_t& head = first[static_cast<std::size_t>(indices[i])];
    next[static_cast<std::size_t>(i)] = head;
    head = i;
  }
  parallel_for(rows, grain_of(columns), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Compute<T>> sum(static_cast<std::size_t>(columns));
    for (std::int64_t r = begin; r < end; ++r) {
      T* const out = dweight + r * columns;
      std::int64_t i = r == padding ? -1 : first[static_cast<std::size_t>(r)];
      if (i < 0) {
        if (!a.accumulate) std::fill(out, out + columns, T());
        continue;
      }
      for (std::int64_t c = 0; c < columns; ++c)
        sum[static_cast<std::size_t>(c)] = a.accumulate ? load(out[c]) : Compute<T>(0);
      for (; i >= 0; i = next[static_cast<std::size_t>(i)]) {
        const T* const g = grad + i * columns;
        for (std::int64_t c = 0; c < columns; ++c) sum[static_cast<std::size_t>(c)] += load(g[c]);
      }
      for (std::int64_t c = 0; c < columns; ++c) out[c] = T(sum[static_cast<std::size_t>(c)]);
    }
  });
}

const bool for_floats = for_types<float, double, Half, BFloat16>([]<class T>() {
  embedding.set(DeviceType::cpu, dtype_of<T>, &embedding_kernel<T>);
  embedding_backward.set(DeviceType::cpu, dtype_of<T>, &embedding_backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
