// Mixtures of experts beside a dense loop in float64: each expert computes every token, and a matrix of
// weights, 0 where a token does not go, adds the results.
#include "tapestry/nn/layers/moe.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/gradcheck.h"
#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;
using nn::MixtureOfExperts;
using nn::RouterBalance;
using nn::RouterScore;

namespace {

constexpr std::int64_t kDim = 6, kExperts = 5;

MixtureOfExperts::Options small() {
  return {.embed_dim = kDim, .hidden_dim = 4, .num_experts = kExperts, .top_k = 2};
}

// The layer in f64 with weights large enough that the router prefers some experts.
void fill_large(MixtureOfExperts& moe, DType dtype = DType::f64) {
  moe.to(dtype);
  const NoGradGuard no_grad;
  int k = 0;
  for (const auto& [name, p] : moe.named_parameters()) p->copy_(formula(p->sizes(), ++k, 3.0));
  if (moe.gate.expert_bias.defined()) moe.gate.expert_bias->copy_(formula({kExperts}, 40, 2.0));
}

// Which experts a row of scores chooses: the largest first, of equal ones the first.
std::vector<std::size_t> best(const std::vector<double>& scores, std::size_t count) {
  std::vector<std::size_t> order(scores.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
  order.resize(count);
  return order;
}

struct Reference {
  Tensor y, loss;
  std::vector<std::int64_t> counts;
};

// What the layer shall compute, with gradients by the operations of dense tensors.
Reference dense(const MixtureOfExperts& moe, const Tensor& x) {
  const MixtureOfExperts::Options& o = moe.options;
  const std::int64_t tokens = x.numel() / o.embed_dim;
  const Tensor rows = x.reshape({tokens, o.embed_dim}), logits = linear(rows, moe.gate.weight);
  const Tensor scores = o.score == RouterScore::softmax ? softmax(logits, 1) : sigmoid(logits);

  // Choices, and then drops, on the host.
  Tensor mask = zeros({tokens, o.num_experts}, DType::f64);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(o.num_experts));
  std::vector<std::vector<std::size_t>> chosen;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const Tensor row = scores.detach()[t];
    const Tensor by = moe.gate.expert_bias.defined() ? row + moe.gate.expert_bias.tensor() : row;
    chosen.push_back(best(by.to_vector<double>(), static_cast<std::size_t>(o.top_k)));
    for (const std::size_t e : chosen.back()) {
      mask.data<double>()[t * o.num_experts + static_cast<std::int64_t>(e)] = 1;
      ++counts[e];
    }
  }
  Tensor weights = scores * mask;
  if (o.norm_topk_prob) weights = weights / weights.sum({1}, true);
  weights = weights * o.route_scale;
  if (o.capacity_factor) {
    const auto capacity = static_cast<std::size_t>(std::ceil(
        *o.capacity_factor * static_cast<double>(tokens * o.top_k) / static_cast<double>(o.num_experts)));
    Tensor kept = zeros_like(mask);
    for (std::int64_t e = 0; e < o.num_experts; ++e) {
      std::vector<double> of_expert;
      std::vector<std::int64_t> who;
      for (std::int64_t t = 0; t < tokens; ++t)
        if (mask.data<double>()[t * o.num_experts + e] != 0) {
          of_expert.push_back(weights.detach()[t][e].item<double>());
          who.push_back(t);
        }
      for (const std::size_t i : best(of_expert, std::min(capacity, who.size())))
        kept.data<double>()[who[i] * o.num_experts + e] = 1;
    }
    weights = weights * kept;
  }

