// Parameters and buffers are used like tensors.
#include <sstream>

#include "tests/nn/golden.h"
#include "tests/support/catch.h"

// No using-directive: operators and functions must be found by the namespace of the argument.
namespace nn = tapestry::nn;
using tapestry::kFloat64;
using tapestry::kInt64;
using tapestry::NoGradGuard;
using tapestry::Scalar;
using tapestry::Shape;
using tapestry::Tensor;

namespace {

nn::Parameter counting() { return {"p", tapestry::arange(6, kFloat64).reshape({2, 3})}; }

bool same(const Tensor& a, const Tensor& b) { return tapestry::equal(a, b); }

}  // namespace

TEST_CASE("a parameter has the properties of its tensor") {
  const nn::Parameter p = counting();
  CHECK(p.dim() == 2);
  CHECK(p.ndim() == 2);
  CHECK(p.size(0) == 2);
  CHECK(p.size(-1) == 3);
  CHECK(p.sizes() == Shape{2, 3});
  CHECK(p.shape() == Shape{2, 3});
  CHECK(p.strides() == Shape{3, 1});
  CHECK(p.stride(0) == 3);
  CHECK(p.numel() == 6);
  CHECK(p.nbytes() == 48);
  CHECK(p.dtype() == kFloat64);
  CHECK(p.device() == tapestry::kCPU);
  CHECK(p.is_contiguous());
  CHECK(p.is_floating_point());
  CHECK(p.element_size() == 8);
  CHECK(p.storage_offset() == 0);
  CHECK(p.is_leaf());
  CHECK(p.to_vector() == std::vector<double>{0, 1, 2, 3, 4, 5});
  CHECK(p.data<double>()[5] == 5);
  CHECK(p[1][2].item() == 5);
  CHECK(p.str() == p->str());
  std::ostringstream out;
  out << p;
  CHECK(out.str() == p->str());
  CHECK_THROWS_AS(nn::Parameter().dim(), tapestry::ValueError);
}

TEST_CASE("a parameter is an operand") {
  const nn::Parameter p = counting();
  const Tensor& t = p;
  CHECK(same(p + 1, t + 1));
  CHECK(same(2 * p, t * 2));
  CHECK(same(p * p - t, t * t - t));
  CHECK(same(-p, t.neg()));
  CHECK(same(p > 2, t > 2));
  CHECK(same(relu(p), t.relu()));
  CHECK(same(p.view({3, 2}), t.view({3, 2})));
  CHECK(same(p.t(), t.t()));
  CHECK(same(p.transpose(0, 1), t.t()));
  CHECK(same(p.permute({1, 0}), t.t()));
  CHECK(same(p.reshape(-1), t.reshape(-1)));
  CHECK(same(p.flatten(), t.reshape(-1)));
  CHECK(same(p.unsqueeze(0).squeeze(0), t));
  CHECK(same(p.narrow(1, 1, 2), t.narrow(1, 1, 2)));
  CHECK(same(p.select(1, 2), t.select(1, 2)));
  CHECK(same(p.index_select(1, tapestry::tensor({2, 0})), t.index_select(1, tapestry::tensor({2, 0}))));
  CHECK(same(p.to(tapestry::kFloat32), t.to(tapestry::kFloat32)));
  CHECK(same(p.abs() + p.exp() + p.sqrt() + p.square() + p.tanh() + p.sigmoid() + (p + 1).log(),
             t.abs() + t.exp() + t.sqrt() + t.square() + t.tanh() + t.sigmoid() + (t + 1).log()));
  CHECK(same(p.pow(3), t * t * t));
  CHECK(same(p.softmax(1), t.softmax(1)));
  CHECK(same(p.matmul(t.t()), t.matmul(t.t())));
  CHECK(same(p.mm(t.t()), t.matmul(t.t())));
  CHECK(same(p.add(1).sub(p).mul(p).div(2.0), t / 2));
  CHECK(same(p.sub(t).add(t).div(t + 1), t / (t + 1)));
  CHECK(same(p.neg().sign().relu(), tapestry::zeros({2, 3}, kFloat64)));
  CHECK(same(p.clamp(1, 4), t.clamp(1, 4)));
  CHECK(same(p.slice(1, 1), t.narrow(1, 1, 2)));
  CHECK(same(p.gather(1, tapestry::tensor({{2}, {0}})), tapestry::tensor({{2.0}, {3.0}}, kFloat64)));
  CHECK(same(p.masked_fill(t > 2, 9).amax(1), tapestry::tensor({2.0, 9.0}, kFloat64)));
  CHECK(same(p.contiguous(tapestry::MemoryFormat::contiguous).to_float().half(), t.half()));
  CHECK(same(p.bfloat16().to_double(), t));
  CHECK(same(p.to_double().amin(0), t[0]));
  CHECK(same(p.var(1), t.var(1)));
  CHECK(p.argmax().item() == 5);
  CHECK(p.isfinite().all().item<bool>());
  CHECK(p.any().item<bool>());
  CHECK_FALSE(p.all().item<bool>());
  CHECK_FALSE(p.isnan().any().item<bool>());
  CHECK(p.equal(t));
  CHECK(p.allclose(t + 1e-9));
  CHECK_FALSE(p.allclose(t + 1e-9, 0, 0));
  CHECK(p.sum().item() == 15);
  CHECK(same(p.mean(0, true), t.mean(0, true)));
  CHECK(same(p.std(1), t.std(1)));
  CHECK(same(p.norm(), t.norm()));
  CHECK((p.max)().item() == 5);
  CHECK((p.min)().item() == 0);
}

