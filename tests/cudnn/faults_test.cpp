// Failures of cuDNN's calls, with the stand-in cuDNN. Every failure must end in an exception or a reason that
// names the call, and no descriptor may stay behind. The World checks the latter.
#include <string>

#include "tapestry/kernels/cuda/vendor/cudnn_conv.h"
#include "tapestry/kernels/cuda/vendor/cudnn_session.h"
#include "tests/cudnn/world.h"
#include "tests/support/catch.h"

using namespace cudnn_test;
using namespace tapestry::kernels;
namespace cudnn = tapestry::kernels::cuda::cudnn;

namespace {

constexpr int kBadParam = 2000, kNotSupported = 3000, kInternalError = 4000, kExecutionFailed = 5000;

/// A convolution with a bias and relu on the fake GPU. `outcome` is "" if it ran, or the reason or exception.
struct Attempt {
  Conv2dShape s;
  Tensor x, weight, bias, y;
  Attempt() {
    s.n = 1, s.c = 2, s.h = 3, s.w = 3, s.k = 4, s.r = 2, s.s = 2, s.p = 2, s.q = 2, s.relu = true;
    const TensorOptions options{DType::f32, kGpu};
    x = empty({18}, options), weight = empty({32}, options), bias = empty({4}, options),
    y = empty({16}, options);
  }
  std::string outcome(const World& world, bool& threw) const {
    threw = false;
    try {
      const auto call = cudnn::call_of(Conv2dArgs{s, x, weight, bias, y}, DType::f32);
      if (std::string reason = cudnn::why_not(world.context(), call, {}); !reason.empty()) return reason;
      cudnn::run(world.context(), call, {});
      current_stream(kGpu).synchronize();
      return {};
    } catch (const Error& e) {
      threw = true;
      return e.what();
    }
  }
};

const char* const kFunctions[] = {
    "cudnnCreate",          "cudnnSetStream",           "cudnnBackendCreateDescriptor",
    "cudnnBackendFinalize", "cudnnBackendSetAttribute", "cudnnBackendGetAttribute",
    "cudnnBackendExecute"};

}  // namespace

TEST_CASE("an error of any cuDNN call reaches the caller, names the call, and leaks nothing") {
  std::map<std::string, int> calls;
  bool threw = false;
  {
    World world;
    CHECK(Attempt().outcome(world, threw) == "");
    for (const char* function : kFunctions) calls[function] = world.cudnn().calls(function);
  }
  CHECK(calls["cudnnBackendFinalize"] > 12);
  for (const auto& [function, count] : calls) {
    REQUIRE(count > 0);
    for (int nth = 0; nth < count; ++nth)
      for (const int status : {kInternalError, kNotSupported, kBadParam}) {
        if (status == kBadParam && nth % 7 != 0) continue;  // the code treats it like kNotSupported
        INFO(function << " number " << nth << " returns " << status);
        World world;
        world.cudnn().fail(function.c_str(), nth, status);
        const Attempt attempt;
        const std::string outcome = attempt.outcome(world, threw);
        // When the heuristics or the plan of one engine are refused, the next mode or engine is tried.
        const bool tries_another = outcome.empty() && status != kInternalError;
        if (!tries_another) {
          CHECK_THAT(outcome, ContainsSubstring(function));
          CHECK_THAT(outcome, ContainsSubstring("the test asked " + function + " to fail"));
          CHECK_THAT(outcome, ContainsSubstring("CUDNN_STATUS_"));
          CHECK_THAT(outcome, ContainsSubstring("; "));
        }
        // A failure is not remembered, except what cuDNN refuses and that it does not start.
        if (threw) CHECK(attempt.outcome(world, threw) == "");
      }
  }
}

TEST_CASE("a failure while running says what may have caused it") {
  World world;
  world.cudnn().fail("cudnnBackendExecute", 0, kExecutionFailed);
  bool threw = false;
  const std::string outcome = Attempt().outcome(world, threw);
  CHECK(threw);
  CHECK_THAT(outcome, ContainsSubstring(
                          "[cuDNN] cudnnBackendExecute(engine 1) failed: CUDNN_STATUS_EXECUTION_FAILED"));
  CHECK_THAT(outcome, ContainsSubstring("CUDA_LAUNCH_BLOCKING"));
}

TEST_CASE("a cuDNN that does not start is a reason, and is asked once") {
  World world;
  world.cudnn().fail("cudnnCreate", 0, 1001);
  const Attempt attempt;
  bool threw = false;
  CHECK_THAT(attempt.outcome(world, threw), ContainsSubstring("cudnnCreate"));
  CHECK_FALSE(threw);
  CHECK_THAT(attempt.outcome(world, threw), ContainsSubstring("nvidia-smi"));
  CHECK(world.cudnn().calls("cudnnCreate") == 1);
}

TEST_CASE("a library without the functions is an error that names one") {
  // The stand-in of another library has none of them.
  const tapestry::cuda::OpenLibrary none(
      {.name = "cuDNN", .version = {}, .path = {}, .error = "was not found: it is not there"}, nullptr);
  cudnn::use_library(&none);
  CHECK_THAT(cudnn::why_unusable(kGpu), ContainsSubstring("was not found"));
  CHECK_THROWS_WITH(cudnn::functions(), ContainsSubstring("was not found"));
  cudnn::use_library(nullptr);
}

TEST_CASE("the real cuDNN is not used on a fake GPU") {
  const testing::FakeGpus gpus(1);
  CHECK(cudnn::why_unusable(kGpu) != "");
  cudnn::forget_sessions();
}
