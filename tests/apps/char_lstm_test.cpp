// Runs apps/char_lstm as a user does.
#include <fstream>

#include "tapestry/nn/checkpoint.h"
#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::Ended;
using tests::Launch;

namespace {

Ended char_lstm(std::vector<std::string> arguments) {
  return tests::run(Launch{.arguments = std::move(arguments), .program = "char_lstm"});
}

// Writes a text in which the letter before a digit decides which digit it is, so that a model without a state
// cannot predict it.
std::string write_text(const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < 1500; ++i) file << (i * i % 7 < 3 ? "a-1 " : "b-2 ");
  return path;
}

/// The output without the times and speeds.
std::string results(const std::string& out) {
  std::string kept;
  for (std::size_t at = 0; at < out.size();) {
    const std::size_t end = std::min(out.find('\n', at), out.size());
    const std::string line = out.substr(at, end - at);
    kept += line.substr(0, line.find("character")) + "\n";
    at = end + 1;
  }
  return kept;
}

const std::vector<std::string> kSmall = {"--hidden", "32",      "--batch", "8",    "--unroll",
                                         "16",       "--steps", "100",     "--lr", "0.02"};
std::vector<std::string> with(std::vector<std::string> more) {
  more.insert(more.begin(), kSmall.begin(), kSmall.end());
  return more;
}

}  // namespace

TEST_CASE("char_lstm learns a text, and generates text with a saved model") {
  const tests::TempDir folder;
  const std::string text = write_text(folder / "text"), model = folder / "model.safetensors";
  // Each group of four characters has at most one bit: 0.25 per character.
  const Ended run = char_lstm(with({"--text", text, "--goal", "0.3", "--save", model, "--sample", "40",
                                    "--temperature", "0.5", "--prompt", "a-1 "}));
  INFO(run.err << run.out);
  CHECK(run.status == 0);
  CHECK(run.err == "");
  CHECK_THAT(run.out, ContainsSubstring("step 100  ") && ContainsSubstring("of the last 300 characters") &&
                          ContainsSubstring("\na-1 ") && ContainsSubstring("goal of 0.30") &&
                          ContainsSubstring(" reached"));
  REQUIRE(tapestry::nn::load_tensors(model).size() == 8);

  // The most likely character after "-" depends on the letter before it.
  for (const auto& [prompt, next] : {std::pair<std::string, std::string>{"b-", "b-2 "}, {"a-", "a-1 "}}) {
    const Ended generated =
        char_lstm({"--load", model, "--prompt", prompt, "--sample", "2", "--temperature", "0"});
    CHECK(generated.status == 0);
    CHECK(generated.out == next + "\n");
  }
  const Ended sampled = char_lstm({"--load", model, "--prompt", "a", "--sample", "9", "--top-k", "1"});
  CHECK(char_lstm({"--load", model, "--prompt", "a", "--sample", "9", "--temperature", "0"}).out ==
        sampled.out);

  const Ended unknown = char_lstm({"--load", model, "--prompt", "z"});
  CHECK(unknown.status == 1);
  CHECK_THAT(unknown.err, ContainsSubstring("the model does not know the character 'z'"));
  CHECK(char_lstm({"--load", model}).status == 2);
}

TEST_CASE("char_lstm: the seed determines the results, and a missed goal is exit status 3") {
  const tests::TempDir folder;
  const std::string text = write_text(folder / "text");
  std::vector<std::string> few = {"--text",   text,  "--hidden",  "16",  "--batch",  "4",
                                  "--unroll", "8",   "--steps",   "3",   "--sample", "30",
                                  "--goal",   "0.1", "--dropout", "0.1", "--layers", "2"};
  const Ended once = char_lstm(few);
  CHECK(once.status == 3);
  CHECK_THAT(once.out, ContainsSubstring("goal of 0.10 bits per character not reached"));
  CHECK(results(char_lstm(few).out) == results(once.out));
  few.insert(few.end(), {"--seed", "2"});
  CHECK(results(char_lstm(few).out) != results(once.out));
}

TEST_CASE("char_lstm reports invalid options and files") {
  const tests::TempDir folder;
  const Ended none = char_lstm({});
  CHECK(none.status == 2);
  CHECK_THAT(none.err, ContainsSubstring("pass --text FILE to train, or --load FILE"));
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--steps", "0"},
                                                {"--temperature", "nan"},
                                                {"--top-k", "-1"},
                                                {"--dropout", "1"},
                                                {"--bogus"}}) {
    const Ended run = char_lstm(wrong);
    CHECK(run.status == 2);
    CHECK_THAT(run.err, ContainsSubstring("error: [char_lstm]") && ContainsSubstring(wrong[0]));
  }
  const Ended missing = char_lstm({"--text", folder / "none"});
  CHECK(missing.status == 1);
  CHECK_THAT(missing.err, ContainsSubstring("cannot read " + folder / "none"));
  std::ofstream(folder / "short") << "a short text";
  const Ended shorter = char_lstm({"--text", folder / "short"});
  CHECK(shorter.status == 1);
  CHECK_THAT(shorter.err, ContainsSubstring("a batch needs 2080"));
  const Ended lost = char_lstm({"--text", folder / "short", "--save", folder / "none/model"});
  CHECK(lost.status == 1);
  CHECK_THAT(lost.err, ContainsSubstring("none/model"));
}
