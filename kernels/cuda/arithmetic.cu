#include "tapestry/kernels/cuda/arithmetic.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool arithmetic_rows = for_kernels_of(Arithmetic(), []<class Row>() { register_pointwise<Row>(); });
const bool arithmetic_rare = register_selected<float, BFloat16>(RareArithmetic()) &&
                             register_selected<float, BFloat16>(OwnGradients<RareArithmetic>::type()) &&
                             register_selected<std::int64_t, std::int32_t, std::uint8_t>(RareIntegers());
const bool arithmetic_others = [] {
  register_pointwise<WithNumber<Div, 0>>();
  register_pointwise<PowScalar>();
  register_pointwise<PowScalarBackward>();
  return true;
}();

// The registrations below are templates: nvcc 13 gives a variable template that is used elsewhere hidden
// visibility, and the library would then not export the slot.
template <class Row, class T>
void register_integers() {
  constexpr DType t = dtype_of<T>;
  slot<Row>.set(kDevice, t, &launch_integers<Row, T>);
  if constexpr (Row::kNumber != Number::none)
    slot<WithNumber<Row, 1>>.set(kDevice, t, &launch_integers_with<Row, 1, T>);
  if constexpr (Row::kNumber == Number::either)
    slot<WithNumber<Row, 0>>.set(kDevice, t, &launch_integers_with<Row, 0, T>);
}
/// Registers bools, which are computed by ByteRow: "or" is the maximum of two bytes, and "and" the minimum.
template <class Row, class ByteRow>
void register_bools() {
  constexpr DType t = DType::boolean;
  slot<Row>.set(kDevice, t, &launch_integers<ByteRow, std::uint8_t>);
  if constexpr (Row::kNumber != Number::none)
    slot<WithNumber<Row, 1>>.set(kDevice, t, &launch_integers_with<ByteRow, 1, std::uint8_t, bool>);
}

const bool arithmetic_integers = for_types<std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
  constexpr DType t = dtype_of<T>;
  for_rows_of(Arithmetic(), []<class Row>() {
    if constexpr (kTakesIntegers<Row>) register_integers<Row, T>();
  });
  slot<PowScalar>.set(kDevice, t, &launch_integers_with<Pow, 1, T>);
  slot<Neg>.set(kDevice, t, &launch_integers_with_zero<Sub, 0, T>);
  slot<Abs>.set(kDevice, t, &launch_integers_with_zero<Abs, 1, T>);
  slot<Relu>.set(kDevice, t, &launch_integers_with_zero<Maximum, 1, T>);
  clamp.set(kDevice, t, &launch_integer_clamp<T>);
});
const bool arithmetic_bools = [] {
  register_bools<Add, Maximum>();
  register_bools<Mul, Minimum>();
  register_bools<Maximum, Maximum>();
  register_bools<Minimum, Minimum>();
  for_rows_of(RowList<BitAnd, BitOr, BitXor>(), []<class Row>() {
    slot<Row>.set(kDevice, DType::boolean, &launch_selected<RareIntegers, Row, std::uint8_t>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
