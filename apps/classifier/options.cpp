#include "tapestry/apps/classifier/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <sstream>

#include "tapestry/apps/classifier/config.h"
#include "tapestry/apps/common/checkpoint_interval.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/apps/common/run_folder.h"
#include "tapestry/core/version.h"

namespace apps {

using tapestry::fail;

namespace {

// Accepts numbers of type T from `low` to `high`. `what` describes them in errors. It is stricter than CLI11,
// which accepts -1 as an unsigned number and nan as a positive one.
template <class T>
CLI::Validator number(T low, T high, const std::string& what) {
  return {[=](const std::string& text) -> std::string {
            T value{};
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            return error == std::errc() && stop == end && low <= value && value <= high
                       ? ""
                       : text + " is not " + what;
          },
          ""};
}

CLI::Validator whole(std::int64_t low, std::int64_t high) {
  return number(low, high, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
}

CLI::Validator one_of(const std::vector<std::string>& names) {
  return {[=](const std::string& text) -> std::string {
            std::string list;
            for (const std::string& name : names) {
              if (name == text) return "";
              list += (list.empty() ? "" : name == names.back() ? " or " : ", ") + name;
            }
            return text + " is not " + list;
          },
          ""};
}

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

// The parser of the command line. Parsing stores the values in `o`.
struct Parser {
  explicit Parser(Options& o);
  CLI::App app{
      "Trains an image classifier and shows its progress.\n\n"
      "  classifier                                 the CNN on Fashion-MNIST: 91.5% in six epochs\n"
      "  classifier --model demo                    the smallest example, on random images\n"
      "  classifier --model resnet18 --data cifar10 --data-dir DIR --epochs 30\n"
      "  classifier --run-dir runs/mine --resume auto    starts a run, or continues it if it was stopped\n"
      "  tapestry-run --nproc-per-node 2 classifier --parallel ddp    the first example, with two "
      "processes\n"
      "  tapestry-run --nproc-per-node 4 classifier --parallel fsdp   the same, and each process stores a "
      "quarter\n",
      "classifier"};
  std::string resume;  // the value of --resume
};

Parser::Parser(Options& o) {
  app.get_formatter()->column_width(26);
  app.set_version_flag("--version", [] { return tapestry::version_text("classifier"); },
                       "Print the version, and the libraries of this build and of this machine");
  app.option_defaults()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);  // scripts append options to override earlier ones
  app.footer(
      "SIGINT (Ctrl-C), SIGTERM and SIGHUP stop the run after the current step and save a checkpoint; a "
      "second\n"
      "signal ends it at once. SIGINT and SIGHUP stay ignored if they were ignored at the start (background "
      "job,\n"
      "nohup). A resumed run computes bit for bit the same result as a run that was never\n"
      "stopped, on the same device with the same number of threads. It keeps its options. Only --data-dir,\n"
      "--device, --threads, --workers, --allow-nan, --tensorboard and --checkpoint-every can be changed, "
      "and\n"
      "with a constant schedule also --epochs. Any other changed option is an error.\n\n"
      "Exit status: 0 done, 1 failed, 2 wrong options, 128 + N stopped by signal N (130 after Ctrl-C).");
  const auto add = [&](const char* name, auto& value, const char* type, const std::string& text) {
    return app.add_option(name, value, text)->type_name(type);
  };
  const auto add_with_default = [&](const char* name, auto& value, const char* type,
                                    const std::string& text) {
    std::ostringstream shown;
    shown << text << " [" << value << "]";
    return add(name, value, type, shown.str());
  };

  const char* group = "Model and data";
  add_with_default("--model", o.model, "NAME", "cnn, mlp, resnet18 or demo")
      ->check(one_of({"cnn", "mlp", "resnet18", "demo"}))
      ->group(group);
  add_with_default("--data", o.data, "NAME", "fashion-mnist, cifar10 or synthetic; the demo uses synthetic")
      ->check(one_of({"fashion-mnist", "cifar10", "synthetic"}))
      ->group(group);
  add("--data-dir", o.data_dir, "DIR",
      "Folder of the data files, if they are not where packages install them")
      ->group(group);
  add_with_default("--synthetic-size", o.synthetic_size, "N", "Number of synthetic images")
      ->check(whole(1, 1'000'000))
      ->group(group);

  group = "Training";
  add_with_default("--batch-size", o.batch_size, "N", "Images per step over all devices")
      ->check(whole(1, 1'000'000))
      ->group(group);
  add_with_default("--epochs", o.epochs, "N", "Passes over the training images")
      ->check(whole(1, 1'000'000))
      ->group(group);
  add("--optimizer", o.optimizer, "NAME", "adamw, or sgd with momentum 0.9 [adamw; for the demo sgd]")
      ->check(one_of({"adamw", "sgd"}))
      ->group(group);
  add("--lr", o.lr, "X", "Learning rate; the peak of the schedule [adamw 0.003, sgd 0.1]")
      ->check(
          number(std::numeric_limits<double>::min(), std::numeric_limits<double>::max(), "a number above 0"))
      ->group(group);
  add_with_default("--weight-decay", o.weight_decay, "X", "Weight decay of adamw")
      ->check(number(0.0, std::numeric_limits<double>::max(), "a number of at least 0"))
      ->group(group);
  add_with_default("--schedule", o.schedule, "NAME",
                   "Learning rate over the steps: one-cycle, cosine, step or constant;\n"
                   "the demo uses constant")
      ->check(one_of({"one-cycle", "cosine", "step", "constant"}))
      ->group(group);
  add("--clip-norm", o.clip_norm, "X",
      "Scale the gradients to a joint norm of at most X; 0 leaves them as they are [0]")
      ->check(number(0.0, std::numeric_limits<double>::max(), "a number of at least 0"))
      ->group(group);
  add("--ema", o.ema, "X",
      "Evaluate a moving average of the weights with this decay, such as 0.999, and save it\n"
      "in the folder average; 0 evaluates the weights themselves [0]")
      ->check(number(0.0, std::nextafter(1.0, 0.0), "a number from 0 to below 1"))
      ->group(group);
  add_with_default("--seed", o.seed, "N",
                   "Seed of initial weights, order of images, dropout and synthetic images")
      ->check(number<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max(),
                                    "a whole number from 0 to 2^64-1"))
      ->group(group);
  add_with_default("--precision", o.precision, "DTYPE", kPrecisionHelp)
      ->check(one_of(precisions()))
      ->group(group);
  app.add_flag("--allow-nan", o.allow_nan, "Continue if the loss is not a number")->group(group);
  app.add_flag("--overfit-batch", o.overfit_batch,
               "Train on the first batch only, in every step and without augmentation. A model\n"
               "that can learn reaches a training accuracy of 1; if not, look for a mistake")
      ->group(group);

