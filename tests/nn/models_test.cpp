// Compares three models with PyTorch over 50 steps from the same weights and data (tests/golden/nn.py).
#include <cmath>
#include <memory>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

struct Demo : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 3, .out_channels = 16, .kernel_size = 3});
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 30 * 30 * 16, .out_features = 10});
  Tensor forward(const Tensor& x) override { return fc(conv(x).flatten(1)).softmax(1); }
};

struct CNN : nn::Module {
  nn::Sequential& features = add<nn::Sequential>(
      "features", nn::Conv2d::Options{.in_channels = 1, .out_channels = 32, .kernel_size = 5, .padding = 2},
      nn::BatchNorm2d::Options{.num_features = 32}, nn::ReLU::Options{},
      nn::MaxPool2d::Options{.kernel_size = 2},
      nn::Conv2d::Options{.in_channels = 32, .out_channels = 64, .kernel_size = 5, .padding = 2},
      nn::BatchNorm2d::Options{.num_features = 64}, nn::ReLU::Options{},
      nn::MaxPool2d::Options{.kernel_size = 2});
  nn::Sequential& classifier =
      add<nn::Sequential>("classifier", nn::Flatten::Options{},
                          nn::Linear::Options{.in_features = 64 * 7 * 7, .out_features = 512},
                          nn::ReLU::Options{}, nn::Linear::Options{.in_features = 512, .out_features = 10});
  Tensor forward(const Tensor& x) override { return classifier(features(x)); }
};

struct Block : nn::Module {
  explicit Block(std::int64_t width)
      : ln1(add<nn::LayerNorm>("ln1", {.normalized_shape = width})),
        attn(add<nn::MultiheadAttention>("attn", {.embed_dim = width, .num_heads = 4, .batch_first = true})),
        ln2(add<nn::LayerNorm>("ln2", {.normalized_shape = width})),
        mlp(add<nn::Sequential>("mlp", nn::Linear::Options{.in_features = width, .out_features = 4 * width},
                                nn::GELU::Options{},
                                nn::Linear::Options{.in_features = 4 * width, .out_features = width})) {}
  Tensor forward(const Tensor& x) override {
    const Tensor h = ln1(x), y = x + attn(h, h, h, {.need_weights = false, .is_causal = true}).first;
    return y + mlp(ln2(y));
  }
  nn::LayerNorm& ln1;
  nn::MultiheadAttention& attn;
  nn::LayerNorm& ln2;
  nn::Sequential& mlp;
};

struct Transformer : nn::Module {
  nn::Embedding& tokens = add<nn::Embedding>("tokens", {.num_embeddings = 19, .embedding_dim = 24});
  nn::Embedding& positions = add<nn::Embedding>("positions", {.num_embeddings = 12, .embedding_dim = 24});
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::LayerNorm& ln = add<nn::LayerNorm>("ln", {.normalized_shape = 24});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 24, .out_features = 19, .bias = false});
  Transformer() {
    blocks.append<Block>(24);
    blocks.append<Block>(24);
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = tokens(x) + positions(arange(x.size(1)));
    for (nn::Module* block : blocks) h = (*block)(h);
    return head(ln(h)).transpose(1, 2);
  }
};

using Batch = std::pair<Tensor, Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(std::vector<nn::Parameter>)>;

std::unique_ptr<optim::Optimizer> sgd(std::vector<nn::Parameter> params, double lr, double momentum) {
  return std::make_unique<optim::SGD>(std::move(params), optim::SGD::Options{.lr = lr, .momentum = momentum});
}

