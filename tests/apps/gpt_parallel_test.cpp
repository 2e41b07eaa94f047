// `gpt train` and `gpt tune` on several ranks and devices compute what they compute on one.
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/safetensors.h"
#include "tapestry/nn/models/pretrained.h"
#include "tests/apps/gpt_files.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"
#include "tests/support/files.h"

using namespace tests;
using tapestry::kSanitized;
using Names = std::vector<std::string>;

namespace {

std::vector<std::string> options(const std::string& text, const std::string& run) {
  return {"train", "--text",       text, "--run-dir", run,  "--layers",       "2", "--width",
          "16",    "--heads",      "2",  "--context", "16", "--steps",        "3", "--batch-size",
          "8",     "--sample",     "3",  "--warmup",  "1",  "--eval-windows", "7", "--eval-every",
          "3",     "--accumulate", "2",  "--threads", "1"};
}

// Writes documents of different lengths. They are short, so that a sequence contains several of them.
std::string write_documents(const std::string& path, int documents) {
  std::string text;
  for (int i = 0; i < documents; ++i) {
    text += "<|endoftext|>the cat sees ";
    for (int k = 0; k < i * i % 5; ++k) text += "a bird, ";
    text += "and a dog.";
  }
  write_file(path, text);
  return path;
}

// The largest difference of the weights of two finished runs.
double distance(const std::string& a, const std::string& b) {
  const auto one = tapestry::nn::load_language_model(a + "/model")->state_dict(),
             other = tapestry::nn::load_language_model(b + "/model")->state_dict();
  REQUIRE(one.size() == other.size());
  double most = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    REQUIRE(one[i].first == other[i].first);
    most = std::max(most, (one[i].second - other[i].second).abs().max().item());
  }
  return most;
}

double distance_of_adapters(const std::string& a, const std::string& b) {
  const auto one = tapestry::load_safetensors(a + "/adapter/adapter_model.safetensors"),
             other = tapestry::load_safetensors(b + "/adapter/adapter_model.safetensors");
  REQUIRE(one.tensors.size() == other.tensors.size());
  double most = 0;
  for (const auto& [name, tensor] : one.tensors)
    most = std::max(most, (tensor - other.tensors.at(name)).abs().max().item());
  return most;
}

// What a run has written with its model.
std::string sample_of(const Ended& ended) {
  const std::size_t at = ended.out.find("sample: ");
  REQUIRE(at != std::string::npos);
  return ended.out.substr(at, ended.out.find('\n', at) - at);
}

// Conversations of different lengths, so that the ranks' parts of a batch have different numbers of targets.
std::string write_chats(const std::string& path) {
  std::string lines;
  for (int i = 0; i < 24; ++i) {
    std::string answer;
    for (int k = 0; k < i * i % 5; ++k) answer += "a cat";
    lines += R"({"prompt": "a", "completion": ")" + answer + "\"}\n";
  }
  write_file(path, lines);
  return path;
}

}  // namespace

TEST_CASE("gpt on two ranks trains as on one") {
  const TempDir folder;
  const std::string text = write_documents(folder / "text", 60);
  const Ended one = run({.arguments = options(text, folder / "one"), .program = "gpt"});
  REQUIRE(one.status == 0);
  // A sanitizer makes each run slow.
  for (const std::string& mode :
       kSanitized ? Names{"fsdp"}
                  : Names{"ddp", "zero1", "zero2", "fsdp", "pipeline=2", "tensor=2", "context=2"}) {
    CAPTURE(mode);
    std::vector<std::string> arguments = options(text, folder / mode);
    arguments.insert(arguments.end(), {"--parallel", mode});
    const Ended ended = on_two_ranks("gpt", arguments);
    INFO(ended.err << ended.out);
    REQUIRE(ended.status == 0);
    CHECK_THAT(ended.out, ContainsSubstring("ranks 2"));
    CHECK(sample_of(ended) == sample_of(one));
    CHECK(distance(folder / "one", folder / mode) < 1e-5);
  }
  const Ended alone = on_two_ranks("gpt", options(text, folder / "none"));
  CHECK(alone.status == 2);
  CHECK_THAT(alone.err, ContainsSubstring("add --parallel ddp"));
}

