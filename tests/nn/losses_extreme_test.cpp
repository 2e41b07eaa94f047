// Every loss at infinite and huge inputs, and means over nothing. The values are PyTorch's, but for the
// binary cross-entropy with logits, whose limits are given where PyTorch subtracts infinities, and
// soft_margin_loss, which PyTorch lets overflow.
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/nn/losses.h"
#include "tests/support/catch.h"

using namespace tapestry;
namespace F = tapestry::nn::functional;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(),
                 kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kHuge = 1e38;

bool close(double a, double b) {
  if (std::isnan(b) || std::isinf(b)) return std::isnan(b) ? std::isnan(a) : a == b;
  return std::abs(a - b) <= 1e-5 * std::max(1.0, std::abs(b));
}

struct Row {
  const char* name;
  std::vector<double> x, target, loss, gradient;
  std::function<Tensor(const Tensor&, const Tensor&)> f;
};

Tensor logits_loss(const Tensor& x, const Tensor& t, double pos_weight) {
  BCEWithLogitsLossParams params{.reduction = Reduction::none};
  if (pos_weight != 0) params.pos_weight = tensor({pos_weight});
  return binary_cross_entropy_with_logits(x, t, params);
}

constexpr Reduction kNone = Reduction::none;
const std::vector<double> kX = {kInf, kInf, kInf, -kInf, -kInf, -kInf, kHuge, -kHuge, kHuge, -kHuge, kNaN},
                          kT = {1, 0.3, 0, 0, 0.3, 1, 0.5, 0.5, 1, 0, 1};

std::vector<Row> rows() {
  const auto logits = [](double pos_weight) {
    return [=](const Tensor& x, const Tensor& t) { return logits_loss(x, t, pos_weight); };
  };
  return {
      {"binary_cross_entropy_with_logits",
       kX,
       kT,
       {0, kInf, kInf, 0, kInf, kInf, kHuge / 2, kHuge / 2, 0, 0, kNaN},
       {0, 0.7, 1, 0, -0.3, -1, 0.5, -0.5, 0, 0, kNaN},
       logits(0)},
      {"binary_cross_entropy_with_logits, pos_weight 2",
       kX,
       kT,
       {0, kInf, kInf, 0, kInf, kInf, kHuge / 2, kHuge, 0, 0, kNaN},
       {0, 0.7, 1, 0, -0.6, -2, 0.5, -1, 0, 0, kNaN},
       logits(2)},
      {"binary_cross_entropy_with_logits, pos_weight 1/2",
       kX,
       kT,
       {0, kInf, kInf, 0, kInf, kInf, kHuge / 2, kHuge / 4, 0, 0, kNaN},
       {0, 0.7, 1, 0, -0.15, -0.5, 0.5, -0.25, 0, 0, kNaN},
       logits(0.5)},
      {"binary_cross_entropy",
       {0, 1, 0, 1},
       {1, 0, 0, 1},
       {100, 100, 0, 0},
       {},
       [](const Tensor& x, const Tensor& t) { return binary_cross_entropy(x, t, {.reduction = kNone}); }},
      {"mse_loss",
       {kInf, -kInf, kInf, kHuge},
       {0, 0, kInf, 0},
       {kInf, kInf, kNaN, kInf},
       {kInf, -kInf, kNaN, 2e38},
       [](const Tensor& x, const Tensor& t) { return mse_loss(x, t, kNone); }},
      {"l1_loss",
       {kInf, -kInf, kInf, -kHuge},
       {0, 0, kInf, 0},
       {kInf, kInf, kNaN, kHuge},
       {1, -1, 0, -1},
       [](const Tensor& x, const Tensor& t) { return F::l1_loss(x, t, kNone); }},
      {"smooth_l1_loss",
       {kInf, -kInf, kInf, -kHuge},
       {0, 0, kInf, 0},
       {kInf, kInf, kNaN, kHuge},
       {1, -1, kNaN, -1},
       [](const Tensor& x, const Tensor& t) { return F::smooth_l1_loss(x, t, {.reduction = kNone}); }},
      {"huber_loss",
       {kInf, -kInf, kInf, -kHuge},
       {0, 0, kInf, 0},
       {kInf, kInf, kNaN, kHuge},
       {1, -1, kNaN, -1},
       [](const Tensor& x, const Tensor& t) { return F::huber_loss(x, t, {.reduction = kNone}); }},
      {"kl_div",
       {-kInf, -1, -kInf, -kHuge},
       {0.5, 0, 0, 0.5},
       {kInf, 0, kNaN, kHuge / 2},
       {-0.5, 0, 0, -0.5},
       [](const Tensor& x, const Tensor& t) {
         return F::kl_div(x, t, {.reduction = F::KLDivReduction::none});
       }},
      {"hinge_embedding_loss",
       {kInf, -kInf, kInf, -kInf, -kHuge},
       {1, 1, -1, -1, -1},
       {kInf, -kInf, 0, kInf, kHuge},
       {1, 1, 0, -1, -1},
       [](const Tensor& x, const Tensor& t) { return F::hinge_embedding_loss(x, t, {.reduction = kNone}); }},
      {"margin_ranking_loss",
       {kInf, -kInf, kInf, kHuge},
       {1, 1, -1, -1},
       {0, kInf, kInf, kHuge},
       {0, -1, 1, 1},
       [](const Tensor& x, const Tensor& t) {
         return F::margin_ranking_loss(x, zeros_like(x), t, {.reduction = kNone});
       }},
      {"soft_margin_loss",
       {kInf, -kInf, kInf, kHuge, -kHuge},
       {1, 1, -1, -1, -1},
       {0, kInf, kInf, kHuge, 0},
       {0, -1, 1, 1, 0},
       [](const Tensor& x, const Tensor& t) { return F::soft_margin_loss(x, t, kNone); }},
      {"poisson_nll_loss",
       {kInf, -kInf, -kInf, 100, -kHuge},
       {0, 1, 0, 1, 1},
       {kNaN, kInf, kNaN, kInf, kHuge},
       {kInf, -1, 0, kInf, -1},
       [](const Tensor& x, const Tensor& t) { return F::poisson_nll_loss(x, t, {.reduction = kNone}); }},
      {"gaussian_nll_loss",
       {kInf, -kInf, kHuge},
       {0, 0, 0},
       {kInf, kInf, kInf},
       {kInf, -kInf, kHuge},
       [](const Tensor& x, const Tensor& t) {
         return F::gaussian_nll_loss(x, t, ones_like(x), {.reduction = kNone});
       }},
      // The target is the class of a row of the logits (x, 0).
      {"cross_entropy",
       {kHuge, kHuge, -kInf, -kInf, kInf, -kHuge},
       {0, 1, 0, 1, 0, 0},
       {0, kHuge, kInf, 0, kNaN, kHuge},
       {0, 1, -1, 0, kNaN, -1},
       [](const Tensor& x, const Tensor& t) {
         return cross_entropy(stack({x, zeros_like(x)}, 1), t.to(DType::i64), {.reduction = kNone});
       }},
      {"nll_loss",
       {-kInf, -kHuge},
       {0, 0},
       {kInf, kHuge},
       {-1, -1},
       [](const Tensor& x, const Tensor& t) {
         return nll_loss(stack({x, zeros_like(x)}, 1), t.to(DType::i64), {.reduction = kNone});
       }},
  };
}

}  // namespace

