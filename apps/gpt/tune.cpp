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
#include <string_view>

#include "tapestry/apps/common/checkpoint_interval.h"
#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/live_page.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/apps/common/progress.h"
#include "tapestry/apps/common/run_folder.h"
#include "tapestry/apps/common/stop_request.h"
#include "tapestry/apps/gpt/commands.h"
#include "tapestry/apps/gpt/run_log.h"
#include "tapestry/apps/gpt/tune_data.h"
#include "tapestry/apps/gpt/tune_parallel.h"
#include "tapestry/core/atomic_file.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/parallel.h"
#include "tapestry/data/sampler.h"
#include "tapestry/data/tokenizer/chat.h"
#include "tapestry/distributed/checkpoint/checkpointer.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/zero/make_optimizer.h"
#include "tapestry/nn/clip.h"
#include "tapestry/nn/models/generate.h"
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

  option("--date", &O::date,
         "The date in the system block of Llama 3.2's chat template, as 05 Dec 2024; by default the day on "
         "which "
         "the run begins",
         OptionRules());

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
  option("--batch-size", &O::batch_size, "Sequences that are computed at a time, over all ranks", count);
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
  option("--precision", &O::precision, kPrecisionHelp, OptionRules{.check = one_of(precisions())});
  option("--parallel", &O::parallel,
         "none, or a mode: dp or pipeline, several devices of one process; or with tapestry-run ddp; zero1; "
         "zero2; or fsdp, which divides the parameters, frozen ones too (weights that stay packed are in "
         "every process); or a text such as replicate=2:zero=1 or pipeline=2,shard=2. A resumed run may have "
         "another mode",
         OptionRules{.check = parallel_text()});
  option("--devices", &O::devices,
         "Devices of dp, pipeline and other modes over devices of one process, if --parallel does not say "
         "how many",
         OptionRules{.check = between(1, 64)});
  option("--threads", &O::threads, "Compute threads; 0 uses OMP_NUM_THREADS, or all cores",
         OptionRules{.check = between(0, 1024)});
  option("--log-every", &O::log_every, "Steps from one line of metrics.jsonl to the next", count);
  option("--eval-every", &O::eval_every, "Steps from one measurement of the held-out loss to the next",
         count);
  option("--eval-sequences", &O::eval_sequences, "Held-out sequences to measure; 0 takes all", from_0);
  option("--sample", &O::sample_tokens, "Tokens to write after each measurement; 0 writes none", from_0);
  option("--sample-prompt", &O::sample_prompt,
         "What the samples continue, or, with --chats, the message that they answer", OptionRules());
  option("--checkpoint-every", &O::checkpoint_every,
         "Save a checkpoint also between measurements: 200steps, 10minutes or none", OptionRules());
}

