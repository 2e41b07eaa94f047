// What runs leave behind: curves, event files and traces. Times and losses differ from run to run, so the
// runs are recorded in docs/pictures.
#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tapestry/apps/common/svg_axes.h"
#include "tapestry/tapestry.h"
#include "tests/pictures/picture.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace tapestry;
using apps::PlotCurve, nlohmann::json, pictures::Picture;

namespace {

// Colours of curves, which can be told apart on white and on black.
constexpr const char* kBlue = "#3b82c4";
constexpr const char* kRed = "#d1495b";
constexpr const char* kGreen = "#2a9d4b";

void draw(Picture& p, double top, double height, const apps::PlotAxis& axis, const std::string& title,
          const std::vector<PlotCurve>& curves, double legend, bool points = false) {
  p.text(4, top + 18, title, "b");
  std::string out;
  apps::draw_curves(out, {52, top + 32, 412, height}, axis, curves,
                    {.points = points, .legend_x = 120, .legend_y = top + 18, .legend_distance = legend});
  p.svg(out);
}

std::string recorded(const std::string& name) {
  return tests::read_file(tests::source_path("docs/pictures/" + name));
}

}  // namespace

TEST_CASE("picture: curves of a run") {
  PlotCurve train{"training", kBlue, {}}, test{"test", kRed, {}}, train_right = train, test_right = test;
  std::istringstream lines(recorded("run.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json m = json::parse(line);
    const double epoch = m.at("epoch");
    train.points.emplace_back(epoch, m.at("train_loss"));
    test.points.emplace_back(epoch, m.at("test_loss"));
    train_right.points.emplace_back(epoch, m.at("train_accuracy"));
    test_right.points.emplace_back(epoch, m.at("test_accuracy"));
  }
  const double last = train.points.back().first;
  Picture p;
  draw(p, 0, 130, {"", 1, last, 2}, "loss", {train, test}, 120, true);
  draw(p, 206, 130, {"epoch", 1, last, 2}, "accuracy", {train_right, test_right}, 120, true);
  p.compare(
      "curves", 416,
      "Loss and accuracy of a run over its epochs: those of training go on, those of the test images end");
}

namespace {

// The scalars of an event file by tag: points (step, value). SummaryWriter wrote the file, so nothing is
// checked.
std::map<std::string, std::vector<std::pair<double, double>>> scalars(const std::string& file) {
  struct Field {
    int number;
    std::string bytes;
    std::uint64_t value;
  };
  const auto fields = [](const std::string& message) {
    std::vector<Field> all;
    std::size_t at = 0;
    const auto varint = [&] {
      std::uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        const auto byte = static_cast<unsigned char>(message.at(at++));
        value |= std::uint64_t(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
      }
    };
    while (at < message.size()) {
      const std::uint64_t key = varint(), kind = key & 7;
      Field f{static_cast<int>(key >> 3), {}, 0};
      if (kind == 0) {
        f.value = varint();
      } else {
        const std::size_t size = kind == 1 ? 8 : kind == 5 ? 4 : varint();
        f.bytes = message.substr(at, size);
        at += size;
      }
      all.push_back(f);
    }
    return all;
  };
  std::map<std::string, std::vector<std::pair<double, double>>> found;
  for (std::size_t at = 0; at < file.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, file.data() + at, sizeof size);
    double step = 0;
    for (const Field& event : fields(file.substr(at + 12, size))) {
      if (event.number == 2) step = static_cast<double>(event.value);
      if (event.number != 5) continue;  // the summary
      for (const Field& value : fields(event.bytes)) {
        std::string tag;
        for (const Field& f : fields(value.bytes)) {
          if (f.number == 1) tag = f.bytes;
          float number = 0;
          if (f.number == 2 && f.bytes.size() == 4) {
            std::memcpy(&number, f.bytes.data(), 4);
            found[tag].emplace_back(step, number);
          }
        }
      }
    }
    at += size + 16;
  }
  return found;
}

}  // namespace

