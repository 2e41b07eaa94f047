// Deferred elements: what materialize() computes equals what the same code gives on a CPU, bit for bit.
#include "tapestry/autograd/deferred.h"

#include <functional>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/context.h"
#include "tapestry/core/generator.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

// Checks that `make` gives the same elements, strides and state of the generator on both devices.
void check_same(const char* what, const std::function<Tensor()>& make) {
  INFO(what);
  manual_seed(7);
  const Tensor real = make();
  const auto state = default_generator(kCPU).state();
  manual_seed(7);
  Tensor meta;
  {
    const DeviceGuard guard("meta");
    meta = make();
  }
  REQUIRE(meta.device() == kMeta);
  CHECK(default_generator(kCPU).state() == state);
  randn({100});  // later random numbers do not matter
  const Tensor got = materialize(meta, kCPU);
  CHECK(got.device() == kCPU);
  CHECK(got.strides() == real.strides());
  CHECK(got.dtype() == real.dtype());
  CHECK(equal(got, real));
  CHECK(default_generator(kCPU).state() != state);
  const Tensor into = full(real.sizes(), 3, real.dtype());
  materialize_into(meta, into);
  CHECK(equal(into, real));
  const Tensor strided = full({2, real.numel()}, 3, real.dtype()).t();
  materialize_into(meta, strided.select(1, 1).view(real.sizes()));
  CHECK(equal(strided.select(1, 1).view(real.sizes()), real));
  CHECK(equal(strided.select(1, 0), full({real.numel()}, 3, real.dtype())));
}

}  // namespace

TEST_CASE("materialize() computes what creation would give") {
  check_same("zeros", [] { return zeros({3, 2}); });
  check_same("full", [] { return full({3}, 2.5, DType::bf16); });
  check_same("arange", [] { return arange(2, 30, 3); });
  check_same("linspace", [] { return linspace(-1, 1, 7); });
  check_same("eye", [] { return eye(4); });
  check_same("tensor", [] { return tensor({{1.5, 2.0}, {3.0, 4.0}}); });
  check_same("rand", [] { return rand({5, 3}); });
  check_same("randn of an odd number of elements", [] { return randn({5, 3}, DType::f64); });
  check_same("randint", [] { return randint(0, 1000, {33}); });
  check_same("randperm", [] { return randperm(65); });
  check_same("a fill of each of several tensors", [] {
    const Tensor a = empty({7, 3}).uniform_(-1, 1), b = empty({5}, DType::bf16).normal_(0, 2);
    return cat({a.flatten(), b.to_float(), randn({2})});
  });
  check_same("randn_like of a channels-last tensor", [] {
    return randn_like(empty({2, 3, 4, 5}, {}, MemoryFormat::channels_last)).contiguous();
  });
}

TEST_CASE("materialize() repeats changes in place in their order") {
  check_same("numbers", [] { return randn({9}).mul_(0.02).add_(1).clamp_(0.99, 1.02).pow_(2).exp_(); });
  check_same("a view", [] {
    const Tensor w = randn({6, 4});
    w.select(0, 2).zero_();
    w.slice(1, 1, 4, 2).normal_(5, 0.1);
    return w;
  });
  check_same("the last fill alone counts", [] {
    const Tensor w = randn({6, 4});
    w.mul_(3);
    w.fill_(1);
    w[1].uniform_();
    return w;
  });
  check_same("other tensors, as they were", [] {
    const Tensor a = randn({4}), b = ones({4});
    a.add_(b);
    b.copy_(a);
    a.zero_();
    return b;
  });
  check_same("the own elements", [] {
    const Tensor a = randn({4});
    a.add_(a);
    return a;
  });
}

