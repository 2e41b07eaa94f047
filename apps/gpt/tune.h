#pragma once
// The command line of `gpt tune`, and config.json of a run, which has the same options.
#include <cstdint>
#include <string>
#include <vector>

namespace apps::gpt {

struct TuneOptions {
  // Data.
  std::vector<std::string> chats, text, held_out;
  double held_out_part = 0.05;
  std::int64_t length = 512;
  bool truncate = false, whole_text = false;
  std::string date;  // in the system block of some chat templates; empty: the day on which the run begins
  // Model.
  std::string model, tokenizer, method = "lora", adapter;
  std::string weights = "packed";  // "packed": a frozen base stays in the blocks of its GGUF file; or "f32"
  std::int64_t rank = 8;
  double alpha = 16, dropout = 0;
  std::vector<std::string> targets = {"all-linear"};
  bool rslora = false, merge = false;
  // Training.
  std::int64_t steps = 100, batch_size = 4, accumulate = 1, warmup = 10;
  double lr = 2e-4, min_lr = 0.1, weight_decay = 0, clip = 1;
  std::uint64_t seed = 1;
  bool keep_activations = false;
  std::string precision = "f32", parallel = "none";
  int devices = 2, threads = 0;
  // What is shown and saved.
  std::int64_t log_every = 10, eval_every = 50, eval_sequences = 64, sample_tokens = 32;
  std::string sample_prompt, checkpoint_every = "10minutes";
  // Not saved.
  std::string run_dir, resume;
  bool live = false;
  bool resumed = false;            ///< the options are those of an existing run
  std::vector<std::string> given;  ///< the options of adapters that are on the command line
};

std::string to_json(const TuneOptions& options);

/// Reads the model and the data, trains, and writes the adapter or the model into the run folder. Returns the
/// exit status.
int run_tune(TuneOptions options);

}  // namespace apps::gpt
