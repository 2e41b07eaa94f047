// The emulator must implement the semantics of CUDA that kernels rely on, and refuse what a GPU refuses.
// planted_test.cpp tests that it detects bugs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tapestry/kernels/cuda/portable.cuh"
#include "tests/emulated/memory.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::kernels::cuda;

namespace emulated {

template <class = void>
__global__ void indices(int* seen) {
  const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  ++seen[b * blockDim.x * blockDim.y * blockDim.z + t];
}

template <class = void>
__global__ void shuffles(int* out) {
  const int t = static_cast<int>(threadIdx.x), width = 8;
  int* const o = out + 8 * t;
  o[0] = __shfl_sync(kAllLanes, t, 3);
  o[1] = __shfl_sync(kAllLanes, t, 3, width);
  o[2] = __shfl_up_sync(kAllLanes, t, 2, width);
  o[3] = __shfl_down_sync(kAllLanes, t, 2, width);
  o[4] = __shfl_xor_sync(kAllLanes, t, 5);
  o[5] = __shfl_xor_sync(kAllLanes, t, 8, width);
  o[6] = static_cast<int>(__ballot_sync(kAllLanes, t % 3 == 0));
  o[7] = __any_sync(kAllLanes, t == 31) + 2 * __all_sync(kAllLanes, t < 31);
}

template <class = void>
__global__ void halves(int* out) {  // two disjoint masks of one warp in different branches
  const int t = static_cast<int>(threadIdx.x);
  if (t < 16) out[t] = __shfl_xor_sync(0x0000ffffu, t, 1) + static_cast<int>(__ballot_sync(0x0000ffffu, 1));
  else out[t] = __shfl_sync(0xffff0000u, t, 2);  // reads a lane outside the mask: the result is undefined
}

template <class = void>
__global__ void barriers(int* out, int active) {
  SHARED(int, turn, );
  const int t = static_cast<int>(threadIdx.x);
  if (t >= active) return;  // barriers count only the remaining threads
  if (t == 0) turn = 7;
  const int count = __syncthreads_count(t % 2);
  out[t] = turn + 100 * count + 10000 * __syncthreads_or(t == 5) + 20000 * __syncthreads_and(t < active);
}

template <class = void>
__global__ void atomics(float* sum, int* integers, unsigned* slots) {
  const int t = static_cast<int>(threadIdx.x);
  atomicAdd(sum, 0.5f);
  atomicAdd(&integers[0], t);
  atomicMax(&integers[1], t);
  atomicMin(&integers[2], -t);
  slots[atomicAdd(&integers[3], 1)] = static_cast<unsigned>(t);
  atomicCAS(&integers[4], 0, t + 1);
}

template <class = void>
__global__ void last_block(const float* x, float* partial, unsigned* arrived, float* out) {
  SHARED(bool, last, );
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = x[blockIdx.x];
    __threadfence();
    last = atomicAdd(arrived, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x != 0) return;
  __threadfence();
  float sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b];
  *out = sum;
}

template <class = void>
__global__ void poison(unsigned* out) {
  SHARED(float, fixed, [2]);
  DYN_SHARED(unsigned, dynamic);
  out[2 * blockIdx.x] = __float_as_uint(fixed[1]);
  out[2 * blockIdx.x + 1] = dynamic[3];
  fixed[1] = 1;
  dynamic[3] = 1;
}

/// One warp computes out = a b^T in bf16 with a (16, 16), b (8, 16) and out (16, 8). If `transposed`, b is
/// (16, 8) and out = a b.
template <bool transposed>
__global__ void tile_product(const BFloat16* a, const BFloat16* b, float* out) {
  SHARED(BFloat16, tile_a, [16][16]);
  SHARED(BFloat16, tile_b, [16][8]);
  const int t = static_cast<int>(threadIdx.x);
  ptx::cp_async16(&tile_a[t / 2][8 * (t % 2)], a + 8 * t, true);
  if (t < 16) ptx::cp_async16(&tile_b[0][0] + 8 * t, b + 8 * t, true);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncwarp();
  std::uint32_t fragment_a[4], fragment_b[2];
  ptx::ldmatrix_x4(fragment_a, &tile_a[t % 16][8 * (t / 16)]);
  if (transposed) ptx::ldmatrix_x2_trans(fragment_b, &tile_b[t % 16][0]);
  else ptx::ldmatrix_x2(fragment_b, &tile_b[0][0] + 16 * (t % 8) + 8 * (t / 8 % 2));
  float d[4] = {1, 1, 1, 1};
  ptx::mma_m16n8k16_bf16(d, fragment_a, fragment_b);
  for (int i = 0; i < 4; ++i) out[(t / 4 + 8 * (i / 2)) * 8 + 2 * (t % 4) + i % 2] = d[i];
}

