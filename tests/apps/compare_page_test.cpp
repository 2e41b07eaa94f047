// Tests the sentences of tapestry-compare, and opens its page in a browser (page_test.py).
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "tapestry/apps/compare/critical_path.h"
#include "tapestry/apps/compare/document.h"
#include "tapestry/apps/compare/page/page.h"
#include "tapestry/distributed/strategy/strategy.h"
#include "tests/apps/compare_results.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/fuzz_setting.h"
#include "tests/support/source.h"

using namespace apps::compare;
using nlohmann::json;
using tapestry::Activity;
using tapestry::Span;
using tapestry::distributed::StrategyPlan;

namespace {

const std::vector<std::string> kPredicted = [] {
  std::istringstream words(R"(
single ddp dp-master dp-replicated fsdp model zero1 zero2 pipeline-gpipe pipeline-1f1b
pipeline-zero-bubble pipeline=-1 replicate=-1,shard=2 pipeline=2,replicate=-1
pipeline=2:schedule=gpipe,replicate=-1:zero=1 pipeline=2:schedule=zero-bubble,replicate=-1:zero=2
pipeline=2,shard=-1 pipeline=2:schedule=gpipe,shard=-1 pipeline=2:schedule=zero-bubble,shard=-1
pipeline=-1:schedule=zero-bubble,replicate=2 pipeline=2,replicate=2,shard=-1
pipeline=2,shard=-1:gather=part pipeline=2:schedule=gpipe,replicate=2,shard=-1:gather=part
tensor=-1 tensor=-1:sequence=1 replicate=-1,tensor=2 replicate=-1:zero=2,tensor=4
shard=-1,tensor=2:sequence=1 replicate=2,shard=-1,tensor=2 pipeline=2,tensor=-1
pipeline=2:schedule=gpipe,replicate=-1,tensor=2
pipeline=2:schedule=zero-bubble,replicate=-1:zero=1,tensor=2
pipeline=2:schedule=zero-bubble,shard=-1:gather=part,tensor=2 pipeline=2,shard=-1,tensor=4
context=-1 context=-1:attention=ring replicate=-1,context=2
replicate=-1:zero=2,context=2:attention=ring replicate=-1:zero=1,context=2,tensor=2
shard=-1,context=2 pipeline=2,context=2:attention=ring,tensor=2
pipeline=2:schedule=zero-bubble,shard=-1,context=2 expert=-1 replicate=-1,expert=2
replicate=-1,expert=2,context=2 replicate=2,shard=-1,expert=2 pipeline=2,expert=2,tensor=2
replicate=-1:zero=1,expert=2 pipeline=2,replicate=-1:zero=2,expert=2
)");
  return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
}();

// The plan of one of these; for other names one that the planner cannot predict.
StrategyPlan plan_of(const std::string& name) {
  using namespace tapestry::distributed;
  if (std::find(kPredicted.begin(), kPredicted.end(), name) == kPredicted.end())
    return plan_strategy("shard=-1:devices", false);
  return plan_strategy(name, true);
}

// A mode of 4 devices whose rounds are these, in ms.
Result mode(const std::string& name, const std::string& family, const std::vector<double>& rounds_ms,
            double peak_mib = 10) {
  std::vector<double> sorted = rounds_ms;
  std::sort(sorted.begin(), sorted.end());
  const double s = sorted[(sorted.size() - 1) / 2] / 1000;
  const int devices = family == "single" ? 1 : 4;
  std::vector<std::string> rows;
  std::vector<Span> spans;
  for (int d = 0; d < devices; ++d) {
    const std::string row = "rank " + std::to_string(d);
    rows.push_back(row);
    spans.insert(spans.end(),
                 {{row, Activity::forward, "forward 0", 0, 0.3 * s},
                  {row, Activity::backward, "backward 0", 0.3 * s, 0.8 * s},
                  {row, Activity::communication, "wait for bucket 3 (a.weight)", 0.8 * s, 0.9 * s},
                  {row, Activity::optimizer, "AdamW", 0.9 * s, s},
                  {row + " communication", Activity::communication, "bucket 3", 0.5 * s, 0.9 * s}});
  }
  Result r = tests::result_of(name, s, rows, spans);
  r.plan = plan_of(name);
  r.family = family;
  r.description = "one process per device, gradients averaged during backward";
  r.title = "pipeline=4:devices:schedule=sequential";
  for (const double ms : rounds_ms) r.rounds_s.push_back(ms / 1000), r.rounds_steps_s.push_back({ms / 1000});
  const auto bytes = static_cast<std::int64_t>(peak_mib * (1 << 20));
  r.peak_bytes.assign(rows.size(), bytes);
  for (const std::string& row : rows)
    r.memory.push_back(tests::memory_of(row,
                                        {{0, bytes / 4, 0, bytes / 4, 0, 7},
                                         {0.5, bytes / 4, bytes / 8, bytes / 4, bytes / 4, 7},
                                         {1, bytes / 4, bytes / 4, bytes / 4, bytes / 8, 7}},
                                        {0.01, 0.4, 0.9, 1}));
  for (Span& span : r.spans)
    if (span.name == "bucket 3") span.subject = {.bucket = 3, .bytes = 3 << 17, .axis = "replicate"};
  for (int d = 0; d < devices && devices > 1; ++d) {
    if (family == "data")
      r.traffic.push_back({d, (d + 1) % 4, 3 << 18, "replicate", "gradients", "backward"});
    if (family == "stages" && d > 0)
      r.traffic.push_back({d - 1, d, 1 << 20, "pipeline", "activations", "forward"});
  }
  r.losses = {2.5, 2.25};
  r.predicted_step_s = 0.95 * r.step_s;
  r.predicted_low_s = 0.9 * r.step_s, r.predicted_high_s = r.step_s;
  r.predicted_peak_bytes = r.peak_bytes;
  return r;
}

// Around a mean, by the parts in `noise`.
std::vector<double> around(double ms, std::vector<double> noise) {
  for (double& x : noise) x = ms * (1 + x);
  return noise;
}
const std::vector<double> kQuiet = {0, 0.01, -0.01, 0.002, -0.003, 0.005, -0.001, -0.002, 0.004};

// The names and options of the axes that divide layers.
std::string inner_axes(const std::string& text) {
  std::string all;
  for (const auto& axis : tapestry::distributed::parse_strategy(text))
    if (axis.name == "tensor" || axis.name == "context" || axis.name == "expert")
      all += axis.name + axis.option("sequence", "") + axis.option("attention", "") + " ";
  return all;
}

// Random numbers of a profile: its values need not make sense together.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  int whole(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  double real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  planner::Curve curve(double scale) {
    std::vector<std::pair<double, double>> points;
    double samples = 0;
    for (int i = whole(0, 4); i > 0; --i) {
      samples += whole(1, 9);
      points.emplace_back(samples, real(0.1, 1) * scale * samples);
    }
    return planner::Curve(points);
  }
  planner::BlockProfile block(bool loss) {
    planner::BlockProfile b;
    b.name = loss ? "loss" : "block" + std::to_string(blocks_++);
    for (int i = loss ? 0 : whole(1, 3); i > 0; --i) b.parameter_bytes.push_back(4 * whole(1, 4'000'000));
    b.forward_s = curve(1e-3), b.backward_s = curve(2e-3);
    b.accumulate_s = real(0, 1e-4), b.bucket_copy_s = real(0, 1e-4), b.update_s = real(0, 1e-3);
    b.saved_bytes = curve(1e5), b.output_bytes = curve(1e4), b.freed_input_bytes = curve(1e4);
    b.unsaved_output_bytes = curve(1e3), b.received_extra_bytes = curve(1e3),
    b.forward_extra_bytes = curve(1e4);
    for (int i = static_cast<int>(b.parameter_bytes.size()) - 1; i >= -1; --i)
      b.backward.push_back({i, curve(3e5), curve(4e5), curve(2e5)});
    b.input_grad_s = real(0, 2e-3), b.weight_grad_s = real(0, 2e-3),
    b.weight_grad_accumulate_s = real(0, 2e-3);
    for (planner::SplitPassMemory* m : {&b.input_grad, &b.weight_grad, &b.weight_grad_accumulate})
      *m = {real(0, 1e6), real(-1e5, 1e6)};
    return b;
  }
  planner::Contention contention() { return {real(1, 3), real(1, 3), real(1, 3)}; }
  planner::TransferCost cost() { return {real(0, 1e-4), real(0, 1e-8)}; }
  planner::AllReduce all_reduce() {
    planner::AllReduce a{.message = cost(),
                         .overlap_slowdown = real(1, 3),
                         .compute_stall = real(0, 0.9),
                         .contention = contention()};
    if (whole(0, 1) == 1) a.gather_message = cost(), a.scatter_message = cost();
    if (whole(0, 1) == 1) a.peer_message = cost();
    return a;
  }
  // What a block sends if its layers are divided along the axes of this text.
  std::vector<planner::LayerCollectives> layers(const std::string& axes) {
    const auto ring = [&] {
      return whole(0, 1) == 1 ? planner::RingMessages{1.0 * whole(1, 9), curve(1e5)}
                              : planner::RingMessages();
    };
    std::vector<planner::LayerCollectives> all;
    for (const auto& axis : tapestry::distributed::parse_strategy(axes)) {
      const bool passes = axis.option("attention", "") == "ring";
      all.push_back({axis.name, axis.name == "expert" ? "tokens" : "activations", ring(), ring(), ring(),
                     passes ? ring() : planner::RingMessages(), passes ? curve(1e-3) : planner::Curve()});
    }
    return all;
  }
  // The profile of a model, with the divided layers that a mode with these axes may need. For "" it has all
  // of them.
  planner::Profile profile(int blocks, const std::string& mode) {
    planner::Profile p;
    for (int i = 0; i < blocks; ++i) p.blocks.push_back(block(false));
    p.loss = block(true);
    for (const char* const axes :
         {"tensor=2", "tensor=4", "tensor=2:sequence=1", "tensor=3:sequence=1", "context=2", "context=4",
          "context=2:attention=ring", "context=4:attention=ring", "context=2,tensor=2",
          "context=2:attention=ring,tensor=2", "expert=2", "expert=4", "expert=2,context=2",
          "expert=2,tensor=2"}) {
      if (!mode.empty() && inner_axes(axes) != inner_axes(mode)) continue;
      planner::DividedLayers d;
      d.axes = axes;
      d.optimizer_state = whole(0, 2);
      d.input_sample_bytes = whole(1, 4096), d.target_sample_bytes = whole(1, 64);
      for (int i = 0; i <= blocks; ++i) {
        planner::BlockProfile& b = i < blocks ? d.blocks.emplace_back(block(false)) : d.loss = block(true);
        b.layers_forward = layers(axes), b.layers_backward = layers(axes);
        if (i < blocks && d.axes.starts_with("expert") && whole(0, 2) > 0) b.parts = {0};
      }
      p.divided.push_back(d);
    }
    p.input_sample_bytes = whole(1, 4096), p.target_sample_bytes = whole(1, 64),
    p.optimizer_state = whole(0, 2);
    p.contention = contention();
    p.dispatch_s = real(0, 1e-4);
    return p;
  }
  planner::Link link() {
    planner::Link all{cost(), cost(), cost(), contention(), all_reduce(), all_reduce(), {}};
    if (whole(0, 1) == 1) all.cross = all_reduce();
    return all;
  }

 private:
  std::mt19937_64 random_;
  int blocks_ = 0;
};

