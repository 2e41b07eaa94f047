// Rows by index, and the sum of their gradients.
#include "tapestry/kernels/ops/embedding.h"

#include <algorithm>
#include <vector>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/first_bad.h"

namespace tapestry::kernels::cpu {
namespace {

std::int64_t index_at(const View& indices, std::int64_t i) {
  return indices.dtype == DType::i64 ? indices.as<std::int64_t>()[i] : indices.as<std::int32_t>()[i];
}

bool in_range(std::int64_t index, std::int64_t rows) { return index >= 0 && index < rows; }

template <class T>
void embedding_kernel(const View& out, const View& weight, const View& indices, std::int64_t* first_bad) {
  const std::int64_t n = indices.numel(), columns = weight.sizes[1];
  const std::int64_t row = weight.strides[0], column = weight.strides[1];
  FirstBad bad(first_bad);
  parallel_for(n, grain_of(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t index = index_at(indices, i);
      if (!in_range(index, weight.sizes[0])) {
        bad.report(i);
        continue;
      }
      const T* const from = weight.as<T>() + index * row;
      T* const to = out.as<T>() + i * columns;
      for (std::int64_t c = 0; c < columns; ++c) to[c] = from[c * column];
    }
  });
}

template <class T>
void embedding_backward_kernel(const View& dweight, const View& grad, const View& indices,
                               std::int64_t padding) {
  const std::int64_t n = indices.numel(), rows = dweight.sizes[0], columns = dweight.sizes[1];
  // The positions of each row, as lists in order of position: threads then share no row, and no sum depends
  // on how many of them there are.
  std::vector<std::int64_t> first(static_cast<std::size_t>(rows), -1), next(static_cast<std::size_t>(n));
  for (std::int64_t i = n - 1; i >= 0; --i) {
    if (!in_range(index_at(indices, i), rows)) continue;
    std::int64_t& head = first[static_cast<std::size_t>(index_at(indices, i))];
    next[static_cast<std::size_t>(i)] = head;
    head = i;
  }
  parallel_for(rows, grain_of(columns), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Compute<T>> sum(static_cast<std::size_t>(columns));
    for (std::int64_t r = begin; r < end; ++r) {
      T* const out = dweight.as<T>() + r * columns;
      std::int64_t i = r == padding ? -1 : first[static_cast<std::size_t>(r)];
      if (i < 0) {
        std::fill(out, out + columns, T());
        continue;
      }
      std::fill(sum.begin(), sum.end(), Compute<T>(0));
      for (; i >= 0; i = next[static_cast<std::size_t>(i)]) {
        const T* const g = grad.as<T>() + i * columns;
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
