// Grouped products, beside the product of each group by itself in float64.
#include "tapestry/autograd/ops/grouped_mm.h"

#include <cmath>
#include <limits>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tests/support/op_case.h"

using namespace tapestry;

namespace {

using Ends = std::vector<std::int64_t>;

Tensor offs_of(const Ends& ends, DType dtype = DType::i64) { return tensor(ends).to(dtype); }

// The product of each group, by operations with gradients.
Tensor dense(const Tensor& a, const Tensor& b, const Ends& ends) {
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (std::size_t g = 0; g < ends.size(); ++g) {
    const std::int64_t count = ends[g] - begin;
    if (b.dim() == 2) parts.push_back(matmul(a.narrow(1, begin, count), b.narrow(0, begin, count)));
    else parts.push_back(matmul(a.narrow(0, begin, count), b.select(0, static_cast<std::int64_t>(g))));
    begin = ends[g];
  }
  return b.dim() == 2 ? stack(parts, 0) : cat(parts, 0);
}

// Numbers with full mantissas and a mean far from 0.
Tensor numbers(const Shape& sizes, DType dtype = DType::f64) {
  return (randn(sizes, DType::f64) + 0.5).to(dtype);
}

struct Operands {
  Tensor a, b;
  Ends ends;
};
// Both forms, with empty groups at the beginning, in the middle and at the end, one group that has all rows,
// and more rows than a block of any kernel.
std::vector<Operands> all_operands(DType dtype) {
  std::vector<Operands> all;
  for (const Ends& ends :
       {Ends{0, 3, 3, 10, 11}, Ends{0, 0, 150, 150}, Ends{7, 7}, Ends{1}, Ends{70, 75, 213}}) {
    const auto groups = static_cast<std::int64_t>(ends.size());
    all.push_back({numbers({ends.back(), 19}, dtype), numbers({groups, 19, 37}, dtype), ends});
    all.push_back({numbers({5, ends.back()}, dtype), numbers({ends.back(), 67}, dtype), ends});
  }
  return all;
}

// |y - exact| in units of eps times the sum of the magnitudes of the products.
double error_of(const Tensor& y, const Tensor& exact, const Tensor& scale, double eps) {
  if (y.numel() == 0) return 0;
  return ((y.to(DType::f64) - exact).abs() / (eps * scale + 1e-30)).max().item<double>();
}

std::vector<Tensor> gradients(const std::function<Tensor(const Tensor&, const Tensor&)>& f, const Tensor& a,
                              const Tensor& b, const Tensor& g) {
  const Tensor x = a.detach().set_requires_grad(), w = b.detach().set_requires_grad();
  f(x, w).backward(g);
  return {x.grad(), w.grad()};
}

void fill_free_memory_with_nan() {
  for (const std::int64_t n : {5 * 19 * 37, 5 * 5 * 67, 213 * 37, 100000})
    full({n}, std::nan(""), {DType::f64, kCPU});
}

}  // namespace

OP_TEST("grouped_mm", golden, "results and gradients are those of the groups one by one, in every dtype") {
  struct Precision {
    DType dtype;
    double eps;
  };
  for (const auto& [dtype, eps] :
       {Precision{DType::f64, 0x1p-52}, {DType::f32, 0x1p-23}, {DType::f16, 0x1p-10}, {DType::bf16, 0x1p-7}})
    for (const DType index : {DType::i32, DType::i64})
      for (const Operands& o : all_operands(dtype)) {
        CAPTURE(dtype, o.a.sizes(), o.b.sizes(), o.ends);
        const Tensor offs = offs_of(o.ends, index);
        const Tensor a = o.a.to(DType::f64), b = o.b.to(DType::f64);
        const auto ours = [&](const Tensor& x, const Tensor& w) { return grouped_mm(x, w, offs); };
        const auto exact = [&](const Tensor& x, const Tensor& w) { return dense(x, w, o.ends); };
        fill_free_memory_with_nan();
        const Tensor y = grouped_mm(o.a, o.b, offs), scale = exact(a.abs(), b.abs());
        CHECK(y.dtype() == dtype);
        REQUIRE(y.sizes() == scale.sizes());
        // Sums of up to 213 products in blocks: an error of a few eps of the magnitudes.
        CHECK(error_of(y, exact(a, b), scale, eps) < 4);
        const Tensor g = numbers(y.sizes(), dtype), g64 = g.to(DType::f64);
        const auto got = gradients(ours, o.a, o.b, g), want = gradients(exact, a, b, g64),
                   scales = gradients(exact, a.abs(), b.abs(), g64.abs());
        for (std::size_t i = 0; i < 2; ++i) {
          CHECK(got[i].dtype() == dtype);
          CHECK(error_of(got[i], want[i], scales[i], eps) < 4);
        }
      }
}

