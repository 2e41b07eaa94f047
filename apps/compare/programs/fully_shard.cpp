#include <cstdio>

#include "tapestry/tapestry.h"

using namespace tapestry;

struct Net : nn::Module {
  nn::Sequential& part1 = add<nn::Sequential>("part1", nn::Flatten::Options{},
                                              nn::Linear::Options{.in_features = 3072, .out_features = 64},
                                              nn::ReLU::Options{});
  nn::Linear& part2 = add<nn::Linear>("part2", {.in_features = 64, .out_features = 10});
  Tensor forward(const Tensor& x) override {
    return part2(part1(x));
  }
};

int main() {
  const auto world = distributed::init_process_group();
  manual_seed(1);
  Net net;
  distributed::fully_shard(net.part1, {.group = world});
  distributed::fully_shard(net, {.group = world});
  optim::SGD optimizer(net.parameters(), {.lr = 0.05});
  const data::RandomDataset images({.size = 256, .num_classes = 10});
  const auto sampler = std::make_shared<data::DistributedSampler>(
      images.size(), world->rank(), world->size(), data::DistributedSampler::Options{.shuffle = false});
  data::DataLoader loader(images, {.batch_size = 32 / world->size(), .sampler = sampler});
  for (const auto& [x, y] : loader) {
    optimizer.zero_grad();
    const Tensor loss = cross_entropy(net(x), y);
    loss.backward();
    optimizer.step();
    std::printf("loss %.6f\n", loss.item());
  }
  return 0;
}
