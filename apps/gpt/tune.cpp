// gpt tune: goes on training a model, all of its weights or LoRA adapters.
#include "tapestry/apps/gpt/tune.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "tapestry/apps/common/checkpoint_interval.h"
#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/progress.h"
#include "tapestry/apps/common/run_folder.h"
#include "tapestry/apps/common/stop_request.h"
#include "tapestry/apps/gpt/commands.h"
#include "tapestry/apps/gpt/run_log.h"
#include "tapestry/apps/gpt/tune_data.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/parallel.h"
#include "tapestry/data/sampler.h"
#include "tapestry/nn/checkpoint.h"
#include "tapestry/nn/clip.h"
#include "tapestry/nn/models/lora.h"
#include "tapestry/nn/optim/adam.h"
#include "tapestry/nn/optim/factor_schedules.h"

namespace apps::gpt {

using namespace tapestry;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

namespace {

// Calls option(name, member, help, rules) for each option that a run keeps.
template <class F>
void each_option(F&& option) {
  using O = TuneOptions;
  constexpr std::int64_t kMany = 1'000'000'000;
  const OptionRules count{.check = between<std::int64_t>(1, kMany)},
      from_0{.check = between<std::int64_t>(0, kMany)}, fraction{.check = between(0.0, 0.999)};
  option("--model", &O::model, "A GGUF file, or a folder with config.json and model.safetensors",
         OptionRules());
  option("--weights", &O::weights,
         "Whether the frozen weights of a GGUF file stay in its blocks, or become f32",
         OptionRules{.check = one_of({"packed", "f32"})});
  option("--tokenizer", &O::tokenizer, "A tokenizer.json to use instead of the model's", OptionRules());
  option("--chats", &O::chats,
         "JSON lines with \"messages\", or \"prompt\" and \"completion\"; the loss counts the answers",
         OptionRules());
  option("--text", &O::text, "Text files instead", OptionRules());
  option("--val", &O::held_out,
         "Files of the same kind to measure the loss on; without it, the end of the files", OptionRules());
  option("--val-part", &O::held_out_part, "The part of the files that is held out", fraction);
  option("--length", &O::length, "Tokens of a sequence", count);
  option("--truncate", &O::truncate, "Cut conversations that are longer, instead of refusing them",
         OptionRules());
  option("--whole-text", &O::whole_text, "The loss counts prompts too", OptionRules());

  option("--method", &O::method, "lora: adapters; full: all weights",
         OptionRules{.check = one_of({"lora", "full"})});
  option("--adapter", &O::adapter, "Begin with this adapter, a folder of PEFT", OptionRules());
  option("--rank", &O::rank, "Rank of the adapters", OptionRules{.check = between<std::int64_t>(1, 65536)});
  option("--alpha", &O::alpha, "Adapters are multiplied by alpha / rank",
         OptionRules{.check = between(0.0, 1e6)});
  option("--lora-dropout", &O::dropout, "Dropout of the adapters' input", fraction);
  option("--targets", &O::targets, "Names of the layers with adapters; all-linear takes all but the head",
         OptionRules{.commas = true});
  option("--rslora", &O::rslora, "Divide alpha by the square root of the rank", OptionRules());
  option("--merge", &O::merge, "Also write the model with the adapters added to its weights", OptionRules());

  option("--steps", &O::steps, "Steps of the optimizer", count);
  option("--batch-size", &O::batch_size, "Sequences that are computed at a time", count);
  option("--accumulate", &O::accumulate, "Batches of a step", count);
  option("--lr", &O::lr, "Learning rate after the warm-up", OptionRules{.check = between(1e-12, 1e3)});
  option("--warmup", &O::warmup, "Steps in which the learning rate rises to --lr", from_0);
  option("--min-lr", &O::min_lr, "The part of --lr to which it falls along a cosine",
         OptionRules{.check = between(0.0, 1.0)});
  option("--weight-decay", &O::weight_decay, "Weight decay of AdamW",
         OptionRules{.check = between(0.0, 1e3)});
  option("--clip", &O::clip, "The largest norm of the gradients; 0 does not clip",
         OptionRules{.check = between(0.0, 1e9)});
  option("--seed", &O::seed, "Seed of adapters, dropout and the order of the sequences",
         OptionRules{.check = between<std::uint64_t>(0, UINT64_MAX)});
  option("--keep-activations", &O::keep_activations,
         "Keep what backward needs of each block, instead of computing it again: faster, with more memory",
         OptionRules());
  option("--threads", &O::threads, "Compute threads; 0 uses OMP_NUM_THREADS, or all cores",
         OptionRules{.check = between(0, 1024)});
  option("--log-every", &O::log_every, "Steps from one line of metrics.jsonl to the next", count);
  option("--eval-every", &O::eval_every, "Steps from one measurement of the held-out loss to the next",
         count);
  option("--eval-sequences", &O::eval_sequences, "Held-out sequences to measure; 0 takes all", from_0);
  option("--checkpoint-every", &O::checkpoint_every,
         "Save a checkpoint also between measurements: 200steps, 10minutes or none", OptionRules());
}

std::string to_json(const TuneOptions& o) {
  Json json;
  each_option(
      [&](const char* name, auto member, const char*, const OptionRules&) { json[name] = o.*member; });
  return json.dump(2) + "\n";
}
void read_json(const std::string& path, TuneOptions& o) {
  const Json json = Json::parse(read_text(path), nullptr, false);
  check<IoError>(json.is_object(), "[gpt tune] ", path, " is not a JSON object; restore the file");
  each_option([&](const char* name, auto member, const char*, const OptionRules&) {
    try {
      json.at(name).get_to(o.*member);
    } catch (const nlohmann::json::exception&) {
      fail<IoError>("[gpt tune] ", path, ": ", name, " is missing or has a wrong type; restore the file");
    }
  });
}

/// The parameters that are trained, as a module for checkpoints: a frozen base is in the model's file.
struct Trained : nn::Module {
  explicit Trained(const nn::Module& model) {
    for (const auto& [name, slot] : model.named_parameters()) {
      if (!slot->requires_grad()) continue;
      std::string flat = name;
      std::replace(flat.begin(), flat.end(), '.', '/');
      param(flat, slot);
    }
  }
};

double rate_at(const TuneOptions& o, std::int64_t step) {
  if (step < o.warmup) return static_cast<double>(step + 1) / static_cast<double>(o.warmup);
  const double done = static_cast<double>(step - o.warmup) /
                      static_cast<double>(std::max<std::int64_t>(o.steps - o.warmup, 1));
  return o.min_lr + (1 - o.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(done, 1.0)));
}

class Run {
 public:
  Run(TuneOptions options, const StopRequest& signals) : o_(std::move(options)), signals_(signals) {}
  int tune();

