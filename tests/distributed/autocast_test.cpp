// Mixed precision with ranks: autocast under DistributedDataParallel and fully_shard, and a GradScaler whose
// ranks hold different gradients.
#include <cmath>

#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using distributed_test::require;

namespace {

// Trains TinyGpt with the forward pass under autocast. `group` null: one process with the whole batch.
Trained train_low(Parallel how, const Group& group, int parts, const Training& t) {
  TinyGpt net(t.checkpointed);
  fill_by_formula(net);
  const std::vector<nn::Module*> units{&net.block0, &net.block1, &net.block2, &net};
  return train_net(net, units, how, group, parts, t,
                   [](const auto& forward, int batch, int first, int count) {
                     const auto [x, y] = formula_words(batch, first, count);
                     const AutocastGuard guard(DType::bf16);
                     const Tensor scores = forward(x);
                     require(scores.dtype() == DType::bf16, "the scores are ", scores.dtype());
                     return cross_entropy(scores.flatten(0, 1), y.flatten());
                   });
}

}  // namespace

TEST_CASE("autocast: fully_shard and DistributedDataParallel compute the same bits in bf16") {
  for (const bool checkpointed : {false, true}) {
    Training t{.checkpointed = checkpointed, .steps = 3};
    const auto ddp = on_ranks<Trained>(2, [&](const Group& g) { return train_low(Parallel::ddp, g, 2, t); });
    const auto fsdp =
        on_ranks<Trained>(2, [&](const Group& g) { return train_low(Parallel::fsdp, g, 2, t); });
    for (std::size_t r = 0; r < 2; ++r) {
      CHECK(ddp[r].losses == fsdp[r].losses);
      CHECK(ddp[r].weights == fsdp[r].weights);
    }
    CHECK(ddp[0].weights == ddp[1].weights);
    // The ranks' mean differs from the whole batch by rounding in bf16 alone.
    const Trained whole = train_low(Parallel::single, nullptr, 2, t);
    for (std::size_t i = 0; i < whole.losses.size(); ++i)
      CHECK(std::abs((ddp[0].losses[i] + ddp[1].losses[i]) / 2 - whole.losses[i]) < 0.02);
  }
  CHECK(autograd::impl::cached_casts() == 0);
}

TEST_CASE("GradScaler: an infinity in one rank's part of ZeRO's gradients skips the step on all ranks") {
  for (const int stage : {1, 2}) {
    const auto scales = on_ranks<double>(2, [stage](const Group& group) {
      TinyGpt net;
      fill_by_formula(net);
      DistributedDataParallel ddp(net, {.process_group = group});
      ZeroRedundancyOptimizer<optim::AdamW> adam(net.parameters(), {.process_group = group, .stage = stage},
                                                 {.lr = 0.1});
      optim::GradScaler scaler({.init_scale = 8});
      for (int step = 0; step < 2; ++step) {
        adam.zero_grad();
        const auto [x, y] = formula_words(0, group->rank() * 2, 2);
        const Tensor before = net.block1.up.weight->detach().clone();
        // The infinity of rank 1 comes into the mean of both ranks.
        const double factor = step == 0 && group->rank() == 1 ? INFINITY : 1;
        scaler.scale(cross_entropy(ddp(x).flatten(0, 1), y.flatten()) * factor).backward();
        require(scaler.step(adam) == (step == 1), "step ", step, " of stage ", stage);
        require(equal(before, net.block1.up.weight->detach()) == (step == 0), "the weight in step ", step);
        scaler.update();
      }
      adam.consolidate_state_dict();
      if (group->rank() == 0)
        for (const auto& [key, t] : adam.state_dict())
          require(!key.ends_with(".step") || (t.numel() == 1 && t.item() == 1), key, " of shape ", t.sizes());
      return scaler.get_scale();
    });
    CHECK(scales == std::vector<double>{4, 4});
  }
}

TEST_CASE("GradScaler: an infinity in the shard of one rank skips the step on all ranks") {
  const auto scales = on_ranks<double>(3, [](const Group& group) {
    TinyGpt net;
    fill_by_formula(net);
    fully_shard(net, {.group = group});
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    optim::GradScaler scaler({.init_scale = 8});
    for (int step = 0; step < 2; ++step) {
      sgd.zero_grad();
      const auto [x, y] = formula_words(0, group->rank() * 2, 2);
      scaler.scale(cross_entropy(net(x).flatten(0, 1), y.flatten())).backward();
      const Tensor shard = net.block1.up.weight.layout()->stored(0), before = shard.detach().clone();
      if (step == 0 && group->rank() == 1) {
        require(shard.grad().numel() > 0, "rank 1 has no rows");
        shard.grad().data<float>()[0] = INFINITY;
      }
      require(scaler.step(sgd) == (step == 1), "step ", step, " on rank ", group->rank());
      require(shard.numel() == 0 || equal(before, shard.detach()) == (step == 0), "the shard in step ", step);
      scaler.update();
    }
    return scaler.get_scale();
  });
  CHECK(scales == std::vector<double>{4, 4, 4});
}