TEST_CASE("picture: rates of schedules, from an event file") {
  constexpr int kSteps = 150, kWarmup = 20;
  const tests::TempDir folder;
  nn::Linear net({.in_features = 1, .out_features = 1});
  {
    watch::SummaryWriter writer(folder.path().string());
    const auto follow = [&](const std::string& tag, auto make) {
      optim::AdamW optimizer(net.parameters(), {.lr = 0.02});
      auto schedule = make(optimizer);
      for (int step = 0; step < kSteps; ++step) {
        writer.add_scalar(tag, optimizer.lr(), step);
        schedule.step();
      }
    };
    follow("warm-up, cosine", [&](optim::Optimizer& o) {
      return optim::SequentialLR(o, {.milestones = {kWarmup}},
                                 optim::LinearLR::Options{.total_iters = kWarmup},
                                 optim::CosineAnnealingLR::Options{.T_max = kSteps - kWarmup});
    });
    follow("one cycle", [&](optim::Optimizer& o) {
      return optim::OneCycleLR(o, {.max_lr = 0.02, .total_steps = kSteps + 1});
    });
    follow("steps", [&](optim::Optimizer& o) { return optim::StepLR(o, {.step_size = 50, .gamma = 0.5}); });
  }
  std::vector<PlotCurve> curves;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    for (auto& [tag, points] : scalars(tests::read_file(entry.path().string())))
      curves.push_back({tag, kBlue, points});
  REQUIRE(curves.size() == 3);
  std::swap(curves[0], curves[1]);  // in alphabetical order before
  curves[1].colour = kGreen;
  curves[2].colour = kRed;
  for (const PlotCurve& c : curves) CHECK(c.points.size() == kSteps);
  Picture p;
  draw(p, 0, 150, {"step", 0, kSteps, 50}, "rate", curves, 95);
  p.compare(
      "rates", 226,
      "Three schedules of the learning rate over 150 steps: a warm-up and a cosine, one cycle, and halves "
      "after each 50 steps");
}

namespace {

struct Slice {
  std::string name, category;
  double begin, end;
};

// The spans of a trace by process and thread.
std::map<std::pair<int, int>, std::vector<Slice>> events(const std::string& name) {
  std::map<std::pair<int, int>, std::vector<Slice>> lanes;
  for (const json& e : json::parse(recorded(name)))
    if (e.at("ph") == "X") {
      const double begin = e.at("ts"), length = e.at("dur");
      lanes[{e.at("pid"), e.at("tid")}].push_back({e.at("name"), e.value("cat", ""), begin, begin + length});
    }
  return lanes;
}

// Draws an interval. Its middle shows the longest of these texts that fits.
void span(Picture& p, double x, double y, double width, double height, const std::string& classes,
          const std::vector<std::string>& names) {
  const auto fits = std::find_if(names.begin(), names.end(), [&](const std::string& n) {
    return 9.5 * static_cast<double>(n.size()) < width;
  });
  p.box(x, y, width, height, classes, fits == names.end() ? "" : *fits);
}

}  // namespace

TEST_CASE("picture: a backward pass under DistributedDataParallel") {
  auto lanes = events("backward.json");
  double first = INFINITY, last = 0;
  for (auto& [lane, spans] : lanes) {  // the last step begins with the last forward
    const auto& own = lanes.at({lane.first, 0});
    double begin = 0;
    for (const Slice& e : own)
      if (e.name == "forward") begin = std::max(begin, e.begin);
    std::vector<Slice> kept;
    for (const Slice& e : spans)
      if (e.begin >= begin &&
          (e.name.starts_with("forward") || e.name.starts_with("backward") || e.name.starts_with("bucket")))
        kept.push_back(e);
    if (lane.second == 1) spans = kept;
    for (const Slice& e : kept) first = std::min(first, e.begin), last = std::max(last, e.end);
  }
  for (auto& [lane, spans] : lanes)
    if (lane.second == 0)
      spans.erase(std::remove_if(spans.begin(), spans.end(), [&](const Slice& e) { return e.begin < first; }),
                  spans.end());
  constexpr double kLeft = 4, kAcross = 472;
  const auto at = [&](double time) { return kLeft + (time - first) / (last - first) * kAcross; };
  Picture p;
  double y = 0;
  for (const int rank : {0, 1}) {
    p.text(4, y + 20, "rank " + std::to_string(rank), "b");
    for (const int tid : {0, 1})
      for (const Slice& e : lanes.at({rank, tid})) {
        const double x = at(e.begin), width = at(e.end) - x, top = y + 30 + 32 * tid;
        if (e.name == "forward") span(p, x, top, width, 28, "c0", {"forward"});
        else if (e.name.starts_with("backward of "))
          span(p, x, top, width, 28, "c1", {e.name.substr(12, e.name.find('.') - 12)});
        else if (e.name.starts_with("bucket ")) span(p, x, top, width, 28, "c3", {e.name.substr(7, 1)});
        else if (e.name == "backward") p.line(at(e.end), y + 10, at(e.end), y + 96);
      }
    y += 112;
  }
  char text[96];
  std::snprintf(text, sizeof text, "The step takes %.0f ms. A line is the end of backward.",
                (last - first) / 1000);
  p.box(4, y, 80, 26, "c0", "forward");
  p.box(92, y, 90, 26, "c1", "backward");
  p.box(190, y, 170, 26, "c3", "buckets in flight");
  p.text(4, y + 46, text, "s");
  p.compare(
      "backward", y + 58,
      "The last step of two ranks: while a rank computes the gradients of fc4 to fc0, the buckets of earlier "
      "gradients are in flight");
}

