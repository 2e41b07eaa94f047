// gpt tune: adapters and whole models from conversations and text, resumed runs, and wrong options.
#include <csignal>
#include <filesystem>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/safetensors.h"
#include "tapestry/data/tokenizer/parts.h"
#include "tapestry/nn/models/lora.h"
#include "tapestry/nn/models/pretrained.h"
#include "tests/apps/gpt_files.h"
#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using tests::Ended;
using tests::TempDir;

namespace {

// A small model with a token for each byte, and SmolLM2's chat template.
void write_model(const std::string& folder) {
  data::TokenizerParts parts;
  for (int b = 0, next = 0x100; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const int code = printable ? b : next++;
    std::string token;
    if (code < 0x80) token += static_cast<char>(code);
    else token += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    parts.tokens.push_back(token);
  }
  for (const char* const name : {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}) {
    parts.added.push_back({static_cast<std::int64_t>(parts.tokens.size()), name, true});
    parts.tokens.push_back(name);
  }
  nn::LlamaConfig c;
  c.vocab_size = 259, c.hidden_size = 16, c.intermediate_size = 24, c.num_hidden_layers = 2;
  c.num_attention_heads = 2, c.num_key_value_heads = 1, c.head_dim = 8, c.max_position_embeddings = 256;
  c.tie_word_embeddings = true, c.bos_token_id = 256, c.eos_token_id = 257;
  manual_seed(1);
  nn::save_language_model(folder, nn::Llama(c));
  tests::write_file(folder + "/tokenizer.json", data::tokenizer_json(parts));
  tests::write_file(folder + "/tokenizer_config.json", "{\"chat_template\": \"" +
                                                           std::string(tests::smollm2_template()) +
                                                           "\", \"eos_token\": \"<|im_end|>\"}");
}
std::string chats(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines +=
        "{\"prompt\": \"" + std::to_string(i) + "+1?\", \"completion\": \"" + std::to_string(i + 1) + "\"}\n";
  return lines;
}
Ended tune(std::vector<std::string> arguments, int pending_signal = 0) {
  arguments.insert(arguments.begin(), "tune");
  return tests::run({.arguments = std::move(arguments), .pending_signal = pending_signal, .program = "gpt"});
}
std::vector<std::string> with(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
bool same_tensors(const std::string& a, const std::string& b) {
  const Safetensors x = load_safetensors(a), y = load_safetensors(b);
  bool same = x.tensors.size() == y.tensors.size();
  for (const auto& [name, t] : x.tensors) same = same && t.equal(y.tensors.at(name));
  return same;
}

}  // namespace

TEST_CASE("gpt tune: adapters of conversations are written for PEFT, and a stopped run resumes bit for bit") {
  const TempDir dir;
  write_model(dir / "base");
  tests::write_file(dir / "c.jsonl", chats(40));
  const std::vector<std::string> options = {"--model",      dir / "base", "--chats",        dir / "c.jsonl",
                                            "--length",     "200",        "--steps",        "4",
                                            "--rank",       "2",          "--lr",           "0.01",
                                            "--warmup",     "0",          "--log-every",    "2",
                                            "--eval-every", "2",          "--accumulate",   "2",
                                            "--batch-size", "2",          "--lora-dropout", "0.1",
                                            "--merge"};
  const Ended whole = tune(with(options, {"--run-dir", dir / "a"}));
  INFO(whole.out << whole.err);
  REQUIRE(whole.status == 0);
  CHECK_THAT(whole.out, ContainsSubstring("step 0/4") && ContainsSubstring("step 4/4") &&
                            ContainsSubstring("sample:") && ContainsSubstring("adapter, which PEFT loads"));
  for (const char* name : {"adapter/adapter_config.json", "metrics.jsonl", "curves.svg", "model/config.json",
                           "model/tokenizer.json"})
    CHECK(std::filesystem::exists(dir / "a/" + name));
  const auto base = nn::load_language_model(dir / "base"), merged = nn::load_language_model(dir / "a/model");
  nn::load_lora(*base, dir / "a/adapter");
  base->eval();
  const Tensor ids = (arange(20) * 7 + 40).reshape({1, 20});
  CHECK((*base)(ids).allclose((*merged)(ids), 1e-4, 1e-5));

  const Ended stopped = tune(with(options, {"--run-dir", dir / "b"}), SIGINT);
  CHECK(stopped.status == 130);
  CHECK_THAT(stopped.out, ContainsSubstring("continue with: gpt tune --resume --run-dir"));
  std::vector<std::string> killed = with(options, {"--run-dir", dir / "c", "--checkpoint-every", "1steps"});
  killed.insert(killed.begin(), "tune");
  tests::run(
      {.arguments = killed,
       .kill_when = [&] { return std::filesystem::exists(dir / "c/checkpoints/step-00000001.safetensors"); },
       .program = "gpt"});
  for (const std::string run : {"b", "c"}) {
    const Ended resumed = tune({"--resume", "--run-dir", dir / run});
    INFO(resumed.out << resumed.err);
    REQUIRE(resumed.status == 0);
    CHECK_THAT(resumed.out, ContainsSubstring("resumed after step"));
    CHECK(same_tensors(dir / "a/adapter/adapter_model.safetensors",
                       dir / run + "/adapter/adapter_model.safetensors"));
  }
  CHECK(tune({"--resume", "--run-dir", dir / "b", "--lr", "1"}).status == 2);
}

TEST_CASE("gpt tune: ranks that divide the layers write the adapter that one process writes") {
  const TempDir dir;
  write_model(dir / "base");
  tests::write_file(dir / "c.jsonl", chats(12));
  const auto arguments = [&](const char* run, const std::string& parallel) -> std::vector<std::string> {
    return {"tune",     "--model", dir / "base", "--chats", dir / "c.jsonl",
            "--length", "200",     "--steps",    "2",       "--batch-size",
            "2",        "--rank",  "2",          "--lr",    "0.01",
            "--warmup", "0",       "--run-dir",  dir / run, "--parallel",
            parallel};
  };
  const Ended one = tests::run({.arguments = arguments("one", "single"), .program = "gpt"});
  INFO(one.out << one.err);
  REQUIRE(one.status == 0);
  const Ended two = tests::on_two_ranks("gpt", arguments("two", "tensor=2:sequence=1"));
  INFO(two.out << two.err);
  REQUIRE(two.status == 0);
  const auto read = [&](const char* run) {
    return load_safetensors(dir / run + "/adapter/adapter_model.safetensors").tensors;
  };
  const auto expected = read("one"), got = read("two");
  REQUIRE(got.size() == expected.size());
  // Steps of AdamW have the size of the rate, also where a gradient is little more than its rounding.
  for (const auto& [name, t] : expected) {
    INFO(name);
    REQUIRE(got.at(name).sizes() == t.sizes());
    CHECK((got.at(name) - t).abs().mean().item() < 1e-3);
    if (name.find("lora_B") != std::string::npos) CHECK(t.abs().mean().item() > 5e-3);
  }
}

TEST_CASE("gpt tune: all weights of a model are tuned on text") {
  const TempDir dir;
  write_model(dir / "base");
  std::string text;
  for (int i = 0; i < 150; ++i) text += "line " + std::to_string(i % 10) + " of the text\n";
  tests::write_file(dir / "t.txt", text);
  const Ended done = tune({"--model",
                           dir / "base",
                           "--text",
                           dir / "t.txt",
                           "--length",
                           "64",
                           "--steps",
                           "6",
                           "--method",
                           "full",
                           "--lr",
                           "0.01",
                           "--warmup",
                           "0",
                           "--eval-every",
                           "6",
                           "--keep-activations",
                           "--val-part",
                           "0.2",
                           "--run-dir",
                           dir / "run"});
  INFO(done.out << done.err);
  REQUIRE(done.status == 0);
  const auto loss_at = [&](const std::string& step) {
    const std::size_t at = done.out.find("held-out loss ", done.out.find("step " + step + "/6"));
    REQUIRE(at != std::string::npos);
    return std::stod(done.out.substr(at + 14));
  };
  CHECK(loss_at("6") < 0.9 * loss_at("0"));
  const auto before = nn::load_language_model(dir / "base"),
             after = nn::load_language_model(dir / "run/model");
  CHECK_FALSE(before->output_weight()->equal(after->output_weight().tensor()));
}

TEST_CASE("gpt tune: an adapter keeps its options, and a resumed run its norm of gradients") {
  const TempDir dir;
  write_model(dir / "base");
  tests::write_file(dir / "c.jsonl", chats(40));
  const std::vector<std::string> options = {
      "--model", dir / "base",   "--chats", dir / "c.jsonl", "--length", "200",      "--steps",
      "1",       "--eval-every", "2",       "--log-every",   "2",        "--sample", "0"};
  const Ended first =
      tune(with(options, {"--run-dir", dir / "a", "--rank", "2", "--alpha", "6", "--targets", "q_proj"}));
  INFO(first.out << first.err);
  REQUIRE(first.status == 0);
  // The first measurement says that it goes on.
  CHECK_THAT(first.out, ContainsSubstring("measuring the held-out loss: 0 of "));
  const std::vector<std::string> more =
      with(options, {"--adapter", dir / "a/adapter", "--run-dir", dir / "b"});
  for (const std::vector<std::string>& other :
       std::vector<std::vector<std::string>>{{"--rank", "4"},
                                             {"--alpha", "7"},
                                             {"--targets", "v_proj"},
                                             {"--lora-dropout", "0.5"},
                                             {"--rslora"}}) {
    const Ended refused = tune(with(more, other));
    CAPTURE(other[0], refused.err);
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err,
               ContainsSubstring("[gpt tune] the adapter ") && ContainsSubstring(" has " + other[0]));
    CHECK_FALSE(std::filesystem::exists(dir / "b"));
  }
  const Ended same = tune(with(more, {"--rank", "2", "--alpha", "6", "--targets", "q_proj"}));
  INFO(same.err);
  REQUIRE(same.status == 0);
  CHECK_THAT(tests::read_file(dir / "b/config.json"), ContainsSubstring("\"--rank\": 2"));
  CHECK_THAT(tests::read_file(dir / "b/adapter/adapter_config.json"), ContainsSubstring("\"r\": 2"));

