// Kills a job at random moments, and restarts it each time on another mesh, mostly a smaller one. What was
// reported as saved must be there, and the training must end as one process would.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "tapestry/distributed/comm/store.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"
#include "tests/support/mesh_training.h"
#include "tests/support/processes.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::mesh_training;
using namespace distributed_test;
using namespace std::chrono_literals;

namespace {

// Trains up to the step `last`, and saves every second step. Returns the weights on rank 0.
nn::StateDict train(const std::string& mesh, const Group& world, const std::string& folder, std::int64_t last,
                    const std::function<void(const char* what, std::int64_t step)>& report) {
  Strategy strategy(mesh, {.world = world, .parts = 2});
  const auto net = make_net();
  strategy.wrap(*net, parts_of(*net));
  const auto optimizer =
      make_optimizer<optim::SGD>(strategy, net->parameters(), {.lr = 0.01, .momentum = 0.9});
  ShardedTraining training(net.get(), optimizer.get());
  training.place = strategy.random_place();
  Checkpointer checkpoints(folder, world, {.keep_last = 2});
  std::int64_t step = checkpoints.resume(training).value_or(nn::Progress{}).step;
  report("resumed", step);
  while (step < last) {
    optimizer->zero_grad();
    const auto read = [&](const Part& part) { return samples_of(step, strategy.share(kSamples, part)); };
    strategy.gradients(read, kSamples);
    strategy.clip_grad_norm_(0.5);
    optimizer->step();
    if (++step % 2 != 0) continue;
    checkpoints.save(training, {.step = step});
    report("saved", step);
  }
  return strategy.whole_state();
}

}  // namespace

TEST_CASE("a rank of a job that is killed on some mesh", "[.]") {
  const ChildRank self = child_rank();
  const Group world = make_process_group(gloo_backend(self.store, self.rank, self.size, 30s),
                                         prefix_store("group/", self.store), {.timeout = 30s});
  train(std::getenv("JOB_MESH"), world, std::getenv("DIR"), INT64_MAX,
        [&](const char* what, std::int64_t step) {
          if (self.rank == 0) self.store->set(what, std::to_string(step));
        });
}

TEST_CASE("50 kills at random moments lose nothing that was saved, on whatever mesh the job restarts") {
  if (!has_gloo()) return;
  const std::vector<std::string> meshes{"pipeline=2,replicate=2,shard=2", "replicate=2,shard=2", "shard=3",
                                        "pipeline=2"};
  const tests::TempDir dir;
  std::mt19937_64 random(7);
  std::int64_t saved = 0;
  for (int kill = 0; kill < 50; ++kill) {
    const std::string& mesh = meshes[static_cast<std::size_t>(kill) % meshes.size()];
    const int ranks = plan_strategy(mesh, true).size;
    const int victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
    RankProcesses job("a rank of a job that is killed on some mesh", ranks,
                      {{"JOB_MESH", mesh}, {"DIR", dir.path().string()}, {"OMP_NUM_THREADS", "1"}});
    CAPTURE(kill, mesh, victim);
    const std::int64_t resumed = std::stoll(job.store().get("resumed", 40s));
    CHECK(resumed >= saved);
    // Half of the jobs get to their first checkpoint, however slow the machine is.
    if (kill % 2 == 0) job.store().get("saved", 30s);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 100'000));
    job.send_signal(victim, SIGKILL);
    for (int rank = 0; rank < ranks; ++rank) {
      const Ended& end = job.wait(rank);
      CAPTURE(rank, end.output);
      if (rank == victim) CHECK(end.signal == SIGKILL);
      else CHECK(end.exit_code > 0);
    }
    if (const auto last = job.store().try_get("saved")) saved = std::stoll(*last);
  }
  CHECK(saved >= 50);
  const auto ignore = [](const char*, std::int64_t) {};
  const std::int64_t last = Checkpointer(dir.path().string(), nullptr).steps().back() + 10;
  const tests::TempDir other;
  const nn::StateDict resumed = train("none", nullptr, dir.path().string(), last, ignore),
                      expected = train("none", nullptr, other.path().string(), last, ignore);
  CHECK(distance(resumed, expected) < 1e-9);
}
