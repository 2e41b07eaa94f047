#include "tapestry/apps/compare/job.h"

#include <set>

#include "tapestry/core/cuda/device.h"
#include "tapestry/distributed/comm/init.h"

namespace apps::compare {

using namespace tapestry;

Device rank_device(const Workload& w, int rank) {
  return w.device_type == DeviceType::cpu ? kCPU : Device(w.device_type, rank);
}

std::shared_ptr<distributed::ProcessGroup> join_job(const Workload& w) {
  std::set<int> gpus;
  if (w.device_type == DeviceType::cuda)
    for (const Device d : planner::devices_of(w)) gpus.insert(cuda::device_properties(d).gpu);
  distributed::InitOptions options;
  options.backend = gpus.size() == static_cast<std::size_t>(w.devices) ? "" : "gloo";
  return distributed::init_process_group(options);
}

}  // namespace apps::compare
