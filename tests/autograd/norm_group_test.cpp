// Group and instance normalisation, and RMS normalisation's default eps.
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {
Tensor copy_of(const Tensor& t) { return t.defined() ? t.detach().clone() : t; }

// Numbers with full mantissas and a mean far from 0.
Tensor numbers(const Shape& sizes, unsigned seed = 1, double mean = 1.3) {
  manual_seed(seed);
  return randn(sizes, DType::f64) + mean;
}

// The definition, in f64: each group of x (N, C, ...) is normalised by its own mean and variance.
Tensor by_hand(const Tensor& x, std::int64_t groups, const Tensor& w, const Tensor& b, double eps = 1e-5) {
  const Tensor rows = x.contiguous().reshape({x.size(0), groups, -1});
  const Tensor centred = rows - rows.mean(-1, true);
  const Tensor normal = centred / (centred.square().mean(-1, true) + eps).sqrt();
  std::vector<std::int64_t> channel(static_cast<std::size_t>(x.dim()), 1);
  channel[1] = x.size(1);
  const Shape to(channel.data(), static_cast<int>(channel.size()));
  return normal.reshape(x.sizes()) * w.reshape(to) + b.reshape(to);
}

// The outputs and gradients of f(x, w, b).
template <class F>
std::vector<Tensor> results(const F& f, const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& g) {
  const Tensor leaves[] = {x.detach().set_requires_grad(), w.detach().set_requires_grad(),
                           b.detach().set_requires_grad()};
  const Tensor y = f(leaves[0], leaves[1], leaves[2]);
  y.backward(g);
  return {y.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}
}  // namespace

GOLDEN_OP("group_norm", "norm_group", [](const OpCase& c) {
  return group_norm(c[0], c.integer("num_groups"), c[1], c[2], c.real("eps", 1e-5));
});
GOLDEN_OP("instance_norm", "norm_group", [](const OpCase& c) {
  const Tensor mean = copy_of(c[1]), var = copy_of(c[2]);
  std::vector<Tensor> out{instance_norm(c[0], mean, var, c[3], c[4], c.flag("use_input_stats", true),
                                        c.real("momentum", 0.1), c.real("eps", 1e-5))};
  if (mean.defined()) out.insert(out.end(), {mean, var});
  return out;
});

BAD_INPUT("group_norm", "input has shape [3], expected (N, C)", [] { return group_norm(zeros({3}), 1); });
BAD_INPUT("group_norm", "num_groups is 2, which does not divide the 3 channels", [] {
  return group_norm(zeros({1, 3}), 2);
});
BAD_INPUT("group_norm", "num_groups is 0", [] { return group_norm(zeros({1, 3}), 0); });
BAD_INPUT("group_norm", "num_groups is -1", [] { return group_norm(zeros({1, 3}), -1); });
BAD_INPUT("group_norm", "weight has shape [2], expected [4]", [] {
  return group_norm(zeros({1, 4}), 2, zeros({2}));
});
BAD_INPUT("group_norm", "bias has dtype float64", [] {
  return group_norm(zeros({1, 4}), 2, {}, zeros({4}, DType::f64));
});
BAD_INPUT("group_norm", "does not take int64", [] { return group_norm(zeros({1, 4}, kInt64), 2); });
BAD_INPUT("instance_norm", "input has shape [2, 3], expected (N, C, ...)", [] {
  return instance_norm(zeros({2, 3}));
});
BAD_INPUT("instance_norm", "one value per channel of a sample, input [4, 3, 1, 1]", [] {
  return instance_norm(zeros({4, 3, 1, 1}));
});
BAD_INPUT("instance_norm", "needs running_mean and running_var", [] {
  return instance_norm(zeros({4, 3, 2}), {}, {}, {}, {}, false);
});
BAD_INPUT("instance_norm", "give both or neither", [] {
  return instance_norm(zeros({4, 3, 2}), zeros({3}));
});
BAD_INPUT("instance_norm", "running_var has shape [2], expected [3]", [] {
  return instance_norm(zeros({4, 3, 2}), zeros({3}), zeros({2}));
});

TEST_CASE("group_norm: groups of every size give the definition's values and gradients, in both layouts") {
  // 15, 16 and 17 groups are on both sides of the CPU kernel's threshold; 2047 to 2049 and 63 to 65 elements
  // are on both sides of its pieces.
  struct Case {
    Shape sizes;
    std::int64_t groups;
  };
  const Case cases[] = {{{5, 6, 7, 9}, 3},    {{4, 8, 3, 5}, 4},     {{17, 4, 5, 3}, 1},  {{1, 2, 23, 89}, 2},
                        {{1, 3, 2, 1024}, 3}, {{1, 2, 3, 683}, 1},   {{3, 12, 7, 9}, 2},  {{2, 12, 8, 8}, 12},
                        {{1, 5, 13, 5}, 5},   {{20, 2, 1, 2049}, 2}, {{2, 300, 2, 2}, 3}, {{6, 40, 1, 1}, 8}};
  for (const auto& [sizes, groups] : cases) {
    const Tensor x = numbers(sizes), g = numbers(sizes, 2, 0.3), w = numbers({sizes[1]}, 3),
                 b = numbers({sizes[1]}, 4);
    const auto wanted = results(
        [&, n = groups](const Tensor& i, const Tensor& s, const Tensor& t) { return by_hand(i, n, s, t); }, x,
        w, b, g);
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      CAPTURE(sizes.str(), groups, format == MemoryFormat::channels_last);
      const auto got = results(
          [n = groups](const Tensor& i, const Tensor& s, const Tensor& t) { return group_norm(i, n, s, t); },
          x.contiguous(format), w, b, g);
      CHECK(got[0].memory_format() == x.contiguous(format).memory_format());
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(allclose(got[i], wanted[i], 1e-9, 1e-9));
      }
    }
  }
}