// Run by its name, it writes docs/pictures/profile.json anew.
TEST_CASE("record the profile of a picture", "[.]") {
  nn::Sequential net;
  net.append<nn::Linear>(nn::LinearOptions{.in_features = 64, .out_features = 256});
  net.append<nn::ReLU>();
  net.append<nn::Linear>(nn::LinearOptions{.in_features = 256, .out_features = 10});
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  const Tensor x = randn({128, 64}), labels = randint(0, 10, {128});
  const auto train = [&] {
    const profiler::Scope scope("step");
    optimizer.zero_grad();
    cross_entropy(net(x), labels).backward();
    optimizer.step();
  };
  for (int i = 0; i < 20; ++i) train();
  const profiler::Profile profile;
  train();
  profile.write_trace(tests::source_path("docs/pictures/profile.json"));
}

TEST_CASE("picture: a profile") {
  const auto lanes = events("profile.json");
  const std::vector<Slice>* all = nullptr;
  for (const auto& [lane, spans] : lanes)
    for (const Slice& e : spans)
      if (e.name == "step") all = &spans;
  REQUIRE(all != nullptr);
  const auto step = std::find_if(all->rbegin(), all->rend(), [](const Slice& e) { return e.name == "step"; });
  std::vector<Slice> spans;
  for (const Slice& e : *all)
    if (e.begin >= step->begin && e.end <= step->end) spans.push_back(e);
  std::sort(spans.begin(), spans.end(), [](const Slice& a, const Slice& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  Picture p;
  std::vector<double> open;  // the ends of the spans around the next one
  std::size_t deepest = 0;
  for (const Slice& e : spans) {
    while (!open.empty() && open.back() <= e.begin) open.pop_back();
    const double x = 4 + (e.begin - step->begin) / (step->end - step->begin) * 472;
    const double width = (e.end - e.begin) / (step->end - step->begin) * 472;
    const std::size_t space = e.name.rfind(' ');
    span(p, x, 4 + 34 * static_cast<double>(open.size()), width, 30,
         e.category == "backward"    ? "c1"
         : e.category == "optimizer" ? "c2"
         : e.category == "other"     ? "grey"
                                     : "c0",
         {e.name, space == std::string::npos ? e.name : e.name.substr(0, space)});
    open.push_back(e.end);
    deepest = std::max(deepest, open.size());
  }
  const double y = 10 + 34 * static_cast<double>(deepest);
  p.box(4, y, 70, 26, "c0", "kernel");
  p.box(82, y, 90, 26, "c1", "backward");
  p.box(180, y, 90, 26, "c2", "optimizer");
  p.box(278, y, 70, 26, "grey", "scope");
  p.text(4, y + 46,
         std::to_string(std::lround(step->end - step->begin)) + " us. Below a span lies what it calls.", "s");
  p.compare("profile", y + 58,
            "A step of a profile as nested spans: the step, the backward of each operation, kernels");
}
