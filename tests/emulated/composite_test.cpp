// Tests that the kernels take their parameters in order, with vector and with scalar accesses. tests/device
// covers ordinary values, and pointwise_test.cpp extremes.
#include "tapestry/kernels/cuda/composite.cuh"

#include <array>

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using namespace tapestry::kernels;
using namespace emulated;

namespace {

template <class Row, class T>
void check_row(const std::array<Scalar, Row::kParams>& params) {
  constexpr int kOperands = Row::kOperands;
  constexpr DType t = dtype_of<T>;
  using Args = PointwiseArgs<kOperands, Row::kParams>;
  for (const int layout : {0, 5}) {
    CAPTURE(Row::kSlotName.text, dtype_name(t), layout, params[0].to_double());
    Tensor in[kOperands];
    const Tensor* operands[kOperands];
    for (int i = 0; i < kOperands; ++i) {
      const auto salt = static_cast<unsigned>(i);
      in[i] = i == 0 ? zeros({507}, t) : laid_out(tensor(numbers(507, salt, 2)).to(t), layout);
      operands[i] = &in[i];
    }
    // The sums may cancel, and the CPU's compiler may contract products and sums.
    compare<kOperands>(
        in[0], operands, Tolerance(std::is_same_v<T, float> ? 4 : 2, 64),
        [&](const Elementwise<kOperands>& e) {
          slot<Row>(kCPU, t, Args{e, params});
        },
        [&](const Elementwise<kOperands>& e) {
          gpu::launch_pointwise<Row, T>({}, Args{e, params});
        });
  }
}

}  // namespace

TEST_CASE("composite kernels: every parameter changes the result as on the CPU") {
  for_types<float, BFloat16>([]<class T>() {
    for (const double weight : {-0.5, 0.25, 0.5, 0.75, 1.0}) check_row<Lerp, T>({weight});
    for (const double factor : {-0.5, 2.0})
      for (const double divides : {0.0, 1.0}) check_row<AddScaled, T>({factor, divides});
  });
}