  group = "Devices and files";
  add_with_default("--parallel", o.parallel, "NAME",
                   "none; dp: one process with all devices of --device's type; or all processes\n"
                   "of a job that tapestry-run, torchrun, mpirun or srun started: ddp, where each\n"
                   "has the whole model; zero1, where the optimizer's state is divided among\n"
                   "them; zero2, where gradients are too; fsdp, where parameters are too.\n"
                   "Each device or process gets a part of the batch")
      ->check(one_of({"none", "dp", "ddp", "zero1", "zero2", "fsdp"}))
      ->group(group);
  app.add_flag("--sync-batchnorm", o.sync_batchnorm, "In a job: batch norm over the whole batch")
      ->group(group);
  add_with_default("--compress", o.compress, "NAME",
                   "With ddp, zero1 and zero2: compress gradients to f16 or bf16, or none")
      ->check(one_of({"none", "f16", "bf16"}))
      ->group(group);
  add_with_default("--device", o.device, "NAME", "cpu, cpu:1, cuda, cuda:0, ...")
      ->check(check_device_name)
      ->group(group);
  add("--threads", o.threads, "N",
      "Compute threads; 0 uses OMP_NUM_THREADS, or all cores if it is not set [0]")
      ->check(whole(0, 1024))
      ->group(group);
  add_with_default("--workers", o.workers, "N", "Threads that prepare batches in advance")
      ->check(whole(0, 64))
      ->group(group);
  add("--run-dir", o.run_dir, "DIR",
      "Folder for checkpoints, metrics and pictures [runs/<model>-<data>-<time>]")
      ->group(group);
  app.add_flag("--tensorboard", o.tensorboard,
               "Write loss, accuracy, learning rate and weights for TensorBoard to the folder\n"
               "tensorboard in the run's folder")
      ->group(group);
  add("--resume", resume, "[auto]",
      "Continue the run in --run-dir from its last checkpoint. With auto, start a\n"
      "run if the folder holds none, so that the same command starts and restarts it")
      ->expected(0, 1)
      ->check(one_of({"auto"}))
      ->group(group);
  add_with_default("--checkpoint-every", o.checkpoint_every, "INTERVAL",
                   "Save a checkpoint also within epochs, for example every 200steps or\n"
                   "10minutes; none saves at the end of each epoch only")
      ->check(check_interval)
      ->group(group);
}

// Returns false if the command line asks for help or the version, which is then printed.
bool parse(int argc, char** argv, Options& o) {
  Parser parser(o);
  CLI::App& app = parser.app;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::CallForVersion& e) {
    std::cout << e.what();
    return false;
  } catch (const CLI::ParseError& e) {
    fail<UsageError>("[classifier] ", e.what(), "; classifier --help lists the options");
  }
  o.given.clear();
  each_option([&](const char* name, auto) {
    if (app.count(flag_of(name)) > 0) o.given.insert(name);
  });
  if (app.count("--resume") > 0) o.resume = parser.resume.empty() ? Resume::always : Resume::automatic;
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

bool is_job(const std::string& parallel) {
  return parallel == "ddp" || parallel == "zero1" || parallel == "zero2" || parallel == "fsdp";
}

std::string flag_of(const std::string& name) {
  std::string flag = "--" + name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string apply_arguments(const std::vector<std::string>& arguments, Options& options) {
  Parser parser(options);
  try {
    parser.app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // last argument first
    return "";
  } catch (const CLI::ParseError& e) {
    return e.what();
  }
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
