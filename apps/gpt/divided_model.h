#pragma once
// A language model under a distributed::Strategy: what `gpt train`, `tune` and `generate` say of it, and how
// it writes text although a process may have a part of it alone.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/distributed/strategy/strategy.h"
#include "tapestry/nn/models/generate.h"

namespace apps::gpt {

/// The blocks of a model, each of which takes and returns features.
std::vector<tapestry::nn::Module*> blocks_of(tapestry::nn::LanguageModel& model);

class DividedModel {
 public:
  /// Both must outlive this object and what parts() returns. `precision` is that of AutocastScope. With
  /// `has_documents`, sequences may have several documents. With `recomputes`, stages compute their blocks
  /// again in backward.
  DividedModel(tapestry::distributed::Strategy& strategy, tapestry::nn::LanguageModel& model,
               const std::string& precision, bool has_documents = false, bool recomputes = false)
      : strategy_(strategy),
        model_(model),
        precision_(precision),
        has_documents_(has_documents),
        recomputes_(recomputes) {}

  /// For Strategy::wrap(). Inputs are token ids (N, L) and, if the sequences have several documents, the
  /// document of each token; targets are words (N, L). Losses count words.
  tapestry::distributed::ModelParts parts();

  /// nn::generate() after Strategy::wrap(). Collective over the job: all ranks pass the same prompt and the
  /// same options but on_token. Each token is drawn on one rank, so the ranks need not round equally.
  /// Generation ends on all of them if on_token of any says so. The new tokens are returned on rank 0; other
  /// ranks may get none. Throws ValueError as nn::generate() does.
  std::vector<std::int64_t> generate(std::span<const std::int64_t> prompt,
                                     const tapestry::nn::GenerateOptions& options,
                                     tapestry::nn::Sampler& sampler);

 private:
  // One process can call the model for itself.
  bool calls_model() const { return strategy_.can_call_model() && !strategy_.calls_are_collective(); }
  std::vector<tapestry::distributed::Stage> stages(const std::vector<tapestry::Device>& devices) const;

  tapestry::distributed::Strategy& strategy_;
  tapestry::nn::LanguageModel& model_;
  const std::string precision_;
  const bool has_documents_, recomputes_;
  // While text is written: one for each device. Forward and the stages then append the tokens to it, each to
  // the layers that it computes, and return the logits of the last token alone.
  using Caches = std::vector<std::pair<tapestry::Device, tapestry::nn::KvCache>>;
  const std::shared_ptr<Caches> caches_ = std::make_shared<Caches>();
};

}  // namespace apps::gpt