  // Stopped in its last step, before that is reported: the resumed run only reports.
  const std::vector<std::string> short_run = with(options, {"--run-dir", dir / "c", "--val-part", "0"});
  REQUIRE(tune(short_run, SIGINT).status == 130);
  REQUIRE(tune({"--resume", "--run-dir", dir / "c", "--parallel", "ddp"}).status == 0);
  CHECK_THAT(tests::read_file(dir / "c/config.json"), ContainsSubstring("\"--parallel\": \"ddp\""));
  const std::string metrics = tests::read_file(dir / "c/metrics.jsonl");
  const std::size_t norm = metrics.find("\"grad_norm\":", metrics.find("\"step\":1"));
  REQUIRE(norm != std::string::npos);
  CHECK(std::stod(metrics.substr(norm + 12)) > 0);
}

TEST_CASE("gpt tune: what cannot be tuned is one error") {
  const TempDir dir;
  write_model(dir / "base");
  tests::write_file(dir / "c.jsonl", chats(3) + "{\"prompt\": 1}\n");
  const auto refuses = [&](const std::vector<std::string>& options, int status, const std::string& message) {
    const Ended ended = tune(options);
    INFO(message << "\n" << ended.err);
    CHECK(ended.status == status);
    CHECK_THAT(ended.err, ContainsSubstring(message));
  };
  const std::vector<std::string> model = {"--model", dir / "base", "--run-dir", dir / "run"};
  refuses({}, 2, "pass --model");
  refuses(model, 2, "pass --chats FILE.jsonl, or --text FILE");
  refuses(with(model, {"--chats", dir / "c.jsonl", "--length", "200"}), 1,
          "c.jsonl:4: \"prompt\" is missing, or no text");
  refuses(with(model, {"--chats", dir / "c.jsonl", "--length", "512"}), 1,
          "the context of the model has 256");
  tests::write_file(dir / "c.jsonl", chats(3));
  refuses(with(model, {"--chats", dir / "c.jsonl", "--length", "20"}), 1, "c.jsonl:1: has ");
  refuses(with(model, {"--chats", dir / "c.jsonl", "--length", "200", "--targets", "query"}), 1,
          "no Linear layer of the Llama is named 'query'");
  refuses(with(model, {"--chats", dir / "c.jsonl", "--method", "prefix"}), 2, "--method");
  tests::write_file(dir / "base/tokenizer_config.json", R"({"chat_template": "{{ messages | tojson }}"})");
  refuses(with(model, {"--chats", dir / "c.jsonl", "--length", "200"}), 1,
          "{{ messages | tojson }} is unknown");
  CHECK_FALSE(std::filesystem::exists(dir / "run"));
}
