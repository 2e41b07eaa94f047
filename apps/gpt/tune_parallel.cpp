#include "tapestry/apps/gpt/tune_parallel.h"

#include <algorithm>
#include <utility>

#include "tapestry/apps/common/precision.h"
#include "tapestry/apps/gpt/parallel.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"

namespace apps::gpt {

using namespace tapestry;

namespace {

constexpr std::int64_t kIgnored = -100;  // a target without a loss

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
          .parts = static_cast<int>(o.accumulate),
          .has_stages = true,
          .live = o.live,
          .identity = to_json(same) + o.run_dir + (o.resumed ? " resumed" : " new")};
}

// Rows of a batch without a target have no loss. A loss of a target that counts nothing takes its place where
// a call is needed, because the ranks make their calls together and every device has a loss.
Tensor with_a_target(const Tensor& targets) {
  Tensor some = targets.clone();
  some.data<std::int64_t>()[0] = 0;
  return some;
}

distributed::Batch batch_of(const TuneBatch& b) {
  return {{b.sequences.ids, b.sequences.documents}, {b.sequences.targets}};
}

}  // namespace

TuneParallel::TuneParallel(const TuneOptions& o)
    : TrainingJob(job_of(o)), keep_activations_(o.keep_activations), precision_(o.precision) {
  check_batch(*this, "gpt tune", o.batch_size, 1);
}

void TuneParallel::wrap(nn::LanguageModel& model) {
  const auto loss = [&model, this](const std::vector<Tensor>& inputs, const std::vector<Tensor>& targets) {
    const TuneBatch rows = tune_batch_of(inputs[0], targets[0], inputs[1]);
    nn::TokenContext how = rows.context(model.divided_sequence != nullptr);
    how.checkpoint = !keep_activations_;
    if (rows.targets == 0) how.targets = with_a_target(how.targets);
    const AutocastScope autocast(precision_);
    return distributed::Loss{model(rows.sequences.ids, how), static_cast<double>(rows.targets)};
  };
  divided_ = std::make_unique<DividedModel>(strategy(), model, precision_, /*has_documents=*/true,
                                            /*recomputes=*/!keep_activations_);
  distributed::ModelParts parts = divided_->parts();
  parts.forward_loss = loss;
  // Stages compute this loss, and so do evaluations whose outputs are wanted.
  parts.loss = [this](const std::vector<Tensor>& logits, const std::vector<Tensor>& targets) {
    const AutocastScope autocast(precision_);
    return distributed::Loss{cross_entropy(logits[0].flatten(0, 1), targets[0].flatten()),
                             targets[0].ne(kIgnored).sum().item()};
  };
  strategy().wrap(model, std::move(parts));
}

std::optional<double> TuneParallel::forward_backward(const data::PackedSequences& data,
                                                     const std::vector<std::int64_t>& sequences,
                                                     optim::GradScaler& scaler) {
  const std::int64_t targets = tune_batch(data, sequences).targets;
  if (targets == 0) return std::nullopt;
  const auto read = [&](const distributed::Part& part) {
    const distributed::Samples mine = strategy().share(static_cast<std::int64_t>(sequences.size()), part);
    const auto first = sequences.begin() + mine.first;
    return batch_of(tune_batch(data, {first, first + mine.count}));
  };
  const double own = strategy().gradients(read, static_cast<double>(targets), &scaler).loss.item();
  return strategy().sum({own})[0];
}

std::optional<double> TuneParallel::held_out_loss(const data::PackedSequences& data, std::int64_t most,
                                                  const std::function<bool()>& stops) {
  const std::int64_t count = most > 0 ? std::min(most, data.size()) : data.size();
  return mean_loss(
      *this, count, [&](std::int64_t i) { return batch_of(tune_batch(data, {i})); }, stops);
}

}  // namespace apps::gpt
