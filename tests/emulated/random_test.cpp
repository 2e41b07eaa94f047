// Random number and sort kernels must give the same bits as the CPU's kernels.
#include "tapestry/kernels/cuda/random.cuh"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/emulated/elementwise.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using emulated::Block;
using emulated::in_each_order;

namespace {

const PhiloxRange kRange{0x123456789abcdefull, 41};
const std::int64_t kSizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 31, 1023, 1024, 1025, 2050, 4100};

/// Checks that both kernels write the same bytes, for any size and alignment.
template <class T, class Cpu, class Gpu>
void check_bits(const Cpu& cpu, const Gpu& kernel) {
  for (const std::int64_t n : kSizes)
    for (const std::size_t offset : {0, 1}) {
      CAPTURE(n, offset, dtype_name(dtype_of<T>));
      const auto size = static_cast<std::size_t>(n);
      const Block<T> want(size), got(size, offset);
      cpu(want.data(), n);
      in_each_order([&] {
        std::fill_n(got.data(), size, T(3));
        kernel(got.data(), n);
        CHECK(std::memcmp(got.data(), want.data(), size * sizeof(T)) == 0);
      });
    }
}

}  // namespace

TEST_CASE("random kernels: uniform gives the CPU's bits") {
  for_types<float, Half, BFloat16>([]<class T>() {
    for (const auto& ends : {std::pair{0.0, 1.0}, std::pair{-2.5, 7.25}})
      check_bits<T>(
          [&](MutableArray out, std::int64_t n) {
            kernels::uniform(kCPU, dtype_of<T>, {out, n, kRange, ends.first, ends.second});
          },
          [&](MutableArray out, std::int64_t n) {
            gpu::launch_uniform<T>({}, {out, n, kRange, ends.first, ends.second});
          });
  });
}

TEST_CASE("random kernels: normal gives the CPU's bits") {
  for_types<float, Half, BFloat16>([]<class T>() {
    check_bits<T>(
        [&](MutableArray out, std::int64_t n) {
          kernels::normal(kCPU, dtype_of<T>, {out, n, kRange, 0.5, 3});
        },
        [&](MutableArray out, std::int64_t n) {
          gpu::launch_normal<T>({}, {out, n, kRange, 0.5, 3});
        });
  });
}

TEST_CASE("normal_from: angles that are multiples of 90 degrees are exact") {
  const double r = std::sqrt(-2 * std::log(0.25));
  for (int eighths = 0; eighths < 8; ++eighths) {
    const NormalPair z = normal_from(0.25, eighths / 8.0);
    const double angle = 2 * std::numbers::pi * eighths / 8;
    CAPTURE(eighths);
    CHECK(std::abs(z.first - r * std::cos(angle)) < 1e-15 * r);
    CHECK(std::abs(z.second - r * std::sin(angle)) < 1e-15 * r);
    if (eighths % 2 == 0) CHECK((z.first == 0 || z.second == 0));
  }
  const NormalPair nearly = normal_from(0.25, 1 - 0x1p-32);
  CHECK(std::abs(nearly.second / (-r * 2 * std::numbers::pi * 0x1p-32) - 1) < 1e-15);
}

TEST_CASE("random kernels: randint gives the CPU's bits") {
  for_types<float, BFloat16, std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
    for (const auto& range : {std::pair<std::int64_t, std::uint64_t>{0, 1}, {3, 100}, {0, 200}})
      check_bits<T>(
          [&](MutableArray out, std::int64_t n) {
            kernels::randint(kCPU, dtype_of<T>, {out, n, kRange, range.first, range.second});
          },
          [&](MutableArray out, std::int64_t n) {
            gpu::launch_randint<T>({}, {out, n, kRange, range.first, range.second});
          });
  });
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  check_bits<std::int64_t>(
      [&](MutableArray out, std::int64_t n) {
        kernels::randint(kCPU, DType::i64, {out, n, kRange, least, ~std::uint64_t{0}});
      },
      [&](MutableArray out, std::int64_t n) {
        gpu::launch_randint<std::int64_t>({}, {out, n, kRange, least, ~std::uint64_t{0}});
      });
}