TEST_CASE("group_norm: the same bits for any number of threads, in either layout") {
  const int before = get_num_threads();
  for (const Shape& sizes : {Shape{3, 20, 41, 43}, Shape{1, 4, 129, 130}, Shape{257, 300}})
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      if (sizes.size() == 2 && format == MemoryFormat::channels_last) continue;
      const Tensor x = numbers(sizes).to(DType::f32).contiguous(format), g = numbers(sizes, 2).to(DType::f32),
                   w = numbers({sizes[1]}, 3).to(DType::f32), b = numbers({sizes[1]}, 4).to(DType::f32);
      const auto run = [&](int threads) {
        set_num_threads(threads);
        return results(
            [](const Tensor& i, const Tensor& s, const Tensor& t) { return group_norm(i, 4, s, t); }, x, w, b,
            g);
      };
      const auto one = run(1), three = run(3);
      for (std::size_t i = 0; i < one.size(); ++i) CHECK(equal(one[i], three[i]));
    }
  set_num_threads(before);
}

TEST_CASE("group_norm: a large mean costs no digits of the variance") {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    for (const std::int64_t groups : {1, 6}) {
      // f32 numbers near 4096 have a spacing of 2^-11, so x keeps enough digits of the noise.
      const Tensor x = numbers({3, 6, 20, 30}, 1, 4096).to(DType::f32).contiguous(format);
      const Tensor expected = group_norm(x.to(DType::f64), groups);
      CHECK(allclose(group_norm(x, groups).to(DType::f64), expected, 1e-3, 1e-3));
    }
}

TEST_CASE("group_norm and rms_norm: 16-bit floats are computed in f32 and rounded once") {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Tensor x = numbers({3, 6, 5, 7}).to(dtype).contiguous(format), w = numbers({6}, 3).to(dtype),
                   b = numbers({6}, 4).to(dtype), g = numbers({3, 6, 5, 7}, 5).to(dtype);
      const auto f = [](const Tensor& i, const Tensor& s, const Tensor& t) { return group_norm(i, 2, s, t); };
      const auto got = results(f, x, w, b, g);
      const auto in_f32 = results(f, x.to(DType::f32), w.to(DType::f32), b.to(DType::f32), g.to(DType::f32));
      for (std::size_t i = 0; i < got.size(); ++i) CHECK(equal(got[i], in_f32[i].to(dtype)));
      const auto rms = [](const Tensor& i, const Tensor& s, const Tensor& t) {
        return rms_norm(i.flatten(1, 3).reshape({-1, 6}), {6}, s) + t * 0.0;
      };
      const auto rows = results(rms, x, w, b, g.reshape({-1, 6}));
      const auto rows_f32 = results(rms, x.to(DType::f32), w.to(DType::f32), b.to(DType::f32),
                                    g.reshape({-1, 6}).to(DType::f32));
      for (std::size_t i = 0; i < 3; ++i) CHECK(equal(rows[i], rows_f32[i].to(dtype)));
    }
}

