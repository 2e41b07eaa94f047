#pragma once
// What the classifier's command line says.
#include <cstdint>
#include <optional>
#include <string>

#include "tapestry/apps/common/command_line.h"

namespace apps {

/// Everything that decides the result of a run, and where it is written. Saved as config.json in the run's
/// folder.
struct Options {
  std::string model = "cnn";
  std::string data = "fashion-mnist";
  std::string data_dir;
  std::int64_t synthetic_size = 1024;
  std::int64_t batch_size = 128;  // global: of all devices together
  int epochs = 6;
  std::string optimizer;       // empty: the model's default
  double lr = 0;               // the peak, where the schedule has one; 0: the optimizer's default
  double weight_decay = 0.01;  // AdamW only
  std::string schedule = "one-cycle";
  std::uint64_t seed = 1;
  std::string parallel = "none";
  bool sync_batchnorm = false;
  std::string compress = "none";
  std::string device = "cpu";
  int threads = 0;  // 0: OMP_NUM_THREADS, else all cores
  int workers = 1;
  bool allow_nan = false;
  std::string run_dir;  // empty: a new one; not saved, nor is what follows
  bool resume = false;
};

/// Parses the command line. Nothing when it asked for --help, which is then printed. With --resume the
/// options are those of the run, and what the command line says on top. Throws UsageError for unknown
/// options, for values that are not allowed, and for those that would make a resumed run another one; IoError
/// if there is no run to go on with.
std::optional<Options> parse_options(int argc, char** argv);

/// As JSON text, and back. from_json throws IoError for what to_json does not write.
std::string to_json(const Options& options);
Options options_from_json(const std::string& text, const std::string& path);

}  // namespace apps
