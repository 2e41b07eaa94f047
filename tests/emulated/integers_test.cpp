// Tests integer arithmetic at the limits of each dtype. tests/device covers ordinary values.
#include "tapestry/kernels/cuda/integers.cuh"

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using gpu::IntegerOp;
using kernels::BinarySlot, kernels::for_types;
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

template <class T>
void check_binary(const BinarySlot& slot, IntegerOp op) {
  const Tensor a = values<T>(1), b = values<T>(2), out = zeros(a.sizes(), dtype_of<T>);
  CAPTURE(slot.name(), dtype_name(dtype_of<T>));
  compare<3>(
      out, {&out, &a, &b}, 0, [&](const Elementwise<3>& e) { slot(kCPU, dtype_of<T>, e); },
      [&](const Elementwise<3>& e) { gpu::launch_integers<T>(e, op, nullptr); });
}

}  // namespace

TEST_CASE("integer kernels: arithmetic at the limits of a dtype wraps as on the CPU") {
  for_types<std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
    check_binary<T>(kernels::add, IntegerOp::add);
    check_binary<T>(kernels::sub, IntegerOp::sub);
    check_binary<T>(kernels::mul, IntegerOp::mul);
    check_binary<T>(kernels::pow, IntegerOp::pow);
    check_binary<T>(kernels::maximum, IntegerOp::maximum);
    check_binary<T>(kernels::minimum, IntegerOp::minimum);
  });
}
