// A model that its author split over devices must train like the same model on one device.
#include "tapestry/apps/model_parallel/large_model.h"
#include "tests/data_parallel/models.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

// A model whose second half is on another device. The second half also gets the model's input directly.
struct Split : nn::Module {
  explicit Split(Device second) : second_(second) {
    to(DType::f64);
    fill_by_formula(*this);
    part2.to(second);
  }
  nn::Sequential& part1 =
      add<nn::Sequential>("part1", nn::Conv2d::Options{.in_channels = 1, .out_channels = 3, .kernel_size = 3},
                          nn::BatchNorm2d::Options{.num_features = 3}, nn::ReLU::Options{},
                          nn::MaxPool2d::Options{.kernel_size = 2}, nn::Flatten::Options{});
  nn::Sequential& part2 =
      add<nn::Sequential>("part2", nn::Linear::Options{.in_features = 27 + 64, .out_features = 8},
                          nn::ReLU::Options{}, nn::Linear::Options{.in_features = 8, .out_features = 4});
  Tensor forward(const Tensor& x) override {
    return part2(cat({part1(x).to(second_), x.flatten(1).to(second_)}, 1));
  }

 private:
  Device second_;
};

TrainResult train(Device second, std::int64_t batch, bool adam) {
  Split net(second);
  std::unique_ptr<optim::Optimizer> optimizer;
  if (adam) optimizer = std::make_unique<optim::AdamW>(net.parameters());
  else
    optimizer =
        std::make_unique<optim::SGD>(net.parameters(), optim::SGD::Options{.lr = 0.05, .momentum = 0.9});
  TrainResult result;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, labels] = formula_batch(step, 0, static_cast<int>(batch));
    optimizer->zero_grad();
    const Tensor loss = cross_entropy(net(x), labels.to(second));
    loss.backward();
    nn::clip_grad_norm_(net.parameters(), 1);
    optimizer->step();
    result.losses.push_back(loss.item());
  }
  CHECK(net.part1.parameters()[0]->device() == kCPU);
  CHECK(net.part2.parameters()[0]->device() == second);
  CHECK(net.part2.parameters()[0]->grad().device() == second);
  result.weights = copy_state(net);
  return result;
}

// A model of four parts that are distributed over the devices in turn. Parts take two inputs, return two
// outputs, have plain members, share a weight, and have a layer that is not used.
struct Chain : nn::Module {
  explicit Chain(std::vector<Device> on) : devices(std::move(on)) {
    parts[3]->weight = parts[0]->weight;
    to(DType::f64);
    fill_by_formula(*this);
    for (std::size_t i = 0; i < 3; ++i) parts[i]->to(device(i));
    unused.to(device(3));
  }
  std::vector<Device> devices;
  double slope = 0.1;
  nn::Linear& unused = add<nn::Linear>("unused", {.in_features = 2, .out_features = 2});
  std::vector<nn::Linear*> parts = [this] {
    std::vector<nn::Linear*> made;
    for (int i = 0; i < 4; ++i)
      made.push_back(&add<nn::Linear>("part" + std::to_string(i), {.in_features = 5, .out_features = 5}));
    return made;
  }();
  Device device(std::size_t part) const { return devices[part % devices.size()]; }

  using nn::Module::forward;
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& late) {
    const Tensor a = (*parts[0])(x.to(device(0))).tanh() * slope;
    const Tensor b = (*parts[1])(a.to(device(1))).tanh();
    const Tensor c = (*parts[2])(b.to(device(2)) + late.to(device(2))).tanh();
    const Tensor d = linear(c.to(device(3)), parts[3]->weight->to(device(3)), parts[3]->bias->to(device(3)));
    return {d, b};
  }
};

TrainResult train_chain(const std::vector<Device>& devices, std::int64_t batch) {
  Chain net(devices);
  optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  TrainResult result;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto [d, b] = nn::call(net, wave({batch, 5}, step), wave({batch, 5}, step + 0.5));
    const Tensor loss =
        mse_loss(d, wave({batch, 5}, 2 * step).to(d.device())) + (b * b).mean().to(d.device());
    loss.backward();
    optimizer.step();
    result.losses.push_back(loss.item());
  }
  CHECK_FALSE(net.unused.weight->grad().defined());
  result.weights = copy_state(net);
  return result;
}

}  // namespace

TEST_CASE("a model in four parts with a shared weight trains on two to four devices as on one") {
  for (const std::int64_t batch : {1, 3, 7, 64}) {
    const TrainResult expected = train_chain({kCPU}, batch);
    for (int n = 2; n <= 4; ++n) {
      INFO("batch " << batch << ", " << n << " devices");
      std::vector<Device> devices;
      for (int i = 0; i < n; ++i) devices.emplace_back(DeviceType::cpu, i);
      const TrainResult split = train_chain(devices, batch);
      CHECK(distance_of_losses(split, expected) < 1e-10);
      CHECK(distance(split.weights, expected.weights) < 1e-10);
    }
  }
}

TEST_CASE("a split model trains bit for bit as on one device") {
  for (const bool adam : {false, true})
    for (const std::int64_t batch : {1, 3, 7, 64}) {
      INFO("batch " << batch << (adam ? ", AdamW" : ", SGD"));
      const TrainResult expected = train(kCPU, batch, adam);
      const TrainResult split = train("cpu:3", batch, adam);
      CHECK(split.losses == expected.losses);
      CHECK(distance(split.weights, expected.weights) == 0);
    }
}

TEST_CASE("a split model saves and loads its state, and its errors name devices") {
  Split net("cpu:1"), other("cpu:2");
  const auto [x, labels] = formula_batch(0, 0, 3);
  other.part2.parameters()[0]->detach().zero_();
  other.load_state_dict(net.state_dict());
  CHECK(distance(copy_state(other), copy_state(net)) == 0);
  CHECK(other.part2.parameters()[0]->device() == Device("cpu:2"));
  CHECK_THROWS_WITH(net.part2(zeros({2, 91}, DType::f64)), ContainsSubstring("cpu:1"));
  CHECK_THROWS_AS(cross_entropy(net(x), labels), DeviceError);
  CHECK_THROWS_AS(net.part2.to("cpu:4"), DeviceError);
  CHECK(to_vector(net(x)) == to_vector(other(x)));
}

TEST_CASE("LargeModel takes images of any size") {
  apps::LargeModel model("cpu:1", "cpu:2");
  for (const std::int64_t size : {16, 33, 224}) {
    const Tensor y = model(zeros({2, 3, size, size}));
    CHECK(y.sizes() == Shape{2, 10});
    CHECK(y.device() == Device("cpu:2"));
  }
}
