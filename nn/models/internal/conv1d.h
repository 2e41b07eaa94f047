#pragma once
// The weights that Hugging Face's GPT-2 stores as (in, out), and nn::Gpt2 has as (out, in).
#include <string_view>

namespace tapestry::nn {

inline bool is_conv1d(std::string_view name) {
  return name.ends_with(".c_attn.weight") || name.ends_with(".c_proj.weight") ||
         name.ends_with(".c_fc.weight");
}

}  // namespace tapestry::nn
