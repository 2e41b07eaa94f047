#pragma once
// Models for the tests of fully_shard, and functions that train them with and without sharding.
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"

namespace tapestry::test {

using distributed_test::Group, distributed_test::on_ranks;

/// A block of a transformer: attention and a network of two layers, with residuals.
struct GptBlock : nn::Module {
  explicit GptBlock(std::int64_t features) : width(features) {}
  const std::int64_t width;
  nn::LayerNorm& ln1 = add<nn::LayerNorm>("ln1", {.normalized_shape = {width}});
  nn::Linear& qkv = add<nn::Linear>("qkv", {.in_features = width, .out_features = 3 * width});
  nn::Linear& proj = add<nn::Linear>("proj", {.in_features = width, .out_features = width});
  nn::LayerNorm& ln2 = add<nn::LayerNorm>("ln2", {.normalized_shape = {width}});
  nn::Linear& up = add<nn::Linear>("up", {.in_features = width, .out_features = 2 * width + 1});
  nn::Linear& down = add<nn::Linear>("down", {.in_features = 2 * width + 1, .out_features = width});
  Tensor forward(const Tensor& x) override {
    const std::int64_t n = x.size(0), length = x.size(1), heads = 2;
    const std::vector<Tensor> parts = qkv(ln1(x)).chunk(3, 2);
    const auto split = [&](const Tensor& t) {
      return t.reshape({n, length, heads, width / heads}).transpose(1, 2);
    };
    const Tensor a =
        scaled_dot_product_attention(split(parts[0]), split(parts[1]), split(parts[2]), {.is_causal = true});
    const Tensor h = x + proj(a.transpose(1, 2).reshape({n, length, width}));
    return h + down(gelu(up(ln2(h))));
  }
};

struct TinyGpt : nn::Module {
  explicit TinyGpt(bool checkpoints = false) : checkpointed(checkpoints) { head.weight = tokens.weight; }
  static constexpr std::int64_t kWidth = 6, kWords = 11, kLength = 5;
  const bool checkpointed;
  nn::Embedding& tokens = add<nn::Embedding>("tokens", {.num_embeddings = kWords, .embedding_dim = kWidth});
  nn::Embedding& places = add<nn::Embedding>("places", {.num_embeddings = kLength, .embedding_dim = kWidth});
  GptBlock& block0 = add<GptBlock>("block0", kWidth);
  GptBlock& block1 = add<GptBlock>("block1", kWidth);
  GptBlock& block2 = add<GptBlock>("block2", kWidth);
  nn::LayerNorm& ln = add<nn::LayerNorm>("ln", {.normalized_shape = {kWidth}});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = kWidth, .out_features = kWords, .bias = false});
  Tensor forward(const Tensor& words) override {
    Tensor h = tokens(words) + places(arange(0, kLength, 1, {DType::i64}));
    for (GptBlock* block : {&block0, &block1, &block2})
      h = checkpointed ? checkpoint(*block, h) : (*block)(h);
    return head(ln(h));
  }
};

/// Words [first, first + count) of a batch, and the word after each.
inline std::pair<Tensor, Tensor> formula_words(int batch, int first, int count) {
  const Tensor x = empty({count, TinyGpt::kLength}, {DType::i64, kCPU}),
               y = empty({count, TinyGpt::kLength}, {DType::i64, kCPU});
  std::int64_t *const words = x.data<std::int64_t>(), *const next = y.data<std::int64_t>();
  for (int n = 0; n < count; ++n)
    for (int i = 0; i < TinyGpt::kLength; ++i) {
      const int at = (batch * 8 + first + n) * 3 + i;
      words[n * TinyGpt::kLength + i] = (at * at + 2 * at) % TinyGpt::kWords;
      next[n * TinyGpt::kLength + i] = ((at + 1) * (at + 1) + 2 * (at + 1)) % TinyGpt::kWords;
    }
  return {x, y};
}

enum class Parallel { single, ddp, fsdp };

struct Training {
  distributed::FsdpOptions options = {};
  bool adamw = true;
  int accumulate = 1;  // backward passes per step; all but the last under no_sync()
  bool checkpointed = false;
  double clip = 0;      // the largest norm of all gradients; 0 does not clip
  bool nested = false;  // block1's layers are units of their own
  int frozen = 0;       // 1: block1; 2: the embeddings
  int steps = kSteps;
};

struct Trained {
  std::vector<double> losses;
  StateDictCopy weights;
};

