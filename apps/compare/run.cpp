#include "tapestry/apps/compare/run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>

#include "tapestry/apps/common/page_server.h"
#include "tapestry/apps/common/run_folder.h"
#include "tapestry/apps/common/stop_request.h"
#include "tapestry/apps/compare/document.h"
#include "tapestry/apps/compare/job.h"
#include "tapestry/apps/compare/measure.h"
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/page/page.h"
#include "tapestry/core/atomic_file.h"
#include "tapestry/core/cuda/device.h"
#include "tapestry/core/error.h"
#include "tapestry/core/threads.h"
#include "tapestry/distributed/launch/child_processes.h"

namespace apps::compare {

using namespace tapestry;
namespace fs = std::filesystem;
namespace launch = tapestry::distributed::launch;

namespace {

// A temporary folder with the file in which a child process leaves its result.
class ResultFolder {
 public:
  ResultFolder() {
    std::string name = (fs::temp_directory_path() / "tapestry-compare-XXXXXX").string();
    check<IoError>(mkdtemp(name.data()) != nullptr, "[compare] cannot create the folder ", name,
                   "; set TMPDIR to a writable folder");
    folder_ = name;
  }
  ~ResultFolder() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  ResultFolder(const ResultFolder&) = delete;
  ResultFolder& operator=(const ResultFolder&) = delete;
  std::string file() const { return (folder_ / "result.json").string(); }

 private:
  fs::path folder_;
};

class Comparison {
 public:
  Comparison(const Options& options, std::vector<std::string> arguments)
      : o_(options), w_(options.workload), arguments_(std::move(arguments)) {
    modes_.push_back(modes().front());
    for (const auto* names : {&o_.modes, &o_.parallel})
      for (const std::string& name : *names)
        if (std::none_of(modes_.begin(), modes_.end(), [&](const Mode& m) { return m.name == name; }))
          modes_.push_back(mode_named(name));
    if (!o_.json.empty()) json_.emplace(o_.json);
    if (!o_.html.empty()) html_.emplace(o_.html);
    if (o_.serve) server_.emplace(o_.port);
    if (!o_.svg.empty()) open_svg_folder();
  }

  int run() {
    errors_.resize(modes_.size());
    rounds_.resize(modes_.size());
    for (int round = 0; round < o_.rounds; ++round) {
      measure_costs();
      for (std::size_t i = 0; i < modes_.size(); ++i)
        if (errors_[i].empty()) run_mode(i, round);
    }
    return report();
  }

 private:
  void open_svg_folder() const {
    std::error_code error;
    fs::create_directories(o_.svg, error);
    check<IoError>(!error && access(o_.svg.c_str(), W_OK) == 0, "[compare] cannot write to the folder ",
                   o_.svg, "; choose a writable folder for --svg");
  }

  // Every mode gets the same number of threads in total. A single process divides them among its devices.
  // If there are several processes, each gets its part.
  std::string run_child_process(const std::string& name, bool processes, bool record_memory = false) {
    launch::Child child;
    child.arguments = arguments_;
    child.arguments.insert(child.arguments.end(), {"--child", name, "--result", result_folder_.file(),
                                                   "--threads", std::to_string(w_.threads)});
    if (record_memory) child.arguments.emplace_back("--record-memory");
    const bool is_mode =
        std::any_of(modes_.begin(), modes_.end(), [&](const Mode& m) { return m.name == name; });
    const std::vector<int> split = is_mode ? split_of(mode_named(name)) : w_.split;
    if (o_.workload.split.empty() && !split.empty()) {  // else the arguments have it
      child.arguments.push_back("--split");
      for (const int count : split) child.arguments.push_back(std::to_string(count));
    }
    const bool one_device = processes && w_.device_type == DeviceType::cpu;
    child.variables = {{"OMP_NUM_THREADS", std::to_string(processes ? w_.threads_per_device() : w_.threads)},
                       {"TAPESTRY_LOGICAL_DEVICES", std::to_string(one_device ? 1 : w_.devices)}};
    child.limit = std::chrono::milliseconds(std::llround(o_.timeout_s * 1000));
    return children_.run(child);
  }

  std::string measured(const char* what, bool processes) {
    const std::string error = run_child_process(what, processes);
    check<Error>(error.empty(), "[compare] the costs for predictions (", what,
                 ") could not be measured: ", error);
    return read_text(result_folder_.file());
  }

  bool any(bool (Mode::*property)() const) const {
    return std::any_of(modes_.begin(), modes_.end(), [&](const Mode& m) { return (m.*property)(); });
  }

