// Tests of the normalisations that are fused with the operations around them.
#include "tapestry/autograd/ops.h"
#include "tapestry/autograd/ops/fused.h"
#include "tapestry/core/generator.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

GOLDEN_OP("add_layer_norm", "fused", [](const OpCase& c) {
  return add_layer_norm(c[0], c[1], c.dims("normalized_shape"), c[2], c[3], c.real("eps", 1e-5));
});
GOLDEN_OP("add_rms_norm", "fused", [](const OpCase& c) {
  return add_rms_norm(c[0], c[1], c.dims("normalized_shape"), c[2], c.maybe_real("eps"));
});
GOLDEN_OP("batch_norm_relu", "fused", [](const OpCase& c) {
  const auto copy_of = [](const Tensor& t) { return t.defined() ? t.detach().clone() : t; };
  const Tensor mean = copy_of(c[2]), var = copy_of(c[3]);
  std::vector<Tensor> out{batch_norm_relu(c[0], mean, var, c[4], c[5], c.flag("training"), 0.1, 1e-5, c[1])};
  if (mean.defined()) out.insert(out.end(), {mean, var});
  return out;
});
BAD_INPUT("batch_norm_relu", "residual has shape [3], input [2, 3]", [] {
  return batch_norm_relu(zeros({2, 3}), {}, {}, {}, {}, true, 0.1, 1e-5, zeros({3}));
});
BAD_INPUT("batch_norm_relu", "[batch_norm_relu] one value per channel", [] {
  return batch_norm_relu(zeros({1, 3}), {}, {}, {}, {}, true);
});
BAD_INPUT("add_layer_norm", "residual has shape [3], input [2, 3]", [] {
  return add_layer_norm(zeros({2, 3}), zeros({3}), {3}).second;
});
BAD_INPUT("add_layer_norm", "residual has dtype float64", [] {
  return add_layer_norm(zeros({2, 3}), zeros({2, 3}, DType::f64), {3}).second;
});
BAD_INPUT("add_layer_norm", "does not end in normalized_shape [2]", [] {
  return add_layer_norm(zeros({2, 3}), zeros({2, 3}), {2}).second;
});
BAD_INPUT("add_rms_norm", "weight has shape [2], expected [3]", [] {
  return add_rms_norm(zeros({2, 3}), zeros({2, 3}), {3}, zeros({2})).second;
});
BAD_INPUT("add_rms_norm", "undefined", [] { return add_rms_norm(zeros({2, 3}), Tensor(), {3}).second; });

TEST_CASE("add_layer_norm, add_rms_norm: the bits of the composition; gradients of either output or both") {
  manual_seed(8);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool centred : {true, false})
      for (const int used : {1, 2, 3}) {
        CAPTURE(dtype_name(dtype), centred, used);
        const Tensor of_sum = randn({70, 37}).to(dtype), of_norm = randn({70, 37}).to(dtype);
        const Tensor values[] = {randn({70, 37}).to(dtype), (randn({70, 37}) + 2).to(dtype),
                                 randn({37}).to(dtype), randn({37}).to(dtype)};
        std::vector<Tensor> results[2];
        for (const bool fused : {true, false}) {
          std::vector<Tensor> in;
          for (const Tensor& t : values) in.push_back(t.detach().set_requires_grad());
          Tensor s, y;
          if (fused) {
            std::tie(s, y) = centred ? add_layer_norm(in[0], in[1], {37}, in[2], in[3])
                                     : add_rms_norm(in[0], in[1], {37}, in[2]);
          } else {
            s = in[0] + in[1];
            y = centred ? layer_norm(s, {37}, in[2], in[3]) : rms_norm(s, {37}, in[2]);
          }
          Tensor loss = zeros({}, dtype);
          if (used & 1) loss = loss + (s * of_sum).sum();
          if (used & 2) loss = loss + (y * of_norm).sum();
          loss.backward();
          results[fused ? 0 : 1] = {s.detach(), y.detach()};
          for (const Tensor& t : in) results[fused ? 0 : 1].push_back(t.grad());
        }
        CHECK(equal(results[0][0], results[1][0]));
        CHECK(equal(results[0][1], results[1][1]));
        const double most = dtype == DType::f32 ? 1e-5 : 0.04;  // the last sum of dx is rounded once less
        for (std::size_t i = 2; i < 6; ++i) {
          REQUIRE(results[0][i].defined() == results[1][i].defined());
          if (results[0][i].defined())
            CHECK(allclose(results[0][i].to(DType::f32), results[1][i].to(DType::f32), most, most));
        }
      }
}

TEST_CASE("batch_norm_relu: the values and gradients of the composition, in both layouts and modes") {
  manual_seed(11);
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    for (const bool training : {true, false})
      for (const bool with_residual : {true, false}) {
        CAPTURE(training, with_residual);
        const Tensor values[] = {contiguous(randn({4, 6, 9, 7}), format), randn({6}), randn({6}),
                                 contiguous(randn({4, 6, 9, 7}), format)};
        const Tensor weight = randn({4, 6, 9, 7});
        std::vector<Tensor> results[2];
        for (const bool fused : {true, false}) {
          std::vector<Tensor> in;
          for (const Tensor& t : values) in.push_back(t.detach().set_requires_grad());
          const Tensor mean = full({6}, 0.5), var = full({6}, 2.0), r = with_residual ? in[3] : Tensor();
          Tensor y;
          if (fused) {
            y = batch_norm_relu(in[0], mean, var, in[1], in[2], training, 0.1, 1e-5, r);
          } else {
            y = batch_norm(in[0], mean, var, in[1], in[2], training);
            y = relu(r.defined() ? y + r : y);
          }
          CHECK(y.memory_format() == format);
          (y * weight).sum().backward();
          results[fused ? 0 : 1] = {y.detach(), mean, var};
          for (std::size_t i = 0; i < (with_residual ? 4U : 3U); ++i)
            results[fused ? 0 : 1].push_back(in[i].grad());
        }
        for (std::size_t i = 0; i < results[0].size(); ++i)
          CHECK(allclose(results[0][i], results[1][i], 1e-4, 1e-5));
      }
}
