#pragma once
// Helpers that the operations share: checks, type promotion, the layout of results, unrecorded copies,
// in-place changes, calls of pointwise kernels, operands saved for backward, and gradients of broadcast
// operands.
#include <cstddef>
#include <initializer_list>
#include <tuple>
#include <type_traits>

#include "tapestry/autograd/deferred.h"
#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::autograd {

/// What the gradients of a row allow.
template <class Row>
constexpr Grad grad_of_row() {
  if (!kernels::kDifferentiable<Row>) return Grad::none;
  return Row::kTwice ? Grad::twice : Grad::differentiable;
}

/// The Op of a row.
template <class Row>
inline const Op row_op{Row::kSlotName.text, grad_of_row<Row>(), kernels::taken_dtypes(Row::kTakes),
                       Row::kCastOnGpus};

/// Returns the iteration space of an elementwise kernel with these operands, as planned by kernels::plan().
template <class... T>
inline auto planned(const Tensor& out, const T&... in) {
  const Tensor* const operands[] = {&out, &in...};
  return kernels::plan(operands);
}

/// Throws ValueError if an operand is undefined, and DeviceError if the operands are on different devices.
inline void check_operands(const Op& op, const Tensor& a, const Tensor& b) {
  tapestry::detail::check_defined(op.name, a, "the first operand");
  tapestry::detail::check_defined(op.name, b, "the second operand");
  check<DeviceError>(a.device() == b.device(), "[", op.name, "] operands are on ", a.device(), " and on ",
                     b.device(), "; move one with .to()");
}

/// Throws TypeError or DeviceError unless the operand `t`, which messages call `what`, has x's dtype and
/// device. An undefined operand passes.
inline void check_matches(const char* op, const Tensor& x, const Tensor& t, const char* what) {
  if (!t.defined()) return;
  check<TypeError>(t.dtype() == x.dtype(), "[", op, "] ", what, " has dtype ", t.dtype(),
                   " but the input has ", x.dtype(), "; convert one with to(dtype)");
  check<DeviceError>(t.device() == x.device(), "[", op, "] ", what, " is on ", t.device(),
                     " but the input is on ", x.device(), "; move one with to(device)");
}

/// Throws ValueError unless the operand `t` is 1-d with n elements. An undefined operand passes.
inline void check_vector(const char* op, const Tensor& t, const char* what, std::int64_t n) {
  check(!t.defined() || (t.dim() == 1 && t.size(0) == n), "[", op, "] ", what, " has shape ",
        t.defined() ? t.sizes() : Shape(), ", expected ", Shape(n));
}

/// Saves `t` for backward if `input` needs a gradient. Use it for a tensor that only the gradient of `input`
/// reads.
inline SavedTensor save_if(const Tensor& input, const Tensor& t) {
  return input.defined() && needs_grad(input) ? save(t) : SavedTensor();
}

/// contiguous() without a record on the tape, for an operation that records itself.
inline Tensor raw_contiguous(const Tensor& t, MemoryFormat format = MemoryFormat::contiguous) {
  if (t.is_contiguous(format)) return t;
  const NoGradGuard guard;
  return contiguous(t, format);
}

/// `t` as a dense tensor; an undefined tensor stays undefined. Not recorded.
inline Tensor contiguous_or_undefined(const Tensor& t) { return t.defined() ? raw_contiguous(t) : t; }

/// The dtype that kernels accumulate in and keep between their passes: f32 for f16 and bf16, else `dtype`
/// itself.
inline DType accumulation_dtype(DType dtype) { return contains(kFullFloats, dtype) ? dtype : DType::f32; }

/// PyTorch's result type of two tensors: a 0-d tensor counts only if its category (bool, integer, real) is
/// above the other's.
DType promoted(const Tensor& a, const Tensor& b);

/// The number as a 0-d tensor on x's device, in the dtype that the result of an operation on both has.
Tensor number_like(const Scalar& number, const Tensor& x);

/// The number as an element of `dtype`, converted as PyTorch converts the argument of full() and fill_():
/// reals are truncated for integers, a negative integer wraps around in an unsigned dtype, and f16 and bf16
/// round large numbers to an infinity. Throws ValueError, naming `op`, if the dtype cannot hold the number,
/// such as NaN or 300 in a u8, or 1e39 in an f32.
Scalar as_element(const char* op, const Scalar& number, DType dtype);

/// The range in which a dtype represents every integer. Floats also hold larger integers, with gaps.
struct IntegerRange {
  std::int64_t lowest, highest;
};
IntegerRange integer_range(DType dtype);