  // Measures costs for the split and for predictions, once per round, so that they see the same state of the
  // machine as the modes. A failure is fatal only if the split needs them.
  void measure_costs() {
    const bool split = any(&Mode::splits_model) && w_.split.empty();
    if (!predicts_) return;
    try {
      profiles_.push_back(planner::profile_from_text(measured(kProfile, false)));
      if (split && std::any_of(modes_.begin(), modes_.end(),
                               [&](const Mode& m) { return m.stages(w_.devices) == w_.devices; }))
        w_.split = balanced(w_.devices);
      planner::Link link;
      if (w_.devices > 1) link = planner::link_from_text(measured(kLink, false));
      if (w_.devices > 1 && (o_.meshes > 0 || any(&Mode::one_process_per_device)))
        link.ranks = planner::link_from_text(measured(kRanks, true)).ranks;
      links_.push_back(link);
    } catch (const Error& e) {
      if (split && profiles_.empty()) throw;
      std::fprintf(stderr, "warning: %s\nContinuing without predictions.\n", e.what());
      predicts_ = false;
    }
  }

  // A split by the costs of the first round, so that all rounds have the same stages.
  std::vector<int> balanced(int stages) const {
    const planner::Profile& profile = profiles_.front();
    check(static_cast<int>(profile.blocks.size()) >= stages, "[compare] ", w_.model, " has ",
          profile.blocks.size(), " blocks, too few to split for ", stages,
          " devices; use fewer devices, or leave out the modes that split the model");
    return planner::balanced_split(profile, w_, stages);
  }
  // The blocks of the stages of a mode; empty if it has none, or if nothing is known of the blocks.
  std::vector<int> split_of(const Mode& mode) const {
    const int stages = mode.stages(w_.devices);
    if (stages == 0) return {};
    if (static_cast<int>(w_.split.size()) == stages) return w_.split;
    return profiles_.empty() ? std::vector<int>() : balanced(stages);
  }
  // The measured devices are all on this host; --devices-per-host is for simulated ones.
  planner::TrainingSetup setup_here(const std::vector<int>& split = {}) const {
    planner::TrainingSetup setup = w_;
    setup.devices_per_host = 0;
    setup.split = split;
    return setup;
  }

  void run_mode(std::size_t i, int round) {
    const Mode& mode = modes_[i];
    errors_[i] = run_child_process(mode.name, mode.one_process_per_device(), round == 0);
    if (errors_[i].empty()) rounds_[i].push_back(result_from_text(read_text(result_folder_.file())));
    if (errors_[i].empty())
      std::fprintf(stderr, "round %d of %d: %s, %.2f ms per step\n", round + 1, o_.rounds, mode.name.c_str(),
                   rounds_[i].back().step_s * 1000);
    else std::fprintf(stderr, "round %d of %d: %s failed\n", round + 1, o_.rounds, mode.name.c_str());
  }

  // The least and the largest prediction from the costs of one round.
  void add_spread(Result& r) const {
    r.predicted_low_s = r.predicted_high_s = *r.predicted_step_s;
    for (std::size_t round = 0; round < std::min(profiles_.size(), links_.size()); ++round) {
      const double step_s =
          planner::predict(r.plan, profiles_[round], links_[round], setup_here(r.split))->step_s;
      r.predicted_low_s = std::min(r.predicted_low_s, step_s);
      r.predicted_high_s = std::max(r.predicted_high_s, step_s);
    }
  }

  void add_limit(Report& report, const Mode& mode, int devices) const {
    for (const Limit& l : report.limits)
      if (l.mode == mode.name && l.devices == devices) return;
    const bool has_layers = !mode.layers(w_.devices).empty();
    if (!has_layers && !mode.splits_model()) return;
    const std::size_t blocks = report.profile->blocks.size();
    report.limits.push_back({mode.name, devices,
                             has_layers ? std::string("its layers were not measured in such parts")
                                        : concat({"the model has ", blocks, " blocks"})});
  }

  // Predictions for 1, 2, 4, ... devices, each like the measured one.
  void add_scaling(Report& report) const {
    for (const Mode& m : modes_)
      for (int n = 1; n <= std::min<std::int64_t>(kMaxDevices, w_.batch_size); n *= 2) {
        if (auto p = planner::simulate_devices(m.plan, *report.profile, report.link, setup_here(), n)) {
          p->mode = m.name;
          report.scaling.push_back(*p);
        } else {
          add_limit(report, m, n);
        }
      }
  }

