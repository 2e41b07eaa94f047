// Kernels that read, write and combine by index must give the same bits as the CPU's kernels, also if many
// elements have the same index, and must report the same position of an invalid index. Only the combinations
// of more than 32 elements, which are divided into chunks, have a reference of their own.
#include "tapestry/kernels/cuda/index_elements.cuh"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

#include "tests/emulated/index.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

struct IndexArray {
  std::vector<std::int64_t> strides;
  std::int64_t size, x_stride;
};
struct Case {
  const char* name;
  std::vector<std::int64_t> sizes, x_strides, y_strides;
  std::vector<IndexArray> index;
  int first, end;
  std::int64_t x_elements;
};
const Case kCases[] = {
    {"gather along dimension 0", {9, 7}, {0, 1}, {7, 1}, {{{7, 1}, 5, 7}}, 0, 2, 35},
    {"gather along dimension 1 of 3", {2, 4, 3}, {15, 0, 1}, {12, 3, 1}, {{{12, 3, 1}, 5, 3}}, 0, 3, 30},
    {"rows of whole packs", {2, 6, 16}, {80, 0, 1}, {96, 16, 1}, {{{0, 1, 0}, 5, 16}}, 1, 2, 160},
    {"rows that are no whole packs", {2, 6, 5}, {25, 0, 1}, {30, 5, 1}, {{{0, 1, 0}, 5, 5}}, 1, 2, 50},
    {"two index arrays", {4, 3}, {0, 6}, {3, 1}, {{{1, 0}, 5, 18}, {{1, 0}, 6, 1}}, 0, 1, 90},
    {"index arrays that broadcast to a matrix",
     {4, 3},
     {0, 0},
     {3, 1},
     {{{1, 0}, 5, 6}, {{0, 1}, 6, 1}},
     0,
     2,
     30},
    {"several tiles of the sort", {700}, {0}, {1}, {{{1}, 3, 2}}, 0, 1, 6},
    {"one element", {1}, {0}, {0}, {{{0}, 4, 1}}, 0, 0, 4},
    {"y with gaps", {5, 4}, {0, 2}, {8, 2}, {{{1, 0}, 3, 8}}, 0, 1, 24},
    {"long runs of rows", {2, 150, 3}, {12, 0, 1}, {450, 3, 1}, {{{0, 1, 0}, 4, 3}}, 1, 2, 24},
};
// Cases in which y is only read.
const Case kBroadcast = {"a number", {5, 4}, {0, 1}, {0, 0}, {{{1, 0}, 3, 4}}, 0, 1, 12};

std::int64_t elements(const Case& c, const std::vector<std::int64_t>& strides) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < c.sizes.size(); ++d) last += (c.sizes[d] - 1) * strides[d];
  return last + 1;
}

// The case as the kernels take it, with its index arrays.
struct Planned {
  Indexed at{};
  std::deque<Block<std::int64_t>> values;

  Planned(const Case& c, bool wraps, bool bad) {
    at.ndim = static_cast<int>(c.sizes.size());
    at.count = static_cast<int>(c.index.size());
    at.wraps = wraps;
    at.first = c.first, at.end = c.end;
    std::copy(c.sizes.begin(), c.sizes.end(), at.sizes);
    std::copy(c.x_strides.begin(), c.x_strides.end(), at.x_strides);
    std::copy(c.y_strides.begin(), c.y_strides.end(), at.y_strides);
    for (std::size_t k = 0; k < c.index.size(); ++k) {
      const IndexArray& index = c.index[k];
      std::vector<std::int64_t> v =
          indices(elements(c, index.strides), index.size, static_cast<unsigned>(k) + 2);
      for (std::size_t i = 1; wraps && i < v.size(); i += 2) v[i] -= index.size;
      if (bad && k + 1 == c.index.size()) v[v.size() / 2] = index.size, v[v.size() - 1] = -index.size - 1;
      values.emplace_back(v);
      std::copy(index.strides.begin(), index.strides.end(), at.index[k].strides);
      at.index[k].size = index.size, at.index[k].x_stride = index.x_stride;
      at.index[k].values = values.back().data();
    }
  }
};

