#include "tests/apps/gpt_files.h"

#include <cstring>

#include "tapestry/core/atomic_file.h"
#include "tapestry/core/generator.h"
#include "tapestry/data/tokenizer/bpe_trainer.h"
#include "tapestry/data/tokenizer/parts.h"
#include "tapestry/nn/models/pretrained.h"
#include "tests/support/files.h"

namespace tests {

using namespace tapestry;

Launch gpt_launch(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--threads", "1"});
  return {.arguments = std::move(arguments), .program = "gpt"};
}

Ended gpt(std::vector<std::string> arguments, const std::string& input) {
  Launch launch = gpt_launch(std::move(arguments));
  launch.input = input;
  if (launch.arguments[0] == "convert") launch.arguments.resize(launch.arguments.size() - 2);
  return run(launch);
}

const char* smollm2_template() {
  return R"({% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful )"
         R"(AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + m['role'] + '\n')"
         R"( + m['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }})"
         R"({% endif %})";
}

std::string write_story(const std::string& path, int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i)
    text += i * i % 7 < 3 ? "the cat sees a bird.\n" : "a dog eats the bone!\n";
  write_file(path, text);
  return path;
}

std::string write_model_folder(const std::string& path, const std::string& family, std::int64_t context) {
  data::TokenizerParts parts =
      data::train_bpe("the cat sees a bird. a dog eats the bone! the cat sees a dog.",
                      {.vocab_size = 280, .special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}});
  manual_seed(3);
  const auto vocab = static_cast<std::int64_t>(parts.tokens.size()) + 1;  // padded, as many models are
  if (family == "gpt2") {
    nn::Gpt2Config c;
    c.vocab_size = vocab, c.n_positions = context, c.n_embd = 16, c.n_layer = 2, c.n_head = 2, c.n_inner = 40;
    c.bos_token_id = c.eos_token_id = 0;
    nn::save_language_model(path, nn::Gpt2(c));
  } else {
    nn::LlamaConfig c;
    c.vocab_size = vocab, c.hidden_size = 32, c.intermediate_size = 64, c.num_hidden_layers = 2;
    c.num_attention_heads = 4, c.num_key_value_heads = 2, c.head_dim = 8, c.max_position_embeddings = context;
    c.tie_word_embeddings = true, c.bos_token_id = 0, c.eos_token_id = 0;
    nn::save_language_model(path, nn::Llama(c));
  }
  write_file(path + "/tokenizer.json", data::tokenizer_json(parts));
  write_file(path + "/tokenizer_config.json", R"({"eos_token": "<|endoftext|>", "chat_template": ")" +
                                                  std::string(smollm2_template()) + "\"}");
  return path;
}

std::string token_file(const std::vector<int>& ids) {
  std::string bytes(1024 + 2 * ids.size(), '\0');
  const std::int32_t header[3] = {20240520, 1, static_cast<std::int32_t>(ids.size())};
  std::memcpy(bytes.data(), header, sizeof header);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<std::uint16_t>(ids[i]);
    std::memcpy(bytes.data() + 1024 + 2 * i, &id, 2);
  }
  return bytes;
}

}  // namespace tests
