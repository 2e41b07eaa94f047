// Tests matrix products through cuBLASLt: values, descriptions, errors, and the policy, on a stand-in for
// cuBLASLt that computes on the memory of fake GPUs.
#include "tapestry/kernels/cuda/vendor/cublaslt.h"
#include <array>
#include <map>
#include <set>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/cuda/libraries.h"
#include "tapestry/core/error.h"
#include "tapestry/core/profiler.h"
#include "tapestry/core/stream.h"
#include "tapestry/kernels/policy.h"
#include "tests/kernels/cublaslt_support.h"
#include "tests/support/catch.h"

using namespace cublaslt_test;

namespace {

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

/// What a failing call throws.
template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("cublaslt: products in every layout and dtype give the CPU's values, and leave gaps alone") {
  if (no_cublaslt()) return;
  World world;
  for (const DType dtype : kDTypes)
    for (const bool a_along_k : {true, false})
      for (const bool b_along_k : {true, false})
        for (const std::int64_t gap : {0, 3})
          check_product({.dtype = dtype,
                         .m = 5,
                         .n = 7,
                         .k = 11,
                         .a_along_k = a_along_k,
                         .b_along_k = b_along_k,
                         .gap = gap,
                         .offset = gap,
                         .bias = gap == 0,
                         .accumulate = a_along_k});
  for (const auto& [m, n, k] : {std::array{1, 1, 1}, {1, 9, 4}, {9, 1, 4}, {6, 5, 1}})
    check_product({.m = m, .n = n, .k = k, .a_along_k = false, .b_along_k = true, .bias = true});
}

TEST_CASE("cublaslt: epilogues follow accumulation and bias, and store or read their argument") {
  if (no_cublaslt()) return;
  World world;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool bias : {false, true})
      for (const bool accumulate : {false, true}) {
        const Product p{
            .dtype = dtype, .m = 6, .n = 13, .k = 9, .gap = 3, .bias = bias, .accumulate = accumulate};
        for (Product e : {p, p, p, p}) {
          e.epilogue = Epilogue::relu;
          check_product(e);
          e.epilogue = Epilogue::gelu_tanh;
          check_product(e);
          e.aux = true;
          check_product(e);
          e.epilogue = Epilogue::gelu_tanh_backward;
          if (!bias) check_product(e);
        }
      }
}

TEST_CASE("cublaslt: batches are one call where strides allow it") {
  if (no_cublaslt()) return;
  World world;
  const auto calls = [&](Product p) {
    const std::size_t before = world.products().size();
    check_product(p);
    return world.products().size() - before;
  };
  const Product p{.m = 3, .n = 4, .k = 5, .gap = 4, .bias = true, .batch = {2, 3}};
  CHECK(calls(p) == 1);
  Product q = p;
  q.b_shared = true;  // the second dimension has 3 matrices, the first none
  CHECK(calls(q) == 2);
  q.batch = {4};
  CHECK(calls(q) == 1);
  q.a_shared = true;
  CHECK(calls(q) == 1);
  q = p;
  q.a_swapped = true;
  q.epilogue = Epilogue::gelu_tanh;
  q.aux = true;
  CHECK(calls(q) == 2);
  q.batch = {1, 5, 1};
  q.a_swapped = false;
  CHECK(calls(q) == 1);
  q = p;
  q.batch = {65, 66};
  q.a_swapped = true;
  CHECK_THAT(error_of([&] { check_product(q); }), ContainsSubstring("more than 64 calls"));
}

