// Tests the f16 kernels of arithmetic, of their gradients and of operations with a number.
#include "tapestry/kernels/cuda/arithmetic_f16.cuh"
#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using namespace tapestry::kernels;
using namespace emulated;

namespace {

/// Numbers in (0, 4], which every row takes, or in [-4, 4).
Tensor values(unsigned salt, int layout, bool negative) {
  std::vector<float> v(24 * 40);
  Random random(salt);
  for (float& x : v) x = (static_cast<float>(random() >> 17) + 1) / 8192;
  if (negative)
    for (std::size_t i = 0; i < v.size(); i += 3) v[i] = -v[i];
  return laid_out(tensor(v).reshape({24, 40}).to(DType::f16), layout);
}

/// Two f32 results that differ in the last bits may round to neighbours, and subnormal ones are 2^-24 apart.
const Tolerance kNeighbours{2, 1};

/// Calls `run(out, operands)` with the operands of a row.
template <class Row, class F>
void with_operands(bool negative, const F& run) {
  CAPTURE(Row::kSlotName.text);
  for (const int layout : {0, 2}) {  // whole packs, and single elements
    const Tensor out = zeros({24, 40}, DType::f16), a = values(1, layout, negative),
                 b = values(2, layout, negative), c = values(3, layout, negative);
    const Tensor* const all[] = {&out, &a, &b, &c};
    [&]<std::size_t... kI>(std::index_sequence<kI...>) {
      const Tensor* const operands[] = {all[kI]...};
      run(out, operands);
    }
    (std::make_index_sequence<Row::kOperands>());
  }
}
template <class List>
void check_selected(List, bool negative) {
  for_rows_of(List(), [&]<class Row>() {
    with_operands<Row>(negative, [](const Tensor& out, const auto& operands) {
      compare(
          out, operands, kNeighbours, [](const auto& e) { slot<Row>(kCPU, DType::f16, e); },
          [](const auto& e) { gpu::launch_selected<List, Row, Half>({}, e); });
    });
  });
}
template <class List>
void check_with_number(List) {
  for_rows_of(List(), [&]<class Row>() {
    for (const double number : {0.75, 2.0})
      with_operands<Row>(false, [=](const Tensor& out, const auto& operands) {
        const auto args = [=](const auto& e) { return PointwiseArgs<Row::kOperands, 1>{e, {number}}; };
        compare(
            out, operands, kNeighbours, [=](const auto& e) { slot<Row>(kCPU, DType::f16, args(e)); },
            [=](const auto& e) { gpu::launch_selected_with_number<List, Row, Half>({}, args(e)); });
      });
  });
}

}  // namespace

TEST_CASE("f16 arithmetic: rows with kernels of their own give the CPU's values") {
  for_rows_of(gpu::OwnF16(), []<class Row>() {
    with_operands<Row>(true, [](const Tensor& out, const auto& operands) {
      const auto args = [](const auto& e) {
        if constexpr (Row::kParams == 0) return e;
        else if constexpr (Row::kParams == 1) return PointwiseArgs<Row::kOperands, 1>{e, {1.25}};
        else return PointwiseArgs<Row::kOperands, 2>{e, {1.25, 0.0}};
      };
      compare(
          out, operands, kNeighbours, [=](const auto& e) { slot<Row>(kCPU, DType::f16, args(e)); },
          [=](const auto& e) { gpu::launch_pointwise<Row, Half>({}, args(e)); });
    });
  });
}

TEST_CASE("f16 arithmetic: rows that share a kernel give the CPU's values") {
  check_selected(gpu::UnaryF16(), false);
  check_selected(gpu::BinaryF16(), false);
  check_selected(gpu::GradientsF16(), false);
  check_with_number(gpu::UnaryNumberF16());
  check_with_number(gpu::BinaryNumberF16());
}
