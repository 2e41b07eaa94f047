#include <limits>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tests/core/child.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

GOLDEN_OP("clone", "copying", [](const OpCase& c) { return c[0].clone(); });
GOLDEN_OP("contiguous", "copying", [](const OpCase& c) { return c[0].contiguous(); });
GOLDEN_OP("contiguous/channels_last", "copying",
          [](const OpCase& c) { return c[0].contiguous(MemoryFormat::channels_last); });
GOLDEN_OP("to", "copying", [](const OpCase& c) { return c[0].to(c.dtype("dtype")); });
GOLDEN_OP("copy_", "copying", [](const OpCase& c) { return c[0].clone().copy_(c[1]); });
GOLDEN_OP("fill_", "copying", [](const OpCase& c) { return c[0].clone().fill_(c.scalar("value")); });
GOLDEN_OP("item", "copying", [](const OpCase& c) {
  const Scalar value = c[0].item_scalar();
  return scalar_tensor(value, c[0].dtype());
});

BAD_INPUT("clone", "undefined tensor", [] { Tensor().clone(); });
BAD_INPUT("contiguous", "channels-last needs 4 dimensions, got [2, 3]", [] {
  zeros({2, 3}).contiguous(MemoryFormat::channels_last);
});
BAD_INPUT("to", "cpu:63", [] { zeros({2}).to("cpu:63"); });
BAD_INPUT("copy_", "does not broadcast to [3]", [] { zeros({3}).copy_(zeros({2, 3})); });
BAD_INPUT("copy_", "do not broadcast", [] { zeros({3}).copy_(zeros({2})); });
BAD_INPUT("copy_", "undefined tensor", [] { zeros({3}).copy_(Tensor()); });
BAD_INPUT("copy_", "share memory", [] { zeros({1}).expand({3}).copy_(zeros({3})); });
BAD_INPUT("fill_", "share memory", [] { zeros({1}).expand({3}).fill_(1); });
BAD_INPUT("item", "shape [3] has 3 elements", [] { zeros({3}).item(); });
BAD_INPUT("item", "shape [0] has 0 elements", [] { zeros({0}).item(); });
NOT_APPLICABLE("item", empty, "needs one element");
OP_TEST("item", strided, "of an element in the midst of others") {
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}}, kFloat32);
  CHECK(x.t()[1][1].item() == 5);
  CHECK(x.slice(1, 2, 3).narrow(0, 1, 1).item() == 6);
}

TEST_CASE("clone keeps the layout and copies; contiguous and to copy only if something changes") {
  const Tensor x = randn({2, 3, 4, 5});
  const Tensor nhwc = x.contiguous(MemoryFormat::channels_last);
  CHECK(nhwc.memory_format() == MemoryFormat::channels_last);
  CHECK(equal(nhwc, x));
  CHECK(nhwc.clone().strides() == nhwc.strides());
  CHECK(nhwc.clone().raw_data() != nhwc.raw_data());
  CHECK(x.contiguous().is_same(x));
  CHECK(nhwc.contiguous(MemoryFormat::channels_last).is_same(nhwc));
  CHECK(nhwc.contiguous().is_contiguous());
  CHECK(equal(nhwc.contiguous(), x));
  CHECK(x.to(kFloat32).is_same(x));
  CHECK(x.to(kCPU).is_same(x));
  CHECK(nhwc.to(kFloat64).strides() == nhwc.strides());
}

TEST_CASE("copy_ between overlapping views reads all elements before it overwrites them") {
  const Tensor forward = arange(10.0), backward = arange(10.0);
  forward.slice(0, 1).copy_(forward.slice(0, 0, 9));
  CHECK(equal(forward, tensor({0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0})));
  backward.slice(0, 0, 9).copy_(backward.slice(0, 1));
  CHECK(equal(backward, tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 9.0})));
  const Tensor square = arange(9.0).reshape({3, 3});
  square.copy_(square.t());
  CHECK(equal(square, tensor({{0.0, 3.0, 6.0}, {1.0, 4.0, 7.0}, {2.0, 5.0, 8.0}})));
}

TEST_CASE("copy_ forgets the target's history and passes gradients to the source") {
  const Tensor a = ones({2, 3}, TensorOptions().with_grad());
  const Tensor b = ones({3}, TensorOptions(kFloat64).with_grad());
  Tensor y = a * 2;
  y.copy_(b);
  (y * 3).backward(ones({2, 3}));
  CHECK(equal(b.grad(), full({3}, 6.0, kFloat64)));
  CHECK((!a.grad().defined() || equal(a.grad(), zeros({2, 3}))));
}

TEST_CASE("a fill cuts the history") {
  const Tensor a = ones({3}, TensorOptions().with_grad());
  Tensor y = a * 2;
  y.fill_(4);
  y.backward(ones({3}));
  CHECK((!a.grad().defined() || equal(a.grad(), zeros({3}))));
  CHECK_THROWS_WITH(a.zero_(), ContainsSubstring("leaf"));
  const NoGradGuard no_grad;
  a.zero_();
  CHECK(equal(a, zeros({3})));
}

