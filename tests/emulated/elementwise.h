#pragma once
// Runs elementwise kernels on operands in all memory layouts and compares them with the CPU's kernels.
#include <cmath>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

#include "tapestry/kernels/view.h"
#include "tapestry/tapestry.h"
#include "tests/emulated/memory.h"

namespace emulated {

using tapestry::DType;
using tapestry::Shape;
using tapestry::Tensor;
using tapestry::kernels::Elementwise;

/// Returns `values` in one of kLayouts memory layouts: 0 dense, 1 transposed, 2 every second element, 3
/// broadcast along the first dimension, 4 broadcast along the last, 5 misaligned by one element, 6 a single
/// element broadcast to all. Layouts 3, 4 and 6 repeat some of the values.
inline constexpr int kLayouts = 7;
inline Tensor laid_out(const Tensor& values, int layout) {
  const Shape sizes = values.sizes();
  const int last = values.dim() - 1;
  if (values.dim() == 0 || values.numel() == 0) return values;
  switch (layout) {
    case 1:
      return values.transpose(0, last).contiguous().transpose(0, last);
    case 2: {
      Shape wide = sizes;
      wide[last] *= 2;
      Tensor t = tapestry::zeros(wide, values.dtype()).slice(last, {}, {}, 2);
      t.copy_(values);
      return t;
    }
    case 3:
      return values.narrow(0, 0, 1).contiguous().expand(sizes);
    case 4:
      return values.narrow(last, 0, 1).contiguous().expand(sizes);
    case 5: {
      Tensor t =
          tapestry::zeros({values.numel() + 1}, values.dtype()).narrow(0, 1, values.numel()).reshape(sizes);
      t.copy_(values);
      return t;
    }
    case 6:
      return values.reshape({values.numel()}).narrow(0, 0, 1).contiguous().expand(sizes);
    default:
      return values;
  }
}

/// The allowed error of a result: `units` unit roundoffs of the result in its dtype, plus `absolute` unit
/// roundoffs of the number 1 in f32.
struct Tolerance {
  double units = 0, absolute = 0;
  Tolerance(double u = 0, double a = 0) : units(u), absolute(a) {}  // NOLINT
};
inline bool close(double got, double want, const Tolerance& error, DType dtype) {
  if (std::isnan(want)) return std::isnan(got);
  if (got == want) return true;
  const double unit = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
  return std::abs(got - want) <= error.units * (unit * std::abs(want) + 0x1p-126) + error.absolute * 0x1p-24;
}

/// Runs `cpu` and `gpu` on the same operands, the first of which is the output, and compares the outputs.
template <int N, class Cpu, class Gpu>
void compare(const Tensor& out, const Tensor* const (&operands)[N], const Tolerance& error, const Cpu& cpu,
             const Gpu& gpu) {
  const Tensor before = out.clone();
  cpu(tapestry::kernels::plan(operands));
  const Tensor want = out.clone();
  in_each_order([&] {
    Tensor(out).copy_(before);
    gpu(tapestry::kernels::plan(operands));
    const Tensor got = out.to(DType::f64).contiguous(), expected = want.to(DType::f64).contiguous();
    std::int64_t bad = 0;
    for (std::int64_t i = 0; i < got.numel(); ++i) {
      const double a = got.data<double>()[i], b = expected.data<double>()[i];
      if (close(a, b, error, out.dtype()) || ++bad > 3) continue;
      CAPTURE(i, a, b);
      CHECK(close(a, b, error, out.dtype()));
    }
    CHECK(bad == 0);
  });
}

}  // namespace emulated
