#pragma once
// The axes whose devices divide the layers of a profiled model, and what the layers send.
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/distributed/planner/planner.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed::planner {

/// Messages that a device sends in a pass of a block, and their bytes.
struct SentMessages {
  double count = 0, bytes = 0;
};
/// What a device sends, for each member of LayerCollectives in their order.
struct SentByLayers {
  SentMessages all_reduce, all_gather, reduce_scatter, beside;
};

/// An axis that divides layers. Its group has no peers, because one rank is measured alone.
class DividedAxis {
 public:
  explicit DividedAxis(const Axis& axis) : name(axis.name()), size(axis.size()) {}
  virtual ~DividedAxis() = default;
  const std::string name;
  const int size;
  /// What it moves: see LayerCollectives.
  virtual const char* what() const { return "activations"; }
  /// What this device computes of the inputs or targets of the whole batch.
  virtual Tensor own_part(const Tensor& whole) const { return whole; }
  /// True for a parameter that the devices divide, while they copy all others.
  virtual bool is_part(const nn::Parameter&) const { return false; }
  /// Call it when a pass of a block begins.
  virtual void begin() = 0;
  /// What forward of this block has sent since begin(), or its backward after such a forward. `block` is null
  /// for the loss.
  virtual SentByLayers sent(const nn::Module* block, bool backward) = 0;
};

/// Divides the model along the axes of a text (MeasureOptions::layers) for one rank of them. It is a rank
/// with the most work: the last one along `context`, because the last queries of a sequence see most keys,
/// and the first one along the other axes. Throws ValueError for other axes.
std::vector<std::unique_ptr<DividedAxis>> divide_layers(nn::Module& whole, const Model& model,
                                                        const std::string& layers, Device device);

}  // namespace tapestry::distributed::planner
