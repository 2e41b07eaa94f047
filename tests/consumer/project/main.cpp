// A consumer's program. It has folders core/ and data/, a macro CHECK and a class Tensor of its own, and must
// still compile with the library's headers.
#define CHECK(condition) \
  if (!(condition)) return std::printf("failed: %s\n", #condition), 1

#include "tapestry/tapestry.h"

#include <cstdio>

#include "core/config.h"
#include "data/tensor.h"

namespace nn = tapestry::nn;

struct Net : nn::Module {
  nn::Linear& hidden = add<nn::Linear>("hidden", {.in_features = 4, .out_features = 16});
  nn::Linear& out = add<nn::Linear>("out", {.in_features = 16, .out_features = 3});
  tapestry::Tensor forward(const tapestry::Tensor& x) override { return out(hidden(x).relu()); }
};

int main() {
  const Tensor mine{batch_size()};
  tapestry::manual_seed(1);
  Net net;
  tapestry::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  const tapestry::Tensor x = tapestry::randn({mine.rows, 4});
  const tapestry::Tensor target = tapestry::randint(0, 3, {mine.rows});
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    const tapestry::Tensor loss = cross_entropy(net(x), target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item();
  }
  std::printf("loss %.4f -> %.4f\n", first, last);
  CHECK(last < first);
  return 0;
}