// The spans of a predicted step add up to its parts. Messages that pass while stages compute are idle time in
// them.
void check_timeline(const planner::Prediction& p, bool has_messages) {
  std::vector<std::string> rows;
  for (int r = 0; r < p.rows; ++r) rows.push_back(std::to_string(r));
  std::vector<Span> spans;
  const double near = 1e-9 * p.step_s;
  bool inside = p.devices % p.rows == 0;
  for (const planner::PredictedSpan& s : p.timeline) {
    inside = inside && s.begin_s >= 0 && s.begin_s < s.end_s && s.end_s < p.step_s + near;
    if (!s.beside)
      spans.push_back({rows.at(static_cast<std::size_t>(s.row)), s.activity, s.name, s.begin_s, s.end_s});
  }
  CHECK(inside);
  const planner::StepBreakdown &own = p.breakdown, sum = breakdown_of(spans, rows, p.step_s);
  CHECK(std::abs(sum.forward_s - own.forward_s) < near);
  CHECK(std::abs(sum.backward_s - own.backward_s) < near);
  CHECK(std::abs(sum.update_s - own.update_s) < near);
  const double messages_s = own.exposed_comm_s - sum.exposed_comm_s;
  CHECK(messages_s > -near);
  CHECK((has_messages || messages_s < near));
}

