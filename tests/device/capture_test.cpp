// Captured steps: a replay computes what the step would compute, and what a graph cannot repeat is refused.
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "tapestry/core/cuda/capture.h"
#include "tapestry/tapestry.h"
#include "tests/device/models.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

using namespace tapestry;
using namespace device_tests;

namespace {

const Device kGpu{DeviceType::cuda, 0};

/// Linear layers with dropout between them.
struct Mlp : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 12, .out_features = 8});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 8, .out_features = 5});
  double p = 0.3;
  Tensor forward(const Tensor& x) override {
    const Tensor hidden = linear_relu(x, fc1.weight, fc1.bias);
    return fc2(dropout(hidden, p, is_training()));
  }
};

/// Attention with dropout of its weights and of its result.
struct Attends : nn::Module {
  nn::Linear& qkv = add<nn::Linear>("qkv", {.in_features = 6, .out_features = 24});
  nn::Linear& out = add<nn::Linear>("out", {.in_features = 8, .out_features = 5});
  Tensor forward(const Tensor& x) override {
    const std::vector<Tensor> t = chunk(qkv(x).reshape({2, 7, 6, 4}).transpose(1, 2), 3, 1);
    const Tensor y = scaled_dot_product_attention(
        t[0], t[1], t[2], {.dropout_p = is_training() ? 0.25 : 0.0, .is_causal = true});
    return out(dropout(y.transpose(1, 2).reshape({2, 7, 8}), 0.1, is_training()));
  }
};

enum class Kind { sgd, adamw, rmsprop };

std::unique_ptr<optim::Optimizer> make_optimizer(Kind kind, const std::vector<nn::Parameter>& params) {
  if (kind == Kind::sgd)
    return std::make_unique<optim::SGD>(params, optim::SGD::Options{.lr = 0.05, .momentum = 0.9});
  if (kind == Kind::adamw) return std::make_unique<optim::AdamW>(params, optim::AdamW::Options{.lr = 0.01});
  return std::make_unique<optim::RMSprop>(params, optim::RMSprop::Options{.lr = 0.01, .momentum = 0.5});
}

/// Trains a model with a one-cycle schedule. All random numbers come from one seed.
class Run {
 public:
  Run(std::unique_ptr<nn::Module> model, Kind kind, Tensor x, Tensor target)
      : model_(std::move(model)), x_(std::move(x)), target_(std::move(target)) {
    model_->to(kGpu);
    optimizer_ = make_optimizer(kind, model_->parameters());
    schedule_ = std::make_unique<optim::OneCycleLR>(
        *optimizer_, optim::OneCycleLR::Options{.max_lr = 0.1, .total_steps = 60});
    manual_seed(7);
  }
  void work() {
    optimizer_->zero_grad();
    const Tensor y = (*model_)(x_);
    loss = cross_entropy(y.reshape({-1, y.size(-1)}), target_);
    loss.backward();
    nn::clip_grad_norm_(model_->parameters(), 0.5);
    optimizer_->step();
  }
  /// Trains for `steps` steps on changing inputs. Returns the losses and the parameters.
  std::vector<Tensor> train(int steps, const std::function<void()>& step) {
    std::vector<Tensor> results;
    for (int i = 0; i < steps; ++i) {
      if (is_floating(x_.dtype())) x_.add_(0.01);
      step();
      schedule_->step();
      results.push_back(loss.detach().clone());
    }
    for (const nn::Parameter& p : model_->parameters()) results.push_back(p->detach().clone());
    for (Tensor& t : results) t = t.cpu();
    return results;
  }
  std::vector<Tensor> train(int steps) {
    return train(steps, [this] { work(); });
  }
  optim::Optimizer& optimizer() { return *optimizer_; }

  Tensor loss;

 private:
  std::unique_ptr<nn::Module> model_;
  Tensor x_, target_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::OneCycleLR> schedule_;
};

Run mlp(Kind kind, double p = 0.3) {
  manual_seed(3);
  auto model = std::make_unique<Mlp>();
  model->p = p;
  return Run(std::move(model), kind, randn({6, 12}, kCPU).to(kGpu), (arange(6) % 5).to(kGpu));
}

