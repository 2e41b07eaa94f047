// gpt generate: continues a text.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <optional>

#include "tapestry/apps/common/stop_request.h"
#include "tapestry/apps/common/training_job.h"
#include "tapestry/apps/gpt/commands.h"
#include "tapestry/apps/gpt/divided_model.h"
#include "tapestry/apps/gpt/model_files.h"
#include "tapestry/apps/gpt/sampling.h"
#include "tapestry/core/parallel.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/mesh/strategy_text.h"

namespace apps::gpt {

using namespace tapestry;

namespace {

using Clock = std::chrono::steady_clock;
const Clock::time_point kStart = Clock::now();  // of the process, nearly
double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

struct Options {
  ModelOptions model;
  std::string prompt;
  std::int64_t max_tokens = 128;
  std::vector<std::string> stop;
  nn::SamplerOptions sampler;
  std::string parallel = "none";
  bool stats = false, ignore_eos = false;
  int threads = 0;
};

std::string read_prompt() {
  if (isatty(STDIN_FILENO)) std::fprintf(stderr, "The prompt, ended by Ctrl-D:\n");
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

bool is_parallel(const Options& o) { return !distributed::parse_strategy(o.parallel).empty(); }

JobOptions job_of(const Options& o) {
  return {.command = "gpt generate",
          .parallel = o.parallel,
          .has_stages = true,
          .identity = concat({o.model.model, " ", o.model.adapter, " ", o.max_tokens, " ", o.ignore_eos, " ",
                              o.sampler.temperature, " ", o.sampler.seed})};
}

int run(const Options& o, bool has_prompt) {
  std::string prompt = o.prompt;
  const bool reads = !has_prompt && distributed::read_environment().rank == 0;
  if (reads) prompt = read_prompt();
  // Not before: Ctrl-C ends the program while it waits for the prompt.
  const StopRequest signals;
  if (o.threads > 0) set_num_threads(o.threads);
  // A job of one process needs no strategy, and starts sooner without one.
  std::optional<TrainingJob> job;
  if (is_parallel(o) || distributed::read_environment().world_size > 1) job.emplace(job_of(o));
  if (job && job->size() > 1) prompt = distributed::broadcast_text(*job->group(), prompt, 0, "prompt");
  const bool first = !job || job->first();
  const Pretrained p = load_pretrained(o.model);
  std::vector<std::int64_t> ids = p.tokenizer.encode(prompt);
  if (ids.empty()) {
    check(p.first >= 0,
          "[gpt generate] the prompt is empty, and the model has no token that begins texts; "
          "pass a --prompt");
    ids.push_back(p.first);
  }
  const std::int64_t context = p.model->context_length(), given = static_cast<std::int64_t>(ids.size());
  check(given < context, "[gpt generate] the prompt has ", given,
        " tokens, but the context of the model has ", context, "; shorten the prompt");

  std::optional<DividedModel> divided;
  if (job) {
    divided.emplace(job->strategy(), *p.model, "f32");
    job->strategy().wrap(*p.model, divided->parts());
  }
  nn::Sampler sampler(o.sampler);
  TextStream out(p.tokenizer, o.stop, write_now);
  double first_s = 0;
  std::int64_t count = 0;
  Clock::time_point begin = Clock::now(), decode = begin;
  nn::GenerateOptions options{.max_new_tokens = o.max_tokens};
  if (!o.ignore_eos) options.stop = p.stop;
  options.on_token = [&](std::int64_t token) {
    if (count++ == 0) {
      first_s = since(kStart);
      decode = Clock::now();
    }
    return (!first || out.next(token)) && signals.signal() == 0;
  };
  if (divided) divided->generate(ids, options, sampler);
  else nn::generate(*p.model, ids, options, sampler);
  const double decode_s = since(decode);
  if (!first) return signals.signal() ? 128 + signals.signal() : 0;
  out.finish();
  write_now("\n");
  if (given + count >= context && count < o.max_tokens)
    std::fprintf(stderr, "The text fills the context of %lld tokens.\n", static_cast<long long>(context));
  if (o.stats && count > 0) {
    const double prefill_s = std::chrono::duration<double>(decode - begin).count();
    std::fprintf(
        stderr,
        "prefill %lld tokens in %.3f s (%.1f tokens/s), decode %lld tokens in %.3f s (%.1f tokens/s), "
        "first token %.2f s after the start\n",
        static_cast<long long>(given), prefill_s, static_cast<double>(given) / prefill_s,
        static_cast<long long>(count - 1), decode_s,
        decode_s > 0 ? static_cast<double>(count - 1) / decode_s : 0.0, first_s);
  }
  return signals.signal() ? 128 + signals.signal() : 0;
}

}  // namespace

int generate(int argc, char** argv) {
  Options o;
  CommandLine line("gpt generate", "Continues a text, one token after another.");
  add_model_options(line, o.model);
  line.add("--prompt", o.prompt,
           "The beginning of the text; without it, the prompt is read from standard input");
  line.add("--max-tokens", o.max_tokens, "The most tokens to write",
           {.check = between<std::int64_t>(0, 1'000'000'000)});
  line.add("--stop", o.stop, "End before this text; may be given several times");
  line.add("--ignore-eos", o.ignore_eos, "Go on after the token that ends texts");
  add_sampler_options(line, o.sampler);
  line.add("--parallel", o.parallel,
           "Divide the model over ranks of tapestry-run or devices, such as shard=2 or pipeline=2,shard=2; "
           "weights are f32 then",
           {.check = parallel_text()});
  line.add("--stats", o.stats, "Print times and speeds to standard error");
  line.add("--threads", o.threads, "Compute threads; 0 uses OMP_NUM_THREADS, or all cores",
           {.check = between(0, 1024)});
  line.footer("Exit status: 0 done, 1 failed, 2 wrong options, 130 after Ctrl-C.");
  return line.run(argc, argv, [&] {
    if (is_parallel(o)) {
      // Strategies divide parameters, and blocks of a GGUF file are none.
      if (line.given("--weights") && o.model.weights == "packed")
        throw UsageError("[gpt generate] --parallel divides f32 weights; leave out --weights packed");
      o.model.weights = "f32";
    }
    return run(o, line.given("--prompt"));
  });
}

}  // namespace apps::gpt
