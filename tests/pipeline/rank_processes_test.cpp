// Tests pipelines whose ranks are processes that communicate through Gloo.
#include <signal.h>

#include "tapestry/tapestry.h"
#include "tests/pipeline/rank_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/processes.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using namespace distributed_test;

namespace {

Group make_group(const ChildRank& self) {
  return make_process_group(gloo_backend(self.store, self.rank, self.size, 30s),
                            prefix_store("group/", self.store), {.timeout = Milliseconds(30'000)});
}

constexpr int kSteps = 5;

}  // namespace

TEST_CASE("child that trains a stage", "[.]") {
  const ChildRank self = child_rank();
  const Group group = make_group(self);
  Chain whole;
  Chain chain = Chain::stage(self.rank, self.size);
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble}) {
    Pipeline pipeline(group, {chain.modules(), kCPU},
                      {.schedule = schedule, .micro_batches = 4, .uneven = true});
    optim::SGD optimizer(pipeline.parameters(), {.lr = 0.1, .momentum = 0.9});
    optim::SGD single(whole.parameters(), {.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < kSteps; ++step) {
      const auto [x, labels] = chain_batch(step, step == 3 ? 5 : 16);
      optimizer.zero_grad();
      single.zero_grad();
      const Tensor expected = chain_loss(whole(x), labels);
      expected.backward();
      const double loss = pipeline.forward_backward(x, labels, chain_loss).item();
      CHECK(std::abs(loss - expected.item()) < 1e-10);
      pipeline.clip_grad_norm_(0.3);
      nn::clip_grad_norm_(whole.parameters(), 0.3);
      optimizer.step();
      single.step();
      const Tensor scores = pipeline(x);
      CHECK(scores.defined() == (self.rank + 1 == self.size));
      if (scores.defined()) CHECK(scores.allclose(whole(x).detach(), 0, 1e-10));
    }
  }
  const auto mine = values_of(chain.parameters()), all = values_of(whole.parameters());
  const auto begin = self.rank == 0 ? all.begin() : all.end() - static_cast<std::ptrdiff_t>(mine.size());
  CHECK(apart(mine, Numbers(begin, begin + static_cast<std::ptrdiff_t>(mine.size()))) < 1e-10);
}

TEST_CASE("a pipeline over processes trains like the unsplit model in one process") {
  if (!has_gloo()) return;
  for (const char* shared : {"1", "0"}) {
    RankProcesses ranks("child that trains a stage", 2, {{"TAPESTRY_SHARED_MEMORY", shared}});
    for (int r = 0; r < 2; ++r) {
      const Ended& end = ranks.wait(r);
      CAPTURE(r, shared, end.output, end.signal);
      CHECK(end.well());
    }
  }
}

TEST_CASE("child whose stage fails", "[.]") {
  const ChildRank self = child_rank();
  const Group group = make_group(self);
  Chain chain = Chain::stage(self.rank, self.size);
  const bool dies = std::getenv("TEST_DIES");
  int calls = 0;
  const Stage stage(
      [&](const Tensor& x) {
        if (self.rank == 1 && ++calls == 6) {
          if (dies) raise(SIGKILL);
          throw std::runtime_error("boom");
        }
        return chain(x);
      },
      kCPU, chain.modules());
  Pipeline pipeline(group, stage, {.micro_batches = 4});
  std::string error;
  for (int step = 0; step < 10 && error.empty(); ++step) {
    const auto [x, labels] = chain_batch(step, 8);
    try {
      pipeline.forward_backward(x, labels, chain_loss);
    } catch (const std::exception& e) {
      error = e.what();
    }
  }
  if (dies) CHECK_THAT(error, ContainsSubstring("rank 1"));
  else
    CHECK_THAT(error,
               ContainsSubstring("boom") && ContainsSubstring("stage 1, Part, forward of micro-batch 1"));
}

TEST_CASE("if a stage throws or a process is killed, the other process throws an error that names the rank") {
  if (!has_gloo()) return;
  for (const bool dies : {false, true}) {
    const auto begin = std::chrono::steady_clock::now();
    RankProcesses::Variables variables;
    if (dies) variables.emplace_back("TEST_DIES", "1");
    RankProcesses ranks("child whose stage fails", 2, variables);
    const Ended& second = ranks.wait(1);
    CHECK(second.signal == (dies ? SIGKILL : 0));
    if (!dies) CHECK(second.well());
    const Ended& first = ranks.wait(0);
    CAPTURE(dies, first.output);
    CHECK(first.well());
    CHECK(std::chrono::steady_clock::now() - begin < 25s);  // sooner than the timeout
  }
}
