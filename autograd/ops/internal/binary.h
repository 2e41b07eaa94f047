#pragma once
// Runs and records the operations of two tensors, or of a tensor and a number, that have a row
// (kernels/ops/pointwise.h). All of them broadcast, and promote dtypes as in PyTorch.
#include <array>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/copy.h"
#include "tapestry/autograd/ops/internal/composed.h"
#include "tapestry/kernels/ops/copy.h"
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::autograd {

using BinarySlot = kernels::Slot<kernels::Elementwise<3>>;
using NumberSlot = kernels::Slot<kernels::PointwiseArgs<2, 1>>;

/// Runs the kernel on a and b, converted to `dtype`, over their broadcast shape.
Tensor run_binary(const Op& op, const BinarySlot& kernel, const Tensor& a, const Tensor& b, DType dtype,
                  DType result);
/// Runs the kernel on x, converted to `dtype`, and s.
Tensor run_with_number(const NumberSlot& kernel, const Tensor& x, const Scalar& s, DType dtype, DType result);
/// Throws ValueError unless `other` broadcasts to the shape of `target`.
void check_broadcasts_to(const Op& op, const Tensor& target, const Tensor& other);

// ---- dtypes

/// The dtype that the kernel computes operands of dtype `t` in.
template <class Row>
DType kernel_dtype(DType t) {
  return Row::kTakes == kernels::Takes::all_as_f32 && !is_floating(t) ? DType::f32 : t;
}
template <class Row>
DType result_dtype(DType kernel) {
  return Row::kGivesBool ? DType::boolean : kernel;
}
template <class Row>
DType checked_dtype(const Op& op, const Tensor& a, const Tensor& b) {
  check_operands(op, a, b);
  if constexpr (kernels::taken_dtypes(Row::kTakes) != kAllDTypes) {
    op.check_dtype(a.dtype());
    op.check_dtype(b.dtype());
  }
  return kernel_dtype<Row>(promoted(a, b));
}
template <class Row>
DType checked_dtype(const Op& op, const Tensor& x, const Scalar& s) {
  tapestry::detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  // Comparisons convert the number and not the tensor, so the number need not fit the tensor's dtype.
  if (Row::kGivesBool && !s.is_real()) return x.dtype();
  return kernel_dtype<Row>(s.promote_with(x.dtype()));
}

// ---- gradients

/// The operands that the gradients A and B of an operation name, besides dy.
template <class A, class B>
constexpr auto named_operands() {
  using kernels::Of;
  constexpr auto named = [](Of operand) { return A::uses(operand) || B::uses(operand); };
  std::array<Of, named(Of::a) + named(Of::b) + named(Of::y)> operands{};
  std::size_t n = 0;
  for (const Of operand : {Of::a, Of::b, Of::y})
    if (named(operand)) operands[n++] = operand;
  return operands;
}
/// Saves these operands for backward.
template <class A, class B>
class SavedOperands {
  using Of = kernels::Of;
  static constexpr auto kOperands = named_operands<A, B>();

 public:
  SavedOperands(const Tensor& a, const Tensor& b, const Tensor& y)
      : SavedOperands(a, b, y, std::make_index_sequence<kOperands.size()>()) {}
  const SavedTensor& operator[](Of operand) const {
    std::size_t i = 0;
    while (kOperands[i] != operand) ++i;
    return tensors_[i];
  }

 private:
  template <std::size_t... I>
  SavedOperands(const Tensor& a, const Tensor& b, const Tensor& y, std::index_sequence<I...>)
      : tensors_{saved<kOperands[I]>(a, b, y)...} {}
  // Saves the operand only if it is named by the gradient of an input that needs a gradient.
  template <Of kOperand>
  static SavedTensor saved(const Tensor& a, const Tensor& b, const Tensor& y) {
    if (!(A::uses(kOperand) && needs_grad(a)) && !(B::uses(kOperand) && needs_grad(b))) return {};
    if constexpr (kOperand == Of::y) return save_output(y);
    else return save(kOperand == Of::a ? a : b);
  }

  std::array<SavedTensor, kOperands.size()> tensors_;
};

/// Computes a gradient in the shape and dtype of the result.
template <class Saved, class Row, kernels::Of... kOf>
Tensor gradient_of(kernels::ValueOf<Row, kernels::Of::dy, kOf...>, const Backward& g, const Saved& saved) {
  const Tensor& dy = g.grad();
  if (g.create_graph()) return composed<Row>(dy, g.saved(saved[kOf]).to(dy.dtype())...);
  return apply(kernels::slot<Row>, dy, converted(g.saved(saved[kOf]), dy.dtype())...);
}
template <class Saved>
Tensor gradient_of(kernels::Dy, const Backward& g, const Saved&) {
  return g.grad();
}

/// Records y = Row(a, b).
template <class Row>
void record_row(const Op& op, const Tensor& y, const Tensor& a, const Tensor& b) {
  using A = kernels::GradientAOf<Row>;
  using B = kernels::GradientBOf<Row>;
  record_binary(op, y, a, b, [saved = SavedOperands<A, B>(a, b, y)](const Backward& g, std::uint32_t input) {
    return input == 0 ? gradient_of(A(), g, saved) : gradient_of(B(), g, saved);
  });
}

/// Computes a gradient of which one operand is a number, by operations. operand(of) gives the operand.
template <class Operand, class Row, kernels::Of... kOf>
Tensor composed_with(kernels::ValueOf<Row, kernels::Of::dy, kOf...>, const Tensor& dy,
                     const Operand& operand) {
  return composed<Row>(dy, operand(std::integral_constant<kernels::Of, kOf>())...);
}

/// Records y = Row(x, s), or y = Row(s, x) if kNumber, the position of the number, is 0.
template <class Row, int kNumber>
void record_row_with(const Op& op, const Tensor& y, const Tensor& x, const Scalar& s) {
  using Of = kernels::Of;
  using G = std::conditional_t<kNumber == 0, kernels::GradientBOf<Row>, kernels::GradientAOf<Row>>;
  if constexpr (std::is_same_v<G, kernels::Dy>) {
    record(op, y, {&x}, [](Backward& g) { g.set(0, g.grad()); });
  } else {
    constexpr Of number = kNumber == 0 ? Of::a : Of::b, tensor = kNumber == 0 ? Of::b : Of::a;
    static_assert(!G::uses(Of::y), "a gradient with a number cannot name y yet");
    std::array<SavedTensor, G::uses(tensor) ? 1 : 0> saved;
    if constexpr (G::uses(tensor)) saved[0] = save(x);
    record(op, y, {&x}, [s, saved = std::move(saved)](Backward& g) {
      if (g.create_graph()) {
        const auto operand = [&]<Of kOf>(std::integral_constant<Of, kOf>) {
          if constexpr (kOf == tensor) return g.saved(saved[0]);
          else return s;
        };
        return g.set(0, composed_with(G(), g.grad(), operand));
      }
      const auto run = [&](const auto&... t) {
        if constexpr (G::uses(number)) {
          using WithNumber = kernels::WithNumber<typename G::Row, G::position(number)>;
          return apply_with(kernels::slot<WithNumber>, std::tuple(s), g.grad(), t...);
        } else {
          return apply(kernels::slot<typename G::Row>, g.grad(), t...);
        }
      };
      if constexpr (G::uses(tensor)) g.set(0, run(g.saved(saved[0])));
      else g.set(0, run());
    });
  }
}

// ---- operations

template <class Row>
Tensor binary(const Tensor& a, const Tensor& b, const Op& op) {
  if constexpr (Row::kCastOnGpus != CastPolicy::none)
    if (const Autocast cast(op, a, b); cast) return binary<Row>(cast(a), cast(b), op);
  const DType dtype = checked_dtype<Row>(op, a, b);
  Tensor y = run_binary(op, kernels::slot<Row>, a, b, dtype, result_dtype<Row>(dtype));
  if constexpr (kernels::kDifferentiable<Row>)
    if (recording(a, b)) record_row<Row>(op, y, a, b);
  if (y.device().is_meta()) [[unlikely]]
    defer_result(op.name, y, a, b, [](const Tensor& a, const Tensor& b) { return binary<Row>(a, b); });
  return y;
}
/// Computes Row(x, s), or Row(s, x) if kNumber, the position of the number, is 0.
template <class Row, int kNumber>
Tensor binary_with(const Tensor& x, const Scalar& s) {
  const Op& op = row_op<Row>;
  const DType dtype = checked_dtype<Row>(op, x, s);
  Tensor y = run_with_number(kernels::slot<kernels::WithNumber<Row, kNumber>>, x, s, dtype,
                             result_dtype<Row>(dtype));
  if constexpr (kernels::kDifferentiable<Row>)
    if (recording(x)) record_row_with<Row, kNumber>(op, y, x, s);
  if (y.device().is_meta()) [[unlikely]]
    defer_result(op.name, y, x, s,
                 [](const Tensor& x, const Scalar& s) { return binary_with<Row, kNumber>(x, s); });
  return y;
}

/// True if a gradient of the operation names its first operand.
template <class Row>
constexpr bool gradient_uses_a() {
  if constexpr (!kernels::kDifferentiable<Row>) return false;
  else
    return kernels::GradientAOf<Row>::uses(kernels::Of::a) || kernels::GradientBOf<Row>::uses(kernels::Of::a);
}
/// Changes target to Row(target, other).
template <class Row>
const Tensor& binary_in_place(const Tensor& target, const Tensor& other) {
  const Op& op = row_op<Row>;
  const DType dtype = checked_dtype<Row>(op, target, other);
  const BinarySlot& kernel = kernels::slot<Row>;
  check_stores(op, target, dtype);
  check_broadcasts_to(op, target, other);
  in_place(
      op, target, {&other},
      [&] {
        if (target.device().is_meta()) {
          defer_change(op.name, target, {other},
                       [](const Tensor& t, const std::vector<Tensor>& v) { binary_in_place<Row>(t, v[0]); });
        } else if (target.dtype() == dtype) {
          const Tensor b = operand_for(target, other, dtype);
          kernel(target.device(), dtype, planned(target, target, b));
        } else {
          const Tensor y = run_binary(op, kernel, target, other, dtype, dtype);
          kernels::copy(target.device(), target.dtype(), planned(target, y));
        }
      },
      [&](const Tensor& old) {
        // A gradient that names a needs the old elements, so these are copied before they are overwritten.
        constexpr bool copies = gradient_uses_a<Row>();
        const Tensor a = copies ? clone(old) : old;
        const Tensor y = binary<Row>(a, copies && other.is_same(target) ? a : other);
        return to(y, target.device(), target.dtype());
      });
  return target;
}
/// Changes target to Row(target, s).
template <class Row>
const Tensor& binary_in_place(const Tensor& target, const Scalar& s) {
  const Op& op = row_op<Row>;
  const DType dtype = checked_dtype<Row>(op, target, s);
  check_stores(op, target, dtype);
  in_place(
      op, target, {},
      [&] {
        if (target.device().is_meta())
          return defer_change(op.name, target, {}, [s](const Tensor& t, const std::vector<Tensor>&) {
            binary_in_place<Row>(t, s);
          });
        kernels::slot<kernels::WithNumber<Row, 1>>(target.device(), dtype, {planned(target, target), {s}});
      },
      [&](const Tensor& old) {
        constexpr bool copies = kernels::GradientAOf<Row>::uses(kernels::Of::a);
        return binary_with<Row, 1>(copies ? clone(old) : old, s);
      });
  return target;
}

}  // namespace tapestry::autograd
