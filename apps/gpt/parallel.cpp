#include "tapestry/apps/gpt/parallel.h"

#include <algorithm>
#include <utility>

#include "tapestry/distributed/zero/make_optimizer.h"
#include "tapestry/nn/optim/adam.h"

namespace apps::gpt {

using namespace tapestry;

namespace {

JobOptions job_of(const TrainOptions& o) {
  // Ranks may have other devices and numbers of threads.
  TrainOptions same = o;
  same.device = "cpu";
  same.threads = 0;
  return {.command = "gpt train",
          .parallel = o.parallel,
          .device = o.device,
          .devices = o.stages,
          .devices_option = "--stages",
          .restartable = o.resume == "auto",
          .parts = static_cast<int>(o.accumulate),
          .has_stages = true,
          .live = o.live,
          .identity = to_json(same) + o.run_dir + (o.resumed ? " resumed" : " new")};
}

}  // namespace

void check_batch(const TrainingJob& job, const char* command, std::int64_t batch_size, std::int64_t parts) {
  const std::int64_t ranks = job.strategy().data_size(), all = parts * ranks;
  if (batch_size % all != 0)
    fail<UsageError>("[", command, "] --batch-size is ", batch_size, ", which cannot be divided into ", parts,
                     " parts on each of ", ranks, " ranks; choose a multiple of ", all);
}

std::optional<double> mean_loss(TrainingJob& job, std::int64_t batches,
                                const std::function<distributed::Batch(std::int64_t)>& read,
                                const std::function<bool()>& stops) {
  const std::int64_t ranks = job.strategy().data_size(), rank = job.strategy().data_rank();
  const auto result = job.strategy().evaluate((batches + ranks - 1) / ranks,
                                              [&](std::int64_t turn) {
                                                const std::int64_t mine = turn * ranks + rank;
                                                distributed::Batch batch = read(mine < batches ? mine : 0);
                                                batch.counts = mine < batches;
                                                return batch;
                                              },
                                              stops);
  return result ? std::optional(result->mean()) : std::nullopt;
}

Parallel::Parallel(const TrainOptions& o) : TrainingJob(job_of(o)), options_(o) {
  check_batch(*this, "gpt train", o.batch_size, o.accumulate);
  if (strategy().stages() > o.layers && o.config.empty() && o.init.empty())
    fail<UsageError>("[gpt train] a model of ", o.layers, " layers cannot be divided into ",
                     strategy().stages(), " stages");
}

void Parallel::wrap(nn::LanguageModel& model, bool has_documents) {
  targets_ = options_.batch_size * model.context_length();
  divided_ = std::make_unique<DividedModel>(strategy(), model, options_.precision, has_documents);
  strategy().wrap(model, divided_->parts());
}

std::unique_ptr<optim::Optimizer> Parallel::make_optimizer(nn::LanguageModel& model) const {
  optim::AdamWOptions options{
      .lr = options_.lr, .betas = {0.9, options_.beta2}, .weight_decay = options_.weight_decay};
  std::vector<optim::ParamGroup<optim::AdamWOptions>> groups{{{}, options}, {{}, options}};
  groups[1].options.weight_decay = 0;
  for (const nn::Parameter& p : model.parameters()) groups[p->dim() >= 2 ? 0 : 1].params.push_back(p);
  return distributed::make_optimizer<optim::AdamW>(strategy(), std::move(groups));
}

distributed::Batch Parallel::on_device(const Batch& b) const {
  const Device device(options_.device);
  distributed::Batch batch{{b.ids.to(device)}, {b.targets.to(device)}};
  if (b.documents.defined() && !options_.no_document_masks) batch.inputs.push_back(b.documents.to(device));
  return batch;
}

double Parallel::forward_backward(Windows& text, std::int64_t step, optim::GradScaler& scaler) {
  const auto read = [&](const distributed::Part& part) {
    const distributed::Samples mine = strategy().share(options_.batch_size, part);
    return on_device(text.batch(step * options_.batch_size + mine.first, mine.count));
  };
  return strategy().gradients(read, static_cast<double>(targets_), &scaler).loss.item();
}

std::optional<double> Parallel::held_out_loss(const Windows& text, std::int64_t windows,
                                              const std::function<bool()>& stops) {
  const std::int64_t rows =
      std::max<std::int64_t>(options_.batch_size / (options_.accumulate * strategy().data_size()), 1);
  return mean_loss(
      *this, (windows + rows - 1) / rows,
      [&](std::int64_t i) { return on_device(text.in_order(i * rows, std::min(rows, windows - i * rows))); },
      stops);
}

}  // namespace apps::gpt
