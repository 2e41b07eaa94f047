#include "tapestry/apps/gpt/parallel.h"

#include <algorithm>
#include <utility>

#include "tapestry/apps/common/precision.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/distributed/zero/zero.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
#include "tapestry/nn/optim/adam.h"

namespace apps::gpt {

using namespace tapestry;

namespace {

JobOptions job_of(const TrainOptions& o) {
  if (o.parallel == "pipeline" && o.stages > o.layers && o.config.empty() && o.init.empty())
    fail<UsageError>("[gpt train] a model of ", o.layers, " layers cannot be divided into ", o.stages,
                     " stages");
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
          .batch_size = o.batch_size,
          .parts = o.accumulate,
          .identity = to_json(same) + o.run_dir + (o.resumed ? " resumed" : " new")};
}

Tensor cross_entropy_of(const Tensor& logits, const Tensor& targets) {
  return cross_entropy(logits.flatten(0, 1), targets.flatten());
}

std::vector<Tensor> pipeline_inputs(const Batch& b) {
  return b.documents.defined() ? std::vector<Tensor>{b.ids, b.documents} : std::vector<Tensor>{b.ids};
}

std::vector<distributed::Stage> stages_of(nn::LanguageModel& model, const std::vector<Device>& devices) {
  using distributed::Stage;
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
        return std::vector<Tensor>{
            linear(llama ? llama->model.norm(x) : gpt2->transformer.ln_f(x), model.output_weight())};
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

Parallel::Parallel(const TrainOptions& o) : Job(job_of(o)), options_(o) {}

void Parallel::wrap(nn::LanguageModel& model) {
  if (options_.parallel != "pipeline") return Job::wrap(model);
  check<UsageError>(model.num_layers() >= options_.stages, "[gpt train] a model of ", model.num_layers(),
                    " layers cannot be divided into ", options_.stages, " stages");
  pipeline_.emplace(stages_of(model, devices_),
                    distributed::PipelineOptions{.micro_batches = static_cast<int>(options_.accumulate)});
}

std::unique_ptr<optim::Optimizer> Parallel::make_optimizer(nn::LanguageModel& model) const {
  optim::AdamWOptions options{
      .lr = options_.lr, .betas = {0.9, options_.beta2}, .weight_decay = options_.weight_decay};
  std::vector<optim::ParamGroup<optim::AdamWOptions>> groups{{{}, options}, {{}, options}};
  groups[1].options.weight_decay = 0;
  for (const nn::Parameter& p : model.parameters()) groups[p->dim() >= 2 ? 0 : 1].params.push_back(p);
  if (options_.parallel != "zero1" && options_.parallel != "zero2")
    return std::make_unique<optim::AdamW>(std::move(groups));
  const distributed::ZeroOptions zero{.process_group = group_, .stage = options_.parallel == "zero1" ? 1 : 2};
  return std::make_unique<distributed::ZeroRedundancyOptimizer<optim::AdamW>>(std::move(groups), zero);
}

double Parallel::forward_backward(nn::LanguageModel& model, Windows& text, std::int64_t step,
                                  optim::GradScaler& scaler) {
  const Device device(options_.device);
  const auto batch = [&](std::int64_t first, std::int64_t count) {
    Batch b = text.batch(first, count);
    if (options_.no_document_masks) b.documents = {};
    b.ids = b.ids.to(device);
    b.targets = b.targets.to(device);
    if (b.documents.defined()) b.documents = b.documents.to(device);
    return b;
  };
  const std::int64_t begin = step * options_.batch_size;
  if (pipeline_) {
    const Batch b = batch(begin, options_.batch_size);
    const AutocastScope autocast(options_.precision);
    if (!scaler.is_enabled())
      return pipeline_->forward_backward(pipeline_inputs(b), b.targets, cross_entropy_of).item();
    // The losses of the micro-batches are multiplied by the scale on the last stage.
    const Tensor scale = scaler.scale(ones({}, {DType::f32, devices_.back()}));
    const auto scaled = [&](const Tensor& logits, const Tensor& targets) {
      return cross_entropy_of(logits, targets) * scale;
    };
    return pipeline_->forward_backward(pipeline_inputs(b), b.targets, scaled).item() / scale.item();
  }
  const std::int64_t parts = options_.accumulate, rows = options_.batch_size / (parts * size());
  double sum = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const Batch b = batch(begin + (part * size() + rank()) * rows, rows);
    // All parts but the last keep their gradients on this rank.
    const auto no_sync = part + 1 < parts ? quiet() : std::nullopt;
    Tensor loss;
    std::optional<AutocastScope> autocast(options_.precision);
    if (dp_ && b.documents.defined())
      loss = dp_->loss(std::make_tuple(b.ids, b.targets, b.documents),
                       [&](const Tensor& ids, const Tensor& targets, const Tensor& documents) {
                         return loss_of(model, {ids, targets, documents});
                       });
    else if (dp_)
      loss = dp_->loss(std::make_tuple(b.ids, b.targets), [&](const Tensor& ids, const Tensor& targets) {
        return loss_of(model, {ids, targets, {}});
      });
    else if (ddp_ && b.documents.defined())
      loss = (*ddp_)(b.ids, nn::TokenContext{.positions = nn::document_positions(b.documents),
                                             .mask = nn::document_mask(b.documents),
                                             .targets = b.targets});
    else if (ddp_) loss = (*ddp_)(b.ids, nn::TokenContext{.targets = b.targets});
    else loss = loss_of(model, b);
    autocast.reset();
    sum += loss.item();
    if (parts > 1) loss = loss * (1.0 / static_cast<double>(parts));
    scaler.scale(loss).backward();
  }
  return sum / static_cast<double>(parts);
}

std::optional<double> Parallel::held_out_loss(nn::LanguageModel& model, const Windows& text,
                                              std::int64_t windows, const std::function<bool()>& stops) {
  const NoGradGuard no_grad;
  const Device device(options_.device);
  const std::int64_t rows = std::max<std::int64_t>(options_.batch_size / (options_.accumulate * size()), 1);
  const std::int64_t batches = (windows + rows - 1) / rows;
  model.eval();
  distributed::GlobalMean mean;
  bool stopped = false;
  // Rank r takes batches r, r + ranks, ... All ranks call the model equally often, because the call of a
  // sharded model is collective: those that have no batch left compute the first one, and do not count it.
  for (std::int64_t turn = 0; turn < batches && !stopped; turn += size()) {
    const std::int64_t mine = turn + rank(), index = mine < batches ? mine : 0;
    Batch b = text.in_order(index * rows, std::min(rows, windows - index * rows));
    if (options_.no_document_masks) b.documents = {};
    b.ids = b.ids.to(device);
    b.targets = b.targets.to(device);
    if (b.documents.defined()) b.documents = b.documents.to(device);
    const AutocastScope autocast(options_.precision);
    const double loss =
        pipeline_ ? cross_entropy_of((*pipeline_)(pipeline_inputs(b)), b.targets.to(devices_.back())).item()
                  : loss_of(model, b).item();
    mean.add(loss, mine < batches ? static_cast<double>(b.ids.size(0)) : 0);
    stopped = stops();
  }
  model.train();
  if (stopped) return std::nullopt;
  return mean.reduce(*group_);
}

}  // namespace apps::gpt
