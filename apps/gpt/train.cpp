// gpt train: a language model from scratch.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <numbers>
#include <optional>
#include <variant>

#include "tapestry/apps/common/checkpoint_interval.h"
#include "tapestry/apps/common/live_page.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/apps/common/progress.h"
#include "tapestry/apps/common/run_folder.h"
#include "tapestry/apps/common/stop_request.h"
#include "tapestry/apps/gpt/commands.h"
#include "tapestry/apps/gpt/corpus.h"
#include "tapestry/apps/gpt/model_files.h"
#include "tapestry/apps/gpt/parallel.h"
#include "tapestry/apps/gpt/run_log.h"
#include "tapestry/apps/gpt/sampling.h"
#include "tapestry/apps/gpt/train_options.h"
#include "tapestry/core/atomic_file.h"
#include "tapestry/core/context.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/parallel.h"
#include "tapestry/distributed/checkpoint/checkpointer.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/nn/clip.h"
#include "tapestry/nn/optim/factor_schedules.h"

namespace apps::gpt {

using namespace tapestry;
using Clock = std::chrono::steady_clock;

namespace {

using Config = std::variant<nn::LlamaConfig, nn::Gpt2Config, nn::OlmoeConfig>;

std::unique_ptr<nn::LanguageModel> build(const Config& config) {
  if (const auto* llama = std::get_if<nn::LlamaConfig>(&config)) return std::make_unique<nn::Llama>(*llama);
  if (const auto* olmoe = std::get_if<nn::OlmoeConfig>(&config)) return std::make_unique<nn::Olmoe>(*olmoe);
  return std::make_unique<nn::Gpt2>(std::get<nn::Gpt2Config>(config));
}

std::string text_of(const Config& config) {
  return std::visit([](const auto& c) { return c.to_hf_json(); }, config);
}
std::int64_t vocab_of(const Config& config) {
  return std::visit([](const auto& c) { return c.vocab_size; }, config);
}

// The configuration of a config.json, or of the model that training begins with.
Config read_config(const std::string& path) {
  check<IoError>(std::filesystem::exists(path), "[gpt train] there is no ", path);
  if (path.ends_with(".gguf")) {
    const GgufFile file(path);
    if (file.metadata().string("general.architecture") == "gpt2") return nn::Gpt2Config::from_gguf(file);
    return nn::LlamaConfig::from_gguf(file);
  }
  const std::string type = nn::model_type_of(path);
  if (type == "gpt2") return nn::Gpt2Config::from_hf_json(path);
  if (type == "olmoe") return nn::OlmoeConfig::from_hf_json(path);
  return nn::LlamaConfig::from_hf_json(path);
}

Config config_of(const TrainOptions& o, std::int64_t vocab, std::int64_t separator) {
  const auto divides = [&](const char* what, std::int64_t part) {
    if (o.width % part != 0)
      fail<UsageError>("[gpt train] --width is ", o.width, ", which cannot be divided into ", part, " ",
                       what);
  };
  divides("heads", o.heads);
  if (o.family == "gpt2") {
    nn::Gpt2Config c;
    c.vocab_size = vocab, c.n_positions = o.context, c.n_embd = o.width, c.n_layer = o.layers,
    c.n_head = o.heads;
    c.n_inner = 4 * o.width;
    c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = o.dropout;
    c.bos_token_id = c.eos_token_id = separator;
    return c;
  }
  if (o.dropout > 0)
    fail<UsageError>("[gpt train] --dropout is an option of the family gpt2; llama has none");
  nn::LlamaConfig c;
  c.vocab_size = vocab, c.hidden_size = o.width, c.num_hidden_layers = o.layers,
  c.num_attention_heads = o.heads;
  c.num_key_value_heads = o.kv_heads > 0 ? o.kv_heads : o.heads;
  if (c.num_attention_heads % c.num_key_value_heads != 0 || o.width / o.heads % 2 != 0)
    fail<UsageError>(
        "[gpt train] --heads must be a multiple of --kv-heads, and --width / --heads an even number");
  c.head_dim = o.width / o.heads;
  // SwiGLU has three matrices: 8/3 of the width gives it as many weights as an MLP of 4 times the width.
  c.intermediate_size = (8 * o.width / 3 + 15) / 16 * 16;
  c.max_position_embeddings = o.context;
  c.tie_word_embeddings = true;
  c.bos_token_id = c.eos_token_id = separator;
  return c;
}

std::uint64_t hash_of(const Corpus& corpus) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto* tokens : {&corpus.train, &corpus.held_out})
    for (const std::int32_t token : *tokens)
      hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x100000001b3u;
  return hash;
}

