// Extremes on the paths that kernels take for larger sizes: infinities and NaN must reach what they reach on
// the CPU and nothing else, a large mean must cost no digits, and addresses may not allow packs. Golden cases
// do this for small sizes. The reference is the CPU in f64.
#include <algorithm>

#include "tapestry/core/generator.h"
#include "tests/device/compare.h"

using namespace device_tests;

namespace {

constexpr double kInf = HUGE_VAL, kNan = NAN;
constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

/// The same elements, with the first one element behind a boundary of 16 bytes.
Tensor shifted(const Tensor& t) {
  const Tensor moved =
      zeros({t.numel() + 1}, {t.dtype(), t.device()}).narrow(0, 1, t.numel()).reshape(t.sizes());
  moved.copy_(t);
  return moved;
}

/// Checks each element: NaN and infinities must be the same, and others differ by at most `units` units of
/// rounding of the largest finite one in the row: the last dimension of a matrix, the first of an image. The
/// halves round once.
void check_close(const char* what, const Tensor& found, const Tensor& wanted, double units, DType dtype) {
  CAPTURE(what, dtype, found.sizes());
  REQUIRE(found.sizes() == wanted.sizes());
  const std::vector<double> a = wanted.detach().to(DType::f64).contiguous().to_vector<double>(),
                            b = found.detach().cpu().to(DType::f64).contiguous().to_vector<double>();
  const auto columns = static_cast<std::size_t>(wanted.dim() > 2 ? wanted[0].numel()
                                                : wanted.dim()   ? wanted.size(-1)
                                                                 : 1);
  const double largest_of_dtype = dtype == DType::f16 ? 65504 : 3.4e38;
  const double allowed = (dtype == DType::f32 ? units : std::min(units, 4.0)) * unit(dtype);
  int bad = 0;
  double scale = 0;
  for (std::size_t i = 0; i < a.size() && bad < 3; ++i) {
    if (i % columns == 0) {
      scale = 0;
      for (std::size_t k = i; k < i + columns; ++k)
        if (std::abs(a[k]) <= largest_of_dtype) scale = std::max(scale, std::abs(a[k]));
    }
    const double want = std::abs(a[i]) > largest_of_dtype ? std::copysign(kInf, a[i]) : a[i];
    const bool fits =
        std::isnan(want) ? std::isnan(b[i]) : want == b[i] || std::abs(want - b[i]) <= allowed * scale + 1e-7;
    if (fits) continue;
    ++bad;
    CAPTURE(i / columns, i % columns, b[i], want, scale);
    CHECK(fits);
  }
}

/// f of `inputs` on the GPU, aligned and shifted, against f of the same values in f64 on the CPU. With
/// `graded`, also the gradients of the floating inputs, for a gradient without extremes. Without `shifts`, it
/// is not shifted.
void agree(const char* what, const std::vector<Tensor>& inputs, double units, const Function& f,
           bool graded = true, bool shifts = true) {
  std::vector<Tensor> wide;
  DType dtype = DType::f32;
  for (const Tensor& x : inputs) {
    wide.push_back(is_floating(x.dtype()) ? x.detach().to(DType::f64) : x);
    if (!is_floating(x.dtype())) continue;
    dtype = x.dtype();
    wide.back().set_requires_grad(graded);
  }
  const Tensor wanted = f(wide);
  const bool floats = is_floating(wanted.dtype());
  const Tensor g = graded ? randn(wanted.sizes(), kCPU).to(dtype) : Tensor();
  if (graded) wanted.backward(g.to(DType::f64));
  for (const bool shift : {false, true}) {
    if (shift && !shifts) break;
    CAPTURE(shift);
    std::vector<Tensor> there;
    for (const Tensor& x : inputs) {
      const Tensor moved = x.detach().to(kGpu);
      there.push_back(shift ? shifted(moved) : moved.clone());
      if (is_floating(x.dtype())) there.back().set_requires_grad(graded);
    }
    const Tensor found = f(there);
    if (floats) check_close(what, found, wanted, units, dtype);
    else CHECK(equal(found.cpu(), wanted));
    if (!graded) continue;
    found.backward(g.to(kGpu));
    for (std::size_t i = 0; i < there.size(); ++i)
      if (is_floating(inputs[i].dtype()))
        check_close(what, there[i].grad(), wide[i].grad(), 2 * units, dtype);
  }
}

void put(const Tensor& row, double value, std::int64_t from, std::int64_t count = 1) {
  row.narrow(0, from, count).fill_(value);
}

/// Rows of n numbers: ordinary ones, -inf alone, -inf in part, inf at the end, NaN in the middle and at the
/// start, huge ones, tiny ones, and one finite number among -inf.
Tensor extreme_rows(std::int64_t n, DType dtype) {
  const Tensor x = normal({8, n}, DType::f32);
  const auto row = [&](std::int64_t i) { return x.select(0, i); };
  put(row(1), -kInf, 0, n);
  put(row(2), -kInf, n / 2, n - n / 2);
  put(row(3), kInf, n - 1);
  put(row(4), kNan, n / 2), put(row(4), kNan, 0);
  row(5).mul_(dtype == DType::f16 ? 1e4 : 1e30);
  row(6).mul_(dtype == DType::f16 ? 1e-4 : 1e-30);
  put(row(7), -kInf, 0, n), put(row(7), 3, n / 3);
  return x.to(dtype);
}

}  // namespace

