#pragma once
// Deferred elements: a tensor on the meta device remembers how its elements were set, so that they can be
// computed later, on another device.
//
//   const DeviceGuard guard("meta");
//   const Tensor w = empty({4096, 4096}).uniform_(-0.1, 0.1);  // takes no memory
//   const Tensor real = materialize(w, "cpu");                 // the elements that uniform_ would have
//   written
//
// Remembered are: the functions that create tensors (zeros, full, arange, tensor, randn, ...), the changes in
// place that set or change all elements of a tensor or a view by numbers (fill_, zero_, uniform_, normal_,
// add_, mul_, ...), copies (copy_, clone, contiguous, to(dtype)), and the pointwise functions of one and two
// tensors. A random fill reserves its numbers of the generator when it is called, so the elements do not
// depend on when they are computed. The idea is that of torchdistX's deferred_init.
#include <functional>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// Returns a tensor on `device` with the shape, strides, dtype and elements of `t`, a tensor on the meta
/// device: bit for bit those that the same operations would have given on that device. Views that share a
/// storage do not share the storages of their results. Not recorded; the result requires no gradient. Throws
/// ValueError, which names the operation, if an operation has changed `t` that cannot be repeated, and
/// DeviceError if `t` is not on the meta device, or `device` is.
Tensor materialize(const Tensor& t, Device device);
/// Writes the elements of `t`, a tensor on the meta device, to `destination`, a tensor of the same shape on
/// any other device. If both are dense in row-major order and have the same dtype, this takes no memory of
/// its own beyond that of single operations. Throws as materialize() does, and ValueError for another shape;
/// then `destination` is unchanged.
void materialize_into(const Tensor& t, const Tensor& destination);

namespace autograd {

/// Returns an empty string if materialize(t) can compute the elements, else the reason why not, as a clause.
std::string why_not_materialized(const Tensor& t);

/// Remembers that `fill(t)` sets all elements of `target`, which is on the meta device, by a t with target's
/// shape, strides and dtype on another device. `op` must be a literal.
void defer_fill(const char* op, const Tensor& target, std::function<void(const Tensor& t)> fill);
/// A function that sets or changes the elements of t. `values` are the elements of other tensors, on t's
/// device.
using ElementsFrom = std::function<void(const Tensor& t, const std::vector<Tensor>& values)>;
/// Remembers that `set(t, values)` sets all elements of `target`. `values` are the elements that `inputs`
/// have now. If those of an input are unknown, so are target's. Inputs on other devices are kept, and must
/// not be changed later.
void defer_values(const char* op, const Tensor& target, const std::vector<Tensor>& inputs, ElementsFrom set);
/// Remembers that `change(t, values)` changes the elements that `target` has so far.
void defer_change(const char* op, const Tensor& target, const std::vector<Tensor>& inputs,
                  ElementsFrom change);

/// Calls fill(t), or remembers it if t is on the meta device.
template <class Fill>
void fill_or_defer(const char* op, const Tensor& t, const Fill& fill) {
  if (t.device().is_meta()) [[unlikely]]
    defer_fill(op, t, fill);
  else fill(t);
}

/// Remembers y, the new result of an operation on the meta device, as fn(x...) or fn(x, s).
void defer_result(const char* op, const Tensor& y, const Tensor& x, const Tensor& other,
                  Tensor (*fn)(const Tensor&, const Tensor&));
void defer_result(const char* op, const Tensor& y, const Tensor& x, const Scalar& s,
                  Tensor (*fn)(const Tensor&, const Scalar&));

/// The number of changes of a meta tensor's storage that were remembered so far.
std::uint64_t deferred_changes(const Tensor& t);
/// Called after a change of `target` in place, with the number from before it. If the change did not remember
/// itself, materialize() of this storage throws from now on, and names `op`.
void finish_meta_change(const char* op, const Tensor& target, std::uint64_t before);

}  // namespace autograd
}  // namespace tapestry