  void add_predictions(Report& report) const {
    if (!predicts_) return;
    const planner::Profile profile = median_of(profiles_);
    std::optional<double> latency_s = o_.link_latency_us, bandwidth = o_.link_bandwidth_gbs;
    if (latency_s) *latency_s *= 1e-6;
    if (bandwidth) *bandwidth *= 1e9;
    // One device has no link to measure; without options, communication takes no time.
    const planner::Link median = median_of(links_);
    const planner::Link measured_link =
        w_.devices > 1 ? median : planner::link_with(median, latency_s, bandwidth);
    report.profile = profile;
    report.link = measured_link;
    for (Result& r : report.results) {
      std::optional<planner::Prediction> p =
          planner::predict(r.plan, profile, measured_link, setup_here(r.split));
      if (!p) continue;
      p->mode = r.name;
      r.predicted_step_s = p->step_s;
      add_spread(r);
      for (const planner::MemoryItems& m : p->memory)
        r.predicted_peak_bytes.push_back(static_cast<std::int64_t>(m.total()));
      r.predicted_axes = p->axes;
      r.predicted_traffic = planner::predict_traffic(r.plan, profile, setup_here(r.split));
      report.predictions.push_back(*p);
    }
    add_scaling(report);
    planner::Link link = planner::link_with(measured_link, latency_s, bandwidth);
    if (o_.cross_latency_us || o_.cross_bandwidth_gbs) {
      const planner::TransferCost& inner = link.ranks.message;
      link =
          planner::link_across(link, o_.cross_latency_us ? *o_.cross_latency_us * 1e-6 : inner.latency_s,
                               o_.cross_bandwidth_gbs ? *o_.cross_bandwidth_gbs * 1e9 : 1 / inner.s_per_byte);
    }
    if (o_.meshes > 0) report.sweep = planner::sweep(profile, link, w_, o_.meshes);
    if (o_.predict_devices == 0) return;
    for (const Mode& m : modes_)
      if (auto p = planner::simulate_devices(m.plan, profile, link, w_, o_.predict_devices)) {
        p->mode = m.name;
        report.simulations.push_back(*p);
      } else {
        add_limit(report, m, o_.predict_devices);
      }
  }

  std::int64_t smallest_memory() const {
    std::size_t least = SIZE_MAX;
    for (const Device d : planner::devices_of(w_)) least = std::min(least, cuda::device_properties(d).memory);
    return static_cast<std::int64_t>(least);
  }

  int report() {
    Report report;
    report.workload = w_;
    report.given_link = {o_.link_latency_us, o_.link_bandwidth_gbs};
    report.given_cross = {o_.cross_latency_us, o_.cross_bandwidth_gbs};
    report.rounds = o_.rounds;
    report.command = arguments_;
    report.began = began_;
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_at_).count();
    report.host = this_host();
    report.load_begin = load_begin_;
    report.load_end = load_average();
    for (const Device d : planner::devices_of(w_))
      report.device_names.push_back(d.is_cpu() ? d.str()
                                               : d.str() + " (" + cuda::device_properties(d).name + ")");
    if (w_.device_type == DeviceType::cuda) report.memory_limit_bytes = smallest_memory();
    if (o_.memory_mib) report.memory_limit_bytes = std::llround(*o_.memory_mib * (1 << 20));
    for (std::size_t i = 0; i < modes_.size(); ++i) {
      Result result = errors_[i].empty() ? median_of(rounds_[i]) : Result();
      if (errors_[i].empty()) result.memory = rounds_[i].front().memory;  // only the first round records it
      for (const Result& round : rounds_[i]) {
        result.rounds_s.push_back(round.step_s);
        result.rounds_steps_s.push_back(round.steps_s);
      }
      result.name = modes_[i].name;
      result.description = modes_[i].description;
      result.plan = modes_[i].plan;
      result.split = split_of(modes_[i]);
      const auto axes = modes_[i].axes(w_.devices);
      for (const auto& axis : axes) result.axes.emplace_back(axis.name, axis.size);
      result.title = distributed::to_string(axes);
      result.family = i == 0 ? "single" : modes_[i].splits_model() ? "stages" : "data";
      result.error = errors_[i];
      report.results.push_back(std::move(result));
    }
    compare_losses(report.results, tolerance(w_));
    add_predictions(report);

    const Judgement judgement = judge(report);
    const Answer& answer = judgement.main();
    for (const Sentence& note : judgement.notes) std::printf("%s\n", text_of(note).c_str());
    std::printf("%s\n%s\n\n%s\n\n%s\n%s\n%s", text_of(answer.headline).c_str(), text_of(answer.lead).c_str(),
                setup_line(report).c_str(), table(report, o_.markdown).c_str(), legend(report).c_str(),
                prediction_text(report, o_.markdown).c_str());
    if (json_) json_->write(json_text(report, judgement)), json_->commit();
    if (html_) html_->write(page(report, judgement)), html_->commit();
    if (server_) server_->publish("", "text/html; charset=utf-8", page(report, judgement));
    if (!o_.svg.empty())
      for (const Picture& p : pictures(report)) write_file_atomically(o_.svg + "/" + p.file, p.svg);

