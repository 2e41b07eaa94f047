// Tests integer arithmetic at the limits of each dtype, and atan2 over its whole range. tests/device covers
// ordinary values.
#include "tapestry/kernels/cuda/arithmetic.cuh"

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using namespace tapestry::kernels;
using namespace emulated;

namespace {

/// Small numbers and the limits of T.
template <class T>
Tensor values(unsigned salt) {
  using Limits = std::numeric_limits<T>;
  const T limits[] = {
      0, 1, T(-1), 2, 3, Limits::max(), Limits::lowest(), T(Limits::max() - 1), T(Limits::max() / 3)};
  std::vector<std::int64_t> v(207);
  Random random(salt);
  for (std::int64_t& x : v) {
    const std::uint32_t bits = random();
    x = static_cast<std::int64_t>((bits >> 8) % 2 ? limits[(bits >> 16) % std::size(limits)]
                                                  : T((bits >> 16) % 9));
  }
  return tensor(v).to(dtype_of<T>);
}

template <class Row, class T>
void check_integers() {
  const Tensor a = values<T>(1), b = values<T>(2), out = zeros(a.sizes(), dtype_of<T>);
  CAPTURE(Row::kSlotName.text, dtype_name(dtype_of<T>));
  compare<3>(
      out, {&out, &a, &b}, 0, [&](const Elementwise<3>& e) { slot<Row>(kCPU, dtype_of<T>, e); },
      [&](const Elementwise<3>& e) { gpu::launch_integers<Row, T>({}, e); });
  if constexpr (Row::kNumber != Number::none)
    compare<2>(
        out, {&out, &a}, 0,
        [&](const Elementwise<2>& e) {
          slot<WithNumber<Row, 1>>(kCPU, dtype_of<T>, {e, {3}});
        },
        [&](const Elementwise<2>& e) {
          gpu::launch_integers_with<Row, 1, T>({}, {e, {3}});
        });
}

/// Points in all quadrants and on the axes, with infinities, NaN, huge and tiny coordinates.
Tensor coordinates(unsigned salt, DType dtype) {
  const float specials[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 1e-40f};
  std::vector<float> v(1003);
  Random random(salt);
  for (float& x : v) {
    const std::uint32_t bits = random();
    x = (static_cast<float>(bits >> 16) - 32768) / 8192;
    if ((bits >> 8) % 4 == 0) x = specials[(bits >> 10) % std::size(specials)];
  }
  return tensor(v).to(dtype);
}

/// Compares a row of a shared kernel with the CPU's. `make(salt)` gives an input.
template <int kOperands>
void check_selected(const Slot<Elementwise<kOperands>>& row,
                    void (*launch)(const LaunchContext&, const Elementwise<kOperands>&), DType t,
                    const std::function<Tensor(unsigned)>& make, const Tolerance& error) {
  CAPTURE(row.name(), dtype_name(t));
  Tensor in[kOperands];
  const Tensor* operands[kOperands];
  for (int i = 0; i < kOperands; ++i) {
    in[i] = i == 0 ? zeros(make(1).sizes(), t) : make(static_cast<unsigned>(i));
    operands[i] = &in[i];
  }
  compare<kOperands>(
      in[0], operands, error, [&](const Elementwise<kOperands>& e) { row(kCPU, t, e); },
      [&](const Elementwise<kOperands>& e) { launch({}, e); });
}

// log(e^a + e^b) is high + L with L = log(1 + e^-|a - b|) in (0, ln 2]. Near the curve on which it is 0, its
// condition number has no bound, because the rounding error of L remains: each side loses 1 unit of the
// result, and 4 units of L, which are fewer than 3 units of the number 1.
constexpr double kLogAddExpUnits = 2, kLogAddExpAbsolute = 6;

}  // namespace

TEST_CASE("integer kernels: arithmetic at the limits of a dtype wraps as on the CPU") {
  for_types<std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
    for_rows_of(Arithmetic(), []<class Row>() {
      if constexpr (gpu::kTakesIntegers<Row>) check_integers<Row, T>();
    });
  });
}

TEST_CASE("integer kernels: rounded quotients and bits at the limits of a dtype are the CPU's") {
  for_types<std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
    for_rows_of(RareIntegers(), []<class Row>() {
      check_selected<3>(slot<Row>, &gpu::launch_selected<RareIntegers, Row, T>, dtype_of<T>, &values<T>, 0);
    });
  });
}

TEST_CASE("quotient kernels: rounded quotients and xlogy are the CPU's, also for infinities and NaN") {
  using Gradients = OwnGradients<RareArithmetic>::type;
  for_types<float, BFloat16>([]<class T>() {
    constexpr DType t = dtype_of<T>;
    const auto make = [](unsigned salt) { return coordinates(salt, t); };
    for_rows_of(RareArithmetic(), [&]<class Row>() {
      check_selected<3>(slot<Row>, &gpu::launch_selected<RareArithmetic, Row, T>, t, make,
                        std::is_same_v<Row, Xlogy> || std::is_same_v<Row, Hypot> ? Tolerance(4)
                        : std::is_same_v<Row, LogAddExp> ? Tolerance(kLogAddExpUnits, kLogAddExpAbsolute)
                                                         : Tolerance());
    });
    for_rows_of(Gradients(), [&]<class Row>() {
      check_selected<4>(slot<Row>, &gpu::launch_selected<Gradients, Row, T>, t, make, 4);
    });
  });
}

TEST_CASE("atan2 kernels: values are within a few roundings of the CPU's in all quadrants") {
  for_types<float, BFloat16>([]<class T>() {
    constexpr DType t = dtype_of<T>;
    const Tensor a = coordinates(1, t), b = coordinates(2, t), out = zeros(a.sizes(), t);
    // Results that differ by a rounding of f32 may round to different bf16 numbers: 2 units of bf16.
    compare<3>(
        out, {&out, &a, &b}, std::is_same_v<T, float> ? 8 : 2,
        [&](const Elementwise<3>& e) { slot<Atan2>(kCPU, t, e); },
        [&](const Elementwise<3>& e) { gpu::launch_pointwise<Atan2, T>({}, e); });
  });
}
