#pragma once
// Where parameters are, and those that stages on several devices use: tied weights.
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/distributed/pipeline/stage.h"

namespace tapestry::distributed {

/// Places the stages' modules on their devices, and what several of them use on the first one's. While a pass
/// is in progress such a parameter has a replica on each other device, and so has whatever else a stage that
/// uses one computes with (the same tensor again), so that the stage finds everything as one replica.
class TiedParameters {
 public:
  /// `device_of`: by stage, an index in `devices`. Both outlive it, as do the stages. `first_number`: of the
  /// first of them, in messages.
  TiedParameters(const std::vector<Stage>& stages, const std::vector<Device>& devices,
                 const std::vector<std::size_t>& device_of, std::size_t first_number = 0);

  /// Throws ValueError if somebody moved or replicated what stages compute with.
  void check_places() const;
  /// The replica that a stage computes as.
  std::int16_t replica(std::size_t stage) const { return replica_[stage]; }

  /// Makes the replicas known, and takes them away again. On the calling thread, when no stage computes.
  void begin();
  void end();
  /// Brings the copies on this device up to date: on its worker, before its stages compute.
  void refresh(std::size_t device);
  /// Adds the copies' gradients to those of the first, in the order of devices, and drops them.
  void add_gradients();

 private:
  struct Copy {
    std::size_t device;
    Tensor tensor;
    Tensor source;          // what it was copied from,
    std::uint32_t version;  // and when
  };
  struct Used {
    std::string name;
    nn::TensorSlot slot;
    std::vector<std::size_t> stages;
    bool is_parameter;
    std::vector<Copy> copies = {};
  };
  void note(const std::string& name, const nn::TensorSlot& slot, std::size_t stage, bool is_parameter);
  std::size_t home_of(const Used& used) const { return device_of_[used.stages[0]]; }

  const std::vector<Stage>& stages_;
  const std::vector<Device>& devices_;
  const std::vector<std::size_t>& device_of_;
  const std::size_t first_number_;
  std::vector<Used> used_;
  std::vector<std::int16_t> replica_;  // by stage
};

}  // namespace tapestry::distributed
