// Runs `gpt train` as a user does.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <regex>

#include "tapestry/autograd/ops.h"
#include "tapestry/nn/models/pretrained.h"
#include "tests/apps/gpt_files.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tests;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kSmall = {"--layers",     "2",  "--width",  "16", "--heads",        "2",
                                         "--context",    "16", "--steps",  "4",  "--batch-size",   "4",
                                         "--eval-every", "2",  "--warmup", "1",  "--eval-windows", "6",
                                         "--log-every",  "1",  "--sample", "4"};

std::vector<std::string> with(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "train");
  arguments.insert(arguments.begin() + 1, kSmall.begin(), kSmall.end());
  return arguments;
}

// metrics.jsonl without the times.
std::string lines_of(const std::string& run) {
  return std::regex_replace(read_file(run + "/metrics.jsonl"), std::regex(R"(,"seconds":[^}]*)"), "");
}
std::string result_of(const std::string& run) {
  return lines_of(run) + last_checkpoint(run) + read_file(run + "/model/model.safetensors");
}
double loss_in(const std::string& lines, const char* which, bool last) {
  const std::regex value(std::string("\"") + which + R"(":([0-9.]+))");
  std::string found;
  for (std::sregex_iterator at(lines.begin(), lines.end(), value), end; at != end; ++at) {
    found = (*at)[1];
    if (!last) break;
  }
  return std::stod(found);
}

}  // namespace

TEST_CASE("gpt train learns a text and writes a folder of Hugging Face") {
  const TempDir folder;
  const std::string text = write_story(folder / "story.txt"), run = folder / "run";
  const Ended ended = gpt({"train", "--text",   text,   "--run-dir",       run,       "--layers",
                           "1",     "--width",  "32",   "--heads",         "2",       "--context",
                           "32",    "--steps",  "120",  "--batch-size",    "8",       "--eval-every",
                           "60",    "--lr",     "0.01", "--warmup",        "5",       "--vocab-size",
                           "290",   "--sample", "12",   "--sample-prompt", "the cat", "--log-every",
                           "20"});
  INFO(ended.err << ended.out);
  REQUIRE(ended.status == 0);
  CHECK(ended.err == "");
  CHECK_THAT(ended.out, ContainsSubstring("tokens/s") && ContainsSubstring("held-out loss") &&
                            ContainsSubstring("sample: the cat") &&
                            ContainsSubstring("wrote " + run + "/model"));
  const std::string lines = lines_of(run);
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 6);
  // A sentence of the text has at most one bit, and about 7 tokens.
  CHECK(loss_in(lines, "train_loss", false) > 1.5);
  CHECK(loss_in(lines, "val_loss", true) < 0.25);
  CHECK(xml_fault(read_file(run + "/curves.svg")) == "");
  const auto model = tapestry::nn::load_language_model(run + "/model");
  CHECK(model->context_length() == 32);
  CHECK(model->vocab_size() > 260);
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"})
    CHECK(fs::exists(run + "/model/" + name));
  CHECK(names_in(run + "/checkpoints").size() == 2);

  const Ended words =
      gpt({"generate", "--model", run + "/model", "--prompt", "the cat", "--max-tokens", "8"});
  CHECK(words.status == 0);
  CHECK_THAT(words.out, Catch::Matchers::StartsWith(" sees a bird.\n"));
}

TEST_CASE("a run of gpt that is stopped or killed after any step gives the same results") {
  const TempDir folder;
  const std::string text = write_story(folder / "story.txt", 60);
  // Dropout, accumulation, two documents in a window, and a line of metrics over two steps.
  const std::vector<std::string> options = {
      "--text", text, text, "--family", "gpt2", "--dropout", "0.2", "--accumulate", "2", "--log-every", "2"};
  const auto start = [&](const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> all = options;
    all.insert(all.end(), {"--run-dir", folder / name});
    all.insert(all.end(), more.begin(), more.end());
    std::vector<std::string> arguments = with(all);
    arguments.erase(std::find(arguments.begin(), arguments.end(), "--log-every"),
                    std::find(arguments.begin(), arguments.end(), "--log-every") + 2);
    return gpt_launch(arguments);
  };
  const Ended whole = run(start("whole"));
  INFO(whole.err);
  REQUIRE(whole.status == 0);

  for (int i = 0; i < 8; ++i) {
    Launch next =
        i == 0 ? start("stopped") : gpt_launch({"train", "--resume", "--run-dir", folder / "stopped"});
    next.pending_signal = SIGINT;
    const Ended part = run(next);
    CAPTURE(i, part.err, part.out);
    CHECK(part.err == "");
    if (part.status == 0) break;
    REQUIRE(part.status == 130);
    CHECK_THAT(part.out,
               ContainsSubstring("continue with: gpt train --resume --run-dir " + (folder / "stopped")));
    // The measurement of a step is interrupted too, so two signals may come after one step.
    if (i == 5) break;
  }
  const Ended rest = gpt({"train", "--resume", "--run-dir", folder / "stopped"});
  INFO(rest.err);
  REQUIRE(rest.status == 0);
  CHECK(lines_of(folder / "stopped") == lines_of(folder / "whole"));
  CHECK((result_of(folder / "stopped") == result_of(folder / "whole")));  // bytes that nobody wants to see

  Launch killed = start("killed");
  killed.kill_when = [&] { return fs::exists(folder / "killed/checkpoints/step-00000002.safetensors"); };
  run(killed);
  REQUIRE(gpt({"train", "--resume", "auto", "--run-dir", folder / "killed"}).status == 0);
  CHECK((result_of(folder / "killed") == result_of(folder / "whole")));
}

