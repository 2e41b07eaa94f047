#pragma once
// The options that all modes of a comparison share: the model, the batch and the devices.
#include <cstdint>
#include <optional>
#include <string>

#include "tapestry/core/dtype.h"
#include "tapestry/distributed/planner/planner.h"

namespace apps::compare {

namespace planner = tapestry::distributed::planner;

/// If `split` is empty, the program balances it by measured costs before it runs modes that split the model.
struct Workload : planner::TrainingSetup {
  std::string model = "mlp";
  std::int64_t image_size = 32;
  std::int64_t length = 64;  ///< tokens of a sequence, for "gpt"
  std::int64_t width = 192;  ///< features between the blocks, for "gpt"
  std::int64_t heads = 3;    ///< of an attention, for "gpt"
  /// For "gpt": the number of experts in each block, of which a token uses two. With 0, blocks have the
  /// feed-forward networks of GPT-2.
  std::int64_t experts = 0;
  tapestry::DType dtype = tapestry::DType::f32;
  int threads = 1;                ///< CPU threads of all devices together
  int warmup = 2;                 ///< steps before the timed ones
  int steps = 10;                 ///< timed steps
  std::string optimizer = "sgd";  ///< see optimizer_names()
  double momentum = 0;            ///< of SGD
  std::optional<double> lr = {};
  std::uint64_t seed = 1;

  double learning_rate() const { return lr.value_or(optimizer == "adamw" ? 1e-3 : 1e-2); }
  /// Each device gets an equal part of `threads`, but at least one thread.
  int threads_per_device() const { return threads > devices ? threads / devices : 1; }
};

}  // namespace apps::compare
