// Model parallelism: the first half of the model is on one device, the second half on another. Backward and
// the optimizer need no changes for several devices.
//
//   model_parallel                              cuda:0 and cuda:1, or two logical CPU devices
//   model_parallel --devices cpu:0 cpu:0        all on one device, with the same losses
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/apps/model_parallel/large_model.h"

using namespace tapestry;

namespace {

struct Options {
  std::vector<std::string> devices;
  std::int64_t batch_size = 64, image_size = 224;
  int steps = 5;
  std::uint64_t seed = 1;
  std::string precision = "f32";
};

std::vector<Device> choose_devices(const Options& o) {
  std::vector<Device> devices(o.devices.begin(), o.devices.end());
  if (devices.empty() && device_count(DeviceType::cuda) >= 2) devices = {"cuda:0", "cuda:1"};
  if (devices.empty()) devices = {"cpu:0", "cpu:1"};
  // The number of logical CPU devices must be set before the first use of a device.
  int needed = 1;
  for (const Device d : devices)
    if (d.is_cpu()) needed = std::max(needed, d.index + 1);
  if (needed > 1) setenv("TAPESTRY_LOGICAL_DEVICES", std::to_string(needed).c_str(), 0);
  return devices;
}

std::int64_t bytes_of(const nn::Module& part) {
  std::int64_t bytes = 0;
  for (const nn::Parameter& p : part.parameters()) bytes += static_cast<std::int64_t>(p->nbytes());
  return bytes;
}

int train(const Options& o) {
  const std::vector<Device> devices = choose_devices(o);
  const Device first = devices.front(), second = devices.back();
  manual_seed(o.seed);
  apps::LargeModel model(first, second);
  const Tensor images = randn({o.batch_size, 3, o.image_size, o.image_size}, first);
  const Tensor target = randint(0, 10, {o.batch_size}).to(second);  // like the outputs
  optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
  optim::GradScaler scaler(apps::scaler_options(o.precision));
  for (int step = 0; step < o.steps; ++step) {
    optimizer.zero_grad();
    Tensor output, loss;
    {
      const apps::AutocastScope autocast(o.precision);
      output = model(images);
      loss = cross_entropy(output, target);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    if (step == 0)
      std::printf("Output tensor is on device: %s\nLoss tensor is on device: %s\n",
                  output.device().str().c_str(), loss.device().str().c_str());
    std::printf("Step: %d, Loss: %.6f\n", step, loss.item());
  }
  const auto report = [](const char* name, const nn::Module& part, Device device) {
    std::printf("%s on %s: %.1f KiB of parameters; peak memory of the device: %.1f MiB\n", name,
                device.str().c_str(), static_cast<double>(bytes_of(part)) / 1024,
                static_cast<double>(memory_stats(device).peak_allocated) / (1 << 20));
  };
  report("part1", model.part1, first);
  report("part2", model.part2, second);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  apps::CommandLine line("model_parallel",
                         "Trains a model with its halves on two devices, on one batch of random images.");
  line.add("--devices", o.devices,
           "Devices of the two parts, such as cuda:0 cuda:1 or cpu:0 cpu:1; by default two GPUs or two "
           "logical CPU "
           "devices",
           {.count = 2});
  line.add("--batch-size", o.batch_size, "Images per step",
           {.check = apps::between<std::int64_t>(1, 1'000'000)});
  line.add("--image-size", o.image_size, "Height and width of the images",
           {.check = apps::between<std::int64_t>(16, 10'000)});
  line.add("--steps", o.steps, "Training steps", {.check = apps::between(1, 1'000'000)});
  line.add("--seed", o.seed, "Seed of the weights and the images",
           {.check = apps::between<std::uint64_t>(0, UINT64_MAX)});
  apps::add_precision(line, o.precision);
  return line.run(argc, argv, [&] { return train(o); });
}
