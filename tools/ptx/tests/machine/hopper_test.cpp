// Kernels that nvcc compiled for sm_90a: TMA, mbarriers and wgmma together, and planted mistakes. Without
// nvcc, the tests say so and end.
#include <cmath>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/tensor_map.h"
#include "tapestry/tools/ptx/tests/catch.h"

using namespace tapestry::ptx;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

struct alignas(64) Map {
  std::uint8_t bytes[128];
};
Map map_of(TensorType type, u64 address, u64 rows, u64 columns, u32 box_rows, u32 box_columns,
           TensorSwizzle swizzle) {
  TensorMap map;
  map.type = type;
  map.rank = 2;
  map.address = address;
  map.sizes[0] = columns;
  map.sizes[1] = rows;
  map.strides[0] = columns * map.element_bytes();
  map.box[0] = box_columns;
  map.box[1] = box_rows;
  map.swizzle = swizzle;
  Map to{};
  encode_tensor_map(map, to.bytes);
  return to;
}

/// Runs the product of random matrices; returns the number of wrong elements, or -1 without nvcc.
int multiply(bool transposed, u32 m, u32 n, u32 k, u64 seed, int bug = 0) {
#ifndef TAPESTRY_PTX_FILE
  (void)transposed, (void)m, (void)n, (void)k, (void)seed, (void)bug;
  std::cout << "not tested: nvcc was not found when the tests were built\n";
  return -1;
#else
  static const std::string text = [] {
    std::ifstream file(TAPESTRY_PTX_FILE);
    std::stringstream all;
    all << file.rdbuf();
    REQUIRE(file);
    return all.str();
  }();
  Machine machine;
  machine.options().seed = seed;
  machine.options().check_races = bug == 0;
  machine.load(text);
  std::vector<u16> a(m * k), b(n * k);
  u32 state = 5;
  for (auto* list : {&a, &b})
    for (u16& x : *list)
      x = static_cast<u16>(narrow((static_cast<int>((state = state * 1664525 + 1013904223) >> 28) - 8) / 4.0,
                                  kBrain, kNearestEven));
  std::vector<float> c(m * n);
  const u64 pa = machine.memory().allocate(2 * a.size()), pb = machine.memory().allocate(2 * b.size()),
            pc = machine.memory().allocate(4 * c.size());
  machine.memory().write(pa, a.data(), 2 * a.size());
  machine.memory().write(pb, b.data(), 2 * b.size());
  const Map ma = map_of(TensorType::kBf16, pa, m, k, 64, 64, TensorSwizzle::k128),
            mb = map_of(TensorType::kBf16, pb, transposed ? k : n, transposed ? n : k, 64, 64,
                        TensorSwizzle::k128),
            mc = map_of(TensorType::kF32, pc, m, n, 64, 32, TensorSwizzle::kNone);
  machine.launch(transposed ? "product_kn" : "product_nk", {(n + 63) / 64, (m + 63) / 64}, {160},
                 32768 + 16384 + 1024, ma, mb, mc, static_cast<int>(k), bug);
  machine.memory().read(pc, c.data(), 4 * c.size());
  int wrong = 0;
  for (u32 i = 0; i < m; ++i)
    for (u32 j = 0; j < n; ++j) {
      double sum = 0;  // exact: multiples of 1/16 below 2^20
      for (u32 x = 0; x < k; ++x)
        sum += widen(a[i * k + x], kBrain) * widen(b[transposed ? x * n + j : j * k + x], kBrain);
      wrong += c[i * n + j] != static_cast<float>(sum);
    }
  return wrong;
#endif
}

}  // namespace

TEST_CASE("a product with TMA, mbarriers and wgmma is right in all orders") {
  for (const bool transposed : {false, true})
    for (const u64 seed : {u64{0}, u64{1}, u64{2}}) {
      INFO("transposed " << transposed << ", seed " << seed);
      CHECK(multiply(transposed, 64, 64, 320, seed) <= 0);
    }
  CHECK(multiply(false, 100, 72, 128, 0) <= 0);  // ragged tiles: TMA fills and skips
}

TEST_CASE("planted mistakes in the product are found where they are") {
  if (multiply(false, 64, 64, 64, 0) < 0) return;
  struct Planted {
    int bug;
    const char* words;
  };
  const Planted list[] = {
      {1, "wgmma.wait_group"},
      {2, "no wgmma.fence came before the first wgmma.mma_async"},
      {3, "is still writing: no wait for its mbarrier came before"},
      {4, "16 bytes were expected that no copy brings"},
      {5, "executed no fence.proxy.async after that"},
      {6, "reads 16 bytes of shared memory"},
      {7, "is still reading: no wgmma.wait_group came before"},
      {8, "1 arrivals at the mbarrier"},
      {9, "did not make this visible to the async proxy"},
      {10, "the block ended before this copy had read its shared memory"},
  };
  for (const Planted& one : list) {
    INFO("bug " << one.bug);
    CHECK_THROWS_WITH(multiply(false, 64, 64, 320, 0, one.bug),
                      ContainsSubstring("hopper.cu:") && ContainsSubstring(one.words));
    CHECK_THROWS_AS(multiply(false, 64, 64, 320, 4, one.bug), KernelError);
  }
}
