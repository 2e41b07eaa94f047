// Rotations must be the CPU's in every layout, with packs and with single elements.
#include "tapestry/kernels/cuda/rope.cuh"

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using namespace tapestry::kernels;
using namespace emulated;

namespace {

struct Case {
  std::int64_t batch, heads, length, width, pairs;
  bool heads_inside, each;  // x is a view of (batch, length, heads, width); each sequence has its own angles
  std::int64_t offset;      // of x from an aligned address, in elements
};

template <class T>
void check_rope(const Case& c) {
  constexpr DType t = dtype_of<T>;
  const Tensor flat = zeros({c.batch * c.heads * c.length * c.width + c.offset}, t);
  flat.copy_(tensor(numbers(flat.numel(), 1, 2)).to(t));
  const Tensor dense = flat.narrow(0, c.offset, flat.numel() - c.offset);
  const Tensor x = c.heads_inside ? dense.reshape({c.batch, c.length, c.heads, c.width}).transpose(1, 2)
                                  : dense.reshape({c.batch, c.heads, c.length, c.width});
  const Shape table{c.each ? c.batch : 1, c.length, c.pairs};
  const Tensor cos = tensor(numbers(table.numel(), 2, 1)).to(DType::f32),
               sin = tensor(numbers(table.numel(), 3, 1)).to(DType::f32);
  for (const bool interleaved : {false, true})
    for (const bool inverse : {false, true}) {
      CAPTURE(dtype_name(t), c.width, c.pairs, c.heads_inside, c.each, c.offset, interleaved, inverse);
      const Tensor want = zeros(x.sizes(), t), got = zeros(x.sizes(), t);
      RopeArgs args{.batch = c.batch,
                    .heads = c.heads,
                    .length = c.length,
                    .width = c.width,
                    .pairs = c.pairs,
                    .x_strides = {x.strides()[0], x.strides()[1], x.strides()[2]},
                    .y_strides = {want.strides()[0], want.strides()[1], want.strides()[2]},
                    .table_stride = c.each ? c.length * c.pairs : 0,
                    .interleaved = interleaved,
                    .inverse = inverse,
                    .x = x,
                    .cos = cos,
                    .sin = sin,
                    .y = want};
      rope(kCPU, t, args);
      args.y = got;
      in_each_order([&] {
        got.fill_(77);
        gpu::launch_rope<T>({}, args);
        // The compilers may contract products and sums differently, and the terms may cancel.
        CHECK(allclose(got.to(DType::f64), want.to(DType::f64), t == DType::f32 ? 1e-6 : 1e-2, 1e-6));
      });
    }
}

}  // namespace

TEST_CASE("rope kernels: rotations are the CPU's in every layout") {
  for_float_dtypes([]<class T>() {
    check_rope<T>({2, 3, 5, 32, 16, false, false, 0});
    check_rope<T>({2, 3, 5, 32, 16, true, true, 0});
    check_rope<T>({2, 3, 37, 24, 8, true, false, 0});  // 8 features are copied; 2 blocks with a ragged tail
    check_rope<T>({2, 3, 5, 32, 16, false, true, 1});  // misaligned
    check_rope<T>({1, 2, 7, 7, 3, false, false, 0});
    check_rope<T>({3, 1, 2, 6, 0, false, false, 0});
    check_rope<T>({2, 0, 5, 8, 4, false, false, 0});
  });
}

TEST_CASE("rope kernels: aligned rows use packs, others single elements") {
  const auto kernel = [](std::int64_t pairs, std::int64_t offset) {
    const Tensor x = zeros({offset + 2 * 2 * pairs}).narrow(0, offset, 4 * pairs), y = zeros({4 * pairs}),
                 angles = zeros({2 * pairs});
    const std::array<std::int64_t, 3> strides{4 * pairs, 4 * pairs, 2 * pairs};
    return kernels_of([&] {
      gpu::launch_rope<float>({}, {.batch = 1,
                                   .heads = 1,
                                   .length = 2,
                                   .width = 2 * pairs,
                                   .pairs = pairs,
                                   .x_strides = strides,
                                   .y_strides = strides,
                                   .x = x,
                                   .cos = angles,
                                   .sin = angles,
                                   .y = y});
    });
  };
  CHECK(kernel(8, 0) != kernel(8, 1));
  CHECK(kernel(8, 1) == kernel(6, 0));
}

TEST_CASE("rope kernels: rotations in f16 are the CPU's, by packs and by single elements") {
  check_rope<Half>({2, 3, 5, 32, 16, false, false, 0});
  check_rope<Half>({2, 3, 5, 32, 16, true, true, 1});
}
