#include "tapestry/autograd/ops/recurrent.h"

#include <cmath>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {

RecurrentParams params(const OpCase& c) {
  return {.batch_sizes = c.has("batch_sizes") ? c.integers("batch_sizes") : std::vector<std::int64_t>(),
          .reverse = c.flag("reverse", false)};
}
// The weights of an OpCase begin at input i.
RecurrentWeights weights(const OpCase& c, std::size_t i) { return {c[i], c[i + 1], c[i + 2], c[i + 3]}; }
// Weights of zeros for I = 2 inputs and H = 3.
RecurrentWeights zero_weights(std::int64_t gates) {
  return {zeros({gates * 3, 2}), zeros({gates * 3, 3}), zeros({gates * 3}), zeros({gates * 3})};
}

}  // namespace

NOT_APPLICABLE("lstm", gradgradcheck, "the backward is a fused kernel, as cuDNN's is");
NOT_APPLICABLE("gru", gradgradcheck, "the backward is a fused kernel, as cuDNN's is");
NOT_APPLICABLE("rnn_tanh", gradgradcheck, "the backward is a fused kernel, as cuDNN's is");
NOT_APPLICABLE("rnn_relu", gradgradcheck, "the backward is a fused kernel, as cuDNN's is");
GOLDEN_OP("lstm", "recurrent", [](const OpCase& c) -> test::Outputs {
  const auto [y, h, cell] = lstm(c[0], c[1], c[2], weights(c, 3), params(c));
  return {y, h, cell};
});
GOLDEN_OP("gru", "recurrent", [](const OpCase& c) { return gru(c[0], c[1], weights(c, 2), params(c)); });
GOLDEN_OP("rnn_tanh", "recurrent",
          [](const OpCase& c) { return rnn_tanh(c[0], c[1], weights(c, 2), params(c)); });
GOLDEN_OP("rnn_relu", "recurrent",
          [](const OpCase& c) { return rnn_relu(c[0], c[1], weights(c, 2), params(c)); });

BAD_INPUT("lstm", "x has shape [4, 2], expected (T, N, I)", [] {
  lstm(zeros({4, 2}), {}, {}, zero_weights(4));
});
BAD_INPUT("lstm", "weights.ih has shape [9, 2], expected [12, 2]", [] {
  RecurrentWeights w = zero_weights(4);
  w.ih = zeros({9, 2});
  lstm(zeros({4, 1, 2}), {}, {}, w);
});
BAD_INPUT("lstm", "weights.hh has shape [9, 3], expected (4 H, H)", [] {
  lstm(zeros({4, 1, 2}), {}, {}, zero_weights(3));
});
BAD_INPUT("lstm", "c0 has shape [2, 3], expected [1, 3]", [] {
  lstm(zeros({4, 1, 2}), {}, zeros({2, 3}), zero_weights(4));
});
BAD_INPUT("lstm", "only one of bias_ih and bias_hh is defined", [] {
  RecurrentWeights w = zero_weights(4);
  w.bias_hh = Tensor();
  lstm(zeros({4, 1, 2}), {}, {}, w);
});
BAD_INPUT("lstm", "x has 4 rows, but the batch sizes add up to 3", [] {
  lstm(zeros({4, 2}), {}, {}, zero_weights(4), {.batch_sizes = {2, 1}});
});
BAD_INPUT("gru", "h0 has dtype float64 but the input has float32", [] {
  gru(zeros({4, 1, 2}), zeros({1, 3}, DType::f64), zero_weights(3));
});
BAD_INPUT("gru", "bias_ih has shape [8], expected [9]", [] {
  RecurrentWeights w = zero_weights(3);
  w.bias_ih = zeros({8});
  gru(zeros({4, 1, 2}), {}, w);
});
BAD_INPUT("gru", "batch size 0 of step 1 after 2", [] {
  gru(zeros({2, 2}), {}, zero_weights(3), {.batch_sizes = {2, 0}});
});
BAD_INPUT("rnn_tanh", "pass at least one step", [] { rnn_tanh(zeros({0, 1, 2}), {}, zero_weights(1)); });
BAD_INPUT("rnn_tanh", "int64", [] { rnn_tanh(zeros({1, 1, 2}, DType::i64), {}, zero_weights(1)); });
BAD_INPUT("rnn_relu", "weights.hh is an undefined tensor", [] {
  rnn_relu(zeros({1, 1, 2}), {}, {.ih = zeros({3, 2})});
});

