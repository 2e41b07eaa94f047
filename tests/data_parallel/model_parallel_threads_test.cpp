// A model split over devices by hand trains as the same model on one.
#include "tapestry/apps/model_parallel/large_model.h"
#include "tests/data_parallel/models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

// Its second half elsewhere, with a way around it for the input.
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

Trained train(Device second, std::int64_t batch, bool adam) {
  Split net(second);
  std::unique_ptr<optim::Optimizer> optimizer;
  if (adam) optimizer = std::make_unique<optim::AdamW>(net.parameters());
  else
    optimizer =
        std::make_unique<optim::SGD>(net.parameters(), optim::SGD::Options{.lr = 0.05, .momentum = 0.9});
  Trained result;
  for (int step = 0; step < 50; ++step) {
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

}  // namespace

TEST_CASE("a split model trains as one on one device, bit for bit") {
  for (const bool adam : {false, true})
    for (const std::int64_t batch : {1, 3, 7, 64}) {
      INFO("batch " << batch << (adam ? ", AdamW" : ", SGD"));
      const Trained expected = train(kCPU, batch, adam);
      const Trained split = train("cpu:3", batch, adam);
      CHECK(split.losses == expected.losses);
      CHECK(distance(split.weights, expected.weights) == 0);
    }
}

TEST_CASE("a split model goes to one device and into a checkpoint") {
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
