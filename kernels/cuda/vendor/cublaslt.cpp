#include "tapestry/kernels/cuda/vendor/cublaslt.h"

#if !defined(TAPESTRY_HAS_CUBLASLT)

namespace tapestry::kernels::cuda {

CublasLtOffer cublaslt_offer(const LaunchContext&, const GemmArgs&, const GemmProblem&, const std::string&) {
  return {.why_not = "Tapestry was built without the header cublasLt.h"};
}
void cublaslt_run(const LaunchContext&, const GemmArgs&, const CublasLtPlan&, int) {}
void use_cublaslt_library(const ::tapestry::cuda::OpenLibrary*) {}
bool built_with_cublaslt() { return false; }

}  // namespace tapestry::kernels::cuda

#else

#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "tapestry/core/cuda/device.h"
#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/vendor/cublaslt_functions.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

namespace tc = ::tapestry::cuda;

CublasLtFunctions::CublasLtFunctions(const tc::OpenLibrary& library) {
#define TAPESTRY_LOAD(name) name = library.function<decltype(::name)>(#name);
  TAPESTRY_CUBLASLT_FUNCTIONS(TAPESTRY_LOAD)
#undef TAPESTRY_LOAD
}

class CublasLtPlan {
 public:
  const CublasLtFunctions* functions = nullptr;
  cublasLtHandle_t handle = nullptr;
  int gpu = 0;
  GemmProblem problem;
  std::string key;
  // Descriptors are plain data, which each call copies before it sets its addresses.
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t left{}, right{}, out{};
  std::array<cublasLtMatmulHeuristicResult_t, kMostAlgorithms> algorithms{};
  int algorithm_count = 0;
};

