// Distributed data parallel training at its smallest: random images, a convolution, a linear layer. Every
// rank runs this program from beginning to end; what makes them one job is marked by numbers.
//
//   ddp_demo                                          a world of one
//   tapestry-run --nproc-per-node 2 ddp_demo --batchSize 64 --epochs 10
//
// The loss ends at ln(e + 9) - 1 = 1.46115 and not at 0, because of a mistake that is kept here for those who
// compare: the model ends in a softmax, and cross_entropy, which takes scores, applies another one. The best
// that the model can say is the probabilities (1, 0, ..., 0), and taken for scores they give exactly that
// loss. In a model of your own, leave the softmax out: `return fc(conv2d(x).flatten(1))`, and cross_entropy
// goes to 0.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/tapestry.h"

using namespace tapestry;

namespace {

struct Options {
  std::string gpu_id;
  std::int64_t batch_size = 64, dataset_size = 1024, num_classes = 10;
  int epochs = 5;
};

struct Model : nn::Module {
  explicit Model(std::int64_t num_classes)
      : fc(add<nn::Linear>("fc", {.in_features = 30 * 30 * 16, .out_features = num_classes})) {}
  nn::Conv2d& conv2d = add<nn::Conv2d>("conv2d", {.in_channels = 3, .out_channels = 16, .kernel_size = 3});
  nn::Linear& fc;
  Tensor forward(const Tensor& x) override { return fc(conv2d(x).flatten(1)).softmax(1); }
};

int train(const Options& o) {
  // 1. Which GPUs this program may see: said before anything asks for one.
  if (!o.gpu_id.empty()) setenv("CUDA_VISIBLE_DEVICES", o.gpu_id.c_str(), 1);

  // 2. Meet the other ranks. The launcher's variables say who and where they are.
  const std::shared_ptr<distributed::ProcessGroup> world = distributed::init_process_group();

  // 3. A device for each rank of this host: the local rank counts them, the rank counts those of all hosts.
  const int gpus = device_count(DeviceType::cuda), local_rank = distributed::read_environment().local_rank;
  check(gpus == 0 || local_rank < gpus, "[ddp_demo] local rank ", local_rank,
        " has no GPU of its own: ", gpus, " can be seen; start at most so many ranks, or give --gpu_id more");
  const Device device = gpus > 0 ? Device(DeviceType::cuda, local_rank) : kCPU;
  if (gpus == 0) std::printf("no GPU can be used: training on the CPU\n");

  Model model(o.num_classes);
  model.to(device);
  // 4. Rank 0's weights become everybody's; from here on backward() averages gradients over the ranks.
  distributed::DistributedDataParallel ddp(model, {.process_group = world, .device_ids = {device}});

  // 5. Each rank reads its own share of the images, in an order that is new in each epoch. The batch size is
  // a rank's.
  const data::RandomDataset dataset({.size = o.dataset_size});
  const auto sampler =
      std::make_shared<data::DistributedSampler>(dataset.size(), world->rank(), world->size());
  data::DataLoader loader(dataset, {.batch_size = o.batch_size, .sampler = sampler});

  optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int epoch = 0; epoch < o.epochs; ++epoch) {
    int step = 0;
    for (const auto& [batch, targets] : loader) {
      const Tensor images = batch.to(device), labels = targets.to(device);
      const Tensor preds = ddp(images);
      if (step == 0)
        std::printf("data: %s, model: %s\n", images.device().str().c_str(),
                    model.fc.weight->device().str().c_str());
      const Tensor loss = cross_entropy(preds, labels);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      std::printf("Step: %d, Loss: %.16f\n", step++, loss.item());
    }
    std::printf("Epoch %d Finished !\n", epoch);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  apps::CommandLine line("ddp_demo", "Trains the smallest example on random images, on one rank or several.");
  const apps::OptionRules count{.check = apps::between<std::int64_t>(1, 1'000'000'000)};
  line.add("--gpu_id", o.gpu_id, "GPUs to use, such as 0,2; all if not given; the CPU where there is none");
  line.add("--batchSize", o.batch_size, "Images a step, on each rank", count);
  line.add("--epochs", o.epochs, "Passes over the images", {.check = apps::between(1, 1'000'000)});
  line.add("--dataset-size", o.dataset_size, "Images, all ranks together", count);
  line.add("--num-classes", o.num_classes, "Classes; every label is the first one", count);
  return line.run(argc, argv, [&] { return train(o); });
}
