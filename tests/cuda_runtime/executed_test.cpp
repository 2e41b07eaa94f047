// Operations of the library on GPUs whose kernels run: what nvcc made of them is executed by the PTX machine,
// launched by launch.cu through runtime.cpp. The results are compared with the CPU's kernels. This
// needs a build with CUDA and with the shared CUDA runtime.
#if TAPESTRY_LIBRARY_HAS_CUDA
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "tapestry/tapestry.h"
#include "tapestry/tools/ptx/runtime/settings.h"
#include "tests/cuda_runtime/gpus.h"

namespace {

/// The largest difference of f's results on the CPU and on a GPU, in both orders of threads.
double difference(const std::vector<Tensor>& inputs,
                  const std::function<Tensor(const std::vector<Tensor>&)>& f, bool check_shared = true) {
  double largest = 0;
  for (const std::uint64_t seed : {0, 1}) {
    const Gpus gpus(1);
    stand_in::Settings settings;
    settings.seed = seed;
    settings.shared = check_shared;
    stand_in::execute(settings);
    std::vector<Tensor> moved;
    for (const Tensor& x : inputs) moved.push_back(x.to(kFirst));
    const Tensor expected = f(inputs).to_float(), found = f(moved).cpu().to_float();
    std::uint64_t instructions = 0;
    for (const auto& [kernel, ran] : stand_in::executed()) instructions += ran.thread_instructions;
    CHECK(instructions > 1000);
    REQUIRE(found.shape() == expected.shape());
    const std::vector<float> a = expected.to_vector<float>(), b = found.to_vector<float>();
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      largest = d > largest || d != d ? d : largest;
    }
  }
  return largest;
}

}  // namespace

TEST_CASE("the library's compiled kernels give the CPU's results") {
  manual_seed(3);
  const Tensor x = randn({33, 130}), y = randn({33, 130});
  CHECK(difference({x, y}, [](const auto& t) { return t[0] + t[1]; }) == 0);
  CHECK(difference({x}, [](const auto& t) { return softmax(t[0], 1); }) < 1e-6);
  CHECK(difference({x}, [](const auto& t) { return t[0].sum(); }) < 1e-3);
  CHECK(difference({x, randn({130}), randn({130})},
                   [](const auto& t) { return layer_norm(t[0], {130}, t[1], t[2]); }) < 1e-5);
}

TEST_CASE("matrix products on tensor cores give the CPU's results") {
  manual_seed(4);
  const auto product = [](const auto& t) { return matmul(t[0], t[1]); };
  const auto operand = [](std::int64_t rows, std::int64_t columns) {
    return randn({rows, columns}).to(DType::bf16);
  };
  // The results are sums of 64 products of about 1, below 64, where a unit of bf16 is 1/4. Both sides round
  // once.
  CHECK(difference({operand(128, 64), operand(64, 128)}, product) <= 0.25);
  // The last tiles are filled in part, and ldmatrix loads all of them.
  CHECK(difference({operand(70, 64), operand(64, 72)}, product, false) <= 0.25);
}

TEST_CASE("50 replayed steps of compiled kernels equal 50 eager ones bit for bit") {
  // A linear layer, attention with dropout of its weights, dropout, cross-entropy, clipping, SGD and a
  // schedule.
  const auto train = [](bool captured) {
    const Gpus gpus(1);
    stand_in::execute({});
    manual_seed(5);
    nn::Linear in({.in_features = 4, .out_features = 12}), out({.in_features = 4, .out_features = 3});
    std::vector<nn::Parameter> parameters = in.parameters();
    for (const nn::Parameter& p : out.parameters()) parameters.push_back(p);
    in.to(kFirst), out.to(kFirst);
    const Tensor x = randn({5, 4}, kCPU).to(kFirst), target = (arange(5) % 3).to(kFirst);
    optim::SGD optimizer(parameters, {.lr = 0.1, .momentum = 0.9});
    optim::OneCycleLR schedule(optimizer, {.max_lr = 0.1, .total_steps = 60});
    Tensor loss;
    const auto work = [&] {
      optimizer.zero_grad();
      const std::vector<Tensor> t = chunk(in(x).reshape({1, 1, 5, 12}), 3, 3);
      const Tensor y = scaled_dot_product_attention(t[0], t[1], t[2], {.dropout_p = 0.3});
      loss = cross_entropy(out(dropout(y.reshape({5, 4}), 0.2, true)), target);
      loss.backward();
      nn::clip_grad_norm_(parameters, 0.5);
      optimizer.step();
    };
    work();
    std::optional<cuda::CapturedStep> step;
    if (captured) step.emplace(cuda::capture(work, {.warm_up = 0, .device = kFirst}));
    std::vector<float> results;
    for (int i = 0; i < 50; ++i) {
      if (step) step->replay();
      else work();
      schedule.step();
      results.push_back(static_cast<float>(loss.item()));
    }
    for (const nn::Parameter& p : parameters) {
      const std::vector<float> v = p->detach().cpu().to_vector<float>();
      results.insert(results.end(), v.begin(), v.end());
    }
    return results;
  };
  const std::vector<float> eager = train(false);
  CHECK(train(true) == eager);
  CHECK(std::isfinite(eager.back()));
  CHECK(eager[49] != eager[48]);
}
#else
#include <cstdio>

#include "tests/support/catch.h"

TEST_CASE("without CUDA or with a static CUDA runtime, the library's kernels are not executed") {
  std::printf("skipped: the library was not built with CUDA and the shared CUDA runtime\n");
}
#endif