TEST_CASE("a resumed run of gpt keeps its options and its text") {
  const TempDir folder;
  const std::string text = write_story(folder / "story.txt", 60), run = folder / "run";
  REQUIRE(gpt(with({"--text", text, "--run-dir", run})).status == 0);
  const std::string before = last_checkpoint(run);
  const std::vector<std::vector<std::string>> refused = {
      {"--lr", "0.5"}, {"--steps", "9"}, {"--width", "32"}, {"--batch-size", "8"}, {"--seed", "2"}};
  for (const auto& option : refused) {
    const Ended ended = gpt({"train", "--resume", "--run-dir", run, option[0], option[1]});
    CHECK(ended.status == 2);
    CHECK_THAT(ended.err,
               ContainsSubstring(option[0]) && ContainsSubstring(option[1]) && ContainsSubstring(run));
  }
  CHECK(gpt(with({"--text", text, "--run-dir", run})).status == 1);  // holds a run
  write_story(text, 61);
  const Ended changed = gpt({"train", "--resume", "--run-dir", run});
  CHECK(changed.status == 1);
  CHECK_THAT(changed.err, ContainsSubstring("the text has changed"));
  write_file(run + "/config.json", "{}");
  const Ended damaged = gpt({"train", "--resume", "--run-dir", run});
  CHECK(damaged.status == 1);
  CHECK_THAT(damaged.err, ContainsSubstring("config.json is not the config of a run"));
  CHECK(gpt({"train", "--resume", "--run-dir", folder / "none"}).status == 1);
  CHECK(last_checkpoint(run) == before);
}

TEST_CASE("gpt train refuses bad input before it writes anything") {
  const TempDir folder;
  const std::string text = write_story(folder / "story.txt", 60), run = folder / "run";
  write_file(folder / "latin1.txt",
             "caf\xe9 and more text, so that it is long enough for a window of tokens\n");
  write_file(folder / "short.txt", "short");
  write_file(folder / "bad.bin", "no tokens");
  write_file(folder / "cut.bin", token_file(std::vector<int>(100, 1)).substr(0, 1100));
  write_file(folder / "large.bin", token_file(std::vector<int>(100, 77)));
  write_file(folder / "config.json", "{\"model_type\": \"bert\"}");
  const std::vector<std::tuple<std::vector<std::string>, int, std::string>> cases = {
      {{}, 2, "pass --text FILE"},
      {{"--text", folder / "missing.txt"}, 1, "missing.txt"},
      {{"--text", folder / "latin1.txt"},
       1,
       "latin1.txt: [Tokenizer::encode] the text is not UTF-8 at byte 3"},
      {{"--text", folder / "short.txt"}, 1, "smaller --context"},
      {{"--text", text, "--tokens", folder / "bad.bin"}, 2, "pass --text FILE, or --tokens FILE"},
      {{"--tokens", folder / "bad.bin", "--vocab-size", "10"}, 1, "fewer than the header"},
      {{"--tokens", folder / "cut.bin", "--vocab-size", "10"}, 1, "claims to have 100 tokens"},
      {{"--tokens", folder / "large.bin", "--vocab-size", "10"}, 1, "has token 77 at position 0"},
      {{"--tokens", folder / "large.bin"}, 2, "--vocab-size"},
      {{"--text", text, "--vocab-size", "100"}, 1, "the 256 bytes"},
      {{"--text", text, "--heads", "3"}, 2, "--width is 16"},
      {{"--text", text, "--accumulate", "3"}, 2, "choose a multiple of 3"},
      {{"--text", text, "--precision", "f8"}, 2, "--precision"},
      {{"--text", text, "--parallel", "pipeline", "--stages", "3"}, 2, "3 stages"},
      {{"--text", text, "--dropout", "0.1"}, 2, "family gpt2"},
      {{"--text", text, "--config", folder / "config.json"}, 1, "bert"},
      {{"--text", text, "--config", folder / "nothing.json"}, 1, "nothing.json"},
      {{"--text", text, "--lr", "nan"}, 2, "--lr"},
      {{"--text", text, "--tokenizer", folder / "config.json"}, 1, "config.json"},
  };
  for (const auto& [arguments, status, message] : cases) {
    std::vector<std::string> all = {"train", "--run-dir",    run, "--layers", "2", "--width",
                                    "16",    "--heads",      "2", "--steps",  "1", "--context",
                                    "16",    "--batch-size", "4"};
    for (std::size_t i = 0; i < arguments.size(); i += 1) {
      // A later option replaces one of the defaults.
      const auto same = std::find(all.begin() + 3, all.end(), arguments[i]);
      if (arguments[i].starts_with("--") && same != all.end()) all.erase(same, same + 2);
    }
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Ended ended = gpt(all);
    CAPTURE(arguments, ended.err, ended.out);
    CHECK(ended.status == status);
    CHECK_THAT(ended.err, ContainsSubstring(message));
    CHECK_FALSE(fs::exists(run + "/config.json"));
  }
}

