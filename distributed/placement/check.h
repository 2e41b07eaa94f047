#pragma once
// Checks how a divided model's tensors are placed, from its forward pass alone. A conversion that is missing
// gives wrong gradients behind a loss that looks right; the check makes it an error that names the operation,
// the module, the axis and the conversion.
//
//   const PlacementCheck on;                      // or TAPESTRY_CHECK_PLACEMENT=1 for a whole program
//   const Mesh mesh(fake_process_group(0, 2), {{"tensor", 2}});  // no peers are needed
//   place_parameters(model, mesh["tensor"]);
//   set_placement(x, mesh["tensor"], Placement::invariant());
//   require_placement(loss_of(model(x)), mesh["tensor"], Placement::invariant());
//
// Each recorded operation computes the placements of its outputs from those of its inputs, by the rule of its
// name (README.md). So the check follows what grad mode records. A tensor that needs no gradient and has no
// placement, such as a mask made in forward(), is a constant: it is taken to be right on each rank. Backward
// needs no check: the rules guarantee it. While nothing is checked, placements are neither kept nor computed.
#include <functional>
#include <optional>
#include <string>

#include "tapestry/core/error.h"
#include "tapestry/core/tensor.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/distributed/placement/placement.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

/// A tensor is not placed as an operation or a caller needs it.
class PlacementError : public ValueError {
  using ValueError::ValueError;
};

/// Turns the check on or off in this scope, for this thread. Guards nest; the inner one counts. Outside of
/// guards, the check is on if TAPESTRY_CHECK_PLACEMENT is 1.
class PlacementCheck {
 public:
  explicit PlacementCheck(bool on = true);
  ~PlacementCheck();
  PlacementCheck(const PlacementCheck&) = delete;
  PlacementCheck& operator=(const PlacementCheck&) = delete;

 private:
  int outer_;
};
/// The same for all threads outside of guards, instead of TAPESTRY_CHECK_PLACEMENT.
void set_placement_check(bool on);
bool checks_placement();

/// Says how a leaf (a parameter, or a tensor of data) is placed along `axis`. Does nothing while nothing is
/// checked, or if the axis has size 1. Throws PlacementError for the result of an operation, whose placement
/// follows from its inputs, IndexError for a dimension that `leaf` does not have, and ValueError if the axis
/// is over devices.
void set_placement(const Tensor& leaf, const Axis& axis, Placement placement);
/// Says it of all parameters of `module`. One that the axis' ranks divide while it is used (nn::Layout) is
/// sharded along its cut, or varying if the cut has blocks: parts of several blocks are no part of the whole.
/// A cut that the full tensor undoes, such as that of fully_shard(), does not count. Others are `copied`.
/// Call it again when tensors were replaced, for example by Module::to().
void place_parameters(const nn::Module& module, const Axis& axis, Placement copied = Placement::invariant());

/// How the tensor is placed, or nullopt if it has no placement along the axis.
std::optional<Placement> placement_of(const Tensor& tensor, const Axis& axis);
/// Throws PlacementError unless the tensor is placed so. Does nothing while nothing is checked, or if the
/// axis has size 1. The loss must be invariant along each axis whose gradients no strategy sums.
void require_placement(const Tensor& tensor, const Axis& axis, Placement placement);

class PlacementCall;
/// Returns the placement of an operation's outputs, or throws by PlacementCall's functions.
using PlacementRule = std::function<Placement(const PlacementCall&)>;
/// Gives a rule to the operation or autograd::Function of this name (distributed/placement/rule.h), and
/// replaces the one it has. Thread-safe.
void set_placement_rule(const std::string& op, PlacementRule rule);
bool has_placement_rule(const std::string& op);

namespace impl {

/// Used by convert(): checks that `x` is placed as `from`, and pauses the check until it is destroyed. With
/// `if_placed`, an `x` without a placement along the axis is not checked along it, and neither is the result.
class CheckedConversion {
 public:
  CheckedConversion(const Tensor& x, const Axis& axis, Placement from, Placement to, bool if_placed = false);
  ~CheckedConversion();
  CheckedConversion(const CheckedConversion&) = delete;
  CheckedConversion& operator=(const CheckedConversion&) = delete;
  /// `y`, the converted x, with its placement along all axes.
  Tensor result(Tensor y) const;

 private:
  const bool on_;
  const Tensor x_;
  const Axis& axis_;
  const Placement to_;
  bool places_ = true;  // the result gets a placement along the axis
};

}  // namespace impl
}  // namespace tapestry::distributed
