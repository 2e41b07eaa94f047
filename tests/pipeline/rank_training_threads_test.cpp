// A pipeline over ranks must compute the same bits as a pipeline in one process, and train like the unsplit
// model.
#include <map>

#include "tapestry/tapestry.h"
#include "tests/pipeline/rank_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::Group, distributed_test::kBounded;

// Returns the result of fn on each rank.
template <class T, class F>
std::vector<T> on_ranks(int ranks, const F& fn) {
  std::vector<T> results(static_cast<std::size_t>(ranks));
  run_local_ranks(
      ranks, [&](const Group& group) { results[static_cast<std::size_t>(group->rank())] = fn(group); },
      kBounded);
  return results;
}

// Only the first rank's inputs and the last rank's targets are used. The other ranks pass undefined tensors.
Tensor inputs_of(const Group& group, const Tensor& x) { return group->rank() == 0 ? x : Tensor(); }
Tensor targets_of(const Group& group, const Tensor& y) {
  return group->rank() + 1 == group->size() ? y : Tensor();
}

// Returns the loss of one batch, followed by the gradients, from a pipeline in one process.
Numbers in_one_process(int stages, const PipelineOptions& options, int samples) {
  std::vector<Chain> chains;
  std::vector<Stage> list;
  for (int s = 0; s < stages; ++s) chains.push_back(Chain::stage(s, stages));
  for (Chain& chain : chains) list.emplace_back(chain.modules(), kCPU);
  Pipeline pipeline(list, options);
  const auto [x, labels] = chain_batch(0, samples);
  Numbers found{pipeline.forward_backward(x, labels, chain_loss).item()};
  for (Chain& chain : chains)
    for (const double g : gradients_of(chain.parameters())) found.push_back(g);
  return found;
}

Numbers over_ranks(int stages, const PipelineOptions& options, int samples) {
  const auto ranks = on_ranks<std::pair<double, Numbers>>(stages, [&](const Group& group) {
    Chain chain = Chain::stage(group->rank(), stages);
    Pipeline pipeline(group, {chain.modules(), kCPU}, options);
    const auto [x, labels] = chain_batch(0, samples);
    const Tensor loss = pipeline.forward_backward(inputs_of(group, x), targets_of(group, labels), chain_loss);
    return std::pair(loss.item(), gradients_of(chain.parameters()));
  });
  Numbers found{ranks[0].first};
  for (const auto& [loss, gradients] : ranks) {
    if (loss != ranks[0].first) return {};  // every rank must return the same loss
    found.insert(found.end(), gradients.begin(), gradients.end());
  }
  return found;
}

}  // namespace

TEST_CASE("ranks compute the same bits as a pipeline in one process") {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
    for (int stages = 1; stages <= 4; ++stages)
      for (const int micro_batches : {1, 2, 3, 4, 8}) {
        INFO(schedule_name(schedule) << ", " << stages << " stages, " << micro_batches << " micro-batches");
        const PipelineOptions options{.schedule = schedule, .micro_batches = micro_batches};
        const Numbers expected = in_one_process(stages, options, 24), found = over_ranks(stages, options, 24);
        CHECK(found.size() == expected.size());
        CHECK(found == expected);
      }
}

TEST_CASE("no schedule deadlocks on a transport whose sends wait for the receiver") {
  for (const auto& transport : distributed_test::transports())
    for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
      for (const int stages : {2, 4}) {
        INFO(transport.name << ", " << schedule_name(schedule) << ", " << stages << " stages");
        const PipelineOptions options{.schedule = schedule, .micro_batches = 8};
        const double expected = in_one_process(stages, options, 16)[0];
        const auto train = [&](const Group& group) {
          Chain chain = Chain::stage(group->rank(), stages);
          Pipeline pipeline(group, {chain.modules(), kCPU}, options);
          const auto [x, labels] = chain_batch(0, 16);
          for (int pass = 0; pass < 3; ++pass)
            if (pipeline.forward_backward(x, labels, chain_loss).item() != expected) fail("another loss");
          pipeline(x);
        };
        CHECK_NOTHROW(distributed_test::run_ranks_well(transport, stages, train, kBounded));
      }
}

