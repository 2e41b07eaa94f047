#include "tapestry/kernels/cuda/vendor/matmul.h"

#include <array>
#include <cstdint>
#include <optional>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/vendor/cublaslt.h"
#include "tapestry/kernels/policy.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {
namespace {

const ChoicePoint gemm_choice("gemm");

constexpr const char* kAlgorithms[kMostAlgorithms] = {"cuBLASLt", "cuBLASLt 2nd", "cuBLASLt 3rd"};

/// Scratch memory with the layout of C, and with its alignment, on which the choice of a kernel depends.
class ScratchLike {
 public:
  ScratchLike(Device device, const GemmArgs& g, const MutableArray& like) {
    constexpr std::uintptr_t kAlignment = 256;
    std::int64_t elements = (g.m - 1) * g.c_row + g.n;
    for (int d = 0; d < g.batch_ndim; ++d) elements += (g.batch_sizes[d] - 1) * g.c_batch[d];
    memory_ = Scratch<char>(device, elements * static_cast<std::int64_t>(dtype_size(like.dtype())) +
                                        2 * std::int64_t{kAlignment});
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data());
    const auto wanted = reinterpret_cast<std::uintptr_t>(like.address()) % kAlignment;
    data_ = memory_.data() + (kAlignment - at % kAlignment) % kAlignment + wanted;
  }
  MutableArray array(DType dtype) const {
    switch (dtype) {
      case DType::f64:
        return reinterpret_cast<double*>(data_);
      case DType::f16:
        return reinterpret_cast<Half*>(data_);
      case DType::bf16:
        return reinterpret_cast<BFloat16*>(data_);
      default:
        return reinterpret_cast<float*>(data_);
    }
  }

 private:
  Scratch<char> memory_;
  char* data_;
};

/// The product with its outputs in scratch memory.
struct Trial {
  std::optional<ScratchLike> c, aux;
  GemmArgs args;

  Trial(Device device, DType dtype, const GemmArgs& g) : args(g) {
    args.c = c.emplace(device, g, g.c).array(dtype);
    if (g.aux && !is_gradient(g.epilogue)) args.aux = aux.emplace(device, g, g.aux).array(dtype);
  }
};

}  // namespace

void choose_gemm(const LaunchContext& context, DType dtype, const GemmArgs& g, OwnGemm own,
                 const SpecialGemm* special) {
  if (g.m == 0 || g.n == 0) return;
  for (int d = 0; d < g.batch_ndim; ++d)
    if (g.batch_sizes[d] == 0) return;

  std::array<Candidate, 2 + kMostAlgorithms> candidates;
  std::size_t count = 0;
  if (special) candidates[count++] = {.name = special->name, .why_not = special->why_not(dtype, g)};
  const std::size_t of_own = count;
  candidates[count++] = {.name = "tapestry", .why_not = own ? "" : "there is no own kernel for this dtype"};
  GemmProblem problem;
  CublasLtOffer offer;
  if (!own || policy_of(gemm_choice) != KernelPolicy::custom) {
    problem = gemm_problem(dtype, g);
    offer = cublaslt_offer(context, g, problem, exact_key(problem));
    check<MissingKernelError>(own || offer.plan, "[gemm] there is no cuda kernel for ", dtype,
                              "; cuBLASLt would compute it, but it cannot be used here: ", offer.why_not,
                              "; convert with .to() to one of: float32, float16, bfloat16");
    // Small products share a choice, so they must all offer the same: the best algorithm.
    const int algorithms = has_exact_choice(problem) ? std::max(offer.algorithms, 1) : 1;
    for (int i = 0; i < algorithms; ++i)
      candidates[count++] = {.name = kAlgorithms[i],
                             .version = offer.version,
                             .vendor = true,
                             .why_not = offer.plan ? std::string_view() : std::string_view(offer.why_not)};
  }
  const auto run = [&](std::size_t i, const GemmArgs& args) {
    if (i < of_own) special->run(context, args);
    else if (i == of_own) own(context, args);
    else cublaslt_run(context, args, *offer.plan, static_cast<int>(i - of_own) - 1);
  };
  std::optional<Trial> trial;
  const std::size_t i = choose(
      gemm_choice, context, std::span(candidates).first(count), [&] { return choice_key(problem); },
      [&](std::size_t c) {
        if (!trial) trial.emplace(context.device, dtype, g);
        run(c, trial->args);
      });
  run(i, g);
}

}  // namespace tapestry::kernels::cuda
