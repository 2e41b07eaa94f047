// Variants of kernels that neither golden cases nor sizes_test.cpp reach, because these are small,
// contiguous, or in other dtypes: kernels for packs of 16-bit elements, for channels-last images, for large
// tiles, and for reductions in several pieces. The shapes are the smallest that select them.
#include "tests/device/compare.h"

using namespace device_tests;

namespace {

constexpr DType kHalves[] = {DType::bf16, DType::f16};
constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr DType kIntegersOfCuda[] = {DType::u8, DType::i32, DType::i64};

Tensor last(const Tensor& t) { return t.contiguous(MemoryFormat::channels_last); }
/// Compares f, which is not differentiated, on the GPU with the CPU, element by element.
void exact(const std::string& what, const std::vector<Tensor>& inputs, const Function& f) {
  CAPTURE(what);
  std::vector<Tensor> there;
  for (const Tensor& x : inputs) there.push_back(x.to(kGpu));
  const NoGradGuard no_grad;
  CHECK(equal(f(inputs), f(there).cpu()));
}

}  // namespace

TEST_CASE("normalisation of images in packs") {
  if (no_gpu()) return;
  manual_seed(11);
  for (const DType dtype : kDTypes)
    for (const bool is_last : {false, true})
      for (const std::int64_t channels : {8, 6}) {
        const Tensor x = normal({2, channels, 4, 8}, dtype), image = is_last ? last(x) : x,
                     w = normal({channels}, dtype), b = normal({channels}, dtype);
        compare("batch_norm", {image, w, b}, 16,
                [](const auto& t) { return batch_norm(t[0], {}, {}, t[1], t[2], true); });
        if (is_last)
          compare("group_norm", {image, w, b}, 16,
                  [](const auto& t) { return group_norm(t[0], 2, t[1], t[2]); });
        if (is_last)
          compare("group_norm of packs", {last(normal({1, 16, 3, 3}, dtype))}, 16,
                  [](const auto& t) { return group_norm(t[0], 2); });
      }
}

TEST_CASE("channels-last pools and convolutions") {
  if (no_gpu()) return;
  manual_seed(12);
  for (const DType dtype : kDTypes) {
    const Tensor x = last(normal({2, 8, 6, 6}, dtype)), depth = normal({8, 1, 3, 3}, dtype),
                 one = normal({4, 8, 1, 1}, dtype);
    if (dtype != DType::f16) {
      compare("max_pool2d", {x}, 2, [](const auto& t) { return max_pool2d(t[0], {.kernel_size = 2}); });
      compare("avg_pool2d", {x}, 8, [](const auto& t) { return avg_pool2d(t[0], {.kernel_size = 2}); });
    }
    for (const std::int64_t channels : {8, 6}) {
      compare(
          "depthwise", {last(x.narrow(1, 0, channels)), depth.narrow(0, 0, channels)}, 32,
          [channels](const auto& t) { return conv2d(t[0], t[1], {}, {.padding = 1, .groups = channels}); });
    }
    // Pixels between the windows have the gradient 0. With a stride of 5 they are not computed, but filled.
    compare("depthwise with gaps", {x.contiguous(), depth.narrow(2, 0, 1).narrow(3, 0, 1).contiguous()}, 32,
            [](const auto& t) { return conv2d(t[0], t[1], {}, {.stride = 5, .groups = 8}); });
    compare("conv2d with gaps", {x, one}, 32,
            [](const auto& t) { return conv2d(t[0], t[1], {}, {.stride = 5}); });
  }
}

TEST_CASE("convolutions in large tiles") {
  if (no_gpu()) return;
  manual_seed(20);
  // 67 blocks of 128 x 128 pixels and channels, and 34 of 128 x 64, take less time than more blocks of
  // smaller tiles.
  for (const std::int64_t width : {134, 68}) {
    const Tensor x = normal({1, 4, 64, width}, DType::f32), one = normal({100, 4, 1, 1}, DType::f32),
                 nine = normal({100, 4, 3, 3}, DType::f32);
    const auto close = [&](const char* what, const Tensor& image, const Tensor& w, std::int64_t padding) {
      CAPTURE(what, width);
      const NoGradGuard no_grad;
      const auto convolved = [&](const Device& d) {
        return conv2d(image.to(d), w.to(d), {}, {.padding = padding});
      };
      CHECK(difference(convolved(kCPU), convolved(kGpu)) <= 32 * unit(DType::f32));
    };
    close("1 x 1", last(x), one, 0);
    close("3 x 3", last(x), nine, 1);
    close("row-major", x, one, 0);
  }
}

