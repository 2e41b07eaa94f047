// gpt generate: continues a text.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "tapestry/apps/common/stop_request.h"
#include "tapestry/apps/gpt/commands.h"
#include "tapestry/apps/gpt/model_files.h"
#include "tapestry/apps/gpt/sampling.h"
#include "tapestry/core/parallel.h"

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
  bool stats = false, ignore_eos = false;
  int threads = 0;
};

int run(const Options& o, bool has_prompt) {
  std::string prompt = o.prompt;
  if (!has_prompt) {
    if (isatty(STDIN_FILENO)) std::fprintf(stderr, "The prompt, ended by Ctrl-D:\n");
    prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  // Not before: Ctrl-C ends the program while it waits for the prompt.
  const StopRequest signals;
  if (o.threads > 0) set_num_threads(o.threads);
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
    return out.next(token) && signals.signal() == 0;
  };
  nn::generate(*p.model, ids, options, sampler);
  const double decode_s = since(decode);
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
  line.add("--stats", o.stats, "Print times and speeds to standard error");
  line.add("--threads", o.threads, "Compute threads; 0 uses OMP_NUM_THREADS, or all cores",
           {.check = between(0, 1024)});
  line.footer("Exit status: 0 done, 1 failed, 2 wrong options, 130 after Ctrl-C.");
  return line.run(argc, argv, [&] { return run(o, line.given("--prompt")); });
}

}  // namespace apps::gpt