// What devices send along an axis adds up to what the prediction says of it.
void check_traffic(const planner::Prediction& p, const std::vector<planner::PredictedTraffic>& traffic) {
  bool inside = true;
  for (const planner::PredictedTraffic& t : traffic)
    inside = inside && t.from >= 0 && t.from < p.devices && t.to >= 0 && t.to < p.devices && t.bytes > 0;
  CHECK(inside);
  for (const planner::AxisCost& a : p.axes) {
    double bytes = 0;
    for (const planner::PredictedTraffic& t : traffic) bytes += t.axis == a.axis ? t.bytes : 0;
    INFO(a.axis << " of " << p.mode);
    CHECK(bytes == Approx(a.bytes_sent));
  }
}

json setup_json(const planner::TrainingSetup& setup) {
  return {{"batch_size", setup.batch_size},
          {"devices", setup.devices},
          {"device_type", tapestry::device_type_name(setup.device_type)},
          {"micro_batches", setup.micro_batches},
          {"first_bucket_bytes", setup.first_bucket_bytes},
          {"bucket_cap_bytes", setup.bucket_cap_bytes},
          {"devices_per_host", setup.devices_per_host},
          {"links_per_host", setup.links_per_host},
          {"split", setup.split}};
}

// One random prediction with its result, as the page's twin reads it.
json drawn_case(Draw& draw, bool with_timeline) {
  const std::string name =
      kPredicted[static_cast<std::size_t>(draw.whole(0, static_cast<int>(kPredicted.size()) - 1))];
  const int blocks = draw.whole(1, 6);
  planner::Profile profile = draw.profile(blocks, name);
  const planner::Link link = draw.link();
  planner::TrainingSetup setup;
  setup.batch_size = draw.whole(1, 64);
  setup.devices = draw.whole(1, static_cast<int>(std::min<std::int64_t>(blocks, setup.batch_size)));
  setup.device_type = draw.whole(0, 1) == 1 ? tapestry::DeviceType::cuda : tapestry::DeviceType::cpu;
  setup.micro_batches = draw.whole(1, static_cast<int>(std::min<std::int64_t>(12, setup.batch_size)));
  setup.bucket_cap_bytes = 1 << draw.whole(10, 26);
  setup.first_bucket_bytes = std::min<std::int64_t>(1 << 20, setup.bucket_cap_bytes);
  setup.split = planner::balanced_split(profile, setup);
  if (draw.whole(0, 1) == 1)
    for (int s = 0; s < setup.devices; ++s) {
      profile.stages.push_back({draw.real(1, 3), draw.real(1, 3), draw.real(1, 3)});
      profile.zero_bubble_stages.push_back({{draw.real(1, 3), draw.real(1, 3), draw.real(1, 3)},
                                            draw.real(0, 1e-3),
                                            draw.real(0, 1e-3),
                                            draw.real(0, 1e-3)});
    }
  setup.devices_per_host = draw.whole(0, 4);
  setup.links_per_host = draw.whole(1, 2);
  const StrategyPlan plan = plan_of(name);
  if (plan.axes.size() > 1 && blocks >= 4 && setup.batch_size >= 8) {
    setup.devices = 8;
    if (plan.splits_model) setup.split = planner::balanced_split(profile, setup, name[9] == '2' ? 2 : 4);
  }
  json out = {{"mode", name},
              {"plan", json::parse(plan_json(plan))},
              {"profile", json::parse(to_text(profile))},
              {"link", json::parse(to_text(link))},
              {"setup", setup_json(setup)}};
  std::optional<planner::Prediction> p;
  const bool fits = plan.axes.size() < 2 || setup.devices == 8;
  if (draw.whole(0, 1) == 1 || !fits) {
    const int devices = draw.whole(1, static_cast<int>(std::min<std::int64_t>(16, setup.batch_size)));
    std::optional<double> latency, bandwidth;
    if (draw.whole(0, 1) == 1) latency = draw.real(0, 1e-4);
    if (draw.whole(0, 1) == 1) bandwidth = draw.real(1e7, 1e11);
    out["link_with"] = {latency ? json(*latency) : json(), bandwidth ? json(*bandwidth) : json()};
    out["devices"] = devices;
    p = simulate_devices(plan, profile, link_with(link, latency, bandwidth), setup, devices);
  } else {
    p = predict(plan, profile, link, setup);
    if (p) check_traffic(*p, predict_traffic(plan, profile, setup));
  }
  if (!p) return out["expected"] = nullptr, out;
  const planner::StepBreakdown& b = p->breakdown;
  out["expected"] = {p->step_s, b.forward_s, b.backward_s, b.exposed_comm_s, b.update_s, b.idle_s};
  out["expected"].push_back(p->bubble_s);
  for (const planner::AxisCost& a : p->axes)
    out["expected"].insert(out["expected"].end(), {a.bytes_sent, a.exposed_s});
  for (const planner::MemoryItems& m : p->memory) out["expected"].push_back(m.total());
  INFO(name);
  check_timeline(
      *p, plan.splits_model && (!plan.over_devices || setup.device_type == tapestry::DeviceType::cuda));
  // The largest sample is the peak, unless random halves of a backward leave more than they need.
  double most = 0, before = -1;
  bool inside = !p->memory_over_time.empty() && p->memory_over_time[0].begin_s == 0;
  for (const planner::PredictedMemory& m : p->memory_over_time) {
    inside = inside && m.begin_s >= before && m.begin_s <= p->step_s * (1 + 1e-9);
    before = m.begin_s;
    most = std::max(most, m.items.total());
  }
  CHECK(inside);
  const double peak = p->memory.at(static_cast<std::size_t>(p->memory_device)).total();
  CHECK((name.find("zero-bubble") == std::string::npos ? most == Approx(peak) : most >= peak * (1 - 1e-12)));
  if (!with_timeline) return out;
  out["memory"] = json::array({p->memory_device});
  for (const planner::PredictedMemory& m : p->memory_over_time) {
    json sample = {m.begin_s};
    for (const auto& [item, bytes] : m.items.items()) sample.push_back(bytes);
    out["memory"].push_back(std::move(sample));
  }
  out["critical_path"] = dependencies_of(*p).critical_path;
  out["timeline"] = json::array({p->rows});
  for (const planner::PredictedSpan& s : p->timeline)
    out["timeline"].push_back({s.row, s.beside, tapestry::activity_name(s.activity), s.name, s.begin_s,
                               s.end_s, s.subject.module, s.subject.bucket, s.subject.bytes, s.subject.axis});
  return out;
}

