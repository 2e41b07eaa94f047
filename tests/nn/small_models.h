#pragma once
// The configurations of tests/golden/nn_language.py.
#include <cmath>

#include "tests/nn/golden.h"

namespace tapestry::test {

inline nn::LlamaConfig small_llama() {
  nn::LlamaConfig c;
  c.vocab_size = 29, c.hidden_size = 24, c.intermediate_size = 40, c.num_hidden_layers = 2;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.head_dim = 6, c.max_position_embeddings = 32;
  c.rms_norm_eps = 1e-5, c.rope_theta = 100, c.tie_word_embeddings = true;
  return c;
}
inline nn::LlamaConfig scaled_llama() {
  nn::LlamaConfig c = small_llama();
  c.model_type = "qwen2";
  c.head_dim = 8, c.num_key_value_heads = 1, c.tie_word_embeddings = false, c.attention_bias = true;
  c.rope_scaling = {.type = nn::RopeScalingType::llama3,
                    .factor = 8,
                    .low_freq_factor = 1,
                    .high_freq_factor = 4,
                    .original_max_position_embeddings = 64};
  return c;
}
inline nn::Gpt2Config small_gpt2() {
  nn::Gpt2Config c;
  c.vocab_size = 29, c.n_positions = 16, c.n_embd = 24, c.n_layer = 2, c.n_head = 4, c.n_inner = 72;
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  return c;
}

/// The weights of nn_language.py's fill().
inline void fill_as_language_models(nn::Module& net, DType dtype) {
  net.to(dtype);
  const NoGradGuard no_grad;
  int k = 0;
  for (const auto& [name, p] : net.named_parameters()) {
    ++k;
    const bool matrix = p->dim() > 1;
    const double scale = matrix ? 3 / std::sqrt(static_cast<double>(p->size(1))) : 0.2;
    p->copy_(formula(p->sizes(), k, scale) + (matrix || !name.ends_with("weight") ? 0.0 : 1.0));
  }
}

}  // namespace tapestry::test
