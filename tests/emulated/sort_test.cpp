// Sort kernels must give the CPU's bits on each path: one tile, tiles that are merged, and tiles that keep a
// few elements.
#include "tapestry/kernels/cuda/sort.cuh"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

/// Few different numbers, with NaN, infinities and both zeros among floats.
template <class T>
std::vector<float> repeating(std::int64_t n, unsigned salt) {
  std::vector<float> v(static_cast<std::size_t>(n));
  Random random(salt);
  for (float& x : v) {
    const std::uint32_t bits = random() >> 26;
    x = static_cast<float>(bits);
    if (!is_floating(dtype_of<T>)) continue;
    x -= 32;
    if (bits == 3) x = std::nanf("");
    if (bits == 4) x = -0.0f;
    if (bits == 5) x = INFINITY;
    if (bits == 6) x = -INFINITY;
  }
  return v;
}

template <class T>
bool same(const Block<T>& a, const Block<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

struct Case {
  std::int64_t rows, n, k;
};

template <class T>
void check_sort(const Case& c, bool descending) {
  CAPTURE(c.rows, c.n, c.k, descending, dtype_name(dtype_of<T>));
  const Block<T> x(repeating<T>(c.rows * c.n, static_cast<unsigned>(c.n)));
  const Block<T> want(size_of(c.rows * c.k)), got(want.size());
  const Block<std::int64_t> want_at(want.size()), got_at(want.size());
  kernels::sort(kCPU, dtype_of<T>, {c.rows, c.n, c.k, descending, x.data(), want.data(), want_at.data()});
  gpu::launch_sort<T>({}, {c.rows, c.n, c.k, descending, x.data(), got.data(), got_at.data()});
  CHECK(same(got, want));
  CHECK(same(got_at, want_at));
  if constexpr (std::is_integral_v<T>) {  // the values alone
    const Block<T> cpu(want.size()), cuda(want.size());
    kernels::sort(kCPU, dtype_of<T>, {c.rows, c.n, c.k, descending, x.data(), cpu.data(), nullptr});
    gpu::launch_sort<T>({}, {c.rows, c.n, c.k, descending, x.data(), cuda.data(), nullptr});
    CHECK(same(cpu, want));
    CHECK(same(cuda, want));
  }
}

}  // namespace

TEST_CASE(
    "sort kernels: all elements or the first ones, in one tile, in merged tiles and in tiles that keep few") {
  for (const bool descending : {false, true}) {
    in_each_order([&] {
      for (const Case& c : {Case{1, 1, 1},
                            {3, 7, 7},
                            {2, 1000, 1000},
                            {2, 1025, 1025},
                            {1, 3000, 3000},
                            {2, 2100, 5},
                            {1, 5000, 300},
                            {2, 1030, 513},
                            {2, 600, 1}})
        check_sort<float>(c, descending);
    });
    for (const Case& c : {Case{3, 5, 5}, {2, 1100, 1100}, {1, 2500, 2}}) {
      check_sort<BFloat16>(c, descending);
      check_sort<std::int64_t>(c, descending);
      check_sort<std::int32_t>(c, descending);
      check_sort<std::uint8_t>(c, descending);
    }
  }
}

TEST_CASE("sort kernels: few elements of a long row are kept by tiles, without a merge") {
  const Block<float> x(repeating<float>(5000, 1));
  const Block<float> values(5);
  const Block<std::int64_t> at(5);
  const std::string few = kernels_of([&] {
    gpu::launch_sort<float>({}, {1, 5000, 5, true, x.data(), values.data(), at.data()});
  });
  CHECK(few.find("merge_runs") == std::string::npos);
}

TEST_CASE("sort kernels: indices alone are written if there are no values") {
  const Block<float> x(repeating<float>(700, 2));
  const Block<std::int64_t> want(700), got(700);
  kernels::sort(kCPU, DType::f32, {1, 700, 700, false, x.data(), nullptr, want.data()});
  gpu::launch_sort<float>({}, {1, 700, 700, false, x.data(), nullptr, got.data()});
  CHECK(same(got, want));
}

TEST_CASE("sort kernels: the k-th value, and the first NaN if NaN wins") {
  for (const bool nan : {false, true})
    for (const Case& c : {Case{3, 9, 4}, {2, 1500, 700}, {2, 1500, 3}, {3, 1, 0}}) {
      CAPTURE(nan, c.rows, c.n, c.k);
      const Block<float> x(repeating<float>(c.rows * c.n, 3));
      x[0] = 1;  // at least one row may be without NaN
      const Block<float> want(size_of(c.rows)), got(size_of(c.rows));
      const Block<std::int64_t> want_at(size_of(c.rows)), got_at(size_of(c.rows));
      kernels::kthvalue(kCPU, DType::f32, {c.rows, c.n, c.k, nan, x.data(), want.data(), want_at.data()});
      in_each_order([&] {
        gpu::launch_kthvalue<float>({}, {c.rows, c.n, c.k, nan, x.data(), got.data(), got_at.data()});
        CHECK(same(got, want));
        CHECK(same(got_at, want_at));
      });
    }
}

TEST_CASE("sort kernels: put writes the picked elements and no others") {
  const Block<std::int64_t> index(std::vector<std::int64_t>{3, 0, 1, 2, 4, 0});
  const Block<float> x(std::vector<float>{1, 2, 3, 4, 5, 6}), y(std::vector<float>(10, 9.0f));
  gpu::launch_put<float>({}, {2, 5, 3, index.data(), x.data(), y.data()});
  const Block<float> want(std::vector<float>{2, 3, 9, 1, 9, 6, 9, 4, 9, 5});
  CHECK(same(y, want));
}
