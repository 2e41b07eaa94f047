// bench_mesh ROUNDS [MODE...]: trains a model on four ranks of two simulated hosts, under several meshes,
// and compares the step times with the planner's. The ranks are threads. A block of the model
// sleeps for as long as an accelerator would compute, and a link for as long as a message would travel
// (delayed_backend.h), so the number of cores matters little.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/distributed/planner/planner.h"
#include "tapestry/tapestry.h"
#include "tapestry/tools/bench/delayed_backend.h"

using namespace tapestry;
using namespace tapestry::distributed;
using bench::DelayedBackend;
using bench::Network;

namespace {

constexpr int kRanks = 4, kPerHost = 2, kBlocks = 8, kSteps = 3, kParts = 4;
constexpr std::int64_t kWidth = 512, kBatch = 32;
constexpr double kForwardMs = 4.5, kBackwardMs = 9;  // of a sample
constexpr double kLatency = 2e-5, kPerByte = 9e-3 / (1 << 20);

void pause(double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }

// 1 MiB of parameters. Its passes wait in proportion to the samples.
struct Layer : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = kWidth, .out_features = kWidth, .bias = false});
  Tensor forward(const Tensor& x) override {
    const auto samples = static_cast<double>(x.size(0));
    pause(kForwardMs * samples);
    const Tensor y = fc(x);
    if (y.requires_grad())
      y.register_hook([samples](const Tensor&) {
        pause(kBackwardMs * samples);
        return Tensor();
      });
    return y;
  }
};

std::vector<planner::Block> make_blocks() {
  std::vector<planner::Block> blocks;
  for (int i = 0; i < kBlocks; ++i)
    blocks.push_back({"block " + std::to_string(i), std::make_shared<Layer>()});
  return blocks;
}

// What the blocks cost by their construction. The arithmetic beside the waiting is left out.
planner::Profile known_costs() {
  const auto proportional = [](double per_sample) {
    return planner::Curve({{1, per_sample}, {2, 2 * per_sample}});
  };
  planner::Profile profile;
  planner::BlockProfile block;
  block.parameter_bytes = {kWidth * kWidth * 4};
  block.forward_s = proportional(kForwardMs / 1e3);
  block.backward_s = proportional(kBackwardMs / 1e3);
  block.output_bytes = proportional(kWidth * 4);
  profile.blocks.assign(kBlocks, block);
  profile.loss.name = "loss";
  return profile;
}

Tensor loss_of(const Tensor& out, const Tensor& y) { return cross_entropy(out, y); }

std::shared_ptr<nn::Sequential> joined(const std::vector<planner::Block>& blocks, std::size_t begin,
                                       std::size_t end) {
  auto all = std::make_shared<nn::Sequential>();
  for (std::size_t i = begin; i < end; ++i) all->push_back(nn::named(std::to_string(i), blocks[i].module));
  return all;
}

// The median step in seconds, on rank 0.
double trained(const std::string& mode, const planner::Model& model, double cross) {
  const std::vector<std::shared_ptr<Backend>> backends = local_backends(kRanks);
  const std::shared_ptr<Store> store = memory_store();
  const auto network = std::make_shared<Network>(kPerHost, Network::Cost{kLatency, kPerByte},
                                                 Network::Cost{kLatency, cross * kPerByte});
  std::vector<double> steps;
  std::vector<std::thread> ranks;
  for (int r = 0; r < kRanks; ++r)
    ranks.emplace_back([&, r] {
      const ThreadShare share(1);
      const auto group = make_process_group(
          std::make_shared<DelayedBackend>(backends[static_cast<std::size_t>(r)], network,
                                           std::vector<int>{0, 1, 2, 3}),
          store);
      const auto blocks = make_blocks();
      const auto net = joined(blocks, 0, blocks.size());
      std::vector<std::shared_ptr<nn::Sequential>> modules;
      const bool stages = mode.starts_with("pipeline");
      Strategy strategy(mode, {.world = group, .parts = stages ? kParts : 1});
      ModelParts parts{
          .forward = [&](const std::vector<Tensor>& x) { return std::vector{(*net)(x[0])}; },
          .loss =
              [](const std::vector<Tensor>& out, const std::vector<Tensor>& y) {
                return Loss{loss_of(out[0], y[0]), static_cast<double>(y[0].size(0))};
              },
          .stages = [&](const std::vector<Device>& devices) {
            std::vector<Stage> all;
            const std::size_t each = static_cast<std::size_t>(kBlocks) / devices.size();
            for (std::size_t s = 0; s < devices.size(); ++s) {
              modules.push_back(joined(blocks, s * each, (s + 1) * each));
              all.emplace_back(*modules.back(), devices[s]);
            }
            return all;
          }};
      for (const planner::Block& b : blocks) parts.units.push_back(b.module.get());
      strategy.wrap(*net, std::move(parts));
      const auto optimizer = make_optimizer<optim::SGD>(strategy, net->parameters(), {.lr = 0.01});
      const Samples mine = strategy.share(kBatch, {});
      const Batch batch{{model.inputs.narrow(0, mine.first, mine.count)},
                        {model.targets.narrow(0, mine.first, mine.count)}};
      for (int i = -2; i < kSteps; ++i) {
        group->barrier().wait();
        const auto start = std::chrono::steady_clock::now();
        optimizer->zero_grad();
        strategy.gradients([&](const Part&) { return batch; }, static_cast<double>(kBatch));
        optimizer->step();
        group->barrier().wait();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        if (i >= 0 && r == 0) steps.push_back(took.count());
      }
    });
  for (std::thread& rank : ranks) rank.join();
  std::sort(steps.begin(), steps.end());
  return steps[steps.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
  std::vector<std::string> modes(argv + std::min(argc, 2), argv + argc);
  if (modes.empty())
    modes = {"replicate=4", "shard=4", "replicate=2,shard=2", "pipeline=4", "pipeline=2,replicate=2",
             "pipeline=2,shard=2"};
  manual_seed(0);
  const planner::Model model{.make_blocks = make_blocks,
                             .inputs = randn({kBatch, kWidth}),
                             .targets = randint(0, kWidth, {kBatch}),
                             .loss = loss_of};
  const planner::Profile profile = known_costs();
  std::printf("%d blocks of 1 MiB, %d ranks on %d hosts, 9 ms per MiB inside a host: ms per step\n\n"
              "| mesh | link between hosts | predicted | measured | error |\n|---|---|---|---|---|\n",
              kBlocks, kRanks, kRanks / kPerHost);
  for (const double cross : {1.0, 8.0})
    for (const std::string& mode : modes) {
      planner::Link link;
      link.ranks.message = {kLatency, kPerByte};
      link.cross.message = {kLatency, cross * kPerByte};
      planner::TrainingSetup setup{.batch_size = kBatch, .devices = kRanks, .micro_batches = kParts};
      setup.devices_per_host = kPerHost;
      const StrategyPlan plan = plan_strategy(mode, true);
      if (const int stages = plan.axes[0].size; plan.splits_model)
        setup.split.assign(static_cast<std::size_t>(stages), kBlocks / stages);
      const auto p = planner::predict(plan, profile, link, setup);
      std::vector<double> steps;
      for (int round = 0; round < rounds; ++round) steps.push_back(trained(mode, model, cross));
      std::sort(steps.begin(), steps.end());
      const double step = steps[steps.size() / 2];
      std::printf("| %s | %g times as slow | %.1f | %.1f | %+.1f%% |\n", mode.c_str(), cross, p->step_s * 1e3,
                  step * 1e3, 100 * (p->step_s / step - 1));
      std::fflush(stdout);
    }
  return 0;
}