TEST_CASE("cublaslt: the descriptions of the main cases") {
  if (no_cublaslt()) return;
  World world;
  const auto description = [&](const Product& p) {
    check_product(p);
    return world.products().back();
  };
  // A linear layer: x (8, 32), weight (16, 32) stored by rows, which is B contiguous along k.
  CHECK(description({.dtype = DType::bf16, .m = 8, .n = 16, .k = 32, .b_along_k = true, .bias = true}) ==
        "bf16 32F 16x8 ld 16 = T(32x16 ld 32) * 32x8 ld 32 BIAS algorithm 0");
  // Its gradients: dx = dy weight, and dweight = dy^T x, added to what is there.
  CHECK(description({.dtype = DType::bf16, .m = 8, .n = 32, .k = 16}) ==
        "bf16 32F 32x8 ld 32 = 32x16 ld 32 * 16x8 ld 16 algorithm 0");
  CHECK(
      description({.dtype = DType::f16, .m = 16, .n = 32, .k = 8, .a_along_k = false, .accumulate = true}) ==
      "f16 32F 32x16 ld 32 = 32x8 ld 32 * T(16x8 ld 16) + D algorithm 0");
  // dweight with the gradient of the bias, which sums the rows of dy^T.
  CHECK(description({.dtype = DType::bf16, .m = 16, .n = 32, .k = 8, .a_along_k = false, .row_sums = true}) ==
        "bf16 32F 32x16 ld 32 = 32x8 ld 32 * T(16x8 ld 16) BGRADB algorithm 0");
  CHECK(description({.m = 5, .n = 3, .k = 7, .gap = 3, .offset = 3, .accumulate = true, .row_sums = true}) ==
        "f32 32F 3x5 ld 6 = 3x7 ld 6 * 7x5 ld 10 BGRADB + D algorithm 0");
  CHECK_THAT(error_of([&] { check_product({.m = 4, .n = 4, .k = 4, .bias = true, .row_sums = true}); }),
             ContainsSubstring("sums the rows of A only"));
  CHECK(description({.m = 8,
                     .n = 16,
                     .k = 4,
                     .b_along_k = true,
                     .bias = true,
                     .aux = true,
                     .epilogue = Epilogue::gelu_tanh}) ==
        "f32 32F 16x8 ld 16 = T(4x16 ld 4) * 4x8 ld 4 GELU_AUX_BIAS aux ld 16 algorithm 0");
  CHECK(description({.m = 8, .n = 16, .k = 4, .aux = true, .epilogue = Epilogue::gelu_tanh_backward}) ==
        "f32 32F 16x8 ld 16 = 16x4 ld 16 * 4x8 ld 4 DGELU aux ld 16 algorithm 0");
  CHECK(description({.m = 4, .n = 8, .k = 2, .bias = true, .epilogue = Epilogue::relu}) ==
        "f32 32F 8x4 ld 8 = 8x2 ld 8 * 2x4 ld 2 RELU_BIAS algorithm 0");
  // Attention's scores: 6 products, and a weight that all of a batch share.
  CHECK(description({.m = 4, .n = 5, .k = 8, .b_along_k = true, .gap = 1, .batch = {2, 3}}) ==
        "f32 32F 5x4 ld 6 every 24 = T(8x5 ld 9 every 45) * 8x4 ld 9 every 36 x 6 algorithm 0");
  CHECK(description({.dtype = DType::f64, .m = 2, .n = 3, .k = 4, .batch = {3}, .b_shared = true}) ==
        "f64 64F 3x2 ld 3 every 6 = 3x4 ld 3 every 0 * 4x2 ld 4 every 8 x 3 algorithm 0");
}

TEST_CASE("cublaslt: the heuristics know workspace, rounding and alignment, and are asked once") {
  if (no_cublaslt()) return;
  World world;
  const Product p{.m = 4, .n = 8, .k = 16};
  check_product(p);
  Product q = p;
  q.dtype = DType::bf16, q.offset = 1;
  check_product(q);
  const auto asked = world.preferences();
  REQUIRE(asked.size() == 2);
  // In f32, partial sums may be added in C. In bf16, that would round each of them.
  CHECK_THAT(asked[0], ContainsSubstring("workspace 33554432 schemes 3 align 256 256 256 256"));
  CHECK_THAT(asked[1], ContainsSubstring("schemes 2 align 2 2 2 2"));
  check_product(p);
  const Stream other = new_stream("cuda:0");
  {
    const StreamGuard guard(other);
    check_product(p);
  }
  CHECK(world.lt().last_stream() == other.native());
  CHECK(world.preferences().size() == 2);
  CHECK(world.lt().calls("cublasLtCreate") == 1);
}

TEST_CASE("cublaslt: TF32 is used for f32 only, and only if it is allowed") {
  if (no_cublaslt()) return;
  World world;
  const auto computes = [&](DType dtype) {
    check_product({.dtype = dtype, .m = 2, .n = 3, .k = 4});
    return world.products().back().substr(0, 9);
  };
  CHECK(computes(DType::f32) == "f32 32F 3");
  set_allow_tf32_matmul(true);
  CHECK(computes(DType::f32) == "f32 TF32 ");
  CHECK(computes(DType::bf16) == "bf16 32F ");
  CHECK(computes(DType::f64) == "f64 64F 3");
  set_allow_tf32_matmul(false);
  CHECK(computes(DType::f32) == "f32 32F 3");
}

