// Tests that GEMM epilogues (activations, their gradients, and aux) match the CPU's kernel in f64.
#include "tests/emulated/matmul.h"

using namespace tapestry;
using namespace emulated;

namespace {

constexpr Epilogue kAll[] = {Epilogue::none,
                             Epilogue::relu,
                             Epilogue::gelu,
                             Epilogue::gelu_tanh,
                             Epilogue::relu_backward,
                             Epilogue::gelu_backward,
                             Epilogue::gelu_tanh_backward};

/// Calls f for every epilogue, with aux and, where it is optional, without.
template <class F>
void for_each_epilogue(Product p, const F& f) {
  for (const Epilogue epilogue : kAll)
    for (const bool aux : {false, true}) {
      if (is_gradient(epilogue) && !aux) continue;
      p.epilogue = epilogue, p.aux = aux;
      f(p);
    }
}

}  // namespace

TEST_CASE("epilogues: they are applied after accumulation and bias, in packs or single elements") {
  for (const std::int64_t n : {8, 13})
    for (const bool bias : {false, true})
      for (const bool accumulate : {false, true})
        for_each_epilogue(
            {.m = 5, .n = n, .k = 16, .bias = bias, .accumulate = accumulate},
            [](const Product& p) { for_float_dtypes([&]<class T>() { check_product<T>(p); }); });
}

TEST_CASE("epilogues: large tiles give the CPU's values") {
  for_each_epilogue({.m = 136, .n = 264, .k = 8, .bias = true}, [](const Product& p) {
    for_float_dtypes([&]<class T>() { check_strategy<T>(p, true); });
  });
}

TEST_CASE("epilogues: with split-K they are applied once, after the reduction") {
  for (const std::int64_t n : {8, 10})
    for_each_epilogue({.m = 7, .n = n, .k = 200, .gap = 2, .bias = true, .batch = {2}}, [](const Product& p) {
      for_float_dtypes([&]<class T>() { check_strategy<T>(p, false, 3); });
    });
}

TEST_CASE("epilogues: infinities and NaN give the CPU's values") {
  for_each_epilogue({.m = 8, .n = 8, .k = 8, .bias = true}, [](const Product& p) {
    Operands o(p);
    o.bias = {kInfinity, -kInfinity, kNaN, 1e30, -1e30, 0, -0.0, 1e-30};
    if (is_gradient(p.epilogue)) {
      const double at[] = {0, -0.0, kNaN, kInfinity, -kInfinity, 100, -100, 1e-30};
      for (std::size_t i = 0; i < 64; ++i) o.aux.values[i] = at[i / 8];
    }
    o.bias = rounded<BFloat16>(o.bias);
    o.aux.values = rounded<BFloat16>(o.aux.values);
    check_product<float>(p, o, [](const GemmArgs& g) { kernels::cuda::launch_gemm<float>({}, g); });
    check_product<BFloat16>(p, o, [](const GemmArgs& g) { kernels::cuda::launch_gemm<BFloat16>({}, g); });
  });
}
