// DistributedDataParallel and gradients of gradients.
#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;

namespace {

using distributed_test::Group, distributed_test::on_ranks;

struct Cubic : nn::Module {
  nn::Parameter& w = param("w", tensor({2.0}, DType::f64));
  Tensor forward(const Tensor& x) override { return (w.tensor() * x).pow(3); }
};

}  // namespace

TEST_CASE("a gradient penalty is averaged by DDP, and backward() with create_graph is refused") {
  struct Result {
    double gradient = 0;
    std::string refusal;
  };
  const auto results = on_ranks<Result>(2, [](const Group& group) {
    Cubic net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const Tensor x = tensor({group->rank() + 1.0}, DType::f64).set_requires_grad();
    const Tensor slope = autograd::grad({ddp(x).sum()}, {x}, {.create_graph = true})[0];
    CHECK_FALSE(net.w->grad().defined());
    slope.square().sum().backward();
    Result result{net.w->grad().item(), {}};
    try {
      autograd::backward({ddp(x).sum()}, {.create_graph = true});
    } catch (const AutogradError& e) {
      result.refusal = e.what();
    }
    // Gradients that were recorded before the refusal keep their graph in memory.
    net.zero_grad();
    x.set_grad({});
    return result;
  });
  for (const Result& r : results) {
    CHECK(r.gradient == 54.0 * 32 * (1 + 16) / 2);  // (3 w^3 x^2)^2 has the derivative 54 w^5 x^4
    CHECK_THAT(r.refusal, ContainsSubstring("[DistributedDataParallel] the gradient of w"));
  }
}
