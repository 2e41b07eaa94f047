// The page of --live: its data, what the ranks tell each other, and the page itself in a browser during a
// training (live_test.py).
#include "tapestry/apps/common/live_page.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tapestry/apps/common/job_requests.h"
#include "tapestry/apps/common/json_text.h"
#include "tapestry/apps/common/page_files.h"
#include "tapestry/nn/layers/linear.h"
#include "tests/apps/program.h"
#include "tests/apps/run_files.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace apps;
using nlohmann::json;

namespace {

// The data of a page: what stands in its element "data".
json data_of(const std::string& page) {
  const std::string begin = "id=\"data\">";
  const std::size_t at = page.find(begin) + begin.size();
  return json::parse(page.substr(at, page.find("</script>", at) - at));
}

JobOptions alone() { return {.command = "test", .parallel = "none", .live = true}; }
LiveRun described(std::int64_t steps) {
  return {.program = "test",
          .title = "</script><img src=x>",
          .unit = "images",
          .held_out = "test images",
          .steps = steps,
          .epoch_steps = 10,
          .facts = {{"mode", "none"}}};
}

}  // namespace

TEST_CASE("a curve of many steps has few points, which keep means, extremes and sums") {
  LiveCurve curve;
  constexpr std::int64_t kSteps = 100'000;
  double sum = 0;
  for (std::int64_t s = 1; s <= kSteps; ++s) {
    const double loss = s == 777 ? 50 : 1.0 / static_cast<double>(s);
    sum += loss;
    curve.add({.step = s,
               .loss = loss,
               .low = loss,
               .high = loss,
               .accuracy = 0.5,
               .samples = 8,
               .seconds = 2,
               .memory = {s == 5000 ? 9 : 1}});
  }
  const auto& points = curve.points();
  CHECK((points.size() > LiveCurve::kMost / 2 && points.size() <= LiveCurve::kMost));
  double weighted = 0, seconds = 0, high = 0;
  std::int64_t steps = 0, last = 0, memory = 0;
  for (const CurvePoint& p : points) {
    CHECK(p.step == last + p.steps);  // no gaps
    CHECK((&p == &points.back() || p.steps == points[0].steps));
    CHECK((p.low <= p.loss && p.loss <= p.high));
    last = p.step, steps += p.steps, seconds += p.seconds;
    weighted += p.loss * static_cast<double>(p.steps);
    high = std::max(high, p.high), memory = std::max(memory, p.memory[0]);
  }
  CHECK((last == kSteps && steps == kSteps));
  CHECK(seconds == 2.0 * kSteps);
  CHECK(weighted == Approx(sum).epsilon(1e-12));
  CHECK((high == 50 && memory == 9));
}

