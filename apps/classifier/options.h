#pragma once
// The classifier's command line.
#include <cstdint>
#include <optional>
#include <string>

#include "tapestry/apps/common/command_line.h"

namespace apps {

/// The options of a run. Saved as config.json in the run's folder, except run_dir and resume.
struct Options {
  std::string model = "cnn";
  std::string data = "fashion-mnist";
  std::string data_dir;
  std::int64_t synthetic_size = 1024;
  std::int64_t batch_size = 128;  // global: over all devices
  int epochs = 6;
  std::string optimizer;       // empty selects the model's default
  double lr = 0;               // the peak of the schedule; 0 selects the optimizer's default
  double weight_decay = 0.01;  // AdamW only
  std::string schedule = "one-cycle";
  std::uint64_t seed = 1;
  std::string parallel = "none";
  bool sync_batchnorm = false;
  std::string compress = "none";
  std::string device = "cpu";
  int threads = 0;  // 0 selects OMP_NUM_THREADS, or all cores if it is not set
  int workers = 1;
  bool allow_nan = false;
  std::string run_dir;  // empty selects a new folder
  bool resume = false;
};

/// Parses the command line. For --help it prints the help and returns nullopt. With --resume the options are
/// those of the saved run, overridden by the command line. Throws UsageError for unknown options, invalid
/// values, and options that a resumed run cannot change. Throws IoError if there is no run to resume.
std::optional<Options> parse_options(int argc, char** argv);

/// Converts to JSON and back. `path` is named in errors. Throws IoError if the text is not from to_json.
std::string to_json(const Options& options);
Options options_from_json(const std::string& text, const std::string& path);

}  // namespace apps