inline StateDictCopy copy_parameters(const nn::Module& module) {
  StateDictCopy copy;
  for (const auto& [name, slot] : module.named_parameters()) copy[name] = to_vector(slot.tensor());
  return copy;
}

inline bool equal(const StateDictCopy& a, const StateDictCopy& b) { return a == b; }

/// Trains `net` on this rank's part of `parts` parts, or, if `group` is null, on all parts. `units` lists the
/// modules to shard, the model last. `loss` computes the loss of samples [first, first + count) of a batch.
template <class Net>
Trained train_net(
    Net& net, const std::vector<nn::Module*>& units, Parallel how, const Group& group, int parts,
    const Training& t,
    const std::function<Tensor(const std::function<Tensor(const Tensor&)>&, int, int, int)>& loss) {
  std::unique_ptr<distributed::DistributedDataParallel<Net>> ddp;
  std::optional<distributed::FullyShard> fsdp;
  if (how == Parallel::ddp)
    ddp = std::make_unique<distributed::DistributedDataParallel<Net>>(
        net, distributed::DdpOptions{.process_group = group});
  if (how == Parallel::fsdp)
    for (nn::Module* unit : units) {
      distributed::FsdpOptions options = t.options;
      options.group = group;
      fsdp = distributed::fully_shard(*unit, options);
    }
  std::unique_ptr<optim::Optimizer> optimizer;
  if (t.adamw)
    optimizer = std::make_unique<optim::AdamW>(net.parameters(), optim::AdamW::Options{.lr = 0.01});
  else
    optimizer =
        std::make_unique<optim::SGD>(net.parameters(), optim::SGD::Options{.lr = 0.05, .momentum = 0.9});
  Trained result;
  const auto forward = [&](const Tensor& x) { return ddp ? (*ddp)(x) : net(x); };
  for (int step = 0; step < t.steps; ++step) {
    optimizer->zero_grad();
    for (int part = 0; part < t.accumulate; ++part) {
      const int count = group ? 2 : 2 * parts, first = group ? group->rank() * 2 : 0;
      std::optional<distributed::NoSync> alone;
      if (part + 1 < t.accumulate && ddp) alone.emplace(ddp->no_sync());
      if (part + 1 < t.accumulate && fsdp) alone.emplace(fsdp->no_sync());
      const Tensor l = loss(forward, step * t.accumulate + part, first, count);
      result.losses.push_back(l.template item<double>());
      l.backward();
    }
    if (t.clip > 0) nn::clip_grad_norm_(net.parameters(), t.clip);
    optimizer->step();
  }
  if (fsdp) {
    const auto full = fsdp->unshard(/*units_inside=*/true);
    result.weights = copy_parameters(net);
  } else {
    result.weights = copy_parameters(net);
  }
  return result;
}

inline Trained train_gpt(Parallel how, const Group& group, int parts, const Training& t) {
  TinyGpt net(t.checkpointed);
  fill_by_formula(net);
  if (t.frozen & 1) net.block1.requires_grad_(false);
  if (t.frozen & 2) net.tokens.requires_grad_(false), net.places.requires_grad_(false);
  std::vector<nn::Module*> units;
  if (t.nested) units = {&net.block1.qkv, &net.block1.up};
  for (nn::Module* m : std::vector<nn::Module*>{&net.block0, &net.block1, &net.block2, &net})
    units.push_back(m);
  return train_net(net, units, how, group, parts, t,
                   [](const auto& forward, int batch, int first, int count) {
                     const auto [x, y] = formula_words(batch, first, count);
                     return cross_entropy(forward(x).reshape({-1, TinyGpt::kWords}), y.reshape({-1}));
                   });
}

/// Batch statistics are taken over all ranks, if there are ranks.
inline Trained train_cnn(Parallel how, const Group& group, int parts, const Training& t) {
  SmallCnn net;
  fill_by_formula(net);
  if (group) distributed::convert_sync_batchnorm(net, group);
  std::vector<nn::Module*> units{&net.conv1, &net.at("bn1"), &net.conv2, &net.at("bn2"), &net.fc, &net};
  return train_net(net, units, how, group, parts, t,
                   [](const auto& forward, int batch, int first, int count) {
                     const auto [x, y] = formula_batch(batch, first, count);
                     return cross_entropy(forward(x.to(DType::f32)), y);
                   });
}

}  // namespace tapestry::test
