#include "tapestry/apps/classifier/options.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tapestry/core/error.h"

namespace apps {

using tapestry::fail;

std::optional<Options> parse_options(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Trains an image classifier and shows how it goes.\n\n"
      "  classifier                                    the CNN on Fashion-MNIST, 91.5% in six epochs\n"
      "  classifier --model demo                       the smallest example, on random images\n"
      "  classifier --model resnet18 --data cifar10 --data-dir DIR --epochs 30\n"
      "  classifier --resume --run-dir runs/mine       goes on with a run that was stopped\n",
      "classifier"};
  app.get_formatter()->column_width(34);
  app.option_defaults()->always_capture_default();
  const auto positive = CLI::Range(1, 1'000'000'000);

  CLI::Option* model = app.add_option("--model", o.model, "The network")
                           ->check(CLI::IsMember({"cnn", "mlp", "resnet18", "demo"}));
  CLI::Option* data =
      app.add_option("--data", o.data, "The images; synthetic ones by default for --model demo")
          ->check(CLI::IsMember({"fashion-mnist", "cifar10", "synthetic"}));
  app.add_option("--data-dir", o.data_dir,
                 "Folder with the data's files; default: where the package manager puts them");
  app.add_option("--synthetic-size", o.synthetic_size, "Number of synthetic images")->check(positive);
  app.add_option("--device", o.device, "Where to train: cpu, cpu:1, cuda, cuda:0, ...");
  app.add_option("--batch-size", o.batch_size, "Images a step, all devices together")->check(positive);
  app.add_option("--epochs", o.epochs, "Passes over the training images")->check(positive);
  app.add_option("--optimizer", o.optimizer, "Default: sgd (momentum 0.9) for --model demo, else adamw")
      ->check(CLI::IsMember({"adamw", "sgd"}))
      ->default_str("");
  app.add_option("--lr", o.lr,
                 "Learning rate, the peak of the schedule; default: 0.1 with sgd, 0.003 with adamw")
      ->check(CLI::PositiveNumber)
      ->default_str("");
  app.add_option("--weight-decay", o.weight_decay, "Of AdamW")->check(CLI::NonNegativeNumber);
  CLI::Option* schedule =
      app.add_option("--schedule", o.schedule, "The learning rate over time; constant for --model demo")
          ->check(CLI::IsMember({"one-cycle", "cosine", "step", "constant"}));
  app.add_option("--seed", o.seed, "Of initial weights, order of images and dropout");
  app.add_option("--threads", o.threads, "Compute threads; 0: OMP_NUM_THREADS, else all cores")
      ->check(CLI::Range(0, 1024));
  app.add_option("--workers", o.workers, "Threads that prepare batches ahead")->check(CLI::Range(0, 64));
  app.add_option("--run-dir", o.run_dir,
                 "Folder for checkpoints, metrics and pictures; default: runs/<model>-<data>-<time>");
  app.add_flag("--resume", o.resume,
               "Go on with the run in --run-dir, from its last checkpoint, with its options");
  app.add_flag("--allow-nan", o.allow_nan, "Go on when the loss is not a number");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    fail("[classifier] ", e.what(), "; classifier --help lists the options");
  }
  if (o.resume && o.run_dir.empty())
    fail("[classifier] --resume needs --run-dir, the folder of the run to go on with");

  if (o.model == "demo") {
    if (data->count() == 0) o.data = "synthetic";
    if (schedule->count() == 0) o.schedule = "constant";
  }
  static_cast<void>(model);
  if (o.optimizer.empty()) o.optimizer = o.model == "demo" ? "sgd" : "adamw";
  if (o.lr == 0) o.lr = o.optimizer == "sgd" ? 0.1 : 0.003;
  return o;
}

namespace {

// Every field once, for both directions.
template <class F>
void each_field(Options& o, F&& field) {
  field("model", o.model);
  field("data", o.data);
  field("data_dir", o.data_dir);
  field("synthetic_size", o.synthetic_size);
  field("device", o.device);
  field("batch_size", o.batch_size);
  field("epochs", o.epochs);
  field("optimizer", o.optimizer);
  field("lr", o.lr);
  field("weight_decay", o.weight_decay);
  field("schedule", o.schedule);
  field("seed", o.seed);
  field("threads", o.threads);
  field("workers", o.workers);
  field("allow_nan", o.allow_nan);
}

}  // namespace

std::string to_json(const Options& options) {
  Options o = options;
  nlohmann::ordered_json json;
  each_field(o, [&](const char* name, auto& value) { json[name] = value; });
  return json.dump(2) + "\n";
}

Options options_from_json(const std::string& text, const std::string& path) {
  Options o;
  try {
    const auto json = nlohmann::json::parse(text);
    each_field(o, [&](const char* name, auto& value) { json.at(name).get_to(value); });
  } catch (const nlohmann::json::exception& e) {
    fail<tapestry::IoError>("[classifier] ", path, " is not the config of a run: ", e.what());
  }
  return o;
}

}  // namespace apps
