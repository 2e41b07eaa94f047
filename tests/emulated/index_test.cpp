// Index kernels must give the same bits as the CPU's kernels, because both add gradients in order of
// position. Where more than kSegmentChunk rows have one index, the GPU's sum has another order.
#include "tests/emulated/index.h"

#include <cstring>

#include "tapestry/kernels/cuda/embedding.cuh"

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

/// The indices of a list of runs: `runs[k]` occurrences of index k. The occurrences of two indices alternate
/// while both last, so that sorting must move them.
std::vector<std::int64_t> indices_of(const std::vector<std::int64_t>& runs) {
  std::vector<std::int64_t> index;
  for (std::size_t k = 0; k < runs.size(); k += 2)
    for (std::int64_t i = 0; i < std::max(runs[k], k + 1 < runs.size() ? runs[k + 1] : 0); ++i)
      for (std::size_t own = k; own < std::min(k + 2, runs.size()); ++own)
        if (i < runs[own]) index.push_back(static_cast<std::int64_t>(own));
  return index;
}

/// dx[o, index[i], :] += dy[o, i, :]. If an index occurs more than kSegmentChunk times, the rows of each
/// kSegmentChunk occurrences are added first, in f32.
template <class T, class Sum>
void add_in_chunks(const Case& c, const std::vector<std::int64_t>& index, std::int64_t padding, const T* dy,
                   Sum* dx) {
  std::vector<std::vector<std::int64_t>> positions(size_of(c.rows));
  for (std::int64_t i = 0; i < c.count; ++i)
    if (const std::int64_t at = index[size_of(i)]; at >= 0 && at < c.rows)
      positions[size_of(at)].push_back(i);
  for (std::int64_t o = 0; o < c.outer; ++o)
    for (std::int64_t r = 0; r < c.rows; ++r)
      for (std::int64_t j = 0; j < c.inner; ++j) {
        const auto& at = positions[size_of(r)];
        if (r == padding || at.empty()) continue;
        Sum& to = dx[(o * c.rows + r) * c.inner + j];
        const bool split = at.size() > size_of(gpu::kSegmentChunk);
        float sum = static_cast<float>(to), part = 0;
        for (std::size_t k = 0; k < at.size(); ++k) {
          const auto term = static_cast<float>(dy[(o * c.count + at[k]) * c.inner + j]);
          if (!split) sum += term;
          else part += term;
          const bool ends = (k + 1) % size_of(gpu::kSegmentChunk) == 0 || k + 1 == at.size();
          if (split && ends) sum += part, part = 0;
        }
        to = static_cast<Sum>(sum);
      }
}

/// The runs' lengths: everything around one, two and five chunks, runs that end where a chunk of another run
/// begins, one index alone, and no equal indices.
const std::vector<std::int64_t> kRuns[] = {
    {33},  {32, 32, 32, 32},     {31, 33, 1, 31, 32, 64, 65},  {63, 1, 64, 1, 65, 0, 1, 33},
    {700}, {5, 160, 0, 161, 33}, {1, 1, 1, 33, 33, 33, 1, 34}, {2, 40, 600, 3, 129, 128, 127, 97, 96}};

