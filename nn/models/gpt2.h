#pragma once
// GPT-2 (Radford et al. 2019). Modules and parameters have the names of Hugging Face's GPT2LMHeadModel. Its
// projections are nn::Linear, whose weight is (out, in); Hugging Face's Conv1D stores (in, out).
//
//   nn::Gpt2 model({.n_embd = 384, .n_layer = 6, .n_head = 6, .n_inner = 1536});
//   Tensor loss = model(ids, {.targets = next_ids});
#include "tapestry/nn/layers/activation.h"
#include "tapestry/nn/layers/container.h"
#include "tapestry/nn/layers/embedding.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/layers/norm.h"
#include "tapestry/nn/models/config.h"
#include "tapestry/nn/models/language_model.h"

namespace tapestry::nn {

/// What a block knows of the call. The default is a sequence in which a token sees itself and all earlier
/// ones; then a block is a module of one tensor, which may be a stage of a pipeline.
struct Gpt2BlockContext {
  KeyValueCache* cache = nullptr;
  Tensor mask = {}, documents = {};  ///< as LanguageModel::resolved() gives them
};

/// Multi-head attention. c_attn computes queries, keys and values in one product.
class Gpt2Attention : public Callable<Gpt2Attention>, public SequenceModule {
 public:
  explicit Gpt2Attention(const Gpt2Config& config);
  Tensor forward(const Tensor& x) override { return forward(x, Gpt2BlockContext()); }
  Tensor forward(const Tensor& x, const Gpt2BlockContext& how);
  std::int64_t head_dim() const { return head_dim_; }
  Heads heads() const override {
    return {c_proj.options.in_features / head_dim_, c_proj.options.in_features / head_dim_, true};
  }
  Linear &c_attn, &c_proj;
  Dropout& resid_dropout;

 private:
  std::int64_t head_dim_;
  double attn_pdrop_;
};

/// c_proj(gelu(c_fc(x))), with the tanh approximation of gelu.
class Gpt2Mlp : public Module {
 public:
  explicit Gpt2Mlp(const Gpt2Config& config);
  Tensor forward(const Tensor& x) override;
  Linear &c_fc, &c_proj;
  Dropout& dropout;
};

/// x + attn(ln_1(x)), then x + mlp(ln_2(x)).
class Gpt2Block : public Callable<Gpt2Block> {
 public:
  explicit Gpt2Block(const Gpt2Config& config);
  Tensor forward(const Tensor& x) override { return forward(x, Gpt2BlockContext()); }
  Tensor forward(const Tensor& x, const Gpt2BlockContext& how);
  LayerNorm& ln_1;
  Gpt2Attention& attn;
  LayerNorm& ln_2;
  Gpt2Mlp& mlp;
};

/// The model without its head: ids (N, L) give features (N, L, n_embd).
class Gpt2Model : public Callable<Gpt2Model>, public SequenceModule {
 public:
  explicit Gpt2Model(const Gpt2Config& config);
  Tensor forward(const Tensor& ids) override { return forward(ids, TokenContext()); }
  Tensor forward(const Tensor& ids, const TokenContext& how);
  /// The input of the first block: the embeddings of the tokens and of their positions, which follow those in
  /// the cache if `positions` is undefined.
  Tensor embed(const Tensor& ids, Tensor positions, const KeyValueCache* cache);
  Embedding &wte, &wpe;  ///< of tokens and of positions
  Dropout& drop;
  ModuleList& h;  ///< of Gpt2Block
  LayerNorm& ln_f;
};

class Gpt2 : public LanguageModel {
 public:
  using Options = Gpt2Config;
  /// Initialises as Hugging Face does: weights from a normal distribution of standard deviation 0.02, divided
  /// by sqrt(2 n_layer) for the projections that end a residual branch, biases 0, norms 1. Throws ValueError
  /// for a configuration that Gpt2Config::validate() refuses.
  explicit Gpt2(const Gpt2Config& config);
  std::string type_name() const override { return "Gpt2"; }
  std::int64_t vocab_size() const override { return config.vocab_size; }
  std::int64_t num_layers() const override { return config.n_layer; }
  std::int64_t context_length() const override { return config.n_positions; }
  const Parameter& output_weight() const override {
    return lm_head ? lm_head->weight : transformer.wte.weight;
  }
  const PackedTensor& packed_output_weight() const override {
    return lm_head ? lm_head->packed_weight() : transformer.wte.packed_weight();
  }

  const Gpt2Config config;
  Gpt2Model& transformer;
  Linear* const lm_head;  ///< null if tie_word_embeddings: the head's weight is wte's

 protected:
  Tensor features(const Tensor& ids, const TokenContext& how) override;
};

}  // namespace tapestry::nn
