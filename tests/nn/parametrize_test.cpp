// Parametrizations: when the parameter is computed, what is trained, saved and moved, and what is refused.
#include "tapestry/nn/parametrize.h"

#include <thread>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

nn::Linear::Options small() { return {.in_features = 3, .out_features = 2}; }

// Computes the exponential, and counts how often.
struct Exponential : nn::Parametrization {
  explicit Exponential(int& count) : calls(count) {}
  Tensor compute(const std::vector<Tensor>& originals) override {
    ++calls;
    return exp(originals[0]);
  }
  std::vector<Tensor> right_inverse(const Tensor& value) override { return {log(value)}; }
  int& calls;
};

// Returns what the test tells it to.
struct Wrong : nn::Parametrization {
  explicit Wrong(std::function<Tensor(const Tensor&)> f, std::vector<Tensor> o = {}, bool own = false)
      : function(std::move(f)), inverse(std::move(o)), has_inverse(own) {}
  Tensor compute(const std::vector<Tensor>& originals) override { return function(originals[0]); }
  std::vector<Tensor> right_inverse(const Tensor& value) override {
    return has_inverse ? inverse : std::vector{value};
  }
  std::function<Tensor(const Tensor&)> function;
  std::vector<Tensor> inverse;
  bool has_inverse;
};

std::vector<std::string> names_of(const nn::StateDict& dict) {
  std::vector<std::string> names;
  for (const auto& [name, t] : dict) names.push_back(name);
  return names;
}

}  // namespace

TEST_CASE("a parametrized parameter is computed once per call, and on each read between calls") {
  nn::Linear net(small());
  {
    const NoGradGuard no_grad;
    net.weight->fill_(2.0);
  }
  int calls = 0;
  nn::register_parametrization(net, "weight", std::make_shared<Exponential>(calls));
  CHECK(nn::is_parametrized(net));
  CHECK_FALSE(nn::is_parametrized(net, "bias"));
  CHECK(names_of(net.state_dict()) == std::vector<std::string>{"bias", "parametrizations.weight.original"});
  CHECK(net.parameters().size() == 2);
  calls = 0;
  const Tensor x = ones({1, 3});
  const Tensor y = net(x);  // Linear::forward reads the weight several times
  CHECK(calls == 1);
  CHECK(allclose(y - net.bias, full({1, 2}, 6.0)));
  CHECK(allclose(net.weight, full({2, 3}, 2.0)));
  CHECK(calls == 2);
  CHECK(net.weight->requires_grad());
  y.sum().backward();
  const nn::Parameter original = net.parameters()[1];
  CHECK(allclose(original->grad(), full({2, 3}, 2.0)));  // d/do sum_i exp(o) x_i = exp(o)

  // An error inside forward ends the call too: the next read computes the parameter again.
  CHECK_THROWS_AS(net(ones({1, 4})), ValueError);
  {
    const NoGradGuard no_grad;
    original->fill_(0.0);
  }
  CHECK(allclose(net.weight, ones({2, 3})));
  CHECK(net.str().find("(parametrizations): ModuleDict(") != std::string::npos);
  CHECK(net.str().find("(weight): ParametrizationList(") != std::string::npos);
}

TEST_CASE("optimizers made before spectral_norm train the original; the state loads, freezes and moves") {
  manual_seed(5);
  nn::Linear net(small());
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  nn::spectral_norm(net);
  const nn::Parameter original = net.at("parametrizations.weight").parameters()[0];
  const Tensor before = original->detach().clone();
  net(ones({1, 3})).sum().backward();
  optimizer.step();
  CHECK_FALSE(equal(original, before));

  nn::Linear other(small());
  nn::spectral_norm(other);
  other.load_state_dict(net.state_dict());
  net.eval(), other.eval();
  const Tensor x = randn({4, 3});
  CHECK(equal(net(x), other(x)));
  CHECK_THROWS_WITH(nn::Linear(small()).load_state_dict(net.state_dict()),
                    ContainsSubstring("missing: weight"));

  net.requires_grad_(false);
  CHECK_FALSE(net.weight->requires_grad());
  net.requires_grad_(true);
  net.to(DType::f64);
  CHECK(net.weight->dtype() == DType::f64);
  CHECK(net(x.to(DType::f64)).dtype() == DType::f64);
}

TEST_CASE("spectral_norm: the largest singular value becomes 1, in training and in evaluation") {
  manual_seed(6);
  nn::Conv2d conv(nn::Conv2d::Options{.in_channels = 3, .out_channels = 5, .kernel_size = 2});
  conv.to(DType::f64);
  nn::spectral_norm(conv, "weight", {.n_power_iterations = 20});
  for (int i = 0; i < 60; ++i) conv(randn({1, 3, 4, 4}, DType::f64));
  conv.eval();
  const Tensor matrix = conv.weight->detach().flatten(1);
  Tensor v = ones({12}, DType::f64);
  for (int i = 0; i < 2000; ++i) {
    v = mv(matrix.t(), mv(matrix, v));
    v = v / v.norm();
  }
  CHECK(mv(matrix, v).norm().item() == Approx(1).epsilon(1e-6));
  const nn::StateDict before = conv.state_dict();
  const Tensor u = before[2].second.clone();
  CHECK(before[2].first == "parametrizations.weight.0._u");
  conv(randn({1, 3, 4, 4}, DType::f64));
  CHECK(equal(conv.state_dict()[2].second, u));  // evaluation changes nothing
}

