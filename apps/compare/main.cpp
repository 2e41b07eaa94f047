// tapestry-compare: trains one model in every mode on the same batch, and compares speed, memory and losses.
//
//   tapestry-compare                                      all modes on two devices
//   tapestry-compare --model cnn --modes ddp,model --devices 4 --json result.json --html result.html
//   tapestry-compare --modes single --parallel replicate=2:zero=1 --parallel shard=2:devices
//
// Without a GPU, the devices are logical CPU devices or processes that share the CPU's threads.
#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>

#include "tapestry/apps/common/bounded_spin.h"
#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/apps/compare/run.h"
#include "tapestry/core/threads.h"

using namespace tapestry;
using namespace apps::compare;
using apps::UsageError;

namespace {

std::string is_mode(const std::string& text) {
  try {
    static_cast<void>(mode_named(text));
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

int count_blocks(const Workload& w) {
  // make_blocks() must not start compute threads here. ChildProcesses, which is constructed later, blocks
  // SIGCHLD in its own thread, and threads that exist before would not inherit this signal mask.
  const ThreadShare one_thread(1);
  return static_cast<int>(make_blocks(w).size());
}

// Stages take at most one device for each block, and replicas one for each sample.
void check_meshes(const Options& o) {
  const Workload& w = o.workload;
  if (o.meshes <= w.batch_size) return;
  const int blocks = count_blocks(w);
  check<UsageError>(!planner::meshes(o.meshes, blocks, w.batch_size, layers_of_meshes(w, o.meshes)).empty(),
                    "[compare] no mesh of ", o.meshes, " devices trains ", blocks, " blocks on a batch of ",
                    w.batch_size, " samples; increase --batch-size or decrease --meshes");
}

void check_split(const Options& o) {
  const Workload& w = o.workload;
  if (w.split.empty()) return;
  const auto stages = static_cast<int>(w.split.size());
  bool fits = stages == w.devices;
  for (const std::string& name : o.parallel) fits = fits || mode_named(name).stages(w.devices) == stages;
  check<UsageError>(fits, "[compare] --split has ", stages, " stages for ", w.devices,
                    " devices; give each device, or each stage of a mode, one number");
  const std::int64_t blocks = count_blocks(w);
  const std::int64_t sum = std::accumulate(w.split.begin(), w.split.end(), std::int64_t{0});
  check<UsageError>(sum == blocks, "[compare] --split assigns ", sum, " blocks, but ", w.model, " has ",
                    blocks, "; give numbers that add up to ", blocks);
}

// Two outputs with the same path are an error, because the second would overwrite the first.
void check_outputs(const std::vector<std::pair<std::string, std::string>>& outputs) {
  std::map<std::filesystem::path, std::string> taken;
  for (const auto& [option, path] : outputs) {
    if (path.empty()) continue;
    std::error_code unknown;  // opening the file for writing reports the same error later
    const auto [first, is_new] =
        taken.emplace(weakly_canonical(std::filesystem::absolute(path), unknown), option);
    check<UsageError>(is_new || unknown, "[compare] ", first->second, " and ", option, " are the same path, ",
                      path, "; give each its own");
  }
}

// Checks options against each other.
void check_options(const Options& o) {
  const Workload& w = o.workload;
  check<UsageError>(w.devices <= w.batch_size, "[compare] ", w.devices, " devices for a batch of ",
                    w.batch_size, " samples; increase --batch-size or decrease --devices");
  check<UsageError>(o.predict_devices <= w.batch_size, "[compare] ", o.predict_devices,
                    " simulated devices for a batch of ", w.batch_size,
                    " samples; increase --batch-size or decrease --predict-devices");
  const bool simulates = o.predict_devices > 0 || o.meshes > 0;
  check<UsageError>(w.devices > 1 || std::max(o.predict_devices, o.meshes) <= 1 ||
                        (o.link_latency_us && o.link_bandwidth_gbs),
                    "[compare] with --devices 1 no link is measured, and communication would cost nothing; "
                    "use more devices, or give --link-latency-us and --link-bandwidth-gbs");
  check<UsageError>(w.devices > 1 || o.link_latency_us.has_value() == o.link_bandwidth_gbs.has_value(),
                    "[compare] with --devices 1 no link is measured; give both --link-latency-us and "
                    "--link-bandwidth-gbs, or neither");
  check<UsageError>(simulates || w.devices == 1 || (!o.link_latency_us && !o.link_bandwidth_gbs),
                    "[compare] link options have no effect without a simulation; give --predict-devices too");
  check<UsageError>(
      (simulates && w.devices_per_host > 0) || (!o.cross_latency_us && !o.cross_bandwidth_gbs),
      "[compare] links between hosts have no effect without a simulation of several hosts; give "
      "--devices-per-host, and --meshes or --predict-devices, too");
  check<UsageError>(simulates || w.devices_per_host == 0,
                    "[compare] --devices-per-host has no effect without a simulation; give --meshes or "
                    "--predict-devices too");
  check<UsageError>(w.micro_batches <= w.batch_size, "[compare] ", w.micro_batches,
                    " micro-batches for a batch of ", w.batch_size,
                    " samples; increase --batch-size or decrease --micro-batches");
  check<UsageError>(w.momentum == 0 || w.optimizer == "sgd", "[compare] --momentum ", w.momentum,
                    " has no effect on ", w.optimizer, "; leave it out, or choose --optimizer sgd");
  for (const auto* names : {&o.modes, &o.parallel})
    for (const std::string& name : *names) {
      const Mode mode = mode_named(name);
      check_devices(mode, w.devices);
      const std::string why = why_not_divided(w, mode.layers(w.devices));
      check<UsageError>(why.empty(), "[compare] ", name, ": ", why);
    }
  check<UsageError>(reads_images(w) || w.width % w.heads == 0, "[compare] --heads ", w.heads,
                    " does not divide the ", w.width,
                    " features of gpt; choose a divisor, or another --width");
  check<UsageError>(!reads_images(w) || w.width == Workload().width, "[compare] --width ", w.width,
                    " has no effect on ", w.model, "; leave it out, or choose --model gpt");
  check<UsageError>(!reads_images(w) || w.experts == 0, "[compare] --experts ", w.experts,
                    " has no effect on ", w.model, "; leave it out, or choose --model gpt");
  check<UsageError>(o.serve || o.port == 0, "[compare] --port ", o.port,
                    " has no effect without a page to show; give --serve too");
  check_meshes(o);
  check_split(o);
  check_outputs({{"--json", o.json}, {"--html", o.html}, {"--svg", o.svg}});
  check<DeviceError>(w.device_type == DeviceType::cpu || device_count(DeviceType::cuda) > 0,
                     "[compare] there is no CUDA device; leave out --device or choose cpu");
}

}  // namespace

int main(int argc, char** argv) {
  apps::bound_spin(argv);
  Options o;
  ChildTask child;
  Workload& w = o.workload;
  std::string device, dtype = "f32";
  std::vector<std::string> names;
  std::string about =
      "Trains one model in every mode on the same batch, and compares speed, memory and losses. The modes:\n";
  for (const Mode& m : modes()) {
    names.push_back(m.name);
    about += "  " + m.name + ": " + m.description + "\n";
  }
  o.modes = names;
  apps::CommandLine line("tapestry-compare", about);
  const apps::Check count = apps::between(1, 1'000'000);
  // tools/quickstart --compare passes options of its own in front of the user's, which win.
  line.add("--model", w.model, "The model", {.check = apps::one_of(model_names()), .last_wins = true});
  line.add("--modes", o.modes, "Modes, separated by commas; single is always included",
           {.check = apps::one_of(names), .commas = true});
  line.add("--parallel", o.parallel,
           "One more mode by its text, such as replicate=2:zero=1; give the option once for each mode",
           {.check = {is_mode}, .type = "TEXT", .default_text = ""});
  line.add("--devices", w.devices, "Number of devices or processes",
           {.check = apps::between(1, kMaxDevices), .last_wins = true});
  line.add("--device", device, "cpu or cuda; by default cuda if a CUDA device exists",
           {.check = apps::one_of({"cpu", "cuda"})});
  line.add("--batch-size", w.batch_size, "Samples per step over all devices",
           {.check = apps::between<std::int64_t>(1, 1'000'000), .last_wins = true});
  line.add("--micro-batches", w.micro_batches, "Micro-batches per step of a pipeline", {.check = count});
  line.add("--image-size", w.image_size, "Height and width of the images, for the other models",
           {.check = apps::between<std::int64_t>(1, 1024)});
  line.add("--length", w.length, "Tokens of a sequence, for gpt",
           {.check = apps::between<std::int64_t>(1, 4096), .last_wins = true});
  line.add("--width", w.width, "Features of a token between the blocks, for gpt",
           {.check = apps::between<std::int64_t>(1, 1 << 14), .last_wins = true});
  line.add("--heads", w.heads, "Heads of an attention, for gpt: a divisor of --width",
           {.check = apps::between<std::int64_t>(1, 1 << 14), .last_wins = true});
  line.add("--experts", w.experts,
           "Experts of the mixture in each block, two for a token, for gpt; 0 for blocks without mixtures",
           {.check = apps::between<std::int64_t>(0, 256)});
  line.add("--dtype", dtype, "f32, or f64, for which the losses must agree more closely",
           {.check = apps::one_of({"f32", "f64"})});
  line.add("--optimizer", w.optimizer, "The optimizer",
           {.check = apps::one_of(optimizer_names()), .last_wins = true});
  line.add("--momentum", w.momentum, "Momentum of SGD", {.check = apps::between(0.0, 1000.0)});
  line.add("--lr", w.lr, "Learning rate; by default 0.01 for sgd and 0.001 for adamw",
           {.check = apps::between(0.0, 1000.0)});
  line.add("--seed", w.seed, "Seed of the weights and the batch",
           {.check = apps::between<std::uint64_t>(0, UINT64_MAX - 1)});
  w.threads = get_num_threads();  // before add(), which shows it as the default
  line.add("--threads", w.threads, "CPU threads of all devices together",
           {.check = apps::between(1, 1024), .last_wins = true});
  line.add("--split", w.split,
           "Number of blocks per device for modes that split the model, such as 2,3; by default balanced by "
           "measured costs",
           {.check = count, .commas = true});
  line.add("--warmup", w.warmup, "Steps before the timed steps", {.check = count});
  line.add("--steps", w.steps, "Timed steps per round", {.check = count, .last_wins = true});
  line.add("--rounds", o.rounds, "Number of runs of every mode; the modes take turns", {.check = count});
  line.add("--timeout", o.timeout_s, "Limit for one run of a mode, in seconds",
           {.check = apps::between(0.1, 1e6)});
  line.add("--markdown", o.markdown, "Print the table as Markdown");
  line.add("--json", o.json, "Write all numbers to this file");
  line.add("--html", o.html, "Write a page with tables and pictures to this file", {.last_wins = true});
  line.add("--serve", o.serve, "At the end, show the page to browsers of this machine");
  line.add("--port", o.port, "Port of --serve; 0 takes a free one", {.check = apps::between(0, 65535)});
  line.add("--memory", o.memory_mib,
           "Memory of a device in MiB, for an answer among the modes that fit; by default that of the "
           "smallest GPU",
           {.check = apps::between(1.0, 1e9)});
  line.add("--svg", o.svg, "Write the pictures to this folder");
  line.add("--predict-devices", o.predict_devices,
           "Also simulate this number of devices, each like the measured one; 0 disables it",
           {.check = apps::between(0, kMaxDevices)});
  line.add("--link-latency-us", o.link_latency_us,
           "Latency of a message between simulated devices, in microseconds; by default as measured. With "
           "--devices 1, which has no link to measure, also that of the scaling in the page",
           {.check = apps::between(0.0, 1e9)});
  line.add("--link-bandwidth-gbs", o.link_bandwidth_gbs,
           "Bandwidth between simulated devices, in GB/s (10^9 bytes per second); by default as measured",
           {.check = apps::between(1e-6, 1e6)});
  line.add("--meshes", o.meshes,
           "Also predict every mesh of this number of devices, and print the fastest first; 0 disables it",
           {.check = apps::between(0, 1024)});
  line.add("--devices-per-host", w.devices_per_host,
           "Simulated devices on one host; 0 puts all on one. Inner axes are on one host as far as possible",
           {.check = apps::between(0, kMaxDevices)});
  line.add("--links-per-host", w.links_per_host, "Links to other hosts that the devices of a host share",
           {.check = apps::between(1, kMaxDevices)});
  line.add("--cross-latency-us", o.cross_latency_us,
           "Latency of a message between simulated hosts; by default that inside a host",
           {.check = apps::between(0.0, 1e9)});
  line.add("--cross-bandwidth-gbs", o.cross_bandwidth_gbs,
           "Bandwidth of a link between simulated hosts, in GB/s; by default that inside a host",
           {.check = apps::between(1e-6, 1e6)});
  // Options that this program passes to its child processes.
  line.add("--child", child.mode, "", {.hidden = true});
  line.add("--result", child.result, "", {.hidden = true});
  line.add("--as-rank", child.is_rank, "", {.hidden = true});
  line.add("--record-memory", child.record_memory, "", {.hidden = true});

  return line.run(argc, argv, [&] {
    w.dtype = dtype == "f64" ? DType::f64 : DType::f32;
    const bool cuda = device.empty() ? device_count(DeviceType::cuda) > 0 : device == "cuda";
    w.device_type = cuda ? DeviceType::cuda : DeviceType::cpu;
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (!child.mode.empty()) return run_child(child, o, arguments);
    check_options(o);
    return compare(o, arguments);
  });
}