template <class T>
bool same(const Block<T>& a, const Block<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// run(device, at, x, y) for the CPU and, in all thread orders, for the emulated GPU. Compares what it writes.
template <class X, class Y, class Run>
void check_same(const Case& c, bool wraps, bool bad, std::size_t offset, const Run& run) {
  CAPTURE(c.name, wraps, bad, offset);
  Planned plan(c, wraps, bad);
  const std::vector<float> x = inexact<X>(c.x_elements, 1), y = inexact<Y>(elements(c, c.y_strides), 9);
  std::int64_t want_bad = kNoBadIndex;
  plan.at.first_bad = &want_bad;
  const Block<X> want_x(x, offset);
  const Block<Y> want_y(y, offset);
  run(true, plan.at, want_x.data(), want_y.data());
  CHECK((want_bad != kNoBadIndex) == bad);
  in_each_order([&] {
    const Block<X> got_x(x, offset);
    const Block<Y> got_y(y, offset);
    std::int64_t got_bad = kNoBadIndex;
    plan.at.first_bad = &got_bad;
    run(false, plan.at, got_x.data(), got_y.data());
    CHECK(same(got_x, want_x));
    if (!bad) CHECK(same(got_y, want_y));  // elements of invalid indices are unspecified
    CHECK(got_bad == want_bad);
  });
}

template <class F>
void for_cases(bool broadcast, const F& f) {
  for (const bool wraps : {false, true})
    for (const bool bad : {false, true})
      for (const std::size_t offset : {0, 1}) {
        for (const Case& c : kCases) f(c, wraps, bad, offset);
        if (broadcast) f(kBroadcast, wraps, bad, offset);
      }
}

template <class T>
void check_moves() {
  for_cases(false, [](const Case& c, bool wraps, bool bad, std::size_t offset) {
    check_same<T, T>(c, wraps, bad, offset, [](bool cpu, const Indexed& at, T* x, T* y) {
      if (cpu) kernels::indexed_read(kCPU, dtype_of<T>, {at, x, y});
      else gpu::launch_indexed_read<gpu::Bits<T>>({}, {at, x, y});
    });
  });
  for_cases(true, [](const Case& c, bool wraps, bool bad, std::size_t offset) {
    check_same<T, T>(c, wraps, bad, offset, [](bool cpu, const Indexed& at, T* x, T* y) {
      if (cpu) kernels::indexed_write(kCPU, dtype_of<T>, {at, false, x, y});
      else gpu::launch_indexed_write<gpu::Bits<T>>({}, {at, false, x, y});
    });
  });
}

}  // namespace

TEST_CASE("index kernels: reads and writes by index move the CPU's elements, for each element size") {
  for_types<std::uint8_t, BFloat16, float, double>([]<class T>() { check_moves<T>(); });
}

TEST_CASE("index kernels: a write without repeated indices needs no sort") {
  const Case rows = {"rows", {2, 3, 8}, {40, 0, 1}, {24, 8, 1}, {{{0, 1, 0}, 5, 8}}, 1, 2, 80};
  for_types<std::uint8_t, BFloat16, float, double>([&]<class T>() {
    for (const std::size_t offset : {0, 1})
      check_same<T, T>(rows, false, false, offset, [](bool cpu, Indexed at, T* x, T* y) {
        const std::int64_t values[] = {4, 0, 2};
        at.index[0].values = values;
        if (cpu) kernels::indexed_write(kCPU, dtype_of<T>, {at, true, x, y});
        else gpu::launch_indexed_write<gpu::Bits<T>>({}, {at, true, x, y});
      });
  });
}

