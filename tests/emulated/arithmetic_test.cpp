// Tests integer arithmetic at the limits of each dtype. The tests in tests/device cover ordinary values.
#include "tapestry/kernels/cuda/arithmetic.cuh"

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using gpu::IntegerOp;
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

template <class Row, class T, IntegerOp op>
void check_binary() {
  const Tensor a = values<T>(1), b = values<T>(2), out = zeros(a.sizes(), dtype_of<T>);
  CAPTURE(Row::kSlotName.text, dtype_name(dtype_of<T>));
  compare<3>(
      out, {&out, &a, &b}, 0, [&](const Elementwise<3>& e) { slot<Row>(kCPU, dtype_of<T>, e); },
      [&](const Elementwise<3>& e) { gpu::launch_integers<T, op>({}, e); });
}

}  // namespace

TEST_CASE("integer kernels: arithmetic at the limits of a dtype wraps as on the CPU") {
  for_types<std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
    check_binary<Add, T, IntegerOp::add>();
    check_binary<Sub, T, IntegerOp::sub>();
    check_binary<Mul, T, IntegerOp::mul>();
    check_binary<Pow, T, IntegerOp::pow>();
    check_binary<Maximum, T, IntegerOp::maximum>();
    check_binary<Minimum, T, IntegerOp::minimum>();
  });
}
