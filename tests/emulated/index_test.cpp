// Index kernels must give the same bits as the CPU's kernels, because both add gradients in order of
// position.
#include "tapestry/kernels/cuda/index.cuh"

#include <cstring>

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

/// Numbers whose sums depend on the order of additions; 0 and 1 if T is an integer type.
template <class T>
std::vector<float> inexact(std::int64_t n, unsigned salt) {
  std::vector<float> v(static_cast<std::size_t>(n));
  Random random(salt);
  for (float& x : v) {
    const std::uint32_t bits = random();
    x = is_floating(dtype_of<T>) ? static_cast<float>((static_cast<int>(bits >> 16) - 32768) / 1000.0)
                                 : static_cast<float>(bits >> 31);
  }
  return v;
}
/// Indices in [0, rows). A quarter of them are equal.
std::vector<std::int64_t> indices(std::int64_t n, std::int64_t rows, unsigned salt) {
  std::vector<std::int64_t> v(static_cast<std::size_t>(n));
  Random random(salt);
  for (std::int64_t& x : v) {
    const std::uint32_t bits = random();
    x = bits >> 30 == 0 ? rows / 2 : static_cast<std::int64_t>(bits >> 8) % rows;
  }
  return v;
}
template <class T>
bool same(const Block<T>& a, const Block<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

struct Case {
  std::int64_t outer, rows, count, inner;
};
const Case kCases[] = {{1, 5, 7, 1},  {1, 9, 40, 16}, {3, 4, 5, 6}, {2, 300, 300, 3}, {1, 50, 600, 8},
                       {4, 1, 3, 32}, {1, 7, 0, 4},   {0, 3, 4, 5}, {2, 3, 4, 0}};

template <class T>
void check_select(const Case& c, std::size_t offset, bool bad) {
  const Block<T> x(inexact<T>(c.outer * c.rows * c.inner, 1), offset);
  const Block<std::int64_t> index(indices(c.count, c.rows, 2));
  if (bad) index[index.size() / 2] = c.rows, index[index.size() - 1] = -1;
  const Block<T> want(size_of(c.outer * c.count * c.inner)), got(want.size(), offset);
  std::int64_t want_bad = kNoBadIndex, got_bad = kNoBadIndex;
  kernels::index_select(kCPU, dtype_of<T>,
                        {c.outer, c.rows, c.count, c.inner, index.data(), x.data(), want.data(), &want_bad});
  in_each_order([&] {
    std::fill_n(got.data(), got.size(), T(1.0f));
    got_bad = kNoBadIndex;
    gpu::launch_index_select<T>(
        {}, {c.outer, c.rows, c.count, c.inner, index.data(), x.data(), got.data(), &got_bad});
    CHECK(same(got, want));
    CHECK(got_bad == want_bad);
    gpu::launch_index_select<T>(
        {}, {c.outer, c.rows, c.count, c.inner, index.data(), x.data(), got.data(), nullptr});
  });
}

template <class T>
void check_add(const Case& c, std::size_t offset, bool bad) {
  const Block<T> dy(inexact<T>(c.outer * c.count * c.inner, 3), offset);
  const Block<std::int64_t> index(indices(c.count, c.rows, 4));
  if (bad) index[index.size() / 2] = c.rows + 5, index[index.size() / 2 + 1] = -1;
  const std::vector<float> before = inexact<float>(c.outer * c.rows * c.inner, 5);
  const Block<float> want(before);
  std::int64_t want_bad = kNoBadIndex, got_bad = kNoBadIndex;
  kernels::index_add(kCPU, dtype_of<T>,
                     {c.outer, c.rows, c.count, c.inner, index.data(), dy.data(), want.data(), &want_bad});
  in_each_order([&] {
    const Block<float> got(before, offset);
    got_bad = kNoBadIndex;
    gpu::launch_index_add<T>(
        {}, {c.outer, c.rows, c.count, c.inner, index.data(), dy.data(), got.data(), &got_bad});
    CHECK(same(got, want));
    CHECK(got_bad == want_bad);
  });
}

template <class T>
void check_scatter(const Case& c) {
  const Block<T> g(inexact<T>(c.outer * c.inner, 6));
  const Block<std::int64_t> index(indices(c.outer * c.inner, c.rows, 7));
  const Block<T> want(size_of(c.outer * c.rows * c.inner)), got(want.size());
  kernels::scatter(kCPU, dtype_of<T>, {c.outer, c.rows, c.inner, index.data(), g.data(), want.data()});
  in_each_order([&] {
    std::fill_n(got.data(), got.size(), T(1.0f));
    gpu::launch_scatter<T>({}, {c.outer, c.rows, c.inner, index.data(), g.data(), got.data()});
    CHECK(same(got, want));
  });
}

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
      kernels::EmbeddingBackwardArgs args{n, rows, columns, grad, index, want_d, padding};
      kernels::embedding_backward(kCPU, dtype_of<T>, args);
      got_d.fill_(3);
      args.dweight = got_d;
      gpu::launch_embedding_backward<T>({}, args);
      CHECK(equal(got_d, want_d));
    }
  });
}

}  // namespace

