#include "tapestry/apps/compare/job.h"

#include <set>

#include "tapestry/apps/compare/models.h"
#include "tapestry/autograd/ops/copy.h"
#include "tapestry/core/cuda/device.h"
#include "tapestry/distributed/comm/init.h"
#include "tapestry/distributed/common/batch.h"

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

RankBatch batch_of_rank(const Workload& w, const distributed::ProcessGroup& group) {
  const Batch whole = make_batch(w);
  const auto ranks = static_cast<std::size_t>(group.size()), rank = static_cast<std::size_t>(group.rank());
  const std::vector<std::int64_t> samples = distributed::chunk_sizes(w.batch_size, ranks);
  std::int64_t begin = 0;
  for (std::size_t r = 0; r < rank; ++r) begin += samples[r];
  const Device device = rank_device(w, group.rank());
  return {clone(whole.inputs.narrow(0, begin, samples[rank]).to(device)),
          clone(whole.targets.narrow(0, begin, samples[rank]).to(device)),
          static_cast<double>(samples[rank]) / static_cast<double>(w.batch_size)};
}

}  // namespace apps::compare
