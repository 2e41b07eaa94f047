#pragma once
// Rules: how an operation places its outputs. To give one to an operation of your own:
//
//   set_placement_rule("scaled_tanh", [](const PlacementCall& call) { return call.pointwise(); });
//
// A rule sees one axis at a time. Placements are checked in three steps, which most rules combine:
// contributions that are not linear refuse partial operands, invariant operands refuse others, and what
// remains is replicated, varying or sharded.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tapestry/distributed/placement/check.h"

namespace tapestry::autograd {
struct CallDetails;  // autograd/internal/record_observer.h
}

namespace tapestry::distributed {

/// One operand of a call. Without a placement it is a constant: undefined, or equal on all ranks or unknown,
/// and without a gradient.
struct PlacedOperand {
  const Tensor* tensor = nullptr;
  std::optional<Placement> placement;

  bool is(Placement::Kind kind) const { return placement && placement->is(kind); }
  bool is_constant() const { return !placement; }
  bool defined() const { return tensor != nullptr && tensor->defined(); }
};

/// An operation that has run, seen along one axis. At least one operand has a placement.
class PlacementCall {
 public:
  using Kind = Placement::Kind;
  PlacementCall(const char* op, std::string axis, std::vector<PlacedOperand> operands, std::size_t inputs,
                std::span<const Tensor* const> outputs, const autograd::CallDetails& details)
      : op_(op),
        axis_(std::move(axis)),
        operands_(std::move(operands)),
        inputs_(inputs),
        outputs_(outputs),
        details_(details) {}

  const char* op() const { return op_; }
  /// The inputs that can have gradients come first; inputs() is their number.
  const std::vector<PlacedOperand>& operands() const { return operands_; }
  const PlacedOperand& operand(std::size_t i) const { return operands_.at(i); }
  std::size_t inputs() const { return inputs_; }
  const Tensor& output() const { return *outputs_[0]; }
  std::span<const Tensor* const> outputs() const { return outputs_; }
  const std::string& axis() const { return axis_; }
  const autograd::CallDetails& details() const { return details_; }
  /// The number of operands of this kind.
  std::size_t count(Kind kind) const;

  // ---- checks

  /// Refuses partial operands: the operation of a sum is not the sum of the operations.
  void refuse_partial() const;
  /// Refuses an invariant operand beside another one that is not constant: its gradient would be a sum that
  /// nobody makes.
  void check_invariant() const;
  /// Refuses operands that are divided along one of the dimensions of details().dims.
  void refuse_divided(const char* why) const;

  // ---- rules

  /// Any function, computed from whole tensors: operands are equal or varying.
  Placement opaque() const;
  /// A function of the elements of operands that broadcast to the output. Does not allow partial operands.
  Placement pointwise() const { return pointwise(output().sizes()); }
  /// The same, if the operands broadcast to `sizes`.
  Placement pointwise(const Shape& sizes) const;
  /// pointwise(), and the sum of a partial operand is the sum of the results, if it is the only operand that
  /// is not constant or replicated.
  Placement linear() const;

  // ---- errors

  /// "[op] operand 0 of shape (2, 3) is partial along axis tensor"
  std::string description(std::size_t operand) const;
  /// Throws PlacementError: description(operand), `why`, and what to do.
  [[noreturn]] void fail(std::size_t operand, const std::string& why, const std::string& remedy) const;
  /// The same; the remedy is convert(operand i, axis, its placement, `to`).
  [[noreturn]] void fail(std::size_t operand, const std::string& why, Placement to) const;
  std::string conversion(std::size_t operand, Placement to) const;
  /// Throws for the first partial operand, because operand `other` does not go with it.
  void refuse_partial_beside(std::size_t other) const;

 private:
  const char* op_;
  std::string axis_;
  std::vector<PlacedOperand> operands_;
  std::size_t inputs_;
  std::span<const Tensor* const> outputs_;
  const autograd::CallDetails& details_;
};

namespace impl {
using BuiltInRule = Placement (*)(const PlacementCall&);
/// The rule of a built-in operation, or null.
BuiltInRule built_in_rule(std::string_view op);
/// True if a built-in operation needs no rule, because it records none but the operations that it is made of.
bool is_composed(std::string_view op);
}  // namespace impl

}  // namespace tapestry::distributed
