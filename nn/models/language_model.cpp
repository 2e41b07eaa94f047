#include "tapestry/nn/models/language_model.h"

#include <utility>

#include "tapestry/autograd/ops/attention.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/linear_cross_entropy.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/packed_linear.h"
#include "tapestry/autograd/ops/scan.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/nn/init.h"
#include "tapestry/nn/internal/undivided.h"
#include "tapestry/nn/layers/embedding.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/layers/moe.h"

namespace tapestry::nn {

KvCache::KvCache(std::int64_t layers, std::int64_t capacity) {
  check(layers > 0, "[KvCache] a cache needs layers, but their number is ", layers);
  layers_.assign(static_cast<std::size_t>(layers), KeyValueCache(capacity));
}

void KvCache::truncate(std::int64_t length) {
  for (KeyValueCache& layer : layers_) layer.truncate(length);
}

KvCache LanguageModel::make_cache(std::int64_t capacity) const {
  check(capacity >= 0 && capacity <= context_length(), "[", type_name(), "] a cache of ", capacity,
        " tokens is larger than the context of ", context_length(), "; make it smaller");
  return KvCache(num_layers(), capacity > 0 ? capacity : context_length());
}

Device LanguageModel::device() const {
  return packed_output_weight().defined() ? kCPU : output_weight().device();
}

Tensor LanguageModel::forward(const Tensor& ids, const TokenContext& how) {
  const std::string op = type_name();
  tapestry::detail::check_defined(op.c_str(), ids, "ids");
  check<TypeError>(tapestry::contains(kIntegers, ids.dtype()), "[", op, "] ids are ", ids.dtype(),
                   "; token ids must be integers");
  check(ids.dim() == 2 && ids.size(1) > 0, "[", op, "] ids have shape ", ids.sizes(),
        "; expected (N, L) with an L of 1 or more; unsqueeze(0) makes a batch of one sequence");
  const std::int64_t length = ids.size(1), past = how.cache ? how.cache->length() : 0;
  check(past + length <= context_length(), "[", op, "] ", length, " tokens after ", past,
        " exceed the context of ", context_length(), " tokens; shorten the text, or begin a new one");
  if (how.cache) {
    check(static_cast<std::int64_t>(how.cache->size()) == num_layers(), "[", op, "] the cache has ",
          how.cache->size(), " layers, the model ", num_layers(), "; make it with make_cache()");
    check(past + length <= how.cache->capacity(), "[", op, "] ", length, " tokens after ", past,
          " exceed the cache of ", how.cache->capacity(), " tokens; make a larger one");
  }
  if (how.targets.defined())
    check(how.targets.sizes() == ids.sizes(), "[", op, "] targets have shape ", how.targets.sizes(), ", ids ",
          ids.sizes(), "; give one word for each token");
  check(!(how.cache && how.checkpoint && grad_enabled()), "[", op,
        "] a cache has no gradients, and checkpoint recomputes blocks for them; leave out one of the two");
  check(!(how.last && divided(how.cache)), "[", op,
        "] ranks divide the sequences, and one rank has the last token; leave out `last`");
  Tensor x;
  try {
    TokenContext known = resolved(how);
    // Here once, so that each layer does not compute them.
    if (const DividedSequence* const sequence = divided(how.cache); sequence && !known.positions.defined())
      known.positions = sequence->positions(length, ids.device());
    x = features(ids, known);
  } catch (...) {
    if (how.cache)
      for (std::int64_t i = 0; i < num_layers(); ++i)
        if (how.cache->layer(i).length() > past) how.cache->layer(i).truncate(past);
    throw;
  }
  return head(x, how);
}

namespace {
void check_documents(const char* op, const Tensor& documents) {
  tapestry::detail::check_defined(op, documents, "documents");
  check(documents.dim() == 2 && contains(kIntegers, documents.dtype()), "[", op, "] documents have shape ",
        documents.sizes(), " and dtype ", documents.dtype(), "; expected integers (N, L)");
}
}  // namespace

TokenContext LanguageModel::resolved(TokenContext how) const {
  if (!how.documents.defined()) return how;
  const std::string op = type_name();
  check(!how.cache && !how.mask.defined() && !how.positions.defined(), "[", op,
        "] documents take the place of positions and mask, and a cache has none; leave those out");
  const DividedSequence* const sequence = divided_sequence.get();
  const Tensor rows = how.documents;
  check_documents(op.c_str(), rows);
  if (sequence) how.documents = sequence->whole(rows.to(DType::i64));
  how.positions = document_positions(how.documents);
  if (sequence) {
    how.positions = index_select(how.positions, 1, sequence->positions(rows.size(1), rows.device()));
    how.documents = sequence->document_mask(how.documents);
  } else {
    how.mask = document_mask(std::exchange(how.documents, Tensor()));
  }
  return how;
}

Tensor LanguageModel::head(const Tensor& features, const TokenContext& how) {
  const PackedTensor& packed = packed_output_weight();
  if (how.targets.defined()) {
    const Tensor loss = divided_head       ? divided_head(features, how)
                        : packed.defined() ? linear_cross_entropy(features, packed, how.targets)
                                           : linear_cross_entropy(features, output_weight(), how.targets);
    const Tensor further = auxiliary_loss();
    return further.defined() ? loss + further.to(loss.dtype()) : loss;
  }
  if (divided_head) return divided_head(features, how);
  const Tensor x = how.last ? features.narrow(1, features.size(1) - 1, 1) : features;
  return packed.defined() ? packed_linear(x, packed) : linear(x, output_weight());
}
Tensor LanguageModel::operator()(const Tensor& ids, const TokenContext& how) { return call(*this, ids, how); }

namespace {
// True where key j is not after query i, if the queries are the last of the keys.
Tensor causal_mask(std::int64_t queries, std::int64_t keys, Device device) {
  const TensorOptions options(DType::i64, device);
  return arange(keys, options) <= (arange(queries, options) + (keys - queries)).unsqueeze(1);
}
}  // namespace

Tensor document_mask(const Tensor& documents) {
  check_documents("document_mask", documents);
  const std::int64_t length = documents.size(1);
  const Tensor same = documents.unsqueeze(1) == documents.unsqueeze(2);
  return logical_and(same, causal_mask(length, length, documents.device())).unsqueeze(1);
}

Tensor document_positions(const Tensor& documents) {
  check_documents("document_positions", documents);
  if (documents.numel() == 0) return zeros(documents.sizes(), {DType::i64, documents.device()});
  const Tensor index = arange(documents.size(1), {DType::i64, documents.device()}).expand(documents.sizes());
  const Tensor before = cat({documents.narrow(1, 0, 1), documents.narrow(1, 0, documents.size(1) - 1)}, 1);
  // The index at which the token's document begins: the last at which the document changes.
  const Tensor begins = where(documents != before, index, zeros_like(index.contiguous()));
  return index - cummax(begins, 1).first;
}

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Sight& sight,
                        double dropout) {
  const Tensor& mask = sight.mask;
  check(!sight.sequence || !mask.defined(),
        "[causal_attention] ranks divide the sequences, and an attention over ranks has no masks but causal "
        "ones and those of documents; pass TokenContext::documents in place of the mask");
  if (sight.sequence)
    return sight.sequence->attention(q, k, v,
                                     {.is_causal = true, .dropout_p = dropout, .mask = sight.documents});
  const std::int64_t queries = q.size(-2), keys = k.size(-2);
  AttentionParams params{.dropout_p = dropout, .enable_gqa = q.size(-3) != k.size(-3)};
  if (mask.defined()) params.attn_mask = mask;
  else if (queries > 1) params.is_causal = true, params.causal_offset = keys - queries;
  return scaled_dot_product_attention(q, k, v, params);
}

void init_language_model(Module& module, double std) {
  check_undivided("init_language_model", module, true,
                  "call it before the model is sharded, or while unshard() lasts");
  module.apply([std](Module& m) {
    if (auto* layer = dynamic_cast<Linear*>(&m)) {
      init::normal_(layer->weight, 0, std);
      if (layer->bias.defined()) init::zeros_(layer->bias);
    }
    if (auto* layer = dynamic_cast<Embedding*>(&m)) init::normal_(layer->weight, 0, std);
    if (auto* layer = dynamic_cast<TopKRouter*>(&m)) init::normal_(layer->weight, 0, std);
    if (auto* layer = dynamic_cast<GroupedExperts*>(&m)) {
      init::normal_(layer->gate_up_proj, 0, std);
      init::normal_(layer->down_proj, 0, std);
    }
  });
}

}  // namespace tapestry::nn