void check_equal_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    REQUIRE(a[i].sizes() == b[i].sizes());
    CHECK(std::memcmp(a[i].raw_data(), b[i].raw_data(), a[i].nbytes()) == 0);
  }
}

/// Calls f, which must throw an E whose message contains `part`.
template <class E, class F>
void check_throws(const F& f, const char* part) {
  try {
    f();
    FAIL_CHECK("nothing was thrown; expected " << part);
  } catch (const E& e) {
    CHECK_THAT(e.what(), ContainsSubstring(part));
  }
}

template <class F>
void check_refused(const char* operation, F step) {
  CAPTURE(operation);
  const std::array<std::uint64_t, 2> random = default_generator(kGpu).state();
  check_throws<cuda::CaptureError>([&] { static_cast<void>(cuda::capture(step, {.warm_up = 0})); },
                                   operation);
  CHECK(default_generator(kGpu).state() == random);
  const Tensor x = full({3}, 2.0, {DType::f32, kGpu});  // the device is usable
  CHECK((x * x).sum().item() == 12);
}

}  // namespace

TEST_CASE("50 replayed steps with dropout and a one-cycle schedule equal 50 eager ones bit for bit") {
  if (no_gpu()) return;
  for (const Kind kind : {Kind::sgd, Kind::adamw, Kind::rmsprop}) {
    CAPTURE(static_cast<int>(kind));
    Run eager = mlp(kind);
    eager.train(2);
    const std::vector<Tensor> expected = eager.train(50);
    Run captured = mlp(kind);
    captured.train(2);
    auto step = cuda::capture([&] { captured.work(); }, {.warm_up = 0});
    check_equal_bits(captured.train(50, [&] { step(); }), expected);
    // Random numbers, step counts and momenta continue where the replays ended.
    manual_seed(11);
    const std::vector<Tensor> after = eager.train(3);
    manual_seed(11);
    check_equal_bits(captured.train(3), after);
  }
}

TEST_CASE("50 replayed steps with dropout inside attention equal 50 eager ones bit for bit") {
  if (no_gpu()) return;
  const auto make = [] {
    manual_seed(3);
    return Run(std::make_unique<Attends>(), Kind::adamw, randn({2, 7, 6}, kCPU).to(kGpu),
               (arange(14) % 5).to(kGpu));
  };
  Run eager = make();
  eager.train(2);
  const std::vector<Tensor> expected = eager.train(50);
  Run captured = make();
  captured.train(2);
  auto step = cuda::capture([&] { captured.work(); }, {.warm_up = 0});
  check_equal_bits(captured.train(50, [&] { step(); }), expected);
  // The masks differ from step to step: the loss of the same inputs and weights does, too.
  captured.optimizer().set_lr(0);
  step();
  const double one = captured.loss.item();
  step();
  CHECK(captured.loss.item() != one);
}

TEST_CASE("replayed steps of a transformer equal eager ones bit for bit") {
  if (no_gpu()) return;
  const auto make = [] {
    manual_seed(3);
    return Run(std::make_unique<Transformer>(), Kind::adamw, ((arange(14) * 5) % 11).reshape({2, 7}).to(kGpu),
               (arange(14) % 11).to(kGpu));
  };
  Run eager = make();
  const std::vector<Tensor> expected = eager.train(5);
  Run captured = make();
  const std::vector<Tensor> first = captured.train(1);
  auto step = cuda::capture([&] { captured.work(); }, {.warm_up = 0});
  std::vector<Tensor> found = captured.train(4, [&] { step(); });
  found.insert(found.begin(), first[0]);
  check_equal_bits(found, expected);
}