Report report_of(std::vector<Result> results) {
  Report report;
  report.workload.devices = 4;
  report.workload.model = "gpt";
  report.workload.split = {1, 1, 1, 1};
  report.rounds = results.empty() ? 1 : static_cast<int>(results[0].rounds_s.size());
  report.device_names = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"};
  report.results = std::move(results);
  report.command = {"--model", "gpt", "--modes", "a'b </pre>"};
  report.began = "2026-11-28T10:00:00Z";
  report.host = {"A processor with a long name, model 12345 @ 2.40 GHz",
                 4,
                 1LL << 34,
                 "Linux 6.1.0 x86_64",
                 "GCC 12",
                 {}};
  report.load_begin = 0.5, report.load_end = 4.25;
  compare_losses(report.results, tolerance(report.workload));
  return report;
}

void write_page(const tests::TempDir& folder, const std::string& name, const Report& report) {
  tests::write_file(folder / name, page(report, judge(report)));
}

const Place& place_of(const Answer& a, const std::string& name) {
  return *std::find_if(a.places.begin(), a.places.end(), [&](const Place& p) { return p.name == name; });
}

}  // namespace

TEST_CASE("order statistics enclose the median with 95%") {
  // The table of Conover, "Practical nonparametric statistics", for the sign test.
  const std::vector<std::pair<int, int>> known = {{1, 0},  {5, 0},  {6, 1},  {8, 1}, {9, 2},
                                                  {11, 2}, {12, 3}, {20, 6}, {25, 8}};
  for (const auto& [n, k] : known) {
    INFO(n);
    CHECK(interval_index(n) == k);
  }
}