TEST_CASE("spectral_norm: recomputation by checkpoint() neither iterates again nor changes the gradient") {
  const auto run = [](bool recompute) {
    manual_seed(7);
    nn::Linear net(small());
    nn::spectral_norm(net);
    const Tensor x = randn({4, 3}).set_requires_grad();
    const Tensor y = recompute ? checkpoint([&](const Tensor& in) { return net(in); }, x) : net(x);
    y.sum().backward();
    std::vector<Tensor> all{y.detach(), x.grad()};
    for (const auto& [name, t] : net.state_dict()) all.push_back(t);
    return all;
  };
  const auto plain = run(false), again = run(true);
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(equal(plain[i], again[i]));
}

TEST_CASE("two backward passes through calls of one spectrally normalised module work") {
  nn::Linear net(small());
  nn::spectral_norm(net);
  const Tensor x = randn({4, 3}), first = net(x), second = net(x);  // the second call changes _u and _v
  first.sum().backward();
  second.sum().backward();
  CHECK(net.at("parametrizations.weight").parameters()[0]->grad().abs().sum().item() > 0);
}

TEST_CASE("weight_norm: the norms and directions are trained, and removing it keeps the weight") {
  manual_seed(8);
  nn::Linear net(small());
  const Tensor weight = net.weight->detach().clone(), x = randn({4, 3});
  nn::weight_norm(net);
  CHECK(allclose(net.weight, weight));
  const auto params = net.at("parametrizations.weight").parameters();
  CHECK(params[0]->sizes() == Shape{2, 1});
  {
    const NoGradGuard no_grad;
    params[0].mul_(3);
    params[1].mul_(5);  // the length of the directions does not matter
  }
  CHECK(allclose(net.weight, weight * 3));
  const Tensor y = net(x);
  nn::remove_parametrizations(net);
  CHECK_FALSE(nn::is_parametrized(net));
  CHECK(names_of(net.state_dict()) == std::vector<std::string>{"weight", "bias"});
  CHECK(net.children().empty());
  CHECK(net.weight->is_leaf());
  CHECK(net.weight->requires_grad());
  CHECK(allclose(net(x), y));
  nn::weight_norm(net);  // it can be parametrized again
  CHECK(allclose(net(x), y));
}

TEST_CASE("remove_parametrizations keeps a single original's slot, with the computed value or its own") {
  for (const bool leave : {true, false}) {
    manual_seed(9);
    nn::Linear net(small());
    const nn::Parameter slot = net.weight;
    nn::spectral_norm(net);
    net.eval();
    const Tensor computed = net.weight->detach().clone(), original = slot->detach().clone();
    nn::remove_parametrizations(net, "weight", leave);
    CHECK(net.weight.is_same(slot));
    CHECK(equal(net.weight, leave ? computed : original));
  }
  nn::Linear net(small());
  CHECK_THROWS_WITH(nn::remove_parametrizations(net), ContainsSubstring("has no parametrization"));
  nn::weight_norm(net);
  CHECK_THROWS_WITH(nn::remove_parametrizations(net, "weight", false), ContainsSubstring("2 originals"));
  CHECK(nn::is_parametrized(net));
}

TEST_CASE("a frozen parameter has frozen originals, and gets back a frozen parameter") {
  nn::Linear net(small());
  net.weight.requires_grad_(false);
  nn::weight_norm(net);
  for (const nn::Parameter& p : net.at("parametrizations.weight").parameters())
    CHECK_FALSE(p.requires_grad());
  nn::remove_parametrizations(net);
  CHECK_FALSE(net.weight.requires_grad());
}

TEST_CASE("a copy of a parametrized slot outlives its module") {
  nn::Parameter weight;
  Tensor expected;
  {
    nn::Linear net(small());
    nn::weight_norm(net);
    weight = net.weight;
    expected = weight->detach().clone();
  }
  CHECK(equal(weight, expected));
  CHECK(weight.replicas() == 0);
  CHECK_THROWS_WITH(weight.replica(0), ContainsSubstring("is computed from other parameters"));
  CHECK_THROWS_WITH(weight.set_replicas({ones({2, 3})}),
                    ContainsSubstring("is computed from other parameters"));
}

TEST_CASE("several threads may call a parametrized module at the same time") {
  nn::Linear net(small());
  nn::spectral_norm(net);
  net.eval();
  const Tensor x = randn({4, 3});
  const Tensor expected = net(x).detach();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) wrong += !equal(net(x), expected);
    });
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("attention reads a parametrized projection inside its own call") {
  nn::MultiheadAttention attention({.embed_dim = 4, .num_heads = 2});
  nn::weight_norm(attention, "in_proj_weight");
  const Tensor x = randn({3, 2, 4});
  attention(x, x, x).first.sum().backward();
  for (const nn::Parameter& p : attention.at("parametrizations.in_proj_weight").parameters())
    CHECK(p.grad().defined());
}

