// Tests the elementwise kernels of map.cuh: layouts, tails, vector accesses, and splitting of launches.
#include "tapestry/kernels/cuda/arithmetic.cuh"
#include "tapestry/kernels/cuda/copy.cuh"

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

Tensor values(const Shape& sizes) { return tensor(numbers(sizes.numel(), 1, 4), sizes).to(DType::f32); }

/// Copies x to out, which may be f32 or bf16, with the kernel and with the CPU's.
void check_copy(const Tensor& out, const Tensor& x) {
  CAPTURE(dtype_name(out.dtype()), out.numel());
  compare<2>(
      out, {&out, &x}, 0, [&](const Elementwise<2>& e) { kernels::copy(kCPU, out.dtype(), e); },
      [&](const Elementwise<2>& e) {
        out.dtype() == DType::f32 ? gpu::launch_copy<float>({}, e) : gpu::launch_copy<BFloat16>({}, e);
      });
}

}  // namespace

TEST_CASE("map: every pair of layouts with ragged sizes gives the CPU's values") {
  for (const Shape& sizes :
       {Shape{1}, Shape{7}, Shape{8}, Shape{1025}, Shape{3, 5}, Shape{4, 32}, Shape{2, 3, 4, 5}})
    for (int to = 0; to < kLayouts; ++to) {
      if (to == 3 || to == 4 || to == 6) continue;  // elements of an output must not overlap
      for (int from = 0; from < kLayouts; ++from) {
        CAPTURE(to, from);
        check_copy(laid_out(zeros(sizes), to), laid_out(values(sizes), from));
        check_copy(laid_out(zeros(sizes, DType::bf16), to), laid_out(values(sizes), from));
      }
    }
  check_copy(zeros(Shape{}), values(Shape{}));
}

TEST_CASE("map: no access is outside the elements, whatever the size and alignment") {
  for (const std::size_t n : {1, 3, 4, 5, 255, 256, 257, 1030})
    for (const std::size_t offset : {0, 1, 4}) {
      const Block<float> x(std::vector<float>(n, 2.5f), offset), y(n, offset);
      Elementwise<2> e;
      e.ndim = 1, e.numel = e.sizes[0] = static_cast<std::int64_t>(n);
      e.strides[0][0] = e.strides[1][0] = 1;
      e.out = y.data(), e.in[0] = x.data();
      gpu::launch_copy<float>({}, e);
      for (std::size_t i = 0; i < n; ++i) REQUIRE(y[i] == 2.5f);
    }
}

TEST_CASE("map: more elements than 32-bit indices allow are split over several launches") {
  const Tensor x = laid_out(values({5, 6, 7}), 1), y = zeros({5, 6, 7});
  for (const std::int64_t limit : {1, 7, 20, 41, 209, 210}) {
    CAPTURE(limit);
    y.fill_(-1);
    cuda_emulator::take_launches();
    const Tensor* const operands[] = {&y, &x};
    gpu::map<float, float>(kernels::plan(operands), gpu::Same{}, nullptr, limit);
    CHECK(cuda_emulator::take_launches().size() >= static_cast<std::size_t>((210 + limit - 1) / limit));
    CHECK(equal(y, x));
  }
}

TEST_CASE("map: aligned dense or broadcast operands use 16-byte packs, others single elements") {
  const auto kernel = [](const Tensor& out, const Tensor& a, const Tensor& b) {
    const Tensor* const operands[] = {&out, &a, &b};
    return kernels_of([&] { gpu::launch_pointwise<kernels::Add, float>({}, kernels::plan(operands)); });
  };
  const Tensor x = zeros({8, 12}), y = zeros({8, 12});
  CHECK_THAT(kernel(y, x, x), ContainsSubstring("map_packsILi4E"));
  CHECK_THAT(kernel(y, x, laid_out(x, 3)), ContainsSubstring("map_packsILi4E"));  // such as a bias
  CHECK_THAT(kernel(y, laid_out(x, 4), x), ContainsSubstring("map_packsILi4E"));
  CHECK_THAT(kernel(zeros({50}), zeros({50}), zeros({50})), ContainsSubstring("map_packsILi4E"));
  CHECK_THAT(kernel(y, x, laid_out(x, 5)), ContainsSubstring("map_elements"));
  CHECK_THAT(kernel(y, x, laid_out(x, 1)), ContainsSubstring("map_elements"));
}

TEST_CASE("map: Divisor gives the exact quotient up to 2^31 - 1") {
  for (const unsigned d :
       {1u, 2u, 3u, 7u, 10u, 641u, 65535u, 65536u, 65537u, 1000003u, 0x40000000u, 0x7ffffffeu, 0x7fffffffu}) {
    const gpu::Divisor divisor(d);
    for (const unsigned base : {0u, d, 2 * d, 0x3fffffffu / d * d, 0x7fffffffu / d * d, 0x7fffffffu})
      for (const unsigned n : {base - 1, base, base + 1})
        if (n <= 0x7fffffffu) REQUIRE(divisor.divide(n) == n / d);
  }
}
