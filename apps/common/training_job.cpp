#include "tapestry/apps/common/training_job.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tapestry/core/error.h"
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
  check<UsageError>(std::none_of(axes.begin(), axes.end(),
                                 [](const auto& axis) { return axis.options.contains("compress"); }),
                    "[", o.command, "] --parallel ", o.parallel,
                    " says how gradients are compressed; leave out --compress ", o.compress);
  const distributed::StrategyPlan plan = distributed::plan_strategy(axes, launched);
  if (o.compress == "none") return plan;
  for (distributed::AxisSpec& axis : axes)
    if (distributed::plan_strategy(std::vector{axis}, true).reads("compress"))
      axis.options.emplace("compress", o.compress);
  try {
    distributed::StrategyPlan compressing = distributed::plan_strategy(axes, launched);
    if (compressing.reads("compress")) return compressing;
  } catch (const ValueError&) {  // the axis that reads it does not compress beside another one
  }
  fail<UsageError>("[", o.command, "] --parallel ", o.parallel, " cannot compress gradients as ", o.compress,
                   "; pass --compress none, or choose a mode that only replicates over ranks, such as ddp");
}

// The devices of this process, the one of --device first.
std::vector<Device> devices_of(const JobOptions& o, const distributed::StrategyPlan& plan) {
  const Device first(o.device);
  // A mode that a launcher would start on ranks takes the devices that there are.
  const bool asks = plan.over_devices && plan.size == 0 && o.devices > 0 && plan_of(o, true).over_devices;
  const int wanted = asks ? o.devices : plan.over_devices ? plan.size : 1;
  const std::string who = "[" + o.command + "] --parallel " + o.parallel +
                          (asks ? " with " + o.devices_option + " " + std::to_string(wanted) : "") +
                          " asks for " + std::to_string(wanted) + " devices, but there ";
  check<UsageError>(wanted <= kMaxDevices, who, "can be at most ", kMaxDevices);
  // The number of logical CPU devices must be set before the first use of a device.
  if (wanted > 1 && first.is_cpu()) setenv("TAPESTRY_LOGICAL_DEVICES", std::to_string(wanted).c_str(), 0);
  check_device(o.command.c_str(), first);
  const int there = device_count(first.type);
  check<UsageError>(there >= wanted, who, "are ", there, " of type ", device_type_name(first.type));
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
    fail<UsageError>(
        "[", o.command, "] this is one of ", job.world_size,
        " processes, which would all do the same; add --parallel ddp, fsdp, or another mode over "
        "ranks");
  if ((job.restart > 0 || job.max_restarts > 0) && !o.restartable)
    fail<UsageError>("[", o.command,
                     "] the launcher restarts this job after a failure, and a restart would begin again or "
                     "refuse the run; add --run-dir DIR --resume auto, or start the job without restarts");
  check<UsageError>(!plan.splits_model || o.has_stages, "[", o.command, "] --parallel ", o.parallel,
                    " splits the model into stages, which ", o.command,
                    " cannot train yet; choose a mode that does not");
  const std::vector<Device> devices = devices_of(o, plan);
  group_ = distributed::init_process_group();
  const bool live =
      size() == 1 ? o.live : !distributed::broadcast_text(*group_, o.live ? "live" : "", 0, "live").empty();
  requests_.emplace(group_, live);
  if (live) rows_.emplace();
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
  if (size() > 1) distributed::manual_seed_by_coordinate(strategy_->random_place(), seed);
}

distributed::ShardedTraining TrainingJob::saved(const nn::Training& training,
                                                const std::string& precision) const {
  distributed::ShardedTraining saved(training);
  saved.place = strategy_->random_place();
  saved.choices = strategy_->choices();
  saved.choices["precision"] = precision;
  return saved;
}

Request TrainingJob::agree(const Request& own) {
  if (rows_) rows_->forget();
  const Request agreed = requests_->agree(own);
  if (after_agree_) after_agree_();
  return agreed;
}

void TrainingJob::share(RankRow row) {
  rows_->complete(row, *strategy_);
  requests_->share(row);
}

void TrainingJob::print_report(Progress& progress) const {
  if (size() == 1 && strategy_->devices().size() == 1) return;
  std::string text;
  char part[160];
  for (const distributed::AxisReport& axis : strategy_->report()) {
    std::snprintf(part, sizeof part, "%s sent %.2f MiB in the last step", axis.axis.c_str(),
                  static_cast<double>(axis.bytes_sent) / (1 << 20));
    text += part;
    if (axis.exposed_s > 0) {
      std::snprintf(part, sizeof part, ", and computing waited %.1f ms for it", axis.exposed_s * 1e3);
      text += part;
    }
    if (!axis.choice.empty()) text += " (" + axis.choice + ")";
    text += "; ";
  }
  const std::vector<MemorySample> most = strategy_->memory();
  for (std::size_t i = 0; i < most.size(); ++i) {
    std::snprintf(part, sizeof part, "%s%s held at most %.1f MiB", i == 0 ? "" : ", ",
                  strategy_->devices()[i].str().c_str(), static_cast<double>(most[i].total()) / (1 << 20));
    text += part;
  }
  progress.line(text);
}

Check parallel_text() {
  return {[](const std::string& text) -> std::string {
    try {
      static_cast<void>(distributed::plan_strategy(text, distributed::read_environment().launcher != "none"));
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  }};
}

}  // namespace apps
