#include "tapestry/kernels/cuda/arithmetic_f16.cuh"

namespace tapestry::kernels::cuda {
namespace {

template <class... Rows>
bool register_selected_with_number(RowList<Rows...>) {
  (slot<Rows>.set(DeviceType::cuda, DType::f16, &launch_selected_with_number<RowList<Rows...>, Rows, Half>),
   ...);
  return true;
}

const bool arithmetic_f16_own = for_rows_of(
    OwnF16(), []<class Row>() { slot<Row>.set(DeviceType::cuda, DType::f16, &launch_pointwise<Row, Half>); });
const bool arithmetic_f16_selected =
    register_selected<Half>(UnaryF16()) && register_selected<Half>(BinaryF16()) &&
    register_selected<Half>(GradientsF16()) && register_selected_with_number(UnaryNumberF16()) &&
    register_selected_with_number(BinaryNumberF16());

}  // namespace
}  // namespace tapestry::kernels::cuda
