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
  const int gpus = device_count(DeviceType::cuda), cpus = device_count(DeviceType::cpu);
  const int local_rank = distributed::read_environment().local_rank;
  const Device device =
      gpus > 0 ? Device(DeviceType::cuda, local_rank) : Device(DeviceType::cpu, local_rank % cpus);
  manual_seed(1);
  Net net;
  net.to(device);
  distributed::DistributedDataParallel ddp(net, {.process_group = world});
  optim::SGD optimizer(net.parameters(), {.lr = 0.05});
  const data::RandomDataset images({.size = 256, .num_classes = 10});
  const auto sampler = std::make_shared<data::DistributedSampler>(
      images.size(), world->rank(), world->size(), data::DistributedSampler::Options{.shuffle = false});
  data::DataLoader loader(images, {.batch_size = 32 / world->size(), .sampler = sampler});
  for (const auto& [x, y] : loader) {
    optimizer.zero_grad();
    const Tensor batch = x.to(device), labels = y.to(device);
    if (optimizer.steps() == 0)
      std::printf("data on %s, model on %s\n", batch.device().str().c_str(),
                  net.part2.weight->device().str().c_str());
    const Tensor loss = cross_entropy(ddp(batch), labels);
    loss.backward();
    optimizer.step();
    distributed::GlobalMean mean;
    mean.add(loss.item());
    const double mean_loss = mean.reduce(*world);  // every rank calls it
    if (world->rank() == 0) std::printf("loss %.6f\n", mean_loss);
  }
  return 0;
}
