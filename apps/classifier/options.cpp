#include "tapestry/apps/classifier/options.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "tapestry/apps/classifier/config.h"
#include "tapestry/apps/common/checkpoint_interval.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/apps/common/run_folder.h"
#include "tapestry/apps/common/training_job.h"

namespace apps {

using tapestry::fail;

namespace {

std::string check_device_name(const std::string& text) {
  try {
    static_cast<void>(tapestry::Device(text));
    return "";
  } catch (const tapestry::Error& e) {
    return e.what();
  }
}

std::string check_interval(const std::string& text) {
  if (CheckpointInterval::parse(text)) return "";
  return text + " is not an interval such as 200steps, 10minutes or none";
}

constexpr const char* kAbout =
    "Trains an image classifier and shows its progress.\n\n"
    "  classifier                                 the CNN on Fashion-MNIST: 91.5% in five epochs\n"
    "  classifier --model demo                    the smallest example, on random images\n"
    "  classifier --model resnet18 --data cifar10 --data-dir DIR --epochs 30\n"
    "  classifier --run-dir runs/mine --resume auto    starts a run, or continues it if it was stopped\n"
    "  tapestry-run --nproc-per-node 2 classifier --parallel ddp    the first example, with two processes\n"
    "  tapestry-run --nproc-per-node 4 classifier --parallel fsdp   the same, and each process stores a "
    "quarter\n";

// The parser of the command line. Parsing stores the values in `o`.
struct Parser {
  explicit Parser(Options& o);
  CommandLine line{"classifier", kAbout};
  std::string resume;  // the value of --resume
};

Parser::Parser(Options& o) {
  line.footer(
      "SIGINT (Ctrl-C), SIGTERM and SIGHUP stop the run after the current step and save a checkpoint; a "
      "second\n"
      "signal ends it at once. SIGINT and SIGHUP stay ignored if they were ignored at the start (background "
      "job,\n"
      "nohup). A resumed run computes bit for bit the same result as a run that was never stopped, on the "
      "same\n"
      "device with the same number of threads. It keeps its options. Only --data-dir, --device, --threads,\n"
      "--parallel, --compress, --workers, --allow-nan, --tensorboard and --checkpoint-every can be changed, "
      "and\n"
      "with a constant schedule also --epochs. Any other changed option is an error.\n\n"
      "Exit status: 0 done, 1 failed, 2 wrong options, 128 + N stopped by signal N (130 after Ctrl-C).");
  const auto add = [&](const char* name, auto& value, const std::string& text, OptionRules rules = {}) {
    rules.last_wins = true;  // scripts append options to override earlier ones
    line.add(name, value, text, rules);
  };
  constexpr double most = std::numeric_limits<double>::max();
  const Check some = between<std::int64_t>(1, 1'000'000);

  line.group("Model and data");
  add("--model", o.model, "Model; the demo is the smallest example",
      {.check = one_of({"cnn", "mlp", "resnet18", "demo"})});
  add("--data", o.data, "Images; the demo uses synthetic ones",
      {.check = one_of({"fashion-mnist", "cifar10", "synthetic"})});
  add("--data-dir", o.data_dir, "Folder of the data files, if they are not where packages install them",
      {.type = "DIR"});
  add("--synthetic-size", o.synthetic_size, "Number of synthetic images", {.check = some});

  line.group("Training");
  add("--batch-size", o.batch_size, "Images per step over all devices", {.check = some});
  add("--epochs", o.epochs, "Passes over the training images", {.check = between(1, 1'000'000)});
  add("--optimizer", o.optimizer, "Optimizer; sgd has momentum 0.9",
      {.check = one_of({"adamw", "sgd"}), .default_text = "adamw; for the demo sgd"});
  add("--lr", o.lr, "Learning rate above 0; the peak of the schedule",
      {.check = between(std::numeric_limits<double>::min(), most), .default_text = "adamw 0.003, sgd 0.1"});
  add("--weight-decay", o.weight_decay, "Weight decay of adamw", {.check = between(0.0, most)});
  add("--schedule", o.schedule, "Learning rate over the steps; the demo uses constant",
      {.check = one_of({"one-cycle", "cosine", "step", "constant"})});
  add("--clip-norm", o.clip_norm,
      "Scale gradients to a joint norm of at most this number; 0 does not scale them",
      {.check = between(0.0, most)});
  add("--ema", o.ema,
      "Evaluate a moving average of the weights with this decay, such as 0.999, and\n"
      "save it in the folder average; 0 evaluates the weights themselves",
      {.check = between(0.0, std::nextafter(1.0, 0.0))});
  add("--seed", o.seed, "Seed of initial weights, order of images, dropout and synthetic images",
      {.check = between<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max())});
  add("--precision", o.precision, kPrecisionHelp, {.check = one_of(precisions())});
  add("--allow-nan", o.allow_nan, "Continue if the loss is not a number");
  add("--overfit-batch", o.overfit_batch,
      "Train on the first batch only, in every step and without augmentation. A model\n"
      "that can learn reaches a training accuracy of 1; if not, look for a mistake");

