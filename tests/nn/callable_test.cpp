// Modules that are called with several arguments, const modules, and children made from arguments in order.
#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

struct Blend : nn::Callable<Blend> {
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 3, .out_features = 3});
  using Module::forward;
  virtual std::pair<Tensor, std::vector<Tensor>> forward(const Tensor& a, const Tensor& b, double scale) {
    return {fc(a) + b * scale, {a, b}};
  }
  Tensor forward(const Tensor& a, const Tensor& b) { return fc(a) + b; }
};

struct Negated : Blend {
  using Blend::forward;
  std::pair<Tensor, std::vector<Tensor>> forward(const Tensor& a, const Tensor& b, double scale) override {
    return Blend::forward(-a, -b, scale);
  }
};

struct Decoder : nn::Module {
  Blend& blend = add<Blend>("blend");
  Tensor forward(const Tensor& x) override { return blend(x, x); }
};

struct Counter : nn::Callable<Counter> {
  int calls = 0;
  void forward(std::unique_ptr<int> by) { calls += *by; }
};

}  // namespace

TEST_CASE("a Callable is called with the arguments of its forward") {
  Blend m;
  const Tensor a = ones({2, 3}), b = full({2, 3}, 5.0);
  CHECK(equal(m(a, b, 2.0).first, m.fc(a) + 10.0));
  CHECK(equal(m(a, b), m.fc(a) + 5.0));
  CHECK_THROWS_WITH(m(a), ContainsSubstring("[Blend] forward(const Tensor&) is not defined"));
  Negated negated;
  Blend& base = negated;
  CHECK(equal(base(a, b, 2.0).first, negated.fc(-a) - 10.0));

  Counter counter;
  counter(std::make_unique<int>(3));
  CHECK(counter.calls == 3);
}

TEST_CASE("calling a Callable runs hooks, and errors name its path") {
  Decoder net;
  CHECK_THROWS_WITH(net(ones({2, 4})), ContainsSubstring("(in blend.fc: Linear("));
  CHECK_THROWS_WITH(net.blend(ones({2, 3}), ones({2, 4})), ContainsSubstring("(in blend: Blend)"));
  std::size_t inputs = 0;
  net.blend.register_forward_pre_hook([&](nn::Module&, std::vector<Tensor>& in) {
    inputs = in.size();
    in[1] = zeros({2, 3});
  });
  net.blend.register_forward_hook(
      [](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>& out) { out[0] = out[0] * 3.0; });
  const Tensor x = ones({2, 3});
  CHECK(equal(net(x), net.blend.fc(x) * 3.0));
  CHECK(inputs == 2);
}

TEST_CASE("const modules can be called, and their hooks run") {
  const nn::Linear fc({.in_features = 3, .out_features = 2});
  const Tensor x = ones({4, 3});
  CHECK(equal(fc(x), linear(x, fc.weight, fc.bias)));
  Decoder net;
  const Decoder& shown = net;
  const nn::Module& base = net;
  CHECK(equal(shown(x), base(x)));
  CHECK(equal(shown.blend(x, x), nn::call(net.blend, x, x)));
  int calls = 0;
  net.register_forward_hook([&](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>&) { ++calls; });
  shown(x);
  nn::call(shown, x);
  CHECK(calls == 2);
  CHECK_THROWS_WITH(shown(ones({4, 2})), ContainsSubstring("(in blend.fc: Linear("));
}

