// CPU kernels that copy with conversion, and that fill.
#include "tapestry/kernels/ops/copy.h"

#include "tapestry/kernels/cpu/loops.h"

namespace tapestry::kernels::cpu {
namespace {

template <class To, class From>
void copy_from(const Elementwise<2>& e) {
  if constexpr (std::is_same_v<To, From>) {
    // Copies bits instead of values, which keeps a signalling NaN as it is.
    using Bits = std::conditional_t<
        sizeof(To) == 8, std::uint64_t,
        std::conditional_t<sizeof(To) == 4, std::uint32_t,
                           std::conditional_t<sizeof(To) == 2, std::uint16_t, std::uint8_t>>>;
    map<Bits, Bits>(e, [](Bits x) { return x; });
  } else {
    map<To, From>(e, [](auto x) { return convert<Compute<To>>(x); });
  }
}

template <class To>
void copy_kernel(const LaunchContext&, const Elementwise<2>& e) {
  switch (e.dtypes[1]) {
    case DType::f32:
      return copy_from<To, float>(e);
    case DType::f64:
      return copy_from<To, double>(e);
    case DType::f16:
      return copy_from<To, Half>(e);
    case DType::bf16:
      return copy_from<To, BFloat16>(e);
    case DType::i64:
      return copy_from<To, std::int64_t>(e);
    case DType::i32:
      return copy_from<To, std::int32_t>(e);
    case DType::u8:
      return copy_from<To, std::uint8_t>(e);
    case DType::boolean:
      return copy_from<To, bool>(e);
  }
}

template <class T>
void fill_kernel(const LaunchContext&, const FillArgs& a) {
  const T v = convert_scalar<T>(a.value);
  map<T>(a.out, [c = convert<Compute<T>>(v)]() { return c; });
}

const bool filled =
    for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T>() {
      copy.set(DeviceType::cpu, dtype_of<T>, &copy_kernel<T>);
      fill.set(DeviceType::cpu, dtype_of<T>, &fill_kernel<T>);
    });

}  // namespace
}  // namespace tapestry::kernels::cpu