TEST_CASE("products in large tiles") {
  if (no_gpu()) return;
  manual_seed(13);
  // Large tiles are chosen if they need one wave of blocks where small ones need three.
  const auto products = [](DType dtype, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
    const Tensor a = normal({batch, m, k}, dtype), b = normal({batch, k, n}, dtype),
                 at = normal({batch, k, m}, dtype), bt = normal({batch, n, k}, dtype);
    const auto close = [&](const char* what, const Tensor& x, const Tensor& y, bool x_turned, bool y_turned) {
      CAPTURE(what, dtype, k);
      const auto product = [&](const Device& d) {
        const Tensor p = x.to(d), q = y.to(d);
        return matmul(x_turned ? p.transpose(1, 2) : p, y_turned ? q.transpose(1, 2) : q);
      };
      CHECK(difference(product(kCPU), product(kGpu)) <= 16 * unit(dtype));
    };
    const NoGradGuard no_grad;
    close("a b", a, b, false, false);
    close("a' b", at, b, true, false);
    close("a b'", a, bt, false, true);
    close("a' b'", at, bt, true, true);
  };
  products(DType::f32, 67, 68, 68, 8);
  products(DType::f32, 67, 65, 65, 7);
  for (const DType dtype : kHalves) {
    products(dtype, 34, 72, 200, 8);
    {
      const NoGradGuard no_grad;  // one kernel multiplies all layouts of ragged matrices
      const Tensor a = normal({67, 65, 7}, dtype), b = normal({67, 7, 65}, dtype);
      CHECK(difference(matmul(a, b), matmul(a.to(kGpu), b.to(kGpu))) <= 16 * unit(dtype));
    }
    const Tensor x = normal({1, 64}, dtype), w = normal({40, 64}, dtype);
    compare("one row", {x, w}, 16, [](const auto& t) { return linear(t[0], t[1]); });
    // The gradient of the bias alone is a sum of columns; that of both is a part of the weight's product.
    const Tensor rows = normal({300, 5}, dtype), weights = normal({7, 5}, dtype);
    compare("sums of 300 rows", {normal({7}, dtype)}, 64,
            [&](const auto& t) { return linear(rows.to(t[0].device()), weights.to(t[0].device()), t[0]); });
  }
}

TEST_CASE("attention with heads of 96, and one query of 16-bit numbers over many keys") {
  if (no_gpu()) return;
  manual_seed(14);
  for (const DType dtype : kDTypes) {
    const Tensor q = normal({1, 2, 20, 96}, dtype), k = normal({1, 2, 20, 96}, dtype),
                 v = normal({1, 2, 20, 96}, dtype);
    for (const bool causal : {false, true})
      compare("heads of 96", {q, k, v}, 32, [causal](const auto& t) {
        return scaled_dot_product_attention(t[0], t[1], t[2], {.is_causal = causal});
      });
    const NoGradGuard no_grad;
    const Tensor keys = normal({1, 1, 1100, 32}, dtype), values = normal({1, 1, 1100, 32}, dtype);
    const auto one = [&](const Device& d) {
      return scaled_dot_product_attention(
          q.narrow(1, 0, 1).narrow(2, 0, 1).narrow(3, 0, 32).contiguous().to(d), keys.to(d), values.to(d));
    };
    CHECK(difference(one(kCPU), one(kGpu)) <= 32 * unit(dtype));
  }
}