TEST_CASE("gpt train goes on from a model, and reads llm.c's token files") {
  const TempDir folder;
  const std::string model = write_model_folder(folder / "model"),
                    text = write_story(folder / "story.txt", 60);
  const auto train = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "--steps", "1", "--batch-size", "2", "--warmup", "0", "--lr", "1e-12",
                               "--weight-decay", "0", "--sample", "0", "--run-dir", folder / "run"});
    fs::remove_all(folder / "run");
    return gpt(more);
  };
  const Ended text_run = train({"--init", model, "--text", text});
  INFO(text_run.err);
  REQUIRE(text_run.status == 0);
  // With so small a learning rate the weights stay what they were.
  const auto before = tapestry::nn::load_language_model(model),
             after = tapestry::nn::load_language_model(folder / "run/model");
  const auto old_state = before->state_dict(), new_state = after->state_dict();
  REQUIRE(old_state.size() == new_state.size());
  for (std::size_t i = 0; i < old_state.size(); ++i)
    CHECK((old_state[i].second - new_state[i].second).abs().max().item() < 1e-6);
  CHECK(fs::exists(folder / "run/model/tokenizer.json"));

  std::vector<int> ids;
  for (int i = 0; i < 600; ++i) ids.push_back(i % 50 == 0 ? 9 : i % 7);
  write_file(folder / "ids.bin", token_file(ids));
  const Ended tokens = gpt(with({"--tokens", folder / "ids.bin", "--vocab-size", "10", "--separator", "9",
                                 "--run-dir", folder / "tokens"}));
  INFO(tokens.err);
  CHECK(tokens.status == 0);
  CHECK_THAT(tokens.out,
             ContainsSubstring("vocabulary 10") && ContainsSubstring("570 tokens to train on, 30 held out"));
  CHECK_FALSE(fs::exists(folder / "tokens/model/tokenizer.json"));
}

TEST_CASE("gpt trains a mixture of experts from its config.json, and generates with it") {
  const TempDir folder;
  const std::string text = write_story(folder / "story.txt", 60);
  tapestry::nn::OlmoeConfig config;
  config.vocab_size = 257, config.hidden_size = 16, config.intermediate_size = 8,
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2, config.num_key_value_heads = 2, config.max_position_embeddings = 16;
  config.num_experts = 4, config.num_experts_per_tok = 2, config.output_router_logits = true;
  config.eos_token_id = 256;
  write_file(folder / "config.json", config.to_hf_json());
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"train",
                                    "--text",
                                    text,
                                    "--config",
                                    folder / "config.json",
                                    "--steps",
                                    "6",
                                    "--batch-size",
                                    "4",
                                    "--warmup",
                                    "0",
                                    "--eval-every",
                                    "3",
                                    "--eval-windows",
                                    "4",
                                    "--sample",
                                    "4",
                                    "--log-every",
                                    "1"};
    all.insert(all.end(), more.begin(), more.end());
    return gpt(all);
  };
  const std::string run = folder / "run", model = run + "/model";
  const Ended ended = train({"--run-dir", run});
  INFO(ended.err << ended.out);
  REQUIRE(ended.status == 0);
  CHECK(loss_in(lines_of(run), "val_loss", true) < loss_in(lines_of(run), "val_loss", false));
  CHECK(tapestry::nn::model_type_of(model) == "olmoe");
  CHECK(tapestry::nn::ModelWeights(model).find("model.layers.1.mlp.experts.3.up_proj.weight"));
  const Ended words = gpt({"generate", "--model", model, "--prompt", "the cat", "--max-tokens", "4"});
  INFO(words.err);
  CHECK(words.status == 0);
  CHECK(gpt({"convert", "--model", model, "--out", folder / "copy", "--type", "bf16"}).status == 0);
  CHECK_THAT(gpt({"convert", "--model", model, "--out", folder / "m.gguf"}).err,
             ContainsSubstring("has no GGUF file"));
  CHECK_THAT(train({"--run-dir", folder / "stages", "--parallel", "pipeline", "--accumulate", "2"}).err,
             ContainsSubstring("cannot be divided into stages"));
}
