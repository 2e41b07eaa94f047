// Compares the losses of nn::functional with PyTorch's (tests/golden/nn.py): outputs and gradients of the
// inputs.
#include "tapestry/nn/losses.h"

#include <cmath>
#include <set>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;
namespace F = nn::functional;
using Inputs = std::vector<Tensor>;

namespace {

constexpr double kInfinity = HUGE_VAL;

const NnGolden& golden() {
  static const NnGolden recorded("losses");
  return recorded;
}
std::set<std::string>& tested() {
  static std::set<std::string> labels;
  return labels;
}

// An input has a gradient if one was recorded.
template <class Fn>
void check_loss(const std::string& label, const Inputs& inputs, const Fn& fn) {
  INFO(label);
  tested().insert(label);
  const auto grads = golden().under(label + "/grad/");
  Inputs leaves;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    leaves.push_back(inputs[k].clone());
    for (const auto& [index, record] : grads)
      if (index == std::to_string(k)) leaves[k].set_requires_grad();
  }
  const Tensor y = fn(leaves);
  CHECK(difference(y, golden().at(label + "/output"), 1e-13) == "");
  (y * formula(y.sizes(), 100)).sum().backward();
  for (const auto& [index, record] : grads) {
    INFO("gradient of input " << index);
    CHECK(difference(leaves[std::stoul(index)].grad(), record, 1e-13) == "");
  }
}

// Calls `fn` with each reduction.
template <class Fn>
void check_each(const std::string& label, const Inputs& inputs, const Fn& fn) {
  for (const auto& [name, reduction] : {std::pair{"none", Reduction::none},
                                        std::pair{"mean", Reduction::mean}, std::pair{"sum", Reduction::sum}})
    check_loss(label + "_" + name, inputs, [&](const Inputs& x) { return fn(x, reduction); });
}
template <class Fn>
void check_one(const std::string& label, const Inputs& inputs, const Fn& fn) {
  check_loss(label + "_none", inputs, fn);
}

constexpr Reduction kNone = Reduction::none;
// A fixture and not globals, because the first use of a device must follow the setenv() in
// tests/nn/golden.cpp.
struct Data {
  const Tensor x = formula({4, 5}, 1, 6), t = formula({4, 5}, 2, 6), third = formula({4, 5}, 3, 6);
  const Tensor p = formula({4, 5}, 4) + 0.5, q = formula({4, 5}, 5) + 0.5;
  const Tensor sign = labels({4, 5}, 1, 2).to(DType::f64) * 2 - 1,
               side = labels({4}, 1, 2).to(DType::f64) * 2 - 1;
  const Tensor variance = formula({4, 5}, 6, 2).abs(), counts = labels({4, 5}, 3, 6).to(DType::f64);
  const Tensor weight = formula({5}, 7) + 1, pos_weight = formula({5}, 8) + 2;
};

Tensor reals(const std::vector<double>& values) { return tensor(values, DType::f64); }
Tensor extreme() { return reals({kInfinity, -kInfinity, NAN, 1e300, -1e300, 0}); }

}  // namespace

TEST_CASE_METHOD(Data, "losses of differences follow PyTorch's") {
  check_each("l1", {x, t}, [](const Inputs& i, Reduction r) { return F::l1_loss(i[0], i[1], r); });
  check_one("l1_extreme", {extreme(), zeros({6}, DType::f64)},
            [](const Inputs& i) { return F::l1_loss(i[0], i[1], kNone); });
  check_each("smooth_l1", {x, t},
             [](const Inputs& i, Reduction r) { return F::smooth_l1_loss(i[0], i[1], {.reduction = r}); });
  const auto smooth = [](double beta) {
    return [beta](const Inputs& i) { return F::smooth_l1_loss(i[0], i[1], {kNone, beta}); };
  };
  check_one("smooth_l1_beta", {x, t}, smooth(0.3));
  check_one("smooth_l1_zero", {x, t}, smooth(0));
  check_one("smooth_l1_extreme", {extreme(), zeros({6}, DType::f64)}, smooth(1));
  check_each("huber", {x, t},
             [](const Inputs& i, Reduction r) { return F::huber_loss(i[0], i[1], {.reduction = r}); });
  check_one("huber_delta", {x, t}, [](const Inputs& i) { return F::huber_loss(i[0], i[1], {kNone, 0.3}); });
  check_one("huber_extreme", {extreme(), zeros({6}, DType::f64)}, [](const Inputs& i) {
    return F::huber_loss(i[0], i[1], {kNone, 2});
  });
}

