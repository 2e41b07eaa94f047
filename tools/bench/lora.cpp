// Measures the memory of low-rank adaptation, and exchanges adapters with PEFT.
//
//   bench_lora memory MODEL [SEQUENCE] [RANK] [STEPS] [BATCH]
//   bench_lora write FOLDER
//   bench_lora read FOLDER
//
// `memory` trains adapters of all linear layers on random tokens; the weights of a GGUF file stay packed.
// `write` writes a small GPT-2 and a small Llama with adapters and their logits. `read` reads adapters that
// PEFT wrote for these models, and writes their logits. tools/check_lora runs these two and PEFT.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>

#include "tapestry/tapestry.h"

using namespace tapestry;

namespace {

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }
double resident_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

int memory(const std::string& path, std::int64_t length, std::int64_t rank, int steps, std::int64_t batch) {
  for (const bool recompute : {true, false}) {
    const MemoryRecord record;
    const auto model = nn::load_language_model(path, {.packed = true});
    nn::add_lora(
        *model, {.r = rank, .lora_alpha = 2.0 * static_cast<double>(rank), .target_modules = {"all-linear"}});
    optim::AdamW optimizer(model->parameters(), {.lr = 2e-4});
    manual_seed(1);
    const Tensor ids = randint(0, model->vocab_size(), {batch, length + 1});
    double loss = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      const Tensor l = (*model)(ids.narrow(1, 0, length),
                                {.targets = ids.narrow(1, 1, length).contiguous(), .checkpoint = recompute});
      l.backward();
      optimizer.step();
      loss = l.item();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    MemorySample peak;
    for (const MemorySample& s : record.samples(kCPU))
      if (s.total() > peak.total()) peak = s;
    std::printf("%s: rank %d, batch %d x %d: peak %.0f MiB of tensors (", recompute ? "checkpoint" : "plain",
                static_cast<int>(rank), static_cast<int>(batch), static_cast<int>(length), mib(peak.total()));
    for (int k = 0; k < kNumMemoryKinds; ++k)
      std::printf("%s%s %.0f", k ? ", " : "", memory_kind_name(static_cast<MemoryKind>(k)),
                  mib(peak.bytes[static_cast<std::size_t>(k)]));
    std::printf("), process %.0f MiB, %.2f s a step, loss %.4f\n", resident_mib(), seconds / steps, loss);
    std::fflush(stdout);
  }
  return 0;
}

nn::LlamaConfig small_llama() {
  nn::LlamaConfig c;
  c.vocab_size = 61, c.hidden_size = 32, c.intermediate_size = 48, c.num_hidden_layers = 2;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.head_dim = 8, c.max_position_embeddings = 64;
  c.tie_word_embeddings = true;
  return c;
}
nn::Gpt2Config small_gpt2() {
  nn::Gpt2Config c;
  c.vocab_size = 61, c.n_positions = 64, c.n_embd = 32, c.n_layer = 2, c.n_head = 4, c.n_inner = 96;
  return c;
}
Tensor words() { return (arange(40) * 17 % 61).reshape({2, 20}); }

void write_logits(const std::string& file, nn::LanguageModel& model) {
  const NoGradGuard no_grad;
  model.eval();
  save_safetensors(file, {{"ids", words()}, {"logits", model(words()).contiguous()}});
}

template <class Model, class Config>
void write(const std::string& folder, const Config& config, const nn::LoraOptions& options) {
  manual_seed(4);
  Model model(config);
  // Larger weights than the initial ones, so that an error shows in the logits.
  const NoGradGuard no_grad;
  for (const auto& [name, p] : model.named_parameters())
    if (p->dim() > 1) p->mul_(10);
  nn::save_language_model(folder + "/base", model);
  nn::add_lora(model, options);
  for (const auto& [path, adapter] : nn::lora_adapters(model)) adapter->B->normal_(0, 0.3);
  nn::save_lora(folder + "/ours", model);
  write_logits(folder + "/ours.safetensors", model);
}

void read(const std::string& folder) {
  const auto model = nn::load_language_model(folder + "/base");
  nn::load_lora(*model, folder + "/theirs");
  write_logits(folder + "/theirs-read.safetensors", *model);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string what = argc > 2 ? argv[1] : "";
  const auto number = [&](int i, int fallback) { return argc > i ? std::stoi(argv[i]) : fallback; };
  if (what == "memory") return memory(argv[2], number(3, 512), number(4, 8), number(5, 2), number(6, 1));
  const std::string llama = argc > 2 ? std::string(argv[2]) + "/llama" : "",
                    gpt2 = argc > 2 ? std::string(argv[2]) + "/gpt2" : "";
  if (what == "write") {
    for (const std::string& f : {llama, gpt2}) std::filesystem::create_directories(f);
    write<nn::Llama>(llama, small_llama(),
                     {.r = 4, .lora_alpha = 12, .target_modules = {"q_proj", "o_proj", "down_proj"}});
    write<nn::Gpt2>(
        gpt2, small_gpt2(),
        {.r = 3, .lora_alpha = 5, .target_pattern = ".*\\.(c_attn|c_fc|mlp\\.c_proj)", .use_rslora = true});
    return 0;
  }
  if (what == "read") {
    read(llama);
    read(gpt2);
    return 0;
  }
  std::fputs(
      "usage: bench_lora memory MODEL [SEQUENCE] [RANK] [STEPS] [BATCH] | write FOLDER | read FOLDER\n",
      stderr);
  return 2;
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}
