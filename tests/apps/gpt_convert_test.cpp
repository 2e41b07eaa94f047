// `gpt convert`, and models that are broken.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/gguf.h"
#include "tapestry/data/tokenizer/bpe_trainer.h"
#include "tapestry/data/tokenizer/parts.h"
#include "tapestry/nn/models/lora.h"
#include "tapestry/nn/models/pretrained.h"
#include "tests/apps/gpt_files.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tests;
using namespace tapestry;
namespace fs = std::filesystem;

namespace {

Ended convert(const std::string& from, const std::string& to, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"convert", "--model", from, "--out", to};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return gpt(arguments);
}

}  // namespace

TEST_CASE("a model that is converted there and back is the same") {
  const TempDir folder;
  for (const std::string family : {"llama", "gpt2"}) {
    CAPTURE(family);
    const std::string model = write_model_folder(folder / family, family), gguf = folder / (family + ".gguf"),
                      back = folder / (family + "-back"), again = folder / (family + "-again.gguf");
    REQUIRE(convert(model, gguf).status == 0);
    REQUIRE(convert(gguf, back).status == 0);
    REQUIRE(convert(back, again).status == 0);
    for (const char* file : {"model.safetensors", "config.json", "tokenizer.json"}) {
      CAPTURE(file);
      if (std::string(file) == "config.json" && family == "gpt2") continue;  // GGUF has no dropout
      CHECK(read_file(back + "/" + file) == read_file(model + "/" + file));
    }
    CHECK(read_file(gguf) == read_file(again));
    // The models say the same, too.
    const auto words = [&](const std::string& path) {
      const Ended ended = gpt({"generate", "--model", path, "--prompt", "the cat", "--max-tokens", "10"});
      CHECK(ended.status == 0);
      return ended.out;
    };
    CHECK(words(gguf) == words(model));

    // Q8_0 rounds each block of 32 to 127 steps on each side.
    const std::string q8 = folder / (family + "-q8.gguf"), from_q8 = folder / (family + "-from-q8"),
                      q8_again = folder / (family + "-q8-again.gguf");
    REQUIRE(convert(model, q8, {"--type", "q8_0"}).status == 0);
    REQUIRE(convert(q8, from_q8, {"--type", "f32"}).status == 0);
    REQUIRE(convert(from_q8, q8_again, {"--type", "q8_0"}).status == 0);
    const nn::ModelWeights first(model), second(from_q8), third(q8_again);
    for (const auto& entry : first.entries()) {
      CAPTURE(entry.name);
      const Tensor a = first.read(entry.name), b = second.read(entry.name);
      const double step = a.abs().max().item() / 127;
      CHECK((a - b).abs().max().item() <= step);
      CHECK((b - third.read(entry.name)).abs().max().item() <= step);
    }
    REQUIRE(convert(model, folder / (family + "-f16"), {"--type", "f16"}).status == 0);
    CHECK(nn::ModelWeights(folder / (family + "-f16")).entries()[0].dtype == DType::f16);
  }
}

TEST_CASE("gpt convert writes all or nothing") {
  const TempDir folder;
  const std::string model = write_model_folder(folder / "model");
  fs::create_directories(folder / "taken");
  write_file(folder / "taken/file", "precious");
  write_file(folder / "taken.gguf", "precious");
  for (const std::string& out : {folder / "taken", folder / "taken.gguf"}) {
    const Ended ended = convert(model, out);
    CHECK(ended.status == 1);
    CHECK_THAT(ended.err, ContainsSubstring("exists already"));
  }
  CHECK(read_file(folder / "taken.gguf") == "precious");
  CHECK(names_in(folder / "taken") == std::vector<std::string>{"file"});
  CHECK(convert(model, folder / "no/such/folder.gguf").status == 1);
  const Ended hf = convert(model, folder / "q8", {"--type", "q8_0"});
  CHECK(hf.status == 2);
  CHECK_THAT(hf.err, ContainsSubstring("write a GGUF file"));
  CHECK_FALSE(fs::exists(folder / "q8"));
  // A full disk.
  for (const std::string& out : {folder / "full", folder / "full.gguf"}) {
    Launch launch{.arguments = {"convert", "--model", model, "--out", out}, .program = "gpt"};
    launch.largest_file = 4096;
    CHECK(run(launch).status == 1);
    CHECK_FALSE(fs::exists(out));
  }
  for (const std::string& name : names_in(folder.path().string()))
    CHECK_THAT(name, !ContainsSubstring(".tmp-"));
}

TEST_CASE("gpt convert removes what killed conversions left, and keeps the dtype of a model") {
  const TempDir folder;
  const std::string model = write_model_folder(folder / "model"), half = folder / "half",
                    out = folder / "out";
  REQUIRE(convert(model, half, {"--type", "bf16"}).status == 0);
  CHECK_THAT(read_file(half + "/config.json"), ContainsSubstring("\"torch_dtype\": \"bfloat16\""));
  CHECK_THAT(read_file(model + "/config.json"), ContainsSubstring("\"torch_dtype\": \"float32\""));
  {
    const auto base = nn::load_language_model(half);
    nn::add_lora(*base, {.r = 2});
    nn::save_lora(folder / "adapter", *base);
  }
  // Folders of processes that are gone, one whose process lives, and names that only look similar.
  for (const char* const left : {"out.tmp-1", "out.old-1", "out.tmp-2", "out.tmp-x", "other.tmp-1"}) {
    fs::create_directories(folder / left);
    write_file(folder / left + std::string("/file"), "x");
  }
  const int alive = open((folder / "out.tmp-2").c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(flock(alive, LOCK_EX) == 0);
  fs::create_directory_symlink(folder / "other.tmp-1", folder / "out.tmp-3");
  // The model that a killed process had moved away comes back under its name, and is not replaced.
  CHECK_THAT(convert(half, out, {"--adapter", folder / "adapter"}).err, ContainsSubstring("exists already"));
  CHECK(read_file(out + "/file") == "x");
  fs::remove_all(out);
  REQUIRE(convert(half, out, {"--adapter", folder / "adapter"}).status == 0);
  close(alive);
  CHECK(nn::ModelWeights(out).entries()[0].dtype == DType::bf16);
  CHECK_THAT(read_file(out + "/config.json"), ContainsSubstring("\"torch_dtype\": \"bfloat16\""));
  std::vector<std::string> names = names_in(folder.path().string());
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"adapter", "half", "model", "other.tmp-1", "out", "out.tmp-2",
                                          "out.tmp-3", "out.tmp-x"});
  CHECK(fs::exists(folder / "other.tmp-1/file"));
}