OP_TEST("grouped_mm", gradcheck, "both forms agree with finite differences, for each input alone too") {
  const Tensor offs = offs_of({0, 2, 2, 5});
  const auto f = [&](const std::vector<Tensor>& in) { return grouped_mm(in[0], in[1], offs); };
  for (const auto& [a, b] :
       {std::pair{numbers({5, 3}), numbers({4, 3, 2})}, {numbers({3, 5}), numbers({5, 2})}})
    for (const auto& [of_a, of_b] : {std::pair{true, true}, {true, false}, {false, true}})
      CHECK(autograd::gradcheck(f, {a.detach().set_requires_grad(of_a), b.detach().set_requires_grad(of_b)}));
}

OP_TEST("grouped_mm", gradgradcheck, "the gradients of both forms are grouped products with gradients") {
  const Tensor offs = offs_of({0, 2, 2, 5});
  const auto f = [&](const std::vector<Tensor>& in) { return grouped_mm(in[0], in[1], offs); };
  for (const auto& [a, b] :
       {std::pair{numbers({5, 3}), numbers({4, 3, 2})}, {numbers({3, 5}), numbers({5, 2})}})
    CHECK(autograd::gradgradcheck(f, {a.set_requires_grad(), b.set_requires_grad()}));
}

OP_TEST("grouped_mm", strided, "operands and gradients may have any layout") {
  const Ends ends = {3, 3, 11};
  const Tensor offs = offs_of({99, 3, 99, 3, 99, 11}).slice(0, 1, {}, 2);
  // Transposed, with gaps of NaN, from an offset on, and expanded.
  const auto layouts = [](const Tensor& t) {
    Shape wide = t.sizes();
    for (std::int64_t& size : wide) size = 2 * size + 1;
    Tensor gaps = full(wide, std::nan(""), {t.dtype(), kCPU});
    for (int d = 0; d < t.dim(); ++d) gaps = gaps.slice(d, 1, {}, 2);
    gaps.copy_(t);
    return std::vector<Tensor>{t.transpose(-1, -2).contiguous().transpose(-1, -2), gaps,
                               t.select(0, 0).unsqueeze(0).expand(t.sizes())};
  };
  // Kernels add the products of transposed operands in another order.
  const auto near = [](const Tensor& x, const Tensor& y) {
    const double tolerance = x.dtype() == DType::f64 ? 1e-13 : 0.02;
    return allclose(x.to(DType::f64), y.to(DType::f64), tolerance, tolerance);
  };
  for (const DType dtype : {DType::f64, DType::bf16})
    for (const auto& [a, b] : {std::pair{numbers({11, 5}, dtype), numbers({3, 5, 7}, dtype)},
                               {numbers({5, 11}, dtype), numbers({11, 7}, dtype)}})
      for (const Tensor& x : layouts(a))
        for (const Tensor& w : layouts(b)) {
          const auto f = [&](const Tensor& p, const Tensor& q) { return grouped_mm(p, q, offs); };
          const Tensor y = f(x, w);
          CHECK(near(y, f(x.contiguous(), w.contiguous())));
          for (const Tensor& g : layouts(numbers(y.sizes(), dtype))) {
            const auto got = gradients(f, x, w, g),
                       want = gradients(f, x.contiguous(), w.contiguous(), g.contiguous());
            CHECK(near(got[0], want[0]));
            CHECK(near(got[1], want[1]));
          }
        }
}

