#pragma once
// Places parameters on devices. Tied weights, which stages on several devices use, get a copy per device.
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tapestry/distributed/pipeline/stage.h"

namespace tapestry::distributed {

/// Moves the modules of each stage to its device. A tied parameter, which several stages use, moves to the
/// device of the first of them. During a pass it has a replica on the device of each other stage that uses
/// it. Such a stage runs with the number of this replica in its context, so forward looks up this replica of
/// every parameter that it uses. The stage's other parameters therefore hold their own tensor a second time,
/// under this number.
class TiedParameters {
 public:
  /// device_of[s] is the index in `devices` of the device of stage s. All three lists must outlive this
  /// object. Error messages number the stages from `first_number` on.
  TiedParameters(const std::vector<Stage>& stages, const std::vector<Device>& devices,
                 const std::vector<std::size_t>& device_of, std::size_t first_number = 0);

  /// Throws ValueError if the user moved, replicated or, unless it may be, sharded a parameter or buffer of a
  /// stage.
  void check_places(bool may_be_sharded = false) const;
  /// The replica number that a stage has in its context when it computes.
  std::int16_t replica(std::size_t stage) const { return replica_[stage]; }

  /// Puts the replicas into the slots of the parameters. Call it while no stage computes.
  void attach_replicas();
  /// Removes the replicas from the slots. Call it while no stage computes.
  void detach_replicas();
  /// Copies changed values to the replicas on this device. Call it on its worker before its stages compute.
  void update_replicas(std::size_t device);
  /// Adds the replicas' gradients to those of the first tensor, in the order of devices, and clears them.
  void add_gradients();

 private:
  struct Copy {
    std::size_t device;
    Tensor tensor;
    Tensor source;          // the tensor that it was copied from
    std::uint32_t version;  // the version of `source` at that time
  };
  struct UsedSlot {
    std::string name;
    nn::TensorSlot slot;
    std::vector<std::size_t> stages;
    bool is_parameter;
    std::vector<Copy> copies = {};
  };
  void add_use(const std::string& name, const nn::TensorSlot& slot, std::size_t stage, bool is_parameter);
  std::size_t home_of(const UsedSlot& used) const { return device_of_[used.stages[0]]; }

  const std::vector<Stage>& stages_;
  const std::vector<Device>& devices_;
  const std::vector<std::size_t>& device_of_;
  const std::size_t first_number_;
  std::vector<UsedSlot> used_;
  std::unordered_map<const void*, std::size_t> index_;  // of used_, by the slot's id
  std::vector<std::int16_t> replica_;                   // by stage
};

}  // namespace tapestry::distributed