TEST_CASE("extremes in rows of every path: softmax, reductions, scans, sorting") {
  if (no_gpu()) return;
  manual_seed(31);
  // A warp or a block holds the row in registers; several blocks share it.
  for (const std::int64_t n : {40, 1000, 4100, 16390})
    for (const DType dtype : kDTypes) {
      // Others are kernels of f32 or bf16 with another type of elements.
      if ((n > 40 && dtype == DType::f16) || (n > 4100 && dtype != DType::f32)) continue;
      CAPTURE(n);
      const Tensor x = extreme_rows(n, dtype);
      const bool graded = n <= 4100, shifts = n == 1000;
      const auto check = [&](const char* what, double units, const Function& f) {
        agree(what, {x}, units, f, false, shifts);
      };
      agree(
          "softmax", {x}, 64, [](const auto& t) { return softmax(t[0], 1); }, graded, shifts);
      agree(
          "log_softmax", {x}, 64, [](const auto& t) { return log_softmax(t[0], 1); }, graded, shifts);
      check("sum", 64, [](const auto& t) { return t[0].abs().sum(1, true); });
      if (dtype == DType::f16) continue;
      check("logsumexp", 64, [](const auto& t) { return logsumexp(t[0], 1, true); });
      check("argmax", 0, [](const auto& t) { return t[0].argmax(1); });
      check("argmin", 0, [](const auto& t) { return t[0].argmin(1); });
      check("nansum", 64, [](const auto& t) { return nansum(t[0].narrow(0, 4, 1).abs(), 1, true); });
      if (n != 4100) continue;
      for (const double p : {0.0, 3.0, kInf})
        check("norm", 64, [p](const auto& t) { return t[0].narrow(0, 0, 5).norm(p, {1}); });
      check("cummax", 0, [](const auto& t) { return cummax(t[0], 1).first; });
      check("sort", 0, [](const auto& t) { return t[0].sort(1).second; });
      check("top 300", 0, [](const auto& t) { return topk(t[0], 300).first; });
      check("kthvalue", 0, [](const auto& t) { return kthvalue(t[0], 700, 1).first; });
    }
}