TEST_CASE(
    "index kernels: index_select gives the CPU's rows, zeros for bad indices, and the first bad position") {
  for_types<std::uint8_t, BFloat16, float, double>([]<class T>() {  // one of each size
    for (const Case& c : kCases)
      for (const std::size_t offset : {0, 1}) {
        CAPTURE(c.outer, c.rows, c.count, c.inner, offset, dtype_name(dtype_of<T>));
        check_select<T>(c, offset, false);
        if (c.count > 4) check_select<T>(c, offset, true);
      }
  });
}

TEST_CASE("index kernels: index_add adds in order of position") {
  for_types<float, BFloat16>([]<class T>() {
    for (const Case& c : kCases)
      for (const std::size_t offset : {0, 1}) {
        CAPTURE(c.outer, c.rows, c.count, c.inner, offset, dtype_name(dtype_of<T>));
        check_add<T>(c, offset, false);
        if (c.count > 4) check_add<T>(c, offset, true);
      }
  });
}

TEST_CASE("index kernels: scatter writes every element") {
  for_types<float, BFloat16>([]<class T>() {
    for (const Case& c : kCases) check_scatter<T>(c);
  });
}

TEST_CASE("index kernels: embedding and its gradient give the CPU's bits in every layout") {
  for_types<float, BFloat16>([]<class T>() {
    for (const DType of_index : {DType::i64, DType::i32})
      for (const int layout : {0, 1, 2, 5}) {
        check_embedding<T>(20, 16, 50, of_index, layout, false);
        check_embedding<T>(20, 7, 50, of_index, layout, false);
        check_embedding<T>(20, 16, 50, of_index, layout, true);
      }
    check_embedding<T>(3, 8, 700, DType::i64, 0, false);  // indices that occur hundreds of times
    check_embedding<T>(500, 8, 30, DType::i64, 0, false);
    check_embedding<T>(5, 3, 0, DType::i64, 0, false);
  });
}

TEST_CASE("index kernels: aligned dense rows use 16-byte packs, others single elements") {
  const auto kernel = [](const Tensor& weight) {
    const Tensor y = zeros({2, weight.sizes()[1]}), index = zeros({2}, DType::i64);
    return kernels_of([&] { gpu::launch_embedding<float>({}, embedding_args(y, weight, index, nullptr)); });
  };
  CHECK_THAT(kernel(zeros({3, 8})), ContainsSubstring("gather_rowsIjLi4E"));
  CHECK_THAT(kernel(zeros({3, 6})), ContainsSubstring("gather_rowsIjLi1E"));
  CHECK_THAT(kernel(zeros({3, 16}).slice(1, {}, {}, 2)), ContainsSubstring("gather_rowsIjLi1E"));
  CHECK_THAT(kernel(zeros({3, 12}).narrow(1, 0, 8)), ContainsSubstring("gather_rowsIjLi4E"));
}