namespace {

/// A call's name and arguments for the message of a failure.
[[noreturn]] void refused(const CublasLtFunctions& f, cublasStatus_t status, const char* call,
                          const std::string& key) {
  fail<CudaError>("[cuBLASLt] ", call, " failed with ", f.cublasLtGetStatusName(status), " (",
                  f.cublasLtGetStatusString(status), ") for the product ", key,
                  "; TAPESTRY_KERNELS=auto,gemm=custom computes products without this library");
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CUDA_R_64F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}
cudaDataType_t scale_type(DType dtype) { return dtype == DType::f64 ? CUDA_R_64F : CUDA_R_32F; }
cublasComputeType_t compute_type(const GemmProblem& p) {
  if (p.dtype == DType::f64) return CUBLAS_COMPUTE_64F;
  return p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// How partial sums of a split k may be added. The slot's contract rounds once. INPLACE and OUTPUT_TYPE store
/// partial sums in the type of C, which would round f16 and bf16 once for each part.
std::uint32_t reduction_schemes(DType dtype) {
  const bool is_16_bit = dtype == DType::f16 || dtype == DType::bf16;
  return is_16_bit ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                   : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_INPLACE;
}

/// The most workspace that an algorithm may need, as in PyTorch: 32 MiB on Hopper and later GPUs, else 4 MiB.
std::uint64_t workspace_limit(Device device) {
  return std::uint64_t{tc::device_properties(device).major >= 9 ? 32U : 4U} << 20;
}

/// The epilogue, or nothing if cuBLASLt has none with the slot's contract; then `why_not` says why.
std::optional<cublasLtEpilogue_t> epilogue_of(const GemmProblem& p, std::string& why_not) {
  const auto with_bias = [&](cublasLtEpilogue_t without, cublasLtEpilogue_t with) {
    return p.bias ? with : without;
  };
  // Our A is cuBLASLt's right matrix, and its BGRADB sums the columns of that over k.
  if (p.row_sums) {
    if (p.epilogue == Epilogue::none && !p.bias) return CUBLASLT_EPILOGUE_BGRADB;
    why_not = "cuBLASLt sums the rows of A only in a product without a bias and an activation";
    return std::nullopt;
  }
  switch (p.epilogue) {
    case Epilogue::none:
      return with_bias(CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS);
    case Epilogue::relu:
      if (!p.aux) return with_bias(CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS);
      why_not = "cuBLASLt stores the signs of ReLU's argument, and the slot stores the argument";
      return std::nullopt;
    case Epilogue::relu_backward:
      why_not = "cuBLASLt reads the signs of ReLU's argument, and the slot has the argument";
      return std::nullopt;
    case Epilogue::gelu:
    case Epilogue::gelu_backward:
      why_not = "cuBLASLt has the tanh approximation of GELU only";
      return std::nullopt;
    case Epilogue::gelu_tanh:
    case Epilogue::gelu_tanh_backward:
      break;
  }
  if (p.aux && (p.ldc % 8 != 0 || p.batch.c % 8 != 0)) {
    why_not = "cuBLASLt stores GELU's argument in rows that are multiples of 8 elements apart only";
    return std::nullopt;
  }
  if (p.epilogue == Epilogue::gelu_tanh)
    return p.aux ? with_bias(CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
                 : with_bias(CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS);
  if (!p.bias) return CUBLASLT_EPILOGUE_DGELU;
  why_not = "cuBLASLt has no gradient of GELU with a bias";
  return std::nullopt;
}

/// Sets attributes of descriptors, and throws if the library refuses one.
class Describe {
 public:
  Describe(const CublasLtFunctions& f, const std::string& key) : f_(f), key_(key) {}
  void ok(cublasStatus_t status, const char* call) const {
    if (status != CUBLAS_STATUS_SUCCESS) refused(f_, status, call, key_);
  }
  template <class T>
  void set(cublasLtMatmulDescOpaque_t& d, cublasLtMatmulDescAttributes_t attribute, T value) const {
    ok(f_.cublasLtMatmulDescSetAttribute(&d, attribute, &value, sizeof value),
       "cublasLtMatmulDescSetAttribute");
  }
  template <class T>
  void set(cublasLtMatrixLayoutOpaque_t& d, cublasLtMatrixLayoutAttribute_t attribute, T value) const {
    ok(f_.cublasLtMatrixLayoutSetAttribute(&d, attribute, &value, sizeof value),
       "cublasLtMatrixLayoutSetAttribute");
  }
  template <class T>
  void set(cublasLtMatmulPreferenceOpaque_t& d, cublasLtMatmulPreferenceAttributes_t attribute,
           T value) const {
    ok(f_.cublasLtMatmulPreferenceSetAttribute(&d, attribute, &value, sizeof value),
       "cublasLtMatmulPreferenceSetAttribute");
  }
  /// A matrix of `rows` contiguous elements in each of `cols` lines.
  cublasLtMatrixLayoutOpaque_t layout(const GemmProblem& p, std::int64_t rows, std::int64_t cols,
                                      std::int64_t ld, std::int64_t batch_stride) const {
    cublasLtMatrixLayoutOpaque_t d{};
    ok(f_.cublasLtMatrixLayoutInit_internal(&d, sizeof d, type_of(p.dtype), static_cast<std::uint64_t>(rows),
                                            static_cast<std::uint64_t>(cols), ld),
       "cublasLtMatrixLayoutInit");
    if (p.batch.size > 1) {
      set(d, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(p.batch.size));
      set(d, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride);
    }
    return d;
  }
  void set_addresses(cublasLtMatmulDescOpaque_t& d, const GemmProblem& p, const GemmArgs& g,
                     const void* aux) const {
    if (p.bias) set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias.address());
    if (p.row_sums) set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(g.row_sums.address()));
    if (p.aux) set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  }

 private:
  const CublasLtFunctions& f_;
  const std::string& key_;
};

/// Describes the problem: cuBLASLt's left matrix is our B, its right matrix our A (gemm_problem.h).
void describe(CublasLtPlan& plan, const Describe& describe_, cublasLtEpilogue_t epilogue) {
  const GemmProblem& p = plan.problem;
  const CublasLtFunctions& f = *plan.functions;
  describe_.ok(f.cublasLtMatmulDescInit_internal(&plan.operation, sizeof plan.operation, compute_type(p),
                                                 scale_type(p.dtype)),
               "cublasLtMatmulDescInit");
  const std::int32_t plain = CUBLAS_OP_N, transposed = CUBLAS_OP_T;
  describe_.set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, p.b_along_k ? transposed : plain);
  describe_.set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, p.a_along_k ? plain : transposed);
  describe_.set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue));
  if (p.aux) {
    describe_.set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ldc);
    if (p.batch.size > 1)
      describe_.set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, p.batch.c);
  }
  plan.left = describe_.layout(p, p.b_along_k ? p.k : p.n, p.b_along_k ? p.n : p.k, p.ldb, p.batch.b);
  plan.right = describe_.layout(p, p.a_along_k ? p.k : p.m, p.a_along_k ? p.m : p.k, p.lda, p.batch.a);
  plan.out = describe_.layout(p, p.n, p.m, p.ldc, p.batch.c);
}

