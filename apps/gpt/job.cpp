#include "tapestry/apps/gpt/job.h"

#include <cstdlib>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/init.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"

namespace apps::gpt {

using namespace tapestry;
using distributed::ReduceOp;

namespace {

bool is_job(const std::string& parallel) {
  return parallel == "ddp" || parallel == "zero1" || parallel == "zero2" || parallel == "fsdp";
}

}  // namespace

std::vector<nn::Module*> blocks_of(nn::LanguageModel& model) {
  nn::ModuleList* list = nullptr;
  if (auto* llama = dynamic_cast<nn::Llama*>(&model)) list = &llama->model.layers;
  else list = &dynamic_cast<nn::Gpt2&>(model).transformer.h;
  return list->children();
}

Job::Job(const JobOptions& o) : job_(o) {
  const distributed::Environment job = distributed::read_environment();
  if (job.world_size > 1 && !is_job(o.parallel))
    fail<UsageError>("[", o.command, "] this is one of ", job.world_size,
                     " processes, which would all train the same model; add --parallel ddp or fsdp");
  if ((job.restart > 0 || job.max_restarts > 0) && !o.restartable)
    fail<UsageError>("[", o.command,
                     "] the launcher restarts this job after a failure, and a restart would begin again or "
                     "refuse the run; add --run-dir DIR --resume auto, or start the job without restarts");
  const std::int64_t parts = job.world_size * o.parts;
  if (o.batch_size % parts != 0)
    fail<UsageError>("[", o.command, "] --batch-size is ", o.batch_size, ", which cannot be divided into ",
                     o.parts, " parts on each of ", job.world_size, " ranks; choose a multiple of ", parts);
  const Device device(o.device);
  if (o.parallel == "dp" || o.parallel == "pipeline") {
    // The number of logical CPU devices must be set before the first use of a device.
    if (device.is_cpu()) setenv("TAPESTRY_LOGICAL_DEVICES", std::to_string(o.devices).c_str(), 0);
    for (int i = 0; i < o.devices; ++i) devices_.emplace_back(device.type, i);
    check<UsageError>(device_count(device.type) >= o.devices, "[", o.command, "] ", o.devices_option, " is ",
                      o.devices, ", but there are ", device_count(device.type), " devices of type ",
                      device.is_cpu() ? "cpu" : "cuda");
  }
  group_ = distributed::init_process_group();
  requests_.emplace(group_);
  if (size() == 1) return;
  const std::string theirs = distributed::broadcast_text(*group_, o.identity, 0, "options");
  distributed::on_all_ranks(*group_, o.command, [&] {
    if (o.identity != theirs)
      fail<UsageError>("[", o.command, "] rank ", rank(),
                       " has other options than rank 0, or sees another run; start all ranks with the same "
                       "options, and choose a --run-dir that all can see");
  });
}

void Job::wrap(nn::LanguageModel& model) {
  if (job_.parallel == "dp") dp_.emplace(model, devices_);
  if (job_.parallel == "fsdp") {
    const distributed::FsdpOptions sharding{.group = group_, .device = Device(job_.device)};
    for (nn::Module* const block : blocks_of(model)) distributed::fully_shard(*block, sharding);
    fsdp_.emplace(distributed::fully_shard(model, sharding));
  } else if (is_job(job_.parallel)) {
    ddp_.emplace(model, distributed::DdpOptions{.process_group = group_});
  }
}

std::optional<distributed::NoSync> Job::quiet() {
  if (ddp_) return ddp_->no_sync();
  if (fsdp_) return fsdp_->no_sync();
  return std::nullopt;
}

double Job::sum(double own) const {
  if (size() == 1) return own;
  group_->all_reduce(from_blob(&own, {1}, DType::f64), ReduceOp::sum, "sum").wait();
  return own;
}

nn::StateDict Job::full_state(nn::LanguageModel& model) const {
  nn::StateDict all;
  for (const auto& [name, parameter] : model.named_parameters()) {
    Tensor whole = parameter.tensor().detach();
    if (const auto& layout = parameter.layout()) {
      whole = empty(layout->whole_sizes(), {parameter.dtype(), parameter.device()});
      layout->gather(0, whole);
    }
    if (first()) all.emplace_back(name, whole.to(kCPU).contiguous());
  }
  return all;
}

}  // namespace apps::gpt