TEST_CASE("replayed steps with a GradScaler, clipping and an average of the weights equal eager ones") {
  if (no_gpu()) return;
  struct Scaled {
    Scaled() {
      net.to(kGpu);
      x = randn({6, 12}, kCPU).to(kGpu);
    }
    void work() {
      optimizer.zero_grad();
      loss = cross_entropy(net(x), target);
      scaler.scale(loss).backward();
      scaler.unscale_(optimizer);
      nn::clip_grad_norm_(net.parameters(), 0.5);
      scaler.step(optimizer);
      scaler.update();
      average.update_parameters();
    }
    // The parameters, their averages and the scale after each of 12 steps, of which the fourth has an
    // infinite input.
    std::vector<Tensor> train(const std::function<void()>& step) {
      std::vector<Tensor> results;
      for (int i = 0; i < 12; ++i) {
        const Tensor kept = x.clone();
        if (i == 3) x.narrow(0, 2, 1).fill_(std::numeric_limits<double>::infinity());
        step();
        x.copy_(kept);
        for (const nn::Parameter& p : net.parameters()) results.push_back(p->detach().cpu().clone());
        for (const auto& [name, t] : average.state_dict()) results.push_back(t.cpu().clone());
        results.push_back(full({}, scaler.get_scale()));
      }
      return results;
    }
    Mlp net;
    optim::AdamW optimizer{net.parameters(), {.lr = 0.01}};
    optim::GradScaler scaler{{.init_scale = 8, .growth_interval = 3}};
    optim::AveragedModel average{net, {.avg_fn = optim::get_ema_avg(0.75)}};
    Tensor x, target = (arange(6) % 5).to(kGpu), loss;
  };
  manual_seed(3);
  Scaled eager;
  manual_seed(3);
  Scaled captured;
  manual_seed(7);
  eager.work();
  const std::vector<Tensor> expected = eager.train([&] { eager.work(); });
  manual_seed(7);
  captured.work();
  auto step = cuda::capture([&] { captured.work(); }, {.warm_up = 0});
  check_equal_bits(captured.train([&] { step(); }), expected);
  std::vector<double> scales;
  for (std::size_t i = 9; i < expected.size(); i += 10) scales.push_back(expected[i].item());
  // It doubles after 3 good steps in a row, the first of which was before these, and is halved by the fourth.
  CHECK(scales == std::vector<double>{8, 16, 16, 8, 8, 8, 16, 16, 16, 32, 32, 32});
}

TEST_CASE("a replay reports an index out of range, once") {
  if (no_gpu()) return;
  nn::Embedding embedding({.num_embeddings = 11, .embedding_dim = 4});
  embedding.to(kGpu);
  const Tensor index = ((arange(14) * 5) % 11).to(kGpu);
  Tensor y;
  auto step = cuda::capture([&] { y = embedding(index) * 2; }, {.warm_up = 1});
  step();
  CHECK(allclose(y.cpu(), (embedding(index) * 2).cpu()));
  index.narrow(0, 5, 1).fill_(99);
  step();
  check_throws<IndexError>([&] { synchronize(kGpu); }, "position 5");
  index.fill_(3);
  step();
  synchronize(kGpu);
  CHECK(allclose(y.cpu(), (embedding(index) * 2).cpu()));
}

TEST_CASE("replays draw the numbers that the operations would draw, and checkpoint() draws them twice") {
  if (no_gpu()) return;
  Tensor a, b, c;
  const auto draw = [&] {
    a = rand({37}, kGpu);
    b = randn({5}, kGpu) + randint(0, 9, {5}, {DType::i64, kGpu}).to(DType::f32);
    c = randperm(11, {DType::i64, kGpu});
  };
  manual_seed(5);
  std::vector<Tensor> expected, found;
  draw();
  const auto note = [&](std::vector<Tensor>& to) {
    for (const Tensor& t : {a, b, c}) to.push_back(t.cpu().clone());
  };
  for (int i = 0; i < 3; ++i) draw(), note(expected);
  manual_seed(5);
  auto step = cuda::capture(draw, {.warm_up = 1});
  for (int i = 0; i < 3; ++i) step(), note(found);
  check_equal_bits(found, expected);

  const Tensor x = ones({4, 9}, kGpu).requires_grad_();
  const auto twice = [&] {
    x.set_grad({});
    const Tensor y = checkpoint([](const Tensor& v) { return dropout(v, 0.5, true); }, x);
    y.sum().backward();
    a = y - x.grad();  // both are 0 or 2
  };
  auto recomputed = cuda::capture(twice, {.warm_up = 1});
  for (int i = 0; i < 3; ++i) {
    recomputed();
    CHECK(a.abs().sum().item() == 0);
  }
}