 private:
  void build();
  double train_step();
  bool report();
  std::string save();
  void write_result();
  std::vector<std::int64_t> sequences_of(std::int64_t batch);

  TuneOptions o_;
  const StopRequest& signals_;
  RunFolder folder_;
  std::optional<Pretrained> p_;
  std::optional<TuneData> data_;
  std::unique_ptr<Trained> trained_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::unique_ptr<optim::LambdaLR> schedule_;
  std::optional<nn::Checkpointer> checkpoints_;
  std::optional<Progress> progress_;
  std::optional<CheckpointInterval> interval_;
  std::vector<Metrics> metrics_;
  std::vector<std::int64_t> order_;
  std::int64_t epoch_ = -1, step_ = 0, reported_ = -1;
  double loss_ = 0, losses_ = 0, seconds_ = 0, grad_norm_ = 0;
};

void Run::build() {
  // All weights of a model can only be trained as f32.
  const std::string weights = o_.method == "lora" ? o_.weights : "f32";
  p_.emplace(load_pretrained({.model = o_.model, .tokenizer = o_.tokenizer, .weights = weights}));
  check(o_.length <= p_->model->context_length(), "[gpt tune] --length is ", o_.length,
        ", and the context of the model has ", p_->model->context_length(), " tokens");
  data_.emplace(read_tune_data({.chats = o_.chats,
                                .text = o_.text,
                                .held_out = o_.held_out,
                                .held_out_part = o_.held_out_part,
                                .length = o_.length,
                                .truncate = o_.truncate,
                                .whole_text = o_.whole_text},
                               *p_));
  manual_seed(o_.seed);
  if (o_.method == "lora") {
    if (!o_.adapter.empty()) {
      nn::load_lora(*p_->model, o_.adapter);
    } else {
      nn::add_lora(*p_->model, {.r = o_.rank,
                                .lora_alpha = o_.alpha,
                                .lora_dropout = o_.dropout,
                                .target_modules = o_.targets,
                                .use_rslora = o_.rslora});
    }
  } else if (!o_.adapter.empty()) {
    throw UsageError("[gpt tune] --adapter needs --method lora");
  }
  p_->model->train();
  trained_ = std::make_unique<Trained>(*p_->model);
  optimizer_ = std::make_unique<optim::AdamW>(
      trained_->parameters(), optim::AdamW::Options{.lr = o_.lr, .weight_decay = o_.weight_decay});
  schedule_ = std::make_unique<optim::LambdaLR>(
      *optimizer_, optim::LambdaLR::Factor([this](std::int64_t step) { return rate_at(o_, step); }));
}

// The sequences of a batch in an endless sequence of passes over the data, each in an order of its own.
std::vector<std::int64_t> Run::sequences_of(std::int64_t batch) {
  std::vector<std::int64_t> list;
  for (std::int64_t i = batch * o_.batch_size; i < (batch + 1) * o_.batch_size; ++i) {
    const std::int64_t size = data_->train.size(), epoch = i / size;
    if (epoch != epoch_) order_ = data::RandomSampler(size, o_.seed).indices(epoch_ = epoch);
    list.push_back(order_[static_cast<std::size_t>(i % size)]);
  }
  return list;
}

// One step of the optimizer. Returns the mean loss of all targets of its batches.
double Run::train_step() {
  optimizer_->zero_grad();
  std::vector<TuneBatch> batches;
  double targets = 0, loss = 0;
  for (std::int64_t k = 0; k < o_.accumulate; ++k) {
    batches.push_back(tune_batch(data_->train, sequences_of(step_ * o_.accumulate + k)));
    targets += static_cast<double>(batches.back().targets);
  }
  for (const TuneBatch& batch : batches) {
    if (batch.targets == 0) continue;
    nn::TokenContext how = batch.context();
    how.checkpoint = !o_.keep_activations;
    const double part = static_cast<double>(batch.targets) / targets;
    const Tensor mean = (*p_->model)(batch.sequences.ids, how);
    loss += part * mean.item();
    (mean * part).backward();
  }
  check(std::isfinite(loss), "[gpt tune] the loss is ", loss, " in step ", step_ + 1, "; try a smaller --lr");
  if (targets > 0) {
    grad_norm_ = nn::clip_grad_norm_(trained_->parameters(), o_.clip > 0 ? o_.clip : INFINITY).item();
    optimizer_->step();
  }
  schedule_->step();
  return loss;
}

std::string Run::save() {
  interval_->restart();
  char tally[120];
  std::snprintf(tally, sizeof tally, "%lld %a %a %a", static_cast<long long>(reported_), loss_, losses_,
                seconds_);
  return checkpoints_->save({trained_.get(), optimizer_.get(), schedule_.get()},
                            {.step = step_, .extra = {{"gpt.tune", tally}}});
}

// Measures and writes what is due. Returns false if a signal came meanwhile.
bool Run::report() {
  const bool evaluates = data_->held_out && (step_ % o_.eval_every == 0 || step_ == o_.steps);
  std::optional<double> loss;
  if (evaluates) {
    loss = tune_loss(*p_->model, *data_->held_out, o_.eval_sequences, [&] { return signals_.signal() != 0; });
    if (!loss) return false;
  }
  const double mean = losses_ > 0 ? loss_ / losses_ : NAN;
  metrics_.push_back({.step = step_,
                      .tokens = step_ * o_.accumulate * o_.batch_size * o_.length,
                      .train_loss = mean,
                      .held_out = loss,
                      .lr = schedule_->last_lr()[0],
                      .grad_norm = grad_norm_,
                      .seconds = seconds_});
  reported_ = step_;
  loss_ = losses_ = 0;
  std::string lines;
  for (const Metrics& m : metrics_) lines += to_line(m);
  folder_.write("metrics.jsonl", lines);
  if (!evaluates && step_ != o_.steps) return true;
  folder_.write("curves.svg", losses_svg(metrics_, "loss of " + o_.run_dir));
  if (loss) {
    char line[160], before[60] = "";
    if (step_ > 0) std::snprintf(before, sizeof before, "train loss %.4f  ", mean);
    std::snprintf(line, sizeof line, "step %lld/%lld  %sheld-out loss %.4f (perplexity %.2f)  %s",
                  static_cast<long long>(step_), static_cast<long long>(o_.steps), before, *loss,
                  std::exp(*loss), duration(seconds_).c_str());
    progress_->line(line);
  }
  if (step_ > 0) save();
  return true;
}

void Run::write_result() {
  const auto path = [&](const char* name) { return o_.run_dir + "/" + name; };
  const bool lora = o_.method == "lora";
  if (lora) {
    nn::save_lora(path("adapter"), *p_->model, o_.model);
    progress_->line("wrote " + path("adapter") + ", which PEFT loads");
    if (!o_.merge) return;
    // Sums with the adapters do not fit into blocks, so the base is loaded again, as f32.
    *p_ = load_pretrained(
        {.model = o_.model, .tokenizer = o_.tokenizer, .adapter = path("adapter"), .weights = "f32"});
    nn::merge_lora(*p_->model);
    nn::remove_lora(*p_->model);
  }
  write_folder(path("model"), true, [&](const std::string& folder) {
    nn::save_language_model(folder, *p_->model);
    TokenizerFiles files = read_tokenizer_files(o_.model, nn::ModelWeights(o_.model));
    if (!o_.tokenizer.empty()) files.parts = data::read_tokenizer_parts(o_.tokenizer);
    write_tokenizer_files(folder, files, p_->model->context_length());
  });
  progress_->line("wrote " + path("model") + "; try: gpt generate --model " + path("model"));
}

int Run::tune() {
  if (o_.run_dir.empty()) {
    char when[32];
    const std::time_t now = std::time(nullptr);
    std::strftime(when, sizeof when, "%Y%m%d-%H%M%S", std::localtime(&now));
    o_.run_dir = std::string("runs/tune-") + when;
  }
  if (o_.resume) {
    folder_ = RunFolder(o_.run_dir, true);
    read_json(folder_.file("config.json"), o_);
  }
  if (o_.model.empty()) throw UsageError("[gpt tune] pass --model FILE or FOLDER");
  if (o_.chats.empty() == o_.text.empty())
    throw UsageError("[gpt tune] pass --chats FILE.jsonl, or --text FILE");
  if (o_.threads > 0) set_num_threads(o_.threads);
  o_.threads = get_num_threads();  // saved, so that a resumed run uses the same number
  interval_ = CheckpointInterval::parse(o_.checkpoint_every);
  if (!interval_)
    throw UsageError("[gpt tune] --checkpoint-every is " + o_.checkpoint_every +
                     "; write 200steps, 10minutes or none");
  build();
  if (!o_.resume) {
    folder_ = RunFolder(o_.run_dir, false);
    folder_.write("config.json", to_json(o_));
  }
  checkpoints_.emplace(o_.run_dir + "/checkpoints",
                       nn::CheckpointerOptions{.keep_last = 2, .keep_best = false});
  progress_.emplace(o_.steps, o_.steps, 1);
  bool resumed = false;
  if (const auto last = checkpoints_->resume({trained_.get(), optimizer_.get(), schedule_.get()})) {
    long long reported = 0;
    const auto tally = last->extra.find("gpt.tune");
    check<IoError>(tally != last->extra.end() &&
                       std::sscanf(tally->second.c_str(), "%lld %la %la %la", &reported, &loss_, &losses_,
                                   &seconds_) == 4 &&
                       last->step <= o_.steps && reported <= last->step,
                   "[gpt tune] the checkpoint is not one of this run; choose another --run-dir");
    step_ = last->step, reported_ = reported;
    progress_->start_at(step_);
    resumed = true;
    metrics_ = read_metrics(folder_.file("metrics.jsonl"), reported_);
  }
  std::int64_t parameters = 0, trained = 0;
  for (const nn::Parameter& p : p_->model->parameters())
    parameters += p->numel(), trained += p->requires_grad() ? p->numel() : 0;
  progress_->line(concat({p_->model->type_name(), " of ", parameters, " parameters, of which ", trained,
                          " are trained; ", data_->documents, " documents in ", data_->train.size(),
                          " sequences of ", o_.length, ", ", data_->train.targets(), " targets; ",
                          data_->held_out ? data_->held_out->size() : 0, " sequences held out"}));
  progress_->line(concat({"seed ", o_.seed, ", threads ", o_.threads, ", run folder ", o_.run_dir}));
  if (resumed) progress_->line(concat({"resumed after step ", step_, " of ", o_.steps}));

  const auto stopped = [&] {
    const std::string path = save();
    progress_->line("stopped by " + signal_name(signals_.signal()) + " and saved " + path +
                    "; continue with: gpt tune --resume --run-dir " + o_.run_dir);
    return 128 + signals_.signal();
  };
  while (true) {
    const bool due = step_ % o_.log_every == 0 || step_ % o_.eval_every == 0 || step_ == o_.steps;
    if (due && reported_ < step_ && !report()) return stopped();
    if (step_ == o_.steps) break;
    const Clock::time_point before = Clock::now();
    const double loss = train_step();
    ++step_;
    loss_ += loss, ++losses_;
    seconds_ += std::chrono::duration<double>(Clock::now() - before).count();
    char text[100];
    std::snprintf(text, sizeof text, "loss %.4f  lr %.2g", loss, schedule_->last_lr()[0]);
    progress_->step(o_.accumulate * o_.batch_size * o_.length, "tokens", text);
    if (signals_.signal()) return stopped();
    if (interval_->due_at(step_) || interval_->elapsed()) save();
  }
  write_result();
  return 0;
}

}  // namespace

