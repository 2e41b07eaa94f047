// DataParallel computes a parametrized weight in each replica from that replica's originals, and trains like
// one device.
#include "tests/data_parallel/models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {
struct Normed : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 5, .out_features = 7});
  nn::Linear& second = add<nn::Linear>("second", {.in_features = 7, .out_features = 3});
  Normed() {
    nn::weight_norm(first);
    nn::spectral_norm(second);
  }
  Tensor forward(const Tensor& x) override { return second(tanh(first(x))); }
};

// The state after 10 steps on batches of 8 samples.
std::vector<std::vector<double>> train(int devices, DataParallelMode strategy) {
  Normed net;
  net.to(DType::f64);
  fill_by_formula(net);
  const nn::StateDict before = net.state_dict();
  for (const auto& [name, t] : before)  // the random _u and _v
    if (name.find(".0._") != std::string::npos) t.copy_(sin(arange(t.numel()).to(DType::f64) + 1));
  std::vector<Device> on;
  for (int i = 0; i < devices; ++i) on.emplace_back(DeviceType::cpu, i);
  std::optional<DataParallel<Normed>> dp;
  if (devices > 1) dp.emplace(net, on, DataParallelOptions{.mode = strategy});
  optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  for (int step = 0; step < 10; ++step) {
    manual_seed(static_cast<std::uint64_t>(step));
    const Tensor x = randn({8, 5}, DType::f64), target = randint(0, 3, {8});
    optimizer.zero_grad();
    cross_entropy(dp ? (*dp)(x) : net(x), target).backward();
    optimizer.step();
  }
  std::vector<std::vector<double>> state;
  for (const auto& [name, t] : net.state_dict()) state.push_back(to_vector(t));
  return state;
}
}  // namespace

TEST_CASE("weight_norm and spectral_norm train under DataParallel as on one device") {
  const auto alone = train(1, DataParallelMode::replicated);
  for (const DataParallelMode strategy : {DataParallelMode::replicated, DataParallelMode::master}) {
    const auto together = train(2, strategy);
    REQUIRE(together.size() == alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i)
      for (std::size_t j = 0; j < alone[i].size(); ++j)
        CHECK(together[i][j] == Approx(alone[i][j]).epsilon(1e-9).margin(1e-12));
  }
}
