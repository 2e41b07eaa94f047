#pragma once
// The command line of `gpt train`, and config.json of a run, which has the same options.
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/apps/common/training_job.h"

namespace apps::gpt {

struct TrainOptions {
  // Text.
  std::vector<std::string> text, tokens, held_out;
  double held_out_part = 0.05;
  std::string tokenizer;
  std::int64_t vocab_size = 0;  // 0: bytes, or what the tokenizer or the configuration has
  std::int64_t separator = -1;  // of token files
  bool no_document_masks = false;
  // Model.
  std::string family = "llama", config, init;
  std::int64_t layers = 4, width = 128, heads = 4, kv_heads = 0, context = 128;
  double dropout = 0;
  // Training.
  std::int64_t steps = 2000, batch_size = 16, accumulate = 1, warmup = 100;
  double lr = 1e-3, min_lr = 0.1, weight_decay = 0.1, beta2 = 0.95, clip = 1;
  std::uint64_t seed = 1;
  std::string precision = "f32", parallel = "none", device = "cpu";
  int stages = 2, threads = 0;
  // What is shown and saved.
  std::int64_t log_every = 20, eval_every = 250, eval_windows = 200, sample_tokens = 64;
  std::string sample_prompt, checkpoint_every = "10minutes";

  // The members below are no options. They are saved, and a resumed run fails if its text does not match
  // them.
  std::int64_t train_tokens = 0, held_out_tokens = 0;
  std::uint64_t text_hash = 0;