// The learning rate over the steps, as a part of the highest one: a line from 0, then a cosine.
double rate_at(const TrainOptions& o, std::int64_t step) {
  if (step < o.warmup) return static_cast<double>(step + 1) / static_cast<double>(o.warmup);
  const double done = static_cast<double>(step - o.warmup) /
                      static_cast<double>(std::max<std::int64_t>(o.steps - o.warmup, 1));
  return o.min_lr + (1 - o.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(done, 1.0)));
}

// How far a run has come, beside what the library's checkpoint has.
struct Position {
  std::int64_t reported = 0;   // the last step with a line in metrics.jsonl
  double loss = 0, count = 0;  // of the steps since then; those of all ranks add up
  double grad_norm = 0;        // of the last step
  double seconds = 0;

  StringMap save() const {
    char tally[140];
    std::snprintf(tally, sizeof tally, "%lld %a %a %a", static_cast<long long>(reported), loss, count,
                  grad_norm);
    return {{"gpt.tally", tally}, {"seconds", std::to_string(seconds)}};
  }
  static Position load(const nn::Progress& saved) {
    Position p;
    long long at = 0;
    const auto tally = saved.extra.find("gpt.tally"), seconds = saved.extra.find("seconds");
    check<IoError>(tally != saved.extra.end() && seconds != saved.extra.end() &&
                       std::sscanf(tally->second.c_str(), "%lld %la %la %la", &at, &p.loss, &p.count,
                                   &p.grad_norm) == 4 &&
                       at >= 0 && at <= saved.step,
                   "[gpt train] the checkpoint is not one of this program; choose another --run-dir");
    p.reported = at;
    p.seconds = std::atof(seconds->second.c_str());
    return p;
  }
};

class Run {
 public:
  Run(TrainOptions options, const StopRequest& signals)
      : o_(std::move(options)), signals_(signals), parallel_(o_) {}
  int train();

 private:
  void open_folder();
  void read_text();
  void build_model();
  bool due(std::int64_t step) const {
    return step > 0 && (step % o_.log_every == 0 || step % o_.eval_every == 0 || step == o_.steps);
  }
  distributed::ShardedTraining training() {
    return parallel_.saved({model_.get(), optimizer_.get(), schedule_.get(), &scaler_}, o_.precision);
  }
  int train_steps();
  bool report();
  std::string save(std::optional<double> loss = {});
  void write_sample();
  void write_model();
  int stopped_by(int signal);

  TrainOptions o_;
  const StopRequest& signals_;
  Parallel parallel_;
  RunFolder folder_;
  Corpus corpus_;
  Config config_;
  std::unique_ptr<nn::LanguageModel> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::LambdaLR> schedule_;
  optim::GradScaler scaler_{scaler_options(o_.precision)};
  std::optional<distributed::Checkpointer> checkpoints_;
  std::optional<Progress> progress_;
  std::optional<LivePage> live_;
  std::optional<Windows> windows_, held_out_;
  std::optional<CheckpointInterval> interval_;
  std::vector<Metrics> metrics_;
  Position at_;
  std::int64_t step_ = 0;
  std::optional<double> last_held_out_;
};

void Run::open_folder() {
  distributed::on_rank_0(*parallel_.group(), "gpt train", [&] {
    if (o_.run_dir.empty()) {
      char when[32];
      const std::time_t now = std::time(nullptr);
      std::strftime(when, sizeof when, "%Y%m%d-%H%M%S", std::localtime(&now));
      o_.run_dir = std::string("runs/gpt-") + when;
    }
    folder_ = RunFolder(o_.run_dir, o_.resumed);
  });
}