TEST_CASE("a program whose output cannot be written fails") {
  const TempDir folder;
  const std::string model = write_model_folder(folder / "model"), program = TAPESTRY_PROGRAMS;
  write_file(folder / "text", "the cat sees a bird. a dog eats the bone!");
  const auto status = [&](const std::string& command) {
    const int ended = std::system((program + "/" + command + " > /dev/full 2> " + (folder / "err")).c_str());
    CAPTURE(command, read_file(folder / "err"));
    CHECK_THAT(read_file(folder / "err"), ContainsSubstring("standard output cannot be written"));
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  };
  CHECK(status("gpt --help") == 1);
  CHECK(status("gpt evaluate --help") == 1);
  CHECK(status("classifier --help") == 1);
  CHECK(status("gpt generate --model " + model + " --prompt 'the cat' --max-tokens 20 --threads 1") == 1);
  CHECK(status("gpt evaluate --model " + model + " --text " + (folder / "text") + " --threads 1") == 1);
  CHECK(status("gpt convert --model " + model + " --out " + (folder / "out.gguf")) == 1);
}

TEST_CASE("broken models are refused by every command") {
  const TempDir folder;
  const std::string good = write_model_folder(folder / "good");
  write_file(folder / "text", "the cat sees a bird");
  const auto refused = [&](const std::string& path, const std::string& message) {
    CAPTURE(path, message);
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"generate", "--model", path, "--prompt", "a"},
                                               {"chat", "--model", path},
                                               {"evaluate", "--model", path, "--text", folder / "text"},
                                               {"convert", "--model", path, "--out", folder / "out"}}) {
      const Ended ended = gpt(command);
      CAPTURE(command[0], ended.err);
      CHECK(ended.status == 1);
      CHECK(ended.signal == 0);
      CHECK_THAT(ended.err, Catch::Matchers::StartsWith("error: ") && ContainsSubstring(message));
      CHECK_FALSE(fs::exists(folder / "out"));
    }
  };
  refused(folder / "missing", "there is no model");
  const auto copy = [&](const std::string& name) {
    fs::copy(good, folder / name);
    return folder / name;
  };
  const std::string cut = copy("cut");
  fs::resize_file(cut + "/model.safetensors", fs::file_size(cut + "/model.safetensors") - 100);
  refused(cut, "model.safetensors");
  const std::string vocab = copy("vocab");
  std::string config = read_file(vocab + "/config.json");
  const std::size_t at = config.find("\"vocab_size\": ") + 14;
  write_file(vocab + "/config.json", config.replace(at, config.find(',', at) - at, "777"));
  refused(vocab, "");
  REQUIRE(convert(good, folder / "good.gguf").status == 0);
  const std::string gguf = read_file(folder / "good.gguf");
  write_file(folder / "cut.gguf", gguf.substr(0, gguf.size() / 2));
  refused(folder / "cut.gguf", "cut.gguf");
  write_file(folder / "zero.gguf", "");
  refused(folder / "zero.gguf", "zero.gguf");

  // A tokenizer with more tokens than the model.
  const std::string large = copy("large");
  write_file(large + "/tokenizer.json", data::tokenizer_json(data::train_bpe(
                                            "the the the cat cat sees sees a bird bird bone bone eats eats",
                                            {.vocab_size = 300,
                                             .special = {"<|endoftext|>",
                                                         "<|im_start|>",
                                                         "<|im_end|>",
                                                         "a1",
                                                         "a2",
                                                         "a3",
                                                         "a4",
                                                         "a5",
                                                         "a6",
                                                         "a7",
                                                         "a8",
                                                         "a9",
                                                         "b1",
                                                         "b2",
                                                         "b3",
                                                         "b4",
                                                         "b5",
                                                         "b6",
                                                         "b7",
                                                         "b8",
                                                         "b9",
                                                         "c1",
                                                         "c2",
                                                         "c3",
                                                         "c4"}})));
  refused(large, "tokens, but the model");

  // What only some commands need.
  const std::string mute = copy("mute");
  fs::remove(mute + "/tokenizer.json");
  CHECK_THAT(gpt({"generate", "--model", mute, "--prompt", "a"}).err, ContainsSubstring("has no tokenizer"));
  CHECK_THAT(gpt({"generate", "--model", good, "--prompt", std::string(400, 'q')}).err,
             ContainsSubstring("the context of the model has 96"));
  CHECK_THAT(gpt({"generate", "--model", good, "--prompt", "caf\xe9"}).err,
             ContainsSubstring("UTF-8 at byte 3"));
  CHECK(gpt({"generate", "--model", good, "--prompt", "a", "--top-p", "2"}).status == 2);
  CHECK(gpt({"generate", "--model", good, "--prompt", "a", "--stop", ""}).status == 2);
  CHECK(gpt({"generate"}).status == 2);
  CHECK(gpt({"nonsense"}).status == 2);
}
