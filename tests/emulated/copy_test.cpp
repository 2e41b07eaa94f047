// Tests the copy kernels: conversions between all dtypes, by vector and by scalar accesses, and their
// extremes.
#include "tapestry/kernels/cuda/copy.cuh"

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

void check_copy(const Tensor& out, const Tensor& x) {
  CAPTURE(dtype_name(out.dtype()), dtype_name(x.dtype()));
  compare<2>(
      out, {&out, &x}, 0, [&](const Elementwise<2>& e) { kernels::copy(kCPU, out.dtype(), e); },
      [&](const Elementwise<2>& e) {
        for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool, std::int16_t,
                  std::int8_t, std::uint16_t>([&]<class T>() {
          if (dtype_of<T> == out.dtype()) gpu::launch_copy<T>({}, e);
        });
      });
}

}  // namespace

TEST_CASE("copy kernels: copies keep every bit, conversions round or truncate as on the CPU") {
  const float special[] = {0.0f,     -0.0f,    INFINITY, -INFINITY, NAN,        1e-40f,
                           65519.0f, 65520.0f, 3.4e38f,  -2.75f,    1.00390625f};
  const Tensor x = tensor(std::vector<float>(std::begin(special), std::end(special)));
  for (const DType to : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::boolean})
    check_copy(zeros({11}, to), x);
  const Tensor negative = tensor({-2.75, 2.75, -300.0, 300.0}).to(DType::f32);
  for (const DType to : {DType::i64, DType::i32, DType::u8}) check_copy(zeros({4}, to), negative);

  Block<std::uint32_t> from(5), to(5);
  for (std::uint32_t i = 0; i < 5; ++i) from[i] = 0x7f800001u + i;  // signaling NaNs
  Elementwise<2> e;
  e.ndim = 1, e.numel = e.sizes[0] = 5;
  e.strides[0][0] = e.strides[1][0] = 1;
  e.out = to.data(), e.in[0] = from.data();
  gpu::launch_copy<float>({}, e);
  for (std::uint32_t i = 0; i < 5; ++i) CHECK(to[i] == from[i]);
}

TEST_CASE("copy kernels: every pair of dtypes is converted as on the CPU, by packs and by single elements") {
  const DType dtypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                          DType::i64, DType::i32, DType::u8,  DType::boolean};
  const Tensor values = tensor(numbers(57, 1, 64)).abs();  // u8 has no negative numbers
  for (const DType to : dtypes)
    for (const DType from : dtypes) {
      check_copy(zeros({57}, to), values.to(from));
      check_copy(zeros({3, 19}, to).transpose(0, 1), values.to(from).reshape({19, 3}));
    }
}

TEST_CASE("copy kernels: int16, int8 and uint16 are copied, and converted from and to int32 alone") {
  const Tensor values = tensor(numbers(57, 1, 64)).to(DType::i32);
  for (const DType stored : {DType::i16, DType::i8, DType::u16})
    for (const auto& [to, from] : {std::pair(stored, stored), {stored, DType::i32}, {DType::i32, stored}}) {
      check_copy(zeros({57}, to), values.to(from));
      check_copy(zeros({3, 19}, to).transpose(0, 1), values.to(from).reshape({19, 3}));
    }
  for (const auto& [to, from] :
       {std::pair(DType::i8, DType::f32), {DType::f32, DType::u16}, {DType::i16, DType::i8}})
    CHECK_THROWS_AS(check_copy(zeros({57}, to), values.to(from)), MissingKernelError);
}

TEST_CASE("copy kernels: the input may have negative strides, by packs and by single elements") {
  // The rows of x in reverse order keep their last stride of 1, so packs are copied. Reversed columns are
  // copied one by one. 37 rows of 24 elements do not fill the last block.
  const std::int64_t rows = 37, cols = 24;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::u8}) {
    const Tensor x = tensor(numbers(rows * cols, 1, 64)).abs().to(dtype).reshape({rows, cols});
    const std::int64_t last_row = (rows - 1) * cols;
    check_copy(zeros({rows, cols}, dtype), tapestry::detail::raw_view(x, {rows, cols}, {-cols, 1}, last_row));
    check_copy(zeros({rows, cols}, dtype), tapestry::detail::raw_view(x, {rows, cols}, {cols, -1}, cols - 1));
    check_copy(zeros({rows, cols}, dtype),
               tapestry::detail::raw_view(x, {rows, cols}, {-cols, -1}, last_row + cols - 1));
  }
}

TEST_CASE("fill kernels: int16, int8 and uint16, by packs and by single elements") {
  for_types<std::int16_t, std::int8_t, std::uint16_t>([]<class T>() {
    for (const Tensor& out : {zeros({570}, dtype_of<T>), zeros({3, 19}, dtype_of<T>).transpose(0, 1)}) {
      CAPTURE(dtype_name(out.dtype()));
      compare<1>(
          out, {&out}, 0,
          [&](const Elementwise<1>& e) {
            kernels::fill(kCPU, out.dtype(), {e, 7});
          },
          [&](const Elementwise<1>& e) {
            gpu::launch_fill<T>({}, {e, 7});
          });
    }
  });
}
