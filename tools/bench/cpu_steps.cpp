// Tapestry's side of tools/bench_cpu. PyTorch's side (cpu_steps.py) runs the same benchmarks and takes turns
// with this program.
//
//   bench_cpu_steps [THREADS]            takes turns; a work NAME_bf16 is the step NAME under autocast
//   bench_cpu_steps --roofs THREADS      prints the roofs of this machine
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tapestry/tools/bench/cpu_models.h"
#include "tapestry/tools/bench/cpu_roofs.h"
#include "tapestry/tools/bench/models.h"
#include "tapestry/tools/bench/turns.h"

using namespace tapestry;
using bench::Cnn;
using bench::Gpt;

namespace {

using Work = std::map<std::string, std::function<void()>>;

// Adds a whole training step in f32 and under autocast: zero_grad, forward, cross-entropy, backward and the
// optimizer's step.
template <class Model, class Optimizer>
void add_step(Work& work, const std::string& name, const Tensor& x, const Tensor& target,
              const typename Optimizer::Options& options) {
  for (const bool low : {false, true}) {
    const auto model = std::make_shared<Model>();
    const auto optimizer = std::make_shared<Optimizer>(model->parameters(), options);
    work[low ? name + "_bf16" : name] = [=] {
      optimizer->zero_grad();
      Tensor loss;
      {
        const AutocastGuard autocast(DType::bf16, {.enabled = low});
        loss = cross_entropy((*model)(x), target);
      }
      loss.backward();
      optimizer->step();
    };
  }
}
template <class Model>
void add_sgd(Work& work, const std::string& name, const Tensor& x, std::int64_t batch) {
  add_step<Model, optim::SGD>(work, name, x, randint(0, 10, {batch}), {.lr = 0.01, .momentum = 0.9});
}

// 1000 operations on one element, so the time in milliseconds is the time per operation in microseconds.
void thousand(const std::function<void()>& op) {
  for (int i = 0; i < 1000; ++i) op();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--roofs") {
    const bench::Roofs r = bench::measure_roofs(std::stoi(argv[2]));
    std::printf("{\"f32\": %.1f, \"bf16\": %.1f, \"amx\": %.1f, \"copy\": %.1f, \"ghz\": %.2f}\n", r.f32,
                r.bf16, r.amx, r.copy, r.ghz);
    return 0;
  }
  set_num_threads(argc > 1 ? std::stoi(argv[1]) : 2);
  manual_seed(0);
  const Tensor a = randn({1}), b = randn({1}), w = randn({1}).set_requires_grad();
  Work work = {
      {"op_forward", [&] { thousand([&] { a.mul(b); }); }},
      {"op_backward",
       [&] {
         Tensor y = w;
         for (int i = 0; i < 1000; ++i) y = y.mul(b);
         y.backward();
         w.zero_grad();
       }},
  };
  constexpr std::int64_t kTexts = 16;
  add_sgd<bench::Demo>(work, "demo", randn({64, 3, 32, 32}), 64);
  add_sgd<Cnn>(work, "cnn", randn({128, 1, 28, 28}), 128);
  add_step<Gpt, optim::AdamW>(work, "gpt", randint(0, Gpt::kWords, {kTexts, Gpt::kLength}),
                              randint(0, Gpt::kWords, {kTexts * Gpt::kLength}), {.lr = 1e-3});
  add_sgd<bench::Lstm>(work, "lstm", randn({64, 32, 256}), 32);
  add_sgd<bench::ResNet18>(work, "resnet18", randn({32, 3, 64, 64}), 32);
  add_sgd<bench::Depthwise>(work, "depthwise", randn({64, 3, 32, 32}), 64);
  return bench::take_turns(work);
}