  Reference r;
  r.counts = counts;
  r.y = zeros({tokens, o.embed_dim}, DType::f64);
  const Tensor &gate_up = moe.experts.gate_up_proj, &down = moe.experts.down_proj;
  for (std::int64_t e = 0; e < o.num_experts; ++e) {
    const Tensor h = linear(rows, gate_up[e]);
    const Tensor gate = h.narrow(1, 0, o.hidden_dim), up = h.narrow(1, o.hidden_dim, o.hidden_dim);
    r.y = r.y + linear(gate * sigmoid(gate) * up, down[e]) * weights.narrow(1, e, 1);
  }
  if (moe.shared_expert) {
    const Tensor gate = linear(rows, moe.shared_expert->gate_proj.weight);
    r.y = r.y + linear(gate * sigmoid(gate) * linear(rows, moe.shared_expert->up_proj.weight),
                       moe.shared_expert->down_proj.weight);
  }
  r.y = r.y.reshape(x.sizes());
  r.loss = zeros({}, DType::f64);
  if (tokens == 0) return r;
  if (o.balance == RouterBalance::auxiliary_loss)
    for (std::int64_t e = 0; e < o.num_experts; ++e) {
      const Tensor part = (scores / scores.sum({1}, true)).narrow(1, e, 1).mean();
      r.loss = r.loss + part * (o.aux_loss_coef * static_cast<double>(o.num_experts) *
                                static_cast<double>(counts[static_cast<std::size_t>(e)]) /
                                static_cast<double>(tokens * o.top_k));
    }
  r.loss = r.loss + logits.exp().sum({1}).log().square().mean() * o.z_loss_coef;
  return r;
}

std::map<std::string, Tensor> gradients_of(MixtureOfExperts& moe, const Tensor& x) {
  std::map<std::string, Tensor> all;
  for (const auto& [name, p] : moe.named_parameters()) {
    INFO(name);
    REQUIRE(p.grad().defined());
    all[name] = p.grad().clone();
  }
  REQUIRE(x.grad().defined());
  all["x"] = x.grad().clone();
  moe.zero_grad();
  x.zero_grad();
  return all;
}

void check_layer(const MixtureOfExperts::Options& options, const Shape& sizes) {
  MixtureOfExperts moe(options);
  fill_large(moe);
  INFO(moe.str() << sizes);
  const Tensor x = formula(sizes, 30, 4.0).set_requires_grad(), g = formula(sizes, 31, 2.0);
  const Tensor y = moe(x), loss = moe.auxiliary_loss();
  ((y * g).sum() + loss).backward();
  const auto got = gradients_of(moe, x);
  const Reference want = dense(moe, x);
  ((want.y * g).sum() + want.loss).backward();
  for (const auto& [name, p] : moe.named_parameters())
    if (!p.grad().defined()) p->set_grad(zeros(p->sizes(), DType::f64));
  const auto expected = gradients_of(moe, x);
  CHECK(y.sizes() == x.sizes());
  CHECK(allclose(y, want.y, 1e-12, 1e-12));
  CHECK(allclose(loss, want.loss, 1e-12, 1e-14));
  CHECK(moe.tokens_per_expert().to_vector<std::int64_t>() == want.counts);
  for (const auto& [name, grad] : expected) {
    INFO(name);
    CHECK(allclose(got.at(name), grad, 1e-11, 1e-12));
  }
}

}  // namespace

TEST_CASE("MixtureOfExperts: results and gradients are those of a dense loop, with each option") {
  std::vector<MixtureOfExperts::Options> all;
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid})
    for (const bool norm : {true, false})
      for (const RouterBalance balance :
           {RouterBalance::none, RouterBalance::auxiliary_loss, RouterBalance::bias}) {
        MixtureOfExperts::Options o = small();
        o.score = score, o.norm_topk_prob = norm, o.balance = balance;
        all.push_back(o);
        o.capacity_factor = 0.7, o.shared_hidden_dim = 3, o.route_scale = 2.5, o.z_loss_coef = 0.25;
        all.push_back(o);
      }
  for (const MixtureOfExperts::Options& o : all) check_layer(o, {3, 7, kDim});
  // Every count of experts of a token, one token, a token without a batch, and none.
  for (const std::int64_t k : {1, 3, 5}) {
    MixtureOfExperts::Options o = small();
    o.top_k = k, o.balance = RouterBalance::auxiliary_loss;
    for (const Shape& sizes : {Shape{11, kDim}, {1, kDim}, {kDim}, {0, kDim}, {2, 0, kDim}})
      for (const auto factor : {std::optional<double>(), std::optional(1.0), std::optional(100.0)}) {
        o.capacity_factor = factor;
        check_layer(o, sizes);
      }
  }
}