TEST_CASE("verdicts pair the rounds of two modes") {
  const std::vector<double> best = {10, 20, 10, 10, 10, 10, 10, 10, 10};  // the machine was slow in round 2
  const auto against = [&](std::vector<double> ratios) {
    for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] *= best[i];
    return verdict(
        ratios, std::vector<double>(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(ratios.size())));
  };
  CHECK(against({1.1, 1.1, 1.2, 1.1, 1.3, 1.1, 1.1, 1.05, 1.1}).word == "slower");
  CHECK(against({1.01, 1.0, 0.99, 1.01, 1.0, 1.0, 1.0, 1.0, 1.0}).word == "equal");
  CHECK(against({1.2, 0.9, 1.2, 0.9, 1.2, 0.9, 1.2, 0.9, 1.2}).word == "undecided");
  CHECK(against({1.5, 1.5, 1.5, 1.5, 1.5}).word == "undecided");  // five rounds are too few
  const Verdict v = against({1.1, 1.9, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 0.5});
  CHECK(v.low == Approx(0.1));  // the second of nine
  CHECK(v.median == Approx(0.4));
  CHECK(v.high == Approx(0.7));
  CHECK_THROWS_WITH(verdict({1}, {}), ContainsSubstring("same number"));
}

TEST_CASE("an answer says who is fastest, and whether that is decided") {
  const Report report =
      report_of({mode("single", "single", around(100, kQuiet), 40), mode("a", "data", around(40, kQuiet), 30),
                 mode("b", "data", around(60, kQuiet), 20)});
  const Judgement j = judge(report);
  CHECK(text_of(j.answers.back().headline) ==
        "On these 4 devices, a is fastest: 40.0 ms a step, 2.5× one device.");
  CHECK_THAT(text_of(j.answers.back().lead),
             ContainsSubstring("Decided: the next, b, is 50.0% to 50.0% slower"));
  CHECK_THAT(text_of(j.answers.back().lead), ContainsSubstring("Why not 4×?"));
  CHECK(j.notes.empty());
  const Losses& l = *j.remarks[1].losses;
  CHECK(l.communication_s + l.idle_s + l.update_s + l.compute_s == Approx(0.040 - 0.100 / 4));
  CHECK(j.remarks[0].why == "one device does everything");
  // Only b fits into 25 MiB, and nothing into 10 MiB.
  REQUIRE(j.answers.size() == 4);
  CHECK(j.answers[1].limit_bytes == 20 << 20);
  CHECK(j.answers[1].places.size() == 1);
  CHECK_THAT(text_of(j.answers[1].headline), ContainsSubstring("b is fastest: 60.0 ms"));
  CHECK_THAT(text_of(j.answers[0].headline), ContainsSubstring("No mode fits"));
  CHECK(&j.main() == &j.answers.back());
  // With the memory of a device, the answer is among the modes that fit.
  Report limited = report;
  limited.memory_limit_bytes = 22 << 20;
  CHECK(text_of(judge(limited).main().headline) ==
        "Within 22 MiB a device, b is fastest: 60.0 ms a step, 1.7× one device.");
  limited.memory_limit_bytes = 1 << 20;
  CHECK_THAT(text_of(judge(limited).main().headline), ContainsSubstring("No mode fits"));
  limited.memory_limit_bytes = 1LL << 40;
  CHECK(text_of(judge(limited).main().headline) == text_of(j.main().headline));
}