TEST_CASE("gpt on ranks that divide experts trains as on one") {
  const TempDir folder;
  const std::string text = write_documents(folder / "text", 60);
  tapestry::nn::OlmoeConfig config;  // no loss of the routers, which each rank would have for its own tokens
  config.vocab_size = 257, config.hidden_size = 16, config.intermediate_size = 8;
  config.num_hidden_layers = 2, config.num_attention_heads = 2, config.num_key_value_heads = 2;
  config.max_position_embeddings = 16, config.num_experts = 4, config.num_experts_per_tok = 2;
  config.eos_token_id = 256;
  write_file(folder / "config.json", config.to_hf_json());
  const auto with = [&](const std::string& name, const std::string& mode) -> std::vector<std::string> {
    return {"train",
            "--text",
            text,
            "--run-dir",
            folder / name,
            "--config",
            folder / "config.json",
            "--steps",
            "3",
            "--batch-size",
            "8",
            "--sample",
            "3",
            "--warmup",
            "1",
            "--eval-windows",
            "7",
            "--eval-every",
            "3",
            "--accumulate",
            "2",
            "--threads",
            "1",
            "--parallel",
            mode};
  };
  const Ended one = run({.arguments = with("one", "none"), .program = "gpt"});
  INFO(one.err << one.out);
  REQUIRE(one.status == 0);
  for (const std::string& mode :
       kSanitized ? Names{"expert=2"} : Names{"expert=2", "replicate=2,expert=2", "shard=2,expert=2"}) {
    CAPTURE(mode);
    const Ended ended = run(on_ranks(mode == "expert=2" ? 2 : 4, "gpt", with(mode, mode)));
    INFO(ended.err << ended.out);
    REQUIRE(ended.status == 0);
    CHECK(sample_of(ended) == sample_of(one));
    CHECK(distance(folder / "one", folder / mode) < 1e-5);
  }
}

TEST_CASE("a sharded run of gpt resumes with and without a launcher") {
  const TempDir folder;
  const std::string text = write_documents(folder / "text", 60);
  const auto start = [&](const std::string& name, const std::string& mode) {
    std::vector<std::string> all = options(text, folder / name);
    all.insert(all.end(), {"--parallel", mode, "--checkpoint-every", "1steps"});
    return all;
  };
  // Without a launcher, fsdp takes the devices that there are, whatever --stages is.
  const auto one_process = [](const std::vector<std::string>& arguments) {
    setenv("TAPESTRY_LOGICAL_DEVICES", "1", 1);
    const Ended ended = run({.arguments = arguments, .program = "gpt"});
    unsetenv("TAPESTRY_LOGICAL_DEVICES");
    return ended;
  };
  const auto ranks = [](const std::vector<std::string>& arguments) { return on_two_ranks("gpt", arguments); };
  const auto check_resumed = [&](const std::string& name, const auto& first, const auto& second,
                                 const std::string& mode = "fsdp", const std::string& then = "") {
    const std::string rest_folder = folder / (name + "-rest" + then);
    if (!std::filesystem::exists(folder / name)) {
      const Ended whole = first(start(name, mode));
      INFO(name << whole.out << whole.err);
      REQUIRE(whole.status == 0);
    }
    std::filesystem::copy(folder / name, rest_folder, std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(last_checkpoint_path(rest_folder));
    std::vector<std::string> resume{"train", "--resume", "--run-dir", rest_folder};
    if (!then.empty()) resume.insert(resume.end(), {"--parallel", then});
    const Ended rest = second(resume);
    INFO(rest.out << rest.err);
    REQUIRE(rest.status == 0);
    CHECK_THAT(rest.out, ContainsSubstring("resumed after step 2 of 3"));
    CHECK(distance(folder / name, rest_folder) < 1e-5);
  };
  check_resumed("ranks", ranks, one_process);
  check_resumed("process", one_process, ranks);
  CHECK(distance(folder / "ranks", folder / "process") < 1e-5);
  check_resumed("stages", ranks, ranks, "pipeline=2");
  CHECK(distance(folder / "stages", folder / "stages-rest") == 0);
  check_resumed("stages", ranks, ranks, "pipeline=2", "shard=2");
  check_resumed("from divided layers to shards", ranks, ranks, "tensor=2:sequence=1", "shard=2");
  if (!kSanitized) check_resumed("from divided sequences to shards", ranks, ranks, "context=2", "shard=2");
  check_resumed("from copies to one process", ranks, one_process, "replicate=2:zero=1", "none");
  const auto four = [](const std::vector<std::string>& arguments) {
    return run(tests::on_ranks(4, "gpt", arguments));
  };
  check_resumed("from one mesh to another", four, four, "pipeline=2,replicate=2:zero=2",
                "replicate=2,shard=2");
}

TEST_CASE("gpt on two devices of one process trains as on one") {
  const TempDir folder;
  const std::string text = write_documents(folder / "text", 60);
  const auto train = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> arguments = options(text, folder / name);
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended ended = run({.arguments = arguments, .program = "gpt"});
    INFO(ended.err << ended.out);
    REQUIRE(ended.status == 0);
    return sample_of(ended);
  };
  for (const std::string& family : kSanitized ? Names{"llama"} : Names{"llama", "gpt2"}) {
    const std::string sample = train("one-" + family, {"--family", family});
    for (const std::string mode : {"dp", "pipeline"}) {
      CHECK(train(mode + family, {"--family", family, "--parallel", mode}) == sample);
      CHECK(distance(folder / ("one-" + family), folder / (mode + family)) < 1e-5);
    }
  }
  // The masks are part of what was compared.
  train("no masks", {"--parallel", "pipeline", "--no-document-masks"});
  CHECK(distance(folder / "one-llama", folder / "no masks") > 1e-4);
}

