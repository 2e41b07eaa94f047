// Tests the loops of copies: rows of a few elements, rows with a ragged end, transpositions, and conversions
// of dtypes that are only stored.
#include <cstdint>

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

/// Checks every element of a copy of the 3-d tensor x into y, and that the elements around y stay NaN.
template <class T>
void check_copy(const Tensor& memory, const Tensor& y, const Tensor& x) {
  y.copy_(x);
  std::int64_t wrong = 0;
  const Shape n = x.sizes();
  for (std::int64_t i = 0; i < n[0]; ++i)
    for (std::int64_t j = 0; j < n[1]; ++j)
      for (std::int64_t k = 0; k < n[2]; ++k) {
        const auto at = [&](const Tensor& t) {
          return t.data<T>()[i * t.strides()[0] + j * t.strides()[1] + k * t.strides()[2]];
        };
        wrong += at(y) != at(x);
      }
  CHECK(wrong == 0);
  if (memory.defined()) {
    std::int64_t untouched = 0;
    for (std::int64_t i = 0; i < memory.numel(); ++i) untouched += memory.data<T>()[i] == T(99);
    CHECK(untouched == memory.numel() - y.numel());
  }
}

template <class T>
void check_copies(std::int64_t planes, std::int64_t rows, std::int64_t n) {
  CAPTURE(dtype_name(dtype_of<T>), planes, rows, n);
  const TensorOptions options(dtype_of<T>);
  const Tensor x = randint(0, 90, {planes, rows, n}).to(dtype_of<T>);
  const Tensor memory = full({planes, rows + 1, n + 3}, 99, options);
  const auto part = [&](const Tensor& t) { return t.narrow(1, 0, rows).narrow(2, 2, n); };
  check_copy<T>(memory, part(memory), x);
  check_copy<T>(Tensor(), empty({planes, rows, n}, options), flip(x, {2}));
  check_copy<T>(Tensor(), empty({planes, rows, n}, options), x.transpose(1, 2).contiguous().transpose(1, 2));
  check_copy<T>(Tensor(), empty({planes, rows, n}, options), x.transpose(0, 2).contiguous().transpose(0, 2));
  const Tensor wide = full({planes, rows, 2 * n}, 99, options),
               gaps = wide.index({"...", Slice(None, None, 2)});
  check_copy<T>(wide, gaps, x);
  check_copy<T>(Tensor(), empty({planes, rows, n}, options), gaps);
  const Tensor second = full({planes, rows + 1, n + 3}, 99, options);
  check_copy<T>(second, part(second), x.narrow(2, 0, 1).expand({planes, rows, n}));
}

}  // namespace

TEST_CASE("copies of rows of any length write each element once and nothing else") {
  manual_seed(1);
  for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 40}) {
    check_copies<float>(2, 3, n);
    check_copies<std::uint8_t>(2, 3, n);
    check_copies<std::int64_t>(1, 17, n);
  }
  check_copies<double>(2, 1, 515);
  check_copies<std::int16_t>(1, 3, 4100);
  check_copies<float>(1, 2, 1030);
}

TEST_CASE("threads divide copies of short rows anywhere") {
  manual_seed(2);
  for (const int threads : {2, 3}) {
    const Threads use(threads);
    check_copies<float>(7, 5003, 2);
    check_copies<float>(5, 331, 66);
  }
}

TEST_CASE("conversions of stored integers are the same in long, short and strided arrays") {
  manual_seed(3);
  for (const DType t : {kInt8, kInt16, kUInt16})
    for (const std::int64_t n : {1, 7, 16, 33, 70001}) {
      CAPTURE(dtype_name(t), n);
      const Tensor x = randn({n}) * 100, y = x.to(t);
      CHECK(equal(y.to(kInt64), x.to(kInt32).to(t).to(kInt64)));
      const Tensor strided = stack({x, x}, 1).select(1, 0).to(t);
      CHECK(equal(y.to(kInt64), strided.to(kInt64)));
      CHECK(equal(y.to(kFloat32), y.to(kInt64).to(kFloat32)));
      CHECK(equal(stack({y, y}, 1).select(1, 0).to(kFloat32), y.to(kFloat32)));
    }
}