TEST_CASE("const layers and losses with several inputs can be called") {
  const Tensor x = rand({2, 3, 4}), rows = rand({2, 3}), classes = tensor({0, 2});
  const nn::MultiheadAttention attention({.embed_dim = 4, .num_heads = 2, .batch_first = true});
  CHECK(attention(x, x, x, {.is_causal = true}).second.sizes() == Shape{2, 3, 3});
  const nn::EmbeddingBag bag(nn::EmbeddingBag::Options{5, 2});
  CHECK(bag(tensor({1, 4}), tensor({0})).sizes() == Shape{1, 2});
  const nn::MaxUnpool1d unpool({.kernel_size = 2});
  CHECK(unpool(ones({1, 1, 1}), tensor({{{1}}}), {2}).sum().item() == 1);
  const nn::ConvTranspose1d up({.in_channels = 3, .out_channels = 1, .kernel_size = 2, .stride = 2});
  CHECK(up(x, {9}).size(2) == 9);
  const nn::Bilinear bilinear(nn::Bilinear::Options{3, 3, 2});
  CHECK(bilinear(rows, rows).sizes() == Shape{2, 2});
  CHECK(nn::LSTM({.input_size = 4, .hidden_size = 2})(x).first.sizes() == Shape{2, 3, 2});

  const nn::CrossEntropyLoss cross_entropy;
  CHECK(cross_entropy(rows, classes).dim() == 0);
  const nn::NLLLoss nll;
  CHECK(nll(rows, classes).dim() == 0);
  const nn::MSELoss mse;
  CHECK(mse(rows, rows).item() == 0);
  const nn::BCELoss bce;
  CHECK(bce(rows, rows).item() > 0);
  const nn::BCEWithLogitsLoss bce_with_logits;
  CHECK(bce_with_logits(rows, rows).item() > 0);
  const nn::SmoothL1Loss smooth_l1;
  CHECK(smooth_l1(rows, rows).item() == 0);
  const nn::TripletMarginLoss triplet;
  CHECK(triplet(rows, rows, rows).item() == 1);
  const nn::CTCLoss ctc;
  CHECK(ctc(zeros({3, 1, 2}), tensor({{1}}), tensor({3}), tensor({1})).dim() == 0);
}

TEST_CASE("children are made from options in order, or from the arguments of a constructor") {
  struct Block : nn::Module {
    Block(std::int64_t features, const char* function) : in(features), activation(function) {}
    const std::int64_t in;
    const std::string activation;
    nn::Linear& fc = add<nn::Linear>("fc", in, 2 * in, false);
  };
  struct Net : nn::Module {
    nn::Conv2d& conv = add<nn::Conv2d>("conv", 3, 8, Pair{5, 3});
    nn::Conv2d& braces = add<nn::Conv2d>("braces", {3, 8, 3, 2});
    nn::Dropout& dropout = add<nn::Dropout>("dropout", 0.25);
    nn::LayerNorm& norm = add<nn::LayerNorm>("norm", Shape{4, 2});
    nn::ReLU& relu = add<nn::ReLU>("relu");
    Block& block = add<Block>("block", 4, "gelu");
    nn::ModuleList& list = add<nn::ModuleList>("list");
    Net() {
      list.append<nn::Linear>(4, 2);
      list.append<nn::Linear>({4, 3});
      list.append<Block>(5, "relu");
    }
  } net;
  CHECK(net.conv.str() == "Conv2d(in_channels=3, out_channels=8, kernel_size=(5, 3), stride=1)");
  CHECK(net.braces.options.stride == Pair(2));
  CHECK(net.dropout.options.p == 0.25);
  CHECK(net.norm.weight.sizes() == Shape{4, 2});
  CHECK(net.block.activation == "gelu");
  CHECK(net.block.fc.weight.sizes() == Shape{8, 4});
  CHECK_FALSE(net.block.fc.bias.defined());
  CHECK(net.list.get<nn::Linear>(0).options.out_features == 2);
  CHECK(net.list.get<nn::Linear>(1).options.out_features == 3);
  CHECK(net.list.get<Block>(2).in == 5);
  CHECK(nn::make<nn::Linear>(4, 2)->bias.size(0) == 2);
  const nn::Linear braces({4, 2});
  CHECK(braces.weight.sizes() == Shape{2, 4});
  STATIC_REQUIRE_FALSE(nn::MadeFrom<nn::Linear, const char*>);
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<nn::Linear>);
}