  // The members below are not saved.
  std::string run_dir, resume;
  bool live = false;
  bool resumed = false;  ///< the options are those of an existing run
};

/// Calls option(name, member, help, rules, fixed) for each option that is saved. A resumed run keeps the
/// options that are `fixed`.
template <class F>
void each_train_option(F&& option) {
  using O = TrainOptions;
  constexpr std::int64_t kMany = 1'000'000'000;
  const OptionRules count{.check = between<std::int64_t>(1, kMany)},
      from_0{.check = between<std::int64_t>(0, kMany)}, fraction{.check = between(0.0, 0.999)};
  option("--text", &O::text, "Text files to train on", OptionRules(), true);
  option("--tokens", &O::tokens, "Files of tokens to train on instead, in llm.c's format", OptionRules(),
         true);
  option("--val", &O::held_out,
         "Files of the same kind to measure the loss on; without it, the end of the training files",
         OptionRules(), true);
  option("--val-part", &O::held_out_part, "The part of the training files that is held out", fraction, true);
  option("--tokenizer", &O::tokenizer, "A tokenizer.json; without it, a vocabulary is trained from the text",
         OptionRules(), true);
  option("--vocab-size", &O::vocab_size,
         "Tokens of the trained vocabulary, or of the token files; 0 takes the 256 bytes and <|endoftext|>",
         from_0, true);
  option("--separator", &O::separator,
         "The token with which documents begin in token files; -1 if there is none",
         OptionRules{.check = between<std::int64_t>(-1, kMany)}, true);
  option("--no-document-masks", &O::no_document_masks, "Tokens also see the documents before theirs",
         OptionRules(), true);

  option("--family", &O::family, "The architecture", OptionRules{.check = one_of({"llama", "gpt2"})}, true);
  option("--layers", &O::layers, "Blocks", count, true);
  option("--width", &O::width, "Features of a token", count, true);
  option("--heads", &O::heads, "Heads of the attention", count, true);
  option("--kv-heads", &O::kv_heads, "Heads of keys and values (llama); 0 takes as many as --heads", from_0,
         true);
  option("--context", &O::context, "Tokens of a sequence", count, true);
  option("--dropout", &O::dropout, "Dropout (gpt2)", fraction, true);
  option("--config", &O::config, "A config.json of Hugging Face instead of the options above", OptionRules(),
         true);
  option("--init", &O::init, "Begin with this model: a GGUF file or a folder", OptionRules(), true);

  option("--steps", &O::steps, "Steps of the optimizer", count, true);
  option("--batch-size", &O::batch_size, "Sequences in a step, over all ranks", count, true);
  option("--accumulate", &O::accumulate,
         "Parts of a step that are computed one after another, to need less memory; the micro-batches of a "
         "pipeline",
         count, true);
  option("--lr", &O::lr, "Learning rate after the warm-up", OptionRules{.check = between(1e-12, 1e3)}, true);
  option("--warmup", &O::warmup, "Steps in which the learning rate rises to --lr", from_0, true);
  option("--min-lr", &O::min_lr, "The part of --lr to which it falls along a cosine",
         OptionRules{.check = between(0.0, 1.0)}, true);
  option("--weight-decay", &O::weight_decay, "Weight decay of AdamW, for matrices alone",
         OptionRules{.check = between(0.0, 1e3)}, true);
  option("--beta2", &O::beta2, "AdamW's beta2; beta1 is 0.9", fraction, true);
  option("--clip", &O::clip, "The largest norm of the gradients; 0 does not clip",
         OptionRules{.check = between(0.0, 1e9)}, true);
  option("--seed", &O::seed, "Seed of initial weights, dropout and the order of the text",
         OptionRules{.check = between<std::uint64_t>(0, UINT64_MAX)}, true);
  option("--precision", &O::precision, kPrecisionHelp, OptionRules{.check = one_of(precisions())}, true);
  option(
      "--parallel", &O::parallel,
      "none, or a mode: dp: several devices of one process; pipeline: the blocks on several devices of one "
      "process; or with tapestry-run ddp; zero1, which divides the optimizer's state; zero2, gradients too; "
      "fsdp, "
      "parameters too; pipeline=N, the blocks on N ranks; or another text, such as replicate=4:zero=1 or "
      "pipeline=2,replicate=2. A resumed run may have another mode",
      OptionRules{.check = parallel_text()}, false);
  option(
      "--stages", &O::stages,
      "Devices of dp, pipeline and other modes over devices of one process, if --parallel does not say how "
      "many",
      OptionRules{.check = between(1, 64)}, false);
  option("--device", &O::device, "cpu, cuda, cuda:0, ...", OptionRules(), false);
  option("--threads", &O::threads, "Compute threads; 0 uses OMP_NUM_THREADS, or all cores",
         OptionRules{.check = between(0, 1024)}, false);

  option("--log-every", &O::log_every, "Steps from one line of metrics.jsonl to the next", count, true);
  option("--eval-every", &O::eval_every, "Steps from one measurement of the held-out loss to the next", count,
         true);
  option("--eval-windows", &O::eval_windows, "Sequences of the held-out text to measure; 0 takes all", from_0,
         true);
  option("--sample", &O::sample_tokens, "Tokens to write after each measurement; 0 writes none", from_0,
         false);
  option("--sample-prompt", &O::sample_prompt, "What the samples continue", OptionRules(), false);
  option("--checkpoint-every", &O::checkpoint_every,
         "Save a checkpoint also between measurements: 200steps, 10minutes or none", OptionRules(), false);
}

/// Calls fn(name, member) for the members that are no options, but are saved with them.
template <class F>
void each_train_fact(F&& fn) {
  fn("train_tokens", &TrainOptions::train_tokens);
  fn("held_out_tokens", &TrainOptions::held_out_tokens);
  fn("text_hash", &TrainOptions::text_hash);
}

/// Adds all options to the command line. They are stored in `options`.
void add_train_options(CommandLine& line, TrainOptions& options);
/// If the command line resumes a run, replaces `options` by the run's, and by the command line's where an
/// option does not change the result. Throws UsageError if another one differs, and IoError if there is no
/// run or its config.json is damaged.
void resume_options(const CommandLine& line, TrainOptions& options);

std::string to_json(const TrainOptions& options);
/// Throws IoError.
TrainOptions train_options_from_json(const std::string& text, const std::string& source);

}  // namespace apps::gpt
