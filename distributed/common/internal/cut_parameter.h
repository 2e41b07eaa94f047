#pragma once
// Divides parameters among the ranks of an axis, for strategies whose ranks keep their parts while forward
// computes.
#include <string>
#include <utility>
#include <vector>

#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/nn/layout.h"
#include "tapestry/nn/parameter.h"

namespace tapestry::distributed {

/// The ranks of an axis, for Cut. `op` names sums in errors.
class AxisRanks final : public nn::RankGroup {
 public:
  AxisRanks(Axis axis, std::string op)
      : axis_(std::move(axis)), what_(std::move(op) + ": sum over the ranks") {}
  int size() const override { return axis_.size(); }
  int rank(int) const override { return axis_.coordinate(); }
  const void* id(int) const override { return axis_.group().get(); }
  void sum(int, const Tensor& values) const override {
    axis_.group()->all_reduce(values, ReduceOp::sum, what_).wait();
  }

 private:
  const Axis axis_;
  const std::string what_;
};

/// Collective over the axis: gives a slot on the meta device memory on `device` and its initial values, and
/// then all ranks the values of the first one.
void fill_from_first(const std::string& name, const nn::TensorSlot& slot, const Axis& axis, Device device,
                     const char* op);

/// Divides the slot's tensor, after the cuts that it has, by `more`: the slot stores this rank's part of the
/// values and, if there is one, of the gradient. The tensor must have the values of the undivided parameter.
void cut_parameter(nn::Parameter& slot, const std::vector<nn::Cut>& more);

}  // namespace tapestry::distributed
