#include "tapestry/tools/bench/fsdp_overlap.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tapestry/distributed/planner/planner.h"
#include "tapestry/tapestry.h"
#include "tapestry/tools/bench/delayed_backend.h"

namespace tapestry::bench {
namespace {

using namespace tapestry::distributed;

constexpr int kRanks = 2, kBlocks = 8, kSteps = 4;
constexpr std::int64_t kWidth = 512;
constexpr double kMsPerMib = 1;

// What a block of the chain computes. A block on an accelerator leaves the cores to the threads that
// communicate. It is represented by few samples, and by waiting in the middle of forward and of backward.
struct Load {
  const char* name;
  std::int64_t samples;  // per rank
  double forward_ms = 0, backward_ms = 0;
};

constexpr Load kLoads[] = {{"cores, 8 samples per rank", 8},
                           {"cores, 64 samples per rank", 64},
                           {"accelerator, 2 + 4 ms", 1, 2, 4},
                           {"accelerator, 8 + 16 ms", 1, 8, 16}};

void pause(double ms) {
  if (ms > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
}

// The network of a transformer's block: 8 MiB of parameters.
struct Layer : nn::Module {
  explicit Layer(const Load& load) : forward_ms_(load.forward_ms), backward_ms_(load.backward_ms) {}
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = kWidth, .out_features = 4 * kWidth});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 4 * kWidth, .out_features = kWidth});
  Tensor forward(const Tensor& x) override {
    const Tensor hidden = fc1(x);
    pause(forward_ms_);
    // When this hook runs, backward has read the parameters of fc2, and must still compute the gradients of
    // fc1.
    if (hidden.requires_grad())
      hidden.register_hook([ms = backward_ms_](const Tensor&) {
        pause(ms);
        return Tensor();
      });
    return x + fc2(gelu(hidden));
  }

 private:
  double forward_ms_, backward_ms_;
};

std::vector<planner::Block> make_blocks(const Load& load) {
  std::vector<planner::Block> blocks;
  for (int i = 0; i < kBlocks; ++i)
    blocks.push_back({"block " + std::to_string(i), std::make_shared<Layer>(load)});
  return blocks;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Runs fn on a thread per rank, over local transports with the slower link.
void on_slow_ranks(const std::function<void(const std::shared_ptr<ProcessGroup>&)>& fn) {
  const std::vector<std::shared_ptr<Backend>> backends = local_backends(kRanks);
  const std::shared_ptr<Store> store = memory_store();
  const Network::Cost link{0, kMsPerMib / 1e3 / (1 << 20)};
  const auto network = std::make_shared<Network>(kRanks, link, link);
  std::vector<std::thread> ranks;
  for (int r = 0; r < kRanks; ++r)
    ranks.emplace_back([&, r] {
      const ThreadShare share(1);
      fn(make_process_group(
          std::make_shared<DelayedBackend>(backends[static_cast<std::size_t>(r)], network,
                                           std::vector<int>{0, 1}),
          store));
    });
  for (std::thread& rank : ranks) rank.join();
}

// By step, means over the ranks.
struct Measured {
  std::vector<double> transport_ms = std::vector<double>(kSteps), exposed_ms = transport_ms,
                      step_ms = transport_ms;
};

Measured train(const planner::Model& model, const Load& load) {
  Measured all;
  std::mutex mutex;
  on_slow_ranks([&](const std::shared_ptr<ProcessGroup>& group) {
    nn::Sequential net;
    for (int i = 0; i < kBlocks; ++i) net.append<Layer>(load);
    for (nn::Module* const block : net.children()) fully_shard(*block, {.group = group});
    const FullyShard sharded = fully_shard(net, {.group = group});
    optim::SGD optimizer(net.parameters(), {.lr = 0.01});
    const std::int64_t samples = model.inputs.size(0) / kRanks;
    const Tensor x = model.inputs.narrow(0, group->rank() * samples, samples),
                 y = model.targets.narrow(0, group->rank() * samples, samples);
    for (int i = -2; i < kSteps; ++i) {  // the first pass does not know the order of the units
      group->barrier().wait();
      sharded.reset_report();
      const auto start = Clock::now();
      optimizer.zero_grad();
      model.loss(net(x), y).backward();
      optimizer.step();
      if (i < 0) continue;
      const std::chrono::duration<double, std::milli> took = Clock::now() - start;
      const std::lock_guard lock(mutex);
      const auto at = static_cast<std::size_t>(i);
      all.step_ms[at] += took.count() / kRanks;
      for (const FsdpUnitReport& unit : sharded.report().units) {
        all.transport_ms[at] += (unit.gather_s + unit.scatter_s) * 1e3 / kRanks;
        all.exposed_ms[at] += unit.exposed_s * 1e3 / kRanks;
      }
    }
  });
  return all;
}

// Runs fn on 4 ranks: two copies of a model, which two ranks divide. The link between copies is the slow one.
void on_slow_copies(const std::function<void(const FsdpOptions&, int rank)>& fn) {
  constexpr int kCopies = 2;
  std::vector<std::vector<std::shared_ptr<Backend>>> rows, columns;
  std::vector<std::shared_ptr<Store>> row_stores, column_stores;
  for (int i = 0; i < kRanks; ++i) {  // as many rows as columns
    rows.push_back(local_backends(kRanks)), row_stores.push_back(memory_store());
    columns.push_back(local_backends(kCopies)), column_stores.push_back(memory_store());
  }
  std::vector<std::thread> ranks;
  for (std::size_t copy = 0; copy < kCopies; ++copy)
    for (std::size_t r = 0; r < kRanks; ++r)
      ranks.emplace_back([&, copy, r] {
        const ThreadShare share(1);
        fn({.group = make_process_group(rows[copy][r], row_stores[copy]),
            .replicate_group = make_process_group(
                std::make_shared<DelayedBackend>(columns[r][copy], kMsPerMib), column_stores[r])},
           static_cast<int>(copy * kRanks + r));
      });
  for (std::thread& rank : ranks) rank.join();
}

void measure_copies(int rounds) {
  std::printf(
      "\n2 copies of the model on 2 ranks each, a link of %g ms per MiB between the copies alone: "
      "milliseconds "
      "per step, medians\n\n| computed on | all-reduces | exposed |\n|---|---|---|\n",
      kMsPerMib);
  for (const Load& load : kLoads) {
    std::vector<double> transport, exposed;
    std::mutex mutex;
    on_slow_copies([&](const FsdpOptions& options, int rank) {
      nn::Sequential net;
      for (int i = 0; i < kBlocks; ++i) net.append<Layer>(load);
      for (nn::Module* const block : net.children()) fully_shard(*block, options);
      const FullyShard sharded = fully_shard(net, options);
      const Tensor x = randn({load.samples, kWidth});
      for (int i = -2; i < rounds * kSteps; ++i) {
        sharded.reset_report();
        net(x).square().mean().backward();
        if (i < 0 || rank > 0) continue;
        double all = 0, waited = 0;
        for (const FsdpUnitReport& unit : sharded.report().units)
          all += unit.all_reduce_s * 1e3, waited += unit.all_reduce_exposed_s * 1e3;
        const std::lock_guard lock(mutex);
        transport.push_back(all), exposed.push_back(waited);
      }
    });
    std::printf("| %s | %.1f | %.1f |\n", load.name, median(transport), median(exposed));
    std::fflush(stdout);
  }
}

}  // namespace

