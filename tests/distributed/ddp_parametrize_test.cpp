// DistributedDataParallel averages the gradients of the originals of parametrized weights, so that training
// is that of one process.
#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::Group, distributed_test::on_ranks;

struct Normed : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 5, .out_features = 7});
  nn::Linear& second = add<nn::Linear>("second", {.in_features = 7, .out_features = 3});
  Normed() {
    nn::weight_norm(first);
    nn::spectral_norm(second);
  }
  Tensor forward(const Tensor& x) override { return second(tanh(first(x))); }
};

// The state after 10 steps on batches of 8 samples, of which each rank has an equal part.
std::vector<Tensor> train(const Group& group) {
  Normed net;
  net.to(DType::f64);
  fill_by_formula(net);
  const nn::StateDict before = net.state_dict();
  for (const auto& [name, t] : before)  // the random _u and _v
    if (name.find(".0._") != std::string::npos) t.copy_(sin(arange(t.numel()).to(DType::f64) + 1));
  std::unique_ptr<DistributedDataParallel<Normed>> ddp;
  if (group) ddp = std::make_unique<DistributedDataParallel<Normed>>(net, DdpOptions{.process_group = group});
  const std::int64_t count = group ? 8 / group->size() : 8, begin = group ? group->rank() * count : 0;
  optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  for (int step = 0; step < 10; ++step) {
    const Tensor x =
        sin(arange(40).to(DType::f64) * 0.7 + step).reshape({8, 5}).slice(0, begin, begin + count);
    const Tensor target = (arange(8) * 5 + step).remainder(3).slice(0, begin, begin + count);
    optimizer.zero_grad();
    cross_entropy(ddp ? (*ddp)(x) : net(x), target).backward();
    optimizer.step();
  }
  std::vector<Tensor> state;
  for (const auto& [name, t] : net.state_dict()) state.push_back(t.clone());
  return state;
}

}  // namespace

TEST_CASE("weight_norm and spectral_norm train under DistributedDataParallel as in one process") {
  const std::vector<Tensor> alone = train(nullptr);
  for (const std::vector<Tensor>& rank :
       on_ranks<std::vector<Tensor>>(2, [](const Group& g) { return train(g); })) {
    REQUIRE(rank.size() == alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) CHECK(allclose(rank[i], alone[i], 1e-9, 1e-12));
  }
}
