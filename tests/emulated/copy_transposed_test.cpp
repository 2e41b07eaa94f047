// Tests copies by tiles: permutations of every element size, ragged tiles, and which copies take tiles.
#include "tapestry/kernels/cuda/copy.cuh"

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

/// Plans out = x, and calls f.operator()<T>(plan) for an integer type T of the elements' size.
template <class F>
void with_plan(const Tensor& out, const Tensor& x, const F& f) {
  const Elementwise<2> e = plan<2>({&out, &x});
  for_types<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>([&]<class T>() {
    if (sizeof(T) == dtype_size(x.dtype())) f.template operator()<T>(e);
  });
}
std::string kernels_of_copy(const Tensor& out, const Tensor& x) {
  std::string names;
  with_plan(out, x, [&]<class T>(const Elementwise<2>& e) {
    names = kernels_of([&] { gpu::copy_bits<T>(e, nullptr); });
  });
  return names;
}
/// Numbers that differ from their neighbours in each byte.
Tensor numbered(const Shape& shape, DType dtype) {
  return arange(shape.numel()).remainder(251).to(dtype).reshape(shape);
}
void check_copy(const Tensor& out, const Tensor& x, bool by_tiles = true) {
  CAPTURE(dtype_name(x.dtype()), x.sizes().str(), out.strides().str(), x.strides().str());
  CHECK((kernels_of_copy(out, x).find("copy_transposed") != std::string::npos) == by_tiles);
  in_each_order([&] {
    out.zero_();
    with_plan(out, x, [&]<class T>(const Elementwise<2>& e) { gpu::copy_bits<T>(e, nullptr); });
    CHECK(equal(out, x));
  });
}
Tensor dense(const Tensor& like) { return zeros(like.sizes(), like.dtype()); }

}  // namespace

TEST_CASE("transposing copies: elements of 1, 2, 4 and 8 bytes, in tiles that are whole and ragged") {
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64})
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{32, 32}, {33, 65}, {8, 70}}) {
      const Tensor x = numbered({rows, cols}, dtype);
      check_copy(zeros({cols, rows}, dtype), x.transpose(0, 1));
      check_copy(zeros({cols, rows}, dtype).transpose(0, 1), x);
    }
}

TEST_CASE("transposing copies: every permutation that moves the innermost dimension") {
  const std::vector<std::vector<int>> orders = {
      {2, 1, 0, 3}, {0, 1, 3, 2}, {0, 3, 1, 2}, {3, 2, 1, 0}, {1, 3, 0, 2}};
  const Tensor x = numbered({9, 3, 10, 11}, DType::f32);
  for (const auto& order : orders) {
    std::vector<std::int64_t> dims(order.begin(), order.end());
    const Tensor y = x.permute(dims);
    check_copy(dense(y), y, order.back() != 3);
  }
  // Channels-last and back, with gaps on both sides.
  const Tensor image = numbered({2, 16, 5, 7}, DType::bf16);
  check_copy(zeros({2, 5, 7, 20}, DType::bf16).permute({0, 3, 1, 2}).narrow(1, 2, 16), image);
  check_copy(zeros({2, 20, 5, 7}, DType::bf16).narrow(1, 1, 16),
             numbered({2, 5, 7, 16}, DType::bf16).permute({0, 3, 1, 2}));
}

TEST_CASE("transposing copies: what is contiguous on both sides, broadcast or narrow is copied by elements") {
  const Tensor x = numbered({40, 40}, DType::f32);
  check_copy(dense(x), x, false);
  check_copy(zeros({40, 40, 40}), x.unsqueeze(2).expand({40, 40, 40}), false);
  check_copy(zeros({40, 7}), numbered({7, 40}, DType::f32).transpose(0, 1), false);
  check_copy(zeros({40, 8}), numbered({8, 40}, DType::f32).transpose(0, 1));
  check_copy(zeros({40, 20}), numbered({20, 80}, DType::f32).transpose(0, 1).slice(0, 0, 80, 2), false);
}

TEST_CASE("transposing copies: without the barrier, some order of threads copies elements too early") {
  const Tensor x = numbered({32, 32}, DType::f32).transpose(0, 1), out = dense(x);
#ifdef TAPESTRY_SANITIZED
  static_cast<void>(out);  // ThreadSanitizer would end the program
#else
  bool found = false;
  for (const std::uint64_t seed : {1, 2, 3}) {
    cuda_emulator::options().seed = seed;
    out.zero_();
    with_plan(out, x, [&]<class T>(const Elementwise<2>& e) {
      gpu::launch_copy_transposed<T, false>(e, gpu::transpose_dims(e), nullptr);
    });
    found = found || !equal(out, x);
  }
  cuda_emulator::options().seed = 0;
  CHECK(found);
#endif
}
