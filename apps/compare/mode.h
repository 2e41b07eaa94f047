#pragma once
// A mode is one way to distribute training, such as DataParallel. A new mode needs one file in modes/ with a
// Training and a Registration. modes/single.cpp is the shortest example.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/apps/compare/workload.h"
#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/process_group.h"

namespace apps::compare {

/// A model that is ready to be trained in one mode. The comparison measures where time goes through the
/// SpanScopes (core/timeline.h) that the library and the mode open.
class Training {
 public:
  virtual ~Training() = default;
  /// Runs forward, backward and the optimizer. Returns the mean loss of the batch before the update. If there
  /// are several processes, each returns its part of the mean: the parts add up to it.
  virtual tapestry::Tensor step() = 0;
  /// The devices on which this process computes.
  virtual std::vector<tapestry::Device> devices() const = 0;
  /// The bytes that this process sent from one device to another in the last step.
  virtual std::int64_t bytes_sent() const { return 0; }
  /// The group that connects the processes, or null if there is only one process.
  virtual tapestry::distributed::ProcessGroup* group() { return nullptr; }
};

struct Mode {
  std::string name;         ///< for --modes
  std::string description;  ///< for --help and the HTML page
  std::function<std::unique_ptr<Training>(const Workload&)> make;
  bool one_process_per_device = false;  ///< if true, run as a job of tapestry-run's launcher
  bool splits_model = false;            ///< if true, `make` reads Workload::split
};

/// `const Registration registration({...});` in a mode's file adds the mode to modes().
struct Registration {
  explicit Registration(Mode mode);
};

/// All registered modes: "single" first, the others sorted by name.
const std::vector<Mode>& modes();
/// Throws ValueError with a list of all modes if there is no mode of this name.
const Mode& mode_named(const std::string& name);

/// Returns the bytes that each of n devices sends in a ring all-reduce of `bytes` bytes: bytes * 2 (n - 1) /
/// n (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
std::int64_t ring_bytes(std::int64_t bytes, int n);
/// The same for an all-gather or a reduce-scatter: bytes * (n - 1) / n.
std::int64_t half_ring_bytes(std::int64_t bytes, int n);

}  // namespace apps::compare
