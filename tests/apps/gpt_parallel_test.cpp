// `gpt train` on several ranks and devices computes what it computes on one.
#include <cmath>
#include <filesystem>

#include "tapestry/autograd/ops.h"
#include "tapestry/nn/models/pretrained.h"
#include "tests/apps/gpt_files.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tests;

namespace {

std::vector<std::string> options(const std::string& text, const std::string& run) {
  return {"train", "--text",       text, "--run-dir", run,  "--layers",       "2", "--width",
          "16",    "--heads",      "2",  "--context", "16", "--steps",        "3", "--batch-size",
          "8",     "--sample",     "3",  "--warmup",  "1",  "--eval-windows", "7", "--eval-every",
          "3",     "--accumulate", "2",  "--threads", "1"};
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

}  // namespace

TEST_CASE("gpt on two ranks trains as on one") {
  const TempDir folder;
  const std::string text = write_story(folder / "story.txt", 60);
  REQUIRE(run({.arguments = options(text, folder / "one"), .program = "gpt"}).status == 0);
  for (const std::string mode : {"ddp", "zero2", "fsdp"}) {
    CAPTURE(mode);
    std::vector<std::string> arguments = options(text, folder / mode);
    arguments.insert(arguments.end(), {"--parallel", mode});
    const Ended ended = on_two_ranks("gpt", arguments);
    INFO(ended.err << ended.out);
    REQUIRE(ended.status == 0);
    CHECK_THAT(ended.out, ContainsSubstring("ranks 2") && ContainsSubstring("sample: "));
    CHECK(distance(folder / "one", folder / mode) < 1e-5);
  }
  const Ended alone = on_two_ranks("gpt", options(text, folder / "none"));
  CHECK(alone.status == 2);
  CHECK_THAT(alone.err, ContainsSubstring("add --parallel ddp"));
}

TEST_CASE("gpt on two devices of one process trains as on one") {
  const TempDir folder;
  const std::string text = write_story(folder / "story.txt", 60);
  const auto train = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> arguments = options(text, folder / name);
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended ended = run({.arguments = arguments, .program = "gpt"});
    INFO(ended.err << ended.out);
    REQUIRE(ended.status == 0);
  };
  for (const std::string family : {"llama", "gpt2"}) {
    train("one-" + family, {"--family", family, "--no-document-masks"});
    for (const std::string mode : {"dp", "pipeline"}) {
      train(mode + family, {"--family", family, "--no-document-masks", "--parallel", mode});
      CHECK(distance(folder / ("one-" + family), folder / (mode + family)) < 1e-5);
    }
  }
}
