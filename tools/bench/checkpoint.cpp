// Measures how much memory checkpoint() saves and how much time it costs: training steps of a residual CNN
// and of a transformer, with and without checkpoint() in turns.
//   bench_checkpoint [ROUNDS] [THREADS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "tapestry/tapestry.h"

using namespace tapestry;

namespace {

struct ResidualBlock : nn::Module {
  nn::Conv2d& conv1 = add<nn::Conv2d>(
      "conv1", {.in_channels = 64, .out_channels = 64, .kernel_size = 3, .padding = 1, .bias = false});
  nn::BatchNorm2d& bn1 = add<nn::BatchNorm2d>("bn1", {.num_features = 64});
  nn::Conv2d& conv2 = add<nn::Conv2d>(
      "conv2", {.in_channels = 64, .out_channels = 64, .kernel_size = 3, .padding = 1, .bias = false});
  nn::BatchNorm2d& bn2 = add<nn::BatchNorm2d>("bn2", {.num_features = 64});
  Tensor forward(const Tensor& x) override { return (bn2(conv2(bn1(conv1(x)).relu())) + x).relu(); }
};

struct TransformerBlock : nn::Module {
  nn::LayerNorm& norm1 = add<nn::LayerNorm>("norm1", {.normalized_shape = {256}});
  nn::MultiheadAttention& attention = add<nn::MultiheadAttention>(
      "attention", {.embed_dim = 256, .num_heads = 4, .dropout = 0.1, .batch_first = true});
  nn::LayerNorm& norm2 = add<nn::LayerNorm>("norm2", {.normalized_shape = {256}});
  nn::Linear& up = add<nn::Linear>("up", {.in_features = 256, .out_features = 1024});
  nn::Linear& down = add<nn::Linear>("down", {.in_features = 1024, .out_features = 256});
  Tensor forward(const Tensor& x) override {
    const Tensor h = x + attention(norm1(x));
    return h + down(up(norm2(h)).gelu());
  }
};

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

template <class Block>
void measure(const char* name, int count, const Tensor& x, int rounds) {
  std::vector<std::shared_ptr<Block>> blocks;
  std::vector<nn::Parameter> parameters;
  for (int i = 0; i < count; ++i) {
    blocks.push_back(std::make_shared<Block>());
    for (const nn::Parameter& p : blocks.back()->parameters()) parameters.push_back(p);
  }
  optim::SGD optimizer(parameters, {.lr = 1e-4});
  const auto step = [&](bool checkpointed) {
    optimizer.zero_grad();
    Tensor h = x;
    for (const auto& block : blocks) h = checkpointed ? checkpoint(*block, h) : (*block)(h);
    const Tensor loss = (h * h).mean();
    h = Tensor();
    loss.backward();
    optimizer.step();
  };

  std::vector<double> times[2];
  double mib[2];
  for (int round = 0; round < rounds + 1; ++round)  // the first round is a warm-up
    for (const bool checkpointed : {false, true}) {
      optimizer.zero_grad();
      const std::int64_t before = memory_stats(kCPU).allocated;
      reset_peak_memory(kCPU);
      const auto begin = Clock::now();
      step(checkpointed);
      if (round > 0) times[checkpointed].push_back(ms_since(begin));
      mib[checkpointed] = static_cast<double>(memory_stats(kCPU).peak_allocated - before) / (1 << 20);
    }
  double median[2];
  for (const int i : {0, 1}) {
    std::sort(times[i].begin(), times[i].end());
    median[i] = times[i][times[i].size() / 2];
  }
  std::printf("| %s | %.1f | %.1f | %.2f | %.1f | %.1f | %.2f |\n", name, mib[0], mib[1], mib[1] / mib[0],
              median[0], median[1], median[1] / median[0]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::stoi(argv[1]) : 5;
  set_num_threads(argc > 2 ? std::stoi(argv[2]) : 2);
  manual_seed(0);
  std::printf("| | peak MiB | with checkpoint | ratio | step ms | with checkpoint | ratio |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  measure<ResidualBlock>("8 residual blocks, (16, 64, 32, 32)", 8, randn({16, 64, 32, 32}), rounds);
  measure<ResidualBlock>("16 residual blocks", 16, randn({16, 64, 32, 32}), rounds);
  measure<TransformerBlock>("8 transformer blocks, (8, 128, 256)", 8, randn({8, 128, 256}), rounds);
  measure<TransformerBlock>("16 transformer blocks", 16, randn({8, 128, 256}), rounds);
}
