#pragma once
// A model of three stages with a tied weight and buffers, and jobs that train it with a strategy.
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

namespace strategy_job {

using namespace tapestry;
using namespace tapestry::distributed;
using distributed_test::Group;
using Tensors = std::vector<Tensor>;

inline constexpr std::int64_t kWords = 7, kSamples = 10;
inline constexpr double kClose = 1e-4;  // AdamW enlarges the rounding errors of f32

// The first and the last stage of three share a parameter, and the second has buffers. A bias before bn would
// have a gradient of rounding errors, which AdamW does not damp.
struct Net : nn::Module {
  nn::Embedding& embed = add<nn::Embedding>("embed", {.num_embeddings = kWords, .embedding_dim = 4});
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 4, .out_features = 6, .bias = false});
  nn::BatchNorm1d& bn = add<nn::BatchNorm1d>("bn", {.num_features = 6});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 6, .out_features = 4});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 4, .out_features = kWords, .bias = false});
  explicit Net(bool tied_) : tied(tied_) {
    if (tied) head.weight = embed.weight;
  }
  const bool tied;
  bool recomputes = false;  // the end, in backward
  bool detaches = false;    // the end's weight, which then gets no gradient there
  Tensor middle(const Tensor& x) { return bn(fc1(x)).tanh(); }
  // Uses a weight without a call of its module, as language models do.
  Tensor end(const Tensor& x) {
    const auto compute = [this](const Tensor& input) {
      return linear(fc2(input).tanh(), detaches ? head.weight->detach() : head.weight.tensor());
    };
    return recomputes ? checkpoint(compute, x) : compute(x);
  }
  Tensor forward(const Tensor& words) override { return end(middle(embed(words))); }

  std::vector<Stage> stages(const std::vector<Device>& on) {
    const auto second = [this](const Tensor& x) { return middle(x); };
    const auto third = [this](const Tensor& x) { return end(x); };
    nn::Module& last = tied ? static_cast<nn::Module&>(embed) : head;
    return {{embed, on.at(0)}, {second, on.at(1), {fc1, bn}}, {third, on.at(2), {fc2, last}}};
  }
};

// Ranks are threads, and share the generator.
inline std::unique_ptr<Net> make_net(bool on_meta, bool tied = true) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::optional<DeviceGuard> meta;
  if (on_meta) meta.emplace("meta");
  manual_seed(3);
  return std::make_unique<Net>(tied);
}

struct Options {
  bool tied = true;
  bool freezes = false;     // the second stage
  bool recomputes = false;  // the third stage, in backward
  int readers = 1;       // one process computes the micro-batches of so many pipelines side by side
  int adds = -1;         // the gradients of this step are added to those of the step before
  int detaches = -1;     // in this step the last stage gives the tied weight no gradient
};

struct Job {
  const Options options;
  Strategy strategy;
  std::unique_ptr<Net> net;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::GradScaler scaler{{.init_scale = 4}};  // small: gradients of a step before count beside scaled ones
  std::vector<double> losses, norms, scales;
  bool overflows = false;

  Job(const std::string& text, const Group& world, const Options& o = {})
      : options(o),
        strategy(text, {.world = world, .parts = 2}),
        net(make_net(strategy.builds_in_parts(), o.tied)) {
    if (const auto& data = strategy.data_group()) convert_sync_batchnorm(*net, data);
    net->recomputes = o.recomputes;
    if (o.freezes) net->fc1.requires_grad_(false), net->bn.requires_grad_(false);
    strategy.wrap(*net,
                  {.forward = [this](const Tensors& in) { return Tensors{(*net)(in[0])}; },
                   .loss = [](const Tensors& out, const Tensors& targets) -> Loss {
                     return {cross_entropy(out[0], targets[0]), static_cast<double>(targets[0].size(0))};
                   },
                   .stages = [this](const std::vector<Device>& on) { return net->stages(on); }});
    optimizer = make_optimizer<optim::AdamW>(strategy, net->parameters(), {.lr = 0.05});
    // One stage has a gradient that all must notice.
    if (const Tensor t = net->fc1.weight.tensor(); t.numel() > 0 && !o.freezes)
      t.register_hook([this](const Tensor& g) { return overflows ? full_like(g, INFINITY) : Tensor(); });
  }
  nn::Training training() { return {net.get(), optimizer.get(), nullptr, &scaler}; }

  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      if (step != options.adds) optimizer->zero_grad();
      overflows = step == 1;
      net->detaches = step == options.detaches;
      const Tensor words = (arange(kSamples) * (step + 2)).remainder(kWords),
                   next = (arange(kSamples) + step).remainder(kWords);
      const auto read = [&](const Part& part) {
        if (options.readers == 1) {
          const Samples mine = strategy.share(kSamples, part);
          return Batch{{words.narrow(0, mine.first, mine.count)}, {next.narrow(0, mine.first, mine.count)}};
        }
        std::vector<Tensor> inputs, targets;
        for (int r = 0; r < options.readers; ++r) {
          const std::int64_t each = kSamples / options.readers, first = r * each;
          const auto sizes = chunk_sizes(each, static_cast<std::size_t>(part.count));
          std::int64_t begin = first;
          for (int p = 0; p < part.index; ++p) begin += sizes[static_cast<std::size_t>(p)];
          inputs.push_back(words.narrow(0, begin, sizes[static_cast<std::size_t>(part.index)]));
          targets.push_back(next.narrow(0, begin, sizes[static_cast<std::size_t>(part.index)]));
        }
        return Batch{{cat(inputs)}, {cat(targets)}};
      };
      const Tensor loss = strategy.gradients(read, kSamples, &scaler).loss;
      losses.push_back(strategy.sum({loss.item()})[0]);
      scaler.unscale_(*optimizer);
      norms.push_back(strategy.clip_grad_norm_(0.5).item());
      scaler.step(*optimizer);
      scaler.update();
      scales.push_back(scaler.get_scale());
    }
  }
  double evaluated() {
    const auto read = [](std::int64_t) { return Batch{{arange(kWords)}, {arange(kWords)}}; };
    return strategy.evaluate(1, read)->mean();
  }
};

inline double distance(const nn::StateDict& a, const nn::StateDict& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].first == b[i].first);
    most = std::max(most, (a[i].second.to(DType::f64) - b[i].second.to(DType::f64)).abs().max().item());
  }
  return most;
}

}  // namespace strategy_job
