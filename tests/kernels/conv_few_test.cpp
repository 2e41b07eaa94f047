// bf16 convolutions of images with few channels against sums in f64.
#include <cmath>
#include <limits>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/threads.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/kernel_paths.h"

using namespace tapestry;

namespace {

struct Case {
  std::int64_t n, c, h, w, k, r, s;
  Conv2dParams options;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {5, 1, 12, 13, 32, 5, 5, {}},
      {3, 3, 9, 40, 16, 3, 3, {.padding = 1}},
      {1, 2, 7, 8, 16, 2, 2, {}},
      {9, 4, 5, 6, 16, 1, 1, {}},
      {2, 3, 10, 21, 48, 3, 4, {.stride = Pair{2, 1}, .padding = Pair{1, 2}, .dilation = Pair{2, 1}}},
      {1, 1, 5, 5, 16, 5, 5, {}},  // one output
  };
  return all;
}

Tensor low(const Shape& shape) { return randn(shape).to(DType::bf16); }

// y and the gradients of weight and bias.
std::vector<Tensor> run(const Case& s, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& dy) {
  const Tensor w = weight.detach().set_requires_grad(), b = bias.detach().set_requires_grad();
  const Tensor y = conv2d(x, w, b, s.options);
  std::vector<Tensor> out = autograd::grad({y}, {w, b}, std::vector<Tensor>{dy.to(y.dtype())}, false);
  out.push_back(y.detach());
  return out;
}

void check_cases() {
  manual_seed(1);
  for (const Case& s : cases())
    for (const bool last : {false, true}) {
      CAPTURE(s.n, s.c, s.h, s.w, s.k, s.r, s.s, last);
      Tensor x = low({s.n, s.c, s.h, s.w});
      const Tensor weight = low({s.k, s.c, s.r, s.s}), bias = low({s.k});
      if (last) x = x.contiguous(MemoryFormat::channels_last);
      const Tensor dy = low(conv2d(x, weight, bias, s.options).sizes());
      const auto wide = [](const Tensor& t) { return t.to(kFloat64); };
      const auto got = run(s, x, weight, bias, dy);
      const auto exact = run(s, wide(x), wide(weight), wide(bias), wide(dy));
      const auto sizes = run(s, wide(x).abs(), wide(weight).abs(), wide(bias).abs(), wide(dy).abs());
      const double pixels = static_cast<double>(dy.numel() / s.k),
                   taps = static_cast<double>(s.c * s.r * s.s);
      for (std::size_t i = 0; i < 3; ++i) {
        CAPTURE(i);
        // An f32 sum of this many terms in any order (Higham 2002, section 3.1), rounded once to bf16.
        const double terms = i == 2 ? taps + 1 : pixels;
        const Tensor bound = sizes[i] * (terms * 0x1p-23) + exact[i].abs() * 0x1p-8;
        CHECK(amax((wide(got[i]) - exact[i]).abs() - bound).item<double>() <= 0);
      }
    }
}

}  // namespace

TEST_CASE("bf16 convolutions of few channels are f32 sums that are rounded once") { check_cases(); }

TEST_CASE("bf16 convolutions of few channels have the same sums where vdpbf16ps does not pay") {
  const Bf16DotPays pays(false);
  check_cases();
}

TEST_CASE("child: bf16 convolutions of few channels", "[.]") { check_cases(); }
TEST_CASE("bf16 convolutions of few channels are right without bf16 instructions and without AVX-512") {
  for (const char* const isa : {"AVX512_CORE", "AVX2"}) {
    const ChildResult child =
        run_child("child: bf16 convolutions of few channels", std::string("DNNL_MAX_CPU_ISA=") + isa);
    INFO(isa << child.output);
    CHECK(child.status == 0);
  }
}

TEST_CASE("an infinite input of a bf16 convolution reaches only the outputs of its windows") {
  manual_seed(2);
  for (const float special :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const bool last : {false, true})
      for (const std::int64_t column : {0, 4, 8, 17}) {
        CAPTURE(special, last, column);
        Tensor x = low({1, 1, 6, 18});
        const Tensor weight = low({16, 1, 3, 3}), bias = low({16});
        x.select(3, column).fill_(special);
        if (last) x = x.contiguous(MemoryFormat::channels_last);
        const Tensor y = conv2d(x, weight, bias).to(kFloat32),
                     wide = conv2d(x.to(kFloat32), weight.to(kFloat32), bias.to(kFloat32));
        CHECK(equal(isfinite(y), isfinite(wide)));
        const Tensor w = weight.detach().set_requires_grad();
        const Tensor out = conv2d(x, w);
        const Tensor dy = zeros(out.sizes()).to(DType::bf16);
        dy.select(3, 15).fill_(1);  // sees columns 15 to 17
        const Tensor dw = autograd::grad({out}, {w}, std::vector<Tensor>{dy}, false)[0].to(kFloat32);
        // Zero times infinity is NaN: each tap at this column of some window is infinite or NaN, and no
        // other.
        const Tensor w32 = weight.to(kFloat32).set_requires_grad();
        const Tensor out32 = conv2d(x.to(kFloat32), w32);
        const Tensor dw32 = autograd::grad({out32}, {w32}, std::vector<Tensor>{dy.to(kFloat32)}, false)[0];
        CHECK(equal(isfinite(dw), isfinite(dw32)));
      }
}

TEST_CASE("bf16 convolutions of few channels do not depend on the number of threads") {
  manual_seed(3);
  const int before = get_num_threads();
  const Case s{37, 3, 11, 19, 16, 3, 3, {}};
  const Tensor x = low({s.n, s.c, s.h, s.w}), weight = low({16, 3, 3, 3}), bias = low({16}),
               dy = low({s.n, 16, 9, 17});
  std::vector<std::vector<Tensor>> results;
  for (const int threads : {1, 3, 1}) {
    set_num_threads(threads);
    results.push_back(run(s, x, weight, bias, dy));
  }
  set_num_threads(before);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(equal(results[0][i], results[1][i]));
    CHECK(equal(results[0][i], results[2][i]));
  }
}
