#include "tapestry/apps/gpt/parallel.h"

#include <algorithm>
#include <utility>

#include "tapestry/apps/common/precision.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/distributed/pipeline/stage.h"
#include "tapestry/distributed/zero/make_optimizer.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
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

std::vector<distributed::Stage> stages_of(nn::LanguageModel& model, const std::vector<Device>& devices,
                                          const std::string& precision) {
  using distributed::Stage;
  check<UsageError>(static_cast<std::size_t>(model.num_layers()) >= devices.size(), "[gpt train] a model of ",
                    model.num_layers(), " layers cannot be divided into ", devices.size(), " stages");
  const std::vector<nn::Module*> blocks = blocks_of(model);
  const std::size_t count = devices.size();
  auto* const llama = dynamic_cast<nn::Llama*>(&model);
  auto* const gpt2 = dynamic_cast<nn::Gpt2*>(&model);
  std::vector<Stage> stages;
  for (std::size_t s = 0; s < count; ++s) {
    const std::vector<nn::Module*> mine(
        blocks.begin() + static_cast<std::ptrdiff_t>(s * blocks.size() / count),
        blocks.begin() + static_cast<std::ptrdiff_t>((s + 1) * blocks.size() / count));
    Stage::Modules modules;
    if (s == 0 && llama) modules.emplace_back(llama->model.embed_tokens);
    if (s == 0 && gpt2)
      modules.insert(modules.end(), {gpt2->transformer.wte, gpt2->transformer.wpe, gpt2->transformer.drop});
    for (nn::Module* const block : mine) modules.emplace_back(*block);
    const bool first = s == 0, last = s + 1 == count;
    if (last) {
      if (llama) modules.emplace_back(llama->model.norm);
      else modules.emplace_back(gpt2->transformer.ln_f);
      if (nn::Linear* const head = llama ? llama->lm_head : gpt2->lm_head) modules.emplace_back(*head);
      else if (llama) modules.emplace_back(llama->model.embed_tokens);
      else modules.emplace_back(gpt2->transformer.wte);
    }
    // Stages take and return the features and, if the sequences have several documents, the document of each
    // token, from which each stage computes the mask and the positions.
    const auto compute = [=, &model](const std::vector<Tensor>& inputs) {
      const AutocastScope autocast(precision);
      Tensor x = inputs[0], positions, mask;
      const bool several = inputs.size() > 1;
      if (several) positions = nn::document_positions(inputs[1]), mask = nn::document_mask(inputs[1]);
      if (llama) {
        if (first) x = llama->model.embed_tokens(x);
        nn::LlamaBlockContext how{.mask = mask};
        if (several) how.angles = llama->model.rotary_emb.angles(positions, x.dtype());
        for (nn::Module* const block : mine) x = dynamic_cast<nn::LlamaDecoderLayer&>(*block)(x, how);
      } else {
        if (first) {
          if (!several) positions = arange(0, x.size(1), 1, {DType::i64, x.device()});
          x = gpt2->transformer.drop(gpt2->transformer.wte(x) + gpt2->transformer.wpe(positions));
        }
        for (nn::Module* const block : mine)
          x = dynamic_cast<nn::Gpt2Block&>(*block)(x, nn::Gpt2BlockContext{.mask = mask});
      }
      if (last)
        return std::vector<Tensor>{model.head(llama ? llama->model.norm(x) : gpt2->transformer.ln_f(x))};
      return several ? std::vector<Tensor>{x, inputs[1]} : std::vector<Tensor>{x};
    };
    stages.emplace_back(compute, devices[s], modules);
  }
  return stages;
}

}  // namespace

Tensor loss_of(nn::LanguageModel& model, const Batch& batch) {
  if (!batch.documents.defined()) return model(batch.ids, {.targets = batch.targets});
  return model(batch.ids, {.positions = nn::document_positions(batch.documents),
                           .mask = nn::document_mask(batch.documents),
                           .targets = batch.targets});
}

std::vector<nn::Module*> blocks_of(nn::LanguageModel& model) {
  nn::ModuleList* list = nullptr;
  if (auto* llama = dynamic_cast<nn::Llama*>(&model)) list = &llama->model.layers;
  else list = &dynamic_cast<nn::Gpt2&>(model).transformer.h;
  return list->children();
}

void check_batch(const TrainingJob& job, const char* command, std::int64_t batch_size, std::int64_t parts) {
  const std::int64_t ranks = job.strategy().data_size(), all = parts * ranks;
  if (batch_size % all != 0)
    fail<UsageError>("[", command, "] --batch-size is ", batch_size, ", which cannot be divided into ", parts,
                     " parts on each of ", ranks, " ranks; choose a multiple of ", all);
}

Parallel::Parallel(const TrainOptions& o) : TrainingJob(job_of(o)), options_(o) {
  check_batch(*this, "gpt train", o.batch_size, o.accumulate);
  if (strategy().stages() > o.layers && o.config.empty() && o.init.empty())
    fail<UsageError>("[gpt train] a model of ", o.layers, " layers cannot be divided into ",
                     strategy().stages(), " stages");
}

void Parallel::wrap(nn::LanguageModel& model) {
  // Losses are weighted by sequences, which all have the same number of targets.
  const auto loss = [&model, this](const std::vector<Tensor>& inputs, const std::vector<Tensor>& targets) {
    const AutocastScope autocast(options_.precision);
    const Tensor mean = loss_of(model, {inputs[0], targets[0], inputs.size() > 1 ? inputs[1] : Tensor()});
    return distributed::Loss{mean, static_cast<double>(targets[0].size(0))};
  };
  const auto loss_of_logits = [this](const std::vector<Tensor>& logits, const std::vector<Tensor>& targets) {
    const AutocastScope autocast(options_.precision);
    const Tensor mean = cross_entropy(logits[0].flatten(0, 1), targets[0].flatten());
    return distributed::Loss{mean, static_cast<double>(targets[0].size(0))};
  };
  strategy().wrap(model, {.units = blocks_of(model),
                          .loss = loss_of_logits,
                          .forward_loss = loss,
                          .stages = [&model, this](const std::vector<Device>& devices) {
                            return stages_of(model, devices, options_.precision);
                          }});
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
  return strategy().gradients(read, static_cast<double>(options_.batch_size), &scaler).loss.item();
}

std::optional<double> Parallel::held_out_loss(const Windows& text, std::int64_t windows,
                                              const std::function<bool()>& stops) {
  const std::int64_t ranks = strategy().data_size(), rank = strategy().data_rank();
  const std::int64_t rows = std::max<std::int64_t>(options_.batch_size / (options_.accumulate * ranks), 1);
  const std::int64_t batches = (windows + rows - 1) / rows;
  // Rank r takes batches r, r + ranks, ... A rank that has none left computes the first one.
  const auto read = [&](std::int64_t turn) {
    const std::int64_t mine = turn * ranks + rank, index = mine < batches ? mine : 0;
    distributed::Batch batch = on_device(text.in_order(index * rows, std::min(rows, windows - index * rows)));
    batch.counts = mine < batches;
    return batch;
  };
  const auto result = strategy().evaluate((batches + ranks - 1) / ranks, read, stops);
  return result ? std::optional(result->mean()) : std::nullopt;
}

}  // namespace apps::gpt
