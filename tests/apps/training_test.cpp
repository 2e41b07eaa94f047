// Tests successful runs of the classifier: their output, their files and their reproducibility.
#include <algorithm>
#include <cmath>
#include <regex>

#include "tests/apps/program.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::classifier;
using tests::Ended;
using tests::read_file;

namespace {

// A small run. Options in `more` override the defaults.
Ended train(const std::string& data, const std::string& run, const std::vector<std::string>& more = {},
            int terminal_columns = 0) {
  std::vector<std::string> all = {"--model",  "mlp", "--data-dir", data, "--run-dir",    run,
                                  "--epochs", "2",   "--threads",  "1",  "--batch-size", "32"};
  all.insert(all.end(), more.begin(), more.end());
  return classifier({.arguments = all, .terminal_columns = terminal_columns});
}

}  // namespace

TEST_CASE("the demo's loss converges to ln(e + 9) - 1") {
  const tests::TempDir folder;
  const Ended run = classifier({"--model", "demo", "--epochs", "2", "--run-dir", folder / "run"});
  CHECK(run.status == 0);
  CHECK(tests::is_softmax_warning(run.err));
  std::smatch match;
  const std::string metrics = tests::metrics(folder / "run");
  REQUIRE(std::regex_search(metrics, match, std::regex("\"epoch\":2,\"train_loss\":([^,]+)")));
  // The probabilities are f32, so the loss may differ by some rounding errors, which are 1.2e-7 near 1.46.
  CHECK(std::abs(std::stod(match[1]) - (std::log(std::exp(1.0) + 9) - 1)) < 1e-6);
  CHECK_THAT(run.out, ContainsSubstring("train loss 1.4612"));
}

TEST_CASE("a run prints its progress and writes its folder") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data");
  const std::string dir = folder / "deep/run";
  const Ended run = train(folder / "data", dir, {"--seed", "41", "--seed", "42"});
  REQUIRE(run.status == 0);
  CHECK(run.err == "");
  CHECK_THAT(run.out, ContainsSubstring("seed 42, threads 1, device cpu:0, run folder " + dir));
  CHECK_THAT(run.out, ContainsSubstring("fc1: Linear"));
  CHECK(run.out.find_first_of("\r\033") ==
        std::string::npos);  // without a terminal there are no control characters
  CHECK(std::regex_search(
      run.out,
      std::regex(
          R"(\nepoch 1/2  step 1/3  loss \d\.\d{4}  accuracy \d\.\d{3}  \d+ samples/s  \d+:\d\d left\n)")));
  CHECK(std::regex_search(
      run.out,
      std::regex(
          R"(\nepoch 2/2  train loss \S+ accuracy [01]\.\d{4}  test loss \S+ accuracy [01]\.\d{4}  0:\d\d\n)")));
  CHECK(std::regex_search(
      run.out, std::regex(R"(\ntest accuracy [01]\.\d{4} after \d+\.\d s of training, seed 42; )")));

  CHECK(tests::names_in(dir) == std::vector<std::string>{"checkpoints", "config.json", "confusion.svg",
                                                         "curves.svg", "metrics.jsonl", "mistakes.svg"});
  CHECK(tests::names_in(dir + "/checkpoints") ==
        std::vector<std::string>{"step-00000003.safetensors", "step-00000006.safetensors"});
  const std::string config = read_file(dir + "/config.json");
  for (const char* entry :
       {"\"model\": \"mlp\"", "\"seed\": 42", "\"epochs\": 2", "\"optimizer\": \"adamw\"", "\"lr\": 0.003",
        "\"schedule\": \"one-cycle\"", "\"batch_size\": 32", "\"threads\": 1"})
    CHECK_THAT(config, ContainsSubstring(entry));

  const std::string metrics = tests::metrics(dir);
  CHECK(std::count(metrics.begin(), metrics.end(), '\n') == 2);
  CHECK_THAT(metrics, ContainsSubstring("{\"epoch\":1,") && ContainsSubstring("{\"epoch\":2,"));
  for (const char* picture : {"/curves.svg", "/confusion.svg", "/mistakes.svg"}) {
    const std::string svg = read_file(dir + picture);
    CHECK(tests::xml_fault(svg) == "");
    CHECK_THAT(svg, ContainsSubstring("<svg xmlns='http://www.w3.org/2000/svg'"));
    CHECK_THAT(svg, ContainsSubstring("mlp on fashion-mnist"));
  }
  CHECK_THAT(read_file(dir + "/confusion.svg"),
             ContainsSubstring("T-shirt/top") && ContainsSubstring("Ankle boot"));
}

TEST_CASE("mistakes.svg shows the test images with the highest loss") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data");
  const std::string dir = folder / "run";
  const Ended run = train(folder / "data", dir, {"--epochs", "1", "--lr", "1e-9"});  // an untrained network
  INFO(run.err);
  REQUIRE(run.status == 0);
  CHECK_THAT(read_file(dir + "/mistakes.svg"),
             ContainsSubstring("href='data:image/png;base64,iVBORw0KGgo") && ContainsSubstring("guess: "));
}

