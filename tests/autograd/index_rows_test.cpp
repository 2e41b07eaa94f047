// Tests the loops of gather, scatter, scatter_add and index_add over long rows: their blocks, their strides,
// indices that are out of range anywhere in a row, and results that do not depend on the number of threads.
#include <limits>
#include <vector>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/threads.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::indexing;

namespace {

struct Threads {
  explicit Threads(int n) : before(get_num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before); }
  int before;
};

std::int64_t at(const Tensor& t, std::int64_t i, std::int64_t j) {
  return i * t.strides()[0] + j * t.strides()[1];
}
template <class T>
T& element(const Tensor& t, std::int64_t i, std::int64_t j) {
  return t.data<T>()[at(t, i, j)];
}

/// The same matrix with other strides: 0 row-major, 1 transposed, 2 with gaps.
Tensor laid_out(const Tensor& m, int layout) {
  if (layout == 0) return m.clone();
  if (layout == 1) return m.t().contiguous().t();
  Tensor wide = zeros({m.sizes()[0], 2 * m.sizes()[1]}, TensorOptions(m.dtype()));
  const Tensor y = wide.index({Slice(), Slice(None, None, 2)});
  y.copy_(m);
  return y;
}

/// The expected results of gather, scatter and scatter_add along `dim`, element by element in f64 or i64.
struct Expected {
  Tensor gathered, scattered, added;
  template <class T>
  static Expected of(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
    Expected e{zeros(index.sizes(), TensorOptions(x.dtype())), x.clone(), x.clone()};
    for (std::int64_t i = 0; i < index.sizes()[0]; ++i)
      for (std::int64_t j = 0; j < index.sizes()[1]; ++j) {
        const std::int64_t k = element<std::int64_t>(index, i, j), r = dim == 0 ? k : i, c = dim == 0 ? j : k;
        element<T>(e.gathered, i, j) = element<T>(x, r, c);
        element<T>(e.scattered, r, c) = element<T>(src, i, j);
        element<T>(e.added, r, c) = static_cast<T>(element<T>(e.added, r, c) + element<T>(src, i, j));
      }
    return e;
  }
};

template <class T>
void check_rows(std::int64_t rows, std::int64_t columns, std::int64_t count, std::int64_t dim) {
  CAPTURE(dtype_name(dtype_of<T>), rows, columns, count, dim);
  const bool along_rows = dim == 0;
  const Shape sizes = along_rows ? Shape{count, columns} : Shape{rows, count};
  const Tensor x = (rand({rows, columns}) * 100).to(dtype_of<T>), src = (rand(sizes) * 100).to(dtype_of<T>);
  const Tensor index = randint(0, along_rows ? rows : columns, sizes);  // most elements have several indices
  const auto expected = Expected::of<T>(x, dim, index, src);
  for (int layout = 0; layout < 3; ++layout) {
    CAPTURE(layout);
    const Tensor a = laid_out(x, layout), b = laid_out(index, layout), c = laid_out(src, layout);
    CHECK(equal(gather(a, dim, b), expected.gathered));
    CHECK(equal(scatter(a, dim, b, c), expected.scattered));
    CHECK(equal(scatter_add(a, dim, b, c), expected.added));
    CHECK(equal(a.clone().scatter_add_(dim, b, c), expected.added));
  }
}

}  // namespace

TEST_CASE("rows of one element, a block, and a block and one, in all layouts") {
  manual_seed(1);
  for (const std::int64_t dim : {0, 1})
    for (const std::int64_t n : {1, 7, 255, 256, 257, 513}) {
      check_rows<float>(3, 5, n, dim);
      check_rows<float>(5, 3, n, dim);
      check_rows<std::int64_t>(4, 6, n, dim);
    }
  check_rows<double>(3, 300, 258, 1);
  check_rows<std::uint8_t>(300, 3, 258, 0);
  check_rows<std::int32_t>(3, 300, 258, 1);
}

TEST_CASE("empty indices leave everything as it is") {
  const Tensor x = rand({3, 4}), none = zeros({3, 0}, kInt64), src = zeros({3, 0});
  CHECK(gather(x, 1, none).sizes() == Shape{3, 0});
  CHECK(equal(scatter(x, 1, none, src), x));
  CHECK(equal(scatter_add(x, 1, none, src), x));
  CHECK(equal(index_add(x, 1, zeros({0}, kInt64), src), x));
}