  line.group("Devices and files");
  add("--parallel", o.parallel,
      "dp: one process with all devices of --device's type; or all processes of a\n"
      "job that tapestry-run, torchrun, mpirun or srun started: ddp, where each has\n"
      "the whole model; zero1, where the optimizer's state is divided among them;\n"
      "zero2, where gradients are too; fsdp, where parameters are too. Each device or\n"
      "process gets a part of the batch. Or a text such as replicate=4:zero=1",
      {.check = parallel_text()});
  add("--sync-batchnorm", o.sync_batchnorm, "In a job: batch norm over the whole batch");
  add("--compress", o.compress, "With ddp, zero1 and zero2: the dtype of gradients that are sent",
      {.check = one_of({"none", "f16", "bf16"})});
  add("--device", o.device, "cpu, cpu:1, cuda, cuda:0, ...", {.check = {check_device_name}, .type = "NAME"});
  add("--threads", o.threads, "Compute threads; 0 uses OMP_NUM_THREADS, or all cores if it is not set",
      {.check = between(0, 1024)});
  add("--workers", o.workers, "Threads that prepare batches in advance", {.check = between(0, 64)});
  add("--run-dir", o.run_dir, "Folder for checkpoints, metrics and pictures",
      {.type = "DIR", .default_text = "runs/<model>-<data>-<time>"});
  add("--tensorboard", o.tensorboard,
      "Write loss, accuracy, learning rate and weights for TensorBoard to the folder\n"
      "tensorboard in the run's folder");
  add("--live", o.live, kLiveHelp);
  add("--resume", resume,
      "Continue the run in --run-dir from its last checkpoint. With auto, start a\n"
      "run if the folder holds none, so that the same command starts and restarts it",
      {.check = {one_of({"auto"}).fault}, .bare = true, .type = "[auto]"});
  add("--checkpoint-every", o.checkpoint_every,
      "Save a checkpoint also within epochs, for example every 200steps or\n"
      "10minutes; none saves at the end of each epoch only",
      {.check = {check_interval}, .type = "INTERVAL"});
}

// Returns false if the command line asks for help or the version, which is then printed.
bool parse(int argc, char** argv, Options& o) {
  Parser parser(o);
  if (!parser.line.parse({argv + std::min(argc, 1), argv + argc})) return false;
  o.given.clear();
  each_option([&](const char* name, auto) {
    if (parser.line.given(flag_of(name))) o.given.insert(name);
  });
  if (parser.line.given("--resume")) o.resume = parser.resume.empty() ? Resume::always : Resume::automatic;
  return true;
}

bool holds_run(const std::string& config) {
  std::error_code error;
  const bool exists = std::filesystem::exists(config, error);
  tapestry::check<tapestry::IoError>(!error, "[classifier] cannot look for ", config, ": ", error.message(),
                                     "; choose a --run-dir that can be read");
  return exists;
}

}  // namespace

std::string flag_of(const std::string& name) {
  std::string flag = "--" + name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string apply_arguments(const std::vector<std::string>& arguments, Options& options) {
  return Parser(options).line.fault_of(arguments);
}

std::optional<Options> parse_options(int argc, char** argv) {
  Options o;
  if (!parse(argc, argv, o)) return {};
  if (o.resume != Resume::never) {
    if (o.run_dir.empty())
      fail<UsageError>("[classifier] --resume needs --run-dir, the folder of the run to resume");
    const std::string config = o.run_dir + "/config.json";
    if (o.resume == Resume::always || holds_run(config)) {
      const auto saved = std::make_shared<const Options>(options_from_json(read_text(config), config, o));
      Options resumed = *saved;
      parse(argc, argv, resumed);
      resumed.saved = saved;
      return resumed;
    }
  }
  if (o.model == "demo") {
    if (!o.given.contains("data")) o.data = "synthetic";
    if (!o.given.contains("schedule")) o.schedule = "constant";
  }
  if (o.optimizer.empty()) o.optimizer = o.model == "demo" ? "sgd" : "adamw";
  if (o.lr == 0) o.lr = o.optimizer == "sgd" ? 0.1 : 0.003;
  return o;
}

}  // namespace apps