void Run::read_text() {
  if (o_.text.empty() == o_.tokens.empty())
    throw UsageError("[gpt train] pass --text FILE, or --tokens FILE");
  if (!o_.config.empty() && !o_.init.empty())
    throw UsageError("[gpt train] --init has a configuration of its own; leave out --config");
  const std::string saved = o_.run_dir + "/model_config.json";
  if (o_.resumed) config_ = read_config(saved);
  else if (!o_.config.empty() || !o_.init.empty())
    config_ = read_config(o_.config.empty() ? o_.init : o_.config);
  const bool fixed = o_.resumed || !o_.config.empty() || !o_.init.empty();

  CorpusOptions c{.text = o_.text,
                  .tokens = o_.tokens,
                  .held_out = o_.held_out,
                  .held_out_part = o_.held_out_part,
                  .tokenizer = o_.tokenizer,
                  .vocab_size = o_.vocab_size,
                  .separator = o_.separator};
  if (o_.resumed && std::filesystem::exists(o_.run_dir + "/tokenizer.json"))
    c.tokenizer = o_.run_dir + "/tokenizer.json";
  std::optional<TokenizerFiles> theirs;
  if (!o_.init.empty() && c.tokenizer.empty() && !o_.text.empty()) {
    theirs = read_tokenizer_files(o_.init, nn::ModelWeights(o_.init));
    check<IoError>(theirs->parts.has_value(), "[gpt train] ", o_.init,
                   " has no tokenizer; pass one with --tokenizer");
    const std::string path =
        (std::filesystem::temp_directory_path() / concat({"gpt-tokenizer-", getpid()})).string();
    write_file_atomically(path, data::tokenizer_json(*theirs->parts));
    c.tokenizer = path;
  }
  if (!o_.tokens.empty() && !fixed && o_.vocab_size == 0)
    throw UsageError(
        "[gpt train] token files do not say how many tokens there are; pass --vocab-size (GPT-2 has 50257)");
  if (o_.text.empty() && fixed) c.vocab_size = vocab_of(config_);
  if (!o_.text.empty() && c.vocab_size == 0) c.vocab_size = 257;
  try {
    corpus_ = read_corpus(c);
  } catch (...) {
    if (theirs) std::filesystem::remove(c.tokenizer);
    throw;
  }
  if (theirs) std::filesystem::remove(c.tokenizer);

  const std::int64_t words =
      corpus_.tokenizer ? static_cast<std::int64_t>(corpus_.tokenizer->tokens.size()) : c.vocab_size;
  if (!fixed) config_ = config_of(o_, o_.tokens.empty() ? words : o_.vocab_size, corpus_.separator);
  check(words <= vocab_of(config_), "[gpt train] the tokenizer has ", words, " tokens, but the model knows ",
        vocab_of(config_), "; pass the tokenizer that belongs to the model");
  const std::uint64_t hash = hash_of(corpus_);
  if (o_.resumed)
    check<IoError>(hash == o_.text_hash, "[gpt train] the text has changed since the run in ", o_.run_dir,
                   " began: it had ", o_.train_tokens, " tokens and has ", corpus_.train.size(),
                   " now; restore it, or start a new run in another --run-dir");
  o_.text_hash = hash;
  o_.train_tokens = static_cast<std::int64_t>(corpus_.train.size());
  o_.held_out_tokens = static_cast<std::int64_t>(corpus_.held_out.size());
}

void Run::build_model() {
  manual_seed(o_.seed);
  {
    // A model that is divided is built part by part, so that no process ever has all of it.
    std::optional<DeviceGuard> meta;
    if (parallel_.strategy().builds_in_parts() && o_.init.empty()) meta.emplace("meta");
    model_ = build(config_);
  }
  if (!o_.init.empty() && !o_.resumed) nn::load_weights(*model_, nn::ModelWeights(o_.init));
  parallel_.wrap(*model_, !o_.no_document_masks && corpus_.separator >= 0);
  parallel_.seed_dropout(o_.seed);
  optimizer_ = parallel_.make_optimizer(*model_);
  schedule_ = std::make_unique<optim::LambdaLR>(
      *optimizer_, optim::LambdaLR::Factor([this](std::int64_t step) { return rate_at(o_, step); }));
  model_->train();
}

