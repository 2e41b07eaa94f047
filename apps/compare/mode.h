#pragma once
// What a way of training has to say of itself to be compared. A new one is one file in modes/: a Training,
// and a Registration of it. See modes/single.cpp, the shortest.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/apps/compare/workload.h"
#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/process_group.h"

namespace apps::compare {

/// A model that is set up for training, in one of the ways. Where time goes is taken from the SpanScopes of
/// core/timeline.h, of the library's and of its own.
class Training {
 public:
  virtual ~Training() = default;
  /// Forward, backward, update. The mean loss of the batch before the update, or, of several processes, this
  /// one's part of it: the parts add up.
  virtual tapestry::Tensor step() = 0;
  /// Where this process computes.
  virtual std::vector<tapestry::Device> devices() const = 0;
  /// Bytes that the last step sent from one device to another, all together: of several processes those that
  /// this one sent.
  virtual std::int64_t bytes_sent() const { return 0; }
  /// What joins the processes; null: there is one only.
  virtual tapestry::distributed::ProcessGroup* group() { return nullptr; }
};

struct Mode {
  std::string name;         ///< for --modes
  std::string description;  ///< for --help and the page
  std::function<std::unique_ptr<Training>(const Workload&)> make;
  bool one_process_a_device = false;  ///< started by the launcher of tapestry-run
  bool splits_the_model = false;      ///< takes Workload::split
};

/// `const Registration registration({...});` in a mode's file makes it known.
struct Registration {
  explicit Registration(Mode mode);
};

/// "single" first, the others by name.
const std::vector<Mode>& modes();
/// Throws ValueError that lists the known ones.
const Mode& mode_named(const std::string& name);

/// What a sum over n devices costs, by a ring (Patarasuk and Yuan 2009): each of them sends 2 (n - 1) / n of
/// the bytes.
std::int64_t ring_bytes(std::int64_t bytes, int n);

}  // namespace apps::compare
