#pragma once
// What the classifier's command line says.
#include <cstdint>
#include <optional>
#include <string>

namespace apps {

/// Everything that decides the result of a run, and where it is written. Saved as config.json in the run's
/// folder.
struct Options {
  std::string model = "cnn";
  std::string data = "fashion-mnist";
  std::string data_dir;
  std::string device = "cpu";
  std::int64_t batch_size = 128;  // global: of all devices together
  int epochs = 6;
  double lr = 0;  // the peak, where the schedule has one; 0: the model's default
  std::string schedule = "one-cycle";
  std::string optimizer;       // empty: the model's default
  double weight_decay = 0.01;  // AdamW only
  std::uint64_t seed = 1;
  std::int64_t synthetic_size = 1024;
  int threads = 0;  // 0: all cores
  int workers = 1;
  std::string run_dir;
  bool resume = false;
  bool allow_nan = false;
};

/// Parses the command line. Nothing when it asked for --help, which is then printed. Throws ValueError for
/// unknown options and values, with what is allowed.
std::optional<Options> parse_options(int argc, char** argv);

/// As JSON text, and back. from_json throws IoError for what to_json does not write.
std::string to_json(const Options& options);
Options options_from_json(const std::string& text, const std::string& path);

}  // namespace apps
