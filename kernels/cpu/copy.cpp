// CPU kernels that copy with conversion, and that fill.
#include "tapestry/kernels/ops/copy.h"

#include <algorithm>

#include "tapestry/kernels/cpu/loops.h"

namespace tapestry::kernels::cpu {
namespace {

// True if the copy repeats each element of the input a few times, as repeat_interleave does.
bool repeats_elements(const Elementwise<2>& e) {
  constexpr std::int64_t kFew = 64;  // longer runs of equal elements are fast rows
  return e.ndim == 2 && e.sizes[1] < kFew && e.strides[0][1] == 1 && e.strides[0][0] == e.sizes[1] &&
         e.strides[1][1] == 0;
}
template <class Bits>
void repeat_bits(const Elementwise<2>& e) {
  const std::int64_t times = e.sizes[1], step = e.strides[1][0];
  parallel_for(e.sizes[0], grain_of(times), [&](std::int64_t begin, std::int64_t end) {
    const Bits* const in = static_cast<const Bits*>(e.in[0]);
    Bits* to = static_cast<Bits*>(e.out) + begin * times;
    for (std::int64_t i = begin; i < end; ++i) {
      const Bits x = in[i * step];
      for (std::int64_t j = 0; j < times; ++j) *to++ = x;
    }
  });
}

// Copies bits instead of values, which keeps a signalling NaN as it is.
template <class Bits>
void copy_bits(const Elementwise<2>& e) {
  if (repeats_elements(e)) return repeat_bits<Bits>(e);
  constexpr std::int64_t element[] = {sizeof(Bits), sizeof(Bits)};
  const RowFn row = [](const void*, std::int64_t n, void* to, const void* const* from,
                       const std::int64_t* strides) {
    Bits* const out = static_cast<Bits*>(to);
    const Bits* const in = static_cast<const Bits*>(from[0]);
    if (strides[0] == 1 && strides[1] == 1) std::copy_n(in, n, out);
    else if (strides[0] == 1 && strides[1] == -1)  // with constant strides, the loop is vectorised
      for (std::int64_t i = 0; i < n; ++i) out[i] = in[-i];
    else
      for (std::int64_t i = 0; i < n; ++i) out[i * strides[0]] = in[i * strides[1]];
  };
  for_all_rows(e, element, row, nullptr);
}

template <class To>
void copy_kernel(const LaunchContext&, const Elementwise<2>& e) {
  const auto from = [&]<class From>() { map<To, From>(e, [](From x) { return convert<To>(x); }); };
  if (e.dtypes[0] == e.dtypes[1]) {
    switch (dtype_size(e.dtypes[0])) {
      case 1:
        return copy_bits<std::uint8_t>(e);
      case 2:
        return copy_bits<std::uint16_t>(e);
      case 4:
        return copy_bits<std::uint32_t>(e);
      default:
        return copy_bits<std::uint64_t>(e);
    }
  }
  switch (e.dtypes[1]) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return from.template operator()<float>();
    case DType::f64:
      return from.template operator()<double>();
    case DType::i64:
      return from.template operator()<std::int64_t>();
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u16:
      return from.template operator()<std::int32_t>();
    case DType::u8:
      return from.template operator()<std::uint8_t>();
    case DType::boolean:
      return from.template operator()<bool>();
  }
}

template <class C>
void fill_kernel(const LaunchContext&, const FillArgs& a) {
  map<C>(a.out, [c = convert_scalar<C>(a.value)]() { return c; });
}

const bool filled = for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool,
                              std::int16_t, std::int8_t, std::uint16_t>([]<class T>() {
  copy.set(DeviceType::cpu, dtype_of<T>, &copy_kernel<Compute<T>>);
  fill.set(DeviceType::cpu, dtype_of<T>, &fill_kernel<Compute<T>>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