TEST_CASE("what a graph cannot repeat is an error that names the operation, and the device stays usable") {
  if (no_gpu()) return;
  const Tensor x = ones({8}, kGpu), on_host = ones({8});
  check_refused("[item]", [&] { static_cast<void>(x.sum().item()); });
  check_refused("[cpu]", [&] { static_cast<void>(x.cpu()); });
  check_refused("[to]", [&] { static_cast<void>(on_host.to(kGpu)); });
  check_refused("runs on cpu:0", [&] { static_cast<void>(on_host + on_host); });
  check_refused("[synchronize]", [&] { synchronize(kGpu); });
  check_refused("[Stream::synchronize]", [&] { current_stream(kGpu).synchronize(); });
  check_refused("[Stream::done]", [&] { static_cast<void>(current_stream(kGpu).done()); });
  check_refused("[Event::record]", [&] { Event().record(current_stream(kGpu)); });
  Event before;
  before.record(current_stream(kGpu));
  check_refused("[Event::done]", [&] { static_cast<void>(before.done()); });
  check_refused("[Stream::wait]", [&] { current_stream(kGpu).wait(before); });
  check_refused("another stream", [&] {
    const StreamGuard guard(new_stream(kGpu));
    static_cast<void>(x + x);
  });
  check_refused("[manual_seed]", [&] { manual_seed(1); });
  check_refused("[Generator]", [&] { static_cast<void>(rand({3}, kCPU)); });
  if (device_count(DeviceType::cuda) > 1) {
    const Tensor other = ones({8}, Device("cuda:1"));
    check_refused("runs on cuda:1", [&] { static_cast<void>(other + other); });
  }
  Run run = mlp(Kind::adamw);
  check_refused("[AdamW]", [&] { run.work(); });  // it has no state yet
  Tensor y;
  auto inner = cuda::capture([&] { y = x + x; }, {.warm_up = 0});
  check_refused("[CapturedStep::replay]", [&] { inner(); });
}

TEST_CASE("what reads values on the host is an error that names the operation, not item()") {
  if (no_gpu()) return;
  const Tensor x = ones({8}, kGpu), mask = x > 0, index = (arange(4) % 3).to(kGpu), square = eye(3, 3, kGpu);
  check_refused("[nonzero]", [&] { static_cast<void>(nonzero(x)); });
  check_refused("[masked_select]", [&] { static_cast<void>(masked_select(x, mask)); });
  check_refused("[index]", [&] { static_cast<void>(x.index({mask})); });
  check_refused("[unique]", [&] { static_cast<void>(unique(x)); });
  check_refused("[bincount]", [&] { static_cast<void>(bincount(index)); });
  check_refused("[histc]", [&] { static_cast<void>(histc(x, 4, 0, 0)); });
  check_refused("[one_hot]", [&] { static_cast<void>(one_hot(index)); });
  check_refused("[repeat_interleave]", [&] { static_cast<void>(repeat_interleave(index, index)); });
  check_refused("[equal]", [&] { static_cast<void>(equal(x, x)); });
  check_refused("[allclose]", [&] { static_cast<void>(allclose(x, x)); });
  check_refused("[nanquantile]", [&] { static_cast<void>(nanquantile(x, 0.5)); });
  check_refused("[multinomial]", [&] { static_cast<void>(multinomial(x, 2)); });
  check_refused("[linalg.inv]", [&] { static_cast<void>(linalg::inv(square)); });
  check_refused("[ctc_loss]", [&] {
    static_cast<void>(ctc_loss(ones({4, 1, 3}, kGpu), index.narrow(0, 1, 2).reshape({1, 2}),
                               full({1}, 4, {DType::i64, kGpu}), full({1}, 2, {DType::i64, kGpu})));
  });
  const Tensor leaf = ones({3}, kGpu).requires_grad_();
  check_refused("[cumprod]", [&] {
    static_cast<void>(autograd::grad({cumprod(leaf, 0).sum()}, {leaf}, {.create_graph = true}));
  });
  check_refused("[DetectAnomaly]", [&] {
    const autograd::DetectAnomaly anomaly;
    (leaf * 2).sum().backward();
  });
  nn::BatchNorm1d norm({.num_features = 8, .momentum = std::nullopt});
  norm.to(kGpu);
  check_refused("[batch_norm]", [&] { static_cast<void>(norm(x.reshape({1, 8}).expand({2, 8}))); });
}