TEST_CASE("gpt generate writes the same text with a divided model") {
  const TempDir folder;
  for (const std::string& family : kSanitized ? Names{"gpt2"} : Names{"llama", "gpt2"}) {
    const std::string path = write_model_folder(folder / family, family);
    {
      // Larger weights, so that the words depend on all that came before.
      const tapestry::NoGradGuard no_grad;
      const auto model = tapestry::nn::load_language_model(path);
      for (const auto& p : model->parameters())
        if (p->dim() > 1) p->mul_(12);
      tapestry::nn::save_language_model(path, *model);
    }
    const auto arguments = [&](const std::string& mode) {
      return Names{"generate",   "--model",
                   path,         "--prompt",
                   "the cat",    "--max-tokens",
                   "12",         "--seed",
                   "3",          "--temperature",
                   "1",          "--ignore-eos",
                   "--threads",  "1",
                   "--parallel", mode};
    };
    const auto text_of = [](const Ended& ended) {
      INFO(ended.err << ended.out);
      REQUIRE(ended.status == 0);
      std::string text = ended.out;  // the launcher begins each line with the rank
      for (std::size_t at; (at = text.find("[0] ")) != std::string::npos;) text.erase(at, 4);
      return text;
    };
    const std::string expected = text_of(run({.arguments = arguments("none"), .program = "gpt"}));
    CHECK(expected.size() > 12);
    for (const std::string mode : {"pipeline=2:devices", "shard=2:devices"}) {
      CAPTURE(mode);
      CHECK(text_of(run({.arguments = arguments(mode), .program = "gpt"})) == expected);
    }
    for (const std::string mode : {"pipeline=2", "shard=2", "pipeline=2,shard=2", "pipeline=2,replicate=2",
                                   "replicate=2,shard=2:gather=step"}) {
      if (family == "llama" && mode != "pipeline=2") continue;  // the modes treat both alike
      CAPTURE(mode);
      CHECK(text_of(run(on_ranks(mode.find(',') == std::string::npos ? 2 : 4, "gpt", arguments(mode)))) ==
            expected);
    }
  }
  const std::string path = write_model_folder(folder / "model");
  const auto refused = [&](const Ended& ended, const std::string& message) {
    CHECK(ended.status == 2);
    CHECK_THAT(ended.err, ContainsSubstring(message));
    CHECK(ended.out.empty());
  };
  const Names short_text{"generate", "--model", path, "--prompt", "a", "--max-tokens", "2", "--threads", "1"};
  const auto with = [&](Names more) {
    more.insert(more.begin(), short_text.begin(), short_text.end());
    return more;
  };
  refused(on_two_ranks("gpt", short_text), "add --parallel");
  refused(run({.arguments = with({"--parallel", "shard=2", "--weights", "packed"}), .program = "gpt"}),
          "leave out --weights packed");
  refused(run({.arguments = with({"--parallel", "pipeline=9"}), .program = "gpt"}), "into 9 stages");
}

