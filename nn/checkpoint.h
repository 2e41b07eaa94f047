#pragma once
// Saves and loads models and training runs.
//
//   nn::Checkpointer checkpoints("runs/a/checkpoints", {.keep_last = 3});
//   const nn::Training training{&net, &optimizer, &schedule};
//   nn::Progress progress = checkpoints.resume(training).value_or(nn::Progress{});
//   if (!progress.extra.empty()) loader.load_state(data::LoaderState::parse(progress.extra["loader"]));
//   ...
//   checkpoints.save(training, {.epoch = loader.epoch(), .step = step, .metric = accuracy,
//                               .extra = {{"loader", loader.state().str()}}});
//
// A checkpoint is one safetensors file, and it is written atomically. The model's tensors have PyTorch's
// names, so the file is also a model file. Everything else is under "training/" and in the metadata:
//   training/optimizer/..., training/scheduler/..., training/scaler/...   their state_dict()
//   training/generator/cpu:0                         seed and offset of a device, i64 [2]
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/safetensors.h"
#include "tapestry/nn/module.h"
#include "tapestry/nn/optim/grad_scaler.h"
#include "tapestry/nn/optim/optimizer.h"
#include "tapestry/nn/optim/scheduler.h"

namespace tapestry {
class FolderLock;
}

namespace tapestry::nn {

/// Saves tensors from any device to a file, and loads them to `device`. Throws IoError.
void save_tensors(const std::string& path, const StateDict& tensors, const StringMap& metadata = {});
StateDict load_tensors(const std::string& path, Device device = kCPU);

/// Saves parameters and buffers under PyTorch's names. PyTorch can load the file, and load_model can load
/// files that PyTorch wrote.
void save_model(const std::string& path, const Module& module, const StringMap& metadata = {});
/// Calls Module::load_state_dict with the tensors of a file, which may be a checkpoint. Values are converted
/// to the module's devices and dtypes. Throws IoError for a broken file, and ValueError if the names or
/// shapes do not match. If it throws, nothing was loaded.
LoadResult load_model(const std::string& path, Module& module, bool strict = true);

/// The parts of a training run. Null parts are neither saved nor loaded.
struct Training {
  Module* model = nullptr;
  optim::Optimizer* optimizer = nullptr;
  optim::Scheduler* scheduler = nullptr;
  optim::GradScaler* scaler = nullptr;
};

/// The position of a training run.
struct Progress {
  std::int64_t epoch = 0;
  std::int64_t step = 0;              ///< number of optimizer steps since the start
  std::optional<double> metric = {};  ///< the value by which the best checkpoint is chosen
  StringMap extra = {};               ///< other state that a resumed run needs, such as the loader's position
};

/// Saves the model, the optimizer, the schedule, the default random generators of all devices, and the
/// progress. Throws ValueError if the epoch or the step is negative.
void save_checkpoint(const std::string& path, const Training& training, const Progress& progress);
/// Restores everything that save_checkpoint saved. The run then computes the same bits as a run that was
/// never interrupted. The devices may differ; generators of devices that do not exist here are skipped.
/// Throws IoError if the file is broken, lacks a requested part or the CPU's generator, or has a negative
/// epoch or step. Throws ValueError if the file belongs to another model, optimizer, or list of parameter
/// groups, or if numbers such as the learning rate have a wrong dtype. If it throws, nothing was loaded.
Progress load_checkpoint(const std::string& path, const Training& training);

struct CheckpointerOptions {
  int keep_last = 3;             ///< the number of latest checkpoints to keep; 0 keeps all
  bool keep_best = true;         ///< also keep the checkpoint with the best metric
  bool higher_is_better = true;  ///< true for an accuracy, false for a loss
};

/// A folder of checkpoints, which are files of save_checkpoint() named step-00000500.safetensors and so on. A
/// crash or a full disk leaves existing checkpoints intact. One object at a time may write to a folder: the
/// first save() or resume() takes the folder's lock (FolderLock) and holds it until this object is destroyed.
/// Two runs in one folder would remove and overwrite each other's checkpoints. Any number of objects may
/// read.
///
/// distributed::Checkpointer is the same for a job. It derives from this class, because nn knows of no ranks.
class Checkpointer {
 public:
  using Options = CheckpointerOptions;
  /// Creates the folder if it does not exist, and removes temporary files whose writers have died. Throws
  /// IoError.
  explicit Checkpointer(std::string folder, const Options& options = {});

  /// Writes the checkpoint of progress.step, then removes checkpoints that need not be kept. Returns its
  /// path. Throws IoError if it cannot, or if another object has the lock, and ValueError if the folder
  /// contains a later step, which belongs to another run.
  std::string save(const Training& training, const Progress& progress);
  /// Loads the latest checkpoint if there is one. Throws IoError if another object has the lock. To read the
  /// checkpoint of a job that is running, call load_checkpoint(*latest(), training) instead.
  std::optional<Progress> resume(const Training& training);
  /// The path of the checkpoint with the last step, or with the best metric, the earliest among equals.
  std::optional<std::string> latest() const;
  std::optional<std::string> best() const;
  /// The steps of all checkpoints, in ascending order.
  std::vector<std::int64_t> steps() const;
  const std::string& folder() const { return folder_; }

 protected:
  /// A kind of checkpoints. A folder may have several kinds.
  struct Format {
    const char* suffix;  // of the names; empty if a checkpoint is a folder
    /// Reads a checkpoint's metric, if it has one. Returns false if the path is no complete checkpoint.
    bool (*read)(const std::string& path, std::optional<double>& metric);
    void (*remove)(const std::string& path);
  };
  static const Format kOneFile;
  struct Entry {
    std::int64_t step = 0;
    const Format* format = nullptr;
    std::optional<double> metric = {};
  };
  Checkpointer(std::vector<const Format*> formats, std::string folder, const Options& options);

  void create_folder();
  /// Takes the lock and reads the folder, unless this object has the lock.
  void lock();
  /// The two halves of a save. begin_save() takes the lock and returns the path to write to.
  std::string begin_save(const Progress& progress, const Format& format);
  void end_save(const Progress& progress, const Format& format);
  /// All names of checkpoints in the folder now, by step.
  std::vector<Entry> names_in_folder() const;
  std::string path_of(const Entry& entry) const;
  /// Forgets the latest checkpoint, whose files stay.
  void skip_latest() { entries_.pop_back(); }

 private:
  void read_folder();
  const Entry* best_entry() const;

  std::vector<const Format*> formats_;
  std::string folder_;
  Options options_;
  std::vector<Entry> entries_;  // sorted by step
  std::shared_ptr<FolderLock> lock_;
};

}  // namespace tapestry::nn
