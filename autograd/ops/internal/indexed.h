#pragma once
// Selects elements of a tensor by index tensors, and reads, writes and combines them. All operations of
// autograd/ops/index.h and their gradients are built on these functions. read_at(), write_at() and
// combine_at() record nothing.
#include <utility>
#include <vector>

#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops/internal/parts.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/ops/index.h"

namespace tapestry::autograd {

/// Makes a view: takes a part of one dimension, or inserts a dimension of size 1.
struct ViewStep {
  Part part;
  bool inserts = false;  ///< inserts dimension part.dim
};

/// Says which elements of a tensor x an operation reads or changes. `steps` lead from x to a view of it. The
/// index tensors select elements of that view.
struct Selection {
  struct Index {
    Tensor values;  ///< i64, with as many dimensions as `sizes`, each of which has that size or 1
    int dim;        ///< the dimension of the view that the values are indices of
  };
  std::vector<ViewStep> steps;
  Shape sizes;  ///< of the selected elements
  Shape dims;   ///< dims[i] is the dimension of the view that dimension i of `sizes` runs along, or -1
  std::vector<Index> index;  ///< empty if the steps alone select the elements
  bool wraps = false;        ///< negative indices count from the end
  bool unique = false;       ///< no element is selected twice
};

/// A Selection whose index tensors are saved for backward.
class SavedSelection {
 public:
  explicit SavedSelection(const Selection& s);
  Selection restore(const Backward& b) const;

 private:
  Selection rest_;  // without the values
  std::vector<SavedTensor> values_;
};

/// The view of x that the steps lead to.
Tensor stepped(const Tensor& x, const std::vector<ViewStep>& steps);

/// Copies the selected elements of x to y, which has shape s.sizes. `op` is the name in the IndexError for an
/// index out of range, or null if the indices have been checked before.
void read_at(const char* op, const Tensor& x, const Selection& s, const Tensor& y);
/// Writes y, which has shape s.sizes or broadcasts to it, to the selected elements of x. If an element is
/// selected several times, it gets the last value.
void write_at(const char* op, const Tensor& x, const Selection& s, const Tensor& y);
/// Combines the selected elements of x with y, in order. x has the accumulation dtype of y's dtype.
void combine_at(const char* op, kernels::Combine how, const Tensor& x, const Selection& s, const Tensor& y);

/// `value` as a tensor of x's dtype that broadcasts to all shapes.
Tensor element_like(const Op& op, const Tensor& x, const Scalar& value);

/// The selected elements as a new tensor of shape `sizes`, which has as many elements as s.sizes. Zeros if
/// s.sizes has no elements. Recorded with the input x. The indices are checked.
Tensor taken(const Op& op, const Tensor& x, const Selection& s, const Shape& sizes);
/// The same for indices that have been checked.
Tensor taken(const Tensor& x, const Selection& s, const Shape& sizes);
/// The gradient of a tensor of shape `sizes`, computed from the gradient g of its selected elements: a sum
/// over all uses of each element. Recorded with the input g.
Tensor taken_backward(const Tensor& g, const Selection& s, const Shape& sizes);
/// The gradient of a tensor of shape `sizes`, computed from the gradient g of its view that the steps lead
/// to. Recorded with the input g.
Tensor stepped_backward(const Tensor& g, const std::vector<ViewStep>& steps, const Shape& sizes);
/// A copy of x in which the selected elements are `value`. Recorded with the input x.
Tensor filled_at(const Tensor& x, const Selection& s, const Scalar& value);

/// A copy of x with y written to the selected elements. Recorded with the inputs x and y.
Tensor put_recorded(const Op& op, const Tensor& x, const Selection& s, const Tensor& y);
/// A copy of x with y added to the selected elements. Recorded with the inputs x and y.
Tensor add_recorded(const Op& op, const Tensor& x, const Selection& s, const Tensor& y);
/// The same in place.
void put_in_place(const Op& op, const Tensor& x, const Selection& s, const Tensor& y);
void add_in_place(const Op& op, const Tensor& x, const Selection& s, const Tensor& y);

/// `t`, or a copy of it if it shares memory with x, which is about to change.
Tensor without_overlap(const Tensor& x, const Tensor& t);
/// `s`, in which each index tensor that shares memory with x is replaced by a copy.
Selection apart_from(const Tensor& x, Selection s);

/// Checks an index tensor of an integer dtype, and returns it as i64. Throws ValueError if it is undefined,
/// TypeError for another dtype, and DeviceError if it is not on x's device.
Tensor checked_index(const char* op, const Tensor& x, const Tensor& index);
/// Throws TypeError or DeviceError unless `values`, which messages call `what`, has x's dtype and device.
void check_values(const char* op, const Tensor& x, const Tensor& values, const char* what);

/// The coordinates of the elements of x that are not 0, in row-major order, as i64. A matrix of shape
/// (dimensions, number of elements) if `by_dim`, else its transpose. Waits for the device.
Tensor true_coordinates(const Tensor& x, bool by_dim);

}  // namespace tapestry::autograd
