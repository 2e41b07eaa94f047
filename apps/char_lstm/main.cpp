// Trains an LSTM to predict the next character of a text, and prints text that it generates.
// `char_lstm --help` shows how to run it.
//
// Backpropagation is truncated (Williams and Peng, "An efficient gradient-based algorithm for on-line
// training of recurrent network trajectories", 1990): the text is read as parallel streams in pieces of
// --unroll characters. The LSTM's state goes from piece to piece without its gradient.
//
// A public-domain text of 4.4 MB, from Debian's packages bible-kjv and bible-kjv-text:
//
//   bible -f gen1:1-rev22:21 > kjv.txt && char_lstm --text kjv.txt
#include <chrono>
#include <cstdio>
#include <memory>
#include <numbers>
#include <optional>
#include <string>

#include "tapestry/apps/char_lstm/model.h"
#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/tapestry.h"

using namespace tapestry;

namespace {

constexpr int kNotReached = 3;         // exit status
constexpr double kHeldOut = 0.05;      // the part of the text at its end that is not trained on
constexpr std::int64_t kReport = 100;  // steps between two lines

struct Options {
  std::string text, load, save, prompt, precision = "f32";
  std::uint64_t seed = 1;
  std::int64_t steps = 3000, batch = 32, unroll = 64;
  double lr = 0.004;
  std::optional<double> goal;
  apps::CharLstmOptions model;
  apps::SampleOptions sample;
};

// Trains the model, and returns its bits per character of the end of the text.
double train(apps::CharLstm& model, const std::string& text, const Options& o) {
  const apps::Vocabulary vocabulary(model.codes.tensor());
  const Tensor tokens = vocabulary.tokens(text);
  const auto held_out = static_cast<std::int64_t>(kHeldOut * static_cast<double>(tokens.size(0)));
  const apps::Streams learned(tokens.narrow(0, 0, tokens.size(0) - held_out), o.batch, o.unroll);
  // The held-out part is short, so it has as many streams as it has room for.
  const apps::Streams tested(tokens.narrow(0, tokens.size(0) - held_out, held_out),
                             std::max<std::int64_t>(std::min(o.batch, held_out / (8 * o.unroll)), 1),
                             o.unroll);

  optim::Adam optimizer(model.parameters(), {.lr = o.lr});
  optim::CosineAnnealingLR schedule(optimizer, {.T_max = o.steps});
  optim::GradScaler scaler(apps::scaler_options(o.precision));
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  nn::LSTMState state;
  double nats = 0;  // of the steps since the last line
  for (std::int64_t step = 0; step < o.steps; ++step) {
    const std::int64_t piece = step % learned.pieces();
    if (piece == 0) state = {};  // the streams begin again
    const auto [inputs, next] = learned.piece(piece);
    Tensor loss;
    {
      const apps::AutocastScope autocast(o.precision);
      const auto [logits, after] = nn::call(model, inputs, state);
      state = {after.first.detach(), after.second.detach()};
      loss = cross_entropy(logits.flatten(0, 1), next.flatten());
    }
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    nn::clip_grad_norm_(model.parameters(), 1);
    scaler.step(optimizer);
    scaler.update();
    schedule.step();
    nats += loss.item();
    if ((step + 1) % kReport == 0) {
      std::printf("step %lld  %.3f bits per character in training  %.0f characters/s\n",
                  static_cast<long long>(step + 1), nats / kReport / std::numbers::ln2,
                  static_cast<double>((step + 1) * o.batch * o.unroll) / seconds());
      std::fflush(stdout);
      nats = 0;
    }
  }
  const apps::AutocastScope autocast(o.precision);
  const double result = apps::bits_per_character(model, tested);
  std::printf("%.3f bits per character of the last %lld characters, %.0f s\n", result,
              static_cast<long long>(held_out), seconds());
  return result;
}

int run(const Options& o) {
  manual_seed(o.seed);
  // Report an unwritable path before training, not after it.
  if (!o.save.empty()) AtomicFile attempt(o.save);
  if (o.text.empty() && o.load.empty())
    throw apps::UsageError("[char_lstm] pass --text FILE to train, or --load FILE to generate text");
  std::unique_ptr<apps::CharLstm> model;
  std::string text;
  if (!o.text.empty()) text = apps::load_text(o.text);
  if (!o.load.empty()) model = apps::load(o.load);
  else model = std::make_unique<apps::CharLstm>(apps::Vocabulary(text).codes(), o.model);

  double result = 0;
  if (!text.empty()) result = train(*model, text, o);
  if (!o.save.empty()) nn::save_model(o.save, *model);
  const std::string prompt = !o.prompt.empty() ? o.prompt : text.substr(0, 1);
  if (o.sample.length > 0) {
    if (prompt.empty()) throw apps::UsageError("[char_lstm] --load without --text needs a --prompt");
    std::printf("%s\n", apps::sample(*model, prompt, o.sample).c_str());
  }
  if (text.empty() || !o.goal) return 0;
  std::printf("goal of %.2f bits per character %s\n", *o.goal, result <= *o.goal ? "reached" : "not reached");
  return result <= *o.goal ? 0 : kNotReached;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  using apps::between;
  constexpr std::int64_t kMany = 1'000'000'000;
  apps::CommandLine line("char_lstm", "Trains an LSTM on the characters of a text, and generates text.");
  line.add("--text", o.text, "Train on this file; its last 5% are held out to measure the result");
  line.add("--seed", o.seed, "Seed of initial weights, dropout and samples",
           {.check = between<std::uint64_t>(0, UINT64_MAX)});
  line.add("--steps", o.steps, "Training steps", {.check = between<std::int64_t>(1, kMany)});
  line.add("--batch", o.batch, "Parallel streams of text", {.check = between<std::int64_t>(1, 100'000)});
  line.add("--unroll", o.unroll, "Characters of each stream in one step",
           {.check = between<std::int64_t>(1, 100'000)});
  line.add("--hidden", o.model.hidden, "State elements of each LSTM layer",
           {.check = between<std::int64_t>(1, 100'000)});
  line.add("--layers", o.model.layers, "LSTM layers", {.check = between<std::int64_t>(1, 100)});
  line.add("--dropout", o.model.dropout, "Probability of dropping an output of a layer in training",
           {.check = between(0.0, 0.99)});
  line.add("--lr", o.lr, "Initial learning rate of Adam, which falls to 0 along a cosine",
           {.check = between(1e-9, 10.0)});
  apps::add_precision(line, o.precision);
  line.add("--goal", o.goal, "The number of bits per character that the held-out text may need",
           {.check = between(0.0, 8.0)});
  line.add("--sample", o.sample.length, "Generate this many characters after training",
           {.check = between<std::int64_t>(0, kMany)});
  line.add("--prompt", o.prompt, "The generated text begins with this; the default is the first character");
  line.add("--temperature", o.sample.temperature,
           "Below 1, likely characters become more likely; 0 takes the most likely one",
           {.check = between(0.0, 100.0)});
  line.add("--top-k", o.sample.top_k, "Draw from the k most likely characters; 0 draws from all",
           {.check = between<std::int64_t>(0, 256)});
  line.add("--save", o.save, "Write the model to this file, in the safetensors format");
  line.add("--load", o.load, "Begin with a model that --save has written");
  line.footer("Exit status: 0 goal reached or none given, 1 failed, 2 wrong options, 3 goal not reached.");
  return line.run(argc, argv, [&] { return run(o); });
}