TEST_CASE("a parameter is changed in place under NoGradGuard") {
  const nn::Parameter p = counting();
  CHECK_THROWS_AS(p += 1, tapestry::AutogradError);
  const NoGradGuard no_grad;
  const Tensor before = p.clone();
  p += 1;
  p *= before + 1;
  p -= p.tensor();
  CHECK(p.sum().item() == 0);
  p.add_(before).mul_(3.0);
  p /= 3;
  CHECK(same(p, before));
  p.sub_(1.0);
  p.div_(2.0);
  CHECK(same(p, (before - 1) / 2));
  p.clamp_(0.0, 1.0);
  CHECK((p.max)().item() == 1);
  p.copy_(before);
  CHECK(same(p, before));
  p.lerp_(before + 1, 0.5);
  CHECK(same(p, before + 0.5));
  p.addcmul_(before, before, -1).addcdiv_(before, before + 1, 2);
  CHECK(same(p, before + 0.5 - before * before + before / (before + 1) * 2));
  p.copy_(before);
  p.fill_(4.0);
  CHECK(p.mean().item() == 4);
  p.zero_();
  CHECK(p.sum().item() == 0);
  p.uniform_(2, 3);
  CHECK((p.min)().item() >= 2);
  p.normal_(100, 1e-3);
  CHECK((p.min)().item() > 99);
}

TEST_CASE("a parameter has a gradient, and requires_grad_ freezes all its replicas") {
  nn::Linear fc({.in_features = 2, .out_features = 1});
  nn::Parameter& p = fc.weight;
  double seen = 0;
  const tapestry::HookHandle hook = p.register_hook([&](const Tensor& g) {
    seen = g.sum().item();
    return Tensor();
  });
  (p * 3).sum().backward();
  CHECK(seen == 6);
  CHECK(p.grad().sum().item() == 6);
  p.zero_grad();
  CHECK_FALSE(p.grad().defined());
  p.set_grad(tapestry::ones({1, 2}));
  CHECK(p.grad().sum().item() == 2);
  CHECK_FALSE(p.detach().requires_grad());

  p.set_replicas({tapestry::ones({1, 2}), tapestry::ones({1, 2})});
  p.requires_grad_();
  CHECK(p.replica(1).requires_grad());
  CHECK(&p.requires_grad_(false) == &p);
  CHECK_FALSE(p.requires_grad());
  CHECK_FALSE(p.replica(1).requires_grad());
  const nn::Parameter integers("i", tapestry::arange(3));
  CHECK_THROWS_AS(integers.requires_grad_(), tapestry::TypeError);
}
