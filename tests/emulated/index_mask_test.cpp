// The coordinates of the true elements of masks must be the CPU's, for sizes around those of blocks and of
// rows of blocks.
#include "tapestry/kernels/cuda/index_mask.cuh"

#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

// `some` of 256 elements are true.
void check_mask(const std::vector<std::int64_t>& sizes, unsigned some, bool by_dim) {
  std::int64_t n = 1;
  for (const std::int64_t size : sizes) n *= size;
  CAPTURE(n, some, by_dim);
  const Block<std::uint8_t> mask(size_of(n));
  Random random(some);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = random() >> 24 < some;
  const std::int64_t blocks = (n + kMaskBlock - 1) / kMaskBlock;
  const Block<std::int64_t> want_starts(size_of(blocks + 1)), got_starts(size_of(blocks + 1));
  kernels::mask_starts(kCPU, DType::boolean, {n, mask.data(), want_starts.data()});
  const std::int64_t count = want_starts[size_of(blocks)], ndim = static_cast<std::int64_t>(sizes.size());
  const Block<std::int64_t> want(size_of(count * ndim)), got(size_of(count * ndim));
  MaskCoordinatesArgs args{n,
                           static_cast<int>(ndim),
                           {},
                           mask.data(),
                           want_starts.data(),
                           want.data(),
                           by_dim ? 1 : ndim,
                           by_dim ? count : 1};
  std::copy(sizes.begin(), sizes.end(), args.sizes);
  kernels::mask_coordinates(kCPU, DType::boolean, args);
  in_each_order([&] {
    std::fill_n(got_starts.data(), got_starts.size(), -1);
    std::fill_n(got.data(), got.size(), -1);
    gpu::launch_mask_starts<>({}, {n, mask.data(), got_starts.data()});
    CHECK(std::equal(got_starts.data(), got_starts.data() + got_starts.size(), want_starts.data()));
    args.starts = got_starts.data(), args.coordinates = got.data();
    gpu::launch_mask_coordinates<>({}, args);
    CHECK(std::equal(got.data(), got.data() + got.size(), want.data()));
  });
}

}  // namespace

TEST_CASE("mask kernels: coordinates of the true elements") {
  for (const std::int64_t n : {0, 1, 255, 1024, 1025, 5000})
    for (const unsigned some : {0, 3, 128, 256}) check_mask({n}, some, false);
  for (const bool by_dim : {false, true}) {
    check_mask({7, 11}, 100, by_dim);
    check_mask({3, 1, 17, 41}, 100, by_dim);
  }
}

TEST_CASE("mask kernels: more blocks than one thread block sums at a time") {
  check_mask({gpu::kMaskThreads * kMaskBlock + 3000}, 2, false);
}
