#include "tapestry/nn/layers/embedding.h"

#include "tapestry/autograd/ops/embedding.h"
#include "tapestry/autograd/ops/packed_linear.h"
#include "tapestry/nn/init.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {
template <class Options>
Options checked(const char* layer, Options o) {
  check(o.num_embeddings > 0 && o.embedding_dim > 0, "[", layer,
        "] num_embeddings and embedding_dim must be positive but are ", o.num_embeddings, " and ",
        o.embedding_dim, "; set both");
  if (o.padding_idx) {
    check<IndexError>(*o.padding_idx >= -o.num_embeddings && *o.padding_idx < o.num_embeddings, "[", layer,
                      "] padding_idx ", *o.padding_idx, " is not a row of ", o.num_embeddings);
    if (*o.padding_idx < 0) *o.padding_idx += o.num_embeddings;
  }
  return o;
}
template <class Options>
Tensor weight_of(const Options& o) {
  const Tensor weight = init::normal_(empty({o.num_embeddings, o.embedding_dim}));
  if (o.padding_idx) init::zeros_(weight.select(0, *o.padding_idx));
  return weight;
}
}  // namespace

Embedding::Embedding(const Options& o)
    : options(checked("Embedding", o)), weight(param("weight", weight_of(options))) {}

Tensor Embedding::forward(const Tensor& indices) {
  if (divided_forward) return divided_forward(indices);
  if (packed_.defined()) return packed_embedding(packed_, indices);
  return embedding(weight, indices,
                   EmbeddingParams{.padding_idx = options.padding_idx,
                                   .max_norm = options.max_norm,
                                   .norm_type = options.norm_type,
                                   .scale_grad_by_freq = options.scale_grad_by_freq});
}

std::string Embedding::why_not_divided() const {
  if (!options.max_norm) return {};
  return concat({"max_norm ", *options.max_norm,
                 ", and each rank or replica would scale down the rows that its own part of a batch selects; "
                 "leave max_norm out, and scale the rows of the whole weight after Optimizer::step()"});
}

std::string Embedding::options_text() const {
  detail::OptionsText text;
  text.add("num_embeddings", options.num_embeddings).add("embedding_dim", options.embedding_dim);
  if (options.padding_idx) text.add("padding_idx", *options.padding_idx);
  if (options.max_norm) text.add("max_norm", *options.max_norm);
  text.add("norm_type", options.norm_type, 2.0);
  text.add("scale_grad_by_freq", options.scale_grad_by_freq, false);
  return text.str();
}

EmbeddingBag::EmbeddingBag(const Options& o)
    : options(checked("EmbeddingBag", o)), weight(param("weight", weight_of(options))) {}

Tensor EmbeddingBag::forward(const Tensor& indices) { return forward(indices, {}); }
Tensor EmbeddingBag::forward(const Tensor& indices, const Tensor& offsets, const Tensor& per_sample_weights) {
  return embedding_bag(weight, indices,
                       {.mode = options.mode,
                        .offsets = offsets,
                        .include_last_offset = options.include_last_offset && offsets.defined(),
                        .per_sample_weights = per_sample_weights,
                        .padding_idx = options.padding_idx});
}
Tensor EmbeddingBag::operator()(const Tensor& indices, const Tensor& offsets,
                                const Tensor& per_sample_weights) const {
  return call(*this, indices, offsets, per_sample_weights);
}

std::string EmbeddingBag::options_text() const {
  constexpr const char* kModes[] = {"sum", "mean", "max"};
  detail::OptionsText text;
  text.add("num_embeddings", options.num_embeddings)
      .add("embedding_dim", options.embedding_dim)
      .add("mode", kModes[static_cast<int>(options.mode)])
      .add("include_last_offset", options.include_last_offset, false);
  if (options.padding_idx) text.add("padding_idx", *options.padding_idx);
  return text.str();
}

}  // namespace tapestry::nn