template <class = void>
__global__ void zero_fill(float* out, const float* x) {
  SHARED(float, held, [8]);
  ptx::cp_async16(held, x, true);
  ptx::cp_async16(held + 4, x, false);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::cp_async4(held + 1, x + 3, true);
  ptx::cp_async4(held + 2, x + 3, false);
  ptx::cp_async_commit();
  for (int i = 0; i < 4; ++i) out[8 + i] = held[i];
  ptx::cp_async_wait<0>();
  for (int i = 0; i < 8; ++i) out[i] = held[i];
}

template <class = void>
__global__ void static_and_dynamic() {
  SHARED(float, held, [16]);
  held[threadIdx.x % 16] = 0;
}
template <class = void>
__global__ void idle() {}

}  // namespace emulated

using namespace emulated;

TEST_CASE("every thread runs exactly once with the right indices") {
  in_each_order([] {
    std::vector<int> seen(2 * 3 * 4 * 5 * 6 * 2);
    launch(&indices<>, {2, 3, 4}, {5, 6, 2}, 0, nullptr, seen.data());
    CHECK(seen == std::vector<int>(seen.size(), 1));
  });
}

TEST_CASE("shuffles and votes return the values that CUDA defines") {
  in_each_order([] {
    std::vector<int> out(32 * 8);
    launch(&shuffles<>, 1, 32, 0, nullptr, out.data());
    for (int t = 0; t < 32; ++t) {
      const int* const o = &out[static_cast<std::size_t>(8 * t)];
      const int first = t / 8 * 8;
      CHECK(o[0] == 3);
      CHECK(o[1] == first + 3);
      CHECK(o[2] == (t - first < 2 ? t : t - 2));
      CHECK(o[3] == (t - first >= 6 ? t : t + 2));
      CHECK(o[4] == (t ^ 5));
      CHECK(o[5] == ((t ^ 8) < t ? (t ^ 8) : t));
      CHECK(o[6] == static_cast<int>(0x49249249u));
      CHECK(o[7] == 1);
    }
    std::vector<int> pairs(32);
    launch(&halves<>, 1, 32, 0, nullptr, pairs.data());
    for (int t = 0; t < 16; ++t) CHECK(pairs[static_cast<std::size_t>(t)] == (t ^ 1) + 0xffff);
    CHECK(pairs[20] == -1);
  });
}

TEST_CASE("barriers wait only for threads that have not returned") {
  in_each_order([] {
    std::vector<int> out(96, -1);
    launch(&barriers<>, 1, 96, 0, nullptr, out.data(), 50);
    for (int t = 0; t < 96; ++t) CHECK(out[static_cast<std::size_t>(t)] == (t < 50 ? 7 + 2500 + 30000 : -1));
  });
}

TEST_CASE("atomics are exact, and the last block sees the results of all others") {
  in_each_order([] {
    float sum = 0;
    std::vector<int> integers(5);
    std::vector<unsigned> slots(64, 999);
    launch(&atomics<>, 1, 64, 0, nullptr, &sum, integers.data(), slots.data());
    CHECK(sum == 32);
    CHECK(integers[0] == 63 * 32);
    CHECK(integers[1] == 63);
    CHECK(integers[2] == -63);
    CHECK(integers[3] == 64);
    CHECK(integers[4] > 0);
    std::sort(slots.begin(), slots.end());
    for (unsigned t = 0; t < 64; ++t) CHECK(slots[t] == t);

    const std::vector<float> x{1, 2, 3, 4, 5};
    std::vector<float> partial(5);
    float out = 0;
    unsigned arrived = 0;
    launch(&last_block<>, 5, 32, 0, nullptr, x.data(), partial.data(), &arrived, &out);
    CHECK(out == 15);
  });
}

TEST_CASE("shared memory is filled with NaN when a block starts") {
  std::vector<unsigned> out(6);
  launch(&poison<>, 3, 1, 16, nullptr, out.data());
  CHECK(out == std::vector<unsigned>(6, 0xffffffffu));
}

