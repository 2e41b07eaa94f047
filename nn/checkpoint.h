#pragma once
// Models and training runs in files.
//
//   nn::Checkpointer checkpoints("runs/a/checkpoints", {.keep_last = 3});
//   const nn::Training training{&net, &optimizer, &schedule};
//   nn::Progress progress = checkpoints.resume(training).value_or(nn::Progress{});
//   if (!progress.extra.empty()) loader.load_state(data::LoaderState::parse(progress.extra["loader"]));
//   ...
//   checkpoints.save(training, {.epoch = loader.epoch(), .step = step, .metric = accuracy,
//                               .extra = {{"loader", loader.state().str()}}});
//
// A checkpoint is one safetensors file, written whole or not at all. The model's tensors have PyTorch's names
// in it, so that it is a model file too; everything else is under "training/" and in the metadata:
//   training/optimizer/..., training/scheduler/...   their state_dict()
//   training/generator/cpu:0                         seed and offset, i64 [2], for each device
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/safetensors.h"
#include "tapestry/nn/module.h"
#include "tapestry/nn/optim/optimizer.h"
#include "tapestry/nn/optim/scheduler.h"

namespace tapestry::nn {

/// Tensors from any device to a file and back, to `device`. Throw IoError.
void save_tensors(const std::string& path, const StateDict& tensors, const StringMap& metadata = {});
StateDict load_tensors(const std::string& path, Device device = kCPU);

/// Parameters and buffers by PyTorch's names; PyTorch opens the file, and files that it wrote are loaded.
void save_model(const std::string& path, const Module& module, const StringMap& metadata = {});
/// Module::load_state_dict from a file (or the model in a checkpoint): the values go to the module's devices
/// and dtypes. Throws IoError for a broken file, ValueError if it does not fit; then nothing was loaded.
LoadResult load_model(const std::string& path, Module& module, bool strict = true);

/// What a training run consists of. What is null is left out of a checkpoint, and when loading left as it is.
struct Training {
  Module* model = nullptr;
  optim::Optimizer* optimizer = nullptr;
  optim::Scheduler* scheduler = nullptr;
};

/// How far it is.
struct Progress {
  std::int64_t epoch = 0;
  std::int64_t step = 0;              ///< of the optimizer, since the beginning
  std::optional<double> metric = {};  ///< what "best" is about
  StringMap extra = {};  ///< anything else that a resumed run needs, such as the loader's position
};

/// Saves model, optimizer, schedule, the default generators of all devices, and the progress.
void save_checkpoint(const std::string& path, const Training& training, const Progress& progress);
/// Puts all of it back: what the run then computes is bit for bit what it would have computed without a stop.
/// Works on any devices (generators of devices that are not there are skipped). Throws IoError for a broken
/// file or one without what is asked for, ValueError if it is of another model or optimizer, or of a schedule
/// over other groups; then nothing was loaded.
Progress load_checkpoint(const std::string& path, const Training& training);

struct CheckpointerOptions {
  int keep_last = 3;             ///< checkpoints to keep, by step; 0 keeps all
  bool keep_best = true;         ///< and the one with the best metric
  bool higher_is_better = true;  ///< an accuracy, not a loss
};

/// A folder of checkpoints, step-00000500.safetensors and so on. A crash or a full disk at any moment leaves
/// those that were there.
class Checkpointer {
 public:
  using Options = CheckpointerOptions;
  /// Makes the folder if it is not there, and removes what a killed process was writing. Throws IoError.
  explicit Checkpointer(std::string folder, const Options& options = {});

  /// Writes the checkpoint of progress.step, then removes those that need not be kept. Returns its path.
  /// Throws ValueError if the folder has later steps: they are another run's.
  std::string save(const Training& training, const Progress& progress);
  /// Of the last step; of the best metric.
  std::optional<std::string> latest() const;
  std::optional<std::string> best() const;
  /// Loads the latest one, if there is one.
  std::optional<Progress> resume(const Training& training) const;
  /// Of all there are, in order.
  std::vector<std::int64_t> steps() const;
  const std::string& folder() const { return folder_; }

 private:
  struct Entry {
    std::int64_t step = 0;
    std::optional<double> metric;
  };
  std::string path_of(std::int64_t step) const;
  /// The one to keep as the best, the earliest of equals; null if none has a metric.
  const Entry* best_entry() const;

  std::string folder_;
  Options options_;
  std::vector<Entry> entries_;  // by step
};

}  // namespace tapestry::nn