OP_TEST("grouped_mm", empty, "no rows, no groups, and sizes of 0 give zeros of the right shape") {
  fill_free_memory_with_nan();
  for (const auto& [a, b, ends] : {Operands{zeros({0, 3}), ones({2, 3, 4}), {0, 0}},
                                   {zeros({0, 3}), zeros({0, 3, 4}), {}},
                                   {zeros({5, 0}), zeros({2, 0, 4}), {2, 5}},
                                   {ones({5, 3}), zeros({2, 3, 0}), {2, 5}},
                                   {zeros({3, 0}), zeros({0, 4}), {0, 0}},
                                   {zeros({3, 0}), zeros({0, 4}), {}},
                                   {zeros({0, 5}), ones({5, 4}), {2, 5}}}) {
    CAPTURE(a.sizes(), b.sizes());
    const Tensor x = a.detach().set_requires_grad(), w = b.detach().set_requires_grad();
    const Tensor y = grouped_mm(x, w, tensor(ends, Shape{static_cast<std::int64_t>(ends.size())}));
    const Shape expected = b.dim() == 3 ? Shape{a.size(0), b.size(2)}
                                        : Shape{static_cast<std::int64_t>(ends.size()), a.size(0), b.size(1)};
    CHECK(y.equal(zeros(expected)));
    y.sum().backward();
    CHECK(x.grad().equal(zeros(a.sizes())));
    CHECK(w.grad().equal(zeros(b.sizes())));
  }
}

OP_TEST("grouped_mm", extreme, "what is not finite stays in its group") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {inf, -inf, std::nan("")})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor a = numbers({6, 4}, dtype), b = numbers({3, 4, 5}, dtype), offs = offs_of({2, 2, 6});
      const Tensor clean = grouped_mm(a, b, offs);
      a[1].narrow(0, 2, 1).fill_(bad);
      b[1].fill_(bad);  // of the group without rows
      const Tensor y = grouped_mm(a, b, offs);
      CHECK_FALSE(isfinite(y[1]).any().item<bool>());
      CHECK(y[0].equal(clean[0]));
      CHECK(y.narrow(0, 2, 4).equal(clean.narrow(0, 2, 4)));
      const auto g = gradients([&](const Tensor& x, const Tensor& w) { return grouped_mm(x, w, offs); }, a, b,
                               ones(y.sizes(), {dtype, kCPU}));
      CHECK(isfinite(g[0]).all().item<bool>());  // the gradient of a reads b[1] for no row
      CHECK(g[1][1].equal(zeros({4, 5}, {dtype, kCPU})));
      CHECK(isfinite(g[1][2]).all().item<bool>());
    }
}

OP_TEST("grouped_mm", dtypes, "every floating dtype is accepted, and no other") {
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    CAPTURE(dtype);
    const auto product = [&] {
      return grouped_mm(zeros({3, 2}, dtype), zeros({1, 2, 4}, dtype), offs_of({3}));
    };
    if (contains(kFloats, dtype)) CHECK(product().dtype() == dtype);
    else CHECK_THROWS_AS(product(), TypeError);
  }
}