void measure_overlap(int rounds) {
  measure_copies(rounds);
  std::printf("\n%d blocks of 8 MiB, %d ranks, a link of %g ms per MiB: milliseconds per step, medians\n\n",
              kBlocks, kRanks, kMsPerMib);
  std::printf(
      "| computed on | transport | exposed | predicted | exposed / predicted | step | predicted |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const Load& load : kLoads) {
    manual_seed(0);
    const planner::Model model{
        .make_blocks = [load] { return make_blocks(load); },
        .inputs = randn({kRanks * load.samples, kWidth}),
        .targets = randint(0, kWidth, {kRanks * load.samples}),
        .loss = [](const Tensor& out, const Tensor& y) { return cross_entropy(out, y); }};
    const planner::TrainingSetup setup{
        .batch_size = kRanks * load.samples, .devices = kRanks, .micro_batches = 1};
    const planner::MeasureOptions options{.warmup = 1, .passes = 3};
    std::vector<double> transport, exposed, predicted, step, predicted_step;
    for (int round = 0; round < rounds; ++round) {
      // The profile, the link and the training take turns, so that all see the same state of the machine.
      const planner::Profile profile = planner::measure_profile(model, setup, options);
      planner::Link link;
      on_slow_ranks([&](const std::shared_ptr<ProcessGroup>& group) {
        const planner::AllReduce measured = planner::measure_all_reduce(*group, model, setup, kCPU, options);
        if (group->rank() == 0) link.ranks = measured;
      });
      const auto p = planner::predict(plan_strategy("fsdp", true), profile, link, setup);
      predicted.push_back(p->breakdown.exposed_comm_s * 1e3), predicted_step.push_back(p->step_s * 1e3);
      const Measured m = train(model, load);
      transport.push_back(median(m.transport_ms)), exposed.push_back(median(m.exposed_ms));
      step.push_back(median(m.step_ms));
    }
    std::printf("| %s | %.1f | %.1f | %.1f | %.2f | %.1f | %.1f |\n", load.name, median(transport),
                median(exposed), median(predicted), median(exposed) / median(predicted), median(step),
                median(predicted_step));
    std::fflush(stdout);
  }
}

}  // namespace tapestry::bench
