#include "tapestry/distributed/common/kernel_choices.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/core/kernel_policy.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/kernels/policy.h"

namespace tapestry::distributed {
namespace {

/// A text that differs between processes, also of different machines.
const std::string& process_id() {
  static const std::string id = [] {
    std::random_device random;
    return concat({getpid(), "-", random(), "-", random()});
  }();
  return id;
}

}  // namespace

void share_kernel_choices(ProcessGroup& group) {
  if (group.size() == 1) return;
  const std::vector<std::string> ids =
      all_gather_text(group, process_id(), "processes that share kernel choices");
  if (std::all_of(ids.begin(), ids.end(), [&](const std::string& id) { return id == ids[0]; })) return;
  const std::string choices = broadcast_text(group, kernel_choices(), 0, "kernel choices of rank 0");
  kernels::set_new_shapes(process_id() == ids[0] ? kernels::NewShapes::measure_for_later
                                                 : kernels::NewShapes::own);
  set_kernel_choices(choices);
}

}  // namespace tapestry::distributed