TEST_CASE("what cannot be parametrized is refused, and the module stays as it was") {
  nn::Linear net(small());
  const auto refused = [&](std::shared_ptr<nn::Parametrization> p, const std::string& text,
                           const std::string& name = "weight") {
    INFO(text);
    CHECK_THROWS_WITH(nn::register_parametrization(net, name, std::move(p)), ContainsSubstring(text));
    CHECK(names_of(net.state_dict()) == std::vector<std::string>{"weight", "bias"});
    CHECK_FALSE(nn::is_parametrized(net));
    CHECK(net.weight->is_leaf());
  };
  const auto same = [](const Tensor& t) { return t; };
  refused(nullptr, "the parametrization is null");
  refused(std::make_shared<Wrong>(same), "has no parameter 'w'", "w");
  refused(std::make_shared<Wrong>([](const Tensor& t) { return t.t(); }), "of shape [3, 2]");
  refused(std::make_shared<Wrong>([](const Tensor& t) { return t.to(DType::f64); }), "computes a float64");
  refused(std::make_shared<Wrong>([](const Tensor&) { return Tensor(); }), "undefined");
  refused(std::make_shared<Wrong>(same, std::vector<Tensor>{}, true), "gave no tensors");
  refused(std::make_shared<Wrong>(same, std::vector{Tensor()}, true), "undefined");
  CHECK_THROWS_AS(nn::weight_norm(net, "weight", 2), IndexError);
  CHECK_THROWS_AS(nn::weight_norm(net, "weight", -1), IndexError);
  CHECK_THROWS_AS(nn::spectral_norm(net, "weight", {.dim = 2}), IndexError);
  CHECK_THROWS_WITH(nn::spectral_norm(net, "weight", {.n_power_iterations = 0}),
                    ContainsSubstring("n_power_iterations must be positive"));
  CHECK_THROWS_WITH(nn::spectral_norm(net, "weight", {.eps = -1}),
                    ContainsSubstring("eps must not be negative"));
  CHECK_THROWS_WITH(nn::spectral_norm(net, "v"), ContainsSubstring("has no parameter 'v'"));
  CHECK(names_of(net.state_dict()) == std::vector<std::string>{"weight", "bias"});

  nn::weight_norm(net);
  CHECK_THROWS_WITH(nn::weight_norm(net), ContainsSubstring("has a parametrization already"));
  CHECK_THROWS_WITH(nn::weight_norm(net), ContainsSubstring("may have several"));
  const auto names = names_of(net.state_dict());
  const Tensor value = net.weight->detach().clone();
  const auto refused_second = [&](std::shared_ptr<nn::Parametrization> p, const std::string& text) {
    CHECK_THROWS_WITH(nn::register_parametrization(net, "weight", p), ContainsSubstring(text));
    CHECK(names_of(net.state_dict()) == names);
    CHECK(equal(net.weight->detach(), value));
  };
  refused_second(nullptr, "the parametrization is null");
  refused_second(std::make_shared<Wrong>([](const Tensor& t) { return t.t(); }), "of shape [3, 2]");
  refused_second(std::make_shared<Wrong>([](const Tensor& t) { return t.to(DType::f64); }),
                 "computes a float64");
  refused_second(std::make_shared<Wrong>(same, std::vector<Tensor>{}, true), "has 0 originals");
}

TEST_CASE("a second parametrization gets what the first computes; both are saved, and end together") {
  manual_seed(9);
  nn::Linear net(small());
  const Tensor weight = net.weight->detach().clone();
  int calls = 0;
  nn::register_parametrization(net, "weight", std::make_shared<Wrong>([](const Tensor& t) { return t * 2; }));
  nn::register_parametrization(net, "weight", std::make_shared<Exponential>(calls));
  CHECK(allclose(net.weight, exp(weight * 2)));
  CHECK(names_of(net.state_dict()) == std::vector<std::string>{"bias", "parametrizations.weight.original"});
  calls = 0;
  net(ones({1, 3})).sum().backward();
  CHECK(calls == 1);
  const nn::Parameter original = net.at("parametrizations.weight").parameters()[0];
  CHECK(allclose(original->grad(), exp(weight * 2) * 2));
  CHECK(net.str().find("(1): ") != std::string::npos);

  net.eval();
  nn::spectral_norm(net);  // of a module in evaluation, which stays so
  CHECK_FALSE(net.at("parametrizations.weight.2").is_training());
  net.train();
  CHECK(net.at("parametrizations.weight.0").is_training());
  CHECK(names_of(net.state_dict()).back() == "parametrizations.weight.2._v");
  net.eval();
  const Tensor value = net.weight->detach().clone();
  nn::remove_parametrizations(net);
  CHECK_FALSE(nn::is_parametrized(net));
  CHECK(equal(net.weight->detach(), value));
  CHECK(names_of(net.state_dict()) == std::vector<std::string>{"weight", "bias"});
}
