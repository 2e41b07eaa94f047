#pragma once
// The classifier's command line.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tapestry/apps/common/command_line.h"

namespace apps {

enum class Resume : std::uint8_t {
  never,     ///< start a new run
  always,    ///< --resume: continue the run in the folder, which must hold one
  automatic  ///< --resume auto: continue the run in the folder, or start one there
};

/// The options of a run.
struct Options {
  std::string model = "cnn";
  std::string data = "fashion-mnist";
  std::string data_dir;
  std::int64_t synthetic_size = 1024;
  std::int64_t batch_size = 128;  // global: over all devices
  int epochs = 5;
  std::string optimizer;       // empty selects the model's default
  double lr = 0;               // the peak of the schedule; 0 selects the optimizer's default
  double weight_decay = 0.01;  // used by AdamW only
  std::string schedule = "one-cycle";
  double clip_norm = 0;  // the largest norm of all gradients together; 0: any
  double ema = 0;        // the decay of the moving average of the weights; 0: none
  std::uint64_t seed = 1;
  std::string precision = "f32";
  std::string parallel = "none";
  bool sync_batchnorm = false;
  std::string compress = "none";
  std::string device = "cpu";
  int threads = 0;  // 0 selects OMP_NUM_THREADS, or all cores if it is not set
  int workers = 1;
  bool allow_nan = false;
  bool overfit_batch = false;  // train on the first batch only, without augmentation
  bool tensorboard = false;
  std::string checkpoint_every = "none";  // in the format of CheckpointInterval

  /// The options that the command line changed when it resumed the run, and their new values as JSON.
  std::map<std::string, std::string> overridden;

  // The options above are saved as config.json in the run's folder. The members below are not saved.

  std::string run_dir;  // empty selects a new folder
  bool live = false;    // show the run in a browser
  Resume resume = Resume::never;
  std::set<std::string> given;  ///< the names of the saved options that are on the command line
  /// The options in config.json if an existing run is resumed. Null if a new run starts.
  std::shared_ptr<const Options> saved;
};

/// Calls option(name, member pointer) for every option that is saved by its name. The name "batch_size"
/// corresponds to
/// --batch-size.
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
  option("clip_norm", &Options::clip_norm);
  option("ema", &Options::ema);
  option("seed", &Options::seed);
  option("precision", &Options::precision);
  option("parallel", &Options::parallel);
  option("sync_batchnorm", &Options::sync_batchnorm);
  option("compress", &Options::compress);
  option("device", &Options::device);
  option("threads", &Options::threads);
  option("workers", &Options::workers);
  option("allow_nan", &Options::allow_nan);
  option("overfit_batch", &Options::overfit_batch);
  option("tensorboard", &Options::tensorboard);
  option("checkpoint_every", &Options::checkpoint_every);
}

/// Returns "--batch-size" for "batch_size".
std::string flag_of(const std::string& name);

/// Parses the command line. For --help it prints the help and returns nullopt. If a run is resumed, the
/// options are those in its config.json, overridden by the command line; check_same_run (config.h) checks
/// them. Throws UsageError for unknown options and invalid values. Throws IoError if there is no run to
/// resume, or if config.json has an invalid value that the command line does not override.
std::optional<Options> parse_options(int argc, char** argv);

/// Applies command-line arguments to `options`. Returns the error, or an empty string. Arguments before the
/// invalid one may have been applied.
std::string apply_arguments(const std::vector<std::string>& arguments, Options& options);

}  // namespace apps