TEST_CASE("cublaslt: what it cannot compute goes to the own kernel, or is an error with the reason") {
  if (no_cublaslt()) return;
  World world;
  const auto refused = [&](Product p) {
    const Operands o(p, "cuda:0");
    const int before = own_calls;
    multiply(p, o, "cuda:0", true);
    check_result(p, o);
    CHECK(own_calls == before + 1);
    return error_of([&] { multiply(p, o, "cuda:0", false); });
  };
  const Product p{.m = 4, .n = 8, .k = 3};
  const auto with = [&](Epilogue e, bool aux, bool bias = false, std::int64_t n = 8) {
    Product q = p;
    q.epilogue = e, q.aux = aux, q.bias = bias, q.n = n;
    return refused(q);
  };
  CHECK_THAT(with(Epilogue::gelu, false), ContainsSubstring("the tanh approximation of GELU only"));
  CHECK_THAT(with(Epilogue::gelu_backward, true), ContainsSubstring("the tanh approximation of GELU only"));
  CHECK_THAT(with(Epilogue::relu, true), ContainsSubstring("stores the signs"));
  CHECK_THAT(with(Epilogue::relu_backward, true), ContainsSubstring("reads the signs"));
  CHECK_THAT(with(Epilogue::gelu_tanh_backward, true, true), ContainsSubstring("with a bias"));
  CHECK_THAT(with(Epilogue::gelu_tanh, true, false, 9), ContainsSubstring("multiples of 8"));
  world.lt().set_algorithms(0, 0);
  CHECK_THAT(refused({.m = 4, .n = 9, .k = 3}),
             ContainsSubstring("no algorithm for this product: float32 m=4 n=9"));
  CHECK(world.products().empty());
}

TEST_CASE("cublaslt: empty products write nothing or zeros") {
  if (no_cublaslt()) return;
  World world;
  for (const auto& [m, n] : {std::pair(0, 3), {3, 0}}) {
    GemmArgs g;
    g.m = m, g.n = n, g.k = 2, g.c_row = 3;
    multiply(
        {},
        [&] {
          Operands o({}, "cuda:0");
          o.args = g;
          return o;
        }(),
        "cuda:0");
  }
  CHECK(world.products().empty());
  Operands o({.m = 2, .n = 2, .k = 1}, "cuda:0");
  o.args.k = 0, o.args.a = nullptr, o.args.b = nullptr;
  o.args.a_strides = {1, 1}, o.args.b_strides = {2, 1};
  multiply({}, o, "cuda:0", true);
  CHECK(own_calls == 1);
  CHECK(values(o.c) == std::vector<double>(4, 0.0));
}

TEST_CASE("cublaslt: an error of any call names it, and the next product is computed") {
  if (no_cublaslt()) return;
  const Product p{
      .m = 4, .n = 8, .k = 3, .bias = true, .aux = true, .epilogue = Epilogue::gelu_tanh, .batch = {2}};
  const char* const functions[] = {
      "cublasLtMatmulDescInit_internal",       "cublasLtMatmulDescSetAttribute",
      "cublasLtMatrixLayoutInit_internal",     "cublasLtMatrixLayoutSetAttribute",
      "cublasLtMatmulPreferenceInit_internal", "cublasLtMatmulPreferenceSetAttribute",
      "cublasLtMatmulAlgoGetHeuristic",        "cublasLtMatmul"};
  std::map<std::string, int> counts;
  {
    World world;
    check_product(p);
    for (const char* f : functions) counts[f] = world.lt().calls(f);
  }
  constexpr int kInternalError = 14;
  int sites = 0;
  for (const auto& [function, count] : counts)
    for (int nth = 0; nth < count; ++nth, ++sites) {
      World world;
      const Operands o(p, "cuda:0");
      const auto allocated = memory_stats("cuda:0").allocated;
      world.lt().fail(function.c_str(), nth, kInternalError);
      const std::string message = error_of([&] { multiply(p, o, "cuda:0"); });
      CAPTURE(function, nth);
      CHECK_THAT(message, ContainsSubstring("[cuBLASLt] " + function.substr(0, function.find('_')) +
                                            " failed with CUBLAS_STATUS_INTERNAL_ERROR"));
      CHECK_THAT(message, ContainsSubstring("gemm=custom"));
      CHECK(memory_stats("cuda:0").allocated == allocated);
      multiply(p, o, "cuda:0");
      check_result(p, o);
    }
  CHECK(sites > 20);
}

TEST_CASE("cublaslt: a GPU without a handle uses own kernels") {
  if (no_cublaslt()) return;
  World world(2);
  world.lt().fail("cublasLtCreate", 0, 1);
  const Product p{.m = 4, .n = 8, .k = 3};
  const Operands o(p, "cuda:0");
  multiply(p, o, "cuda:0", true);
  check_result(p, o);
  CHECK(own_calls == 1);
  CHECK_THAT(error_of([&] { multiply(p, o, "cuda:0"); }),
             ContainsSubstring("cublasLtCreate failed on GPU 0 with CUBLAS_STATUS_NOT_INITIALIZED"));
  CHECK(world.lt().calls("cublasLtCreate") == 1);
  check_product(p, "cuda:1");
  CHECK(world.lt().calls("cublasLtCreate") == 2);
}

