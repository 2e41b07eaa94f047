// The kernels for sm_90a (kernels/cuda/hopper), which the emulator cannot run: the PTX machine executes what
// nvcc made of them, launched by the library itself, with every access, mbarrier and fence checked.
#if TAPESTRY_LIBRARY_HAS_CUDA
#include <cmath>
#include <cstdlib>
#include <functional>

#include "tapestry/kernels/policy.h"
#include "tapestry/tapestry.h"
#include "tapestry/tools/ptx/runtime/settings.h"
#include "tests/cuda_runtime/gpus.h"

namespace {

/// Allows the kernels, and forbids cuBLASLt, while it exists.
struct AllowWgmma {
  AllowWgmma() {
    ::setenv("TAPESTRY_WGMMA", "1", 1);
    kernels::reset_policy();
    set_kernel_policy(KernelPolicy::custom);
  }
  ~AllowWgmma() {
    ::unsetenv("TAPESTRY_WGMMA");
    kernels::reset_policy();
  }
};

bool ran(std::string_view kernel) {
  for (const auto& [name, what] : stand_in::executed())
    if (name.find(kernel) != std::string::npos) return true;
  return false;
}

using Tensors = std::vector<Tensor>;

/// Computes f of bf16 inputs on the machine, in both orders of threads, and in f64 on the CPU. Returns the
/// largest difference relative to 2^-8 of the result, the rounding of bf16, plus 2^-8 of `scale`.
double error(const Tensors& inputs, double scale, const std::function<Tensor(const Tensors&)>& f,
             bool splits = false) {
  const AllowWgmma allow;
  Tensors wide;
  for (const Tensor& x : inputs) wide.push_back(x.to(DType::f64));
  const Tensor expected = f(wide);
  double largest = 0;
  for (const std::uint64_t seed : {0, 1}) {
    const Gpus gpus(1);
    stand_in::Settings settings;
    settings.seed = seed;
    stand_in::execute(settings);
    Tensors moved;
    for (const Tensor& x : inputs) moved.push_back(x.to(kFirst));
    const Tensor found = f(moved).cpu().to(DType::f64);
    CHECK(ran("gemm_wgmma"));
    CHECK(ran("add_wgmma_splits") == splits);
    REQUIRE(found.shape() == expected.shape());
    const std::vector<double> a = expected.to_vector<double>(), b = found.to_vector<double>();
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double d = std::fabs(a[i] - b[i]) * 256 / (std::fabs(a[i]) + scale);
      largest = d > largest || d != d ? d : largest;
    }
  }
  return largest;
}

Tensor operand(const Shape& shape) { return randn(shape).to(DType::bf16); }

}  // namespace

TEST_CASE("wgmma products of every layout give the CPU's results, also in tiles that are not full") {
  manual_seed(5);
  // f32 sums of k products of about 1 differ from the exact ones by far less than 2^-9; the result is rounded
  // once.
  const double once = 0.51, scale = 0.05;
  const auto product = [](const Tensors& t) { return matmul(t[0], t[1]); };
  const auto across_a = [](const Tensors& t) { return matmul(t[0].t(), t[1]); };
  const auto across_none = [](const Tensors& t) { return matmul(t[0], t[1].t()); };
  const auto across_both = [](const Tensors& t) { return matmul(t[0].t(), t[1].t()); };
  CHECK(error({operand({136, 72}), operand({72, 264})}, scale, product) < once);
  CHECK(error({operand({72, 136}), operand({72, 264})}, scale, across_a) < once);
  CHECK(error({operand({136, 72}), operand({264, 72})}, scale, across_none) < once);
  CHECK(error({operand({72, 136}), operand({264, 72})}, scale, across_both) < once);
}

TEST_CASE("wgmma products go round the ring of stages more than once") {
  manual_seed(6);
  const auto product = [](const Tensors& t) { return matmul(t[0], t[1].t()); };
  CHECK(error({operand({64, 584}), operand({128, 584})}, 0.05, product) < 0.51);
}

TEST_CASE("wgmma products split k if they have few tiles") {
  manual_seed(9);
  const Tensors x{operand({64, 1032}), operand({132, 1032}), operand({132})};
  CHECK(error(
            x, 0.05, [](const Tensors& t) { return linear_relu(t[0], t[1], t[2]); }, true) < 0.51);
}

TEST_CASE("wgmma multiplies batches, and one matrix with a batch") {
  manual_seed(7);
  const auto product = [](const Tensors& t) { return matmul(t[0], t[1]); };
  // More tiles than the GPU has multiprocessors, 4: some blocks compute two.
  CHECK(error({operand({6, 64, 64}), operand({6, 64, 128})}, 0.05, product) < 0.51);
  CHECK(error({operand({64, 64}), operand({2, 64, 128})}, 0.05, product) < 0.51);
}

TEST_CASE("wgmma applies bias and function to the sums") {
  manual_seed(8);
  const Tensors x{operand({72, 64}), operand({136, 64}), operand({136})};
  CHECK(error(x, 0.05, [](const Tensors& t) { return linear(t[0], t[1], t[2]); }) < 0.51);
  CHECK(error(x, 0.05, [](const Tensors& t) { return linear_relu(t[0], t[1], t[2]); }) < 0.51);
  CHECK(error(x, 0.05, [](const Tensors& t) { return linear_gelu(t[0], t[1], t[2]); }) < 0.51);
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
#endif
