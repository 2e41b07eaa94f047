#include "tapestry/autograd/autocast.h"

#include <optional>
#include <thread>
#include <vector>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/function.h"
#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops.h"
#include "tests/support/catch.h"

using namespace tapestry;
using autograd::FunctionContext;

namespace {

// Full mantissas, so that a missing cast changes bits.
Tensor numbers(const Shape& sizes, double from = -1) {
  const std::int64_t n = sizes.numel();
  return (sin(arange(n, DType::f32) * 0.7 + 0.3) + (from + 1)).reshape(sizes);
}
Tensor parameter(const Shape& sizes) { return numbers(sizes).set_requires_grad(); }
Tensor low(const Tensor& t, DType dtype = DType::bf16) { return t.to(dtype); }

// y = x w^T and its gradient with the weight's cast on the tape, without autocast.
struct Reference {
  Tensor y, dw;
  Reference(const Tensor& x, const Tensor& w, DType dtype) {
    const Tensor leaf = w.detach().clone().set_requires_grad();
    y = linear(x.to(dtype), leaf.to(dtype));
    y.to(DType::f32).square().sum().backward();
    dw = leaf.grad();
  }
};

// Multiplies by the weight in its backward too.
struct Product : autograd::Function<Product> {
  static Tensor forward(FunctionContext& ctx, const Tensor& x, const Tensor& w) {
    ctx.save_for_backward({x, w});
    seen = x.dtype();
    return matmul(x, w);
  }
  static std::vector<Tensor> backward(FunctionContext& ctx, const std::vector<Tensor>& grads) {
    const Tensor dx = matmul(grads[0], ctx.saved(1).t()), dw = matmul(ctx.saved(0).t(), grads[0]);
    seen_backward = dx.dtype();
    return {dx.to(ctx.saved(0).dtype()), dw.to(ctx.saved(1).dtype())};
  }
  static inline DType seen = DType::i8, seen_backward = DType::i8;
};
struct WideProduct : autograd::Function<WideProduct> {
  static constexpr DType kCastInputs = DType::f32;
  static Tensor forward(FunctionContext& ctx, const Tensor& x, const Tensor& w) {
    return Product::forward(ctx, x, w);
  }
  static std::vector<Tensor> backward(FunctionContext& ctx, const std::vector<Tensor>& grads) {
    return Product::backward(ctx, grads);
  }
};

}  // namespace

TEST_CASE("autocast: guards nest, restore the state, and select device types") {
  CHECK_FALSE(autocast_dtype(DeviceType::cpu));
  {
    const AutocastGuard outer(DType::bf16);
    CHECK(autocast_dtype(DeviceType::cpu) == DType::bf16);
    CHECK(autocast_dtype(DeviceType::cuda) == DType::bf16);
    CHECK_FALSE(autocast_dtype(DeviceType::meta));
    {
      const AutocastGuard inner(DType::f16, {.device_type = DeviceType::cuda});
      CHECK(autocast_dtype(DeviceType::cpu) == DType::bf16);
      CHECK(autocast_dtype(DeviceType::cuda) == DType::f16);
      const AutocastGuard off(false);
      CHECK_FALSE(autocast_dtype(DeviceType::cpu));
      CHECK_FALSE(autocast_dtype(DeviceType::cuda));
      CHECK(matmul(numbers({2, 2}), numbers({2, 2})).dtype() == DType::f32);
    }
    const AutocastGuard not_here(DType::bf16, {.enabled = false});
    CHECK_FALSE(autocast_dtype(DeviceType::cpu));
  }
  CHECK_FALSE(autocast_dtype(DeviceType::cpu));
  const AutocastGuard defaults(true);
  CHECK(autocast_dtype(DeviceType::cpu) == DType::bf16);
  CHECK(autocast_dtype(DeviceType::cuda) == DType::f16);
  std::optional<DType> other = DType::f64;
  std::thread([&] { other = autocast_dtype(DeviceType::cpu); }).join();
  CHECK_FALSE(other);
}

TEST_CASE("autocast: dtypes and devices that do not exist for it are refused") {
  CHECK_THROWS_AS(AutocastGuard(DType::f32), TypeError);
  CHECK_THROWS_AS(AutocastGuard(DType::i64), TypeError);
  CHECK_THROWS_AS(AutocastGuard(DType::bf16, {.device_type = DeviceType::meta}), ValueError);
  CHECK_FALSE(autocast_dtype(DeviceType::cpu));
}

