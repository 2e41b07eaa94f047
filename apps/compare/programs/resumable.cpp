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

int main(int argc, char** argv) {
  const std::string parallel = argc > 1 ? argv[1] : "single";
  const std::int64_t stop = argc > 2 ? std::atoll(argv[2]) : 8;
  const auto world = distributed::init_process_group();
  distributed::Strategy strategy(parallel, {.world = world, .parts = 4});
  manual_seed(1);
  Net net;
  using Tensors = std::vector<Tensor>;
  strategy.wrap(
      net, {.units = {&net.part1},
            .forward = [&](const Tensors& in) { return Tensors{net(in[0])}; },
            .loss = [](const Tensors& out, const Tensors& labels) -> distributed::Loss {
              return {cross_entropy(out[0], labels[0]), static_cast<double>(labels[0].size(0))};
            },
            .stages = [&](const std::vector<Device>& devices) {
              return std::vector<distributed::Stage>{{net.part1, devices[0]}, {net.part2, devices[1]}};
            }});
  const auto optimizer = distributed::make_optimizer<optim::SGD>(strategy, net.parameters(), {.lr = 0.05});
  const data::RandomDataset images({.size = 256, .num_classes = 10});
  data::DataLoader loader(images, {.batch_size = 32});
  distributed::Checkpointer checkpoints("five-diffs", world);
  const distributed::ShardedTraining training(&net, optimizer.get());
  nn::Progress progress = checkpoints.resume(training).value_or(nn::Progress{});
  if (progress.step > 0) loader.load_state(data::LoaderState::parse(progress.extra.at("loader")));
  for (const auto& [x, y] : loader) {
    optimizer->zero_grad();
    const auto read = [&, &x = x, &y = y](const distributed::Part& part) {
      const distributed::Samples mine = strategy.share(32, part);
      return distributed::Batch{{x.narrow(0, mine.first, mine.count)}, {y.narrow(0, mine.first, mine.count)}};
    };
    const Tensor loss = strategy.gradients(read, 32).loss;
    optimizer->step();
    ++progress.step;
    const double whole_loss = strategy.sum({loss.item()})[0];  // every rank calls it
    if (strategy.logs()) std::printf("step %d, loss %.6f\n", static_cast<int>(progress.step), whole_loss);
    if (progress.step < stop) continue;
    progress.extra["loader"] = loader.state().str();
    checkpoints.save(training, progress);
    break;
  }
  return 0;
}
