#include "tapestry/apps/common/training_job.h"

#include <cstdlib>

#include "tapestry/core/error.h"
#include "tapestry/core/generator.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/init.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/common/seeds.h"

namespace apps {

using namespace tapestry;

namespace {

distributed::StrategyPlan plan_of(const JobOptions& o, bool launched) {
  std::vector<distributed::AxisSpec> axes = distributed::parse_strategy(o.parallel);
  if (o.compress.empty()) return distributed::plan_strategy(axes, launched);
  const distributed::StrategyPlan plain = distributed::plan_strategy(axes, launched);
  check<UsageError>(plain.reads("compress"), "[", o.command, "] --parallel ", o.parallel,
                    " cannot compress gradients; leave out --compress ", o.compress,
                    ", or choose a mode that replicates the model over ranks, such as ddp");
  for (distributed::AxisSpec& axis : axes) axis.options.emplace("compress", o.compress);
  return distributed::plan_strategy(axes, launched);
}

// The devices of this process, the one of --device first.
std::vector<Device> devices_of(const JobOptions& o, int wanted) {
  const Device first(o.device);
  // The number of logical CPU devices must be set before the first use of a device.
  if (wanted > 0 && first.is_cpu()) setenv("TAPESTRY_LOGICAL_DEVICES", std::to_string(wanted).c_str(), 0);
  const int there = device_count(first.type);
  check<UsageError>(
      there >= wanted, "[", o.command, "] ",
      o.devices_option.empty() || o.devices != wanted ? "--parallel " + o.parallel : o.devices_option,
      " asks for ", wanted, " devices, but there are ", there, " of type ", first.is_cpu() ? "cpu" : "cuda");
  std::vector<Device> devices{first};
  for (int i = 0; i < there; ++i)
    if (i != first.index && (wanted == 0 || static_cast<int>(devices.size()) < wanted))
      devices.emplace_back(first.type, i);
  return devices;
}

}  // namespace

TrainingJob::TrainingJob(const JobOptions& o) {
  const distributed::Environment job = distributed::read_environment();
  const distributed::StrategyPlan plan = plan_of(o, job.launcher != "none");
  if (job.world_size > 1 && (plan.over_devices || plan.axes.empty()))
    fail<UsageError>("[", o.command, "] this is one of ", job.world_size,
                     " processes, which would all train the same model; add --parallel ddp, fsdp, or another "
                     "mode over ranks");
  if ((job.restart > 0 || job.max_restarts > 0) && !o.restartable)
    fail<UsageError>("[", o.command,
                     "] the launcher restarts this job after a failure, and a restart would begin again or "
                     "refuse the run; add --run-dir DIR --resume auto, or start the job without restarts");
  std::vector<Device> devices{Device(o.device)};
  if (plan.over_devices) devices = devices_of(o, plan.size > 0 ? plan.size : o.devices);
  group_ = distributed::init_process_group();
  requests_.emplace(group_);
  if (size() > 1 && !o.identity.empty()) {
    const std::string theirs = distributed::broadcast_text(*group_, o.identity, 0, "options");
    distributed::on_all_ranks(*group_, o.command.c_str(), [&] {
      if (o.identity != theirs)
        fail<UsageError>("[", o.command, "] rank ", rank(),
                         " has other options than rank 0, or sees another run; start all ranks with the same "
                         "options, and choose a --run-dir that all can see");
    });
  }
  strategy_ = std::make_unique<distributed::Strategy>(
      plan, distributed::StrategyOptions{.world = group_, .devices = devices, .parts = o.parts});
}

void TrainingJob::seed_dropout(std::uint64_t seed) const {
  if (strategy_->data_size() > 1) manual_seed(distributed::rank_seed(seed, strategy_->data_rank()));
}

bool TrainingJob::writes_samples() const {
  return strategy_->can_call_model() && (first() || strategy_->calls_are_collective());
}

Check parallel_text() {
  return {[](const std::string& text) -> std::string {
    try {
      static_cast<void>(distributed::plan_strategy(text, false));
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  }};
}

}  // namespace apps