TEST_CASE("autocast: a product has the bits of explicit casts, and the gradient the parameter's dtype") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor x = numbers({5, 7}), w = parameter({3, 7});
    const Reference reference(x, w, dtype);
    Tensor y;
    {
      const AutocastGuard guard(dtype);
      y = linear(x, w);
    }
    CHECK(y.dtype() == dtype);
    CHECK(equal(y.detach(), reference.y.detach()));
    y.to(DType::f32).square().sum().backward();
    CHECK(w.grad().dtype() == DType::f32);
    CHECK(equal(w.grad(), reference.dw));
  }
}

TEST_CASE("autocast: f64 and integers are not cast, and operations outside of the lists promote") {
  const AutocastGuard guard(DType::bf16);
  const Tensor wide = numbers({2, 2}).to(DType::f64);
  CHECK(matmul(wide, wide).dtype() == DType::f64);
  CHECK((low(numbers({2})) + numbers({2})).dtype() == DType::f32);
  CHECK((low(numbers({2})) + low(numbers({2}))).dtype() == DType::bf16);
  CHECK(cat({low(numbers({2})), numbers({2})}).dtype() == DType::f32);
  CHECK(arange(3).dtype() == DType::i64);
  CHECK(cross_entropy(low(numbers({2, 3})), zeros({2}, kInt64)).dtype() == DType::f32);
}

TEST_CASE("autocast: norms of bf16 inputs with f32 weights compute in f32 and return bf16") {
  const Tensor x = low(numbers({4, 6})), w = parameter({6}), b = parameter({6});
  const Tensor mean = zeros({6}), var = ones({6});
  const AutocastGuard guard(DType::bf16);
  const Tensor y = layer_norm(x, {6}, w, b);
  CHECK(y.dtype() == DType::bf16);
  {
    const AutocastGuard off(false);
    CHECK(equal(y.detach(), layer_norm(x.to(DType::f32), {6}, w, b).to(DType::bf16).detach()));
  }
  CHECK(batch_norm(x, mean, var, w, b, true).dtype() == DType::bf16);
  CHECK(mean.abs().sum().item() > 0);  // the running statistics themselves were updated
  CHECK(mean.dtype() == DType::f32);
  CHECK(batch_norm(x, mean, var, {}, {}, false).dtype() == DType::bf16);
  CHECK(layer_norm(numbers({4, 6}), {6}, w, b).dtype() == DType::f32);
}

// What a batch norm of low images with f32 parameters gives: y, the running statistics, and the gradients of
// x, weight, bias and, of batch_norm_relu(), residual. The gradients of `twice` are differentiated once more.
std::vector<Tensor> batch_norm_results(const Tensor& image, const Tensor& added, bool training, bool relu,
                                       bool twice, bool cast) {
  const DType dtype = image.dtype();
  const Tensor x = image.detach().set_requires_grad(), residual = added.detach().set_requires_grad(),
               w = parameter({6}), b = parameter({6}), mean = numbers({6}).clone(),
               var = numbers({6}).square() + 1;
  const auto wide = [&](const Tensor& t) { return cast ? t.to(DType::f32) : t; };
  Tensor y;
  {
    const AutocastGuard guard(dtype);
    y = relu ? batch_norm_relu(wide(x), mean, var, w, b, training, 0.1, 1e-5, wide(residual))
             : batch_norm(wide(x), mean, var, w, b, training);
  }
  y = y.to(dtype);
  std::vector<Tensor> inputs = {x, w, b};
  if (relu) inputs.push_back(residual);
  const Tensor g = (numbers(y.sizes()) * 3).to(dtype);
  std::vector<Tensor> all = autograd::grad({y}, inputs, {.grad_outputs = {g}, .create_graph = twice});
  if (twice) {
    Tensor sum = zeros({});
    for (const Tensor& t : all) sum = sum + t.to(DType::f32).square().sum();
    all = autograd::grad({sum}, {x, w});
  }
  all.push_back(y), all.push_back(mean), all.push_back(var);
  return all;
}

