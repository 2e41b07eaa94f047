// --precision of the programs that train: a few steps in bf16 and f16, refused values, and resumed runs.
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <regex>

#include "tests/apps/gpt_files.h"
#include "tests/apps/run_files.h"
#include "tests/apps/runs.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tests;

namespace {

Ended run_app(const std::string& program, std::vector<std::string> arguments, const std::string& precision) {
  arguments.insert(arguments.end(), {"--precision", precision});
  return run(Launch{.arguments = std::move(arguments), .program = program});
}

// All numbers that follow `words` in the text.
std::vector<double> numbers_after(const std::string& text, const std::string& words) {
  std::vector<double> found;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
    found.push_back(std::strtod(text.c_str() + at + words.size(), nullptr));
  return found;
}

// Checks that a config.json has the precision, and writes it again as a version without the option did.
void make_older(const std::string& config, const std::string& precision) {
  const std::string text = read_file(config);
  const std::regex line("\\s*\"(--)?precision\": \"" + precision + "\",");
  REQUIRE(std::regex_search(text, line));
  write_file(config, std::regex_replace(text, line, ""));
}

}  // namespace

TEST_CASE("--precision: the small programs learn in bf16 and f16, and compute what f32 does not") {
  const TempDir folder;
  std::string text;
  for (int i = 0; i < 1500; ++i) text += i * i % 7 < 3 ? "a-1 " : "b-2 ";
  write_file(folder / "text", text);
  struct Program {
    std::string name;
    std::vector<std::string> arguments;
    std::string number;  // the words before the result, which falls, or rises for "return"
  };
  const std::vector<Program> programs = {
      {"unet",
       {"--train-images", "64", "--test-images", "4", "--epochs", "2", "--batch-size", "16", "--width", "8",
        "--lr", "0.01", "--picture", ""},
       "training loss "},
      {"char_lstm",
       {"--text", folder / "text", "--hidden", "16", "--batch", "8", "--unroll", "16", "--steps", "200",
        "--lr", "0.02", "--sample", "0"},
       "step 100  |step 200  "},
      {"model_parallel", {"--batch-size", "8", "--image-size", "40", "--steps", "12"}, "Loss: "},
      {"dqn",
       {"--steps", "1100", "--warmup", "100", "--train-every", "128", "--updates", "4", "--test-episodes",
        "3"},
       "mean return "},
      {"reinforce", {"--updates", "10", "--episodes", "4", "--test-episodes", "3"}, "mean return "}};
  for (const Program& p : programs) {
    std::string full;
    for (const std::string precision : {"f32", "bf16", "f16"}) {
      std::vector<std::string> arguments = p.arguments;
      const std::string saved = folder / (p.name + precision);
      if (p.name != "model_parallel") arguments.insert(arguments.end(), {"--save", saved});
      const Ended ended = run_app(p.name, arguments, precision);
      CAPTURE(p.name, precision, ended.out, ended.err);
      CHECK((ended.status == 0 || (p.number == "mean return " && ended.status == 3)));
      CHECK(ended.err == "");
      std::vector<double> numbers;
      for (std::size_t at = 0; at < p.number.size(); at = p.number.find('|', at) + 1) {
        const std::size_t end = std::min(p.number.find('|', at), p.number.size());
        for (const double x : numbers_after(ended.out, p.number.substr(at, end - at))) numbers.push_back(x);
        if (end == p.number.size()) break;
      }
      REQUIRE(numbers.size() >= 2);
      // The returns of a few updates are noise.
      if (p.number != "mean return ") CHECK(numbers.back() < 0.9 * numbers.front());
      const std::string result = p.name == "model_parallel" ? ended.out : read_file(saved);
      if (precision == "f32") full = result;
      else CHECK((result != full));  // bytes that nobody wants to see
    }
    const Ended refused = run_app(p.name, p.arguments, "f8");
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, ContainsSubstring("--precision"));
  }
}

TEST_CASE("--precision: a pipeline has the losses of f32 but for rounding, in one process and over ranks") {
  const std::vector<std::string> arguments = {"--batch-size", "12", "--width",         "8", "--layers", "1",
                                              "--steps",      "3",  "--micro-batches", "4"};
  const auto loss_of = [](const Ended& ended) {
    INFO(ended.out << ended.err);
    REQUIRE(ended.status == 0);
    const std::size_t end = ended.out.rfind(" |"), begin = ended.out.rfind('|', end - 1);
    return std::strtod(ended.out.c_str() + begin + 1, nullptr);
  };
  const double full = loss_of(run_app("pipeline", arguments, "f32"));
  for (const std::string precision : {"bf16", "f16"}) {
    const double alone = loss_of(run_app("pipeline", arguments, precision));
    if (precision == "bf16") CHECK(alone != full);  // f16 differs in digits that are not printed
    CHECK(std::abs(alone - full) < 0.02 * full);
    std::vector<std::string> more = arguments;
    more.insert(more.end(), {"--precision", precision});
    CHECK(loss_of(on_two_ranks("pipeline", more)) == alone);
  }
}

