// A strategy that gives each rank one stage of a model trains as one process does, and keeps one stage on
// each rank.
#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tests/pipeline/strategy_job.h"
#include "tests/support/files.h"

using namespace strategy_job;
using distributed_test::on_ranks, distributed_test::require;

TEST_CASE("stages on ranks train a model with a tied weight, built on meta, as one process does") {
  Job one("none", nullptr);
  one.train(0, 5);
  for (const char* text : {"pipeline=3", "pipeline=3:schedule=zero-bubble"}) {
    CAPTURE(text);
    struct Seen {
      std::vector<double> losses, norms, scales;
      std::int64_t elements = 0, bytes = 0;
      nn::StateDict whole;
      double evaluated = 0;
    };
    const auto ranks = on_ranks<Seen>(3, [&](const Group& world) {
      Job job(text, world);
      job.train(0, 5);
      Seen seen{job.losses, job.norms, job.scales};
      for (const nn::Parameter& p : job.net->parameters()) seen.elements += p->numel();
      require(job.strategy.report().size() == 1, "one axis");
      seen.bytes = job.strategy.report()[0].bytes_sent;
      seen.whole = job.strategy.whole_state();
      seen.evaluated = job.evaluated();
      return seen;
    });
    one.net->eval();
    const double evaluated = cross_entropy((*one.net)(arange(kWords)), arange(kWords)).item();
    for (const Seen& seen : ranks) {
      for (std::size_t i = 0; i < 5; ++i) {
        CHECK(seen.losses[i] == Approx(one.losses[i]).epsilon(kClose));
        CHECK((i == 1 ? std::isinf(seen.norms[i]) : seen.norms[i] == Approx(one.norms[i]).epsilon(kClose)));
      }
      CHECK(seen.scales == std::vector<double>{4, 2, 2, 2, 2});
      CHECK(seen.evaluated == Approx(evaluated).epsilon(kClose));
    }
    CHECK(distance(ranks[0].whole, one.net->state_dict()) < kClose);
    // embed; fc1 and bn; fc2 and the tied weight again
    CHECK(ranks[0].elements == kWords * 4);
    CHECK(ranks[1].elements == 4 * 6 + 2 * 6);
    CHECK(ranks[2].elements == 6 * 4 + 4 + kWords * 4);
    // Features of 4 and 6 numbers of 4 bytes, their gradients, and the loss beside the last gradients.
    CHECK(ranks[0].bytes == kSamples * 4 * 4);
    CHECK(ranks[1].bytes == kSamples * (6 + 4) * 4 + 4);
    CHECK(ranks[2].bytes == kSamples * 6 * 4 + 4);
  }
}

TEST_CASE("checkpoints of stages on ranks resume bit for bit, and load into one process and back") {
  const tests::TempDir dir;
  const auto save = [&](Job& job, const Group& world, int step) {
    save_sharded(dir / std::to_string(step), world, job.training(), {.step = step});
  };
  const auto load = [&](Job& job, const Group& world, int step) {
    require(load_checkpoint(dir / std::to_string(step), world, job.training()).step == step, "the step");
  };
  const auto job_of = [&](const Group& world) { return Job(world ? "pipeline=3" : "none", world); };
  const auto whole = on_ranks<nn::StateDict>(3, [&](const Group& world) {
    Job first = job_of(world);
    first.train(0, 3);
    save(first, world, 3);
    first.train(3, 6);
    // The second save of a run that was resumed counts the steps of all parameters.
    Job second = job_of(world);
    load(second, world, 3);
    second.train(3, 4);
    save(second, world, 4);
    Job third = job_of(world);
    load(third, world, 4);
    third.train(4, 6);
    const nn::StateDict expected = first.strategy.whole_state(), resumed = third.strategy.whole_state();
    for (std::size_t i = 0; i < expected.size(); ++i)
      require(expected[i].second.equal(resumed[i].second), expected[i].first, " differs");
    return expected;
  });
  Job one = job_of(nullptr);
  load(one, nullptr, 4);
  one.train(4, 5);
  save(one, nullptr, 5);
  one.train(5, 6);
  CHECK(distance(one.net->state_dict(), whole[0]) < kClose);
  const auto back = on_ranks<nn::StateDict>(3, [&](const Group& world) {
    Job job = job_of(world);
    load(job, world, 5);
    job.train(5, 6);
    return job.strategy.whole_state();
  });
  CHECK(distance(back[0], whole[0]) < kClose);
}

TEST_CASE("stages that cannot be ranks are refused on all ranks") {
  const auto error = [](const std::function<std::vector<Stage>(Net&, const std::vector<Device>&)>& stages) {
    const auto errors = on_ranks<std::string>(2, [&](const Group& world) -> std::string {
      Strategy strategy("pipeline=2", {.world = world});
      const auto net = make_net(false);
      const auto mine = [&](const std::vector<Device>& on) { return stages(*net, on); };
      try {
        strategy.wrap(*net, {.forward = [](const Tensors& in) { return in; },
                             .loss = [](const Tensors& out, const Tensors&) -> Loss {
                               return {out[0], 1};
                             },
                             .stages = mine});
      } catch (const ValueError& e) {
        return e.what();
      }
      return "";
    });
    CHECK(errors[0] == errors[1]);
    return errors[0];
  };
  CHECK_THAT(error([](Net& net, const std::vector<Device>& on) {
               return std::vector<Stage>{{net.embed, on[0]}};
             }),
             ContainsSubstring("returned 1 stages for 2 ranks"));
  CHECK_THAT(error([](Net& net, const std::vector<Device>& on) {
               return std::vector<Stage>{{net.bn, on[0]}, {net.bn, on[1]}};
             }),
             ContainsSubstring("the buffer 'bn.running_mean' is in the stages of ranks 0 and 1"));
  CHECK_THAT(error([](Net& net, const std::vector<Device>& on) {
               return std::vector<Stage>{{net.embed, on[0]}, {net.bn, on[1]}};
             }),
             ContainsSubstring("the parameter 'fc1.weight' is in no stage"));
}