TEST_CASE_METHOD(Data, "losses of probabilities follow PyTorch's") {
  check_each("bce", {p, q}, [](const Inputs& i, Reduction r) {
    return F::binary_cross_entropy(i[0], i[1], {.reduction = r});
  });
  check_each("bce_weight", {p, q}, [&](const Inputs& i, Reduction r) {
    return F::binary_cross_entropy(i[0], i[1], {weight, r});
  });
  check_one("bce_ends", {reals({0, 1, 0, 1, 1e-60, 1e-9}), reals({0, 1, 1, 0, 0.5, 0})},
            [](const Inputs& i) { return F::binary_cross_entropy(i[0], i[1], {.reduction = kNone}); });
  check_each("bce_logits", {x, q}, [](const Inputs& i, Reduction r) {
    return F::binary_cross_entropy_with_logits(i[0], i[1], {.reduction = r});
  });
  check_each("bce_logits_weights", {x, q}, [&](const Inputs& i, Reduction r) {
    return F::binary_cross_entropy_with_logits(i[0], i[1], {weight, r, pos_weight});
  });
  using R = F::KLDivReduction;
  for (const auto& [name, r] : {std::pair{"none", R::none}, std::pair{"mean", R::mean},
                                std::pair{"sum", R::sum}, std::pair{"batchmean", R::batchmean}})
    check_loss(std::string("kl_") + name, {p.log(), q},
               [r = r](const Inputs& i) { return F::kl_div(i[0], i[1], {.reduction = r}); });
  for (const auto& [name, r] : {std::pair{"none", R::none}, std::pair{"batchmean", R::batchmean}})
    check_loss(std::string("kl_log_") + name, {p.log(), q.log()}, [r = r](const Inputs& i) {
      return F::kl_div(i[0], i[1], {r, true});
    });
  // A target of 0 contributes nothing, and its gradients are finite.
  const Tensor none = zeros({2}, DType::f64).set_requires_grad();
  const Tensor loss = F::kl_div(reals({-1, -2}), none, {.reduction = R::sum});
  loss.backward();
  CHECK(loss.item() == 0);
  CHECK(values_of(none.grad()) == std::vector<double>{1, 2});
}

TEST_CASE_METHOD(Data, "losses of embeddings and margins follow PyTorch's") {
  check_each("cosine", {x, t, side}, [](const Inputs& i, Reduction r) {
    return F::cosine_embedding_loss(i[0], i[1], i[2], {.reduction = r});
  });
  check_one("cosine_margin", {x, t, side}, [](const Inputs& i) {
    return F::cosine_embedding_loss(i[0], i[1], i[2], {0.4, kNone});
  });
  check_one("cosine_unbatched", {x[0], t[0], scalar_tensor(-1.0, DType::f64)},
            [](const Inputs& i) { return F::cosine_embedding_loss(i[0], i[1], i[2], {.reduction = kNone}); });
  check_each("triplet", {x, t, third}, [](const Inputs& i, Reduction r) {
    return F::triplet_margin_loss(i[0], i[1], i[2], {.reduction = r});
  });
  check_one("triplet_options", {x, t, third}, [](const Inputs& i) {
    return F::triplet_margin_loss(i[0], i[1], i[2], {7, 3, 0.1, true, kNone});
  });
  check_one("triplet_p1", {x, t, third}, [](const Inputs& i) {
    return F::triplet_margin_loss(i[0], i[1], i[2], {.margin = 20, .p = 1, .swap = true, .reduction = kNone});
  });
  check_one("triplet_unbatched", {x[0], t[0], third[0]},
            [](const Inputs& i) { return F::triplet_margin_loss(i[0], i[1], i[2], {.reduction = kNone}); });
  const auto hinge = [](const Inputs& i, Reduction r) {
    return F::hinge_embedding_loss(i[0], i[1], {.reduction = r});
  };
  check_each("hinge", {x, sign}, hinge);
  check_one("hinge_margin", {x, sign}, [](const Inputs& i) {
    return F::hinge_embedding_loss(i[0], i[1], {2.5, kNone});
  });
  check_one("hinge_tie", {reals({1, 1}), reals({1, -1})}, [&](const Inputs& i) { return hinge(i, kNone); });
  const auto ranking = [](const Inputs& i, Reduction r) {
    return F::margin_ranking_loss(i[0], i[1], i[2], {.reduction = r});
  };
  check_each("ranking", {x, t, sign}, ranking);
  check_one("ranking_margin", {x, t, sign}, [](const Inputs& i) {
    return F::margin_ranking_loss(i[0], i[1], i[2], {1.5, kNone});
  });
  check_one("ranking_tie", {ones({2}, DType::f64), ones({2}, DType::f64), reals({1, -1})},
            [&](const Inputs& i) { return ranking(i, kNone); });
  check_each("soft_margin", {x, sign},
             [](const Inputs& i, Reduction r) { return F::soft_margin_loss(i[0], i[1], r); });
}

