#include "tapestry/autograd/ops/norm.h"

#include "tapestry/autograd/ops.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {
Tensor copy_of(const Tensor& t) { return t.defined() ? t.detach().clone() : t; }
}  // namespace

GOLDEN_OP("batch_norm", "norm", [](const OpCase& c) {
  const Tensor mean = copy_of(c[1]), var = copy_of(c[2]);
  std::vector<Tensor> out{batch_norm(c[0], mean, var, c[3], c[4], c.flag("training"), c.real("momentum", 0.1),
                                     c.real("eps", 1e-5))};
  if (mean.defined()) out.insert(out.end(), {mean, var});
  return out;
});
GOLDEN_OP("layer_norm", "norm", [](const OpCase& c) {
  return layer_norm(c[0], c.dims("normalized_shape"), c[1], c[2], c.real("eps", 1e-5));
});
GOLDEN_OP("rms_norm", "norm", [](const OpCase& c) {
  return rms_norm(c[0], c.dims("normalized_shape"), c[1], c.maybe_real("eps"));
});

BAD_INPUT("batch_norm", "input has shape [3]", [] { return batch_norm(zeros({3}), {}, {}, {}, {}, true); });
BAD_INPUT("batch_norm", "one value per channel in training, input [1, 3]", [] {
  return batch_norm(zeros({1, 3}), {}, {}, {}, {}, true);
});
BAD_INPUT("batch_norm", "one value per channel in training, input [1, 3, 1, 1]", [] {
  return batch_norm(zeros({1, 3, 1, 1}), {}, {}, {}, {}, true);
});
BAD_INPUT("batch_norm", "no values in training, input [0, 3]", [] {
  return batch_norm(zeros({0, 3}), {}, {}, {}, {}, true);
});
BAD_INPUT("batch_norm", "evaluation needs running_mean", [] {
  return batch_norm(zeros({2, 3}), {}, {}, {}, {}, false);
});
BAD_INPUT("batch_norm", "give both or neither", [] {
  return batch_norm(zeros({2, 3}), zeros({3}), {}, {}, {}, true);
});
BAD_INPUT("batch_norm", "running_var has shape [4], expected [3]", [] {
  return batch_norm(zeros({2, 3}), zeros({3}), zeros({4}), {}, {}, true);
});
BAD_INPUT("batch_norm", "weight has shape [2, 3], expected [3]", [] {
  return batch_norm(zeros({2, 3}), {}, {}, zeros({2, 3}), {}, true);
});
BAD_INPUT("batch_norm", "bias has dtype float64", [] {
  return batch_norm(zeros({2, 3}), {}, {}, {}, zeros({3}, DType::f64), true);
});
BAD_INPUT("layer_norm", "input of shape [2, 3] does not end in normalized_shape [2]", [] {
  return layer_norm(zeros({2, 3}), {2});
});
BAD_INPUT("layer_norm", "does not end in normalized_shape [4, 2, 3]", [] {
  return layer_norm(zeros({2, 3}), {4, 2, 3});
});
BAD_INPUT("layer_norm", "normalized_shape is empty", [] { return layer_norm(zeros({2, 3}), Shape{}); });
BAD_INPUT("layer_norm", "weight has shape [2], expected [3]", [] {
  return layer_norm(zeros({2, 3}), {3}, zeros({2}));
});
BAD_INPUT("layer_norm", "bias has dtype float64", [] {
  return layer_norm(zeros({2, 3}), {3}, {}, zeros({3}, DType::f64));
});
BAD_INPUT("rms_norm", "input of shape [2, 3] does not end in normalized_shape [2]", [] {
  return rms_norm(zeros({2, 3}), {2});
});
BAD_INPUT("rms_norm", "normalized_shape is empty", [] { return rms_norm(zeros({2, 3}), Shape{}); });
BAD_INPUT("rms_norm", "weight has shape [2], expected [3]", [] {
  return rms_norm(zeros({2, 3}), {3}, zeros({2}));
});
BAD_INPUT("rms_norm", "weight has dtype float64", [] {
  return rms_norm(zeros({2, 3}), {3}, zeros({3}, DType::f64));
});
BAD_INPUT("rms_norm", "does not take int64", [] { return rms_norm(zeros({2, 3}, kInt64), {3}); });