TEST_CASE("losses and their gradients at infinite and huge inputs") {
  for (const Row& row : rows())
    for (const bool create_graph : {false, true}) {
      const Tensor x = tensor(row.x).requires_grad_(true), y = row.f(x, tensor(row.target));
      const Tensor g = autograd::grad({y.sum()}, {x}, {.create_graph = create_graph})[0];
      for (std::size_t i = 0; i < row.x.size(); ++i) {
        CAPTURE(row.name, create_graph, row.x[i], row.target[i], y[i].item(), g[i].item());
        CHECK(close(y[i].item(), row.loss[i]));
        if (!row.gradient.empty()) CHECK(close(g[i].item(), row.gradient[i]));
      }
    }
}

TEST_CASE("a mean over rows that do not count has gradients of 0, first and second") {
  const Tensor ignored = full({3}, -100, DType::i64), zero = zeros({3}, DType::i64),
               no_weight = tensor({0.0, 1.0});
  struct Case {
    const char* name;
    std::function<Tensor(const Tensor&)> loss;
  };
  for (const Case& c : {
           Case{"cross_entropy, all ignored", [&](const Tensor& x) { return cross_entropy(x, ignored); }},
           Case{"cross_entropy, smoothed",
                [&](const Tensor& x) { return cross_entropy(x, ignored, {.label_smoothing = 0.1}); }},
           Case{"cross_entropy, weight 0",
                [&](const Tensor& x) { return cross_entropy(x, zero, {.weight = no_weight}); }},
           Case{"linear_cross_entropy, all ignored",
                [&](const Tensor& x) {
                  return linear_cross_entropy(x, ones({2, 2}), ignored);
                }},
           Case{"nll_loss, all ignored", [&](const Tensor& x) { return nll_loss(x, ignored); }},
           Case{"nll_loss, weight 0",
                [&](const Tensor& x) { return nll_loss(x, zero, {.weight = no_weight}); }},
       }) {
    CAPTURE(c.name);
    const Tensor x = full({3, 2}, 0.5).requires_grad_(true);
    CHECK(std::isnan(c.loss(x).item()));  // 0 / 0, as in PyTorch
    const Tensor first = autograd::grad({c.loss(x)}, {x})[0];
    CHECK(first.abs().sum().item() == 0);
    const Tensor recorded = autograd::grad({c.loss(x)}, {x}, {.create_graph = true})[0];
    CHECK(recorded.abs().sum().item() == 0);
    if (recorded.requires_grad()) {
      const Tensor second = autograd::grad({recorded.sum()}, {x}, {.allow_unused = true})[0];
      if (second.defined()) CHECK(second.abs().sum().item() == 0);
    }
  }
}
