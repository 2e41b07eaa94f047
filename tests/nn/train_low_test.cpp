// Trains models whose parameters are bf16 or f16, and tests what goes with it: clipping, averages, and files.
#include <cmath>
#include <memory>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
namespace F = nn::functional;

namespace {

struct Mlp : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", 6, 16);
  nn::LayerNorm& ln = add<nn::LayerNorm>("ln", {.normalized_shape = {16}});
  nn::Linear& b = add<nn::Linear>("b", 16, 3);
  Tensor forward(const Tensor& x) override { return b(gelu(ln(a(x)))); }
};
struct Cnn : nn::Module {
  nn::Conv2d& conv =
      add<nn::Conv2d>("conv", {.in_channels = 2, .out_channels = 6, .kernel_size = 3, .padding = 1});
  nn::BatchNorm2d& bn = add<nn::BatchNorm2d>("bn", {.num_features = 6});
  nn::Conv2d& depthwise =
      add<nn::Conv2d>("depthwise", {.in_channels = 6, .out_channels = 6, .kernel_size = 3, .groups = 6});
  nn::Linear& fc = add<nn::Linear>("fc", 6, 3);
  Tensor forward(const Tensor& x) override {
    const Tensor h = max_pool2d(bn(conv(x)).relu(), {.kernel_size = 2});
    return fc(adaptive_avg_pool2d(depthwise(h).relu(), 1).flatten(1));
  }
};
struct Recurrent : nn::Module {
  nn::Embedding& words = add<nn::Embedding>("words", {.num_embeddings = 9, .embedding_dim = 6});
  nn::LSTM& lstm = add<nn::LSTM>("lstm", {.input_size = 6, .hidden_size = 8, .num_layers = 2});
  nn::Linear& fc = add<nn::Linear>("fc", 8, 3);
  Tensor forward(const Tensor& x) override { return fc(lstm(words(x)).first.select(0, x.size(0) - 1)); }
};
struct Transformer : nn::Module {
  nn::Embedding& words = add<nn::Embedding>("words", {.num_embeddings = 9, .embedding_dim = 8});
  nn::TransformerEncoderLayer& layer = add<nn::TransformerEncoderLayer>(
      "layer", {.d_model = 8, .nhead = 2, .dim_feedforward = 16, .dropout = 0, .batch_first = true});
  nn::Linear& fc = add<nn::Linear>("fc", 8, 3);
  Tensor forward(const Tensor& x) override { return fc(mean(layer(words(x)), {1})); }
};

template <class Net>
Tensor inputs(DType dtype) {
  manual_seed(7);
  if constexpr (std::is_same_v<Net, Mlp>) return randn({12, 6}).to(dtype);
  else if constexpr (std::is_same_v<Net, Cnn>) return randn({12, 2, 8, 8}).to(dtype);
  else if constexpr (std::is_same_v<Net, Recurrent>) return randint(0, 9, {5, 12});
  else return randint(0, 9, {12, 5});
}

// The first and the last loss.
template <class Net>
std::pair<double, double> train(Net& net, DType dtype, int steps = 60) {
  const Tensor x = inputs<Net>(dtype), y = arange(12, {DType::i64, kCPU}) % 3;
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const Tensor loss = cross_entropy(net(x), y);
    loss.backward();
    nn::clip_grad_norm_(net.parameters(), 1);
    optimizer.step();
    last = loss.item();
    if (step == 0) first = last;
  }
  return {first, last};
}

template <class Net>
void check_training(const char* name) {
  std::pair<double, double> wide;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name, dtype);
    manual_seed(3);
    Net net;
    net.to(dtype);
    for (const auto& [path, t] : net.state_dict()) {
      CAPTURE(path);
      CHECK(t.dtype() == (is_floating(t.dtype()) ? dtype : DType::i64));
    }
    const auto [first, last] = train(net, dtype);
    if (dtype == DType::f32) wide = {first, last};
    // 8 significant bits, of losses near 1.
    CHECK(std::abs(first - wide.first) < 0.05);
    CHECK(last < 0.4 * first);
    CHECK(std::abs(last - wide.second) < 0.1);
    for (const nn::Parameter& p : net.parameters()) CHECK(p->dtype() == dtype);
  }
}

}  // namespace

TEST_CASE("an MLP trains in bf16 and f16 as in f32") { check_training<Mlp>("MLP"); }
TEST_CASE("a CNN with batch norm trains in bf16 and f16 as in f32") { check_training<Cnn>("CNN"); }
TEST_CASE("an LSTM trains in bf16 and f16 as in f32") { check_training<Recurrent>("LSTM"); }
TEST_CASE("a transformer layer trains in bf16 and f16 as in f32") {
  check_training<Transformer>("transformer");
}

