#include "tapestry/apps/gpt/parallel.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/init.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/zero/zero.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
#include "tapestry/nn/optim/adam.h"

namespace apps::gpt {

using namespace tapestry;
using distributed::ReduceOp;

namespace {

bool is_job(const std::string& parallel) {
  return parallel == "ddp" || parallel == "zero1" || parallel == "zero2" || parallel == "fsdp";
}

// The blocks of the model, each of which takes and returns features.
std::vector<nn::Module*> blocks_of(nn::LanguageModel& model) {
  nn::ModuleList* list = nullptr;
  if (auto* llama = dynamic_cast<nn::Llama*>(&model)) list = &llama->model.layers;
  else list = &dynamic_cast<nn::Gpt2&>(model).transformer.h;
  return list->children();
}

Tensor cross_entropy_of(const Tensor& logits, const Tensor& targets) {
  return cross_entropy(logits.flatten(0, 1), targets.flatten());
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
    const auto compute = [=, &model](const Tensor& input) {
      Tensor x = input;
      if (first && llama) x = llama->model.embed_tokens(x);
      if (first && gpt2) {
        const Tensor positions = arange(0, x.size(1), 1, {DType::i64, x.device()});
        x = gpt2->transformer.drop(gpt2->transformer.wte(x) + gpt2->transformer.wpe(positions));
      }
      for (nn::Module* const block : mine) x = (*block)(x);
      if (!last) return x;
      return linear(llama ? llama->model.norm(x) : gpt2->transformer.ln_f(x), model.output_weight());
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

Parallel::Parallel(const TrainOptions& o) : options_(o) {
  const distributed::Environment job = distributed::read_environment();
  if (job.world_size > 1 && !is_job(o.parallel))
    fail<UsageError>(
        "[gpt train] this is one of ", job.world_size,
        " processes, which would all train the same model; add --parallel ddp, zero1, zero2 or fsdp");
  if ((job.restart > 0 || job.max_restarts > 0) && o.resume != "auto")
    fail<UsageError>(
        "[gpt train] the launcher restarts this job after a failure, and a restart would begin again or "
        "refuse the "
        "run; add --run-dir DIR --resume auto, or start the job without restarts");
  if (o.precision != "f32")
    fail<UsageError>("[gpt train] --precision ", o.precision,
                     " comes with mixed precision, which Tapestry does not have yet; train with f32");
  const std::int64_t parts = job.world_size * o.accumulate;
  if (o.batch_size % parts != 0)
    fail<UsageError>("[gpt train] --batch-size is ", o.batch_size, ", which cannot be divided into ",
                     o.accumulate, " parts on each of ", job.world_size, " ranks; choose a multiple of ",
                     parts);
  if (o.parallel == "pipeline" && !o.no_document_masks)
    fail<UsageError>(
        "[gpt train] the stages of a pipeline pass features alone, so they cannot keep documents apart; add "
        "--no-document-masks");
  if (o.parallel == "pipeline" && o.stages > o.layers && o.config.empty() && o.init.empty())
    fail<UsageError>("[gpt train] a model of ", o.layers, " layers cannot be divided into ", o.stages,
                     " stages");
  const Device device(o.device);
  if (o.parallel == "dp" || o.parallel == "pipeline") {
    // The number of logical CPU devices must be set before the first use of a device.
    if (device.is_cpu()) setenv("TAPESTRY_LOGICAL_DEVICES", std::to_string(o.stages).c_str(), 0);
    for (int i = 0; i < o.stages; ++i) devices_.emplace_back(device.type, i);
    check<UsageError>(device_count(device.type) >= o.stages, "[gpt train] --stages is ", o.stages,
                      ", but there are ", device_count(device.type), " devices of type ",
                      device.is_cpu() ? "cpu" : "cuda");
  }
  group_ = distributed::init_process_group();
  requests_.emplace(group_);
  if (size() == 1) return;
  // Ranks may have other devices and numbers of threads.
  TrainOptions same = o;
  same.device = "cpu";
  same.threads = 0;
  const std::string own = to_json(same) + o.run_dir + (o.resumed ? " resumed" : " new");
  const std::string theirs = distributed::broadcast_text(*group_, own, 0, "options");
  distributed::on_all_ranks(*group_, "gpt train", [&] {
    if (own != theirs)
      fail<UsageError>("[gpt train] rank ", rank(), " has other options than rank 0, or sees another run in ",
                       o.run_dir,
                       "; start all ranks with the same options, and choose a --run-dir that all can see");
  });
}

void Parallel::wrap(nn::LanguageModel& model) {
  const std::string& parallel = options_.parallel;
  if (parallel == "dp") dp_.emplace(model, devices_);
  if (parallel == "pipeline") {
    check<UsageError>(model.num_layers() >= options_.stages, "[gpt train] a model of ", model.num_layers(),
                      " layers cannot be divided into ", options_.stages, " stages");
    pipeline_.emplace(stages_of(model, devices_),
                      distributed::PipelineOptions{.micro_batches = static_cast<int>(options_.accumulate)});
  }
  if (parallel == "fsdp") {
    const distributed::FsdpOptions sharding{.group = group_, .device = Device(options_.device)};
    for (nn::Module* const block : blocks_of(model)) distributed::fully_shard(*block, sharding);
    fsdp_.emplace(distributed::fully_shard(model, sharding));
  } else if (is_job(parallel)) {
    ddp_.emplace(model, distributed::DdpOptions{.process_group = group_});
  }
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

double Parallel::forward_backward(nn::LanguageModel& model, Windows& text, std::int64_t step) {
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
    return pipeline_->forward_backward(b.ids, b.targets, cross_entropy_of).item();
  }
  const std::int64_t parts = options_.accumulate, rows = options_.batch_size / (parts * size());
  double sum = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const Batch b = batch(begin + (part * size() + rank()) * rows, rows);
    // All parts but the last keep their gradients on this rank.
    std::optional<distributed::DdpBase::NoSync> ddp_quiet;
    std::unique_ptr<distributed::FullyShard::NoSync> fsdp_quiet;
    if (part + 1 < parts && ddp_) ddp_quiet.emplace(*ddp_);
    if (part + 1 < parts && fsdp_)
      fsdp_quiet = std::unique_ptr<distributed::FullyShard::NoSync>(
          new distributed::FullyShard::NoSync(fsdp_->no_sync()));
    Tensor loss;
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
    sum += loss.item();
    if (parts > 1) loss = loss * (1.0 / static_cast<double>(parts));
    loss.backward();
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
    const double loss = pipeline_
                            ? cross_entropy_of((*pipeline_)(b.ids), b.targets.to(devices_.back())).item()
                            : loss_of(model, b).item();
    mean.add(loss, mine < batches ? static_cast<double>(b.ids.size(0)) : 0);
    stopped = stops();
  }
  model.train();
  if (stopped) return std::nullopt;
  return mean.reduce(*group_);
}

nn::StateDict Parallel::full_state(nn::LanguageModel& model) const {
  nn::StateDict all;
  for (const auto& [name, parameter] : model.named_parameters()) {
    Tensor full = parameter.tensor().detach();
    if (const auto& sharding = parameter.sharding()) {
      full = empty(sharding->full_sizes(), {parameter.dtype(), parameter.device()});
      sharding->gather(0, full);
    }
    if (first()) all.emplace_back(name, full.to(kCPU).contiguous());
  }
  return all;
}

double Parallel::sum(double own) const {
  if (size() == 1) return own;
  group_->all_reduce(from_blob(&own, {1}, DType::f64), ReduceOp::sum, "sum").wait();
  return own;
}

}  // namespace apps::gpt