/// Asks for algorithms. Returns false if there are none.
bool ask_heuristics(CublasLtPlan& plan, const Describe& describe_, const GemmArgs& g, Device device) {
  const GemmProblem& p = plan.problem;
  const CublasLtFunctions& f = *plan.functions;
  cublasLtMatmulPreferenceOpaque_t wanted{};
  describe_.ok(f.cublasLtMatmulPreferenceInit_internal(&wanted, sizeof wanted),
               "cublasLtMatmulPreferenceInit");
  describe_.set(wanted, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_limit(device));
  describe_.set(wanted, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction_schemes(p.dtype));
  // Without these, algorithms assume multiples of 256 bytes.
  describe_.set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(p.b_align));
  describe_.set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(p.a_align));
  describe_.set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(p.c_align));
  describe_.set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(p.c_align));
  // The heuristics take the alignments of bias and aux from their addresses.
  cublasLtMatmulDescOpaque_t operation = plan.operation;
  describe_.set_addresses(operation, p, g, g.aux.address());
  const cublasStatus_t status = f.cublasLtMatmulAlgoGetHeuristic(
      plan.handle, &operation, &plan.left, &plan.right, &plan.out, &plan.out, &wanted, kMostAlgorithms,
      plan.algorithms.data(), &plan.algorithm_count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  describe_.ok(status, "cublasLtMatmulAlgoGetHeuristic");
  int good = 0;  // keeps the algorithms that the heuristics have not refused themselves
  for (int i = 0; i < plan.algorithm_count; ++i) {
    const auto& result = plan.algorithms[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) plan.algorithms[static_cast<std::size_t>(good++)] = result;
  }
  plan.algorithm_count = good;
  return good > 0;
}

/// One opened library: its functions, a handle for each GPU, and the offers for known problems. Thread-safe.
class Library {
 public:
  explicit Library(const tc::OpenLibrary& library) : version_(library.about().version), functions_(library) {}
  ~Library() {
    for (const auto& [gpu, handle] : handles_) static_cast<void>(functions_.cublasLtDestroy(handle));
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  CublasLtOffer offer(const LaunchContext& context, const GemmArgs& g, const GemmProblem& problem,
                      const std::string& key) {
    auto& devices = tc::devices();
    const int gpu = devices.at(context.device).gpu();
    const std::lock_guard lock(mutex_);
    auto& offers = offers_[gpu];
    if (const auto found = offers.find(key); found != offers.end()) return found->second;
    if (offers.size() >= kMostOffers) offers.clear();
    devices.runtime().choose(gpu);  // the heuristics and a new handle belong to the thread's current GPU
    return offers.emplace(key, new_offer(context, g, problem, key, gpu)).first->second;
  }

 private:
  static constexpr std::size_t kMostOffers = 20000;

  CublasLtOffer new_offer(const LaunchContext& context, const GemmArgs& g, const GemmProblem& p,
                          const std::string& key, int gpu) {
    constexpr std::int64_t kMostCalls = 64, kMost32 = 0x7fffffff;
    CublasLtOffer offer{.version = version_};
    if (p.k == 0) offer.why_not = "cuBLASLt does not compute empty sums";
    else if (p.batch.size > kMost32) offer.why_not = "cuBLASLt counts the products of a batch in 31 bits";
    else if (p.call_count() > kMostCalls)
      offer.why_not = "the strides of the batch would need more than 64 calls of cuBLASLt";
    if (!offer.why_not.empty()) return offer;
    const auto epilogue = epilogue_of(p, offer.why_not);
    if (!epilogue) return offer;
    auto plan = std::make_shared<CublasLtPlan>();
    plan->functions = &functions_;
    plan->handle = handle(gpu, offer.why_not);
    if (!plan->handle) return offer;
    plan->gpu = gpu;
    plan->problem = p;
    plan->key = key;
    const Describe describe_(functions_, plan->key);
    describe(*plan, describe_, *epilogue);
    if (!ask_heuristics(*plan, describe_, g, context.device)) {
      offer.why_not = "cuBLASLt has no algorithm for this product: " + key;
      return offer;
    }
    offer.algorithms = plan->algorithm_count;
    offer.plan = std::move(plan);
    return offer;
  }

  /// The GPU's handle, or null if the library refuses the GPU, which it does for a driver that is too old.
  /// Then own kernels compute everything.
  cublasLtHandle_t handle(int gpu, std::string& why_not) {
    const auto [found, is_new] = refusals_.try_emplace(gpu);
    if (is_new) {
      cublasLtHandle_t made = nullptr;
      const cublasStatus_t status = functions_.cublasLtCreate(&made);
      if (status == CUBLAS_STATUS_SUCCESS) {
        handles_[gpu] = made;
      } else {
        found->second =
            concat({"cublasLtCreate failed on GPU ", gpu, " with ", functions_.cublasLtGetStatusName(status),
                    " (", functions_.cublasLtGetStatusString(status), ")"});
        std::fprintf(stderr, "[cuBLASLt] warning: %s; matrix products use Tapestry's own kernels\n",
                     found->second.c_str());
      }
    }
    why_not = found->second;
    return why_not.empty() ? handles_.at(gpu) : nullptr;
  }

  const std::string version_;
  const CublasLtFunctions functions_;
  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<int, std::string> refusals_;  // by GPU; empty if it has a handle
  std::map<int, std::unordered_map<std::string, CublasLtOffer> > offers_;
};

/// A library, or the reason why there is none.
struct Found {
  std::unique_ptr<Library> library;
  std::string why_not;