TEST_CASE("gpt tune on two ranks and devices computes what it computes on one") {
  const TempDir folder;
  const std::string base = write_model_folder(folder / "base", "llama", 256), q8 = folder / "q8.gguf",
                    chats = write_chats(folder / "c.jsonl");
  REQUIRE(gpt({"convert", "--model", base, "--out", q8, "--type", "q8_0"}).status == 0);
  const auto options = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(), {"tune",        "--model",      q8,    "--chats",      chats, "--run-dir",
                               folder / name, "--length",     "240", "--steps",      "3",   "--batch-size",
                               "4",           "--accumulate", "2",   "--rank",       "2",   "--lr",
                               "0.002",       "--warmup",     "0",   "--eval-every", "3",   "--val-part",
                               "0.2",         "--threads",    "1"});
    return more;
  };
  const auto tuned = [&](const Ended& ended) {
    INFO(ended.err << ended.out);
    REQUIRE(ended.status == 0);
    const std::size_t at = ended.out.find("held-out loss ", ended.out.find("step 3/3"));
    REQUIRE(at != std::string::npos);
    return std::stod(ended.out.substr(at + 14));
  };
  // The other modes and kinds of weights.
  struct Kind {
    std::string name;
    std::vector<std::string> options;
    std::vector<std::string> modes;
  };
  std::vector<Kind> kinds = {{"packed", {}, {"ddp", "fsdp", "dp", "context=2", "pipeline=2"}},
                             {"f32", {"--weights", "f32", "--keep-activations"}, {"fsdp", "pipeline"}},
                             {"full", {"--method", "full"}, {"fsdp", "pipeline=2"}}};
  if (kSanitized) kinds.pop_back();
  for (const Kind& kind : kinds) {
    const double loss = tuned(run({.arguments = options(kind.name, kind.options), .program = "gpt"}));
    for (const std::string& mode : kind.modes) {
      CAPTURE(kind.name, mode);
      std::vector<std::string> arguments = kind.options;
      arguments.insert(arguments.end(), {"--parallel", mode});
      const std::string name = kind.name + mode;
      const std::vector<std::string> all = options(name, arguments);
      const double parallel_loss =
          tuned(mode == "dp" || mode == "pipeline" ? run({.arguments = all, .program = "gpt"})
                                                   : on_two_ranks("gpt", all));
      CHECK(std::abs(parallel_loss - loss) < 2e-4);  // printed with four digits
      if (kind.name == "full") CHECK(distance(folder / kind.name, folder / name) < 1e-5);
      else CHECK(distance_of_adapters(folder / kind.name, folder / name) < 1e-5);
    }
  }

  // A stopped job resumes, also when the ranks hold shards.
  const std::string stopped_run = folder / "stopped";
  Launch launch = two_ranks("gpt", options("stopped", {"--parallel", "fsdp"}));
  bool sent = false;
  launch.on_poll = [&](pid_t launcher) {
    if (sent || !std::filesystem::exists(stopped_run + "/config.json")) return;
    sent = true;
    kill(launcher, SIGTERM);
  };
  const Ended stopped = run(launch);
  INFO(stopped.err << stopped.out);
  // The job may have ended before the signal came.
  REQUIRE((stopped.status == 128 + SIGTERM || stopped.status == 0));
  if (stopped.status != 0) tuned(on_two_ranks("gpt", {"tune", "--resume", "--run-dir", stopped_run}));
  CHECK(distance_of_adapters(folder / "packedfsdp", stopped_run) == 0);

  const auto refused = [&](const std::vector<std::string>& more, const std::string& message) {
    const Ended ended = run({.arguments = options("refused", more), .program = "gpt"});
    CHECK(ended.status == 2);
    CHECK_THAT(ended.err, ContainsSubstring(message));
    CHECK_FALSE(std::filesystem::exists(folder / "refused"));
  };
  refused({"--precision", "f8"}, "--precision");
  refused({"--parallel", "pipeline=9"}, "into 9 stages");
  const Ended alone = on_two_ranks("gpt", options("alone", {}));
  CHECK(alone.status == 2);
  CHECK_THAT(alone.err, ContainsSubstring("add --parallel ddp"));
}
