// Copies and fills against the CPU's kernels: every pair of dtypes, every layout.
#include "tapestry/kernels/cuda/copy.cuh"

#include "tests/emulated/elementwise.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

const DType kDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                         DType::i64, DType::i32, DType::u8,  DType::boolean};

/// 0, 1, 2.25, ... with what the dtype makes of them; no negative numbers, which unsigned ones do not hold.
Tensor values(const Shape& sizes, DType dtype) {
  std::int64_t n = 1;
  for (int d = 0; d < sizes.size(); ++d) n *= sizes[d];
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 37) * (i % 3 ? 1.25f : 1);
  return tensor(v, sizes).to(dtype);
}

template <class F>
void with_type(DType dtype, F f) {
  for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([&]<class T>() {
    if (dtype_of<T> == dtype) f.template operator()<T>();
  });
}

void check_copy(const Tensor& out, const Tensor& x) {
  CAPTURE(dtype_name(out.dtype()), dtype_name(x.dtype()), out.numel());
  compare<2>(
      out, {&out, &x}, 0, [&](const Elementwise<2>& e) { kernels::copy(kCPU, out.dtype(), e); },
      [&](const Elementwise<2>& e) {
        with_type(out.dtype(), [&]<class T>() { gpu::launch_copy<T>(e, nullptr); });
      });
}

}  // namespace

TEST_CASE("copy kernels: every pair of dtypes") {
  for (const DType to : kDTypes)
    for (const DType from : kDTypes) {
      check_copy(zeros({5, 24}, to), values({5, 24}, from));
      check_copy(zeros({3, 19}, to).transpose(0, 1), values({19, 3}, from));
    }
}

TEST_CASE("copy kernels: every layout, ragged sizes") {
  for (const Shape& sizes :
       {Shape{1}, Shape{7}, Shape{8}, Shape{1025}, Shape{3, 5}, Shape{4, 32}, Shape{2, 3, 4, 5}})
    for (int to = 0; to < kLayouts; ++to) {
      if (to == 3 || to == 4 || to == 6) continue;  // an output overlaps nothing
      for (int from = 0; from < kLayouts; ++from) {
        CAPTURE(to, from);
        check_copy(laid_out(zeros(sizes), to), laid_out(values(sizes, DType::f32), from));
        check_copy(laid_out(zeros(sizes, DType::bf16), to), laid_out(values(sizes, DType::f32), from));
      }
    }
  check_copy(zeros(Shape{}), values(Shape{}, DType::f32));
}

TEST_CASE("copy kernels: bits stay, conversions round and truncate") {
  const float special[] = {0.0f,     -0.0f,    INFINITY, -INFINITY, NAN,        1e-40f,
                           65519.0f, 65520.0f, 3.4e38f,  -2.75f,    1.00390625f};
  const Tensor x = tensor(std::vector<float>(std::begin(special), std::end(special)));
  for (const DType to : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::boolean})
    check_copy(zeros({11}, to), x);
  const Tensor negative = tensor({-2.75, 2.75, -300.0, 300.0}).to(DType::f32);
  for (const DType to : {DType::i64, DType::i32, DType::u8}) check_copy(zeros({4}, to), negative);

  Block<std::uint32_t> from(5), to(5);
  for (std::uint32_t i = 0; i < 5; ++i) from[i] = 0x7f800001u + i;  // signalling NaNs
  Elementwise<2> e;
  e.ndim = 1, e.numel = e.sizes[0] = 5;
  e.strides[0][0] = e.strides[1][0] = 1;
  e.data[0] = to.data(), e.data[1] = from.data();
  gpu::launch_copy<float>(e, nullptr);
  for (std::uint32_t i = 0; i < 5; ++i) CHECK(to[i] == from[i]);
}

TEST_CASE("fill kernels: every dtype and layout") {
  for (const DType dtype : kDTypes)
    for (const Scalar& value : {Scalar(3), Scalar(2.75), Scalar(true), Scalar(0)})
      for (const int layout : {0, 1, 2, 5}) {
        const Tensor out = laid_out(zeros({5, 13}, dtype), layout);
        CAPTURE(dtype_name(dtype), layout);
        compare<1>(
            out, {&out}, 0, [&](const Elementwise<1>& e) { kernels::fill(kCPU, dtype, e, value); },
            [&](const Elementwise<1>& e) {
              with_type(dtype, [&]<class T>() { gpu::launch_fill<T>(e, value, nullptr); });
            });
      }
}

TEST_CASE("map: memory that ends where its elements end") {
  for (const std::size_t n : {1, 3, 4, 5, 255, 256, 257, 1030})
    for (const std::size_t offset : {0, 1, 4}) {
      const Block<float> x(std::vector<float>(n, 2.5f), offset), y(n, offset);
      Elementwise<2> e;
      e.ndim = 1, e.numel = e.sizes[0] = static_cast<std::int64_t>(n);
      e.strides[0][0] = e.strides[1][0] = 1;
      e.data[0] = y.data(), e.data[1] = x.data();
      gpu::launch_copy<float>(e, nullptr);
      for (std::size_t i = 0; i < n; ++i) REQUIRE(y[i] == 2.5f);
    }
}

TEST_CASE("map: more elements than a launch numbers go in parts") {
  const Tensor x = laid_out(values({5, 6, 7}, DType::f32), 1), y = zeros({5, 6, 7});
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

TEST_CASE("map: division by multiplication") {
  for (const unsigned d :
       {1u, 2u, 3u, 7u, 10u, 641u, 65535u, 65536u, 65537u, 1000003u, 0x40000000u, 0x7ffffffeu, 0x7fffffffu}) {
    const gpu::Divisor divisor(d);
    for (const unsigned base : {0u, d, 2 * d, 0x3fffffffu / d * d, 0x7fffffffu / d * d, 0x7fffffffu})
      for (const unsigned n : {base - 1, base, base + 1})
        if (n <= 0x7fffffffu) REQUIRE(divisor.divide(n) == n / d);
  }
}