TEST_CASE("--overfit-batch learns the first batch by heart, and --tensorboard writes events") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data");
  const std::string dir = folder / "run";
  const Ended run = train(folder / "data", dir,
                          {"--overfit-batch", "--tensorboard", "--epochs", "20", "--schedule", "constant"});
  INFO(run.err);
  REQUIRE(run.status == 0);
  CHECK_THAT(run.out, ContainsSubstring("accuracy 1.0000  test"));
  CHECK_THAT(read_file(dir + "/config.json"), ContainsSubstring("\"overfit_batch\": true"));
  CHECK_THAT(read_file(dir + "/mistakes.svg"), !ContainsSubstring("guess: "));  // there are none
  const std::vector<std::string> events = tests::names_in(dir + "/tensorboard");
  REQUIRE(events.size() == 1);
  CHECK(events[0].starts_with("events.out.tfevents."));
  const std::string content = read_file(dir + "/tensorboard/" + events[0]);
  for (const char* tag : {"loss/step", "loss/test", "accuracy/train", "lr", "fc1.weight"})
    CHECK_THAT(content, ContainsSubstring(tag));
  // A resumed run writes a second file.
  REQUIRE(classifier({"--resume", "--run-dir", dir, "--epochs", "21"}).status == 0);
  CHECK(tests::names_in(dir + "/tensorboard").size() == 2);
}

TEST_CASE("xml_fault finds malformed XML") {
  CHECK(tests::xml_fault("<a><b x='1'/>text &lt;</a>\n") == "");
  for (const char* text : {"", "text", "<a>", "<a></b>", "<a></a><b></b>", "<a x=1></a>", "<a>a < b</a>",
                           "<a>&</a>", "<a x='1></a>", "</a>", "<a></a>end"}) {
    CAPTURE(text);
    CHECK(tests::xml_fault(text) != "");
  }
}

TEST_CASE("on a terminal one line is redrawn and does not wrap") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data");
  const Ended run = train(folder / "data", folder / "run", {"--batch-size", "1"}, 60);
  REQUIRE(run.status == 0);
  const std::string redraw = "\r\033[K";
  CHECK_THAT(run.out, ContainsSubstring(redraw + "epoch 1/2  step 1/80  loss"));
  CHECK_THAT(run.out, ContainsSubstring(redraw + "epoch 1/2  train loss"));
  int live = 0;
  for (std::size_t at = run.out.find(redraw); at != std::string::npos; ++live) {
    const std::size_t from = at + redraw.size();
    at = run.out.find(redraw, from);
    const std::string line = run.out.substr(from, std::min(at, run.out.find('\r', from)) - from);
    if (line.find("step") != std::string::npos) CHECK(line.size() < 60);
  }
  CHECK(live >= 2);
}

TEST_CASE("the same seed and threads give identical results, another seed gives others") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data");
  const auto result = [&](const std::string& name, std::vector<std::string> more) {
    REQUIRE(train(folder / "data", folder / name, more).status == 0);
    return tests::metrics(folder / name) + tests::last_checkpoint(folder / name);
  };
  const std::vector<std::string> cnn = {"--model=cnn", "--threads=2", "--epochs=1", "--seed=5"};
  const std::string once = result("a", cnn);
  std::vector<std::string> varied = cnn;
  varied.push_back("--workers=0");
  CHECK(result("b", varied) == once);
  varied.back() = "--seed=6";
  CHECK(result("c", varied) != once);
  CHECK(result("d", {}) == result("e", {"--workers", "3"}));
}

TEST_CASE("every schedule, optimizer and data set can be trained") {
  const tests::TempDir folder;
  const std::vector<std::vector<std::string>> runs = {
      {"--schedule", "cosine", "--optimizer", "sgd"},
      {"--schedule", "step", "--batch-size", "7"},
      {"--schedule", "constant", "--model", "cnn"},
      {"--model", "resnet18", "--synthetic-size", "2"},
      {"--model", "demo", "--schedule", "one-cycle", "--optimizer", "adamw", "--lr", "0.001"},
      {"--synthetic-size", "1", "--workers", "0", "--device", "cpu:0"},
  };
  int n = 0;
  for (const std::vector<std::string>& more : runs) {
    std::vector<std::string> all = {
        "--model",          "mlp", "--data",   "synthetic", "--run-dir", folder / std::to_string(n++),
        "--synthetic-size", "16",  "--epochs", "1"};
    all.insert(all.end(), more.begin(), more.end());
    CAPTURE(more);
    const Ended run = classifier(all);
    CHECK(run.status == 0);
    if (std::find(more.begin(), more.end(), "demo") != more.end()) CHECK(tests::is_softmax_warning(run.err));
    else CHECK(run.err == "");
    CHECK_THAT(run.out, ContainsSubstring("test accuracy"));
  }
}