TEST_CASE("extremes and large means in normalised rows and images of every path") {
  if (no_gpu()) return;
  manual_seed(32);
  for (const std::int64_t n : {33, 264, 1032, 4104, 16392}) {
    CAPTURE(n);
    const Tensor x = normal({4, n}, DType::f32), w = normal({n}, DType::f32), b = normal({n}, DType::f32);
    put(x.select(0, 0), 3, 0, n);  // the variance is 0
    put(x.select(0, 1), kNan, n / 2);
    put(x.select(0, 2), kInf, n - 1);
    agree(
        "layer_norm", {x, w, b}, 64, [n](const auto& t) { return layer_norm(t[0], {n}, t[1], t[2]); }, false);
    agree(
        "rms_norm", {x, w}, 64, [n](const auto& t) { return rms_norm(t[0], {n}, t[1], 1e-5); }, false);
    // The products of f32 carry the rounding of x - mean, 2^-14 for a mean of 1024.
    const Tensor far = (normal({3, n}, DType::f32) * 64).to(DType::bf16).to(DType::f32) + 1024;
    agree(
        "layer_norm of a mean of 1024", {far, w, b}, 128,
        [n](const auto& t) { return layer_norm(t[0], {n}, t[1], t[2]); }, n <= 1032, n == 1032);
  }
  struct Images {
    std::int64_t n, side;
  };
  for (const Images s : {Images{40, 1}, {6, 3}, {6, 4}, {2, 20}})
    for (const bool last : {false, true}) {
      CAPTURE(s.n, s.side, last);
      const Tensor w = normal({8}, DType::f32), b = normal({8}, DType::f32);
      const auto image = [&](const Tensor& t) {
        return last ? t.contiguous(MemoryFormat::channels_last) : t;
      };
      const auto batch = [&](const auto& t) { return batch_norm(image(t[0]), {}, {}, t[1], t[2], true); };
      const auto group = [&](const auto& t) { return group_norm(image(t[0]), 4, t[1], t[2]); };
      const Tensor x = normal({s.n, 8, s.side, s.side}, DType::f32), bad = x.clone();
      bad.select(1, 3).select(0, s.n / 2).fill_(kNan);
      const Tensor far = (x * 64).to(DType::bf16).to(DType::f32) + 1024;
      agree("batch_norm", {bad, w, b}, 64, batch, false);
      agree("group_norm", {bad, w, b}, 64, group, false);
      agree("batch_norm of a mean of 1024", {far, w, b}, 512, batch, true, false);
      agree("batch_norm of a mean whose square overflows", {x * 0 + 0x1p70, w, b}, 64, batch, false, false);
      if (s.side > 1) agree("group_norm of a mean of 1024", {far, w, b}, 512, group, true, false);
    }
}

TEST_CASE("infinities and NaN in products reach their rows and columns alone") {
  if (no_gpu()) return;
  manual_seed(33);
  // Whole packs and single elements; one block for the sum, and several that share it; few rows.
  struct Sizes {
    std::int64_t m, n, k;
  };
  for (const Sizes s : {Sizes{40, 24, 16}, {41, 25, 19}, {40, 24, 1040}, {3, 130, 72}, {1, 5, 300}})
    for (const DType dtype : kDTypes) {
      CAPTURE(s.m, s.n, s.k);
      const Tensor a = normal({s.m, s.k}, dtype), b = normal({s.n, s.k}, dtype), bias = normal({s.n}, dtype);
      a.select(0, 0).narrow(0, 5, 1).fill_(kInf);
      a.select(0, s.m - 1).narrow(0, s.k - 1, 1).fill_(s.m > 1 ? -kInf : kInf);
      if (s.m > 9) a.select(0, 7).narrow(0, 0, 1).fill_(kNan);
      b.select(0, 3).narrow(0, 4, 1).fill_(kInf);
      if (s.m > 9) a.select(0, 9).narrow(0, 4, 1).fill_(0);  // inf * 0
      bias.narrow(0, 2, 1).fill_(-kInf);
      agree(
          "linear", {a, b, bias}, 64, [](const auto& t) { return linear(t[0], t[1], t[2]); }, false);
      agree(
          "gelu", {a, b, bias}, 64, [](const auto& t) { return linear_gelu(t[0], t[1], t[2]); }, false);
      agree(
          "a b", {a, b.t().contiguous()}, 64, [](const auto& t) { return matmul(t[0], t[1]); }, false);
      agree(
          "a' b", {a.t().contiguous(), b.t().contiguous()}, 64,
          [](const auto& t) { return matmul(t[0].t(), t[1]); }, false);
      if (dtype == DType::f16) continue;
      // Gaps between rows, and operands that a batch shares.
      const Tensor wide = normal({s.m, s.k + 3}, dtype), batch = normal({2, s.m, s.k}, dtype);
      agree(
          "gaps", {wide, b}, 64, [&](const auto& t) { return matmul(t[0].narrow(1, 2, s.k), t[1].t()); },
          false);
      agree(
          "batch", {batch, b}, 64, [](const auto& t) { return matmul(t[0], t[1].t()); }, false);
    }
}