TEST_CASE("optimizers, clipping and averages that a graph cannot repeat are refused by their names") {
  if (no_gpu()) return;
  nn::Linear net({.in_features = 3, .out_features = 2, .bias = false});
  net.to(kGpu);
  const Tensor x = ones({4, 3}, kGpu);
  const auto loss = [&] { return net(x).square().sum(); };
  loss().backward();
  check_refused("[clip_grad_norm_]",
                [&] { static_cast<void>(nn::clip_grad_norm_(net.parameters(), 1.0, 2, true)); });
  optim::LBFGS lbfgs(net.parameters(), {});
  check_refused("[LBFGS]", [&] {
    static_cast<void>(lbfgs.step([&] {
      lbfgs.zero_grad();
      const Tensor l = loss();
      l.backward();
      return l;
    }));
  });
  optim::Muon muon(net.parameters(), {});
  check_refused("[Muon]", [&] { muon.step(); });
  optim::GradScaler scaler;
  muon.zero_grad();
  scaler.scale(loss()).backward();
  check_refused("[Muon]", [&] { scaler.step(muon); });
  optim::AveragedModel first(net, {.avg_fn = optim::get_ema_avg(0.9)}), mean(net);
  check_refused(
      "[AveragedModel] a step that cuda::capture() records cannot do this; call update_parameters()",
      [&] { first.update_parameters(); });
  mean.update_parameters();
  check_refused("[AveragedModel]", [&] { mean.update_parameters(); });
}

TEST_CASE("bad arguments of capture, and replays that no longer fit") {
  if (no_gpu()) return;
  CHECK_THROWS_AS(cuda::capture({}), ValueError);
  CHECK_THROWS_AS(cuda::capture([] {}, {.warm_up = -1}), ValueError);
  CHECK_THROWS_AS(cuda::capture([] {}, {.device = kCPU}), DeviceError);
  CHECK_THROWS_AS(cuda::capture([] {}, {.device = {DeviceType::cuda, 60}}), DeviceError);
  check_throws<std::runtime_error>(
      [&] { static_cast<void>(cuda::capture([] { throw std::runtime_error("mine"); }, {.warm_up = 0})); },
      "mine");

  const auto state = default_generator(kGpu).state();
  default_generator(kGpu).set_state({1, ~std::uint64_t{0} - 5});
  CHECK_THROWS_AS(rand({3}, kGpu), ValueError);
  default_generator(kGpu).set_state(state);

  Run run = mlp(Kind::adamw, 0.0);
  auto step = cuda::capture([&] { run.work(); }, {.warm_up = 1});
  step();
  run.optimizer().set_option(0, "weight_decay", 0.5);
  check_throws<ValueError>([&] { step(); }, "weight_decay");
  auto moved = std::move(step);
  CHECK_THROWS_AS(step.nodes(), ValueError);  // NOLINT(bugprone-use-after-move)
  CHECK(moved.nodes() > 0);

  const Tensor w = ones({4}, kGpu);
  auto other = std::make_unique<Run>(mlp(Kind::sgd));
  auto late = cuda::capture([&] { other->work(); }, {.warm_up = 1});
  other.reset();
  check_throws<ValueError>([&] { late(); }, "no longer exists");
}

TEST_CASE("the memory of a captured step belongs to it until it is destroyed") {
  if (no_gpu()) return;
  const Tensor x = full({1 << 18}, 3.0, {DType::f32, kGpu});  // 1 MiB
  synchronize(kGpu);
  empty_cache(DeviceType::cuda);
  const std::int64_t before = memory_stats(kGpu).reserved;
  Tensor y;
  {
    auto step = cuda::capture(
        [&] {
          const Tensor a = x * 2;  // freed in the step, and used again by each replay
          y = a + 1;
        },
        {.warm_up = 1});
    empty_cache(DeviceType::cuda);
    std::vector<Tensor> others;
    for (int i = 0; i < 8; ++i) others.push_back(full({1 << 18}, -1.0, {DType::f32, kGpu}));
    step();
    for (const Tensor& t : others) CHECK(t.min().item() == -1);
    CHECK(y.min().item() == 7);
    CHECK(y.max().item() == 7);
    CHECK(memory_stats(kGpu).reserved > before);
  }
  y = {};
  empty_cache(DeviceType::cuda);
  CHECK(memory_stats(kGpu).reserved == before);
}
