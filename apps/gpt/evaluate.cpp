// gpt evaluate: the perplexity of a text.
#include <cmath>
#include <cstdio>
#include <numbers>
#include <string_view>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/progress.h"
#include "tapestry/apps/common/stop_request.h"
#include "tapestry/apps/gpt/commands.h"
#include "tapestry/apps/gpt/evaluation.h"
#include "tapestry/apps/gpt/model_files.h"
#include "tapestry/core/parallel.h"
#include "tapestry/data/formats/text.h"

namespace apps::gpt {

using namespace tapestry;

namespace {

struct Options {
  ModelOptions model;
  std::string text;
  std::int64_t context = 0, stride = 0, max_tokens = 0;
  int threads = 0;
};

int run(const Options& o) {
  const StopRequest signals;
  if (o.text.empty()) throw UsageError("[gpt evaluate] pass --model FILE and --text FILE");
  if (o.threads > 0) set_num_threads(o.threads);
  const data::MappedFile file("gpt evaluate", o.text);
  const std::string_view text(file.data(), file.size());
  const Pretrained p = load_pretrained(o.model);
  std::vector<std::int64_t> ids;
  try {
    ids = p.tokenizer.encode(text);
  } catch (const ValueError& e) {
    fail("[gpt evaluate] ", o.text, ": ", e.what());
  }
  if (o.max_tokens > 0 && o.max_tokens < static_cast<std::int64_t>(ids.size()))
    ids.resize(static_cast<std::size_t>(o.max_tokens));
  const std::int64_t context = o.context > 0 ? o.context : p.model->context_length();
  check(context <= p.model->context_length(), "[gpt evaluate] --context is ", context,
        ", but the context of the model has ", p.model->context_length(), " tokens");
  const std::int64_t stride = o.stride > 0 ? o.stride : std::max<std::int64_t>(context / 2, 1);
  check(stride <= context, "[gpt evaluate] --stride is ", stride, ", and the context ", context,
        "; a larger stride would leave tokens out");
  check(ids.size() >= 2, "[gpt evaluate] ", o.text, " has ", ids.size(),
        " tokens; two are needed, because the first one cannot be predicted");

  const std::int64_t windows =
      std::max<std::int64_t>(0, (static_cast<std::int64_t>(ids.size()) - context + stride - 1) / stride) +
      (context > 1 ? 1 : 0);
  Progress progress(windows, windows, 1);
  Perplexity sum;
  each_window(ids, context, stride, [&](const Window& w) {
    sum.add(score(*p.model, w), w.predicted);
    progress.step(w.predicted, "tokens", "perplexity " + std::to_string(std::exp(sum.loss())));
    return signals.signal() == 0;
  });
  // The bytes of the tokens that were predicted. Control tokens have none in the text.
  std::int64_t bytes = 0;
  for (std::int64_t i = 1; i <= sum.tokens; ++i)
    if (const std::int64_t id = ids[static_cast<std::size_t>(i)]; !p.tokenizer.is_special(id))
      bytes += static_cast<std::int64_t>(p.tokenizer.bytes(id).size());
  char line[240];
  std::snprintf(line, sizeof line, "tokens %lld  loss %.6f  perplexity %.4f  bits per byte %.4f%s",
                static_cast<long long>(sum.tokens), sum.loss(), std::exp(sum.loss()),
                bytes > 0 ? sum.nats / std::numbers::ln2 / static_cast<double>(bytes) : NAN,
                signals.signal() ? "  (of the part before the signal)" : "");
  progress.line(line);
  return signals.signal() ? 128 + signals.signal() : 0;
}

}  // namespace

int evaluate(int argc, char** argv) {
  Options o;
  constexpr std::int64_t kMany = 1'000'000'000;
  CommandLine line("gpt evaluate",
                   "Measures how well a model predicts a text: perplexity is e to the mean loss of a token.");
  add_model_options(line, o.model);
  line.add("--text", o.text, "The text");
  line.add("--context", o.context, "Tokens of a window; 0 takes the model's context",
           {.check = between<std::int64_t>(0, kMany)});
  line.add("--stride", o.stride,
           "Tokens from one window to the next; 0 takes half the context. A window scores the tokens that no "
           "earlier one has scored, and the others are their context",
           {.check = between<std::int64_t>(0, kMany)});
  line.add("--max-tokens", o.max_tokens, "Use the first tokens alone; 0 uses all",
           {.check = between<std::int64_t>(0, kMany)});
  line.add("--threads", o.threads, "Compute threads; 0 uses OMP_NUM_THREADS, or all cores",
           {.check = between(0, 1024)});
  line.footer("Exit status: 0 done, 1 failed, 2 wrong options, 130 after Ctrl-C.");
  return line.run(argc, argv, [&] { return run(o); });
}

}  // namespace apps::gpt