TEST_CASE("infinities and NaN in images reach the windows that contain them alone") {
  if (no_gpu()) return;
  manual_seed(34);
  struct Case {
    std::int64_t channels, groups, stride, padding, dilation;
    bool last;
  };
  for (const Case c : {Case{8, 1, 1, 1, 1, false},
                       {8, 1, 2, 0, 1, true},
                       {8, 8, 1, 1, 2, false},
                       {8, 8, 2, 1, 1, true},
                       {6, 2, 3, 2, 1, false},
                       {3, 1, 1, 2, 1, false},
                       {16, 1, 2, 1, 2, true}})
    for (const DType dtype : kDTypes) {
      CAPTURE(c.channels, c.groups, c.stride, c.padding, c.dilation, c.last);
      const Tensor x = normal({2, c.channels, 9, 11}, dtype),
                   w = normal({2 * c.channels, c.channels / c.groups, 3, 3}, dtype);
      const Conv2dParams params{
          .stride = c.stride, .padding = c.padding, .dilation = c.dilation, .groups = c.groups};
      const auto convolved = [&](const auto& t) {
        const Tensor y =
            conv2d(c.last ? t[0].contiguous(MemoryFormat::channels_last) : t[0], t[1], {}, params);
        return y.permute({0, 2, 3, 1}).contiguous().reshape({-1, y.size(1)});
      };
      agree("conv2d", {x, w}, 64, convolved);
      x.select(0, 1).select(0, 2).select(0, 4).narrow(0, 5, 1).fill_(kNan);
      x.select(0, 0).select(0, 0).select(0, 0).narrow(0, 0, 1).fill_(kInf);
      agree("conv2d", {x, w}, 64, convolved, false);
      // Gradients reach only the pixels and weights that a NaN meets.
      const Tensor whole = x.nan_to_num(0, 1, -1), g = normal({2, 2 * c.channels, 16, 16}, dtype);
      const auto gradients = [&](const Tensor& image, const Tensor& weight) {
        const Tensor i = image.detach().clone().set_requires_grad(),
                     k = weight.detach().clone().set_requires_grad();
        const Tensor y = conv2d(i, k, {}, params);
        const Tensor dy =
            g.narrow(2, 0, y.size(2)).narrow(3, 0, y.size(3)).contiguous().to(image.device(), image.dtype());
        dy.select(0, 1).select(0, 1).select(0, y.size(2) / 2).narrow(0, 1, 1).fill_(kNan);
        y.backward(dy);
        return std::vector<Tensor>{i.grad(), k.grad()};
      };
      const auto here = gradients(whole.to(DType::f64), w.to(DType::f64)),
                 there = gradients(whole.to(kGpu), w.to(kGpu));
      for (std::size_t i = 0; i < 2; ++i)
        check_close("gradient", there[i].cpu().flatten(1), here[i].flatten(1), 64, dtype);
    }
}

TEST_CASE("windows around 255 elements keep the place of their largest element") {
  if (no_gpu()) return;
  for (const std::int64_t window : {254, 255, 256, 257})
    for (const bool last : {false, true}) {
      const Tensor rising = arange(8 * window).reshape({2, 4, 1, window}).to(DType::f32) * 0x1p-7;
      agree("max_pool2d", {rising}, 2, [&](const auto& t) {
        const Tensor x = last ? t[0].contiguous(MemoryFormat::channels_last) : t[0];
        return max_pool2d(x, {.kernel_size = {1, window}}).contiguous();
      });
    }
}