TEST_CASE("materialize() repeats pointwise operations and copies") {
  check_same("a table of sines", [] {
    const Tensor position = arange(8).unsqueeze(1).to_float();
    const Tensor rate = exp(arange(0, 6, 2).to_float() * (-9.21 / 6));
    return cat({sin(position * rate), cos(position * rate)}, 1);
  });
  check_same("a causal mask", [] { return triu(full({5, 5}, -INFINITY), 1); });
  check_same("scaled random numbers", [] { return randn({3, 3}) * 0.02 + rand({3, 1}); });
  check_same("copies", [] { return randn({3, 4}).t().contiguous().clone().to(DType::bf16); });
  check_same("expand and stack", [] { return stack({arange(4).expand({3, 4}), ones({3, 4}, DType::i64)}); });
  check_same("where", [] {
    const Tensor x = randn({20});
    return where(x > 0, x, relu(-x) * 3);
  });
  check_same("a copy of a real tensor", [] {
    const Tensor real = arange(6, {DType::f32, kCPU});
    const Tensor t = empty({6});
    t.copy_(real);
    real.zero_();  // the copy was made before
    return t;
  });
}

TEST_CASE("materialize() refuses elements that are unknown, by name") {
  const DeviceGuard guard("meta");
  const auto refuses = [](const Tensor& t, const char* text) {
    CHECK_THROWS_AS(materialize(t, kCPU), ValueError);
    CHECK_THROWS_WITH(materialize(t, kCPU), ContainsSubstring(text));
    const Tensor into = full(t.sizes(), 3, {t.dtype(), kCPU});
    CHECK_THROWS_WITH(materialize_into(t, into), ContainsSubstring(text));
    CHECK(equal(into, full(t.sizes(), 3, {t.dtype(), kCPU})));
  };
  refuses(empty({3}), "was never set");
  refuses(softmax(randn({3}), 0), "cannot be repeated");
  refuses(softmax(randn({3}), 0) * 2, "cannot be repeated");
  const Tensor part = empty({3});
  part.slice(0, 0, 2).fill_(1);
  refuses(part, "was never set");
  const Tensor w = randn({3});
  w.copy_(softmax(randn({3}), 0));
  refuses(w, "was changed by copy_");
  const Tensor put = randn({3});
  put.index_fill_(0, tensor({1}), 0);
  refuses(put, "was changed by index_fill");
  w.fill_(2);  // all elements are known again
  CHECK(equal(materialize(w, kCPU), full({3}, 2.0, kCPU)));
  refuses(ones({3}, kCPU).to("meta"), "was never set");
  CHECK_THROWS_WITH(materialize(ones({3}, kCPU), kCPU), ContainsSubstring("has its elements"));
  CHECK_THROWS_WITH(materialize(ones({3}), kMeta), ContainsSubstring("no memory"));
  CHECK_THROWS_WITH(materialize_into(ones({3}), empty({4}, kCPU)), ContainsSubstring("expected [3]"));
}

TEST_CASE("long chains on the meta device stay cheap, and are unknown") {
  const DeviceGuard guard("meta");
  Tensor x = randn({3});
  for (int i = 0; i < 5'000; ++i) x = x * x;
  CHECK_THROWS_AS(materialize(x, kCPU), ValueError);
}

TEST_CASE("materialize() allocates the tensor and little more") {
  const DeviceGuard guard("meta");
  const Tensor w = empty({256, 1024}).uniform_(-1, 1).mul_(2);
  const Tensor into = empty({256, 1024}, kCPU);
  const std::int64_t before = memory_stats(kCPU).allocated;
  reset_peak_memory(kCPU);
  materialize_into(w, into);
  CHECK(memory_stats(kCPU).peak_allocated - before < 4096);
  const Tensor own = materialize(w, kCPU);
  CHECK(memory_stats(kCPU).peak_allocated - before <= static_cast<std::int64_t>(w.nbytes()) + 4096);
}

TEST_CASE("the meta device reserves numbers of the device that its tensors are meant for") {
  manual_seed(3);
  Generator own(11);
  {
    Context context = current_context();
    context.generator = &own;
    const ContextGuard with_generator(context);
    const DeviceGuard guard("meta");
    const Tensor w = randn({4});
    CHECK(own.state()[1] == 1);
    CHECK(default_generator(kCPU).state()[1] == 0);
    Generator same(11);
    context.generator = &same;
    const ContextGuard again(context);
    CHECK(equal(materialize(w, kCPU), randn({4}, kCPU)));
  }
  CHECK(current_context().device == kCPU);
  CHECK(current_context().real_device == kCPU);
}