TEST_CASE("autocast: batch norms read and write low images themselves, and give what f32 copies give") {
  // Both ways compute in f32. Its last bit may differ, because the compiler fuses other multiplications and
  // additions, and then the other of two neighbours in the low dtype may be the nearest.
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (const bool training : {false, true})
        for (const bool relu : {false, true})
          for (const bool twice : {false, true}) {
            CAPTURE(dtype, format == MemoryFormat::channels_last, training, relu, twice);
            const Tensor x = numbers({3, 6, 4, 5}).to(dtype).contiguous(format),
                         residual = (numbers({3, 6, 4, 5}) * 2).to(dtype).contiguous(format);
            const auto own = batch_norm_results(x, residual, training, relu, twice, false),
                       copies = batch_norm_results(x, residual, training, relu, twice, true);
            REQUIRE(own.size() == copies.size());
            for (std::size_t i = 0; i < own.size(); ++i) {
              CAPTURE(i);
              CHECK(own[i].dtype() == copies[i].dtype());
              const Tensor a = own[i].detach().to(DType::f64), b = copies[i].detach().to(DType::f64);
              const double step = (dtype == DType::bf16 ? 0x1p-7 : 0x1p-10) * (twice ? 2 : 1);
              CHECK(amax((a - b).abs()).item<double>() <= step * amax(b.abs()).item<double>());
            }
          }
}

TEST_CASE("autocast: a parameter is cast once per outermost guard, and again after a change") {
  const Tensor x = numbers({2, 3}), w = parameter({3, 3}), plain = numbers({3, 3});
  {
    const AutocastGuard guard(DType::bf16);
    CHECK(autograd::impl::cached_casts() == 0);
    const Tensor first = linear(x, w);
    CHECK(autograd::impl::cached_casts() == 1);
    {
      const AutocastGuard inner(DType::bf16);
      linear(linear(x, w), w);
      linear(x, plain);  // no leaf that requires a gradient
    }
    CHECK(autograd::impl::cached_casts() == 1);  // the inner guard has not emptied the outer one's cache
    {
      const NoGradGuard no_grad;
      w.mul_(2);
    }
    CHECK(equal(linear(x, w).detach(), first.detach() * 2));
    CHECK(autograd::impl::cached_casts() == 1);
    const AutocastGuard without(DType::bf16, {.cache_enabled = false});
    CHECK(equal(linear(x, w).detach(), first.detach() * 2));
  }
  CHECK(autograd::impl::cached_casts() == 0);
  const AutocastGuard guard(DType::bf16, {.cache_enabled = false});
  linear(x, w);
  CHECK(autograd::impl::cached_casts() == 0);
}

TEST_CASE("autocast: a cast that was cached without gradients is not used to record") {
  const Tensor x = numbers({2, 3}), w = parameter({3, 3});
  const AutocastGuard guard(DType::bf16);
  {
    const NoGradGuard no_grad;
    CHECK_FALSE(linear(x, w).requires_grad());
  }
  const Tensor y = linear(x, w);
  REQUIRE(y.requires_grad());
  y.to(DType::f32).sum().backward();
  CHECK(w.grad().defined());
  const NoGradGuard no_grad;
  CHECK_FALSE(linear(x, w).requires_grad());
}

TEST_CASE("autocast: a weight that is used twice gets the sum of both gradients") {
  const Tensor x = numbers({2, 3}), w = parameter({3, 3}), leaf = w.detach().clone().set_requires_grad();
  {
    const AutocastGuard guard(DType::bf16);
    linear(linear(x, w), w).to(DType::f32).sum().backward();
  }
  const Tensor cast = low(leaf);
  linear(linear(low(x), cast), cast).to(DType::f32).sum().backward();
  CHECK(equal(w.grad(), leaf.grad()));
}

TEST_CASE("autocast: backward functions run with autocast off, also inside of the guard; hooks see f32") {
  const Tensor x = numbers({2, 3}).set_requires_grad(), w = parameter({3, 3});
  DType of_hook = DType::i8;
  w.register_hook([&](const Tensor& g) {
    of_hook = g.dtype();
    return g * 2;
  });
  const AutocastGuard guard(DType::bf16);
  linear(x, w).to(DType::f32).square().sum().backward();
  CHECK(of_hook == DType::f32);
  CHECK(autocast_dtype(DeviceType::cpu) == DType::bf16);
  const AutocastGuard off(false);
  CHECK(equal(w.grad(), Reference(x.detach(), w, DType::bf16).dw * 2));
}