TEST_CASE("attention: NaN and infinities reach the queries that see them alone, and scales and masks hold") {
  if (no_gpu()) return;
  manual_seed(35);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t width : {16, 72}) {
      CAPTURE(width);
      const Tensor q = normal({1, 2, 70, width}, dtype), k = normal({1, 2, 80, width}, dtype),
                   v = normal({1, 2, 80, width}, dtype);
      const auto attended = [](AttentionParams params) {
        return [params](const std::vector<Tensor>& t) {
          AttentionParams p = params;
          if (p.attn_mask.defined()) {
            p.attn_mask = p.attn_mask.to(t[0].device());
            if (is_floating(p.attn_mask.dtype())) p.attn_mask = p.attn_mask.to(t[0].dtype());
          }
          return scaled_dot_product_attention(t[0], t[1], t[2], p);
        };
      };
      agree("negative scale", {q, k, v}, 64, attended({.scale = -0.5}), true, false);
      agree("scale 0", {q, k, v}, 64, attended({.scale = 0.0}), true, false);
      agree("mask", {q, k, v}, 64, attended({.attn_mask = rand({70, 80}, kCPU) > 0.4}), true, false);
      agree("added mask", {q, k, v}, 64, attended({.attn_mask = normal({2, 1, 80}, dtype)}), true, false);
      agree("scores of thousands", {q * 32, k * 32, v}, 16384,
            attended({.is_causal = true, .causal_offset = 10}), false, false);
      for (const double value : {kNan, kInf}) {
        const Tensor bad = k.clone();
        bad.select(0, 0).select(0, 0).select(0, 64).narrow(0, 3, 1).fill_(value);
        agree("in a key", {q, bad, v}, 64, attended({.is_causal = true, .causal_offset = 10}), false, false);
      }
      const Tensor bad = q.clone();
      bad.select(0, 0).select(0, 1).select(0, 69).narrow(0, 3, 1).fill_(kNan);
      agree("in a query", {bad, k, v}, 64, attended({}), false, false);
    }
}

TEST_CASE("sums of equal indices keep their order, whatever lies around them") {
  if (no_gpu()) return;
  manual_seed(36);
  // Runs of one index around one, two and five chunks of 32, in shuffled positions.
  for (const std::vector<std::int64_t>& runs : {std::vector<std::int64_t>{33},
                                                {31, 33, 1, 31, 32, 64, 65},
                                                {5, 160, 0, 161, 33},
                                                {2, 40, 600, 3, 129}})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const std::int64_t width : {1, 8, 90}) {
        std::vector<std::int64_t> index;
        for (std::size_t k = 0; k < runs.size(); ++k)
          index.insert(index.end(), static_cast<std::size_t>(runs[k]), static_cast<std::int64_t>(k));
        const auto count = static_cast<std::int64_t>(index.size());
        const Tensor at = tensor(index).index_select(0, randperm(count, kCPU));
        const Tensor x = normal({count, width}, dtype).abs(),
                     into = normal({static_cast<std::int64_t>(runs.size()), width}, dtype).abs();
        agree(
            "index_add", {into, x, at}, 256, [](const auto& t) { return index_add(t[0], 0, t[2], t[1]); },
            false);
        agree(
            "embedding", {into, at}, 256, [](const auto& t) { return embedding(t[0], t[1]); }, width > 1);
      }
  // 70 gradients of row 1, with 0 to 40 gradients of row 0 before them.
  std::vector<Tensor> firsts;
  const Tensor dy = normal({110, 1}, DType::f32);
  for (const std::int64_t others : {0, 1, 31, 32, 40}) {
    const Tensor index = cat({zeros({others}, {DType::i64, kCPU}), ones({70}, {DType::i64, kCPU})});
    firsts.push_back(
        index_add(zeros({2, 1}, kGpu), 0, index.to(kGpu), dy.narrow(0, 40 - others, others + 70).to(kGpu))
            .select(0, 1)
            .cpu());
    CHECK(equal(firsts.back(), firsts.front()));
  }
}

TEST_CASE("sums round once, keep small terms, wrap, and extremes are the first of equals") {
  if (no_gpu()) return;
  manual_seed(37);
  for (const Shape& sizes : {Shape{3, 2001}, Shape{2, 40000}, Shape{5000, 8}}) {
    const Tensor whole =
        randint(0, 1 << 19, sizes, kCPU).to(DType::f32);  // partial sums below 2^24 are exact
    const int dim = sizes[0] == 5000 ? 0 : 1;
    CHECK(equal(whole.to(kGpu).sum(dim).cpu(), whole.to(DType::f64).sum(dim).to(DType::f32)));
  }
  const Tensor small = full({70001}, 0x1p-25, {DType::f32, kCPU});
  small.narrow(0, 0, 1).fill_(1);
  CHECK(small.to(kGpu).sum().item<float>() == Approx(1 + 70000 * 0x1p-25).epsilon(1e-6));
  const Tensor large = tensor(std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::max(), 1, 1});
  CHECK(equal(large.to(kGpu).sum().cpu(), large.sum()));
  for (const Shape& sizes : {Shape{3, 200}, Shape{3, 4100}, Shape{200, 64}, Shape{2, 70001}})
    for (const DType dtype : {DType::f32, DType::bf16, DType::i64, DType::u8}) {
      const Tensor x = full(sizes, 2, {dtype, kCPU});
      const int dim = sizes[0] == 200 ? 0 : 1;
      for (const double part : {2.0, 3.0, 1.0}) {
        x.narrow(dim, 150, 50).fill_(part);
        CHECK(equal(x.to(kGpu).argmax(dim).cpu(), x.argmax(dim)));
        CHECK(equal(x.to(kGpu).argmin(dim).cpu(), x.argmin(dim)));
      }
    }
}