TEST_CASE("sums, extremes and norms in several pieces") {
  if (no_gpu()) return;
  manual_seed(15);
  for (const DType dtype : kIntegersOfCuda) {
    const Tensor x = randint(0, 100, {2, 70001}, kCPU).to(dtype);
    exact("sum", {x}, [](const auto& t) { return t[0].sum(1); });
    exact("max", {x}, [](const auto& t) { return t[0].amax({1}); });
    const Tensor index = zeros({2, 100}, {DType::i64, kCPU}), few = x.narrow(1, 0, 100).contiguous();
    exact("scatter_reduce", {few, index},
          [](const auto& t) { return scatter_reduce(t[0], 1, t[1], t[0], "amax"); });
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = normal({2, 70001}, dtype), columns = normal({40, 16}, dtype);
    compare("norm of order 3", {x}, 64, [](const auto& t) { return t[0].norm(3, {1}); });
    compare("norms of columns", {columns}, 64, [](const auto& t) { return t[0].norm(3, {0}); });
    compare("largest of columns", {columns}, 0, [](const auto& t) { return t[0].amax({0}); });
    compare("mse_loss", {normal({9000}, dtype), normal({9000}, dtype)}, 64,
            [](const auto& t) { return mse_loss(t[0], t[1]); });
  }
  const Tensor scores = normal({5000, 3}, DType::f32), weight = rand({3}, kCPU),
               target = randint(0, 3, {5000}, kCPU);
  compare("weighted loss of many rows", {scores}, 64, [&](const auto& t) {
    return cross_entropy(t[0], target.to(t[0].device()), {.weight = weight.to(t[0].device())});
  });
}

TEST_CASE("elementwise kernels, copies and random numbers of other dtypes") {
  if (no_gpu()) return;
  manual_seed(16);
  const Tensor wide = randn({5, 7}, {DType::f64, kCPU}) * 100;
  for (const DType dtype : {DType::f16, DType::bf16, DType::u8, DType::i32, DType::i64})
    for (const std::int64_t columns : {7, 3})
      exact("to", {wide.abs()},
            [dtype, columns](const auto& t) { return t[0].narrow(1, 0, columns).to(dtype); });
  for (const DType dtype : {DType::i8, DType::i16, DType::u16})
    CHECK(equal(zeros({16}, {dtype, kGpu}).fill_(3).cpu().to(DType::i64), full({16}, 3, {DType::i64, kCPU})));
  exact("rows of bytes", {randint(0, 200, {5, 32}, kCPU).to(DType::u8), randint(0, 5, {9}, kCPU)},
        [](const auto& t) { return index_select(t[0], 0, t[1]); });
  exact("transposed", {randint(0, 200, {70, 40}, kCPU)}, [](const auto& t) { return t[0].t().contiguous(); });
  for (const DType dtype : {DType::f16, DType::bf16, DType::u8}) {
    const Tensor a = randint(0, 9, {16}, kCPU).to(dtype), b = randint(0, 9, {16}, kCPU).to(dtype);
    exact("isclose", {a, b}, [](const auto& t) { return isclose(t[0], t[1]); });
  }
  for (const bool dense : {true, false}) {
    const Tensor mask = (dense ? randn({5, 8}, kCPU) : randn({5, 9}, kCPU).narrow(1, 1, 7)).gt(0);
    const Tensor from = randn(mask.sizes(), {DType::f64, kCPU}), other = from + 1;
    const auto chosen =
        [&](const Device& d) {  // the gradient is a copy of the elements that the mask selects
          const Tensor x = from.clone().to(d).set_requires_grad();
          where(dense ? mask.to(d) : mask.to(d).t().contiguous().t(), x, other.to(d)).backward(other.to(d));
          return x.grad().cpu();
        };
    CHECK(equal(chosen(kCPU), chosen(kGpu)));
  }
  for (const DType dtype : {DType::f32, DType::bf16})
    compare("glu", {normal({4, 16}, dtype)}, 8, [](const auto& t) { return glu(t[0], 0); });
  for (const DType dtype : kHalves) {
    const Tensor cos = rand({6, 8}, kCPU), sin = rand({6, 8}, kCPU), index = randint(0, 7, {100}, kCPU);
    compare("rotary_embedding", {normal({2, 6, 16}, dtype)}, 8, [&](const auto& t) {
      return rotary_embedding(t[0], cos.to(t[0].device()), sin.to(t[0].device()));
    });
    compare("embedding", {normal({7, 16}, dtype)}, 64,
            [&](const auto& t) { return embedding(t[0], index.to(t[0].device())); });
    compare("embedding of odd rows", {normal({7, 5}, dtype)}, 64,
            [&](const auto& t) { return embedding(t[0], index.to(t[0].device())); });
    const auto dropped = [&](const Device& d) {
      manual_seed(17);
      return dropout(ones({1001}, {dtype, d}), 0.3);
    };
    CHECK(equal(dropped(kCPU), dropped(kGpu).cpu()));
  }
  for (const DType dtype : {DType::u8, DType::i32}) {
    const auto drawn = [&](const Device& d) {
      manual_seed(18);
      return randint(0, 100, {1001}, {dtype, d});
    };
    CHECK(equal(drawn(kCPU), drawn(kGpu).cpu()));
  }
}