TEST_CASE("batches may have any size, also fewer samples than micro-batches") {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
    for (const int samples : {1, 3, 7, 64}) {
      INFO(schedule_name(schedule) << ", " << samples << " samples");
      const PipelineOptions options{.schedule = schedule, .micro_batches = 4, .uneven = true};
      CHECK(over_ranks(3, options, samples) == in_one_process(3, options, samples));
    }
}

namespace {

constexpr double kMaxNorm = 0.2;  // below the gradients' norm in most steps

// Returns the number of samples of a step. Every third batch is smaller.
int samples_of(int step) { return step % 3 == 2 ? 5 : 16; }

Numbers train_single() {
  Chain chain;
  optim::SGD optimizer(chain.parameters(), {.lr = 0.1, .momentum = 0.9});
  Numbers found;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, labels] = chain_batch(step, samples_of(step));
    optimizer.zero_grad();
    const Tensor loss = chain_loss(chain(x), labels);
    loss.backward();
    nn::clip_grad_norm_(chain.parameters(), kMaxNorm);
    optimizer.step();
    found.push_back(loss.item());
  }
  append(found, chain(chain_batch(0, 3).first));
  for (const double w : values_of(chain.parameters())) found.push_back(w);
  return found;
}

Numbers train_over_ranks(int stages, Schedule schedule) {
  const auto ranks = on_ranks<std::pair<Numbers, Numbers>>(stages, [&](const Group& group) {
    Chain chain = Chain::stage(group->rank(), stages);
    Pipeline pipeline(group, {chain.modules(), kCPU},
                      {.schedule = schedule, .micro_batches = 4, .uneven = true});
    optim::SGD optimizer(pipeline.parameters(), {.lr = 0.1, .momentum = 0.9});
    Numbers losses;
    for (int step = 0; step < kSteps; ++step) {
      const auto [x, labels] = chain_batch(step, samples_of(step));
      optimizer.zero_grad();
      losses.push_back(
          pipeline.forward_backward(inputs_of(group, x), targets_of(group, labels), chain_loss).item());
      pipeline.clip_grad_norm_(kMaxNorm);
      optimizer.step();
      if (step % 10 == 0) pipeline(inputs_of(group, chain_batch(step, 3).first));  // evaluate between steps
    }
    const Tensor scores = pipeline(inputs_of(group, chain_batch(0, 3).first));
    if (scores.defined() != (group->rank() + 1 == group->size())) fail("outputs belong to the last rank");
    if (scores.defined()) append(losses, scores);
    return std::pair(losses, values_of(chain.parameters()));
  });
  Numbers found = ranks.back().first;  // includes the scores
  for (const auto& [losses, weights] : ranks) {
    if (!std::equal(losses.begin(), losses.begin() + kSteps, found.begin())) return {};
    found.insert(found.end(), weights.begin(), weights.end());
  }
  return found;
}

}  // namespace

TEST_CASE("ranks train like the unsplit model, with clipping, evaluation between steps and shorter batches") {
  const Numbers expected = train_single();
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
    for (const int stages : {1, 2, 4}) {
      INFO(schedule_name(schedule) << ", " << stages << " stages");
      CHECK(apart(train_over_ranks(stages, schedule), expected) < 1e-10);
    }
}

TEST_CASE("clip_grad_norm_ clips the norm over all ranks as that of the unsplit model") {
  for (const double norm_type : {1.0, 2.0, static_cast<double>(INFINITY)})
    for (const double max_norm : {1e-3, 1e3}) {
      INFO("norm " << norm_type << ", at most " << max_norm);
      Chain whole;
      const auto [x, labels] = chain_batch(0, 8);
      chain_loss(whole(x), labels).backward();
      Numbers expected{nn::clip_grad_norm_(whole.parameters(), max_norm, norm_type).item()};
      for (const double g : gradients_of(whole.parameters())) expected.push_back(g);

      const auto ranks = on_ranks<Numbers>(3, [&, x = x, labels = labels](const Group& group) {
        Chain chain = Chain::stage(group->rank(), 3);
        Pipeline pipeline(group, {chain.modules(), kCPU}, {.micro_batches = 2});
        pipeline.forward_backward(inputs_of(group, x), targets_of(group, labels), chain_loss);
        Numbers found{pipeline.clip_grad_norm_(max_norm, norm_type).item()};
        for (const double g : gradients_of(chain.parameters())) found.push_back(g);
        return found;
      });
      Numbers found{ranks[0][0]};
      for (const Numbers& rank : ranks) {
        CHECK(rank[0] == ranks[0][0]);
        found.insert(found.end(), rank.begin() + 1, rank.end());
      }
      CHECK(apart(found, expected) < 1e-12);
    }
}

