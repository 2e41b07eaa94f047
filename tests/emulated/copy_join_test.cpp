// Tests the kernel that joins arrays line by line: units of every size, many pieces, and empty ones.
#include "tapestry/kernels/cuda/copy_join.cuh"

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/emulated/memory.h"
#include "tests/support/catch.h"

using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using emulated::Block;

namespace {

/// Joins pieces of these lengths in bytes, which begin `offset` bytes after a 16-byte boundary, and checks
/// every byte.
void check_join(std::int64_t lines, const std::vector<std::int64_t>& lengths, std::size_t offset) {
  CAPTURE(lines, lengths.size(), lengths[0], offset);
  std::vector<std::unique_ptr<Block<std::uint8_t>>> memory;
  std::vector<JoinPiece> pieces;
  std::int64_t width = 0;
  for (const std::int64_t length : lengths) {
    memory.push_back(std::make_unique<Block<std::uint8_t>>(static_cast<std::size_t>(lines * length), offset));
    for (std::size_t i = 0; i < memory.back()->size(); ++i)
      (*memory.back())[i] = static_cast<std::uint8_t>(7 * i + 31 * memory.size());
    pieces.push_back({memory.back()->data(), length});
    width += length;
  }
  const Block<std::uint8_t> out(static_cast<std::size_t>(lines * width), offset);
  const JoinArgs args{lines, pieces.data(), static_cast<std::int64_t>(pieces.size()), out.data()};
  const auto is_right = [&] {
    std::size_t at = 0;
    bool right = true;
    for (std::int64_t l = 0; l < lines; ++l)
      for (std::size_t p = 0; p < lengths.size(); ++p)
        for (std::int64_t i = 0; i < lengths[p]; ++i)
          right &= out[at++] == (*memory[p])[static_cast<std::size_t>(l * lengths[p] + i)];
    return right;
  };
  gpu::launch_join({}, args);
  CHECK(is_right());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = 99;
  join(tapestry::kCPU, tapestry::DType::u8, args);
  CHECK(is_right());
}

std::size_t launches(std::size_t count) {
  std::vector<std::uint8_t> x(count), y(count);
  std::vector<JoinPiece> pieces;
  for (std::size_t i = 0; i < count; ++i) pieces.push_back({x.data() + i, 1});
  const std::string names = emulated::kernels_of([&] {
    gpu::launch_join({}, {1, pieces.data(), static_cast<std::int64_t>(count), y.data()});
  });
  return static_cast<std::size_t>(std::count(names.begin(), names.end(), '\n'));
}

}  // namespace

TEST_CASE("join kernels: every byte of every line comes from its piece, in units of 16, 4, 2 and 1 bytes") {
  emulated::in_each_order([] {
    check_join(3, {16, 48, 0, 32}, 0);
    check_join(3, {8, 12, 40}, 4);
    check_join(5, {2, 6, 0, 0, 4}, 2);
    check_join(2, {1, 3, 5}, 0);
    check_join(1, {700}, 1);
    check_join(4, {0, 0, 3}, 0);
    check_join(2, {0, 0}, 0);
    check_join(0, {4, 4}, 0);
  });
  std::vector<std::int64_t> many;
  for (int i = 0; i < 230; ++i) many.push_back(i % 5);
  check_join(3, many, 0);  // several launches
}

TEST_CASE("join kernels: up to 96 pieces are one launch") {
  CHECK(launches(1) == 1);
  CHECK(launches(96) == 1);
  CHECK(launches(97) == 2);
}
