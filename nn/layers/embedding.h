#pragma once
#include <optional>

#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct EmbeddingOptions {
  using Layer = class Embedding;
  std::int64_t num_embeddings = 0, embedding_dim = 0;
  std::optional<std::int64_t> padding_idx = {};  ///< a row that starts at zero and gets no gradient
};

/// Looks up rows of weight (num_embeddings, embedding_dim) by integer indices. The weight starts with a
/// standard normal distribution.
class Embedding : public Module {
 public:
  using Options = EmbeddingOptions;
  explicit Embedding(const Options& options);
  Tensor forward(const Tensor& indices) override;
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
};

}  // namespace tapestry::nn