TEST_CASE("batch norm of bf16 and f16 updates f32 statistics with f32 accuracy") {
  manual_seed(5);
  const Tensor x = (randn({6, 3, 5, 5}) * 2 + 3).to(DType::bf16);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CAPTURE(dtype);
    Tensor mean = ones({3}), var = ones({3}), wide_mean = ones({3}), wide_var = ones({3});
    const Tensor weight = full({3}, 0.5, {dtype, kCPU}), bias = full({3}, 0.25, {dtype, kCPU});
    for (int i = 0; i < 3; ++i) {
      const Tensor batch = (x + i).to(DType::bf16);
      const Tensor y = batch_norm(batch.to(dtype), mean, var, weight, bias, true, 0.3);
      batch_norm(batch.to(DType::f32), wide_mean, wide_var, {}, {}, true, 0.3);
      CHECK(y.dtype() == dtype);
    }
    CHECK(mean.dtype() == DType::f32);
    CHECK(allclose(mean, wide_mean, 1e-6, 1e-6));
    CHECK(allclose(var, wide_var, 1e-5, 1e-5));
    const Tensor y = batch_norm(x.to(dtype), mean, var, weight, bias, false);
    CHECK(allclose(y.to(DType::f32),
                   batch_norm(x.to(DType::f32), mean, var, weight.to(DType::f32), bias.to(DType::f32), false),
                   0.01, 0.01));
    CHECK_THROWS_WITH(batch_norm(x.to(dtype), mean.to(DType::f64), var.to(DType::f64), weight, bias, true),
                      ContainsSubstring("running_mean"));
    CHECK_THROWS_WITH(batch_norm(x.to(dtype), mean, var.to(dtype), weight, bias, true),
                      ContainsSubstring("running_"));
  }
  Tensor mean = ones({3}), var = ones({3});
  CHECK_THROWS_WITH(batch_norm(x.to(DType::f32), mean.to(DType::bf16), var.to(DType::bf16), {}, {}, true),
                    ContainsSubstring("running_mean"));
}

TEST_CASE("gradients of low precision are clipped by an f32 norm, which does not overflow") {
  const nn::Parameter a("a", zeros({70000}, {DType::f16, kCPU})), b("b", zeros({2}, {DType::f32, kCPU}));
  a->set_grad(full({70000}, 512, {DType::f16, kCPU}));
  b->set_grad(full({2}, 4.0));
  const Tensor norm = nn::clip_grad_norm_({a, b}, 512);
  CHECK(norm.dtype() == DType::f32);
  CHECK(norm.item() == Approx(512 * std::sqrt(70000.0)).epsilon(1e-5));  // 135,465: no f16
  CHECK(a->grad().dtype() == DType::f16);
  CHECK(a->grad().select(0, 69999).item() == Approx(512 / std::sqrt(70000.0)).epsilon(1e-3));
  CHECK(b->grad().select(0, 1).item() == Approx(4 / std::sqrt(70000.0)).epsilon(1e-5));
}

TEST_CASE("averages of bf16 weights are f32, and move by less than half an ulp") {
  nn::Linear net({.in_features = 4, .out_features = 4});
  net.to(DType::bf16);
  const NoGradGuard no_grad;
  net.weight->fill_(1);
  optim::AveragedModel ema(net, {.avg_fn = optim::get_ema_avg(0.999)});
  ema.update_parameters();
  net.weight->fill_(1.0078125);  // the next bf16
  for (int i = 0; i < 100; ++i) ema.update_parameters();
  const nn::StateDict state = ema.state_dict();
  const Tensor& average = *nn::find(state, "module.weight");
  CHECK(average.dtype() == DType::f32);
  CHECK(average.select(0, 0).select(0, 0).item() ==
        Approx(1 + 0.0078125 * (1 - std::pow(0.999, 100))).epsilon(1e-6));
  {
    const auto scope = ema.use();
    CHECK(net.weight->dtype() == DType::bf16);
    CHECK(net.weight->select(0, 0).select(0, 0).item() == 1);
  }
  CHECK(net.weight->select(0, 0).select(0, 0).item() == 1.0078125);
  optim::AveragedModel other(net);
  other.load_state_dict(state);
  CHECK(all(*nn::find(other.state_dict(), "module.weight") == average).item() != 0);
}

TEST_CASE("checkpoints of bf16 models keep dtypes and masters, and training goes on with the same bits") {
  const tests::TempDir folder;
  const std::string path = folder / "run.safetensors";
  manual_seed(3);
  Mlp net, other;
  net.to(DType::bf16);
  other.to(DType::bf16);
  const Tensor x = inputs<Mlp>(DType::bf16), y = arange(12, {DType::i64, kCPU}) % 3;
  optim::AdamW a(net.parameters(), {.lr = 1e-4}), b(other.parameters(), {.lr = 1e-4});
  const auto steps = [&](Mlp& m, optim::Optimizer& optimizer) {
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      cross_entropy(m(x), y).backward();
      optimizer.step();
    }
  };
  steps(net, a);
  nn::save_checkpoint(path, {.model = &net, .optimizer = &a}, {.step = 3});
  nn::load_checkpoint(path, {.model = &other, .optimizer = &b});
  steps(net, a);
  steps(other, b);
  const nn::StateDict want = net.state_dict(), got = other.state_dict();
  for (std::size_t i = 0; i < want.size(); ++i) {
    CHECK(got[i].second.dtype() == DType::bf16);
    CHECK(all(got[i].second == want[i].second).item() != 0);
  }
  const nn::StateDict state = a.state_dict(), loaded = b.state_dict();
  const Tensor* const master = nn::find(loaded, "state.0.master_param");
  REQUIRE(master != nullptr);
  CHECK(all(*master == *nn::find(state, "state.0.master_param")).item() != 0);
}

TEST_CASE("summary() shows dtypes other than f32") {
  Mlp net;
  CHECK_THAT(net.summary({2, 6}), !ContainsSubstring("float32"));
  net.to(DType::bf16);
  const std::string text = net.summary({2, 6}, DType::bf16);
  INFO(text);
  CHECK_THAT(text, ContainsSubstring("b: Linear      [2, 3] bfloat16"));
  CHECK_THAT(text, ContainsSubstring("trained), bfloat16\n"));
  net.ln.to(DType::f32);
  CHECK_THAT(net.summary(), ContainsSubstring("trained), bfloat16 163, float32 32\n"));
}