  explicit Found(const tc::OpenLibrary& opened) {
    if (!opened.about().available()) {
      why_not = "cuBLASLt is not available: " + opened.about().error;
      return;
    }
    try {
      library = std::make_unique<Library>(opened);
    } catch (const DeviceError& e) {
      why_not = e.what();
    }
  }
};

std::atomic<Found*> replaced{nullptr};

const Found& found_library() {
  if (const Found* const other = replaced.load(std::memory_order_acquire)) return *other;
  static const Found& one = *new Found(tc::cublaslt_library());
  return one;
}

}  // namespace

bool built_with_cublaslt() { return true; }

void use_cublaslt_library(const tc::OpenLibrary* library) {
  std::unique_ptr<Found> next;
  if (library) {
    next = std::make_unique<Found>(*library);
    check<DeviceError>(next->library != nullptr, next->why_not);
  }
  const std::unique_ptr<Found> last(replaced.exchange(next.release()));
}

CublasLtOffer cublaslt_offer(const LaunchContext& context, const GemmArgs& g, const GemmProblem& problem,
                             const std::string& key) {
  // Tests have fake GPUs, whose streams and memory a real cuBLASLt could not use.
  if (!replaced.load(std::memory_order_acquire) && &tc::devices().runtime() != tc::cuda_runtime())
    return {.why_not = "the devices are not those of CUDA"};
  const Found& found = found_library();
  if (!found.library) return {.why_not = found.why_not};
  return found.library->offer(context, g, problem, key);
}

void cublaslt_run(const LaunchContext& context, const GemmArgs& g, const CublasLtPlan& plan, int algorithm) {
  const GemmProblem& p = plan.problem;
  const CublasLtFunctions& f = *plan.functions;
  const Describe describe_(f, plan.key);
  tc::devices().runtime().choose(plan.gpu);
  const auto& chosen = plan.algorithms[static_cast<std::size_t>(algorithm)];
  // The pool gives the block back to this stream alone until it has been read, so that each stream has its
  // own workspace.
  const Scratch<char> workspace(context.device, static_cast<std::int64_t>(chosen.workspaceSize));
  const float one_f32 = 1, beta_f32 = p.accumulate ? 1 : 0;
  const double one_f64 = 1, beta_f64 = beta_f32;
  const bool is_f64 = p.dtype == DType::f64;
  const void* const alpha = is_f64 ? static_cast<const void*>(&one_f64) : &one_f32;
  const void* const beta = is_f64 ? static_cast<const void*>(&beta_f64) : &beta_f32;

  const auto element = static_cast<std::int64_t>(dtype_size(p.dtype));
  const auto at = [&](const void* data, std::int64_t offset) {
    return static_cast<const char*>(data) + offset * element;
  };
  const std::int64_t calls = p.call_count();
  for (std::int64_t i = 0; i < calls; ++i) {
    std::int64_t rest = i, a = 0, b = 0, c = 0;
    for (const GemmBatch& dim : p.calls) {
      const std::int64_t index = rest % dim.size;
      rest /= dim.size;
      a += index * dim.a, b += index * dim.b, c += index * dim.c;
    }
    cublasLtMatmulDescOpaque_t operation = plan.operation;
    describe_.set_addresses(operation, p, g, p.aux ? at(g.aux.address(), c) : nullptr);
    void* const out = const_cast<char*>(at(g.c.address(), c));
    const cublasLtMatrixLayout_t left = const_cast<cublasLtMatrixLayout_t>(&plan.left),
                                 right = const_cast<cublasLtMatrixLayout_t>(&plan.right),
                                 layout = const_cast<cublasLtMatrixLayout_t>(&plan.out);
    describe_.ok(
        f.cublasLtMatmul(plan.handle, &operation, alpha, at(g.b.address(), b), left, at(g.a.address(), a),
                         right, beta, out, layout, out, layout, &chosen.algo, workspace.data(),
                         chosen.workspaceSize, static_cast<cudaStream_t>(context.stream)),
        "cublasLtMatmul");
  }
}

}  // namespace tapestry::kernels::cuda

#endif