template <class T>
void check_runs(const std::vector<std::int64_t>& runs, std::int64_t outer, std::int64_t inner) {
  std::vector<std::int64_t> index = indices_of(runs);
  const auto rows = static_cast<std::int64_t>(runs.size());
  CAPTURE(runs, outer, inner, dtype_name(dtype_of<T>));
  const Case c{outer, rows, static_cast<std::int64_t>(index.size()), inner};
  const Block<std::int64_t> at(index);
  const Block<T> dy(inexact<T>(outer * c.count * inner, 3));
  const std::vector<float> before = inexact<float>(outer * rows * inner, 5);
  const Block<float> want(before);
  add_in_chunks(c, index, -1, dy.data(), want.data());
  const std::int64_t padding = rows / 2;
  const Block<T> want_weight(before);
  if (outer == 1) add_in_chunks(c, index, padding, dy.data(), want_weight.data());
  in_each_order([&] {
    const Block<float> got(before);
    gpu::launch_index_add<T>({}, {outer, rows, c.count, inner, at.data(), dy.data(), got.data(), nullptr});
    CHECK(same(got, want));
    if (outer > 1) return;
    const Block<T> weight(before);  // its sums are f32 as well, and rounded once
    for (std::int64_t j = 0; j < inner; ++j) weight[size_of(padding * inner + j)] = T(7.0f);
    gpu::launch_embedding_backward<T>(
        {}, {c.count, rows, inner, dy.data(), at.data(), weight.data(), padding, true});
    for (std::int64_t j = 0; j < inner; ++j) {
      const std::size_t e = size_of(padding * inner + j);
      CHECK(static_cast<float>(weight[e]) == 7.0f);
      weight[e] = want_weight[e];
    }
    CHECK(same(weight, want_weight));
  });
}

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
  const Block<float> in_chunks(before);
  add_in_chunks(c, std::vector<std::int64_t>(index.data(), index.data() + index.size()), -1, dy.data(),
                in_chunks.data());
  if (c.count <= gpu::kSegmentChunk) CHECK(same(in_chunks, want));
  in_each_order([&] {
    const Block<float> got(before, offset);
    got_bad = kNoBadIndex;
    gpu::launch_index_add<T>(
        {}, {c.outer, c.rows, c.count, c.inner, index.data(), dy.data(), got.data(), &got_bad});
    CHECK(same(got, in_chunks));
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

TEST_CASE("index kernels: long runs of equal indices are added in chunks, whatever lies around them") {
  for_float_dtypes([]<class T>() {
    for (const auto& runs : kRuns) {
      check_runs<T>(runs, 1, 8);
      if (runs.size() > 4) check_runs<T>(runs, 2, 3);
      if (runs.size() == 1) check_runs<T>(runs, 1, 1);
    }
  });
  check_runs<float>({600, 33, 2}, 1, 90);  // more than one block of threads in each launch
}

TEST_CASE("index kernels: a row's gradient does not depend on the other rows' indices") {
  // 70 gradients of row 1, with 0 to 40 gradients of row 0 before them in the sorted order
  const std::vector<float> dy = inexact<float>(110, 3);
  std::vector<float> first;
  for (const std::int64_t others : {0, 1, 31, 32, 40}) {
    std::vector<float> values(dy.begin() + 40 - others, dy.end());
    std::vector<std::int64_t> index(size_of(others), 0);
    index.resize(size_of(others + 70), 1);
    const Block<float> grad(values), got(2);
    const Block<std::int64_t> at(index);
    gpu::launch_index_add<float>({}, {1, 2, others + 70, 1, at.data(), grad.data(), got.data(), nullptr});
    first.push_back(got[1]);
    CAPTURE(others);
    CHECK(first.back() == first.front());
  }
}

TEST_CASE("index kernels: invalid indices that occur more often than a chunk holds are reported once") {
  std::vector<std::int64_t> index(200, -1);
  for (std::size_t i = 0; i < index.size(); i += 3) index[i] = 2;
  for (std::size_t i = 1; i < index.size(); i += 3) index[i] = 9;
  const Block<std::int64_t> at(index);
  const Block<float> dy(inexact<float>(200 * 4, 3));
  in_each_order([&] {
    const Block<float> got(size_of(12));
    std::int64_t bad = kNoBadIndex;
    gpu::launch_index_add<float>({}, {1, 3, 200, 4, at.data(), dy.data(), got.data(), &bad});
    CHECK(bad == 1);
    for (std::size_t e = 0; e < 8; ++e) CHECK(got[e] == 0);
  });
}

TEST_CASE("index kernels: scatter writes every element") {
  for_types<float, BFloat16>([]<class T>() {
    for (const Case& c : kCases) check_scatter<T>(c);
  });
}