TEST_CASE("MixtureOfExperts: all tokens to one expert, and the others get the gradient 0") {
  MixtureOfExperts::Options o = small();
  o.top_k = 1, o.balance = RouterBalance::bias;
  MixtureOfExperts moe(o);
  fill_large(moe);
  moe.gate.expert_bias->copy_(tensor({0.0, 0.0, 0.0, 5.0, 0.0}));
  const Tensor x = formula({9, kDim}, 30, 4.0).set_requires_grad();
  moe(x).sum().backward();
  CHECK(moe.tokens_per_expert().to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 0, 0, 9, 0});
  for (const nn::Parameter& p : {moe.experts.gate_up_proj, moe.experts.down_proj})
    for (std::int64_t e = 0; e < kExperts; ++e) {
      CAPTURE(e);
      CHECK(p.grad()[e].ne(0).any().item<bool>() == (e == 3));
    }
  const auto got = gradients_of(moe, x);
  dense(moe, x).y.sum().backward();
  CHECK(allclose(got.at("experts.down_proj"), moe.experts.down_proj.grad(), 1e-11, 1e-12));
  // With a capacity, the tokens with the smallest weights are dropped, and the result of these is 0.
  o.capacity_factor = 1.0, o.norm_topk_prob = false;
  MixtureOfExperts dropping(o);
  fill_large(dropping);
  dropping.gate.expert_bias->copy_(tensor({0.0, 0.0, 0.0, 5.0, 0.0}));
  const Tensor y = dropping(x);
  const auto kept = best(softmax(linear(x, dropping.gate.weight), 1).select(1, 3).to_vector<double>(), 2);
  for (std::int64_t t = 0; t < 9; ++t)
    CHECK(y[t].ne(0).any().item<bool>() ==
          (t == static_cast<std::int64_t>(kept[0]) || t == static_cast<std::int64_t>(kept[1])));
}

TEST_CASE("dispatch_tokens sorts by expert and then by token, and of equal weights drops the last tokens") {
  nn::Routing r;
  r.scores = zeros({4, 3});
  r.experts = tensor({{2, 0}, {0, 2}, {2, 0}, {0, 1}}, DType::i64);
  r.weights = tensor({{0.5, 0.25}, {0.25, 0.5}, {0.5, 0.75}, {0.25, 1.0}});
  const auto check = [&](std::optional<std::int64_t> capacity, const std::vector<std::int64_t>& tokens,
                         const std::vector<std::int64_t>& places, const std::vector<std::int64_t>& counts) {
    const nn::Dispatch d = nn::dispatch_tokens(r, capacity);
    CHECK(d.tokens.to_vector<std::int64_t>() == tokens);
    CHECK(d.places.to_vector<std::int64_t>() == places);
    CHECK(d.counts.to_vector<std::int64_t>() == counts);
  };
  check({}, {0, 1, 2, 3, 3, 0, 1, 2}, {1, 2, 5, 6, 7, 0, 3, 4}, {4, 1, 3});
  check(2, {0, 2, 3, 0, 1}, {1, 5, 7, 0, 3}, {2, 1, 2});
  check(1, {2, 3, 0}, {5, 7, 0}, {1, 1, 1});
  check(0, {}, {}, {0, 0, 0});
  CHECK(r.counts().to_vector<std::int64_t>() == std::vector<std::int64_t>{4, 1, 3});
}