/// An uninitialised tensor on the operands' device. It takes over the layout of the operands that have its
/// shape if they are dense and agree. Otherwise it is row-major.
Tensor result_like(const Shape& sizes, DType dtype, std::initializer_list<const Tensor*> operands);

/// `x` in another dtype, not recorded; `x` itself if it has that dtype.
Tensor converted(Tensor x, DType dtype);
/// Writes x, which is broadcast and converted, to y. Both are on one device. Nothing is recorded.
void copy_elements(const Tensor& y, const Tensor& x);

/// Returns `x` converted to `dtype`, as an operand of an in-place change of `target`. The result is a copy if
/// x and target overlap partly. It may share all its elements with target.
Tensor operand_for(const Tensor& target, const Tensor& x, DType dtype);

/// Throws TypeError unless a result of type `dtype` can be stored in target. Real numbers cannot be stored in
/// integers, nor integers in bools.
void check_stores(const Op& op, const Tensor& target, DType dtype);

/// Runs a kernel slot on the operands and returns the result, a new tensor with the first operand's shape and
/// dtype.
template <int kOperands, class... T>
Tensor apply(const kernels::Slot<kernels::Elementwise<kOperands>>& slot, const Tensor& first,
             const T&... rest) {
  Tensor y = result_like(first.sizes(), first.dtype(), {&first, &rest...});
  slot(y.device(), y.dtype(), planned(y, first, rest...));
  return y;
}
/// Runs the slot as apply() does, and passes it the further arguments `args...` after the operands.
template <class Slot, class... Args, class... T>
Tensor apply_with(const Slot& slot, const std::tuple<Args...>& args, const Tensor& first, const T&... rest) {
  Tensor y = result_like(first.sizes(), first.dtype(), {&first, &rest...});
  std::apply(
      [&](const Args&... a) {
        slot(y.device(), y.dtype(), {planned(y, first, rest...), a...});
      },
      args);
  return y;
}

/// The gradient of an operand that was broadcast from `sizes` and promoted from `dtype`: `grad` summed to
/// that shape and converted to that dtype.
Tensor reduce_to(const Tensor& grad, const Shape& sizes, DType dtype);

/// True if elements of `t` may share memory, as those of an expanded tensor do.
bool elements_overlap(const Tensor& t);
/// Throws ValueError if elements of `target` share memory, as those of an expanded tensor do. An in-place
/// change of one element would change others.
void check_writable(const Op& op, const Tensor& target);

/// True if two tensors may share memory, but do not have the same elements in the same order.
bool overlap_partly(const Tensor& a, const Tensor& b);

/// Changes `target` in place. `direct()` runs the kernel on target's own elements. If the tape must record
/// the change, `fresh(old)` computes the result out of place instead, where `old` is target before the
/// change.
template <class Direct, class Fresh>
void in_place(const Op& op, const Tensor& target, std::initializer_list<const Tensor*> others, Direct direct,
              Fresh fresh) {
  const bool record = prepare_in_place(op, target, others);
  check_writable(op, target);
  const bool meta = target.device().is_meta();
  const std::uint64_t before = meta ? deferred_changes(target) : 0;
  if (record) {
    finish_in_place(target, fresh(alias(target)));
  } else {
    direct();
    target.storage()->bump_version();
  }
  if (meta) [[unlikely]]
    finish_meta_change(op.name, target, before);
}

/// Changes `target` to f(target), for an operation that is computed by other operations. f records what it
/// computes. `others` are the other tensors that f reads. Throws ValueError if f's result has another shape,
/// and TypeError if target cannot hold its dtype.
template <class F>
const Tensor& compute_in_place(const Op& op, const Tensor& target,
                               std::initializer_list<const Tensor*> others, const F& f) {
  const auto fitting = [&](const Tensor& y) {
    check_stores(op, target, y.dtype());
    check(y.sizes() == target.sizes(), "[", op.name, "] the result has shape ", y.sizes(),
          ", but the tensor changed in place has ", target.sizes(), "; use the out-of-place operation");
    return y;
  };
  in_place(
      op, target, others,
      [&] {
        const NoGradGuard guard;
        target.copy_(fitting(f(target)));
      },
      // A gradient may need the old elements. A result without history has the gradient 0.
      [&](const Tensor& old) {
        const Tensor y = fitting(f(tapestry::clone(old))).to(target.dtype());
        if (!needs_grad(y)) record(op, y, {&old}, [](Backward&) {});
        return y;
      });
  return target;
}

/// Changes `target` in place where the result does not depend on the old elements: `fill(t)` writes all of t.
/// The old history gets no gradient.
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

/// A zero of dy's dtype that broadcasts to all shapes: the gradient where an input has no effect.
Tensor none_of(const Tensor& dy);

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