std::string Run::save(std::optional<double> loss) {
  Position all = at_;
  const std::vector<double> sums = parallel_.strategy().sum({at_.loss, at_.count});
  all.loss = sums[0], all.count = sums[1];
  interval_->restart();
  return checkpoints_->save(training(), {.step = step_, .metric = loss, .extra = all.save()});
}

int Run::stopped_by(int signal) {
  const std::string path = save();
  const std::string what = "stopped by " + signal_name(signal) + " and saved " + path +
                           "; continue with: gpt train --resume --run-dir " + o_.run_dir;
  progress_->line(what);
  live_->finish("stopped", what);
  return 128 + signal;
}

void Run::write_sample() {
  if (o_.sample_tokens == 0 || !corpus_.tokenizer) return;
  const data::Tokenizer tokenizer(*corpus_.tokenizer);
  std::vector<std::int64_t> prompt = tokenizer.encode(o_.sample_prompt, {.add_special = false});
  if (corpus_.separator >= 0) prompt.insert(prompt.begin(), corpus_.separator);
  if (prompt.empty()) prompt.push_back(corpus_.train[0]);
  if (static_cast<std::int64_t>(prompt.size()) >= model_->context_length()) return;
  nn::Sampler sampler({.temperature = 0.8, .top_k = 40, .seed = o_.seed + static_cast<std::uint64_t>(step_)});
  nn::GenerateOptions options{.max_new_tokens = o_.sample_tokens};
  if (corpus_.separator >= 0) options.stop = {corpus_.separator};
  const std::vector<std::int64_t> words = parallel_.generate(prompt, options, sampler);
  if (!parallel_.first()) return;
  prompt.insert(prompt.end(), words.begin(), words.end());
  const std::string sample = tokenizer.decode(prompt, {.skip_special = true});
  progress_->line("sample: " + sample);
  live_->text_sample(step_, sample);
}

// Measures and writes what is due after this step. Returns false if a signal came meanwhile; the run then
// does it after it was resumed.
bool Run::report() {
  const bool evaluates = (step_ % o_.eval_every == 0 || step_ == o_.steps) && held_out_.has_value();
  std::optional<double> loss;
  if (evaluates) {
    const std::int64_t windows =
        o_.eval_windows > 0 ? std::min(o_.eval_windows, held_out_->size()) : held_out_->size();
    loss = parallel_.held_out_loss(*held_out_, windows,
                                   [&] { return parallel_.agree({signals_.signal()}).signal != 0; });
    if (!loss) return false;
    last_held_out_ = loss;
  }
  const std::vector<double> sums = parallel_.strategy().sum({at_.loss, at_.count});
  const double mean = sums[0] / sums[1];
  metrics_.push_back({.step = step_,
                      .tokens = step_ * o_.batch_size * model_->context_length(),
                      .train_loss = mean,
                      .held_out = loss,
                      .lr = schedule_->last_lr()[0],
                      .grad_norm = at_.grad_norm,
                      .seconds = at_.seconds});
  at_.reported = step_;
  at_.loss = at_.count = 0;
  std::string lines;
  for (const Metrics& m : metrics_) lines += to_line(m);
  folder_.write("metrics.jsonl", lines);
  if (!evaluates && step_ != o_.steps) return true;
  folder_.write("curves.svg", losses_svg(metrics_, "loss of " + o_.run_dir));
  char line[160];
  if (loss) {
    std::snprintf(line, sizeof line,
                  "step %lld/%lld  train loss %.4f  held-out loss %.4f (perplexity %.2f)  %s",
                  static_cast<long long>(step_), static_cast<long long>(o_.steps), mean, *loss,
                  std::exp(*loss), duration(at_.seconds).c_str());
    progress_->line(line);
    live_->evaluated(step_, *loss);
    check(std::isfinite(*loss), "[gpt train] the held-out loss is ", *loss, " after step ", step_,
          "; try a smaller --lr");
  }
  write_sample();
  save(loss);
  return true;
}