TEST_CASE("route_tokens chooses with the bias, weighs without it, and takes the first of equal scores") {
  const Tensor logits = tensor({{1.0, 1.0, 3.0, 1.0}}).to(DType::f64);
  nn::RouterOptions o{.embed_dim = 1, .num_experts = 4, .top_k = 2, .norm_topk_prob = false};
  nn::Routing r = nn::route_tokens(logits, o);
  CHECK(r.experts.to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 0});
  r = nn::route_tokens(logits, o, tensor({0.0, 0.5, -1.0, 0.25}));
  CHECK(r.experts.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 3});
  const double p = std::exp(1.0) / (3 * std::exp(1.0) + std::exp(3.0));
  CHECK(r.weights[0][1].item<double>() == Approx(p).epsilon(1e-12));
  o.norm_topk_prob = true, o.route_scale = 3;
  r = nn::route_tokens(logits, o, tensor({0.0, 0.5, -1.0, 0.25}));
  CHECK(r.weights[0][0].item<double>() == Approx(1.5).epsilon(1e-12));
  // Scores that underflow to 0 give no NaN.
  o.score = RouterScore::sigmoid;
  CHECK(nn::route_tokens(logits - 1e4, o).weights.to_vector<double>() == std::vector<double>{0, 0});
  // In f16 the scores exp(-30) would be 0.
  r = nn::route_tokens(full({1, 4}, -30.0).to(DType::f16),
                       {.embed_dim = 1, .num_experts = 4, .score = RouterScore::sigmoid});
  CHECK(r.weights.dtype() == DType::f32);
  CHECK(allclose(r.weights, full({1, 2}, 0.5), 1e-6, 0));
  CHECK(r.scores[0][0].item<double>() == Approx(std::exp(-30.0)).epsilon(1e-5));
  CHECK_THROWS_WITH(nn::route_tokens(zeros({2, 1}), o), ContainsSubstring("at least top_k = 2"));
}

TEST_CASE("load_balancing_loss is 1 for equal use, num_experts for one expert, and 0 without tokens") {
  const auto loss = [](const Tensor& scores, const std::vector<std::int64_t>& counts) {
    return nn::load_balancing_loss(scores, tensor(counts)).item<double>();
  };
  CHECK(loss(full({8, 4}, 0.25), {4, 4, 4, 4}) == Approx(1));
  CHECK(loss(full({8, 4}, 7.0), {4, 4, 4, 4}) == Approx(1));  // scores of sigmoids have any sum
  const Tensor one = zeros({8, 4});
  one.select(1, 2).fill_(1);
  CHECK(loss(one, {0, 0, 16, 0}) == Approx(4));
  CHECK(loss(zeros({0, 4}), {0, 0, 0, 0}) == 0);
  // In f16, 1e-20 is 0 and 70,000 is infinite.
  CHECK(loss(zeros({8, 4}, DType::f16), {4, 4, 4, 4}) == 0);
  CHECK(loss(full({8, 4}, 0.25).to(DType::f16), {70000, 70000, 70000, 70000}) == Approx(1));
  CHECK(nn::router_z_loss(full({2, 4}, 300.0).to(DType::f16)).item<double>() ==
        Approx(std::pow(300 + std::log(4.0), 2)));
  CHECK(nn::router_z_loss(zeros({0, 4})).item<double>() == 0);
  CHECK_THROWS_WITH(loss(zeros({2, 4}), {1, 1}), ContainsSubstring("(num_experts)"));
  CHECK_THROWS_WITH(nn::router_z_loss(zeros({4})), ContainsSubstring("(T, num_experts)"));
}

TEST_CASE("MixtureOfExperts: finite differences of the layer, its router and its losses") {
  MixtureOfExperts::Options o = small();
  o.balance = RouterBalance::auxiliary_loss, o.z_loss_coef = 0.5, o.aux_loss_coef = 2,
  o.shared_hidden_dim = 2;
  MixtureOfExperts moe(o);
  fill_large(moe);
  const auto f = [&](const std::vector<Tensor>& in) {
    const Tensor y = moe(in[0]);
    return std::vector<Tensor>{y, moe.auxiliary_loss()};
  };
  std::vector<Tensor> inputs = {formula({4, kDim}, 30, 4.0).set_requires_grad()};
  for (const nn::Parameter& p : moe.parameters()) inputs.push_back(p.tensor());
  CHECK(autograd::gradcheck(f, inputs));
}

