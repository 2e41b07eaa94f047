// Embedding kernels must give the same bits as the CPU's kernels, because both add gradients in order of
// position as long as no index occurs more than kSegmentChunk times.
#include "tapestry/kernels/cuda/embedding.cuh"

#include "tests/emulated/index.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

/// A weight in one of the memory layouts of laid_out().
Tensor weight_of(std::int64_t rows, std::int64_t columns, DType dtype, int layout) {
  const Tensor values = tensor(inexact<float>(rows * columns, 8), {rows, columns}).to(dtype);
  return laid_out(values, layout);
}

kernels::EmbeddingArgs embedding_args(const Tensor& out, const Tensor& weight, const Tensor& index,
                                      std::int64_t* first_bad) {
  return {.count = index.numel(),
          .rows = weight.sizes()[0],
          .columns = weight.sizes()[1],
          .row_stride = weight.strides()[0],
          .column_stride = weight.strides()[1],
          .weight = weight,
          .indices = index,
          .out = out,
          .first_bad = first_bad};
}

template <class T>
void check_embedding(std::int64_t rows, std::int64_t columns, std::int64_t n, DType of_index, int layout,
                     bool bad) {
  const Tensor weight = weight_of(rows, columns, dtype_of<T>, layout);
  Tensor index = tensor(indices(n, rows, 9));
  if (bad) index.data<std::int64_t>()[n / 3] = rows, index.data<std::int64_t>()[n / 2] = -2;
  index = index.to(of_index);
  CAPTURE(rows, columns, n, dtype_name(of_index), layout, bad, dtype_name(dtype_of<T>));
  const Tensor want = zeros({n, columns}, dtype_of<T>), got = zeros({n, columns}, dtype_of<T>);
  std::int64_t want_bad = kNoBadIndex, got_bad = kNoBadIndex;
  kernels::embedding(kCPU, dtype_of<T>, embedding_args(want, weight, index, &want_bad));
  const Tensor grad = tensor(inexact<float>(n * columns, 10), {n, columns}).to(dtype_of<T>);
  const Tensor want_d = zeros({rows, columns}, dtype_of<T>), got_d = zeros({rows, columns}, dtype_of<T>);
  in_each_order([&] {
    got_bad = kNoBadIndex;
    gpu::launch_embedding<T>({}, embedding_args(got, weight, index, &got_bad));
    CHECK(equal(got, want));
    CHECK(got_bad == want_bad);
    for (const std::int64_t padding : {std::int64_t{-1}, rows / 2}) {
      for (const bool accumulate : {false, true}) {
        kernels::EmbeddingBackwardArgs args{n, rows, columns, grad, index, want_d, padding, accumulate};
        want_d.fill_(3);
        got_d.fill_(3);
        kernels::embedding_backward(kCPU, dtype_of<T>, args);
        args.dweight = got_d;
        gpu::launch_embedding_backward<T>({}, args);
        CHECK(equal(got_d, want_d));
      }
    }
  });
}

}  // namespace

TEST_CASE("embedding kernels: the lookup and its gradient give the CPU's bits in every layout") {
  for_types<float, Half, BFloat16>([]<class T>() {
    for (const DType of_index : {DType::i64, DType::i32})
      for (const int layout : {0, 1, 2, 5}) {
        check_embedding<T>(20, 16, 50, of_index, layout, false);
        check_embedding<T>(20, 7, 50, of_index, layout, false);
        check_embedding<T>(20, 16, 50, of_index, layout, true);
      }
    check_embedding<T>(500, 8, 30, DType::i64, 0, false);  // index_test.cpp has indices that occur often
    check_embedding<T>(5, 3, 0, DType::i64, 0, false);
  });
}

TEST_CASE("embedding kernels: aligned dense rows use 16-byte packs, others single elements") {
  const auto kernel = [](const Tensor& weight) {
    const Tensor y = zeros({2, weight.sizes()[1]}), index = zeros({2}, DType::i64);
    return kernels_of([&] { gpu::launch_embedding<float>({}, embedding_args(y, weight, index, nullptr)); });
  };
  CHECK_THAT(kernel(zeros({3, 8})), ContainsSubstring("gather_rowsIjLi4E"));
  CHECK_THAT(kernel(zeros({3, 6})), ContainsSubstring("gather_rowsIjLi1E"));
  CHECK_THAT(kernel(zeros({3, 16}).slice(1, {}, {}, 2)), ContainsSubstring("gather_rowsIjLi1E"));
  CHECK_THAT(kernel(zeros({3, 12}).narrow(1, 0, 8)), ContainsSubstring("gather_rowsIjLi4E"));
}
