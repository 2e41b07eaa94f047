#pragma once
// What operations share: checks, type promotion, the layout of results, gradients of broadcast operands.
// Not in tapestry.h: for the .cpp files here.
#include <initializer_list>

#include "tapestry/autograd/op.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/view.h"

namespace tapestry::autograd {

/// kernels::plan() of tensors: planned(out, a, b).
template <class... T>
inline auto planned(const Tensor& out, const T&... in) {
  const Tensor* const operands[] = {&out, &in...};
  return kernels::plan(operands);
}

/// Throws ValueError if one is undefined, DeviceError if they are on different devices.
inline void check_operands(const Op& op, const Tensor& a, const Tensor& b) {
  tapestry::detail::check_defined(op.name, a, "the first operand");
  tapestry::detail::check_defined(op.name, b, "the second operand");
  check<DeviceError>(a.device() == b.device(), "[", op.name, "] operands are on ", a.device(), " and on ",
                     b.device(), "; move one with .to()");
}

/// PyTorch's result type of two tensors: a 0-d tensor counts only if its category (bool, integer, real) is
/// above the other's.
DType promoted(const Tensor& a, const Tensor& b);

/// The integers that a dtype of numbers holds, all of them: floats have gaps beyond.
struct IntegerRange {
  std::int64_t lowest, highest;
};
IntegerRange integer_range(DType dtype);

/// Uninitialised, on the operands' device. Its layout is that of the operands that have its shape, if they
/// are dense and agree; else row-major.
Tensor result_like(const Shape& sizes, DType dtype, std::initializer_list<const Tensor*> operands);

/// `x` in another dtype, for the inside of an operation: not recorded; `x` itself if it has it.
Tensor converted(const Tensor& x, DType dtype);

/// `x` converted to `dtype`, in memory that `target` does not share (unless they are the same elements): an
/// operand of a change of target in place.
Tensor operand_for(const Tensor& target, const Tensor& x, DType dtype);

/// Throws TypeError unless a result of type `dtype` can be stored in target: real numbers not in integers,
/// integers not in bools.
void check_stores(const Op& op, const Tensor& target, DType dtype);

/// slot(out, x), slot(out, a, b): out = a new tensor shaped and typed like the first input.
template <class Slot, class... T>
Tensor apply(const Slot& slot, const Tensor& first, const T&... rest) {
  Tensor y = result_like(first.sizes(), first.dtype(), {&first, &rest...});
  slot(y.device(), y.dtype(), planned(y, first, rest...));
  return y;
}

/// The gradient of an operand that was broadcast from `sizes` and promoted from `dtype`: sums and converts
/// back.
Tensor reduce_to(const Tensor& grad, const Shape& sizes, DType dtype);

/// Throws ValueError if elements of `target` share memory (as those of an expanded tensor do): an in-place
/// change of one would change others.
void check_writable(const Op& op, const Tensor& target);

/// True if the two may share memory without being the same elements in the same order.
bool overlap_partly(const Tensor& a, const Tensor& b);

/// An in-place change: `direct()` runs the kernel on target's own elements; where the tape must know,
/// `fresh(old)` computes the result out of place from `old`, which is target before the change.
template <class Direct, class Fresh>
void in_place(const Op& op, const Tensor& target, std::initializer_list<const Tensor*> others, Direct direct,
              Fresh fresh) {
  const bool record = prepare_in_place(op, target, others);
  check_writable(op, target);
  if (record) {
    finish_in_place(target, fresh(alias(target)));
  } else {
    direct();
    target.storage()->bump_version();
  }
}

/// An in-place change whose result does not depend on the old elements: `fill(t)` writes all of t. The old
/// history gets no gradient.
template <class Fill>
void overwrite(const Op& op, const Tensor& target, Fill fill) {
  in_place(
      op, target, {}, [&] { fill(target); },
      [&](const Tensor& old) {
        Tensor y = result_like(old.sizes(), old.dtype(), {&old});
        fill(y);
        record(op, y, {&old}, [](Backward&) {});
        return y;
      });
}

/// Records a binary operation with broadcasting and promotion. `grad_of(backward, i)` gives the gradient of
/// input i in the shape and dtype of the result.
template <class F>
void record_binary(const Op& op, const Tensor& y, const Tensor& a, const Tensor& b, F grad_of) {
  const auto same = [&](const Tensor& t) { return t.dtype() == y.dtype() && t.sizes() == y.sizes(); };
  if (same(a) && same(b)) {
    record(op, y, {&a, &b}, [grad_of = std::move(grad_of)](Backward& backward) {
      for (std::uint32_t i = 0; i < 2; ++i)
        if (backward.needs(i)) backward.set(i, grad_of(backward, i));
    });
  } else {
    struct Like {
      Shape sizes;
      DType dtype;
    };
    record(op, y, {&a, &b},
           [grad_of = std::move(grad_of), to_a = Like{a.sizes(), a.dtype()},
            to_b = Like{b.sizes(), b.dtype()}](Backward& backward) {
             for (std::uint32_t i = 0; i < 2; ++i) {
               const Like& like = i == 0 ? to_a : to_b;
               if (backward.needs(i))
                 backward.set(i, reduce_to(grad_of(backward, i), like.sizes, like.dtype));
             }
           });
  }
}

}  // namespace tapestry::autograd
