// The smallest distributed data parallel training: random images, a convolution and a linear layer. Every
// rank runs the whole program. Numbered comments mark the lines that make the ranks one job.
//
//   ddp_demo                                          one rank
//   tapestry-run --nproc-per-node 2 ddp_demo --batchSize 64 --epochs 10
//
// The loss converges to ln(e + 9) - 1 = 1.46115 and not to 0, because the program has a common mistake that
// is kept for comparison with the original demo: the model ends in a softmax, and cross_entropy applies
// another one, since it expects logits. The best possible output is the probabilities (1, 0, ..., 0), which
// give exactly this loss if they are taken for logits. In your own model, leave the softmax out: with `return
// fc(conv2d(x).flatten(1))` the loss goes to 0.
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
  // 1. Select the visible GPUs, before anything uses CUDA.
  if (!o.gpu_id.empty()) setenv("CUDA_VISIBLE_DEVICES", o.gpu_id.c_str(), 1);

  // 2. Join the other ranks. The rendezvous uses the environment variables that the launcher sets.
  const std::shared_ptr<distributed::ProcessGroup> world = distributed::init_process_group();

  // 3. Choose a device by the local rank. Local ranks number the processes of one host from 0; ranks number
  // the processes of all hosts.
  const int gpus = device_count(DeviceType::cuda), local_rank = distributed::read_environment().local_rank;
  check(gpus == 0 || local_rank < gpus, "[ddp_demo] local rank ", local_rank,
        " has no GPU of its own, because only ", gpus,
        " are visible; start at most one rank per GPU, or list more in --gpu_id");
  const Device device = gpus > 0 ? Device(DeviceType::cuda, local_rank) : kCPU;
  if (gpus == 0) std::printf("no GPU is available: training on the CPU\n");

  Model model(o.num_classes);
  model.to(device);
  // 4. DDP broadcasts the weights of rank 0. From now on backward() averages gradients over the ranks.
  distributed::DistributedDataParallel ddp(model, {.process_group = world, .device_ids = {device}});

  // 5. Each rank loads its own part of the images, in a new order in each epoch. The batch size is per rank.
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
  apps::CommandLine line("ddp_demo", "Trains the smallest example on random images, with one or more ranks.");
  const apps::OptionRules count{.check = apps::between<std::int64_t>(1, 1'000'000'000)};
  line.add("--gpu_id", o.gpu_id, "Visible GPUs, such as 0,2; by default all. Without a GPU the CPU is used");
  line.add("--batchSize", o.batch_size, "Images per step on each rank", count);
  line.add("--epochs", o.epochs, "Passes over the images", {.check = apps::between(1, 1'000'000)});
  line.add("--dataset-size", o.dataset_size, "Number of images, over all ranks", count);
  line.add("--num-classes", o.num_classes, "Number of classes; every label is the first class", count);
  return line.run(argc, argv, [&] { return train(o); });
}