TEST_CASE("two pipelines of two stages train on halves of a batch if their gradients are averaged") {
  const int samples = 16;
  Chain whole;
  const auto [x, labels] = chain_batch(0, samples);
  Numbers expected{chain_loss(whole(x), labels).item()};
  chain_loss(whole(x), labels).backward();
  for (const double g : gradients_of(whole.parameters())) expected.push_back(g);

  // Ranks 0 and 1 hold the two stages of the first replica, and ranks 2 and 3 those of the second.
  const auto ranks = on_ranks<Numbers>(4, [&, x = x, labels = labels](const Group& world) {
    const int stage = world->rank() % 2, replica = world->rank() / 2;
    Group line, peers;
    for (const int r : {0, 1})
      if (const Group made = world->new_group({2 * r, 2 * r + 1})) line = made;
    for (const int s : {0, 1})
      if (const Group made = world->new_group({s, s + 2})) peers = made;
    Chain chain = Chain::stage(stage, 2);
    Pipeline pipeline(line, {chain.modules(), kCPU}, {.micro_batches = 4});
    Numbers found;
    for (int pass = 0; pass < 2; ++pass) {
      for (const nn::Parameter& p : pipeline.parameters()) p->zero_grad();
      const Tensor loss = pipeline.forward_backward(x.narrow(0, replica * 8, 8),
                                                    labels.narrow(0, replica * 8, 8), chain_loss);
      std::vector<Work> works{peers->all_reduce(loss, ReduceOp::mean)};
      for (const nn::Parameter& p : pipeline.parameters())
        works.push_back(peers->all_reduce(p->grad(), ReduceOp::mean));
      for (const Work& work : works) work.wait();
      found = {loss.item()};
    }
    for (const double g : gradients_of(chain.parameters())) found.push_back(g);
    return found;
  });
  for (const int replica : {0, 1}) {
    Numbers found = ranks[static_cast<std::size_t>(2 * replica)];
    const Numbers& second = ranks[static_cast<std::size_t>(2 * replica + 1)];
    CHECK(second[0] == found[0]);
    found.insert(found.end(), second.begin() + 1, second.end());
    CHECK(apart(found, expected) < 1e-12);
  }
}

TEST_CASE("all ranks name the stages whose optimizers have taken different numbers of steps") {
  for (const bool checks : {true, false}) {
    const auto texts = on_ranks<std::string>(3, [&](const Group& group) {
      Chain chain = Chain::stage(group->rank(), 3);
      Pipeline pipeline(group, {chain.modules(), kCPU}, {.micro_batches = 2, .check_steps = checks});
      std::optional<optim::SGD> optimizer;
      if (group->rank() != 2) optimizer.emplace(chain.parameters(), optim::SGDOptions{.lr = 0.1});
      for (int step = 0; step < 4; ++step) {
        const auto [x, labels] = chain_batch(step, 4);
        try {
          pipeline.forward_backward(x, labels, chain_loss);
        } catch (const ValueError& e) {
          return std::to_string(step) + " " + e.what();
        }
        if (optimizer && (group->rank() != 1 || step != 1)) optimizer->step();  // rank 1 skips a step
        pipeline(x);
      }
      return std::string("nothing");
    });
    for (const std::string& text : texts)
      CHECK_THAT(text,
                 ContainsSubstring(checks ? "2 [Pipeline] the optimizers of the stages have taken "
                                            "different numbers of steps since the last forward_backward():\n"
                                            "  rank 0  1 step\n  rank 1  0 steps\n"
                                          : "nothing"));
  }
}