TEST_CASE("modes whose difference is smaller than the spread share a place") {
  // A second program on the same cores: rounds differ by a factor of two, at other times for each mode.
  const std::vector<double> one = {0, 1.0, 0.1, 0.8, 0, 0.2, 0.9, 0, 0.1},
                            other = {0.9, 0, 0.2, 0, 1.1, 0, 0.1, 0.7, 0};
  const Judgement j =
      judge(report_of({mode("single", "single", around(50, other)), mode("a", "data", around(49, one)),
                       mode("b", "data", around(300, kQuiet))}));
  const Answer& answer = j.answers.back();
  CHECK(answer.first == 2);
  CHECK(place_of(answer, "a").place == "1=");
  CHECK(place_of(answer, "single").place == "1=");
  CHECK(place_of(answer, "b").place == "3");
  // One device is among the fastest, so no mode is faster than it.
  CHECK(text_of(answer.headline) == "On these 4 devices, a and single share first place: 53.9 ms a step.");
  CHECK_THAT(text_of(answer.lead), ContainsSubstring("Not decided by time"));
  const Answer none =
      judge(report_of({mode("single", "single", around(50, other)), mode("a", "data", around(49, one))}))
          .answers.back();
  CHECK(text_of(none.headline) ==
        "On these 4 devices, nothing is decided: a measured fastest, 53.9 ms a step, but rounds differ by "
        "more than modes do.");
  CHECK_THAT(text_of(none.lead), ContainsSubstring("Repeat it on a quiet machine, or with more rounds."));
  CHECK_THAT(
      text_of(answer.shared),
      ContainsSubstring("Not decided against a, since the spread is larger than the difference: single ("));
  CHECK((j.remarks[0].noisy && j.remarks[1].noisy));
}

