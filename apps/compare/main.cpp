// Trains one model in every way that there is, on the same batch, and says what each costs.
//
//   tapestry-compare                                      all modes on two devices
//   tapestry-compare --model cnn --modes ddp,model --devices 4 --json result.json --html result.html
//
// Without a GPU devices are logical ones of the CPU, or processes, and share its threads.
#include <filesystem>
#include <map>
#include <numeric>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/run.h"
#include "tapestry/core/threads.h"

using namespace tapestry;
using namespace apps::compare;
using apps::UsageError;

namespace {

void check_split(const Workload& w) {
  if (w.split.empty()) return;
  check<UsageError>(w.split.size() == static_cast<std::size_t>(w.devices), "[compare] --split names ",
                    w.split.size(), " parts for ", w.devices, " devices; give each device one");
  // Who waits for children has one thread: another one might take the signal that a child ended.
  const ThreadShare alone(1);
  const auto blocks = static_cast<std::int64_t>(make_blocks(w).size());
  const std::int64_t sum = std::accumulate(w.split.begin(), w.split.end(), std::int64_t{0});
  check<UsageError>(sum == blocks, "[compare] --split deals out ", sum, " blocks; ", w.model, " has ", blocks,
                    ": give numbers that add up to it");
}

// Two results in one place: the second would take it from the first.
void check_outputs(const std::vector<std::pair<std::string, std::string>>& outputs) {
  std::map<std::filesystem::path, std::string> taken;
  for (const auto& [option, path] : outputs) {
    if (path.empty()) continue;
    std::error_code unknown;  // such a path cannot be written to either, which is said by who tries
    const auto [first, is_new] =
        taken.emplace(weakly_canonical(std::filesystem::absolute(path), unknown), option);
    check<UsageError>(is_new || unknown, "[compare] ", first->second, " and ", option, " are one place, ",
                      path, "; give each its own");
  }
}

// What single options cannot know of one another.
void check_options(const Options& o) {
  const Workload& w = o.workload;
  check<UsageError>(w.devices <= w.batch_size, "[compare] ", w.devices, " devices for a batch of ",
                    w.batch_size, " samples; give --batch-size more, or --devices less");
  check<UsageError>(o.predict_devices <= w.batch_size, "[compare] ", o.predict_devices,
                    " simulated devices for a batch of ", w.batch_size,
                    " samples; give --batch-size more, or --predict-devices less");
  check<UsageError>(
      o.predict_devices > 0 || (!o.link_latency_us && !o.link_bandwidth_gbs),
      "[compare] a link was given, but nothing to simulate with it; give --predict-devices too");
  check<UsageError>(w.micro_batches <= w.batch_size, "[compare] ", w.micro_batches,
                    " micro-batches for a batch of ", w.batch_size,
                    " samples; give --batch-size more, or --micro-batches less");
  check_split(w);
  check_outputs({{"--json", o.json}, {"--html", o.html}, {"--svg", o.svg}});
  check<DeviceError>(w.device_type == DeviceType::cpu || device_count(DeviceType::cuda) > 0,
                     "[compare] there is no CUDA device; leave out --device, or give cpu");
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  ChildTask child;
  Workload& w = o.workload;
  std::string device, dtype = "f32";
  std::vector<std::string> names;
  std::string about =
      "Trains one model in every way that there is, on the same batch, and compares speed, memory "
      "and losses. The ways:\n";
  for (const Mode& m : modes()) {
    names.push_back(m.name);
    about += "  " + m.name + ": " + m.description + "\n";
  }
  o.modes = names;
  apps::CommandLine line("tapestry-compare", about);
  const apps::Check count = apps::between(1, 1'000'000);
  line.add("--model", w.model, "What is trained", {.check = apps::one_of(model_names())});
  line.add("--modes", o.modes, "Ways of training, with commas between; single is always among them",
           {.check = apps::one_of(names), .commas = true});
  line.add("--devices", w.devices, "Devices, or processes", {.check = apps::between(1, kMaxDevices)});
  line.add("--device", device, "cpu or cuda; cuda if not given and there is one",
           {.check = apps::one_of({"cpu", "cuda"})});
  line.add("--batch-size", w.batch_size, "Samples a step, of all devices together",
           {.check = apps::between<std::int64_t>(1, 1'000'000)});
  line.add("--micro-batches", w.micro_batches, "Pieces of a batch in a pipeline", {.check = count});
  line.add("--image-size", w.image_size, "Height and width of images",
           {.check = apps::between<std::int64_t>(1, 1024)});
  line.add("--dtype", dtype, "f32, or f64, in which modes have to agree more closely",
           {.check = apps::one_of({"f32", "f64"})});
  line.add("--lr", w.lr, "Learning rate of SGD", {.check = apps::between(0.0, 1000.0)});
  line.add("--seed", w.seed, "Of weights and images",
           {.check = apps::between<std::uint64_t>(0, UINT64_MAX - 1)});
  line.add("--threads", w.threads, "Of the CPU, for all devices together",
           {.check = apps::between(1, 1024), .last_wins = true});
  line.add("--split", w.split,
           "How many blocks of the model each device gets, such as 2,3; by measured costs if not given",
           {.check = count, .commas = true});
  line.add("--warmup", w.warmup, "Steps before the timed ones", {.check = count});
  line.add("--steps", w.steps, "Timed steps in a round", {.check = count});
  line.add("--rounds", o.rounds, "Times that every mode is run, in turn", {.check = count});
  line.add("--timeout", o.timeout_s, "Seconds that one run of a mode may take",
           {.check = apps::between(0.1, 1e6)});
  line.add("--markdown", o.markdown, "The table as Markdown");
  line.add("--json", o.json, "A file for all numbers");
  line.add("--html", o.html, "A file for a page with pictures");
  line.add("--svg", o.svg, "A folder for the pictures alone");
  line.add("--predict-devices", o.predict_devices,
           "Simulate so many devices too, each like the one that was measured; 0: do not",
           {.check = apps::between(0, kMaxDevices)});
  line.add("--link-latency-us", o.link_latency_us,
           "Of a message between simulated devices, in microseconds; as measured if not given",
           {.check = apps::between(0.0, 1e9)});
  line.add("--link-bandwidth-gbs", o.link_bandwidth_gbs,
           "Of the simulated link, in GB (10^9 bytes) a second; as measured if not given",
           {.check = apps::between(1e-6, 1e6)});
  // For the processes that this program starts.
  line.add("--child", child.mode, "", {.hidden = true});
  line.add("--result", child.result, "", {.hidden = true});
  line.add("--as-rank", child.is_rank, "", {.hidden = true});
  w.threads = get_num_threads();

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