    bool succeeded = true;
    std::fflush(stdout);
    for (const Result& r : report.results) {
      if (r.error.empty()) continue;
      std::fprintf(stderr, "error: [compare] %s: %s\n", r.name.c_str(), r.error.c_str());
      succeeded = false;
    }
    if (server_) serve();
    return succeeded ? 0 : 1;
  }

  void serve() const {
    apps::StopRequest stop;
    std::printf("\nThe page is at %s\nCtrl-C ends the program.\n", server_->url().c_str());
    std::fflush(stdout);
    while (stop.signal() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

  const Options& o_;
  Workload w_;  // with the measured split
  bool predicts_ = true;
  std::vector<planner::Profile> profiles_;  // per round
  std::vector<planner::Link> links_;        // per round
  const std::vector<std::string> arguments_;
  const std::string began_ = time_now();
  const std::chrono::steady_clock::time_point began_at_ = std::chrono::steady_clock::now();
  const double load_begin_ = load_average();
  launch::ChildProcesses children_;
  ResultFolder result_folder_;
  std::optional<AtomicFile> json_, html_;
  std::optional<apps::PageServer> server_;
  std::vector<Mode> modes_;
  std::vector<std::string> errors_;          // per mode
  std::vector<std::vector<Result>> rounds_;  // per mode
};

// The divisions of layers that modes and predictions need.
std::vector<std::string> layers_to_measure(const Options& o) {
  const Workload& w = o.workload;
  std::set<std::string> all;
  const auto add = [&](const std::string& layers) {
    if (!layers.empty() && why_not_divided(w, layers).empty()) all.insert(layers);
  };
  for (const std::string& name : o.parallel) {
    const Mode mode = mode_named(name);
    add(mode.layers(w.devices));
    if (o.predict_devices > 0) add(planner::layers_of(mode.plan, o.predict_devices, /*simulated=*/true));
  }
  if (o.meshes > 0)
    for (const std::string& layers : layers_of_meshes(w, o.meshes)) add(layers);
  return {all.begin(), all.end()};
}

}  // namespace

int compare(const Options& options, const std::vector<std::string>& arguments) try {
  return Comparison(options, arguments).run();
} catch (const launch::Interrupted& interrupted) {
  return 128 + interrupted.signal;
}

int run_child(const ChildTask& task, const Options& options, const std::vector<std::string>& arguments) {
  const Workload& workload = options.workload;
  planner::MeasureOptions measuring{.warmup = workload.warmup, .passes = std::min(workload.steps, 7)};
  if (task.mode == kProfile) {
    for (const int devices : {options.predict_devices, options.meshes})
      if (devices > 0) measuring.simulated_devices.push_back(devices);
    // The micro-batches of stages with replicas are smaller than those of a pipeline alone, and devices that
    // divide layers have more samples than as many replicas.
    for (const std::string& name : options.parallel) {
      const Mode mode = mode_named(name);
      const std::int64_t data = mode.data_size(workload.devices);
      const std::int64_t parts = mode.stages(workload.devices) > 0 ? workload.micro_batches : 1;
      if (data > 1 && mode.plan.axes.size() > 1)
        measuring.simulated_devices.push_back(
            static_cast<int>(std::min<std::int64_t>(workload.batch_size, parts * data)));
    }
    measuring.layers = layers_to_measure(options);
    const planner::Profile profile = planner::measure_profile(planner_model(workload), workload, measuring);
    write_file_atomically(task.result, to_text(profile));
    return 0;
  }
  if (task.mode == kLink) {
    const planner::Link link = planner::measure_link(planner_model(workload), workload, measuring);
    write_file_atomically(task.result, to_text(link));
    return 0;
  }
  std::optional<Mode> mode;
  if (task.mode != kRanks) mode = mode_named(task.mode);
  if ((!mode || mode->one_process_per_device()) && !task.is_rank) {
    std::vector<std::string> all = arguments;
    all.emplace_back("--as-rank");
    return launch::launch_ranks(all, workload.devices);
  }
  if (!mode) {
    const auto group = join_job(workload);
    const ThreadShare share(workload.threads_per_device());
    planner::Link link;
    link.ranks = planner::measure_all_reduce(*group, planner_model(workload), workload,
                                             rank_device(workload, group->rank()), measuring);
    if (group->rank() == 0) write_file_atomically(task.result, to_text(link));
    return 0;
  }
  if (const auto result = measure(*mode, workload, task.record_memory))
    write_file_atomically(task.result, to_text(*result));
  return 0;
}

}  // namespace apps::compare