TEST_CASE("update_router_bias raises the bias of experts with few tokens, and counts anew") {
  MixtureOfExperts::Options o = small();
  o.balance = RouterBalance::bias, o.bias_update_rate = 0.5;
  MixtureOfExperts moe(o);
  CHECK(moe.state_dict().back().first == "experts.down_proj");
  CHECK(moe.state_dict()[1].first == "gate.expert_bias");
  // The mean is 4: the signs are 1, 0, -1, -1, 1, and their mean is 0.
  moe.update_router_bias(tensor({0, 4, 5, 11, 0}));
  CHECK(allclose(moe.gate.expert_bias.tensor(), tensor({0.5, 0.0, -0.5, -0.5, 0.5}), 0, 1e-7));
  // The mean is 2: 1, 1, 1, 1, -1, with the mean 0.6.
  moe.update_router_bias(tensor({1, 1, 1, 1, 6}));
  CHECK(allclose(moe.gate.expert_bias.tensor(), tensor({0.7, 0.2, -0.3, -0.3, -0.3}), 0, 1e-6));

  const Tensor x = randn({20, kDim});
  moe(x);
  moe(x);
  const Tensor counts = moe.tokens_per_expert();
  CHECK(counts.sum().item<double>() == 80);
  MixtureOfExperts other(o);
  other.load_state_dict(moe.state_dict());
  other.update_router_bias(counts);
  moe.update_router_bias();
  CHECK(moe.gate.expert_bias->equal(other.gate.expert_bias));
  CHECK(moe.tokens_per_expert().sum().item<double>() == 0);
  // Evaluation counts nothing, and a second run by checkpoint() counts nothing again.
  moe.eval();
  moe(x);
  CHECK(moe.tokens_per_expert().sum().item<double>() == 0);
  moe.train();
  checkpoint(moe, x.clone().set_requires_grad()).sum().backward();
  CHECK(moe.tokens_per_expert().sum().item<double>() == 40);

  CHECK_THROWS_WITH(moe.update_router_bias(zeros({4})),
                    ContainsSubstring("counts have shape [4], expected [5]"));
  CHECK_THROWS_WITH(MixtureOfExperts(small()).update_router_bias(), ContainsSubstring("has no bias"));
}

TEST_CASE("divided experts that never compute the shared expert are an error") {
  MixtureOfExperts::Options o = small();
  o.shared_hidden_dim = 3;
  MixtureOfExperts moe(o);
  nn::GroupedExperts& experts = moe.experts;
  const Tensor x = ones({4, kDim});
  const Tensor y = moe(x);
  bool calls = true;
  experts.divided_forward = [&](const Tensor& rows, const Tensor& counts,
                                const std::function<void()>& meanwhile) {
    if (calls) meanwhile();
    return experts.products(rows, counts);
  };
  CHECK(moe(x).equal(y));
  calls = false;
  CHECK_THROWS_WITH(moe(x), ContainsSubstring("divided_forward has not called meanwhile()"));
}

TEST_CASE("update_router_bias moves a bias of a layer in bf16 by steps that bf16 cannot add") {
  MixtureOfExperts::Options o = small();
  o.balance = RouterBalance::bias;
  MixtureOfExperts moe(o);
  moe.to(DType::bf16);
  const Tensor counts = tensor({0, 4, 5, 11, 0});  // the signs are 1, 0, -1, -1, 1
  for (int step = 0; step < 1000; ++step) moe.update_router_bias(counts);
  CHECK(moe.gate.expert_bias.dtype() == DType::f32);
  CHECK(allclose(moe.gate.expert_bias.tensor(), tensor({1.0, 0.0, -1.0, -1.0, 1.0}), 0, 1e-4));
  CHECK(moe(zeros({3, kDim}, DType::bf16)).dtype() == DType::bf16);
  CHECK(moe.tokens_per_expert().to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 0, 0, 0, 3});
}