TEST_CASE("gradients are clipped by value and by other norms, and plain SGD takes 16-bit numbers") {
  if (no_gpu()) return;
  const auto stepped = [](const Device& d) {
    manual_seed(19);
    const nn::Parameter p("p", normal({300}, DType::bf16).to(d));
    p->set_grad(normal({300}, DType::bf16).to(d));
    const Tensor norm = nn::clip_grad_norm_({p}, 1.0, 3.0);
    nn::clip_grad_value_({p}, 0.05);
    optim::SGD optimizer({p}, {.lr = 0.5});
    optimizer.step();
    return std::vector<Tensor>{norm.cpu(), p->grad().cpu(), p->detach().cpu()};
  };
  const auto here = stepped(kCPU), there = stepped(kGpu);
  for (std::size_t i = 0; i < here.size(); ++i) CHECK(difference(here[i], there[i]) <= 4 * unit(DType::bf16));
}

TEST_CASE("grouped products, with groups that are empty") {
  if (no_gpu()) return;
  manual_seed(20);
  const Tensor ends = tensor({0, 5, 5, 40, 40}, DType::i32);
  for (const DType dtype : kDTypes)
    for (const bool on_host : {false, true}) {
      const auto product = [&](const std::vector<Tensor>& t) {
        return grouped_mm(t[0], t[1], on_host ? ends : ends.to(t[0].device()));
      };
      compare("rows", {normal({40, 24}, dtype), normal({5, 24, 16}, dtype)}, 32, product);
      compare("the inner dimension", {normal({8, 40}, dtype), normal({40, 16}, dtype)}, 32, product);
    }
}

TEST_CASE("a mixture of experts on the GPU and on the CPU") {
  if (no_gpu()) return;
  manual_seed(21);
  nn::MixtureOfExperts here({.embed_dim = 16,
                             .hidden_dim = 24,
                             .num_experts = 4,
                             .shared_hidden_dim = 8,
                             .capacity_factor = 1.0,
                             .balance = nn::RouterBalance::auxiliary_loss}),
      there(here.options);
  there.load_state_dict(here.state_dict());
  there.to(kGpu);
  const Tensor x = normal({9, 16}, DType::f32), g = normal({9, 16}, DType::f32);
  const auto run = [](nn::MixtureOfExperts& moe, const Tensor& in, const Tensor& grad) {
    const Tensor y = moe(in);
    ((y * grad).sum() + moe.auxiliary_loss()).backward();
    return y;
  };
  CHECK(difference(run(here, x, g), run(there, x.to(kGpu), g.to(kGpu))) <= 64 * unit(DType::f32));
  const std::vector<nn::Parameter> a = here.parameters(), b = there.parameters();
  for (std::size_t i = 0; i < a.size(); ++i)
    CHECK(difference(a[i].grad(), b[i].grad()) <= 256 * unit(DType::f32));
  CHECK(equal(here.tokens_per_expert(), there.tokens_per_expert().cpu()));
}
