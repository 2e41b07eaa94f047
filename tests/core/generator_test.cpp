#include "tapestry/core/generator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/core/philox.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {
std::array<std::uint32_t, 4> numbers(std::uint64_t seed, std::uint64_t counter, std::uint64_t stream) {
  const Philox4 p = philox(seed, counter, stream);
  return {p.v[0], p.v[1], p.v[2], p.v[3]};
}
}  // namespace

// The known answers (kat_vectors) of Random123 for philox4x32-10.
TEST_CASE("philox gives Random123's known answers") {
  using Four = std::array<std::uint32_t, 4>;
  CHECK(numbers(0, 0, 0) == Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const std::uint64_t ones = ~std::uint64_t{0};
  CHECK(numbers(ones, ones, ones) == Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(numbers(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e) ==
        Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("uniform numbers lie in [0, 1)") {
  CHECK(uniform_float(0) == 0.0f);
  CHECK(uniform_float(0xffffffffu) == 1.0f - 0x1p-24f);
  CHECK(uniform_float(0x80000000u) == 0.5f);
  CHECK(uniform_double(0, 0) == 0.0);
  CHECK(uniform_double(0xffffffffu, 0xffffffffu) == 1.0 - 0x1p-53);
  double sum = 0, squares = 0;
  constexpr int kCounters = 100000;
  for (std::uint64_t i = 0; i < kCounters; ++i)
    for (const std::uint32_t bits : philox(123, i).v) {
      const double u = uniform_float(bits);
      sum += u;
      squares += u * u;
    }
  const double n = 4.0 * kCounters, mean = sum / n, variance = squares / n - mean * mean;
  // The tolerance is five standard errors of the mean and the variance of a uniform variable.
  CHECK(std::abs(mean - 0.5) < 5 * std::sqrt(1 / 12.0 / n));
  CHECK(std::abs(variance - 1 / 12.0) < 5 * std::sqrt(1 / 180.0 / n));
}

TEST_CASE("take returns consecutive ranges") {
  Generator g(42);
  CHECK(g.seed() == 42);
  CHECK(g.take(10).offset == 0);
  const PhiloxRange next = g.take(3);
  CHECK(next.seed == 42);
  CHECK(next.offset == 10);
  CHECK(g.take(0).offset == 13);
  CHECK(g.state() == std::array<std::uint64_t, 2>{42, 13});
  const auto saved = g.state();
  const std::uint64_t a = g.take(5).offset;
  g.manual_seed(7);
  CHECK(g.state() == std::array<std::uint64_t, 2>{7, 0});
  g.set_state(saved);
  CHECK(g.take(5).offset == a);
  CHECK(g.seed() == 42);
}

TEST_CASE("threads that take from one generator get disjoint ranges") {
  Generator g(1);
  constexpr int kThreads = 4, kTakes = 5000;
  std::vector<std::uint64_t> offsets[kThreads];
  std::vector<std::thread> threads;
  for (auto& mine : offsets)
    threads.emplace_back([&g, &mine] {
      for (int i = 0; i < kTakes; ++i) mine.push_back(g.take(2).offset);
    });
  for (std::thread& t : threads) t.join();
  std::vector<std::uint64_t> all;
  for (const auto& mine : offsets) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  bool disjoint = true;
  for (std::size_t i = 0; i < all.size(); ++i) disjoint = disjoint && all[i] == 2 * i;
  CHECK(disjoint);
}

TEST_CASE("manual_seed seeds the default generators, and the context's generator overrides them") {
  const auto saved = default_generator(kCPU).state();
  manual_seed(99);
  CHECK(default_generator(kCPU).state() == std::array<std::uint64_t, 2>{99, 0});
  CHECK(&current_generator(kCPU) == &default_generator(kCPU));
  Generator own(5);
  Context context = current_context();
  context.generator = &own;
  {
    const ContextGuard guard(context);
    CHECK(&current_generator(kCPU) == &own);
  }
  CHECK(&current_generator(kCPU) == &default_generator(kCPU));
  default_generator(kCPU).set_state(saved);
  CHECK_THROWS_AS(default_generator(Device("cpu:63")), DeviceError);
}
