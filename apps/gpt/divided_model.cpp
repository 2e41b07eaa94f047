#include "tapestry/apps/gpt/divided_model.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/distributed/comm/error.h"
#include "tapestry/distributed/pipeline/stage.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
#include "tapestry/nn/models/olmoe.h"

namespace apps::gpt {

using namespace tapestry;
using Tensors = std::vector<Tensor>;

namespace {

// How the model is called with inputs that may have several documents.
nn::TokenContext context_of(const Tensors& inputs) {
  return {.documents = inputs.size() < 2 ? Tensor() : inputs[1]};
}

// The cache of the device that computes a batch; null in training. A micro-batch without sequences, which
// ranks of a stage compute to make equal calls, has no tokens to append.
nn::KvCache* cache_for(std::vector<std::pair<Device, nn::KvCache>>& caches, const Tensor& batch) {
  for (auto& [device, cache] : caches)
    if (device == batch.device() && batch.size(0) > 0) return &cache;
  return nullptr;
}

}  // namespace

std::vector<nn::Module*> blocks_of(nn::LanguageModel& model) {
  nn::ModuleList* list = nullptr;
  if (auto* llama = dynamic_cast<nn::Llama*>(&model)) list = &llama->model.layers;
  else if (auto* gpt2 = dynamic_cast<nn::Gpt2*>(&model)) list = &gpt2->transformer.h;
  else list = &dynamic_cast<nn::Olmoe&>(model).model.layers;
  return list->children();
}

std::vector<distributed::Stage> DividedModel::stages(const std::vector<Device>& devices) const {
  using distributed::Stage;
  check<UsageError>(static_cast<std::size_t>(model_.num_layers()) >= devices.size(), "[gpt] a model of ",
                    model_.num_layers(), " layers cannot be divided into ", devices.size(), " stages");
  const std::vector<nn::Module*> blocks = blocks_of(model_);
  const std::size_t count = devices.size();
  auto* const llama = dynamic_cast<nn::Llama*>(&model_);
  auto* const gpt2 = dynamic_cast<nn::Gpt2*>(&model_);
  check<UsageError>(llama || gpt2, "[gpt] a ", model_.type_name(),
                    " cannot be divided into stages: the loss of its routers is computed from all layers");
  std::vector<Stage> stages;
  for (std::size_t s = 0; s < count; ++s) {
    const std::size_t begin = s * blocks.size() / count, end = (s + 1) * blocks.size() / count;
    const std::vector<nn::Module*> mine(blocks.begin() + static_cast<std::ptrdiff_t>(begin),
                                        blocks.begin() + static_cast<std::ptrdiff_t>(end));
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
    const auto compute = [=, &model = model_, precision = precision_, recomputes = recomputes_,
                          caches = caches_](const Tensors& inputs) {
      const AutocastScope autocast(precision);
      Tensor x = inputs[0];
      const nn::TokenContext tokens = model.resolved(context_of(inputs));
      nn::KvCache* const cache = cache_for(*caches, x);
      const auto block = [=](auto& layer, const Tensor& features, const auto& how) {
        return recomputes ? checkpoint(layer, features, how) : layer(features, how);
      };
      const auto layer = [&](std::size_t i) {
        return cache ? &cache->layer(static_cast<std::int64_t>(begin + i)) : nullptr;
      };
      if (llama) {
        if (first) x = llama->model.embed_tokens(x);
        nn::LlamaBlockContext how{.mask = tokens.mask, .documents = tokens.documents};
        if (tokens.positions.defined())
          how.angles = llama->model.rotary_emb.angles(tokens.positions, x.dtype());
        for (std::size_t i = 0; i < mine.size(); ++i) {
          how.cache = layer(i);
          x = block(dynamic_cast<nn::LlamaDecoderLayer&>(*mine[i]), x, how);
        }
      } else {
        if (first) x = gpt2->transformer.embed(x, tokens.positions, layer(0));
        for (std::size_t i = 0; i < mine.size(); ++i)
          x = block(
              dynamic_cast<nn::Gpt2Block&>(*mine[i]), x,
              nn::Gpt2BlockContext{.cache = layer(i), .mask = tokens.mask, .documents = tokens.documents});
      }
      if (last)
        return Tensors{
            model.head(llama ? llama->model.norm(x) : gpt2->transformer.ln_f(x), {.last = !caches->empty()})};
      return inputs.size() > 1 ? Tensors{x, inputs[1]} : Tensors{x};
    };
    stages.emplace_back(compute, devices[s], modules);
  }
  return stages;
}

distributed::ModelParts DividedModel::parts() {
  const auto counted = [](const Tensor& mean, const Tensors& targets) {
    return distributed::Loss{mean, static_cast<double>(targets[0].numel())};
  };
  distributed::ModelParts parts{
      .units = blocks_of(model_),
      .loss =
          [=, this](const Tensors& logits, const Tensors& targets) {
            const AutocastScope autocast(precision_);
            return counted(cross_entropy(logits[0].flatten(0, 1), targets[0].flatten()), targets);
          },
      .forward_loss =
          [=, this](const Tensors& inputs, const Tensors& targets) {
            const AutocastScope autocast(precision_);
            nn::TokenContext how = context_of(inputs);
            how.targets = targets[0];
            return counted(model_(inputs[0], how), targets);
          },
      .stages = [this](const std::vector<Device>& devices) { return stages(devices); },
      .sequence_dim = 1,
      .has_documents = has_documents_};
  // A strategy with a forward may gather its logits in training, which takes more memory than the loss.
  if (!calls_model())
    parts.forward = [this](const Tensors& inputs) {
      const AutocastScope autocast(precision_);
      nn::TokenContext how = context_of(inputs);
      how.cache = cache_for(*caches_, inputs[0]);
      how.last = how.cache != nullptr;
      return Tensors{model_(inputs[0], how)};
    };
  return parts;
}

std::vector<std::int64_t> DividedModel::generate(std::span<const std::int64_t> prompt,
                                                 const nn::GenerateOptions& options, nn::Sampler& sampler) {
  if (calls_model())
    return strategy_.logs() ? nn::generate(model_, prompt, options, sampler) : std::vector<std::int64_t>();
  const auto given = static_cast<std::int64_t>(prompt.size());
  check(given > 0 && given < model_.context_length(), "[gpt] the prompt has ", given,
        " tokens, but the context of the model has ", model_.context_length(),
        "; pass at least one, and leave room for an answer");
  const std::int64_t count = std::min(options.max_new_tokens, model_.context_length() - given);
  if (count <= 0) return {};
  struct Clear {
    Caches& caches;
    ~Clear() { caches.clear(); }
  } const clear{*caches_};
  const Device device = strategy_.devices()[0];
  for (const Device d : strategy_.devices()) caches_->emplace_back(d, model_.make_cache(given + count));
  std::vector<std::int64_t> text(prompt.begin(), prompt.end());
  distributed::Batch batch{{tensor(text, {1, given}).to(device)},
                           {zeros({1, 1}, {DType::i64, device})},  // no loss is read
                           true,
                           /*whole=*/true};
  for (std::int64_t i = 0; i < count; ++i) {
    // Of the ranks that read different samples in training, the first draws; of the stages, the last.
    double drawn = 0;
    std::exception_ptr thrown;  // the other ranks must learn of it, because they wait for this one
    const auto guarded = [&](const auto& fn) {
      try {
        fn();
      } catch (...) {
        thrown = std::current_exception();
      }
    };
    const auto sum = [&](double value) {
      const std::vector<double> all = strategy_.sum({value, thrown ? 1.0 : 0.0});
      if (thrown) std::rethrow_exception(thrown);
      check<distributed::DistributedError>(all[1] == 0,
                                           "[gpt] another rank failed while it drew or wrote a token");
      return all[0];
    };
    strategy_.evaluate(
        1, [&](std::int64_t) { return batch; }, {},
        [&](const Tensors& outputs, const distributed::Batch&) {
          if (strategy_.data_rank() == 0)
            guarded([&] { drawn = static_cast<double>(sampler(outputs[0].select(0, 0).flatten(), text)); });
        });
    const auto token = static_cast<std::int64_t>(sum(drawn));
    text.push_back(token);
    bool ended = false;
    guarded([&] { ended = options.on_token && !options.on_token(token); });
    if (sum(ended ? 1 : 0) > 0) break;
    if (std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end()) break;
    batch.inputs[0] = tensor(std::vector<std::int64_t>{token}, {1, 1}).to(device);
  }
  return {text.begin() + given, text.end()};
}

}  // namespace apps::gpt
