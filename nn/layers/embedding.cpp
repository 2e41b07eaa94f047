#include "tapestry/nn/layers/embedding.h"

#include "tapestry/autograd/ops/embedding.h"
#include "tapestry/nn/init.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {
EmbeddingOptions checked(EmbeddingOptions o) {
  check(o.num_embeddings > 0 && o.embedding_dim > 0,
        "[Embedding] num_embeddings and embedding_dim must be positive but are ", o.num_embeddings, " and ",
        o.embedding_dim, "; set both");
  if (o.padding_idx) {
    check<IndexError>(*o.padding_idx >= -o.num_embeddings && *o.padding_idx < o.num_embeddings,
                      "[Embedding] padding_idx ", *o.padding_idx, " is not a row of ", o.num_embeddings);
    if (*o.padding_idx < 0) *o.padding_idx += o.num_embeddings;
  }
  return o;
}
Tensor weight_of(const EmbeddingOptions& o) {
  const Tensor weight = init::normal_(empty({o.num_embeddings, o.embedding_dim}));
  if (o.padding_idx) init::zeros_(weight.select(0, *o.padding_idx));
  return weight;
}
}  // namespace

Embedding::Embedding(const Options& o) : options(checked(o)), weight(param("weight", weight_of(options))) {}

Tensor Embedding::forward(const Tensor& indices) { return embedding(weight, indices, options.padding_idx); }

std::string Embedding::options_text() const {
  detail::OptionsText text;
  text.add("num_embeddings", options.num_embeddings).add("embedding_dim", options.embedding_dim);
  if (options.padding_idx) text.add("padding_idx", *options.padding_idx);
  return text.str();
}

}  // namespace tapestry::nn