namespace {

/// x = x (op) y by the contract of indexed_combine on GPUs, for the elements with a valid index.
template <class X, class T>
void combine_in_chunks(const Indexed& at, Combine op, X* x, const T* y) {
  std::map<std::int64_t, std::vector<X>> of;  // what belongs to each element of x, in row-major order
  std::vector<std::int64_t> c(static_cast<std::size_t>(at.ndim), 0);
  for (bool more = true; more;) {
    std::int64_t to = 0, from = 0;
    bool valid = true;
    for (int d = 0; d < at.ndim; ++d) {
      const std::int64_t i = c[static_cast<std::size_t>(d)];
      to += i * at.x_strides[d], from += i * at.y_strides[d];
    }
    std::int64_t position = 0;
    for (int d = at.first; d < at.end; ++d)
      position = position * at.sizes[d] + c[static_cast<std::size_t>(d)];
    for (int k = 0; k < at.count && valid; ++k) {
      std::int64_t place = 0;
      for (int d = 0; d < at.ndim; ++d) place += c[static_cast<std::size_t>(d)] * at.index[k].strides[d];
      std::int64_t value = at.index[k].values[place];
      if (at.wraps && value < 0) value += at.index[k].size;
      valid = value >= 0 && value < at.index[k].size;
      to += value * at.index[k].x_stride;
    }
    if (valid) of[to].push_back(static_cast<X>(y[from]));
    else *at.first_bad.cell = std::min(*at.first_bad.cell, at.first_bad.value(position));
    more = false;
    for (int d = at.ndim; d-- > 0 && !more;) {
      std::int64_t& i = c[static_cast<std::size_t>(d)];
      more = ++i < at.sizes[d];
      if (!more) i = 0;
    }
  }
  const auto both = [op](X a, X b) { return gpu::combined<X>(op, a, b); };
  for (const auto& [to, values] : of) {
    X& result = x[to];
    if (values.size() <= 32) {
      for (const X v : values) result = both(result, v);
      continue;
    }
    for (std::size_t first = 0; first < values.size(); first += 32) {
      X chunk = values[first];
      for (std::size_t i = first + 1; i < std::min(first + 32, values.size()); ++i)
        chunk = both(chunk, values[i]);
      result = both(result, chunk);
    }
  }
}

}  // namespace

TEST_CASE("index kernels: combinations add, multiply and compare in order of position") {
  for (const Combine op : {Combine::sum, Combine::product, Combine::maximum, Combine::minimum}) {
    const auto check = [op]<class T>() {
      using X = gpu::Compute<T>;
      for_cases(true, [op](const Case& c, bool wraps, bool bad, std::size_t offset) {
        check_same<X, T>(c, wraps, bad, offset, [op](bool cpu, const Indexed& at, X* x, T* y) {
          std::int64_t positions = 1;
          for (int d = at.first; d < at.end; ++d) positions *= at.sizes[d];
          if (cpu && positions > 32) combine_in_chunks<X>(at, op, x, y);
          else if (cpu) kernels::indexed_combine(kCPU, dtype_of<T>, {at, op, x, y});
          else gpu::launch_indexed_combine<T>({}, {at, op, x, y});
        });
      });
    };
    check.template operator()<float>();
    check.template operator()<BFloat16>();
    check.template operator()<std::int64_t>();
  }
}

TEST_CASE("index kernels: runs of every length around a chunk are combined once") {
  for (const std::int64_t before : {0, 1, 31, 32})
    for (const std::int64_t run : {31, 32, 33, 63, 64, 65, 96, 97, 200})
      for (const std::int64_t after : {0, 1, 40}) {
        CAPTURE(before, run, after);
        std::vector<std::int64_t> values;
        for (std::int64_t i = 0; i < before; ++i) values.push_back(0);
        for (std::int64_t i = 0; i < run; ++i) values.push_back(1);
        for (std::int64_t i = 0; i < after; ++i) values.push_back(2);
        Indexed at{};
        at.ndim = at.count = at.end = 1;
        at.sizes[0] = before + run + after, at.y_strides[0] = 1;
        at.index[0] = {values.data(), {1}, 3, 1};
        for_types<std::int64_t, std::int32_t, std::uint8_t>([&]<class T>() {
          const Block<T> y(values.size()), x(3), want(3);
          for (std::size_t i = 0; i < y.size(); ++i) y[i] = static_cast<T>(i * 7 + 1);
          for (std::size_t i = 0; i < 3; ++i) x[i] = want[i] = static_cast<T>(100);
          kernels::indexed_combine(kCPU, dtype_of<T>, {at, Combine::sum, want.data(), y.data()});
          gpu::launch_indexed_combine<T>({}, {at, Combine::sum, x.data(), y.data()});
          CHECK(same(x, want));
        });
      }
}

TEST_CASE("index kernels: maximum and minimum keep NaN") {
  const float nan = std::nanf("");
  for (const Combine op : {Combine::maximum, Combine::minimum}) {
    Indexed at{};
    const std::int64_t values[] = {0, 0, 1, 1, 2};
    at.ndim = at.count = at.end = 1;
    at.sizes[0] = 5, at.y_strides[0] = 1;
    at.index[0] = {values, {1}, 3, 1};
    const float y[] = {nan, 2, 3, nan, 4};
    float x[] = {1, 1, nan};
    gpu::launch_indexed_combine<float>({}, {at, op, x, y});
    for (const float v : x) CHECK(std::isnan(v));
  }
}