TEST_CASE("random kernels: dropout gives the CPU's values, also in place") {
  for_types<float, Half, BFloat16>([]<class T>() {
    for (const std::uint32_t threshold : {0u, 0x400000u, 0x1000000u})
      for (const std::int64_t n : kSizes)
        for (const std::size_t offset : {0, 1}) {
          std::vector<float> values(static_cast<std::size_t>(n));
          for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = i % 5 == 4 ? NAN : static_cast<float>(i % 37) - 18.5f;
          const Block<T> x(values, offset), want(values.size()), got(values.size(), offset);
          kernels::dropout(kCPU, dtype_of<T>, {want.data(), x.data(), n, kRange, threshold, 1.25});
          CAPTURE(n, offset, threshold, dtype_name(dtype_of<T>));
          const auto same = [&](const Block<T>& a) {
            for (std::size_t i = 0; i < a.size(); ++i) {
              const auto u = static_cast<float>(a[i]), v = static_cast<float>(want[i]);
              if (u != v && !(std::isnan(u) && std::isnan(v))) return false;
            }
            return true;
          };
          in_each_order([&] {
            gpu::launch_dropout<T>({}, {got.data(), x.data(), n, kRange, threshold, 1.25});
            CHECK(same(got));
          });
          gpu::launch_dropout<T>({}, {x.data(), x.data(), n, kRange, threshold, 1.25});  // in place
          CHECK(same(x));
        }
  });
}

TEST_CASE("random kernels: randperm gives the CPU's permutation") {
  for (const std::int64_t n : {0, 1, 2, 100, 255, 256, 257, 512, 513, 1000, 1300}) {
    CAPTURE(n);
    const Block<std::int64_t> want(static_cast<std::size_t>(n)), got(static_cast<std::size_t>(n));
    kernels::randperm(kCPU, DType::i64, {want.data(), n, kRange});
    in_each_order([&] {
      std::fill_n(got.data(), got.size(), -1);
      gpu::launch_randperm({}, {got.data(), n, kRange});
      CHECK(std::equal(got.data(), got.data() + n, want.data()));
    });
  }
}

namespace {
struct RepeatedKeys {
  std::int64_t different;
  std::uint64_t operator()(std::int64_t i) const {
    return static_cast<std::uint64_t>(i * 7919 % different) << 40;
  }
};
}  // namespace

TEST_CASE("sorting: the sort is stable and returns the position of each key") {
  for (const std::int64_t n : {3, 256, 700, 1100})
    for (const std::int64_t different : {1, 2, 5, 5000}) {
      CAPTURE(n, different);
      const RepeatedKeys key{different};
      std::vector<std::int64_t> want(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) want[static_cast<std::size_t>(i)] = i;
      std::stable_sort(want.begin(), want.end(),
                       [&](std::int64_t a, std::int64_t b) { return key(a) < key(b); });
      in_each_order([&] {
        const gpu::Sorted sorted(key, n, LaunchContext());
        CHECK(std::equal(want.begin(), want.end(), sorted.positions()));
        bool keys = true;
        for (std::int64_t i = 0; i < n; ++i)
          keys = keys && sorted.keys()[i] == key(want[static_cast<std::size_t>(i)]);
        CHECK(keys);
      });
    }
}

TEST_CASE("random kernels: arange wraps at the limits of i64 as on the CPU") {
  check_bits<std::int64_t>(
      [&](MutableArray out, std::int64_t n) {
        kernels::arange(kCPU, DType::i64, {out, n, 1, std::int64_t{1} << 61});
      },
      [&](MutableArray out, std::int64_t n) {
        gpu::launch_arange<std::int64_t>({}, {out, n, 1, std::int64_t{1} << 61});
      });
}
