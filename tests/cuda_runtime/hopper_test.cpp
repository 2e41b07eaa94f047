// Products by wgmma.
#if TAPESTRY_LIBRARY_HAS_CUDA
#include "tests/cuda_runtime/hopper.h"

#include <cmath>
#include <functional>

#include "tapestry/tapestry.h"
#include "tapestry/tools/ptx/runtime/settings.h"

namespace {

using Tensors = std::vector<Tensor>;

/// Computes f of bf16 inputs on the machine and in f64 on the CPU. Returns the largest difference in units of
/// 2^-8 of the result, by which bf16 may round, plus 2^-8 of `scale`.
double error(const Tensors& inputs, const std::function<Tensor(const Tensors&)>& f, std::uint64_t seed = 0,
             bool splits = false) {
  // f32 sums of k products of about 1 differ from the exact ones by far less than 2^-8 of it.
  constexpr double kScale = 0.05;
  const AllowWgmma allow;
  Tensors wide;
  for (const Tensor& x : inputs) wide.push_back(x.to(DType::f64));
  const Tensor expected = f(wide);
  const Gpus gpus(1);
  stand_in::Settings settings;
  settings.seed = seed;
  settings.races = seed != 0;  // the search for races takes as long as all other checks
  stand_in::execute(settings);
  Tensors moved;
  for (const Tensor& x : inputs) moved.push_back(x.to(kFirst));
  const Tensor found = f(moved).cpu().to(DType::f64);
  CHECK(ran("gemm_wgmma"));
  CHECK(ran("add_wgmma_splits") == splits);
  REQUIRE(found.shape() == expected.shape());
  double largest = 0;
  const std::vector<double> a = expected.to_vector<double>(), b = found.to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::fabs(a[i] - b[i]) * 256 / (std::fabs(a[i]) + kScale);
    largest = d > largest || d != d ? d : largest;
  }
  return largest;
}

Tensor operand(const Shape& shape) { return randn(shape).to(DType::bf16); }

}  // namespace

TEST_CASE("wgmma products of every layout give the CPU's results, also in tiles that are not full") {
  manual_seed(5);
  const auto product = [](const Tensors& t) { return matmul(t[0], t[1]); };
  const auto across_a = [](const Tensors& t) { return matmul(t[0].t(), t[1]); };
  const auto across_none = [](const Tensors& t) { return matmul(t[0], t[1].t()); };
  const auto across_both = [](const Tensors& t) { return matmul(t[0].t(), t[1].t()); };
  CHECK(error({operand({72, 72}), operand({72, 136})}, product) < 1);
  CHECK(error({operand({72, 136}), operand({72, 264})}, across_a) < 1);
  CHECK(error({operand({72, 72}), operand({136, 72})}, across_none) < 1);
  CHECK(error({operand({72, 72}), operand({136, 72})}, across_both) < 1);
}

TEST_CASE("wgmma products go round the ring of stages more than once, in any order of threads") {
  manual_seed(6);
  const auto product = [](const Tensors& t) { return matmul(t[0], t[1].t()); };
  CHECK(error({operand({64, 328}), operand({128, 328})}, product, 1) < 1);
}

TEST_CASE("wgmma products split k if they have few tiles") {
  manual_seed(9);
  const Tensors x{operand({64, 1032}), operand({132, 1032}), operand({132})};
  CHECK(error(
            x, [](const Tensors& t) { return linear_relu(t[0], t[1], t[2]); }, 0, true) < 1);
}

TEST_CASE("wgmma multiplies batches, and one matrix with a batch") {
  manual_seed(7);
  const auto product = [](const Tensors& t) { return matmul(t[0], t[1]); };
  // More tiles than the GPU has multiprocessors, 4: one block computes two.
  CHECK(error({operand({5, 64, 64}), operand({5, 64, 128})}, product) < 1);
  CHECK(error({operand({64, 64}), operand({2, 64, 128})}, product) < 1);
}

TEST_CASE("wgmma applies bias and function to the sums") {
  manual_seed(8);
  const Tensors x{operand({72, 64}), operand({136, 64}), operand({136})};
  CHECK(error(x, [](const Tensors& t) { return linear(t[0], t[1], t[2]); }) < 1);
  CHECK(error(x, [](const Tensors& t) { return linear_gelu(t[0], t[1], t[2]); }) < 1);
}

TEST_CASE("without TAPESTRY_WGMMA no kernel for sm_90a runs, and a wrong value is an error") {
  const Gpus gpus(1);
  stand_in::execute({});
  const Tensor a = operand({128, 64}).to(kFirst), b = operand({64, 256}).to(kFirst);
  kernels::reset_policy();
  set_kernel_policy(KernelPolicy::custom);
  matmul(a, b).cpu();
  CHECK_FALSE(ran("gemm_wgmma"));
  ::setenv("TAPESTRY_WGMMA", "yes", 1);
  kernels::reset_policy();
  CHECK_THROWS_WITH(matmul(a, b), ContainsSubstring("[TAPESTRY_WGMMA] \"yes\" is neither 0 nor 1"));
  ::unsetenv("TAPESTRY_WGMMA");
  kernels::reset_policy();
}
#else
#include <cstdio>

#include "tests/support/catch.h"

TEST_CASE("without CUDA or with a static CUDA runtime, the kernels for sm_90a are not executed") {
  std::printf("skipped: the library was not built with CUDA and the shared CUDA runtime\n");
}
#endif