TEST_CASE("batch_norm: the same bits for any number of threads, in either layout") {
  const int before = get_num_threads();
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = randn({9, 21, 13, 11}).contiguous(format), w = rand({21}), g = randn({9, 21, 13, 11});
    const auto run = [&](int threads) {
      set_num_threads(threads);
      const Tensor input = x.clone().set_requires_grad(), weight = w.clone().set_requires_grad();
      const Tensor mean = zeros({21}), var = ones({21});
      const Tensor y = batch_norm(input, mean, var, weight, {}, true);
      CHECK(y.memory_format() == format);
      y.backward(g);
      return std::vector{y.detach(), mean, var, input.grad(), weight.grad()};
    };
    const auto one = run(1);
    for (const int threads : {2, 3}) {
      const auto more = run(threads);
      for (std::size_t i = 0; i < one.size(); ++i) CHECK(equal(one[i], more[i]));
    }
  }
  set_num_threads(before);
}

TEST_CASE(
    "batch_norm: running statistics of any strides, and what was saved of them is known to have changed") {
  const Tensor x = randn({6, 3, 5}) * 2 + 1;
  const Tensor mean = zeros({3}), var = ones({3});
  batch_norm(x, mean, var, {}, {}, true, 0.3);
  const Tensor means = zeros({3, 2}), vars = ones({3, 2});
  batch_norm(x, means.select(1, 1), vars.select(1, 0), {}, {}, true, 0.3);
  CHECK(equal(means.select(1, 1), mean));
  CHECK(equal(vars.select(1, 0), var));
  CHECK(equal(means.select(1, 0), zeros({3})));
  CHECK(equal(vars.select(1, 1), ones({3})));

  const Tensor w = ones({3}).set_requires_grad();
  const Tensor product = w * mean;
  batch_norm(x, mean, var, {}, {}, true);
  CHECK_THROWS_AS(product.backward(ones({3})), AutogradError);
}

TEST_CASE("batch_norm: a large mean costs no digits of the variance") {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor noise = randn({8, 5, 20, 30}, DType::f64);
    // f32 numbers near 4096 have a spacing of 2^-11, so x keeps enough digits of the noise, whose standard
    // deviation is 1.
    const Tensor x = (noise + 4096.0).to(DType::f32).contiguous(format);
    const Tensor y = batch_norm(x, {}, {}, {}, {}, true);
    const Tensor expected = batch_norm(x.to(DType::f64), {}, {}, {}, {}, true);
    CHECK(allclose(y.to(DType::f64), expected, 1e-3, 1e-3));
  }
}

TEST_CASE("layer_norm and rms_norm: the same bits for any number of threads") {
  const int before = get_num_threads();
  const Tensor x = randn({1031, 77}), w = rand({77}), b = rand({77}), g = randn({1031, 77});
  for (const bool centred : {true, false}) {
    const auto run = [&](int threads) {
      set_num_threads(threads);
      const Tensor inputs[] = {x.clone().set_requires_grad(), w.clone().set_requires_grad(),
                               b.clone().set_requires_grad()};
      const Tensor y =
          centred ? layer_norm(inputs[0], {77}, inputs[1], inputs[2]) : rms_norm(inputs[0], {77}, inputs[1]);
      y.backward(g);
      return std::vector{y.detach(), inputs[0].grad(), inputs[1].grad(),
                         centred ? inputs[2].grad() : y.detach()};
    };
    const auto one = run(1), three = run(3);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(equal(one[i], three[i]));
  }
  set_num_threads(before);
}