TEST_CASE("autocast: checkpoint() recomputes with the state of its forward pass") {
  const Tensor x = numbers({4, 3}).set_requires_grad(), w = parameter({3, 3}), v = parameter({3, 3});
  const auto block = [&](const Tensor& t) { return gelu(linear(softmax(linear(t, w), 1), v)); };
  const auto gradients = [&](bool by_checkpoint) {
    Tensor loss;
    {
      const AutocastGuard guard(DType::bf16);
      loss = (by_checkpoint ? checkpoint(block, x) : block(x)).to(DType::f32).square().sum();
    }
    std::vector<Tensor> all{loss.detach()};
    for (const Tensor& g : autograd::grad({loss}, {x, w, v})) all.push_back(g);
    return all;
  };
  const std::vector<Tensor> plain = gradients(false), again = gradients(true);
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(equal(plain[i], again[i]));
  CHECK(autograd::impl::cached_casts() == 0);
}

TEST_CASE("autocast: saved-tensor hooks get the low operands") {
  const Tensor x = numbers({2, 3}).set_requires_grad(), w = parameter({3, 3});
  std::vector<DType> saved;
  Tensor y;
  {
    const autograd::SavedTensorHooks hooks(
        [&](const Tensor& t) -> std::shared_ptr<void> {
          saved.push_back(t.dtype());
          return std::make_shared<Tensor>(t);
        },
        [](const std::shared_ptr<void>& t) { return *static_cast<const Tensor*>(t.get()); });
    const AutocastGuard guard(DType::bf16);
    y = linear(x, w);
  }
  CHECK(saved == std::vector<DType>{DType::bf16, DType::bf16});
  y.to(DType::f32).square().sum().backward();
  CHECK(equal(w.grad(), Reference(x.detach(), w, DType::bf16).dw));
}

TEST_CASE("autocast: a user-defined function runs backward with the state of forward") {
  const Tensor x = numbers({2, 3}).set_requires_grad(), w = parameter({3, 4});
  Tensor y;
  {
    const AutocastGuard guard(DType::bf16);
    y = Product::apply(x, w);
  }
  CHECK(y.dtype() == DType::bf16);
  CHECK(Product::seen == DType::f32);
  y.to(DType::f32).sum().backward();
  CHECK(Product::seen_backward == DType::bf16);
  CHECK(w.grad().dtype() == DType::f32);
}

TEST_CASE("autocast: kCastInputs converts the inputs of a function and turns autocast off in it") {
  const Tensor x = low(numbers({2, 3})).set_requires_grad(), w = parameter({3, 4});
  Tensor y;
  {
    const AutocastGuard guard(DType::bf16);
    y = WideProduct::apply(x, w);
  }
  CHECK(Product::seen == DType::f32);
  CHECK(y.dtype() == DType::f32);
  CHECK(equal(y.detach(), matmul(x.detach().to(DType::f32), w.detach())));
  y.sum().backward();
  CHECK(Product::seen_backward == DType::f32);
  CHECK(x.grad().dtype() == DType::bf16);
  CHECK_THROWS_AS(WideProduct::apply(x, w), TypeError);  // without a guard, the inputs stay as they are
}

TEST_CASE("autocast: an error in a cast operation restores the state") {
  const AutocastGuard guard(DType::bf16);
  CHECK_THROWS_AS(matmul(numbers({2, 3}), numbers({2, 3})), ValueError);
  CHECK(autocast_dtype(DeviceType::cpu) == DType::bf16);
  CHECK(matmul(numbers({2, 3}), numbers({3, 2})).dtype() == DType::bf16);
}

TEST_CASE("autocast: linear_cross_entropy multiplies in bf16 and returns its loss in f32") {
  const Tensor x = numbers({6, 5}), w = parameter({4, 5}), target = zeros({6}, kInt64);
  Tensor loss;
  {
    const AutocastGuard guard(DType::bf16);
    loss = linear_cross_entropy(x, w, target);
  }
  CHECK(loss.dtype() == DType::f32);
  const Tensor expected = cross_entropy(linear(low(x), low(w)).to(DType::f32), target);
  CHECK(loss.item() == Approx(expected.item()).epsilon(1e-5));
  loss.backward();
  CHECK(w.grad().dtype() == DType::f32);
}

TEST_CASE("autocast: several backward passes run inside of one guard") {
  const Tensor x = numbers({2, 3}), w = parameter({3, 3}), leaf = w.detach().clone().set_requires_grad();
  {
    const AutocastGuard guard(DType::bf16);
    for (int part = 0; part < 3; ++part) linear(x * part, w).to(DType::f32).square().sum().backward();
  }
  for (int part = 0; part < 3; ++part)
    linear(low(x * part), low(leaf)).to(DType::f32).square().sum().backward();
  CHECK(equal(w.grad(), leaf.grad()));
}