TEST_CASE("--precision: a stopped classifier resumes with its precision, bit for bit") {
  for (const std::string precision : {"bf16", "f16"}) {
    const Runs runs({"--model", "mlp", "--epochs", "3", "--batch-size", "16", "--precision", precision});
    CAPTURE(precision);
    REQUIRE(run(runs.start("whole")).status == 0);
    const std::vector<double> losses =
        numbers_after(read_file(runs.dir("whole") + "/metrics.jsonl"), "\"train_loss\":");
    REQUIRE(losses.size() == 3);
    CHECK(losses.back() < 0.9 * losses.front());
    Launch first = runs.start("stopped");
    first.pending_signal = SIGINT;
    REQUIRE(run(first).status == 130);
    REQUIRE(run(runs.resume("stopped")).status == 0);
    CHECK(runs.result("stopped") == runs.result("whole"));
    const Ended other = run(runs.resume("stopped", {"--precision", "f32"}));
    CHECK(other.status == 2);
    CHECK_THAT(other.err, ContainsSubstring("--precision \"" + precision + "\""));
  }
}

TEST_CASE("--precision: a run of the classifier that is older than the option resumes in f32") {
  const Runs runs({"--model", "mlp", "--epochs", "2", "--batch-size", "16"});
  REQUIRE(run(runs.start("whole")).status == 0);
  Launch first = runs.start("old");
  first.pending_signal = SIGINT;
  REQUIRE(run(first).status == 130);
  make_older(runs.dir("old") + "/config.json", "f32");
  const Ended other = run(runs.resume("old", {"--precision", "bf16"}));
  CHECK(other.status == 2);
  CHECK_THAT(other.err, ContainsSubstring("--precision \"f32\""));
  const Ended resumed = run(runs.resume("old"));
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  CHECK(runs.result("old") == runs.result("whole"));
}

TEST_CASE("--precision: gpt train and gpt tune learn, resume bit for bit, and resume older runs in f32") {
  const TempDir folder;
  const std::string text = write_story(folder / "story.txt", 60), base = write_model_folder(folder / "base");
  struct Command {
    std::string name;
    std::vector<std::string> arguments;
    std::string weights;
  };
  const std::vector<Command> commands = {
      {"train",
       {"--text",    text,   "--layers",     "1",  "--width",        "16", "--heads",     "2",
        "--context", "16",   "--steps",      "20", "--batch-size",   "4",  "--warmup",    "1",
        "--lr",      "0.02", "--eval-every", "10", "--eval-windows", "6",  "--log-every", "10",
        "--sample",  "0"},
       "/model/model.safetensors"},
      {"tune",
       {"--model",  base,   "--text",       text, "--length",         "16", "--method",    "lora",
        "--rank",   "2",    "--steps",      "20", "--batch-size",     "4",  "--warmup",    "0",
        "--lr",     "0.05", "--eval-every", "10", "--eval-sequences", "6",  "--log-every", "10",
        "--sample", "0"},
       "/adapter/adapter_model.safetensors"}};
  for (const Command& command : commands)
    for (const std::string precision : {"f32", "bf16", "f16"}) {
      CAPTURE(command.name, precision);
      const auto start = [&](const std::string& name) {
        std::vector<std::string> all = command.arguments;
        all.insert(all.begin(), command.name);
        all.insert(all.end(),
                   {"--precision", precision, "--run-dir", folder / (command.name + precision + name)});
        return gpt_launch(all);
      };
      const std::string whole = folder / (command.name + precision + "whole"),
                        stopped = folder / (command.name + precision + "stopped");
      const Ended ended = run(start("whole"));
      INFO(ended.out << ended.err);
      REQUIRE(ended.status == 0);
      const std::vector<double> losses = numbers_after(read_file(whole + "/metrics.jsonl"), "\"val_loss\":");
      REQUIRE(losses.size() >= 2);
      CHECK(losses.back() < losses.front());
      Launch first = start("stopped");
      first.pending_signal = SIGINT;
      REQUIRE(run(first).status == 130);
      if (precision == "f32") make_older(stopped + "/config.json", "f32");
      const Ended rest = gpt({command.name, "--resume", "--run-dir", stopped});
      INFO(rest.out << rest.err);
      REQUIRE(rest.status == 0);
      CHECK((read_file(stopped + command.weights) == read_file(whole + command.weights)));
      const Ended other = gpt({command.name, "--resume", "--run-dir", stopped, "--precision",
                               precision == "f16" ? "bf16" : "f16"});
      CHECK(other.status == 2);
      CHECK_THAT(other.err, ContainsSubstring("--precision \"" + precision + "\""));
    }
}
