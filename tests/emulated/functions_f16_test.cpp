// Tests the activations' f16 kernels and those of their gradients, by packs and by single elements.
// tests/device runs f16 in dense layouts only.
#include "tapestry/kernels/cuda/functions.cuh"
#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using namespace tapestry::kernels;
using namespace emulated;

namespace {

/// Numbers in [-4, 4).
Tensor values(unsigned salt, int layout) {
  std::vector<float> v(24 * 40);
  Random random(salt);
  for (float& x : v) x = (static_cast<float>(random() >> 16) - 32768) / 8192;
  return laid_out(tensor(v).reshape({24, 40}).to(DType::f16), layout);
}

template <class Row>
void check_row(const Tensor& out, const std::vector<Tensor>& in) {
  CAPTURE(Row::kSlotName.text);
  const auto check_operands = [&](const auto& operands) {
    // Two f32 results that differ in the last bits may round to neighbours, and subnormal ones are 2^-24
    // apart.
    compare(
        out, operands, {2, 1}, [](const auto& e) { slot<Row>(kCPU, DType::f16, e); },
        [](const auto& e) { gpu::launch_pointwise<Row, Half>({}, e); });
  };
  if constexpr (Row::kOperands == 2) {
    const Tensor* const operands[] = {&out, &in[0]};
    check_operands(operands);
  } else {
    const Tensor* const operands[] = {&out, &in[0], &in[1]};
    check_operands(operands);
  }
}

}  // namespace

TEST_CASE("f16 kernels of the activations and their gradients give the CPU's values") {
  for (const int layout : {0, 2}) {  // whole packs, and single elements
    CAPTURE(layout);
    for_kernels_of(RowList<Relu, Tanh, Sigmoid, Silu, Gelu, GeluTanh>(), [&]<class Row>() {
      check_row<Row>(zeros({24, 40}, DType::f16), {values(1, layout), values(2, layout)});
    });
  }
}