TEST_CASE("cublaslt: each GPU has its own handle, also in threads that used another GPU last") {
  if (no_cublaslt()) return;
  World world(2);
  const Product p{.m = 4, .n = 8, .k = 3};
  const Operands first(p, "cuda:0"), second(p, "cuda:1");
  for (int round = 0; round < 2; ++round) {
    multiply(p, first, "cuda:0");
    multiply(p, second, "cuda:1");
  }
  check_result(p, first);
  check_result(p, second);
  CHECK(world.lt().live() == 2);
  CHECK(world.preferences().size() == 2);
}

TEST_CASE("cublaslt: the policy chooses, and auto measures without touching C") {
  if (no_cublaslt()) return;
  World world;
  Product p{.m = 4,
            .n = 8,
            .k = 3,
            .gap = 8,
            .bias = true,
            .accumulate = true,
            .aux = true,
            .epilogue = Epilogue::gelu_tanh};
  {
    set_kernel_policy(KernelPolicy::custom);
    const Operands o(p, "cuda:0");
    multiply(p, o, "cuda:0", true);
    check_result(p, o);
    CHECK(own_calls == 1);
    CHECK(world.products().empty());
  }
  set_kernel_policy(KernelPolicy::automatic);
  const Operands o(p, "cuda:0");
  own_calls = 0;
  multiply(p, o, "cuda:0", true);
  check_result(p, o);
  CHECK(own_calls > 1);
  CHECK(world.products().size() > 1);
  CHECK_THAT(kernel_choices(), ContainsSubstring("\tgemm\tfloat32 m~4+ n~8 k~3+ batch~1"));
  CHECK_THAT(kernel_choices(), ContainsSubstring("\ttapestry,cuBLASLt 13.0.1\t"));
  const std::size_t after = world.products().size();
  const int calls = own_calls;
  const Operands again(p, "cuda:0");
  multiply(p, again, "cuda:0", true);
  check_result(p, again);
  CHECK(world.products().size() - after + static_cast<std::size_t>(own_calls - calls) == 1);
}

TEST_CASE("small products of similar sizes share a choice, large ones do not") {
  const auto key = [](std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t lda = 0) {
    static const std::vector<float> data(64);
    GemmArgs g;
    g.m = m, g.n = n, g.k = k, g.c_row = n;
    g.a = data.data(), g.b = data.data(), g.c = const_cast<float*>(data.data());
    g.a_strides = {lda ? lda : k, 1}, g.b_strides = {n, 1};
    return kernels::cuda::choice_key(kernels::cuda::gemm_problem(DType::f32, g));
  };
  // A sequence that grows by one token: 4 to 7 times 2^e, and lines that are divisible by 8, by 4, or
  // neither.
  std::set<std::string> keys;
  for (std::int64_t n = 256; n < 512; ++n) keys.insert(key(1, n, 64));
  CHECK(keys.size() == 12);
  CHECK(key(1, 300, 64) != key(2, 300, 64));
  CHECK(key(8, 64, 64) != key(8, 64, 64, 65));
  // The weights of a model, 512 * 512 * 256 = 2^26.
  CHECK(key(512, 512, 256) != key(512, 513, 256));
  CHECK_THAT(key(512, 512, 256), ContainsSubstring("float32 m=512 n=512 k=256 lda=256 ldb=512 ldc=512"));
}

TEST_CASE("cublaslt: public operations in f16 reach it, and the profiler says so") {
  if (no_cublaslt()) return;
  if (!kernels::gemm.has(DeviceType::cuda, DType::f16)) {
    std::printf("skipped: this build has no CUDA kernels\n");
    return;
  }
  World world;
  const Tensor x = arange(6).reshape({2, 3}).to(DType::f16), y = arange(12).reshape({3, 4}).to(DType::f16);
  const profiler::Profile profile;
  const Tensor z = matmul(x.to("cuda:0"), y.to("cuda:0"));
  CHECK(values(z) == values(matmul(x.to(DType::f32), y.to(DType::f32))));
  bool named = false;
  for (const Span& span : profile.timeline().spans())
    named = named || (span.name == "gemm [cuBLASLt]" && span.row == "cuda:0");
  CHECK(named);
}

TEST_CASE("without cuBLASLt, own kernels compute, and an error says where it was searched for") {
  testing::FakeGpus gpus(1);
  set_kernel_policy(KernelPolicy::vendor);
  const Product p{.m = 4, .n = 8, .k = 3};
  const Operands o(p, "cuda:0");
  const std::string message = error_of([&] { multiply(p, o, "cuda:0"); });
  CHECK_THAT(message,
             ContainsSubstring("[gemm] there is no cuda kernel for float32; cuBLASLt would compute it"));
  CHECK_THAT(message, ContainsSubstring("convert with .to() to one of: float32, float16, bfloat16"));
  if (kernels::cuda::built_with_cublaslt())
    CHECK_THAT(message, ContainsSubstring("cannot be used here: the devices are not those of CUDA"));
  kernels::reset_policy();
}
