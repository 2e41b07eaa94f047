// Tapestry's side of tools/bench_cpu. PyTorch's side (cpu_steps.py) runs the same benchmarks and takes turns
// with this program.
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tapestry/tools/bench/models.h"
#include "tapestry/tools/bench/turns.h"

using namespace tapestry;
using bench::Cnn;
using bench::Gpt;

namespace {

struct Demo : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 3, .out_channels = 16, .kernel_size = 3});
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 30 * 30 * 16, .out_features = 10});
  Tensor forward(const Tensor& x) override { return fc(conv(x).flatten(1)).softmax(1); }
};

// A whole training step: zero_grad, forward, cross-entropy, backward, SGD with momentum.
std::function<void()> training_step(std::shared_ptr<nn::Module> model, const Tensor& x) {
  auto optimizer =
      std::make_shared<optim::SGD>(model->parameters(), optim::SGD::Options{.lr = 0.01, .momentum = 0.9});
  const Tensor target = randint(0, 10, {x.size(0)});
  return [=] {
    optimizer->zero_grad();
    cross_entropy((*model)(x), target).backward();
    optimizer->step();
  };
}

// A training step of the small GPT with AdamW.
std::function<void()> language_step() {
  const auto model = std::make_shared<Gpt>();
  const auto optimizer =
      std::make_shared<optim::AdamW>(model->parameters(), optim::AdamW::Options{.lr = 1e-3});
  constexpr std::int64_t kBatch = 16;
  const Tensor ids = randint(0, Gpt::kWords, {kBatch, Gpt::kLength}),
               next = randint(0, Gpt::kWords, {kBatch * Gpt::kLength});
  return [=] {
    optimizer->zero_grad();
    cross_entropy((*model)(ids), next).backward();
    optimizer->step();
  };
}

// 1000 operations on one element, so the time in milliseconds is the time per operation in microseconds.
void thousand(const std::function<void()>& op) {
  for (int i = 0; i < 1000; ++i) op();
}

}  // namespace

int main(int argc, char** argv) {
  set_num_threads(argc > 1 ? std::stoi(argv[1]) : 2);
  manual_seed(0);
  const Tensor a = randn({1}), b = randn({1}), w = randn({1}).set_requires_grad();
  std::map<std::string, std::function<void()>> work = {
      {"demo", training_step(std::make_shared<Demo>(), randn({64, 3, 32, 32}))},
      {"cnn", training_step(std::make_shared<Cnn>(), randn({128, 1, 28, 28}))},
      {"gpt", language_step()},
      {"op_forward", [&] { thousand([&] { a.mul(b); }); }},
      {"op_backward",
       [&] {
         Tensor y = w;
         for (int i = 0; i < 1000; ++i) y = y.mul(b);
         y.backward();
         w.zero_grad();
       }},
  };
  return bench::take_turns(work);
}
