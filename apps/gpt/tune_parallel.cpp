#include "tapestry/apps/gpt/tune_parallel.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "tapestry/apps/common/precision.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/context.h"

namespace apps::gpt {

using namespace tapestry;

namespace {

JobOptions job_of(const TuneOptions& o) {
  // Ranks may have different numbers of threads.
  TuneOptions same = o;
  same.threads = 0;
  return {.command = "gpt tune",
          .parallel = o.parallel,
          .device = "cpu",
          .devices = o.devices,
          .devices_option = "--devices",
          .restartable = o.resume == "auto",
          .batch_size = o.batch_size,
          .identity = to_json(same) + o.run_dir + (o.resumed ? " resumed" : " new")};
}

// Rows of a batch without a target have no loss. A loss of a target that counts nothing takes its place where
// a call is needed, because the ranks make their calls together and every device has a loss.
Tensor with_a_target(const Tensor& targets) {
  Tensor some = targets.clone();
  some.data<std::int64_t>()[0] = 0;
  return some;
}

}  // namespace

TuneParallel::TuneParallel(const TuneOptions& o)
    : Job(job_of(o)), keep_activations_(o.keep_activations), precision_(o.precision) {}

std::optional<double> TuneParallel::forward_backward(nn::LanguageModel& model,
                                                     const data::PackedSequences& data,
                                                     const std::vector<std::vector<std::int64_t>>& batches,
                                                     optim::GradScaler& scaler) {
  std::vector<TuneBatch> used;
  double all_targets = 0;
  for (const std::vector<std::int64_t>& indices : batches) {
    TuneBatch batch = tune_batch(data, indices);
    if (batch.targets == 0) continue;
    all_targets += static_cast<double>(batch.targets);
    used.push_back(std::move(batch));
  }
  if (used.empty()) return std::nullopt;
  // The loss of some rows, as a part of the mean over the targets of all batches.
  const auto part_of_mean = [&](const TuneBatch& rows, const auto& call) {
    nn::TokenContext how = rows.context();
    how.checkpoint = !keep_activations_;
    if (rows.targets == 0) how.targets = with_a_target(how.targets);
    return call(rows.sequences.ids, how) * (static_cast<double>(rows.targets) / all_targets);
  };
  const auto plain = [&](const Tensor& ids, const nn::TokenContext& how) { return model(ids, how); };
  double sum = 0;
  for (std::size_t k = 0; k < used.size(); ++k) {
    const TuneBatch& batch = used[k];
    // All batches but the last keep their gradients on this rank.
    const auto no_sync = k + 1 < used.size() ? quiet() : std::nullopt;
    Tensor loss;
    std::optional<AutocastScope> autocast(precision_);
    if (dp_) {
      const std::int64_t rows = batch.sequences.ids.size(0);
      const auto parts =
          std::make_tuple(batch.sequences.ids, batch.sequences.targets, batch.sequences.documents);
      loss = dp_->loss(parts, [&](const Tensor& ids, const Tensor& targets, const Tensor& documents) {
        // dp weights the losses of the devices by their rows.
        const double weight = static_cast<double>(rows) / static_cast<double>(ids.size(0));
        return part_of_mean(tune_batch_of(ids, targets, documents), plain) * weight;
      });
    } else if (size() == 1 && !ddp_ && !fsdp_) {
      loss = part_of_mean(batch, plain);
    } else {
      const std::int64_t rows = batch.sequences.ids.size(0) / size(), begin = rank() * rows;
      const auto mine = [&](const Tensor& t) { return t.narrow(0, begin, rows).contiguous(); };
      const TuneBatch part = tune_batch_of(mine(batch.sequences.ids), mine(batch.sequences.targets),
                                           mine(batch.sequences.documents));
      loss = ddp_ ? part_of_mean(part, [&](const Tensor& ids,
                                           const nn::TokenContext& how) { return (*ddp_)(ids, how); })
                  : part_of_mean(part, plain);
    }
    autocast.reset();
    sum += loss.item();
    // ddp and fsdp average the gradients of the ranks.
    if (size() > 1) loss = loss * static_cast<double>(size());
    scaler.scale(loss).backward();
  }
  return Job::sum(sum);
}

std::optional<double> TuneParallel::held_out_loss(nn::LanguageModel& model, const data::PackedSequences& data,
                                                  std::int64_t most, const std::function<bool()>& stops) {
  const NoGradGuard no_grad;
  model.eval();
  distributed::GlobalMean mean;
  bool stopped = false;
  const std::int64_t count = most > 0 ? std::min(most, data.size()) : data.size();
  // Rank r takes sequences r, r + ranks, ... All ranks call the model equally often, because the call of a
  // sharded model is collective: those that have no sequence left compute the first one, and do not count it.
  for (std::int64_t turn = 0; turn < count && !stopped; turn += size()) {
    const std::int64_t mine = turn + rank();
    const TuneBatch batch = tune_batch(data, {mine < count ? mine : 0});
    nn::TokenContext how = batch.context();
    if (batch.targets == 0) how.targets = with_a_target(how.targets);
    const AutocastScope autocast(precision_);
    const double loss = model(batch.sequences.ids, how).item();
    mean.add(loss, mine < count ? static_cast<double>(batch.targets) : 0);
    stopped = stops();
  }
  model.train();
  if (stopped) return std::nullopt;
  return mean.reduce(*group_);
}

std::optional<distributed::FullyShard::Unsharded> TuneParallel::unshard() const {
  if (!fsdp_) return std::nullopt;
  return fsdp_->unshard(/*units_inside=*/true);
}

}  // namespace apps::gpt