int run_tune(TuneOptions options) {
  const StopRequest signals;  // must be constructed before any thread is started
  return Run(std::move(options), signals).tune();
}

int tune(int argc, char** argv) {
  TuneOptions o;
  CommandLine line(
      "gpt tune",
      "Goes on training a model on conversations or text: LoRA adapters beside frozen weights, or all "
      "weights. The run folder gets checkpoints, metrics.jsonl, curves.svg, and at the end "
      "adapter/, in PEFT's format, or model/.");
  each_option([&](const char* name, auto member, const char* text, const OptionRules& rules) {
    line.add(name, o.*member, text, rules);
  });
  line.add("--run-dir", o.run_dir, "The run folder; without it runs/tune-DATE");
  line.add("--resume", o.resume, "Continue the run of --run-dir, with its options");
  line.footer(
      "SIGINT (Ctrl-C), SIGTERM and SIGHUP stop the run after the current step and save a checkpoint; a "
      "second\nsignal ends it at once.\n"
      "Exit status: 0 done, 1 failed, 2 wrong options, 128 + N stopped by signal N (130 after Ctrl-C).");
  return line.run(argc, argv, [&] {
    if (o.resume) {
      if (o.run_dir.empty()) throw UsageError("[gpt tune] --resume needs --run-dir");
      each_option([&](const char* name, auto, const char*, const OptionRules&) {
        if (line.given(name))
          throw UsageError(std::string("[gpt tune] a resumed run keeps its options; leave out ") + name);
      });
    }
    for (auto* files : {&o.chats, &o.text, &o.held_out})
      for (std::string& path : *files) path = std::filesystem::absolute(path).lexically_normal().string();
    for (std::string* path : {&o.model, &o.tokenizer, &o.adapter})
      if (!path->empty()) *path = std::filesystem::absolute(*path).lexically_normal().string();
    return run_tune(std::move(o));
  });
}

}  // namespace apps::gpt