TEST_CASE("group_norm: a group of one value gives the bias, and the gradient 0") {
  for (const Shape& sizes : {Shape{2, 3}, Shape{3, 3, 1, 1}, Shape{2, 3, 1, 1}}) {
    const Tensor w = numbers({3}, 3), b = numbers({3}, 4);
    const auto got =
        results([](const Tensor& i, const Tensor& s, const Tensor& t) { return group_norm(i, 3, s, t); },
                numbers(sizes), w, b, numbers(sizes, 5));
    CHECK(equal(got[0].reshape({-1, 3}), b.expand({sizes[0], 3})));
    CHECK(allclose(got[1], zeros(sizes, DType::f64), 0, 1e-12));
    CHECK(equal(got[2], zeros({3}, DType::f64)));
  }
}

TEST_CASE("group_norm: empty planes and empty batches give empty results and zero gradients") {
  for (const Shape& sizes : {Shape{2, 4, 0}, Shape{0, 4, 3}, Shape{2, 0, 3}}) {
    const Tensor x = zeros(sizes).set_requires_grad(), w = ones({sizes[1]}).set_requires_grad();
    const Tensor y = group_norm(x, 2, w);
    CHECK(y.sizes() == sizes);
    y.sum().backward();
    CHECK(x.grad().sizes() == sizes);
    CHECK(equal(w.grad(), zeros({sizes[1]})));
  }
}

OP_TEST("instance_norm", empty, "an empty batch gives an empty result, and keeps the running statistics") {
  // PyTorch refuses empty inputs.
  for (const Shape& sizes : {Shape{0, 3, 2}, Shape{2, 3, 0}})
    for (const bool own : {true, false}) {
      const Tensor x = zeros(sizes).set_requires_grad(), mean = full({3}, 0.5), var = full({3}, 2.0);
      const Tensor y = instance_norm(x, mean, var, ones({3}), {}, own);
      CHECK(y.sizes() == sizes);
      y.sum().backward();
      CHECK(x.grad().sizes() == sizes);
      CHECK(equal(mean, full({3}, 0.5)));
      CHECK(equal(var, full({3}, 2.0)));
    }
}

TEST_CASE("instance_norm: running statistics follow batches that differ, in any layout of theirs") {
  const Tensor means = zeros({3, 2}, DType::f64), vars = ones({3, 2}, DType::f64);
  Tensor mean = zeros({3}, DType::f64), var = ones({3}, DType::f64);
  for (unsigned batch = 0; batch < 3; ++batch) {
    const Tensor x = numbers({4, 3, 5, 2}, 10 + batch, 1.0 + batch);
    instance_norm(x.contiguous(batch == 1 ? MemoryFormat::channels_last : MemoryFormat::contiguous),
                  means.select(1, 1), vars.select(1, 0), {}, {}, true, 0.3);
    const Tensor rows = x.flatten(2);
    mean = mean * 0.7 + rows.mean(-1).mean(0) * 0.3;
    var = var * 0.7 + rows.var(-1).mean(0) * 0.3;
    CHECK(allclose(means.select(1, 1), mean, 1e-12, 1e-12));
    CHECK(allclose(vars.select(1, 0), var, 1e-12, 1e-12));
  }
  CHECK(equal(means.select(1, 0), zeros({3}, DType::f64)));
  CHECK(equal(vars.select(1, 1), ones({3}, DType::f64)));
}

TEST_CASE("rms_norm: without an eps it is the machine epsilon of the dtype of sums") {
  // x is so small that eps decides: y = x / sqrt(x^2 + eps).
  const auto eps_of = [](DType dtype) {
    const double x = dtype == DType::f64 ? 1e-9 : 0x1p-13;
    const Tensor in = full({1, 4}, x, dtype);
    const double y = rms_norm(in, {4})[0][0].to(DType::f64).item();
    return x * x / (y * y) - x * x;
  };
  CHECK(eps_of(DType::f64) == Approx(0x1p-52).epsilon(1e-6));
  CHECK(eps_of(DType::f32) == Approx(0x1p-23).epsilon(1e-5));
  CHECK(eps_of(DType::f16) == Approx(0x1p-23).epsilon(3e-3));
  CHECK(eps_of(DType::bf16) == Approx(0x1p-23).epsilon(3e-2));
}