TEST_CASE_METHOD(Data, "losses of distributions follow PyTorch's") {
  check_each("gaussian", {x, t, variance}, [](const Inputs& i, Reduction r) {
    return F::gaussian_nll_loss(i[0], i[1], i[2], {.reduction = r});
  });
  const auto plain = [](const Inputs& i) {
    return F::gaussian_nll_loss(i[0], i[1], i[2], {.reduction = kNone});
  };
  check_one("gaussian_full", {x, t, variance}, [](const Inputs& i) {
    return F::gaussian_nll_loss(i[0], i[1], i[2], {true, 0.3, kNone});
  });
  check_one("gaussian_rows", {x, t, variance.select(1, 0)}, plain);
  check_one("gaussian_one", {x, t, variance.narrow(1, 0, 1)}, plain);
  check_each("poisson", {x, counts},
             [](const Inputs& i, Reduction r) { return F::poisson_nll_loss(i[0], i[1], {.reduction = r}); });
  check_one("poisson_rate", {p, counts}, [](const Inputs& i) {
    return F::poisson_nll_loss(i[0], i[1], {.log_input = false, .eps = 0.1, .reduction = kNone});
  });
  check_one("poisson_full", {x, counts}, [](const Inputs& i) {
    return F::poisson_nll_loss(i[0], i[1], {.full = true, .reduction = kNone});
  });
}

TEST_CASE_METHOD(Data, "all recorded losses are tested") {
  if (tested().size() < 40) return;  // skip the check if only some tests of this file run
  std::set<std::string> recorded;
  for (const auto& [key, record] : golden().under("")) recorded.insert(key.substr(0, key.find('/')));
  CHECK(recorded == tested());
}

TEST_CASE_METHOD(Data, "logits of any size give finite binary losses and gradients") {
  const Tensor logits = tensor({-200.0, -30.0, 30.0, 200.0}, DType::f32).set_requires_grad();
  const Tensor target = tensor({0.0, 0.0, 1.0, 0.0}, DType::f32), two = full({4}, 2.0);
  const Tensor losses =
      F::binary_cross_entropy_with_logits(logits, target, {.reduction = kNone, .pos_weight = two});
  losses.sum().backward();
  // The loss of a right answer keeps its digits: log(1 + e^-30) = 9.4e-14.
  CHECK(losses.select(0, 1).item() == Approx(std::exp(-30.0)).epsilon(1e-6));
  CHECK(losses.select(0, 2).item() == Approx(2 * std::exp(-30.0)).epsilon(1e-6));
  CHECK(losses.select(0, 3).item() == 200);
  CHECK(logits.grad().select(0, 3).item() == 1);
  CHECK(F::soft_margin_loss(tensor({-1000.0}), tensor({1.0})).item() == 1000);
}