TEST_CASE("modes within 2% are equal for practice") {
  std::vector<double> same = kQuiet;
  for (double& x : same) x += 0.005;
  const Judgement j =
      judge(report_of({mode("single", "single", around(100, kQuiet)),
                       mode("a", "data", around(40, kQuiet), 30), mode("b", "data", around(40, same), 20)}));
  CHECK_THAT(text_of(j.answers.back().headline), ContainsSubstring("a and b share first place"));
  CHECK_THAT(text_of(j.answers.back().lead),
             ContainsSubstring("Equal for practice: they differ by up to 0.5%"));
  CHECK_THAT(text_of(j.answers.back().lead), ContainsSubstring("b needs least, 20 MiB"));
  CHECK(text_of(j.answers.back().shared) == "Equal for practice to a: b (0.5% to 0.5% slower).");
}

TEST_CASE("a machine that slows down all modes alike changes no verdict") {
  std::vector<double> slow = kQuiet;
  slow[4] = 0.6;
  const Judgement j =
      judge(report_of({mode("single", "single", around(100, slow)), mode("a", "data", around(40, slow))}));
  REQUIRE(j.notes.size() == 1);
  CHECK_THAT(text_of(j.notes[0]), ContainsSubstring("The machine changed by 6"));
  CHECK(j.answers.back().first == 1);
  CHECK_FALSE(j.remarks[1].noisy);
}

TEST_CASE("fewer than six rounds decide nothing, and failures are said") {
  const Judgement few =
      judge(report_of({mode("single", "single", {100, 101, 99}), mode("a", "data", {40, 41, 39})}));
  CHECK_THAT(text_of(few.notes.at(0)), ContainsSubstring("3 rounds decide nothing"));
  CHECK_THAT(text_of(few.answers.back().headline), ContainsSubstring("a was fastest"));
  CHECK(few.answers.back().places[1].place == "~2");

  Result failed;
  failed.name = "single";
  failed.error = "it was killed\n  last line";
  const Judgement j = judge(report_of({failed, mode("a", "data", around(40, kQuiet))}));
  CHECK_THAT(text_of(j.notes.at(0)), ContainsSubstring("single failed"));
  CHECK(text_of(j.answers.back().headline) == "On these 4 devices, a is fastest: 40.0 ms a step.");
  CHECK(text_of(j.remarks[0].failure) == "it was killed");
  CHECK_FALSE(j.remarks[1].losses);
  CHECK_THAT(text_of(judge(report_of({failed})).answers.back().headline),
             ContainsSubstring("No mode has a result"));
}

