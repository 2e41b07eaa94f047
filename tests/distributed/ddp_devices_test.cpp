// Tests DDP and SyncBatchNorm with a model that is on two logical devices.
#include "tapestry/tapestry.h"
#include "tests/core/child.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using Group = std::shared_ptr<ProcessGroup>;

// A SmallCnn whose second half is on another device.
struct SplitCnn : SmallCnn {
  explicit SplitCnn(Device second) : second_(second) {
    to(DType::f64);
    fill_by_formula(*this);
    for (nn::Module* part :
         {static_cast<nn::Module*>(&conv2), static_cast<nn::Module*>(&bn2), static_cast<nn::Module*>(&fc)})
      part->to(second);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = max_pool2d(bn1(conv1(x)).relu(), {.kernel_size = 2}).to(second_);
    return fc(bn2(conv2(h)).relu().flatten(1));
  }

 private:
  Device second_;
};

StateDictCopy train(const Group& group, Device second, int first, int count, bool static_graph) {
  SplitCnn net(second);
  std::optional<DistributedDataParallel<SplitCnn>> ddp;
  if (group) {
    convert_sync_batchnorm(net, group);
    ddp.emplace(net, DdpOptions{.process_group = group, .bucket_cap_mb = 1e-3, .static_graph = static_graph});
  }
  optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, labels] = formula_batch(step, first, count);
    optimizer.zero_grad();
    cross_entropy(ddp ? (*ddp)(x) : net(x), labels.to(second)).backward();
    optimizer.step();
  }
  if (ddp)
    for (const auto& bucket : ddp->buckets())  // no bucket may have parameters of both devices
      for (const std::string& name : bucket)
        check((name.find("1.") != std::string::npos) == (bucket[0].find("1.") != std::string::npos),
              "a bucket holds ", bucket[0], " and ", name);
  return copy_state(net);
}

}  // namespace

TEST_CASE("child: DDP over two logical devices", "[.]") {
  REQUIRE(device_count(DeviceType::cpu) == 2);
  const StateDictCopy expected = train(nullptr, kCPU, 0, 6, false);
  CHECK(distance(train(nullptr, Device("cpu:1"), 0, 6, false), expected) == 0);
  for (const bool static_graph : {false, true}) {
    std::vector<StateDictCopy> results(2);
    run_local_ranks(2,
                    [&](const Group& group) {
                      results[static_cast<std::size_t>(group->rank())] =
                          train(group, Device("cpu:1"), 3 * group->rank(), 3, static_graph);
                    },
                    {.timeout = Milliseconds(20'000)});
    for (const StateDictCopy& result : results) CHECK(distance(result, expected) < 1e-10);
  }
}

TEST_CASE("ranks with two logical devices each train as one process on one device") {
  const ChildResult child = run_child("child: DDP over two logical devices", "TAPESTRY_LOGICAL_DEVICES=2");
  INFO(child.output);
  CHECK(child.status == 0);
}
