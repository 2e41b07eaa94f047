// Ready plans for the layers of nn/models and nn/layers.
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/tensor/internal/units.h"
#include "tapestry/distributed/tensor/tensor_parallel.h"
#include "tapestry/nn/layers/transformer.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"

namespace tapestry::distributed {
namespace {

using Style = TensorStyle;

std::string at(const std::string& path, const char* name) { return path.empty() ? name : path + "." + name; }

// The most ranks, up to `ranks`, that can divide the heads: a rank gets ceil(heads / ranks) of them, and the
// last one must get some.
int most_ranks(std::int64_t heads, int ranks) {
  while (!all_have_some(heads, ranks)) --ranks;
  return ranks;
}

void add_attention(TensorPlan& plan, const std::string& path, const nn::LlamaAttention& layer, int ranks) {
  const std::int64_t head = layer.head_dim(), queries = layer.q_proj.options.out_features / head,
                     keys = layer.k_proj.options.out_features / head;
  const bool shares = keys < ranks;  // each rank has queries of one key and value head
  check(shares ? ranks % keys == 0 && queries % ranks == 0 : all_have_some(keys, ranks), "[tensor_plan] ",
        path, " has ", queries, " heads and ", keys, " key and value heads, which an axis of ", ranks,
        " ranks cannot divide; choose ", most_ranks(keys, ranks),
        " ranks, or a multiple of the key and value heads that divides the heads");
  // A rank that has whole key and value heads has all queries that use them.
  const std::int64_t unit = shares ? head : queries / keys * head;
  plan.rules.push_back({path, Style::input});
  plan.rules.push_back({at(path, "q_proj"), Style::column, unit});
  for (const char* const name : {"k_proj", "v_proj"})
    plan.rules.push_back({at(path, name), Style::column, head});
  plan.rules.push_back({at(path, "o_proj"), Style::row, unit});
}

void add_attention(TensorPlan& plan, const std::string& path, const nn::Gpt2Attention& layer, int ranks) {
  const std::int64_t head = layer.head_dim(), heads = layer.c_proj.options.in_features / head;
  check(all_have_some(heads, ranks), "[tensor_plan] ", path, " has ", heads, " heads, which an axis of ",
        ranks, " ranks cannot divide; choose ", most_ranks(heads, ranks), " ranks");
  plan.rules.push_back({path, Style::input});
  plan.rules.push_back({at(path, "c_attn"), Style::column, head, /*blocks=*/3});
  plan.rules.push_back({at(path, "c_proj"), Style::row, head});
  plan.rules.push_back({at(path, "resid_dropout"), Style::residual});
}

}  // namespace

TensorPlan tensor_plan(const nn::Module& model, int ranks) {
  check(ranks >= 1, "[tensor_plan] there are ", ranks, " ranks; pass the size of an axis");
  TensorPlan plan;
  for (const auto& [path, m] : model.named_modules()) {
    if (const auto* const attention = dynamic_cast<const nn::LlamaAttention*>(m)) {
      add_attention(plan, path, *attention, ranks);
    } else if (dynamic_cast<const nn::LlamaMlp*>(m)) {
      plan.rules.push_back({path, Style::input});
      plan.rules.push_back({at(path, "gate_proj"), Style::column});
      plan.rules.push_back({at(path, "up_proj"), Style::column});
      plan.rules.push_back({at(path, "down_proj"), Style::row});
    } else if (dynamic_cast<const nn::LlamaDecoderLayer*>(m)) {
      plan.rules.push_back({at(path, "input_layernorm"), Style::residual});
      plan.rules.push_back({at(path, "post_attention_layernorm"), Style::residual});
    } else if (dynamic_cast<const nn::LlamaModel*>(m)) {
      plan.rules.push_back({at(path, "embed_tokens"), Style::vocabulary});
      plan.rules.push_back({at(path, "norm"), Style::residual});
    } else if (const auto* const llama = dynamic_cast<const nn::Llama*>(m)) {
      plan.rules.push_back({path, Style::head});
      if (llama->lm_head) plan.rules.push_back({at(path, "lm_head"), Style::gathered_column});
    } else if (const auto* const layer = dynamic_cast<const nn::TransformerEncoderLayer*>(m)) {
      const nn::MultiheadAttentionOptions& o = layer->self_attn.options;
      plan.rules.push_back({at(path, "self_attn"), Style::attention});
      plan.rules.push_back({at(path, "self_attn.out_proj"), Style::row, o.embed_dim / o.num_heads});
      plan.rules.push_back({at(path, "linear1"), Style::column});
      plan.rules.push_back({at(path, "dropout"), Style::inside});
      plan.rules.push_back({at(path, "linear2"), Style::row});
      for (const char* const name : {"norm1", "norm2", "dropout1", "dropout2"})
        plan.rules.push_back({at(path, name), Style::residual});
    } else if (const auto* const encoder = dynamic_cast<const nn::TransformerEncoder*>(m)) {
      if (encoder->norm) plan.rules.push_back({at(path, "norm"), Style::residual});
    } else if (const auto* const fused = dynamic_cast<const nn::Gpt2Attention*>(m)) {
      add_attention(plan, path, *fused, ranks);
    } else if (dynamic_cast<const nn::Gpt2Mlp*>(m)) {
      plan.rules.push_back({path, Style::input});
      plan.rules.push_back({at(path, "c_fc"), Style::column});
      plan.rules.push_back({at(path, "c_proj"), Style::row});
      plan.rules.push_back({at(path, "dropout"), Style::residual});
    } else if (dynamic_cast<const nn::Gpt2Block*>(m)) {
      plan.rules.push_back({at(path, "ln_1"), Style::residual});
      plan.rules.push_back({at(path, "ln_2"), Style::residual});
    } else if (dynamic_cast<const nn::Gpt2Model*>(m)) {
      plan.rules.push_back({at(path, "wte"), Style::vocabulary});
      plan.rules.push_back({at(path, "wpe"), Style::enter});
      plan.rules.push_back({at(path, "drop"), Style::residual});
      plan.rules.push_back({at(path, "ln_f"), Style::residual});
    } else if (const auto* const gpt2 = dynamic_cast<const nn::Gpt2*>(m)) {
      plan.rules.push_back({path, Style::head});
      if (gpt2->lm_head) plan.rules.push_back({at(path, "lm_head"), Style::gathered_column});
    }
  }
  check(!plan.rules.empty(), "[tensor_plan] there is no ready plan for the modules of ", model.type_name(),
        "; pass tensor_parallel() rules for its Linear and Embedding layers");
  return plan;
}

}  // namespace tapestry::distributed