void Run::write_model() {
  const nn::LanguageModel* whole = model_.get();
  std::unique_ptr<nn::LanguageModel> gathered;
  if (parallel_.strategy().builds_in_parts()) {
    const nn::StateDict full = parallel_.strategy().whole_state();
    if (parallel_.first()) {
      gathered = build(config_);
      gathered->load_state_dict(full);
      whole = gathered.get();
    }
  }
  distributed::on_rank_0(*parallel_.group(), "gpt train", [&] {
    write_folder(o_.run_dir + "/model", true, [&](const std::string& folder) {
      nn::save_language_model(folder, *whole);
      write_tokenizer_files(folder,
                            {.parts = corpus_.tokenizer,
                             .chat_template = {},
                             .bos = corpus_.separator,
                             .eos = corpus_.separator},
                            whole->context_length());
    });
  });
}

int Run::train() {
  if (o_.threads > 0) set_num_threads(o_.threads);
  o_.threads = get_num_threads();  // saved, so that a resumed run uses the same number
  if (o_.resumed) open_folder();
  read_text();
  if (!o_.resumed) manual_seed(o_.seed);
  build_model();
  windows_.emplace(corpus_.train, model_->context_length(), o_.no_document_masks ? -1 : corpus_.separator,
                   o_.seed);
  if (static_cast<std::int64_t>(corpus_.held_out.size()) > model_->context_length())
    held_out_.emplace(corpus_.held_out, model_->context_length(),
                      o_.no_document_masks ? -1 : corpus_.separator, o_.seed);
  if (!o_.resumed) {
    open_folder();
    if (corpus_.tokenizer) folder_.write("tokenizer.json", data::tokenizer_json(*corpus_.tokenizer));
    folder_.write("model_config.json", text_of(config_));
  }
  folder_.write("config.json", to_json(o_));
  checkpoints_.emplace(o_.run_dir + "/checkpoints", parallel_.group(),
                       nn::CheckpointerOptions{.keep_last = 2, .higher_is_better = false});
  interval_ = CheckpointInterval::parse(o_.checkpoint_every);
  progress_.emplace(o_.steps, o_.steps, 1, parallel_.first());

  if (const auto last = checkpoints_->resume(training())) {
    check<IoError>(o_.resumed, "[gpt train] ", o_.run_dir,
                   " has checkpoints but no config.json; restore the file, or choose another --run-dir");
    at_ = Position::load(*last);
    if (!parallel_.first()) at_.loss = at_.count = 0;  // the saved tally is the sum over all ranks
    step_ = last->step;
    check<IoError>(step_ <= o_.steps && schedule_->steps() == step_, "[gpt train] the checkpoint is of step ",
                   step_, ", and the run has ", o_.steps,
                   " steps; resume from another checkpoint of this run");
    progress_->start_at(step_);
  }
  metrics_ =
      parallel_.first() ? read_metrics(folder_.file("metrics.jsonl"), at_.reported) : std::vector<Metrics>();
  std::int64_t parameters = 0;
  for (const nn::Parameter& p : model_->parameters())
    parameters += p.layout() ? p.layout()->whole_sizes().numel() : p->numel();
  progress_->line(concat({model_->type_name(), " of ", parameters, " parameters, vocabulary ",
                          vocab_of(config_), ", context ", model_->context_length(), "; ", o_.train_tokens,
                          " tokens to train on, ", o_.held_out_tokens, " held out"}));
  progress_->line(concat({"seed ", o_.seed, ", threads ", o_.threads, ", device ", o_.device,
                          parallel_.size() > 1 ? concat({", ranks ", parallel_.size()}) : std::string(),
                          ", run folder ", o_.run_dir}));
  if (!held_out_)
    progress_->line(
        "the held-out text is shorter than a sequence, so no held-out loss is measured; pass --val, or a "
        "larger --val-part");
  if (o_.resumed) progress_->line(concat({"resumed after step ", step_, " of ", o_.steps}));
  live_.emplace(parallel_, folder_,
                LiveRun{.program = "gpt train",
                        .title = concat({model_->type_name(), " of ", parameters, " parameters"}),
                        .unit = "tokens",
                        .held_out = "held-out text",
                        .steps = o_.steps,
                        .facts = {{"mode", o_.parallel},
                                  {"ranks", std::to_string(parallel_.size())},
                                  {"batch size", std::to_string(o_.batch_size)},
                                  {"precision", o_.precision},
                                  {"seed", std::to_string(o_.seed)},
                                  {"threads", std::to_string(o_.threads)}}});
  if (!live_->address().empty()) progress_->line(live_->address());
  tell(*live_, metrics_);
  live_->resume_at(at_.seconds);
  return live_->watch([this] { return train_steps(); });
}