TEST_CASE("the JSON of a page ends no element, whatever the names are") {
  Report report = report_of({mode("single", "single", {100})});
  report.results[0].description = "</script><!-- & \xE2\x80\xA8 \xFF";
  const std::string text = page_json(report, judge(report));
  CHECK(text.find_first_of("<>&") == std::string::npos);
  CHECK(text.find("\xE2\x80\xA8") == std::string::npos);
  CHECK_THAT(json::parse(text).at("modes").at(0).at("description").get<std::string>(),
             ContainsSubstring("</script><!-- &"));
}

TEST_CASE("the page shows the same in a browser, and its planner equals the planner bit for bit") {
  const tests::TempDir folder;
  const std::string hostile = "</script><img src=x onerror=alert(1)>";
  Result timeout = mode(hostile, "data", around(70, {0, 0.01}));
  timeout.step_s = 0;
  timeout.error =
      "the process did not end within 120 s and was killed; allow more time\n  rank 3 waits for <all_gather>";
  Result wrong = mode("other-losses", "data", around(45, kQuiet));
  wrong.losses = {2.5, 3.25};
  std::vector<double> noisy = kQuiet;
  noisy[3] = 0.5;
  Report report =
      report_of({mode("single", "single", around(100, kQuiet), 40),
                 mode("ddp", "data", around(41, kQuiet), 38), mode("fsdp", "data", around(40, noisy), 20),
                 mode("replicate=2:zero=1,shard=2,pipeline=4", "data", around(52, kQuiet), 25),
                 mode("pipeline-zero-bubble", "stages", around(55, kQuiet), 12),
                 mode("model", "stages", around(260, kQuiet), 13), timeout, wrong});
  Draw draw(1);
  report.profile = draw.profile(5, "");
  report.link = draw.link();
  for (const Result& r : report.results)
    if (auto p = simulate_devices(r.plan, *report.profile, report.link, report.workload, 4)) {
      p->mode = r.name;
      report.predictions.push_back(std::move(*p));
    }
  for (const Result& r : report.results)
    for (const int n : {1, 2, 4, 8, 16, 32, 64})
      if (const auto p = simulate_devices(r.plan, *report.profile, report.link, report.workload, n))
        report.scaling.push_back(*p);
      else report.limits.push_back({r.name, n, "the model has 5 blocks"});
  write_page(folder, "page.html", report);
  tests::write_file(folder / "result.json", json_text(report, judge(report)));
  report.memory_limit_bytes = 22 << 20;
  write_page(folder, "limited.html", report);
  std::vector<Result> many = {mode("single", "single", {50, 100, 60})};
  for (int i = 0; i < 12; ++i)
    many.push_back(mode("mode-with-a-long-name-" + std::to_string(i), "data", {49, 51, 90.0 + i}));
  write_page(folder, "noisy.html", report_of(many));
  Result failed;
  failed.name = "single";
  failed.error = "it was killed";
  failed.family = "single";
  write_page(folder, "empty.html", report_of({failed}));
  json cases = json::array();
  Draw drawn(tapestry::test::fuzz_setting("TAPESTRY_FUZZ_SEED", 1));
  for (auto i = tapestry::test::fuzz_setting("TAPESTRY_FUZZ_CASES", 200); i > 0; --i)
    cases.push_back(drawn_case(drawn, i % 4 == 0));
  tests::write_file(folder / "cases.json", cases.dump());
  json sweeps = json::array();
  for (const int devices : {1, 2, 6, 12, 16}) {
    const planner::Profile profile = draw.profile(4, "");
    const planner::Link link = draw.link();
    const planner::TrainingSetup setup{.batch_size = 10, .micro_batches = 3};
    json rows = json::array();
    for (const planner::Prediction& p : sweep(profile, link, setup, devices))
      rows.push_back({p.mode, p.step_s});
    sweeps.push_back({{"profile", json::parse(to_text(profile))},
                      {"link", json::parse(to_text(link))},
                      {"setup", setup_json(setup)},
                      {"devices", devices},
                      {"rows", rows}});
  }
  tests::write_file(folder / "sweeps.json", sweeps.dump());
  const std::string command =
      "command -v python3 >/dev/null || { echo 'skipped: Python is missing'; exit 0; }; python3 '" +
      tests::source_path("tests/apps/page_test.py") + "' '" + folder.path().string() + "'";
  CHECK(std::system(command.c_str()) == 0);  // NOLINT
}
