#pragma once
// How a tensor is placed along an axis of a mesh: what each rank of the axis has of it, and what that means
// for its gradient. The types are those of pytorch's spmd_types (2026): one for each axis.
#include <cstdint>
#include <string>

namespace tapestry::distributed {

/// What the ranks of an axis have of a tensor. "Equal" means equal bits on all ranks of the axis.
class Placement {
 public:
  enum class Kind : std::uint8_t {
    invariant,   ///< equal, and so is the gradient
    replicated,  ///< equal; each rank computes a part of the gradient, which is the sum of the parts
    varying,     ///< each rank has its own tensor and gradient
    partial,     ///< the tensor is the sum of what the ranks have; the gradient is equal
    sharded      ///< rank r has part r of dimension dim(), and of the gradient's
  };

  static Placement invariant() { return {Kind::invariant, 0}; }
  static Placement replicated() { return {Kind::replicated, 0}; }
  static Placement varying() { return {Kind::varying, 0}; }
  static Placement partial() { return {Kind::partial, 0}; }
  /// `dim` counts from the first dimension. The parts are those of nn::Region::part().
  static Placement sharded(int dim) { return {Kind::sharded, dim}; }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  /// Of a sharded tensor.
  int dim() const { return dim_; }
  /// How the gradient of a tensor with this placement is placed.
  Placement of_gradient() const;
  /// "invariant", "sharded(0)"
  std::string str() const;
  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  Placement(Kind kind, int dim) : kind_(kind), dim_(dim) {}
  Kind kind_;
  int dim_;
};

}  // namespace tapestry::distributed
