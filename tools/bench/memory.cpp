// The memory of training steps: bench_memory MODEL [PRECISION]. Prints one JSON object with the peak bytes of
// tensors in a step, what they are used for, and the growth of the process. memory.py compares with PyTorch.
#include <sys/resource.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tapestry/apps/common/basic_block.h"
#include "tapestry/tools/bench/models.h"

using namespace tapestry;

namespace {

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }
double resident_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

struct Demo : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 3, .out_channels = 16, .kernel_size = 3});
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 30 * 30 * 16, .out_features = 10});
  Tensor forward(const Tensor& x) override { return fc(conv(x).flatten(1)).softmax(1); }
};

// ResNet-18 for small images: its first convolution is 3x3, without pooling (He et al., 2016, section 4.2).
struct ResNet18 : nn::Module {
  nn::Conv2d& conv1 = add<nn::Conv2d>(
      "conv1", {.in_channels = 3, .out_channels = 64, .kernel_size = 3, .padding = 1, .bias = false});
  nn::BatchNorm2d& bn1 = add<nn::BatchNorm2d>("bn1", {.num_features = 64});
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 512, .out_features = 10});
  ResNet18() {
    std::int64_t from = 64;
    for (const std::int64_t to : {64, 128, 256, 512})
      for (const bool first : {true, false}) {
        blocks.append<apps::BasicBlock>(from, to, first && to > 64 ? 2 : 1);
        from = to;
      }
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = bn1(conv1(x)).relu();
    for (nn::Module* block : blocks) h = (*block)(h);
    return fc(h.mean({2, 3}));
  }
};

// One step of the named model.
std::function<void()> step_of(const std::string& name, const std::string& precision) {
  std::shared_ptr<nn::Module> model;
  Tensor x, target = randint(0, 10, {128});
  if (name == "demo")
    model = std::make_shared<Demo>(), x = randn({64, 3, 32, 32}), target = target.narrow(0, 0, 64);
  if (name == "cnn") model = std::make_shared<bench::Cnn>(), x = randn({128, 1, 28, 28});
  if (name == "resnet18")
    model = std::make_shared<ResNet18>(), x = randn({32, 3, 64, 64}), target = target.narrow(0, 0, 32);
  if (name == "gpt") {
    model = std::make_shared<bench::Gpt>();
    x = randint(0, bench::Gpt::kWords, {16, bench::Gpt::kLength});
    target = randint(0, bench::Gpt::kWords, {16 * bench::Gpt::kLength});
  }
  check(model != nullptr, "[bench_memory] there is no model ", name);
  std::shared_ptr<optim::Optimizer> optimizer;
  if (name == "gpt")
    optimizer = std::make_shared<optim::AdamW>(model->parameters(), optim::AdamW::Options{.lr = 1e-3});
  else
    optimizer =
        std::make_shared<optim::SGD>(model->parameters(), optim::SGD::Options{.lr = 0.01, .momentum = 0.9});
  return [=] {
    optimizer->zero_grad();
    Tensor loss;
    {
      std::optional<AutocastGuard> guard;
      if (precision == "bf16") guard.emplace(DType::bf16);
      loss = cross_entropy((*model)(x), target);
    }
    loss.backward();
    optimizer->step();
  };
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "cnn", precision = argc > 2 ? argv[2] : "f32";
  set_num_threads(2);
  manual_seed(0);
  step_of("demo", precision)();  // the first use of the libraries takes memory of its own
  const double before = resident_mib();
  MemoryRecord record;
  const std::function<void()> step = step_of(name, precision);
  for (int i = 0; i < 3; ++i) step();
  record.restart();
  step();
  MemorySample peak;
  for (const MemorySample& s : record.samples(kCPU))
    if (s.total() > peak.total()) peak = s;
  std::printf("{\"peak_mib\": %.3f, \"rss_mib\": %.1f, \"at_peak\": {", mib(peak.total()),
              resident_mib() - before);
  for (int k = 0; k < kNumMemoryKinds; ++k)
    std::printf("%s\"%s\": %.3f", k ? ", " : "", memory_kind_name(static_cast<MemoryKind>(k)),
                mib(peak.bytes[static_cast<std::size_t>(k)]));
  std::printf("}}\n");
}
