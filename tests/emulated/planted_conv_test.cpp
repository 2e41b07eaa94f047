// Bugs of tensor-core pipelines that only a real GPU would show, planted into the mainloop of the
// convolutions in bf16 and f16. The emulator must detect each by a wrong result or an Error.
#include <vector>

#include "tapestry/kernels/cuda/conv_tensor.cuh"
#include "tests/emulated/memory.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::kernels::cuda;
using namespace tapestry::kernels::cuda::conv::tensor_cores;

namespace planted_conv {

enum class Bug {
  none,
  one_group_too_few,    // waits for all copies but those of the last kStages - 1 steps
  barrier_before_wait,  // the barrier does not cover the copies of other threads
  no_barrier,
  unaligned_copy,  // a copy of 16 bytes from an address that is a multiple of 2
  not_swizzled,    // chunks are stored where ldmatrix does not expect them
  skipped_chunk,   // a chunk outside the operand is not written, instead of being zeros
  wrong_lane,      // the epilogue takes the accumulators of another lane
  wrong_type,      // fragments of f16 go to the mma of bf16
};

using Small = conv::tensor_cores::Tile<64, 64, 1>;

template <Bug bug>
struct Sync {
  __device__ static void wait() {
    if (bug == Bug::barrier_before_wait) __syncthreads();
    ptx::cp_async_wait<bug == Bug::one_group_too_few ? kStages - 1 : kStages - 2>();
    if (bug != Bug::no_barrier && bug != Bug::barrier_before_wait) __syncthreads();
  }
};

/// Loads tiles of a matrix with 64 lines, of which `lines` exist.
template <class T, Bug bug>
struct Lines {
  const T* from;
  int lines, depth;
  __device__ void load(T* tile) {
    const int thread = static_cast<int>(threadIdx.x), line = thread / 4, k = thread % 4 * kChunk;
    for (int i = line; i < 64; i += 32) {
      T* const to = tile + (bug == Bug::not_swizzled ? i * kDepth + k : chunk_at<64, true>(i, k));
      if (bug == Bug::skipped_chunk && i >= lines) continue;
      ptx::cp_async16(to, from + (i < lines ? i : 0) * depth + k + (bug == Bug::unaligned_copy), i < lines);
    }
    from += kDepth;
  }
};

/// c = a b^T, where a and b have 64 lines of `depth` elements, and b only `lines` that are not zero.
template <class T, Bug bug>
__global__ void product(const T* a, const T* b, float* c, int depth, int lines) {
  DYN_SHARED(T, ring);
  Sums<Small> sums;
  Lines<T, bug> of_a{a, 64, depth}, of_b{b, lines, depth};
  multiply<Small, true, Sync<bug>>(of_a, of_b, static_cast<unsigned>(depth) / kDepth, ring, sums);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warp % 2 * 32 + (bug == Bug::wrong_lane ? lane % 8 : lane / 4);
  const int column = warp / 2 * 32 + (bug == Bug::wrong_lane ? lane / 8 : lane % 4) * 2;
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      for (int u = 0; u < 4; ++u) c[(row + 16 * i + u / 2 * 8) * 64 + column + 8 * j + u % 2] = sums[i][j][u];
}

/// Whether the product of small integers, which is exact, is right.
template <Bug bug>
bool is_right() {
  using T = std::conditional_t<bug == Bug::wrong_type, BFloat16, Half>;
  constexpr int kLong = 5 * kDepth, kLines = 50;
  std::vector<float> a(64 * kLong), b(64 * kLong);
  for (int i = 0; i < 64 * kLong; ++i) {
    a[static_cast<std::size_t>(i)] = static_cast<float>(i * 7 % 5 - 2);
    b[static_cast<std::size_t>(i)] = static_cast<float>(i * 11 % 7 - 3);
  }
  const emulated::Block<Half> x(a), y(b);
  const emulated::Block<float> c(64 * 64);
  launch(&product<T, bug>, 1, Small::kThreads, kSharedBytes<Small>, nullptr,
         reinterpret_cast<const T*>(x.data()), reinterpret_cast<const T*>(y.data()), c.data(), kLong, kLines);
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < 64; ++j) {
      float want = 0;
      for (int k = 0; k < kLong && j < kLines; ++k)
        want += a[static_cast<std::size_t>(i * kLong + k)] * b[static_cast<std::size_t>(j * kLong + k)];
      if (!(c[static_cast<std::size_t>(i * 64 + j)] == want)) return false;
    }
  return true;
}

struct Plant {
  const char* name;
  bool (*run)();
  const char* error = nullptr;  // text of the Error
};
const Plant kPlants[] = {
    {"a wait for one group of copies too few", &is_right<Bug::one_group_too_few>},
    {"a barrier before the wait for copies", &is_right<Bug::barrier_before_wait>},
    {"no barrier after the wait for copies", &is_right<Bug::no_barrier>},
    {"an unaligned copy of 16 bytes", &is_right<Bug::unaligned_copy>, "misaligned address"},
    {"chunks that are not swizzled", &is_right<Bug::not_swizzled>},
    {"a chunk that is not zeroed", &is_right<Bug::skipped_chunk>},
    {"accumulators of the wrong lane", &is_right<Bug::wrong_lane>},
    {"fragments of f16 in the mma of bf16", &is_right<Bug::wrong_type>},
};

}  // namespace planted_conv

using namespace planted_conv;

TEST_CASE("the convolutions' mainloop without a planted bug is right in every order") {
  emulated::in_each_order([] { CHECK(is_right<Bug::none>()); });
}

TEST_CASE("bugs planted into the convolutions' mainloop are detected, in order and shuffled") {
  for (const Plant& plant : kPlants) {
    CAPTURE(plant.name);
    if (emulated::kOnlyRaces && !plant.error) continue;  // ThreadSanitizer would end this process
    emulated::in_each_order([&] {
      bool detected = false;
      try {
        detected = !plant.run();
      } catch (const cuda_emulator::Error& e) {
        INFO(e.what());
        REQUIRE(plant.error);
        CHECK_THAT(e.what(), ContainsSubstring(plant.error));
        detected = true;
      }
      CHECK(detected);
    });
  }
  CHECK(is_right<Bug::none>());  // a failed launch must not affect later ones
}