TEST_CASE("texts become JSON whatever their bytes are") {
  const std::string good = "\"\\/ \n\x01\x7f \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 </script>";
  CHECK(json::parse(json_string(good)) == good);
  for (const char* bad :
       {"\xFF", "\xC3", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80"}) {
    const std::string text = json::parse(json_string(std::string("a") + bad + "b")).get<std::string>();
    CAPTURE(text);
    CHECK(text.starts_with("a\xEF\xBF\xBD"));
    CHECK(
        text.ends_with("\xEF\xBF\xBD"
                       "b"));
  }
  CHECK(json_number(NAN) == "null");
  CHECK(json_number(-INFINITY) == "null");
  CHECK(json_number(0.123456) == "0.12346");
  CHECK(json::parse(json_in_html(json_string("</script>\xE2\x80\xA8&"))) == "</script>\xE2\x80\xA8&");
  CHECK(json_in_html("<>&\xE2\x80\xA8").find_first_of("<>&\xE2") == std::string::npos);
}

TEST_CASE("requests carry the row of each rank to all ranks, bit for bit") {
  using distributed_test::Group;
  using Rows = std::vector<std::vector<RankRow>>;  // after each step
  const auto row = [](int rank, int step) {
    return RankRow{.step = step, .loss = rank == 1 ? NAN : -rank - step / 8.0, .memory = {rank, 1LL << 40}};
  };
  const auto seen = distributed_test::on_ranks<std::pair<Rows, int>>(3, [&](const Group& group) {
    JobRequests requests(group, true);
    Rows rows;
    for (int step = 1; step <= 3; ++step) {
      requests.share(row(group->rank(), step));
      requests.agree({.signal = group->rank() == 2 && step == 3 ? 15 : 0});
      rows.push_back(requests.rows());
    }
    return std::pair(rows, requests.agree({}).signal);
  });
  for (const auto& [rows, signal] : seen) {
    CHECK(signal == 15);
    CHECK(rows[0].empty());
    for (int step = 2; step <= 3; ++step) {  // those of the step before
      REQUIRE(rows[static_cast<std::size_t>(step - 1)].size() == 3);
      for (int r = 0; r < 3; ++r) {
        const RankRow& got = rows[static_cast<std::size_t>(step - 1)][static_cast<std::size_t>(r)];
        const RankRow sent = row(r, step - 1);
        CHECK(got.step == sent.step);
        CHECK((r == 1 ? std::isnan(got.loss) : got.loss == sent.loss));
        CHECK(got.memory == sent.memory);
      }
    }
  }
}

TEST_CASE("the file of a page has bounded size, and says how the run ended") {
  const tests::TempDir folder;
  const RunFolder run(folder / "run", false);
  TrainingJob job(alone());
  tapestry::nn::Linear model({.in_features = 2, .out_features = 2});
  job.strategy().wrap(
      model, {.forward_loss = [](const auto&, const auto&) { return tapestry::distributed::Loss{}; }});
  const std::string awful(100'000, '<');  // six characters each in a page
  {
    LivePage page(job, run, described(2000));
    CHECK_THAT(page.address(), ContainsSubstring("http://127.0.0.1:") && ContainsSubstring("live.html"));
    for (std::int64_t s = 1; s <= 2000; ++s) {
      page.step({.step = s,
                 .loss = 1.23456789e-5 * static_cast<double>(s),
                 .accuracy = 1 / 3.0,
                 .samples = 128,
                 .seconds = 0.0123 * static_cast<double>(s)});
      job.agree({});
    }
    for (int i = 0; i < 2000; ++i)
      page.earlier({.step = 2001 + i, .loss = 1.23456789}, 1.23456789, 0.123456789);
    for (int i = 0; i < 40; ++i) page.text_sample(i, awful);
    page.picture(1, "too large", awful);
    for (int i = 0; i < 3; ++i) page.picture(i, "picture", std::string(110'000, 'x'));
    page.evaluated(2000, NAN, 0.5);
  }
  const std::string text = tests::read_file(run.file("live.html"));
  CHECK(text.size() < 900'000);
  const json data = data_of(text);
  CHECK(data["live"]["schema"] == 1);
  CHECK(data["live"]["state"] == "failed");  // nothing said that it is done
  CHECK(data["live"]["title"] == "</script><img src=x>");
  CHECK(text.find("<img") == std::string::npos);
  CHECK(data["live"]["points"].size() > 256);
  CHECK(data["live"]["evaluated"].back() == json::array({2000, nullptr, 0.5}));
  CHECK(data["samples"].size() == 13);  // the last 12 texts, and one picture of each title
  CHECK(data["samples"].back()["step"] == 2);

  LivePage page(job, run, described(1));
  page.finish("done", awful);
  const std::string done = tests::read_file(run.file("live.html"));
  CHECK(done.size() < 200'000);
  CHECK(data_of(done)["live"]["state"] == "done");
}

TEST_CASE("--live changes no result, tells of every rank, and needs to be on rank 0 only") {
  const tests::TempDir folder;
  tests::write_fashion_mnist(folder / "data");
  const auto options = [&](const std::string& name) {
    return std::vector<std::string>{
        "--data-dir", folder / "data", "--run-dir", folder / name, "--model", "cnn",        "--epochs",
        "2",          "--batch-size",  "16",        "--threads",   "1",       "--parallel", "ddp"};
  };
  tests::Launch live = tests::two_ranks("classifier", options("live"));
  live.arguments.insert(live.arguments.begin() + 2,
                        {"sh", "-c", "[ $RANK = 1 ] && exec \"$0\" \"$@\"; exec \"$0\" \"$@\" --live"});
  const tests::Ended ended = tests::run(live);
  INFO(ended.err << ended.out);
  REQUIRE(ended.status == 0);
  REQUIRE(tests::on_two_ranks("classifier", options("plain")).status == 0);
  const auto result = [&](const std::string& name) {
    return tests::metrics(folder / name) + tests::last_checkpoint(folder / name);
  };
  CHECK(result("live") == result("plain"));
  CHECK_FALSE(std::filesystem::exists(folder / "plain/live.html"));

  const json live_data = data_of(tests::read_file(folder / "live/live.html"))["live"];
  CHECK(live_data["state"] == "done");
  CHECK(live_data["evaluated"].size() == 2);
  REQUIRE(live_data["rows"].size() == 2);
  CHECK(live_data["rows"][0]["loss"] != live_data["rows"][1]["loss"]);
  for (const json& row : live_data["rows"]) {
    CHECK(row["host"] == live_data["rows"][0]["host"]);
    CHECK(!row["host"].get<std::string>().empty());
    CHECK(row["step"] == live_data["steps"]);  // an evaluation followed the last step
    CHECK(row["step_ms"] > 0);
    CHECK(row["memory"][0] > 10'000);  // parameters
    CHECK(row["memory"][1] > 10'000);  // gradients
    CHECK(row["memory"][3] > 10'000);  // activations
  }
  // The curve's mean loss over the second epoch is that of metrics.jsonl.
  const json metrics =
      json::parse(tests::read_file(folder / "live/metrics.jsonl")
                      .substr(tests::read_file(folder / "live/metrics.jsonl").find('\n') + 1));
  const std::int64_t half = live_data["steps"].get<std::int64_t>() / 2;
  double sum = 0;
  for (const json& p : live_data["points"])
    if (p[0] > half) sum += p[1].get<double>();
  CHECK(sum / static_cast<double>(half) == Approx(metrics["train_loss"].get<double>()).epsilon(1e-4));

  // The page of a resumed run begins with the earlier epochs.
  REQUIRE(tests::on_two_ranks("classifier", {"--resume", "--run-dir", folder / "live", "--live"}).status ==
          0);
  const json resumed = data_of(tests::read_file(folder / "live/live.html"))["live"];
  CHECK(resumed["evaluated"] == live_data["evaluated"]);
  CHECK(resumed["points"].size() == 2);
}

TEST_CASE("every rank of the first stage tells its loss") {
  const tests::TempDir folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the cat sees a bird. ";
  tests::write_file(folder / "text", text);
  const tests::Ended ended = tests::run(tests::on_ranks(
      4, "gpt",
      {"train", "--text", folder / "text", "--run-dir", folder / "run", "--layers", "2", "--width", "16",
       "--heads", "2", "--context", "16", "--steps", "2", "--batch-size", "8", "--accumulate", "2",
       "--warmup", "1", "--sample", "0", "--threads", "1", "--live", "--parallel",
       "pipeline=2,replicate=2"}));
  INFO(ended.err << ended.out);
  REQUIRE(ended.status == 0);
  const json rows = data_of(tests::read_file(folder / "run/live.html"))["live"]["rows"];
  REQUIRE(rows.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(rows[i]["has_loss"] == (i < 2));
  CHECK(rows[0]["loss"] != rows[1]["loss"]);
}

TEST_CASE("child: rank 1 of two fails", "[.]") {
  TrainingJob job({.command = "test", .parallel = "ddp", .live = true});
  const RunFolder run = job.first() ? RunFolder(std::getenv("RUN_DIR"), false) : RunFolder();
  LivePage page(job, run, described(9));
  CHECK_THROWS(page.watch([&]() -> int {
    if (job.rank() == 1) tapestry::fail<tapestry::ValueError>("[test] no more <samples>");
    job.group()->barrier();
    return 0;
  }));
}

TEST_CASE("the page of a run that fails says which rank failed, and why") {
  const tests::TempDir folder;
  const auto message = [&](const std::string& run) {
    const json live = data_of(tests::read_file(folder / run + "/live.html"))["live"];
    CHECK(live["state"] == "failed");
    return live["message"].get<std::string>();
  };
  const tests::Ended alone = tests::classifier(
      {"--live", "--run-dir", folder / "alone", "--data", "synthetic", "--synthetic-size", "256", "--model",
       "mlp", "--threads", "1", "--lr", "1e30"});
  CHECK(alone.status == 1);
  CHECK(alone.err == "error: " + message("alone") + "\n");

  tests::Launch ranks = tests::two_ranks("tests_apps", {"child: rank 1 of two fails"});
  ranks.arguments.insert(ranks.arguments.begin() + 2, {"env", "RUN_DIR=" + folder / "ranks"});
  const tests::Ended ended = tests::run(ranks);
  INFO(ended.err << ended.out);
  CHECK(ended.status == 0);
  CHECK_THAT(message("ranks"), Catch::Matchers::StartsWith("rank 1: [test] no more <samples>\n[barrier]"));
}

TEST_CASE("the page shows a training in a browser, whatever other readers do") {
  const tests::TempDir folder;
  const std::string command =
      "command -v python3 >/dev/null || { echo 'skipped: Python is missing'; exit 0; }; python3 '" +
      tests::source_path("tests/apps/live_test.py") + "' '" TAPESTRY_PROGRAMS "' '" + folder.path().string() +
      "'";
  CHECK(std::system(command.c_str()) == 0);  // NOLINT
}