TEST_CASE("losses of extreme rows of every path") {
  if (no_gpu()) return;
  manual_seed(38);
  for (const std::int64_t n : {40, 1060, 16389})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(n);
      const Tensor x = extreme_rows(n, dtype), target = full({8}, n / 3, {DType::i64, kCPU}),
                   weight = rand({n}, kCPU) + 1;
      for (const double smoothing : {0.0, 0.25}) {
        agree("cross_entropy", {x}, 64, [&](const auto& t) {
          return cross_entropy(t[0], target.to(t[0].device()),
                               {.weight = weight.to(t[0].device(), t[0].dtype()),
                                .reduction = Reduction::none,
                                .label_smoothing = smoothing})
              .unsqueeze(1);
        });
      }
      // A row that is ignored has the gradient 0, whatever it contains.
      const Tensor there = x.to(kGpu).set_requires_grad();
      cross_entropy(there, target.to(kGpu), {.ignore_index = n / 3, .reduction = Reduction::sum}).backward();
      CHECK(equal(there.grad().cpu(), zeros_like(x)));
    }
}

TEST_CASE("optimizers keep NaN and infinities, and clipping finds them at any place") {
  if (no_gpu()) return;
  const auto stepped = [](const Device& d, auto make) {
    const nn::Parameter p("p", arange(515).to(DType::f32).mul(0x1p-6).to(d));
    auto optimizer = make(p);
    for (int step = 0; step < 2; ++step) {
      const Tensor g = arange(515).to(DType::f32).sub(250).mul(0x1p-7);
      if (step == 0) put(g, kNan, 0), put(g, kInf, 257), put(g, -kInf, 514), put(g, 0, 3);
      p->set_grad(g.to(d));
      optimizer.step();
    }
    return p->detach().cpu().unsqueeze(1);
  };
  const auto same = [&](const char* what, auto make) {
    check_close(what, stepped(kGpu, make), stepped(kCPU, make), 64, DType::f32);
  };
  same("SGD", [](const nn::Parameter& p) { return optim::SGD({p}, {.lr = 0.1, .momentum = 0.9}); });
  same("AdamW", [](const nn::Parameter& p) { return optim::AdamW({p}, {.lr = 0.1, .amsgrad = true}); });
  same("RMSprop", [](const nn::Parameter& p) {
    return optim::RMSprop({p}, {.lr = 0.1, .momentum = 0.9, .centered = true});
  });
  same("Lion", [](const nn::Parameter& p) { return optim::Lion({p}, {.lr = 0.1}); });
  same("RAdam", [](const nn::Parameter& p) { return optim::RAdam({p}, {.lr = 0.1}); });
  for (const double order : {1.0, 2.0, 3.0, kInf})
    for (const std::int64_t at : {0, 255, 4096, 9000})
      for (const double special : {kNan, -kInf}) {
        const nn::Parameter a("a", ones({2}, kGpu)), b("b", ones({9001}, kGpu));
        a->set_grad(ones({2}, kGpu));
        b->set_grad(full({9001}, 0.5, kGpu));
        b->grad().narrow(0, at, 1).fill_(special);
        const double total = nn::clip_grad_norm_({a, b}, 1.0, order).item<double>();
        CAPTURE(order, at, special);
        CHECK((std::isnan(special) ? std::isnan(total) : total == kInf));
      }
  for (const double scale : {1e30, 1e-30}) {
    const nn::Parameter p("p", ones({2}, kGpu));
    p->set_grad((tensor({3.0, -4.0}).to(DType::f32) * scale).to(kGpu));
    CHECK(nn::clip_grad_norm_({p}, 1.0).item<double>() == Approx(5 * scale).epsilon(1e-6));
  }
}