TEST_CASE("recurrent operations compute the same on one thread and on several") {
  // 300 state elements are one block of columns and part of a second one.
  manual_seed(1);
  const Tensor x = randn({3, 40, 8}).set_requires_grad(), h0 = randn({40, 300}), c0 = randn({40, 300});
  const RecurrentWeights w{randn({1200, 8}) / 4, (randn({1200, 300}) / 16).set_requires_grad(), randn({1200}),
                           randn({1200})};
  const int before = get_num_threads();
  std::vector<Tensor> outputs, gradients;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    x.zero_grad(), w.hh.zero_grad();
    const auto [y, h, c] = lstm(x, h0, c0, w, {.reverse = true});
    (y * y).sum().backward();
    outputs.push_back(y.detach());
    gradients.push_back(w.hh.grad().clone());
  }
  set_num_threads(before);
  CHECK(allclose(outputs[0], outputs[1], 1e-5, 1e-6));
  CHECK(allclose(gradients[0], gradients[1], 1e-4, 1e-4));

  // The same sums in f64 by other operations.
  const Tensor x64 = x.detach().to(DType::f64), hh = w.hh.detach().to(DType::f64);
  Tensor h = h0.to(DType::f64), c = c0.to(DType::f64);
  for (std::int64_t t = 3; t-- > 0;) {
    const Tensor a = linear(x64[t], w.ih.to(DType::f64), (w.bias_ih + w.bias_hh).to(DType::f64)) +
                     matmul(h, hh.transpose(0, 1));
    const std::vector<Tensor> gates = a.chunk(4, 1);
    c = gates[1].sigmoid() * c + gates[0].sigmoid() * gates[2].tanh();
    h = gates[3].sigmoid() * c.tanh();
    CHECK(allclose(outputs[0][t].to(DType::f64), h, 1e-4, 1e-4));
  }
}

TEST_CASE("recurrent operations: with a packed weight, f32 agrees with f64, also in batches that shrink") {
  // From 4 steps on, f32 packs weights.hh. 19 columns are more than one panel, and no multiple of a tile.
  constexpr std::int64_t hidden = 19, inputs = 5;
  for (const int cell : {0, 1, 2})
    for (const bool shrinks : {false, true}) {
      CAPTURE(cell, shrinks);
      manual_seed(3);
      const std::int64_t width = (cell == 0 ? 4 : cell == 1 ? 3 : 1) * hidden;
      const RecurrentParams params{.batch_sizes = shrinks ? std::vector<std::int64_t>{9, 7, 7, 2, 1}
                                                          : std::vector<std::int64_t>()};
      std::vector<Tensor> in{shrinks ? randn({26, inputs}) : randn({5, 9, inputs}),
                             randn({9, hidden}),
                             randn({width, inputs}) / 3,
                             randn({width, hidden}) / 3,
                             randn({width}),
                             randn({width})};
      std::vector<Tensor> results[2];
      for (const bool wide : {false, true}) {
        std::vector<Tensor> leaves;
        for (const Tensor& t : in)
          leaves.push_back(t.to(wide ? DType::f64 : DType::f32).clone().set_requires_grad());
        const RecurrentWeights w{leaves[2], leaves[3], leaves[4], leaves[5]};
        const Tensor y = cell == 0   ? std::get<0>(lstm(leaves[0], leaves[1], {}, w, params))
                         : cell == 1 ? gru(leaves[0], leaves[1], w, params).first
                                     : rnn_tanh(leaves[0], leaves[1], w, params).first;
        results[wide] = autograd::grad({(y * y).sum()}, leaves);
        results[wide].push_back(y.detach());
      }
      for (std::size_t i = 0; i < results[0].size(); ++i) {
        CAPTURE(i);
        CHECK(allclose(results[0][i].to(DType::f64), results[1][i], 1e-4, 1e-4));
      }
    }
}

TEST_CASE("recurrent operations: an output that no loss uses needs no gradient, and states alone suffice") {
  manual_seed(2);
  const Tensor x = randn({4, 2, 3}, DType::f64).set_requires_grad();
  const RecurrentWeights w{randn({15, 3}, DType::f64), randn({15, 5}, DType::f64), {}, {}};
  const auto [y, h] = gru(x, {}, w);
  h.sum().backward();
  const Tensor from_state = x.grad().clone();
  x.zero_grad();
  gru(x, {}, w).first[3].sum().backward();
  CHECK(allclose(x.grad(), from_state, 1e-12, 1e-12));
}

TEST_CASE("recurrent operations refuse backward after the output of a plain cell has changed") {
  const Tensor x = randn({4, 2, 2}).set_requires_grad();
  const Tensor y = rnn_tanh(x, {}, zero_weights(1)).first;
  const Tensor loss = y.sum();
  y.detach().zero_();
  CHECK_THROWS_AS(loss.backward(), AutogradError);
}
