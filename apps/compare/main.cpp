// Trains one model in every way that there is, on the same batch, and says what each costs.
//
//   tapestry-compare                                      all modes on two devices
//   tapestry-compare --model cnn --modes ddp,model --devices 4 --json result.json --html result.html
//
// Without a GPU devices are logical ones of the CPU, or processes, and share its threads.
#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/run.h"
#include "tapestry/core/threads.h"

using namespace tapestry;
using namespace apps::compare;

namespace {

// What single options cannot know of one another.
void check_options(const Options& o) {
  const Workload& w = o.workload;
  check(w.devices <= w.batch_size, "[compare] ", w.devices, " devices for a batch of ", w.batch_size,
        " samples; give --batch-size more, or --devices less");
  check(o.predict_devices <= w.batch_size, "[compare] ", o.predict_devices,
        " simulated devices for a batch of ", w.batch_size,
        " samples; give --batch-size more, or --predict-devices less");
  check(o.predict_devices > 0 || (!o.link_latency_us && !o.link_bandwidth_gbs),
        "[compare] a link was given, but nothing to simulate with it; give --predict-devices too");
  check(w.micro_batches <= w.batch_size, "[compare] ", w.micro_batches, " micro-batches for a batch of ",
        w.batch_size, " samples; give --batch-size more, or --micro-batches less");
  check(w.split.empty() || w.split.size() == static_cast<std::size_t>(w.devices), "[compare] --split names ",
        w.split.size(), " parts for ", w.devices, " devices; give each device one");
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
  CLI::App app{about, "tapestry-compare"};
  app.option_defaults()->always_capture_default();
  const auto count = apps::between(1, 1'000'000);
  app.add_option("--model", w.model, "What is trained")->check(CLI::IsMember(model_names()));
  app.add_option("--modes", o.modes, "Ways of training, with commas between; single is always among them")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--devices", w.devices, "Devices, or processes")->check(apps::between(1, kMaxDevices));
  app.add_option("--device", device, "cpu or cuda; cuda if not given and there is one")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--batch-size", w.batch_size, "Samples a step, of all devices together")
      ->check(apps::between<std::int64_t>(1, 1'000'000));
  app.add_option("--micro-batches", w.micro_batches, "Pieces of a batch in a pipeline")->check(count);
  app.add_option("--image-size", w.image_size, "Height and width of images")
      ->check(apps::between<std::int64_t>(1, 1024));
  app.add_option("--dtype", dtype, "f32, or f64, in which modes have to agree more closely")
      ->check(CLI::IsMember({"f32", "f64"}));
  app.add_option("--lr", w.lr, "Learning rate of SGD")->check(apps::between(0.0, 1000.0));
  app.add_option("--seed", w.seed, "Of weights and images")
      ->check(apps::between<std::uint64_t>(0, UINT64_MAX - 1));
  app.add_option("--threads", w.threads, "Of the CPU, for all devices together")
      ->check(apps::between(1, 1024))
      ->take_last();
  app.add_option("--split", w.split,
                 "How many blocks of the model each device gets, such as 2,3; by measured costs if not given")
      ->delimiter(',')
      ->check(count);
  app.add_option("--warmup", w.warmup, "Steps before the timed ones")->check(apps::between(1, 1'000'000));
  app.add_option("--steps", w.steps, "Timed steps in a round")->check(count);
  app.add_option("--rounds", o.rounds, "Times that every mode is run, in turn")->check(count);
  app.add_option("--timeout", o.timeout_s, "Seconds that one run of a mode may take")
      ->check(apps::between(0.1, 1e6));
  app.add_flag("--markdown", o.markdown, "The table as Markdown");
  app.add_option("--json", o.json, "A file for all numbers");
  app.add_option("--html", o.html, "A file for a page with pictures");
  app.add_option("--svg", o.svg, "A folder for the pictures alone");
  app.add_option("--predict-devices", o.predict_devices,
                 "Simulate so many devices too, each like the one that was measured; 0: do not")
      ->check(apps::between(0, kMaxDevices));
  app.add_option("--link-latency-us", o.link_latency_us,
                 "Of a message between simulated devices, in microseconds; as measured if not given")
      ->check(apps::between(0.0, 1e9));
  app.add_option("--link-bandwidth-gbs", o.link_bandwidth_gbs,
                 "Of the simulated link, in GB (10^9 bytes) a second; as measured if not given")
      ->check(apps::between(1e-6, 1e6));
  // For the processes that this program starts.
  app.add_option("--child", child.mode)->group("");
  app.add_option("--result", child.result)->group("");
  app.add_flag("--as-rank", child.is_rank)->group("");
  w.threads = get_num_threads();

  return apps::run(app, argc, argv, [&] {
    w.dtype = dtype == "f64" ? DType::f64 : DType::f32;
    const bool cuda = device.empty() ? device_count(DeviceType::cuda) > 0 : device == "cuda";
    w.device_type = cuda ? DeviceType::cuda : DeviceType::cpu;
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (!child.mode.empty()) return run_child(child, o, arguments);
    check_options(o);
    return compare(o, arguments);
  });
}