TEST_CASE("item<T> converts to any C++ number type, and refuses values that the type cannot hold") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                   inf = std::numeric_limits<double>::infinity();
  CHECK(tensor({2.5}).item() == 2.5);
  CHECK(tensor({2.5}).item<int>() == 2);
  CHECK(tensor({7}).item<std::int64_t>() == 7);
  CHECK(full({}, std::int64_t{1} << 62).item<std::int64_t>() == std::int64_t{1} << 62);
  CHECK(full({1, 1}, true).item<bool>());
  CHECK(arange(10).select(0, 7).item<int>() == 7);
  CHECK(tensor({nan}).item<bool>());
  CHECK_THROWS_WITH(tensor({nan}).item<int>(),
                    ContainsSubstring("[item]") && ContainsSubstring("cannot hold nan"));
  CHECK_THROWS_AS(tensor({inf}).item<std::int64_t>(), ValueError);
  CHECK_THROWS_AS(tensor({0x1p63}).item<std::int64_t>(), ValueError);
  CHECK(tensor({-0x1p63}).item<std::int64_t>() == std::numeric_limits<std::int64_t>::min());
  CHECK_THROWS_WITH(tensor({300}).item<std::uint8_t>(), ContainsSubstring("cannot hold 300"));
  CHECK_THROWS_AS(tensor({-1}).item<std::uint64_t>(), ValueError);
  CHECK(tensor({255.9}).item<std::uint8_t>() == 255);
}

// Runs in a process that has two logical CPU devices.
TEST_CASE("child: copies between logical devices", "[.]") {
  const Device other("cpu:1");
  const Tensor x = randn({3, 4}, TensorOptions(kFloat64).with_grad());
  const Tensor y = x.to(other);
  CHECK(y.device() == other);
  CHECK(y.storage()->device() == other);
  CHECK(equal(y.to(kCPU).detach(), x.detach()));
  (y * y).sum().backward();
  CHECK(x.grad().device() == kCPU);
  CHECK(equal(x.grad(), (x * 2).detach()));
  CHECK(autograd::gradcheck(
      [&](const std::vector<Tensor>& in) {
        return std::vector<Tensor>{(in[0].to(other) * in[0].to(other)).to(kCPU)};
      },
      {x}));

  // to() changes device and dtype at once. Its backward must change both back.
  const Tensor f = ones({2, 3}, TensorOptions().with_grad());
  const Tensor g = f.to(other, kFloat64);
  CHECK(g.dtype() == kFloat64);
  (g * 3).backward(ones({2, 3}, {kFloat64, other}));
  CHECK(equal(f.grad(), full({2, 3}, 3.0)));

  // The copy must allocate nothing on the source's device, which may be full.
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor here = randn({2, 3, 4, 5}).contiguous(format);
    reset_peak_memory(kCPU);
    const std::int64_t before = memory_stats(kCPU).allocated;
    const Tensor there = here.to(other);
    CHECK(memory_stats(kCPU).peak_allocated == before);
    CHECK(there.strides() == here.strides());
    CHECK(equal(there.to(kCPU), here));
  }

  const Tensor target = zeros({2, 3}, other);
  target.t().copy_(arange(6.0).reshape({3, 2}));
  CHECK(equal(target.to(kCPU), arange(6.0).reshape({3, 2}).t()));
  CHECK_THROWS_WITH(target + ones({2, 3}), ContainsSubstring("operands are on cpu:1 and on cpu:0"));
  CHECK(zeros_like(f, other).device() == other);
  CHECK(ones({2}, other).sum().item() == 2);
}
OP_TEST("to", gradcheck, "across logical devices") {
  const ChildResult child = run_child("child: copies between logical devices", "TAPESTRY_LOGICAL_DEVICES=2");
  INFO(child.output);
  CHECK(child.status == 0);
}

OP_TEST("to", gradgradcheck, "through f32, where finite differences are too coarse for gradgradcheck()") {
  const Tensor x = tensor({1.0, -0.5}, kFloat64).set_requires_grad();
  const Tensor y = x.to(kFloat32).exp().to(kFloat64);
  const Tensor first = autograd::grad({y.sum()}, {x}, {.create_graph = true})[0];
  const Tensor second = autograd::grad({first.sum()}, {x})[0];
  CHECK(second.dtype() == kFloat64);
  CHECK(allclose(second, x.detach().exp(), 1e-6));
}

TEST_CASE("int16, int8 and uint16 are loaded, moved and cast, and refused by operations that compute") {
  const Tensor x = tensor({-3, 0, 7, 127}, kInt8), u = tensor({0, 1, 40000, 65535}, kUInt16);
  CHECK(x.nbytes() == 4);
  CHECK(equal(x.to(kInt64), tensor({-3, 0, 7, 127}, kInt64)));
  CHECK(equal(u.to(kFloat32), tensor({0, 1, 40000, 65535}).to(kFloat32)));
  CHECK(equal(tensor({300.75, -1.5}).to(kInt8).to(kInt32), tensor({44, -1}, kInt32)));  // 300 modulo 256
  CHECK(equal(u.to(kInt16).to(kInt32), tensor({0, 1, 40000 - 65536, -1}, kInt32)));
  CHECK(x[3].item<int>() == 127);
  CHECK(u[3].item<int>() == 65535);
  // Views, and operations that only move elements.
  CHECK(equal(stack({x, x}).t().contiguous().narrow(0, 1, 2).to(kInt32),
              tensor({0, 0, 7, 7}, kInt32).reshape({2, 2})));
  CHECK(equal(cat({u, u.narrow(0, 0, 1)}).to(kInt32), tensor({0, 1, 40000, 65535, 0}, kInt32)));
  const Tensor filled = zeros({3}, kInt16);
  filled.narrow(0, 1, 1).fill_(-5);
  CHECK(equal(filled.to(kInt32), tensor({0, -5, 0}, kInt32)));
  // An operand that computes decides the dtype.
  CHECK(equal(x * ones({4}), tensor({-3.0, 0.0, 7.0, 127.0}).to(kFloat32)));
  CHECK_THROWS_WITH(x + x, ContainsSubstring("int8") && ContainsSubstring("convert with .to()"));
  CHECK_THROWS_AS(x.sum(), TypeError);
  CHECK_THROWS_AS(matmul(u, u), TypeError);
  CHECK_THROWS_AS(embedding(x, ones({8, 2})), TypeError);
}
