// Trains a model in stages on several devices, and shows the schedule and the predicted and measured idle
// time.
//
//   pipeline                                          two stages, 8 micro-batches, 1F1B
//   pipeline --micro-batches 1 2 4 8 --schedule gpipe 1f1b zero-bubble       a table of all combinations
//   pipeline --stages 4 --svg timeline.svg            a picture of the last step
//   tapestry-run --nproc-per-node 2 pipeline          one process per stage
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tapestry/apps/common/chart.h"
#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/tapestry.h"

using namespace tapestry;
using distributed::Pipeline;
using distributed::PipelineReport;
using distributed::Schedule;

namespace {

constexpr std::int64_t kClasses = 10;

struct Options {
  int stages = 2;
  std::vector<int> micro_batches{8};
  std::vector<std::string> schedules{"1f1b"};
  std::vector<std::string> devices;
  std::int64_t batch_size = 512, width = 512;
  int layers = 4, steps = 10;
  std::uint64_t seed = 1;
  bool checkpoint = false;
  std::string svg, precision = "f32";
};

using World = std::shared_ptr<distributed::ProcessGroup>;

// The group of ranks if a launcher started several, each of which computes one stage. Null if this process
// computes all stages.
World join_job() {
  return distributed::read_environment().world_size > 1 ? distributed::init_process_group() : nullptr;
}

std::vector<Device> choose_devices(const Options& o, const World& world) {
  if (world && o.devices.empty()) {
    const int local_rank = distributed::read_environment().local_rank;
    const bool has_gpu = local_rank < device_count(DeviceType::cuda);
    return std::vector(static_cast<std::size_t>(o.stages),
                       has_gpu ? Device(DeviceType::cuda, local_rank) : kCPU);
  }
  std::vector<Device> devices(o.devices.begin(), o.devices.end());
  const DeviceType type = device_count(DeviceType::cuda) >= o.stages ? DeviceType::cuda : DeviceType::cpu;
  for (int i = 0; devices.size() < static_cast<std::size_t>(o.stages); ++i)
    devices.push_back(o.devices.empty() ? Device(type, i) : devices[static_cast<std::size_t>(i)]);
  // The number of logical CPU devices must be set before the first use of a device.
  int needed = 1;
  for (const Device d : devices)
    if (d.is_cpu()) needed = std::max(needed, d.index + 1);
  if (needed > 1) setenv("TAPESTRY_LOGICAL_DEVICES", std::to_string(needed).c_str(), 0);
  return devices;
}

// Stages of about equal work. The last stage has an additional output layer.
std::vector<std::unique_ptr<nn::Sequential>> make_stages(const Options& o) {
  std::vector<std::unique_ptr<nn::Sequential>> stages;
  for (int s = 0; s < o.stages; ++s) {
    auto stage = std::make_unique<nn::Sequential>();
    for (int i = 0; i < o.layers; ++i) {
      stage->push_back(nn::Linear::Options{.in_features = o.width, .out_features = o.width});
      stage->push_back(nn::ReLU::Options{});
    }
    if (s + 1 == o.stages)
      stage->push_back(nn::Linear::Options{.in_features = o.width, .out_features = kClasses});
    stages.push_back(std::move(stage));
  }
  return stages;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Returns the bubble, which is the idle fraction of the devices' time, of a simulated step. In the simulation
// every micro-batch takes the mean time of the reported step. If `separate_devices` is true, every stage
// counts as a device of its own, because cpu:0 of two processes is two devices.
double simulated_bubble(Schedule schedule, const PipelineReport& report, bool separate_devices) {
  distributed::SimulationOptions options;
  std::vector<Device> known;
  for (const distributed::StageReport& s : report.stages) {
    const double count = report.micro_batches;
    options.costs.push_back({s.forward_s / count, (s.backward_s - s.weights_s) / count, s.weights_s / count});
    if (separate_devices) continue;
    const auto found = std::find(known.begin(), known.end(), s.device);
    options.devices.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(s.device);
  }
  const auto stages = static_cast<int>(report.stages.size());
  return simulate(schedule_actions(schedule, stages, report.micro_batches), options).bubble();
}

// Returns the bubble of a simulated step in which all stages take equally long and backward takes twice as
// long as forward.
double equal_bubble(Schedule schedule, int stages, int micro_batches) {
  distributed::SimulationOptions options;
  const double backward = schedule == Schedule::zero_bubble ? 1 : 2;  // zero bubble: input gradients only
  options.costs.assign(static_cast<std::size_t>(stages), {1, backward, 1});
  return simulate(schedule_actions(schedule, stages, micro_batches), options).bubble();
}

Schedule schedule_of(const std::string& name) {
  for (const Schedule s : {Schedule::gpipe, Schedule::one_f_one_b})
    if (name == distributed::schedule_name(s)) return s;
  return Schedule::zero_bubble;
}

// Gathers the spans of all ranks. Their timelines begin at the same barrier.
std::vector<Span> gather_spans(distributed::ProcessGroup& world, const std::vector<Span>& own) {
  std::string text;
  char numbers[80];
  for (const Span& s : own) {
    std::snprintf(numbers, sizeof numbers, "%.9f %.9f %d ", s.begin, s.end, static_cast<int>(s.activity));
    text += numbers + s.name + "\n";
  }
  std::vector<Span> all;
  const auto texts = distributed::all_gather_text(world, text, "spans");
  for (std::size_t r = 0; r < texts.size(); ++r) {
    std::istringstream lines(texts[r]);
    Span s;
    s.row = concat({"rank ", r});
    for (int activity = 0; lines >> s.begin >> s.end >> activity && std::getline(lines >> std::ws, s.name);) {
      s.activity = static_cast<Activity>(activity);
      all.push_back(s);
    }
  }
  return all;
}

struct Measured {
  double step_s, bubble, simulated, loss;
  PipelineReport report;
  std::vector<Span> spans;  // the spans of the last step
  double peak_mib;          // the peak memory of the first device
};

Measured measure(const Options& o, const World& world, const std::vector<Device>& devices, Schedule schedule,
                 int micro_batches) {
  manual_seed(o.seed);
  const auto parts = make_stages(o);
  std::vector<distributed::Stage> stages;
  for (std::size_t s = 0; s < parts.size(); ++s) stages.emplace_back(*parts[s], devices[s]);
  const distributed::PipelineOptions options{
      .schedule = schedule, .micro_batches = micro_batches, .uneven = true, .checkpoint = o.checkpoint};
  Pipeline pipeline = world ? Pipeline(world, stages[static_cast<std::size_t>(world->rank())], options)
                            : Pipeline(stages, options);
  optim::SGD optimizer(pipeline.parameters(), {.lr = 0.05});
  optim::GradScalerOptions scaling = apps::scaler_options(o.precision);
  // The ranks hold different stages, and all of them step or none.
  if (world)
    scaling.agree = [&](const Tensor& t) { world->all_reduce(t, distributed::ReduceOp::max).wait(); };
  optim::GradScaler scaler(scaling);
  const Tensor x = randn({o.batch_size, o.width}, devices.front());
  const Tensor labels = randint(0, kClasses, {o.batch_size}).to(devices.back());

  Measured m;
  std::vector<double> steps, bubbles, simulated;
  constexpr int kWarmUp = 2;
  for (int step = -kWarmUp; step < o.steps; ++step) {
    if (step == 0) reset_peak_memory(devices.front());
    if (world) world->barrier().wait();
    const Timeline timeline;
    optimizer.zero_grad();
    const Tensor scale = scaler.scale(ones({}, {DType::f32, devices.back()}));
    Tensor loss;
    {
      const apps::AutocastScope autocast(o.precision);
      loss = pipeline.forward_backward(x, labels, [&](const Tensor& scores, const Tensor& target) {
        const Tensor mean = cross_entropy(scores, target);
        return scaler.is_enabled() ? mean * scale : mean;
      });
    }
    scaler.step(optimizer);
    const double factor = scaler.is_enabled() ? scale.item() : 1;  // update() may change it
    scaler.update();
    m.report = pipeline.report();
    if (step < 0) continue;
    steps.push_back(m.report.wall_s);
    bubbles.push_back(m.report.bubble);
    simulated.push_back(simulated_bubble(schedule, m.report, world != nullptr));
    m.loss = loss.item() / factor;
    m.spans = world ? gather_spans(*world, timeline.spans()) : timeline.spans();
  }
  m.step_s = median(steps);
  m.bubble = median(bubbles);
  m.simulated = median(simulated);
  m.peak_mib = static_cast<double>(memory_stats(devices.front()).peak_allocated) / (1 << 20);
  return m;
}

std::string draw(Measured m, const std::string& title) {
  double begin = m.spans.front().begin, end = 0;
  for (const Span& s : m.spans) begin = std::min(begin, s.begin);
  for (Span& s : m.spans) {
    s.begin -= begin;
    s.end -= begin;
    end = std::max(end, s.end);
  }
  std::vector<std::string> rows;
  for (const Span& s : m.spans)
    if (std::find(rows.begin(), rows.end(), s.row) == rows.end()) rows.push_back(s.row);
  return apps::timeline_svg(m.spans, rows, end, title);
}

int run(Options o, bool stages_given) {
  const World world = join_job();
  check(!world || !stages_given || o.stages == world->size(), "[pipeline] --stages ", o.stages,
        " does not match the job of ", world ? world->size() : 1,
        " ranks, which has one stage per rank; leave --stages out");
  if (world) o.stages = world->size();
  const bool prints = !world || world->rank() == 0;
  const std::vector<Device> devices = choose_devices(o, world);
  std::optional<AtomicFile> file;  // opened now, to report an unwritable path before training
  if (prints && !o.svg.empty()) file.emplace(o.svg);
  std::string picture;
  std::string table =
      "| schedule | micro-batches | equal stages | simulated | measured | step, ms | alive | peak, MiB | "
      "loss |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n";
  for (const std::string& name : o.schedules)
    for (const int count : o.micro_batches) {
      const Schedule schedule = schedule_of(name);
      const Measured m = measure(o, world, devices, schedule, count);
      if (!prints) continue;
      const int used = m.report.micro_batches;
      std::printf("%s, %d stages, %d micro-batches:\n", name.c_str(), o.stages, used);
      std::fputs(schedule_table(schedule_actions(schedule, o.stages, used)).c_str(), stdout);
      std::fputs((m.report.str() + "\n").c_str(), stdout);
      char row[256];
      std::snprintf(row, sizeof row, "| %s | %d | %.1f%% | %.1f%% | %.1f%% | %.2f | %d | %.1f | %.6f |\n",
                    name.c_str(), used, 100 * equal_bubble(schedule, o.stages, used), 100 * m.simulated,
                    100 * m.bubble, 1000 * m.step_s, m.report.stages[0].peak_micro_batches, m.peak_mib,
                    m.loss);
      table += row;
      if (file) picture = draw(m, concat({name, ": ", o.stages, " stages, ", used, " micro-batches"}));
    }
  if (prints) std::fputs(table.c_str(), stdout);
  if (file) {
    file->write(picture);
    file->commit();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  apps::CommandLine line(
      "pipeline",
      "Trains a model in stages on several devices, and reports how long they waited for each other.");
  line.add("--stages", o.stages,
           "Number of stages, one per device; a job of several ranks has one stage per rank",
           {.check = apps::between(1, kMaxDevices)});
  line.add("--micro-batches", o.micro_batches, "Micro-batches per batch; list several for a table",
           {.check = apps::between(1, 10'000)});
  line.add("--schedule", o.schedules, "gpipe, 1f1b or zero-bubble; list several for a table",
           {.check = apps::one_of({"gpipe", "1f1b", "zero-bubble"})});
  line.add("--devices", o.devices,
           "Devices of the stages in order, such as cuda:0 cuda:1; repeated if there are more stages. By "
           "default GPUs "
           "if there are enough, otherwise logical CPU devices");
  line.add("--batch-size", o.batch_size, "Samples per step",
           {.check = apps::between<std::int64_t>(1, 1'000'000)});
  line.add("--width", o.width, "Features per layer", {.check = apps::between<std::int64_t>(1, 100'000)});
  line.add("--layers", o.layers, "Layers per stage", {.check = apps::between(1, 1000)});
  line.add("--steps", o.steps, "Measured training steps", {.check = apps::between(1, 1'000'000)});
  line.add("--seed", o.seed, "Seed of the weights and the samples",
           {.check = apps::between<std::uint64_t>(0, UINT64_MAX)});
  apps::add_precision(line, o.precision);
  line.add("--checkpoint", o.checkpoint, "Recompute activations in backward instead of keeping them");
  line.add("--svg", o.svg, "Write a picture of the last step to this file");
  return line.run(argc, argv, [&] { return run(o, line.given("--stages")); });
}