void follow(const std::string& label, nn::Module& net, DType dtype, double scale,
            const std::function<Batch(int)>& batch, const MakeOptimizer& make, double loss_tolerance,
            double weight_tolerance) {
  static const NnGolden golden("models");
  net.to(dtype);
  {
    const NoGradGuard no_grad;
    int k = 0;
    for (const auto& [name, p] : net.named_parameters()) {
      ++k;
      const bool matrix = p->dim() > 1;
      const double fan = matrix ? static_cast<double>(p->numel() / p->size(0)) : 1;
      p->copy_(matrix ? formula(p->sizes(), k, scale / std::sqrt(fan))
                      : formula(p->sizes(), k, 0.2) + (name.ends_with("weight") ? 1.0 : 0.0));
    }
  }
  const auto optimizer = make(net.parameters());
  const std::vector<double>& wanted = golden.at(label + "/losses").values;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, target] = batch(step);
    optimizer->zero_grad();
    const Tensor loss = cross_entropy(net(is_floating(x.dtype()) ? x.to(dtype) : x), target);
    loss.backward();
    optimizer->step();
    const double expected = wanted[static_cast<std::size_t>(step)];
    const double off = std::abs(loss.item() - expected) / expected;
    INFO(label << " step " << step << ": " << loss.item() << ", PyTorch " << expected);
    CHECK(off <= loss_tolerance);
  }
  if (kSteps < 50) return;
  // The record contains the norm and sixteen elements of each of PyTorch's tensors after 50 steps.
  for (const auto& [name, t] : net.state_dict()) {
    const Record& record = golden.at(label + "/final/" + name);
    const std::vector<double> all = values_of(t);
    double squares = 0;
    for (const double v : all) squares += v * v;
    std::vector<double> got{std::sqrt(squares)};
    for (std::size_t j = 0; j < std::min<std::size_t>(16, all.size()); ++j)
      got.push_back(all[all.size() >= 16 ? j * all.size() / 16 : j]);
    INFO(label << " " << name);
    CHECK(std::abs(got[0] - record.values[0]) <= weight_tolerance * record.values[0]);
    const std::vector<double> ours(got.begin() + 1, got.end()),
        theirs(record.values.begin() + 1, record.values.end());
    CHECK(distance(ours, theirs) <= weight_tolerance);
  }
}

// The same five batches repeat, so that the model can learn them.
Batch images(const Shape& sizes, int step) {
  return {formula(sizes, 5000 + step % 5, 2.0), labels(sizes[0], step % 5, 10)};
}

// Tolerances for f32 and f64. The results of PyTorch in f32 with different CPU kernels differ by 3e-4
// (losses) and 5e-4 (weights), so f32 tolerances cannot be much smaller.
constexpr double kLoss32 = 1e-4, kWeight32 = 1e-3, kBoth64 = 1e-9;

template <class Model>
void follow_both(const std::string& name, double scale, const std::function<Batch(int)>& batch,
                 const MakeOptimizer& make) {
  Model wide;
  follow(name + "_f64", wide, DType::f64, scale, batch, make, kBoth64, kBoth64);
  Model narrow;
  follow(
      name + "_f32", narrow, DType::f32, scale, batch,
      [](std::vector<nn::Parameter> p) { return sgd(std::move(p), 0.01, 0); }, kLoss32, kWeight32);
}

}  // namespace

TEST_CASE("the demo model follows PyTorch") {
  follow_both<Demo>(
      "demo", 2.0,
      [](int step) {
        return images({8, 3, 32, 32}, step);
      },
      [](std::vector<nn::Parameter> p) { return sgd(std::move(p), 0.1, 0.9); });
}

TEST_CASE("the CNN follows PyTorch") {
  follow_both<CNN>(
      "cnn", 1.0,
      [](int step) {
        return images({8, 1, 28, 28}, step);
      },
      [](std::vector<nn::Parameter> p) { return sgd(std::move(p), 0.01, 0.9); });
}

TEST_CASE("the transformer follows PyTorch") {
  follow_both<Transformer>(
      "transformer", 2.0,
      [](int step) {
        const Tensor text = labels({4, 13}, step % 5, 19);
        return Batch{text.narrow(1, 0, 12), text.narrow(1, 1, 12)};
      },
      [](std::vector<nn::Parameter> p) { return std::make_unique<optim::AdamW>(std::move(p)); });
}