TEST_CASE("capacity_factor gives each expert ceil(factor * T * top_k / num_experts) rows") {
  const auto rows = [](double factor) {
    MixtureOfExperts::Options o = small();
    o.num_experts = 2, o.top_k = 1, o.capacity_factor = factor, o.balance = RouterBalance::bias;
    MixtureOfExperts moe(o);
    moe.gate.expert_bias->copy_(tensor({5.0, 0.0}));  // all tokens choose the first expert
    return moe(formula({25, kDim}, 30, 4.0).to(DType::f32)).ne(0).any(1).sum().item<std::int64_t>();
  };
  CHECK(rows(1.12) == 14);  // 1.12 * 25 / 2 is 14.000000000000002 in doubles
  CHECK(rows(0.56) == 7);
  CHECK(rows(0.7) == 9);
  CHECK(rows(1) == 13);
  CHECK(rows(1e-300) == 1);
  CHECK(rows(2) == 25);
  CHECK(rows(1e19) == 25);
  CHECK(rows(1e300) == 25);
}

TEST_CASE("a bias of the router evens out how many tokens the experts get") {
  MixtureOfExperts::Options o = small();
  o.score = RouterScore::sigmoid, o.balance = RouterBalance::bias, o.bias_update_rate = 0.005;
  manual_seed(5);
  MixtureOfExperts moe(o);
  const NoGradGuard no_grad;
  const Tensor x = randn({200, kDim});
  x.select(1, 0).fill_(1);
  moe.gate.weight->select(1, 0).copy_(tensor({0.0, 0.0, 1.5, 0.0, -1.5}));  // one is preferred, one avoided
  const auto most = [&] {
    moe(x);
    const double n = moe.tokens_per_expert().max().item<double>();
    moe.update_router_bias();
    return n;
  };
  CHECK(most() > 150);
  for (int step = 0; step < 150; ++step) most();
  CHECK(most() < 96);  // 80 is even
}

TEST_CASE("MixtureOfExperts: the router computes in f32 under autocast and with weights of 16 bits") {
  MixtureOfExperts moe(small());
  fill_large(moe, DType::f32);
  const Tensor x = formula({50, kDim}, 30, 4.0).to(DType::f32);
  nn::Routing exact, cast, low;
  const Tensor y = moe(x, &exact);
  {
    const AutocastGuard guard(DType::bf16);
    const Tensor z = moe(x.clone().set_requires_grad(), &cast);
    CHECK(z.dtype() == DType::bf16);
    CHECK((z.to(DType::f32) - y).abs().max().item<double>() < 0.02 * y.abs().max().item<double>());
  }
  CHECK(exact.logits.equal(cast.logits));
  moe.to(DType::bf16);
  const Tensor z = moe(x.to(DType::bf16), &low);
  CHECK(z.dtype() == DType::bf16);
  CHECK(low.logits.dtype() == DType::f32);
  CHECK(low.logits.equal(linear(x.to(DType::bf16).to(DType::f32), moe.gate.weight->to(DType::f32))));
}

TEST_CASE("MixtureOfExperts: two runs give the same bits") {
  manual_seed(3);
  MixtureOfExperts::Options o = small();
  o.embed_dim = 32, o.hidden_dim = 48, o.capacity_factor = 1.1;
  MixtureOfExperts moe(o);
  const Tensor x = randn({150, 32}).set_requires_grad();
  const auto run = [&] {
    const Tensor y = moe(x);
    y.square().sum().backward();
    auto all = gradients_of(moe, x);
    all["y"] = y.detach();
    return all;
  };
  const auto first = run(), second = run();
  for (const auto& [name, value] : first) {
    INFO(name);
    CHECK(value.equal(second.at(name)));
  }
}

