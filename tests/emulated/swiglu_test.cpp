// Tests that the kernels take their operands in order, with vector and with scalar accesses. tests/device
// covers ordinary values.
#include "tapestry/kernels/cuda/swiglu.cuh"

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using namespace tapestry::kernels;
using namespace emulated;

namespace {

template <class Row, class T>
void check_row() {
  constexpr int kOperands = Row::kOperands;
  constexpr DType t = dtype_of<T>;
  for (const int layout : {0, 5}) {
    CAPTURE(Row::kSlotName.text, dtype_name(t), layout);
    Tensor in[kOperands];
    const Tensor* operands[kOperands];
    for (int i = 0; i < kOperands; ++i) {
      const auto salt = static_cast<unsigned>(i);
      in[i] = i == 0 ? zeros({507}, t) : laid_out(tensor(numbers(507, salt, 4)).to(t), layout);
      operands[i] = &in[i];
    }
    compare<kOperands>(
        in[0], operands, Tolerance(std::is_same_v<T, float> ? 32 : 2, 64),
        [&](const Elementwise<kOperands>& e) { slot<Row>(kCPU, t, e); },
        [&](const Elementwise<kOperands>& e) { gpu::launch_pointwise<Row, T>({}, e); });
  }
}

}  // namespace

TEST_CASE("swiglu kernels: values and gradients are the CPU's") {
  for_float_dtypes([]<class T>() { for_kernels_of(SwigluRows(), []<class Row>() { check_row<Row, T>(); }); });
}