TEST_CASE("an index out of range is found wherever it is in a row") {
  const std::int64_t n = 600;
  const Tensor x = rand({2, 10}), src = rand({2, n});
  for (const std::int64_t position : {0, 255, 256, 599, 600, 1199})
    for (const std::int64_t wrong :
         {std::int64_t{10}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max(),
          std::numeric_limits<std::int64_t>::min()}) {
      const Tensor index = randint(0, 10, {2, n});
      index.data<std::int64_t>()[position] = wrong;
      const auto message =
          ContainsSubstring("index " + std::to_string(wrong) + " at position " + std::to_string(position));
      CHECK_THROWS_WITH(gather(x, 1, index), message);
      CHECK_THROWS_WITH(scatter(x, 1, index, src), message);
      CHECK_THROWS_WITH(scatter(x, 1, index, 1), message);
      CHECK_THROWS_WITH(scatter_add(x, 1, index, src), message);
      CHECK_THROWS_WITH(scatter_reduce(x, 1, index, src, "amax"), message);
    }
}

TEST_CASE("a row may mix indices from both ends") {
  const Tensor x = rand({600}), index = randint(0, 600, {600});
  const Tensor mixed = where(index > 590, index - 600, index);
  CHECK(equal(x.index({mixed}), x.index({index})));
  const Tensor y = index_put(zeros({600}), {mixed}, x, true);
  CHECK(equal(y, index_put(zeros({600}), {index}, x, true)));
  CHECK(equal(take_along_dim(x, mixed, 0), gather(x, 0, index)));
}

TEST_CASE("sums by index do not depend on the number of threads") {
  manual_seed(2);
  const std::int64_t rows = 301, columns = 331;
  const Tensor x = randn({rows, columns}), src = randn({rows, columns});
  const Tensor spread = randint(0, rows, {rows}), same = full({rows}, 7, kInt64);
  const Tensor few = spread.remainder(3), each = randint(0, columns, {rows, columns});
  const Tensor line = randint(0, 1000, {200000}), values = randn({200000}), sums = zeros({1000});
  std::vector<Tensor> expected;
  for (const int threads : {1, 2, 3}) {
    const Threads use(threads);
    const std::vector<Tensor> results = {index_add(x, 0, spread, src),
                                         index_add(x, 0, same, src),
                                         index_add(x, 0, few, src),
                                         index_add(x, 1, spread, src.t().contiguous().t().narrow(1, 0, rows)),
                                         index_copy(x, 0, spread, src),
                                         scatter_add(x, 1, each, src),
                                         scatter(x, 1, each, src),
                                         scatter_add(x, 0, each.remainder(rows), src),
                                         scatter_add(sums, 0, line, values),
                                         index_put(x, {spread}, src, true)};
    if (threads == 1) expected = results;
    for (std::size_t i = 0; i < results.size(); ++i) {
      CAPTURE(threads, i);
      CHECK(equal(results[i], expected[i]));
    }
  }
  Tensor by_row = x.clone();
  for (std::int64_t i = 0; i < rows; ++i) by_row[spread[i].item<std::int64_t>()].add_(src[i]);
  CHECK(equal(expected[0], by_row));
  Tensor copied = x.clone();
  for (std::int64_t i = 0; i < rows; ++i) copied[spread[i].item<std::int64_t>()].copy_(src[i]);
  CHECK(equal(expected[4], copied));  // the last of several rows remains
}

TEST_CASE("index_add finds the first index out of range when threads divide the rows") {
  const std::int64_t rows = 301, columns = 331;
  const Tensor x = randn({rows, columns}), src = randn({rows, columns});
  for (const int threads : {1, 2, 3}) {
    const Threads use(threads);
    for (const std::int64_t wrong : {std::int64_t{-1}, rows}) {
      const Tensor index = randint(0, rows, {rows});
      index.data<std::int64_t>()[123] = wrong;
      index.data<std::int64_t>()[250] = wrong;
      CHECK_THROWS_WITH(index_add(x, 0, index, src), ContainsSubstring("at position 123 "));
    }
  }
}
