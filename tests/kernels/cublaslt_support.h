#pragma once
// Fake GPUs and the stand-in cuBLASLt for the tests of matrix products, and products with their operands in
// the memory of a fake GPU.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/cuda/internal/libraries.h"
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/ops/matmul.h"
#include "tests/support/cublaslt/standin.h"
#include "tests/support/fake_gpu.h"

namespace cublaslt_test {

using namespace tapestry;
using kernels::Epilogue;
using kernels::GemmArgs;

/// Prints why and returns true in builds that did not find cublasLt.h.
bool no_cublaslt();

/// While it exists, the CUDA devices are fake and cuBLASLt is the stand-in. Every policy is `vendor` at
/// first, and there is no file of choices. The destructor checks that there were no violations and no leaks.
class World {
 public:
  explicit World(int gpus = 1);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const StandInCublasLt& lt() const { return *controls_; }
  testing::FakeGpus& gpus() { return *gpus_; }
  /// The descriptions of the products so far.
  std::vector<std::string> products() const;
  std::vector<std::string> preferences() const;
  void expect_violation() { expects_violation_ = true; }

 private:
  cuda::OpenLibrary library_;
  const StandInCublasLt* controls_ = nullptr;
  std::unique_ptr<testing::FakeGpus> gpus_;
  bool expects_violation_ = false;
};

/// A product to test. Each operand has `gap` elements after each line, which hold NaN or a sentinel, and
/// begins `offset` elements into its memory.
struct Product {
  DType dtype = DType::f32;
  std::int64_t m = 1, n = 1, k = 1;
  bool a_along_k = true, b_along_k = false;
  std::int64_t gap = 0, offset = 0;
  bool bias = false, accumulate = false, aux = false;
  Epilogue epilogue = Epilogue::none;
  std::vector<std::int64_t> batch = {};
  bool a_shared = false, b_shared = false;  // broadcast along the first batch dimension
  bool row_sums = false;
  bool a_swapped = false;  // A's first two batch dimensions are stored in the other order
};

/// The operands of a product in the memory of `device`, and what the CPU's kernel computes from them in f64.
struct Operands {
  Operands(const Product& p, Device device);
  GemmArgs args;
  Tensor a, b, c, aux, bias, row_sums;
  std::vector<double> want_c, want_aux, want_row_sums,
      size;  // `size`: the sum of the absolute values of the terms
};

/// The values of a tensor of any device in f64, in the order of memory.
std::vector<double> values(const Tensor& t);
/// Checks C and aux, and the gaps between their rows.
void check_result(const Product& p, const Operands& o);

/// An own kernel, which computes on the fake GPU what the CPU's kernel computes, and counts its calls.
void own_gemm(const kernels::LaunchContext& context, const GemmArgs& g);
inline int own_calls = 0;
/// Computes the product on the current stream of the device by choose_gemm(), with `own` or without.
void multiply(const Product& p, const Operands& o, Device device, bool own = false);
/// Computes a product and checks it.
void check_product(const Product& p, Device device = "cuda:0");

}  // namespace cublaslt_test