void read_json(const std::string& path, TuneOptions& o) {
  const Json json = Json::parse(read_text(path), nullptr, false);
  check<IoError>(json.is_object(), "[gpt tune] ", path, " is not a JSON object; restore the file");
  each_option([&](const char* name, auto member, const char*, const OptionRules&) {
    if ((may_lack(name) || std::string_view(name) == "--date") && !json.contains(name)) return;
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

// Replaces the options by those of the run that the command line resumes.
void resume_options(const CommandLine& line, TuneOptions& o) {
  if (!line.given("--resume")) return;
  if (o.run_dir.empty())
    throw UsageError("[gpt tune] --resume needs --run-dir, the folder of the run to resume");
  const std::string path = o.run_dir + "/config.json";
  if (o.resume == "auto" && !std::filesystem::exists(path)) return;
  TuneOptions run;
  read_json(path, run);
  // The mode and the devices may change: checkpoints load in every mode.
  if (line.given("--parallel")) run.parallel = o.parallel;
  if (line.given("--devices")) run.devices = o.devices;
  each_option([&](const char* name, auto member, const char*, const OptionRules&) {
    if (line.given(name) && o.*member != run.*member)
      fail<UsageError>("[gpt tune] the run in ", o.run_dir, " has ", name, " ", Json(run.*member).dump(),
                       " and cannot be resumed with ", Json(o.*member).dump(), "; leave ", name,
                       " out, or start a new run in another --run-dir");
  });
  run.run_dir = o.run_dir;
  run.resume = o.resume;
  run.live = o.live;
  run.resumed = true;
  o = run;
}

// An adapter has its own options, which the run takes over. Throws if the command line has others.
void take_adapter_options(TuneOptions& o, const nn::LoraOptions& adapter) {
  const auto take = [&](const char* name, auto& ours, const auto& theirs) {
    if (std::find(o.given.begin(), o.given.end(), name) != o.given.end() && ours != theirs)
      fail<UsageError>("[gpt tune] the adapter ", o.adapter, " has ", name, " ", Json(theirs).dump(),
                       ", not ", Json(ours).dump(), "; leave ", name,
                       " out, or leave --adapter out and begin a new one");
    ours = theirs;
  };
  take("--rank", o.rank, adapter.r);
  take("--alpha", o.alpha, adapter.lora_alpha);
  take("--lora-dropout", o.dropout, adapter.lora_dropout);
  take("--rslora", o.rslora, adapter.use_rslora);
  std::vector<std::string> targets = adapter.target_modules;
  if (!adapter.target_pattern.empty()) targets = {adapter.target_pattern};
  std::sort(targets.begin(), targets.end());
  std::sort(o.targets.begin(), o.targets.end());
  take("--targets", o.targets, targets);
}

class Run {
 public:
  Run(TuneOptions options, const StopRequest& signals)
      : o_(std::move(options)), signals_(signals), parallel_(o_) {}
  int tune();

 private:
  void open_folder();
  void build();
  distributed::ShardedTraining training() {
    return parallel_.saved({trained_.get(), optimizer_.get(), schedule_.get(), &scaler_}, o_.precision);
  }
  int train_steps();
  double train_step();
  bool report();
  std::string save();
  void write_sample();
  void write_result();
  std::vector<std::int64_t> sequences_of(std::int64_t step);

  TuneOptions o_;
  const StopRequest& signals_;
  TuneParallel parallel_;
  RunFolder folder_;
  std::optional<Pretrained> p_;
  std::optional<TuneData> data_;
  std::unique_ptr<Trained> trained_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::GradScaler scaler_{scaler_options(o_.precision)};
  std::unique_ptr<optim::LambdaLR> schedule_;
  std::optional<distributed::Checkpointer> checkpoints_;
  std::optional<Progress> progress_;
  std::optional<LivePage> live_;
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
                                .whole_text = o_.whole_text,
                                .date = o_.date},
                               *p_));
  manual_seed(o_.seed);
  if (o_.method == "lora") {
    if (!o_.adapter.empty()) {
      take_adapter_options(o_, nn::load_lora(*p_->model, o_.adapter));
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
  parallel_.wrap(*p_->model);
  parallel_.seed_dropout(o_.seed);
  p_->model->train();
  trained_ = std::make_unique<Trained>(*p_->model);
  optimizer_ = distributed::make_optimizer<optim::AdamW>(parallel_.strategy(), trained_->parameters(),
                                                         {.lr = o_.lr, .weight_decay = o_.weight_decay});
  schedule_ = std::make_unique<optim::LambdaLR>(
      *optimizer_, optim::LambdaLR::Factor([this](std::int64_t step) { return rate_at(o_, step); }));
}

// The sequences of a step in an endless sequence of passes over the data, each in an order of its own.
std::vector<std::int64_t> Run::sequences_of(std::int64_t step) {
  const std::int64_t count = o_.accumulate * o_.batch_size;
  std::vector<std::int64_t> list;
  for (std::int64_t i = step * count; i < (step + 1) * count; ++i) {
    const std::int64_t size = data_->train.size(), epoch = i / size;
    if (epoch != epoch_) order_ = data::RandomSampler(size, o_.seed).indices(epoch_ = epoch);
    list.push_back(order_[static_cast<std::size_t>(i % size)]);
  }
  return list;
}

// One step of the optimizer. Returns the mean loss of all targets of its batches.
double Run::train_step() {
  optimizer_->zero_grad();
  const std::optional<double> loss = parallel_.forward_backward(data_->train, sequences_of(step_), scaler_);
  if (loss) {
    check(std::isfinite(*loss), "[gpt tune] the loss is ", *loss, " in step ", step_ + 1,
          "; try a smaller --lr");
    scaler_.unscale_(*optimizer_);
    const double norm = nn::clip_grad_norm_(trained_->parameters(), o_.clip > 0 ? o_.clip : INFINITY).item();
    // The norm of a step that the scaler skips is infinite or NaN, which no JSON file can hold.
    if (!scaler_.is_enabled() || std::isfinite(norm)) grad_norm_ = norm;
    scaler_.step(*optimizer_);
    scaler_.update();
  }
  schedule_->step();
  return loss.value_or(0);
}

std::string Run::save() {
  interval_->restart();
  char tally[150];
  std::snprintf(tally, sizeof tally, "%lld %a %a %a %a", static_cast<long long>(reported_), loss_, losses_,
                seconds_, grad_norm_);
  return checkpoints_->save(training(), {.step = step_, .extra = {{"gpt.tune", tally}}});
}

void Run::write_sample() {
  if (o_.sample_tokens == 0) return;
  std::vector<std::int64_t> prompt;
  if (!o_.chats.empty() && p_->chat) {
    const std::string message = o_.sample_prompt.empty() ? "Hello!" : o_.sample_prompt;
    prompt = data::ChatTemplate(p_->tokenizer, *p_->chat, o_.date).encode({{"user", message}}).ids;
  } else {
    prompt = p_->tokenizer.encode(o_.sample_prompt);
    if (prompt.empty() && p_->first >= 0) prompt.push_back(p_->first);
  }
  if (prompt.empty() || static_cast<std::int64_t>(prompt.size()) >= p_->model->context_length()) return;
  nn::Sampler sampler({.temperature = 0.8, .top_k = 40, .seed = o_.seed + static_cast<std::uint64_t>(step_)});
  const std::vector<std::int64_t> words =
      parallel_.generate(prompt, {.max_new_tokens = o_.sample_tokens, .stop = p_->stop}, sampler);
  if (!parallel_.first()) return;
  const std::string sample = o_.sample_prompt + (o_.chats.empty() ? "" : " -> ") +
                             p_->tokenizer.decode(words, {.skip_special = true});
  progress_->line("sample: " + sample);
  live_->text_sample(step_, sample);
}

// Measures and writes what is due. Returns false if a signal came meanwhile.
bool Run::report() {
  const bool evaluates = data_->held_out && (step_ % o_.eval_every == 0 || step_ == o_.steps);
  std::optional<double> loss;
  if (evaluates) {
    const std::int64_t all = data_->held_out->size(), most = o_.eval_sequences > 0 ? o_.eval_sequences : all;
    std::int64_t done = 0;
    const auto note = [&] {
      progress_->note(
          concat({"measuring the held-out loss: ", done, " of ", std::min(most, all), " sequences"}));
    };
    note();
    loss = parallel_.held_out_loss(*data_->held_out, o_.eval_sequences, [&] {
      done = std::min(done + parallel_.size(), std::min(most, all));
      note();
      return parallel_.agree({signals_.signal()}).signal != 0;
    });
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
    live_->evaluated(step_, *loss);
  }
  if (step_ > 0) write_sample();
  if (step_ > 0) save();
  return true;
}

void Run::write_result() {
  const auto path = [&](const char* name) { return o_.run_dir + "/" + name; };
  const auto write_model = [&](const nn::LanguageModel& model) {
    write_folder(path("model"), true, [&](const std::string& folder) {
      nn::save_language_model(folder, model);
      TokenizerFiles files = read_tokenizer_files(o_.model, nn::ModelWeights(o_.model));
      if (!o_.tokenizer.empty()) files.parts = data::read_tokenizer_parts(o_.tokenizer);
      write_tokenizer_files(folder, files, model.context_length());
    });
    progress_->line("wrote " + path("model") + "; try: gpt generate --model " + path("model"));
  };
  const bool lora = o_.method == "lora", divided = parallel_.strategy().builds_in_parts();
  const nn::StateDict full = divided ? parallel_.strategy().whole_state() : nn::StateDict();
  distributed::on_rank_0(*parallel_.group(), "gpt tune", [&] {
    if (!lora && !divided) return write_model(*p_->model);
    if (!lora) {
      const auto whole = nn::load_language_model(o_.model);
      whole->load_state_dict(full);
      return write_model(*whole);
    }
    remove_abandoned_files(path("adapter"), [](const std::string&) { return true; });
    nn::save_lora(path("adapter"), *p_->model, o_.model, full);
    progress_->line("wrote " + path("adapter") + ", which PEFT loads");
    if (!o_.merge) return;
    // Sums with the adapters do not fit into blocks, so the base is loaded again, as f32.
    const Pretrained merged = load_pretrained(
        {.model = o_.model, .tokenizer = o_.tokenizer, .adapter = path("adapter"), .weights = "f32"});
    nn::merge_lora(*merged.model);
    nn::remove_lora(*merged.model);
    write_model(*merged.model);
  });
}

void Run::open_folder() {
  distributed::on_rank_0(*parallel_.group(), "gpt tune", [&] {
    if (o_.run_dir.empty()) {
      char when[32];
      const std::time_t now = std::time(nullptr);
      std::strftime(when, sizeof when, "%Y%m%d-%H%M%S", std::localtime(&now));
      o_.run_dir = std::string("runs/tune-") + when;
    }
    folder_ = RunFolder(o_.run_dir, o_.resumed);
  });
}

int Run::tune() {
  if (o_.resumed) open_folder();
  if (o_.model.empty()) throw UsageError("[gpt tune] pass --model FILE or FOLDER");
  if (o_.chats.empty() == o_.text.empty())
    throw UsageError("[gpt tune] pass --chats FILE.jsonl, or --text FILE");
  if (o_.date.empty()) o_.date = data::chat_date();
  if (o_.threads > 0) set_num_threads(o_.threads);
  o_.threads = get_num_threads();  // saved, so that a resumed run uses the same number
  interval_ = CheckpointInterval::parse(o_.checkpoint_every);
  if (!interval_)
    throw UsageError("[gpt tune] --checkpoint-every is " + o_.checkpoint_every +
                     "; write 200steps, 10minutes or none");
  build();
  if (!o_.resumed) open_folder();
  folder_.write("config.json", to_json(o_));
  checkpoints_.emplace(o_.run_dir + "/checkpoints", parallel_.group(),
                       nn::CheckpointerOptions{.keep_last = 2, .keep_best = false});
  progress_.emplace(o_.steps, o_.steps, 1, parallel_.first());
  bool resumed = false;
  if (const auto last = checkpoints_->resume(training())) {
    long long reported = 0;
    const auto tally = last->extra.find("gpt.tune");
    check<IoError>(tally != last->extra.end() &&
                       std::sscanf(tally->second.c_str(), "%lld %la %la %la %la", &reported, &loss_, &losses_,
                                   &seconds_, &grad_norm_) >= 4 &&  // older runs lack the norm
                       last->step <= o_.steps &&
                       reported <= last->step,
                   "[gpt tune] the checkpoint is not one of this run; choose another --run-dir");
    step_ = last->step, reported_ = reported;
    progress_->start_at(step_);
    resumed = true;
    if (parallel_.first()) metrics_ = read_metrics(folder_.file("metrics.jsonl"), reported_);
  }
  std::int64_t parameters = 0, trained = 0;
  for (const nn::Parameter& p : p_->model->parameters()) {
    const std::int64_t count = p.layout() ? p.layout()->whole_sizes().numel() : p->numel();
    parameters += count, trained += p->requires_grad() ? count : 0;
  }
  progress_->line(concat({p_->model->type_name(), " of ", parameters, " parameters, of which ", trained,
                          " are trained; ", data_->documents, " documents in ", data_->train.size(),
                          " sequences of ", o_.length, ", ", data_->train.targets(), " targets; ",
                          data_->held_out ? data_->held_out->size() : 0, " sequences held out"}));
  progress_->line(concat({"seed ", o_.seed, ", threads ", o_.threads,
                          parallel_.size() > 1 ? concat({", ranks ", parallel_.size()}) : std::string(),
                          ", run folder ", o_.run_dir}));
  if (resumed) progress_->line(concat({"resumed after step ", step_, " of ", o_.steps}));
  live_.emplace(
      parallel_, folder_,
      LiveRun{.program = "gpt tune",
              .title = concat({p_->model->type_name(), " of ", parameters, " parameters, ", o_.method}),
              .unit = "tokens",
              .held_out = "held-out sequences",
              .steps = o_.steps,
              .facts = {{"mode", o_.parallel},
                        {"ranks", std::to_string(parallel_.size())},
                        {"sequences a step", std::to_string(o_.batch_size * o_.accumulate)},
                        {"seed", std::to_string(o_.seed)},
                        {"threads", std::to_string(o_.threads)}}});
  if (!live_->address().empty()) progress_->line(live_->address());
  tell(*live_, metrics_);
  live_->resume_at(seconds_);
  return live_->watch([this] { return train_steps(); });
}

int Run::train_steps() {
  const auto stopped_by = [&](int signal) {
    const std::string path = save();
    const std::string what = "stopped by " + signal_name(signal) + " and saved " + path +
                             "; continue with: gpt tune --resume --run-dir " + o_.run_dir;
    progress_->line(what);
    live_->finish("stopped", what);
    return 128 + signal;
  };
  while (true) {
    const bool due = step_ % o_.log_every == 0 || step_ % o_.eval_every == 0 || step_ == o_.steps;
    if (due && reported_ < step_ && !report())
      return stopped_by(std::max(parallel_.agree({signals_.signal()}).signal, signals_.signal()));
    if (step_ == o_.steps) break;
    const Clock::time_point before = Clock::now();
    const double loss = train_step();
    ++step_;
    loss_ += loss, ++losses_;
    seconds_ += std::chrono::duration<double>(Clock::now() - before).count();
    char text[100];
    std::snprintf(text, sizeof text, "loss %.4f  lr %.2g", loss, schedule_->last_lr()[0]);
    const std::int64_t tokens = o_.accumulate * o_.batch_size * o_.length;
    progress_->step(tokens, "tokens", text);
    live_->step({.step = step_, .loss = loss, .samples = tokens, .seconds = seconds_});
    const Request agreed = parallel_.agree({signals_.signal(), interval_->elapsed()});
    if (agreed.signal) return stopped_by(agreed.signal);
    if (agreed.save || interval_->due_at(step_)) save();
  }
  write_result();
  live_->finish("done", {});
  return 0;
}

}  // namespace

std::string to_json(const TuneOptions& o) {
  Json json;
  each_option(
      [&](const char* name, auto member, const char*, const OptionRules&) { json[name] = o.*member; });
  return json.dump(2) + "\n";
}

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
  line.add("--live", o.live, kLiveHelp);
  line.add("--resume", o.resume, "Continue the run in --run-dir; with auto, start one if the folder has none",
           {.check = one_of({"auto", ""}), .bare = true});
  line.footer(
      "SIGINT (Ctrl-C), SIGTERM and SIGHUP stop the run after the current step and save a checkpoint; a "
      "second\nsignal ends it at once.\n"
      "Exit status: 0 done, 1 failed, 2 wrong options, 128 + N stopped by signal N (130 after Ctrl-C).");
  return line.run(argc, argv, [&] {
    for (auto* files : {&o.chats, &o.text, &o.held_out})
      for (std::string& path : *files) path = std::filesystem::absolute(path).lexically_normal().string();
    for (std::string* path : {&o.model, &o.tokenizer, &o.adapter})
      if (!path->empty()) *path = std::filesystem::absolute(*path).lexically_normal().string();
    for (const char* const option : {"--rank", "--alpha", "--lora-dropout", "--rslora", "--targets"})
      if (line.given(option)) o.given.push_back(option);
    resume_options(line, o);
    return run_tune(std::move(o));
  });
}

}  // namespace apps::gpt