TEST_CASE("MixtureOfExperts: auxiliary_loss belongs to the last call in training mode, and is taken once") {
  MixtureOfExperts::Options o = small();
  o.balance = RouterBalance::auxiliary_loss, o.aux_loss_coef = 0.5;
  MixtureOfExperts moe(o);
  const Tensor x = randn({7, kDim}), z = randn({5, kDim});
  CHECK(moe.auxiliary_loss().item<double>() == 0);
  nn::Routing r;
  moe(x);
  moe(z, &r);
  CHECK(allclose(moe.auxiliary_loss(), nn::load_balancing_loss(r.scores, r.counts()) * 0.5));
  CHECK(moe.auxiliary_loss().item<double>() == 0);
  moe(x);
  moe.eval();
  moe(x);
  CHECK(moe.auxiliary_loss().item<double>() == 0);
  // checkpoint() computes the loss in forward, and its gradient by a second run.
  moe.train();
  const auto gradients = [&](bool recompute) {
    const Tensor in = x.clone().set_requires_grad();
    const Tensor y = recompute ? checkpoint(moe, in) : moe(in);
    (y.square().sum() + moe.auxiliary_loss()).backward();
    CHECK_FALSE(moe.auxiliary_loss().requires_grad());
    return gradients_of(moe, in);
  };
  const auto plain = gradients(false), recomputed = gradients(true);
  for (const auto& [name, value] : plain) {
    INFO(name);
    CHECK(value.equal(recomputed.at(name)));
  }
}

TEST_CASE("MixtureOfExperts has its shapes on the meta device, and says what it is") {
  const DeviceGuard guard("meta");
  MixtureOfExperts::Options o = small();
  o.shared_hidden_dim = 3, o.balance = RouterBalance::auxiliary_loss;
  MixtureOfExperts moe(o);
  CHECK(moe(zeros({2, 3, kDim})).sizes() == Shape({2, 3, kDim}));
  CHECK_THAT(moe.str(), ContainsSubstring("MixtureOfExperts(balance=auxiliary_loss"));
  CHECK_THAT(moe.str(), ContainsSubstring("TopKRouter(embed_dim=6, num_experts=5, top_k=2"));
}

TEST_CASE("MixtureOfExperts refuses options and inputs that do not fit") {
  const auto refused = [](const std::function<void(MixtureOfExperts::Options&)>& change, const char* text) {
    MixtureOfExperts::Options o = small();
    change(o);
    INFO(text);
    CHECK_THROWS_AS(MixtureOfExperts(o), ValueError);
    CHECK_THROWS_WITH(MixtureOfExperts(o), ContainsSubstring(text));
  };
  for (const std::int64_t value : {0, -1}) {
    refused([=](auto& o) { o.embed_dim = value; }, "embed_dim and num_experts must be positive");
    refused([=](auto& o) { o.num_experts = value; }, "embed_dim and num_experts must be positive");
    refused([=](auto& o) { o.hidden_dim = value; }, "embed_dim and hidden_dim must be positive");
    refused([=](auto& o) { o.top_k = value; }, "top_k is");
    refused([=](auto& o) { o.capacity_factor = value; }, "capacity_factor is");
    refused([=](auto& o) { o.route_scale = value; }, "route_scale is");
  }
  refused([](auto& o) { o.top_k = kExperts + 1; }, "from 1 to num_experts, 5");
  refused([](auto& o) { o.shared_hidden_dim = -1; }, "shared_hidden_dim is -1");
  for (const double value : {-0.5, HUGE_VAL}) {
    refused([=](auto& o) { o.aux_loss_coef = value; }, "must not be negative");
    refused([=](auto& o) { o.z_loss_coef = value; }, "must not be negative");
    refused([=](auto& o) { o.bias_update_rate = value; }, "must not be negative");
  }
  MixtureOfExperts moe(small());
  CHECK_THROWS_WITH(moe(zeros({2, kDim + 1})), ContainsSubstring("expected an input of shape (..., 6)"));
  CHECK_THROWS_WITH(moe(Tensor()), ContainsSubstring("MixtureOfExperts"));
}