BAD_INPUT("grouped_mm", "offs end at row 3, but there are 5 rows", [] {
  return grouped_mm(zeros({5, 2}), zeros({2, 2, 4}), offs_of({1, 3}));
});
BAD_INPUT("grouped_mm", "offs end at row 6, but there are 5 rows", [] {
  return grouped_mm(zeros({4, 5}), zeros({5, 2}), offs_of({1, 6}));
});
BAD_INPUT("grouped_mm", "offs end at row 0, but there are 5 rows", [] {
  return grouped_mm(zeros({5, 2}), zeros({0, 2, 4}), zeros({0}, DType::i64));
});
BAD_INPUT("grouped_mm", "offs[1] is 2, but group 1 begins at row 3", [] {
  return grouped_mm(zeros({5, 2}), zeros({3, 2, 4}), offs_of({3, 2, 5}));
});
BAD_INPUT("grouped_mm", "offs[0] is -1, but group 0 begins at row 0", [] {
  return grouped_mm(zeros({5, 2}), zeros({2, 2, 4}), offs_of({-1, 5}));
});
BAD_INPUT("grouped_mm", "offs end 3 groups, but there are 2 matrices", [] {
  return grouped_mm(zeros({5, 2}), zeros({2, 2, 4}), offs_of({1, 2, 5}));
});
BAD_INPUT("grouped_mm", "offs have shape [1, 2]", [] {
  return grouped_mm(zeros({5, 2}), zeros({2, 2, 4}), offs_of({1, 5}).unsqueeze(0));
});
BAD_INPUT("grouped_mm", "offs are float32", [] {
  return grouped_mm(zeros({5, 2}), zeros({2, 2, 4}), zeros({2}));
});
BAD_INPUT("grouped_mm", "3 columns on the left, 2 rows on the right", [] {
  return grouped_mm(zeros({5, 3}), zeros({2, 2, 4}), offs_of({1, 5}));
});
BAD_INPUT("grouped_mm", "5 columns on the left, 4 rows on the right", [] {
  return grouped_mm(zeros({3, 5}), zeros({4, 2}), offs_of({1, 5}));
});
BAD_INPUT("grouped_mm", "bmm() multiplies groups of equal size", [] {
  return grouped_mm(zeros({2, 5, 3}), zeros({2, 3, 4}), offs_of({1, 5}));
});
BAD_INPUT("grouped_mm", "dtypes float32 and float64 differ", [] {
  return grouped_mm(zeros({5, 2}), zeros({2, 2, 4}, DType::f64), offs_of({1, 5}));
});
BAD_INPUT("grouped_mm", "int64", [] {
  return grouped_mm(zeros({5, 2}, DType::i64), zeros({2, 2, 4}, DType::i64), offs_of({1, 5}));
});
BAD_INPUT("grouped_mm", "offs is an undefined tensor", [] {
  return grouped_mm(zeros({5, 2}), zeros({2, 2, 4}), Tensor());
});

TEST_CASE("grouped_mm: an operand that needs no gradient of the other one is not saved") {
  const Tensor a = numbers({5, 3}), b = numbers({2, 3, 2}).set_requires_grad(), offs = offs_of({2, 5});
  const Tensor y = grouped_mm(a, b, offs);
  {
    const NoGradGuard no_grad;
    b.zero_();  // only the gradient of a would read it
    offs.zero_();
  }
  y.sum().backward();
  CHECK(allclose(b.grad()[1], a.narrow(0, 2, 3).sum({0}).unsqueeze(1).expand({3, 2}), 1e-12, 1e-12));
}

TEST_CASE("grouped_mm: backward allocates the gradients alone, also of weights that are passed transposed") {
  const std::int64_t groups = 40;
  for (const bool transposed : {false, true}) {
    CAPTURE(transposed);
    const Tensor a = numbers({groups, 64}, DType::f32).set_requires_grad();
    const Tensor b = numbers({groups, 64, 64}, DType::f32).set_requires_grad();
    const Tensor y = grouped_mm(a, transposed ? b.transpose(1, 2) : b, arange(1, groups + 1));
    const Tensor g = ones(y.sizes());
    reset_peak_memory(kCPU);
    const auto before = memory_stats(kCPU).allocated;
    y.backward(g);
    const auto most = memory_stats(kCPU).peak_allocated - before;
    CHECK(most < static_cast<std::int64_t>(b.nbytes() + b.nbytes() / 8));
  }
}

TEST_CASE("grouped_mm: shapes and the graph exist on the meta device, where offs have no elements") {
  const DeviceGuard guard("meta");
  const Tensor a = zeros({5, 3}).set_requires_grad(), b = zeros({2, 3, 4}).set_requires_grad();
  const Tensor y = grouped_mm(a, b, zeros({2}, DType::i64));
  CHECK(y.sizes() == Shape({5, 4}));
  y.sum().backward();
  CHECK(b.grad().sizes() == b.sizes());
}
