// Index kernels must give the same bits as the CPU's kernels, because both add gradients in order of
// position.
#include "tests/emulated/index.h"

#include <cstring>

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

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
