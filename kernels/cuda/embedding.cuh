#pragma once
// Embedding lookup and its gradient, by the kernels of index.cuh.
#include "tapestry/kernels/cuda/index.cuh"
#include "tapestry/kernels/ops/embedding.h"

namespace tapestry::kernels::cuda {

template <class T>
void launch_embedding(const LaunchContext& context, const EmbeddingArgs& a) {
  launch_gather<T>(
      {WideDivisor(std::max<std::int64_t>(a.count, 1)), WideDivisor(std::max<std::int64_t>(a.columns, 1)),
       a.count * a.columns, a.rows, 0, a.row_stride, a.column_stride, Indices(a.indices), a.first_bad},
      a.weight.as<T>(), a.out.as<T>(), stream_of(context));
}

template <class T>
void launch_embedding_backward(const LaunchContext& context, const EmbeddingBackwardArgs& a) {
  T* const dweight = a.dweight.as<T>();
  Elementwise<1> e;
  e.ndim = 1, e.numel = e.sizes[0] = a.rows * a.columns;
  e.strides[0][0] = 1;
  e.out = dweight, e.dtypes[0] = dtype_of<T>;
  if (!a.accumulate) map<T>(e, Constant<float>{0}, stream_of(context));
  launch_add_rows<T, T>(Indices(a.indices), 1, a.rows, a.count, a.columns, a.padding, nullptr, a.grad.as<T>(),
                        dweight, context);
}

}  // namespace tapestry::kernels::cuda
