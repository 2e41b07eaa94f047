// bench_tensor_overlap [ROUNDS [SHARE...]]: trains blocks of a transformer that two ranks divide, over slow
// links (delayed_backend.h), and prints which share of the communication the ranks wait for. Each rank is a
// thread with a core of its own. If the process may set priorities (root), threads that communicate go before
// those that compute. A message then needs a core only while it is copied, as it does where a device moves
// it. Each round first measures a step without delays. It then sets the speed of the links so that all
// collectives of a step take SHARE of that time (default 0.3).
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tapestry/tapestry.h"
#include "tapestry/tools/bench/delayed_backend.h"

using namespace tapestry;
using namespace tapestry::distributed;

namespace {

constexpr int kRanks = 2, kBlocks = 4, kSteps = 3;
constexpr std::int64_t kLength = 1024, kWidth = 512, kInside = 1536, kHeads = 8;

struct Form {
  const char* name;
  TensorParallelOptions options;
};
const Form kForms[] = {{"all-reduce, whole products", {}},
                       {"sequence=1, whole products", {.sequence = true}},
                       {"sequence=1:chunks=2", {.sequence = true, .chunks = 2}},
                       {"sequence=1:chunks=4", {.sequence = true, .chunks = 4}},
                       {"sequence=1:chunks=8", {.sequence = true, .chunks = 8}}};

struct Blocks : nn::Module {
  nn::ModuleList& layers = add<nn::ModuleList>("layers");
  explicit Blocks() {
    const nn::LlamaConfig config{.hidden_size = kWidth,
                                 .intermediate_size = kInside,
                                 .num_attention_heads = kHeads,
                                 .num_key_value_heads = kHeads,
                                 .head_dim = kWidth / kHeads,
                                 .max_position_embeddings = kLength};
    const auto rotary = nn::make<nn::RotaryEmbedding>(
        nn::RotaryEmbeddingOptions{.dim = config.head_dim, .max_seq_len = kLength});
    for (int i = 0; i < kBlocks; ++i) layers.append<nn::LlamaDecoderLayer>(config, rotary);
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (nn::Module* const layer : layers.children()) h = (*layer)(h);
    return h;
  }
};

// The times of a step, as means over the ranks. `alone_s` is how long its collectives take one after another,
// if no product runs beside them and nothing is cut into chunks.
struct Step {
  double seconds = 0, exposed_s = 0, forward_exposed_s = 0, alone_s = 0;
  std::int64_t bytes = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void schedule_this_thread(int policy, int priority) {
  sched_param how{};
  how.sched_priority = priority;
  pthread_setschedparam(pthread_self(), policy, &how);  // without the right to do so, nothing changes
}

// The collectives of a step without chunks, and nothing else.
void communicate(const Axis& axis, bool sequence) {
  const NoGradGuard no_grad;
  const Tensor whole = zeros({1, kLength, kWidth}), part = zeros({1, kLength / kRanks, kWidth});
  for (int i = 0; i < 4 * kBlocks; ++i) {  // two in forward and two in backward of a block
    if (!sequence) convert(whole, axis, Placement::partial(), Placement::invariant());
    else {
      convert(part, axis, Placement::sharded(1), Placement::replicated());
      convert(whole, axis, Placement::partial(), Placement::sharded(1));
    }
  }
}

Step measured(const TensorParallelOptions& options, double s_per_byte) {
  const std::vector<std::shared_ptr<Backend>> backends = local_backends(kRanks);
  const std::shared_ptr<Store> store = memory_store();
  const bench::Network::Cost link{0, s_per_byte};
  const auto network = std::make_shared<bench::Network>(kRanks, link, link);
  std::vector<Step> all[kRanks];
  std::vector<std::thread> ranks;
  static std::mutex one_at_a_time;  // the ranks share the generator
  for (int r = 0; r < kRanks; ++r)
    ranks.emplace_back([&, r] {
      const ThreadShare share(1);
      std::shared_ptr<Backend> backend = backends[static_cast<std::size_t>(r)];
      if (s_per_byte > 0)
        backend = std::make_shared<bench::DelayedBackend>(backend, network, std::vector<int>{0, 1});
      schedule_this_thread(SCHED_RR, 1);  // for the threads that begin here
      const auto group = make_process_group(backend, store);
      Mesh mesh(group, {{"tensor", kRanks}});
      group->barrier().wait();
      schedule_this_thread(SCHED_OTHER, 0);
      std::unique_ptr<Blocks> net;
      Tensor x, dy;
      {
        const std::lock_guard lock(one_at_a_time);
        net = std::make_unique<Blocks>();
        const std::int64_t rows = options.sequence ? kLength / kRanks : kLength;
        x = randn({1, rows, kWidth}), dy = randn({1, rows, kWidth});
      }
      const TensorParallel divided =
          tensor_parallel(*net, mesh["tensor"], tensor_plan(*net, kRanks), options);
      x.set_requires_grad(true);
      for (int i = -1; i < kSteps; ++i) {
        for (const nn::Parameter& p : net->parameters()) p.zero_grad();
        x.zero_grad();
        divided.reset_report();
        group->barrier().wait();
        const auto start = std::chrono::steady_clock::now();
        const Tensor y = (*net)(x);
        const double forward = divided.sent().exposed_s;
        autograd::backward({y}, {dy});
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        const ConversionTraffic::Counts sent = divided.sent();
        group->barrier().wait();
        const auto then = std::chrono::steady_clock::now();
        communicate(mesh["tensor"], options.sequence);
        const std::chrono::duration<double> alone = std::chrono::steady_clock::now() - then;
        if (i >= 0) all[r].push_back({took.count(), sent.exposed_s, forward, alone.count(), sent.bytes()});
      }
    });
  for (std::thread& rank : ranks) rank.join();
  const auto middle = [&](double Step::*what) {
    std::vector<double> means;
    for (int i = 0; i < kSteps; ++i) {
      double sum = 0;
      for (const std::vector<Step>& of_rank : all) sum += of_rank[static_cast<std::size_t>(i)].*what;
      means.push_back(sum / kRanks);
    }
    return median(means);
  };
  return {middle(&Step::seconds), middle(&Step::exposed_s), middle(&Step::forward_exposed_s),
          middle(&Step::alone_s), all[0][0].bytes};
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
  std::vector<double> shares;
  for (int i = 2; i < argc; ++i) shares.push_back(std::atof(argv[i]));
  if (shares.empty()) shares = {0.3};
  manual_seed(0);
  std::printf("%d blocks, %lld tokens, %lld features, %lld inside, %d ranks with a core each\n\n", kBlocks,
              static_cast<long long>(kLength), static_cast<long long>(kWidth),
              static_cast<long long>(kInside), kRanks);
  constexpr std::size_t kCount = std::size(kForms);
  std::vector<double> without[kCount];
  for (const double share : shares) {
    std::vector<double> alone[kCount], steps[kCount], exposed[kCount], forward[kCount];
    for (int round = 0; round < rounds; ++round) {
      double link = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        const Step step = measured(kForms[i].options, 0);
        without[i].push_back(step.seconds * 1e3);
        if (i == 0) link = share * step.seconds / static_cast<double>(step.bytes);
      }
      for (std::size_t i = 0; i < kCount; ++i) {
        const Step step = measured(kForms[i].options, link);
        alone[i].push_back(step.alone_s * 1e3);
        steps[i].push_back(step.seconds * 1e3);
        exposed[i].push_back(100 * step.exposed_s / step.alone_s);
        forward[i].push_back(100 * step.forward_exposed_s / step.alone_s);
      }
    }
    std::printf(
        "The links need %g of the time of computing.\n\n"
        "| layers | collectives alone, ms | exposed | in the best round | of it in forward | step, ms "
        "| step without delays, ms |\n|---|---|---|---|---|---|---|\n",
        share);
    for (std::size_t i = 0; i < kCount; ++i)
      std::printf("| %s | %.0f | %.0f%% | %.0f%% | %.0f%% | %.0f | %.0f |\n", kForms[i].name,
                  median(alone[i]), median(exposed[i]),
                  *std::min_element(exposed[i].begin(), exposed[i].end()), median(forward[i]),
                  median(steps[i]), median(without[i]));
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}