TEST_CASE("ldmatrix and mma compute the product of two tiles") {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> eighths(-16, 16);
  const auto numbers = [&](std::size_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = static_cast<float>(eighths(random)) / 8;
    return v;
  };
  const auto rounded = [](const std::vector<float>& v, BFloat16* to) {
    for (std::size_t i = 0; i < v.size(); ++i) to[i] = BFloat16(v[i]);
  };
  const std::vector<float> a = numbers(256), b = numbers(128);
  alignas(16) BFloat16 short_a[256], short_b[128];
  rounded(a, short_a);
  rounded(b, short_b);
  in_each_order([&] {
    std::vector<float> out(128);
    const auto check = [&](auto element_of_b) {
      for (std::size_t i = 0; i < 16; ++i)
        for (std::size_t j = 0; j < 8; ++j) {
          float sum = 1;  // exact, because terms are multiples of 1/64
          for (std::size_t k = 0; k < 16; ++k) sum += a[i * 16 + k] * element_of_b(k, j);
          REQUIRE(out[i * 8 + j] == sum);
        }
    };
    launch(&tile_product<false>, 1, 32, 0, nullptr, short_a, short_b, out.data());
    check([&](std::size_t k, std::size_t j) { return b[j * 16 + k]; });
    launch(&tile_product<true>, 1, 32, 0, nullptr, short_a, short_b, out.data());
    check([&](std::size_t k, std::size_t j) { return b[k * 8 + j]; });
  });
}

TEST_CASE("cp.async writes zeros if it does not read, and nothing before the wait") {
  alignas(16) const float x[4] = {1, 2, 3, 4};
  std::vector<float> out(12, -1);
  launch(&zero_fill<>, 1, 1, 0, nullptr, out.data(), x);
  CHECK(std::isnan(out[9]));  // read before the wait
  CHECK(std::isnan(out[10]));
  out[9] = out[10] = -1;
  CHECK(out == std::vector<float>{1, 4, 0, 4, 0, 0, 0, 0, 1, -1, -1, 4});
}

TEST_CASE("16-bit floats are rounded as in core") {
  for (const float x :
       {0.0f, -0.0f, 1.0f, 1.00390625f, 1.01171875f, 65519.0f, 65520.0f, 1e-7f, 3e38f, -1e30f}) {
    CHECK(store<BFloat16>(x).bits == BFloat16(x).bits);
    CHECK(store<Half>(x).bits == Half(x).bits);
    CHECK(load(Half(x)) == static_cast<float>(Half(x)));
  }
  CHECK(std::isnan(load(store<BFloat16>(std::numeric_limits<float>::quiet_NaN()))));
}

TEST_CASE("launches that a GPU refuses throw an Error with the kernel's name") {
  const auto refused = [](dim3 grid, dim3 block, std::size_t shared_bytes, const char* why) {
    CHECK_THROWS_WITH(launch(&idle<>, grid, block, shared_bytes, nullptr), ContainsSubstring(why));
    CHECK_THROWS_WITH(launch(&idle<>, grid, block, shared_bytes, nullptr),
                      ContainsSubstring("[emulated::idle<void>]"));
  };
  refused(1, 1025, 0, "1 to 1024 threads");
  refused(1, {32, 33, 1}, 0, "1 to 1024 threads");
  refused(1, {2, 0, 1}, 0, "1 to 1024 threads");
  refused(1, {1, 1, 65}, 0, "at most 64 of them in z");
  refused(0, 32, 0, "no dimension is 0");
  refused({1, 65536, 1}, 32, 0, "y and z at most 65535");
  refused({1, 1, 65536}, 32, 0, "y and z at most 65535");
  refused(0x80000000u, 32, 0, "x at most 2^31 - 1");
  refused(1, 32, 227 * 1024 + 1, "a block has 232448");
  CHECK_NOTHROW(launch(&idle<>, {3, 1, 2}, {16, 1, 64}, 227 * 1024, nullptr));
  std::vector<unsigned> out(2);
  CHECK_THROWS_WITH(launch(&poison<>, 1, 1, 0, nullptr, out.data()),
                    ContainsSubstring("no dynamic shared memory"));
  CHECK_THROWS_WITH(launch(&static_and_dynamic<>, 1, 1, 48 * 1024, nullptr),
                    ContainsSubstring("static and dynamic shared memory together"));
  CHECK_NOTHROW(launch(&static_and_dynamic<>, 1, 1, 48 * 1024 + 16, nullptr));
}

TEST_CASE("launches are recorded with the kernel's mangled name and sizes") {
  cuda_emulator::take_launches();
  launch(&idle<>, {2, 3, 1}, 32, 64, nullptr);
  const auto launches = cuda_emulator::take_launches();
  REQUIRE(launches.size() == 1);
  CHECK(launches[0].kernel == "_ZN8emulated4idleIvEEvv");
  CHECK(launches[0].grid.y == 3);
  CHECK(launches[0].block.x == 32);
  CHECK(launches[0].shared_bytes == 64);
  CHECK(cuda_emulator::take_launches().empty());
  const auto kernels = cuda_emulator::launched_kernels();
  CHECK(std::count(kernels.begin(), kernels.end(), launches[0].kernel) == 1);
}
