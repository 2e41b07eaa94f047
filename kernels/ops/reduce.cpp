#include "tapestry/kernels/ops/reduce.h"

#include <algorithm>
#include <utility>

#include "tapestry/core/tensor.h"

namespace tapestry::kernels {
namespace {

struct Dim {
  std::int64_t size, stride;
};

// Writes the n dimensions to `sizes` and `strides`. Drops sizes of 1 and merges adjacent dimensions where
// possible. Returns the number of dimensions written, which is at least 1.
int write(const Dim* dims, int n, std::int64_t* sizes, std::int64_t* strides) {
  int count = 0;
  for (int i = 0; i < n; ++i) {
    if (dims[i].size == 1) continue;
    if (count > 0 && strides[count - 1] == dims[i].size * dims[i].stride) {
      sizes[count - 1] *= dims[i].size;
      strides[count - 1] = dims[i].stride;
    } else {
      sizes[count] = dims[i].size;
      strides[count++] = dims[i].stride;
    }
  }
  if (count == 0) {
    sizes[count] = 1;
    strides[count++] = 0;
  }
  return count;
}

}  // namespace

Reduction::Reduction(const Tensor& t, unsigned reduced_dims, const Tensor& result) : x(t), out(result) {
  Dim kept[kMaxDims], reduced[kMaxDims];
  int num_kept = 0, num_reduced = 0;
  for (int i = 0; i < t.dim(); ++i) {
    const Dim dim{t.sizes()[i], t.strides()[i]};
    if (reduced_dims >> i & 1) {
      reduced[num_reduced++] = dim;
      count *= dim.size;
    } else {
      kept[num_kept++] = dim;
      outputs *= dim.size;
    }
  }
  std::stable_sort(reduced, reduced + num_reduced, [](Dim a, Dim b) { return a.stride > b.stride; });
  kept_ndim = write(kept, num_kept, kept_sizes, kept_strides);
  reduced_ndim = write(reduced, num_reduced, reduced_sizes, reduced_strides);
}

}  // namespace tapestry::kernels