int Run::train_steps() {
  const std::vector<nn::Parameter> trained = model_->parameters();
  Clock::time_point before = Clock::now();
  while (true) {
    if (due(step_) && at_.reported < step_ && !report()) {
      return stopped_by(std::max(parallel_.agree({signals_.signal()}).signal, signals_.signal()));
    }
    if (step_ == o_.steps) break;
    before = Clock::now();
    optimizer_->zero_grad();
    const double loss = parallel_.forward_backward(*windows_, step_, scaler_);
    check(std::isfinite(loss), "[gpt train] the loss is ", loss, " in step ", step_ + 1,
          "; try a smaller --lr");
    scaler_.unscale_(*optimizer_);
    const double norm = nn::clip_grad_norm_(trained, o_.clip > 0 ? o_.clip : INFINITY).item();
    // The norm of a step that the scaler skips is infinite or NaN, which no JSON file can hold.
    if (!scaler_.is_enabled() || std::isfinite(norm)) at_.grad_norm = norm;
    scaler_.step(*optimizer_);
    scaler_.update();
    schedule_->step();
    ++step_;
    at_.loss += loss;
    at_.count += parallel_.first();
    at_.seconds += std::chrono::duration<double>(Clock::now() - before).count();
    char text[100];
    const double own_mean = loss * parallel_.strategy().loss_parts();
    std::snprintf(
        text, sizeof text, "loss %.4f%s  lr %.2g", own_mean,
        last_held_out_ ? concat({"  held-out ", std::round(*last_held_out_ * 1e4) / 1e4}).c_str() : "",
        schedule_->last_lr()[0]);
    const std::int64_t tokens = o_.batch_size * model_->context_length();
    progress_->step(tokens, "tokens", text);
    live_->step({.step = step_, .loss = own_mean, .samples = tokens, .seconds = at_.seconds});
    const Request agreed = parallel_.agree({signals_.signal(), interval_->elapsed()});
    if (agreed.signal) return stopped_by(agreed.signal);
    if ((agreed.save || interval_->due_at(step_)) && !due(step_)) save();
  }
  write_model();
  parallel_.print_report(*progress_);
  live_->finish("done", {});
  progress_->line("wrote " + o_.run_dir + "/model; try: gpt generate --model " + o_.run_dir +
                  "/model --prompt \"" + (o_.sample_prompt.empty() ? "The" : o_.sample_prompt) + "\"");
  return 0;
}

}  // namespace

int train(int argc, char** argv) {
  TrainOptions o;
  CommandLine line(
      "gpt train",
      "Trains a language model from scratch. The run folder gets checkpoints, metrics.jsonl, curves.svg, "
      "and at the end the folder model/, which `gpt generate` and transformers load.");
  add_train_options(line, o);
  line.footer(
      "SIGINT (Ctrl-C), SIGTERM and SIGHUP stop the run after the current step and save a checkpoint; a "
      "second\n"
      "signal ends it at once. A resumed run computes bit for bit what a run that was never stopped "
      "computes, on\n"
      "the same device with the same number of threads and ranks.\n"
      "Exit status: 0 done, 1 failed, 2 wrong options, 128 + N stopped by signal N (130 after Ctrl-C).");
  return line.run(argc, argv, [&] {
    const StopRequest signals;  // must be constructed before any thread is started
    for (auto* files : {&o.text, &o.tokens, &o.held_out})
      for (std::string& path : *files) path = std::filesystem::absolute(path).lexically_normal().string();
    for (std::string* path : {&o.tokenizer, &o.config, &o.init})
      if (!path->empty()) *path = std::filesystem::absolute(*path).lexically_normal().string();
    resume_options(line, o);
    return Run(o, signals).train();
  });
}

}  // namespace apps::gpt
