#include "tapestry/apps/classifier/ranks.h"

#include <algorithm>

#include "tapestry/apps/classifier/config.h"
#include "tapestry/apps/classifier/models.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/init.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/ddp/sync_batchnorm.h"

namespace apps {

using namespace tapestry;
using distributed::ReduceOp;

namespace {

void check_restarts(const distributed::Environment& job, const Options& options) {
  if ((job.restart == 0 && job.max_restarts == 0) || options.resume != Resume::never) return;
  fail<UsageError>(
      "[classifier] the launcher restarts this job after a failure, and a restart would ",
      options.run_dir.empty() ? "begin again in a new folder" : "refuse the run in " + options.run_dir,
      "; add ", options.run_dir.empty() ? "--run-dir DIR " : "",
      "--resume auto, or start the job without restarts");
}

}  // namespace

Ranks::Ranks(const Options& options) {
  const distributed::Environment job = distributed::read_environment();
  if (job.world_size > 1 && !is_job(options.parallel))
    fail<UsageError>("[classifier] this is one of ", job.world_size,
                     " processes, which would all train the same model; add --parallel ddp, zero1, zero2 or "
                     "fsdp");
  if (options.parallel == "fsdp" && options.compress != "none")
    fail<UsageError>("[classifier] --parallel fsdp cannot compress gradients; leave out --compress ",
                     options.compress, ", or choose --parallel zero2");
  check_restarts(job, options);
  group_ = distributed::init_process_group();
  requests_.emplace(group_);
  if (size() == 1) return;
  const std::string resumes = options.saved ? "resume" : "start";
  const std::string first_resumes = distributed::broadcast_text(*group_, resumes, 0, "resume");
  const std::string first_options = distributed::broadcast_text(*group_, to_json(options), 0, "options");
  distributed::on_all_ranks(*group_, "classifier", [&] {
    if (resumes != first_resumes)
      fail<UsageError>("[classifier] rank 0 would ", first_resumes, " a run in ", options.run_dir,
                       " and rank ", rank(), " would ", resumes,
                       " one; choose a --run-dir that all ranks can see");
    check_same_as_rank_0(options, options_from_json(first_options, "the options of rank 0"));
  });
}

void Ranks::wrap(nn::Module& model, const Options& options) {
  if (options.parallel == "none") return;
  if (options.parallel == "dp") {
    std::vector<Device> devices{options.device};  // outputs are gathered on the first device
    for (int i = 0; i < device_count(devices[0].type); ++i)
      if (i != devices[0].index) devices.emplace_back(devices[0].type, i);
    dp_.emplace(model, devices);
    return;
  }
  if (options.sync_batchnorm) distributed::convert_sync_batchnorm(model, group_);
  if (options.parallel == "fsdp") {
    const distributed::FsdpOptions sharding{.group = group_, .device = Device(options.device)};
    for (nn::Module* const unit : units_of(model)) distributed::fully_shard(*unit, sharding);
    fsdp_.emplace(distributed::fully_shard(model, sharding));
    return;
  }
  ddp_.emplace(model, distributed::DdpOptions{.process_group = group_});
  if (options.compress == "f16") ddp_->set_comm_hook(distributed::f16_compress);
  if (options.compress == "bf16") ddp_->set_comm_hook(distributed::bf16_compress);
}

Tensor Ranks::forward(nn::Module& model, const Tensor& x) {
  return ddp_ ? (*ddp_)(x) : dp_ ? (*dp_)(x) : model(x);
}

void Ranks::sync_buffers() {
  if (ddp_) ddp_->sync_buffers();
  if (fsdp_) fsdp_->sync_buffers();
}

Tally Ranks::sum(const Tally& own) const {
  double parts[3] = {own.loss, static_cast<double>(own.right), static_cast<double>(own.count)};
  group_->all_reduce(from_blob(parts, {3}, DType::f64), ReduceOp::sum, "tally").wait();
  return {parts[0], static_cast<std::int64_t>(parts[1]), static_cast<std::int64_t>(parts[2])};
}

void Ranks::sum(std::vector<std::int64_t>& counts) const {
  group_
      ->all_reduce(from_blob(counts.data(), {static_cast<std::int64_t>(counts.size())}, DType::i64),
                   ReduceOp::sum, "confusion")
      .wait();
}

}  // namespace apps