TEST_CASE_METHOD(Data, "losses keep f32 and refuse bad arguments") {
  const Tensor a = ones({2, 3}), b = ones({3});
  CHECK(F::huber_loss(a, a).dtype() == DType::f32);
  CHECK(F::gaussian_nll_loss(a, a, a).dtype() == DType::f32);
  CHECK(F::poisson_nll_loss(a, a, {.full = true}).dtype() == DType::f32);
  CHECK(F::l1_loss(zeros({0, 3}), zeros({0, 3}), Reduction::sum).item() == 0);
  CHECK(std::isnan(F::l1_loss(zeros({0, 3}), zeros({0, 3})).item()));
  CHECK_THROWS_WITH(F::l1_loss(a, b), ContainsSubstring("[l1_loss] input has shape [2, 3], target [3]"));
  CHECK_THROWS_WITH(F::huber_loss(a, a, {.delta = 0}), ContainsSubstring("delta must be positive"));
  CHECK_THROWS_WITH(F::smooth_l1_loss(a, a, {.beta = -1}), ContainsSubstring("beta must not be negative"));
  CHECK_THROWS_WITH(F::binary_cross_entropy(a * 2, a), ContainsSubstring("the input has values from 2 to 2"));
  CHECK_THROWS_WITH(F::binary_cross_entropy(a * NAN, a), ContainsSubstring("must lie in [0, 1]"));
  CHECK_THROWS_WITH(F::binary_cross_entropy(a, a, {.weight = ones({4, 1, 1})}),
                    ContainsSubstring("weight has"));
  CHECK_THROWS_WITH(F::gaussian_nll_loss(a, a, ones({3})), ContainsSubstring("var has shape [3]"));
  CHECK_THROWS_WITH(F::gaussian_nll_loss(a, a, -a), ContainsSubstring("var has values from -1"));
  CHECK_THROWS_WITH(F::cosine_embedding_loss(a, a, ones({3})), ContainsSubstring("the target [3]"));
  CHECK_THROWS_WITH(F::triplet_margin_loss(a, a, a, {.margin = 0}),
                    ContainsSubstring("margin must be positive"));
  CHECK_THROWS_WITH(F::kl_div(ones({}), ones({}), {.reduction = F::KLDivReduction::batchmean}),
                    ContainsSubstring("batchmean"));
}

TEST_CASE_METHOD(Data, "the modules compute the functions and show their options") {
  CHECK(equal(nn::SmoothL1Loss({.beta = 0.3})(x, t), F::smooth_l1_loss(x, t, {.beta = 0.3})));
  CHECK(nn::SmoothL1Loss({.beta = 0.3}).str() == "SmoothL1Loss(reduction=mean, beta=0.3)");
  CHECK(equal(nn::L1Loss({.reduction = Reduction::sum})(x, t), F::l1_loss(x, t, Reduction::sum)));
  CHECK(equal(nn::HuberLoss()(x, t), F::huber_loss(x, t)));
  CHECK(equal(nn::KLDivLoss()(p.log(), q), F::kl_div(p.log(), q)));
  CHECK(equal(nn::CosineEmbeddingLoss()(x, t, side), F::cosine_embedding_loss(x, t, side)));
  CHECK(equal(nn::TripletMarginLoss()(x, t, third), F::triplet_margin_loss(x, t, third)));
  CHECK(nn::TripletMarginLoss({.swap = true}).str() ==
        "TripletMarginLoss(margin=1, p=2, eps=1e-06, swap=true, reduction=mean)");
  CHECK(equal(nn::HingeEmbeddingLoss()(x, sign), F::hinge_embedding_loss(x, sign)));
  CHECK(equal(nn::MarginRankingLoss()(x, t, sign), F::margin_ranking_loss(x, t, sign)));
  CHECK(equal(nn::SoftMarginLoss()(x, sign), F::soft_margin_loss(x, sign)));
  CHECK(equal(nn::GaussianNLLLoss()(x, t, variance), F::gaussian_nll_loss(x, t, variance)));
  CHECK(equal(nn::PoissonNLLLoss()(x, counts), F::poisson_nll_loss(x, counts)));
  const Tensor log_probs = formula({4, 1, 3}, 5).log_softmax(2), label = ones({1}, DType::i64);
  CHECK(equal(nn::CTCLoss()(log_probs, label, full({1}, 4, DType::i64), label),
              F::ctc_loss(log_probs, label, full({1}, 4, DType::i64), label)));

  nn::BCEWithLogitsLoss bce({.weight = weight, .pos_weight = pos_weight});
  CHECK(bce.state_dict().size() == 2);
  CHECK(equal(bce(x, q),
              F::binary_cross_entropy_with_logits(x, q, {.weight = weight, .pos_weight = pos_weight})));
  CHECK(nn::BCELoss().str() == "BCELoss(reduction=mean)");
  CHECK(equal(nn::BCELoss()(p, q), F::binary_cross_entropy(p, q)));
}
