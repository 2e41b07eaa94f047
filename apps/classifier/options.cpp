#include "tapestry/apps/classifier/options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tapestry/apps/common/run_folder.h"

namespace apps {

using tapestry::fail;

namespace {

// Calls `option` for every saved option. The name "batch_size" corresponds to --batch-size.
template <class F>
void each_option(F&& option) {
  option("model", &Options::model);
  option("data", &Options::data);
  option("data_dir", &Options::data_dir);
  option("synthetic_size", &Options::synthetic_size);
  option("batch_size", &Options::batch_size);
  option("epochs", &Options::epochs);
  option("optimizer", &Options::optimizer);
  option("lr", &Options::lr);
  option("weight_decay", &Options::weight_decay);
  option("schedule", &Options::schedule);
  option("seed", &Options::seed);
  option("parallel", &Options::parallel);
  option("sync_batchnorm", &Options::sync_batchnorm);
  option("compress", &Options::compress);
  option("device", &Options::device);
  option("threads", &Options::threads);
  option("workers", &Options::workers);
  option("allow_nan", &Options::allow_nan);
}

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

struct Given {
  bool help = false, data = false, schedule = false;
};

// Stores the options of the command line in `o`. The initial values of `o` are the defaults in --help.
Given parse(int argc, char** argv, Options& o) {
  CLI::App app{
      "Trains an image classifier and shows its progress.\n\n"
      "  classifier                                 the CNN on Fashion-MNIST: 91.5% in six epochs\n"
      "  classifier --model demo                    the smallest example, on random images\n"
      "  classifier --model resnet18 --data cifar10 --data-dir DIR --epochs 30\n"
      "  classifier --resume --run-dir runs/mine    continues a stopped run\n"
      "  tapestry-run --nproc-per-node 2 classifier --parallel ddp    the first example, with two "
      "processes\n",
      "classifier"};
  app.get_formatter()->column_width(26);
  app.option_defaults()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);  // scripts append options to override earlier ones
  app.footer(
      "Ctrl-C stops after the current step and saves a checkpoint. A resumed run computes bit for bit the "
      "same\n"
      "result as a run that was never stopped, on the same device with the same number of threads. It keeps\n"
      "its options. Only --data-dir, --device, --threads, --workers and --allow-nan can be changed, and with "
      "a\n"
      "constant schedule also --epochs. Any other changed option is an error.\n\n"
      "Exit status: 0 done, 1 failed, 2 wrong options, 130 stopped by Ctrl-C.");
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
  const CLI::Option* const data =
      add_with_default("--data", o.data, "NAME",
                       "fashion-mnist, cifar10 or synthetic; the demo uses synthetic")
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
  const CLI::Option* const schedule =
      add_with_default("--schedule", o.schedule, "NAME",
                       "Learning rate over the steps: one-cycle, cosine, step or constant;\n"
                       "the demo uses constant")
          ->check(one_of({"one-cycle", "cosine", "step", "constant"}))
          ->group(group);
  add_with_default("--seed", o.seed, "N",
                   "Seed of initial weights, order of images, dropout and synthetic images")
      ->check(number<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max(),
                                    "a whole number from 0 to 2^64-1"))
      ->group(group);
  app.add_flag("--allow-nan", o.allow_nan, "Continue if the loss is not a number")->group(group);

  group = "Devices and files";
  add_with_default("--parallel", o.parallel, "NAME",
                   "none; dp: one process with all devices of --device's type; or ddp: all\n"
                   "processes of a job that tapestry-run, torchrun, mpirun or srun started.\n"
                   "Each device or process gets a part of the batch")
      ->check(one_of({"none", "dp", "ddp"}))
      ->group(group);
  app.add_flag("--sync-batchnorm", o.sync_batchnorm, "With ddp: batch norm over the whole batch")
      ->group(group);
  add_with_default("--compress", o.compress, "NAME", "With ddp: compress gradients to f16 or bf16, or none")
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
  app.add_flag("--resume", o.resume, "Continue the run in --run-dir from its last checkpoint")->group(group);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return {.help = true};
  } catch (const CLI::ParseError& e) {
    fail<UsageError>("[classifier] ", e.what(), "; classifier --help lists the options");
  }
  return {.data = data->count() > 0, .schedule = schedule->count() > 0};
}

// True if a resumed run may change the option: it affects where and how the run computes, but not the result.
bool may_change(const std::string& option, const Options& run) {
  for (const char* name : {"data_dir", "device", "threads", "workers", "allow_nan"})
    if (option == name) return true;
  return option == "epochs" && run.schedule == "constant";
}

void check_same_run(const Options& run, const Options& now) {
  each_option([&](std::string name, auto member) {
    if (run.*member == now.*member || may_change(name, run)) return;
    const std::string was = nlohmann::json(run.*member).dump(), is = nlohmann::json(now.*member).dump();
    const std::string why =
        name == "epochs" ? " (its " + run.schedule + " schedule depends on the number of epochs)" : "";
    std::replace(name.begin(), name.end(), '_', '-');
    fail<UsageError>("[classifier] the run in ", run.run_dir, " has --", name, " ", was, why,
                     " and cannot be resumed with ", is, "; leave --", name,
                     " out, or start a new run in another --run-dir");
  });
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options o;
  const Given given = parse(argc, argv, o);
  if (given.help) return {};
  if (o.resume) {
    if (o.run_dir.empty())
      fail<UsageError>("[classifier] --resume needs --run-dir, the folder of the run to resume");
    const std::string config = o.run_dir + "/config.json";
    Options run = options_from_json(read_text(config), config);
    run.run_dir = o.run_dir;
    o = run;
    parse(argc, argv, o);
    check_same_run(run, o);
    return o;
  }
  if (o.model == "demo") {
    if (!given.data) o.data = "synthetic";
    if (!given.schedule) o.schedule = "constant";
  }
  if (o.optimizer.empty()) o.optimizer = o.model == "demo" ? "sgd" : "adamw";
  if (o.lr == 0) o.lr = o.optimizer == "sgd" ? 0.1 : 0.003;
  return o;
}

std::string to_json(const Options& o) {
  nlohmann::ordered_json json;
  each_option([&](const char* name, auto member) { json[name] = o.*member; });
  return json.dump(2) + "\n";
}

Options options_from_json(const std::string& text, const std::string& path) {
  Options o;
  try {
    const auto json = nlohmann::json::parse(text);
    each_option([&](const char* name, auto member) { json.at(name).get_to(o.*member); });
  } catch (const nlohmann::json::exception& e) {
    fail<tapestry::IoError>("[classifier] ", path, " is not the config of a run: ", e.what());
  }
  return o;
}

}  // namespace apps
