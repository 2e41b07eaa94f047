// A fault on one rank of a pipeline must throw on all ranks, with stage, rank and cause, and no rank may
// hang.
#include "tapestry/tapestry.h"
#include "tests/pipeline/rank_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using distributed_test::Group;
using distributed_test::Outcome;
using distributed_test::run_ranks;
using distributed_test::transports;

namespace {

// With this long timeout, a rank that throws before kSoon was told of the fault and did not time out.
constexpr GroupOptions kLongTimeout{.timeout = Milliseconds(120'000)};
constexpr int kRanks = 3, kMicroBatches = 4;
constexpr double kSoon = 30;  // seconds, on a busy machine

struct Timed {
  std::vector<Outcome> outcomes;
  double seconds = 0;
};

Timed on_ranks(const std::function<void(const Group&)>& fn) {
  const auto begin = Clock::now();
  Timed timed{run_ranks(transports()[0], kRanks, fn, kLongTimeout), 0};
  timed.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return timed;
}

// Returns a stage that calls `fault` for micro-batch 1 and `chain` for the others.
Stage faulty_stage(Chain& chain, const std::function<Tensor(const Tensor&)>& fault) {
  return {[&chain, fault, count = std::make_shared<int>(0)](const Tensor& x) {
            return (*count)++ == 1 ? fault(x) : chain(x);
          },
          kCPU, chain.modules()};
}

// Trains and evaluates on all ranks. The stage of rank `guilty` calls `fault` for one micro-batch. Every rank
// must throw in the first or the second call.
Timed train_with(int guilty, Schedule schedule, const std::function<Tensor(Chain&, const Tensor&)>& fault) {
  return on_ranks([&](const Group& group) {
    Chain chain = Chain::stage(group->rank(), kRanks);
    const Stage stage = group->rank() == guilty
                            ? faulty_stage(chain, [&](const Tensor& x) { return fault(chain, x); })
                            : Stage(chain.modules(), kCPU);
    Pipeline pipeline(group, stage, {.schedule = schedule, .micro_batches = kMicroBatches});
    const auto [x, labels] = chain_batch(0, 8);
    try {
      pipeline.forward_backward(x, labels, chain_loss);  // a rank may finish before another one fails
    } catch (const std::exception&) {
    }
    pipeline(x);
    throw std::runtime_error("a failed group went on");
  });
}

}  // namespace

TEST_CASE("if a stage throws in forward, all ranks throw with stage, rank, micro-batch and cause") {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
    for (int guilty = 0; guilty < kRanks; ++guilty) {
      INFO(schedule_name(schedule) << ", rank " << guilty);
      const Timed timed = train_with(
          guilty, schedule, [](Chain&, const Tensor&) -> Tensor { throw std::runtime_error("boom"); });
      CHECK(timed.seconds < kSoon);
      const std::string rank = std::to_string(guilty);
      for (const Outcome& outcome : timed.outcomes) {
        CHECK_THAT(outcome.error, ContainsSubstring("boom") && ContainsSubstring("stage " + rank) &&
                                      ContainsSubstring("forward of micro-batch 1") &&
                                      ContainsSubstring("rank " + rank + " on cpu:0") &&
                                      ContainsSubstring("rank " + rank + " aborted the group"));
        CHECK(outcome.distributed);
        CHECK_FALSE(outcome.timeout);
      }
    }
}

TEST_CASE("if a stage throws in backward, all ranks throw") {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
    for (int guilty = 0; guilty < kRanks; ++guilty) {
      INFO(schedule_name(schedule) << ", rank " << guilty);
      const Timed timed = train_with(guilty, schedule, [](Chain& chain, const Tensor& x) {
        const Tensor y = chain(x);
        y.register_hook([](const Tensor&) -> Tensor { throw OutOfMemoryError("no room for gradients"); });
        return y;
      });
      CHECK(timed.seconds < kSoon);
      for (const Outcome& outcome : timed.outcomes)
        CHECK_THAT(outcome.error, ContainsSubstring("no room for gradients") &&
                                      ContainsSubstring("stage " + std::to_string(guilty)) &&
                                      ContainsSubstring(" of micro-batch 1"));
    }
}

TEST_CASE(
    "the failing rank throws the original type, and all ranks get the message of wrong shapes and losses") {
  struct Fault {
    int guilty;
    std::function<Tensor(Chain&, const Tensor&)> stage;
    std::function<Tensor(const Tensor&, const Tensor&)> loss;
    std::string told;
  };
  const auto whole = [](Chain& chain, const Tensor& x) { return chain(x); };
  const std::vector<Fault> faults = {
      // The next stage must report the wrong output.
      {1, [](Chain& c, const Tensor& x) { return c(x).flatten(0); }, chain_loss, "stage 1, Part, forward"},
      {1, [](Chain&, const Tensor&) { return Tensor(); }, chain_loss, "stage 0, Part, forward"},
      {2, whole, [](const Tensor& s, const Tensor&) { return s; }, "the loss is float64 [2, 4]"},
      {2, whole, [](const Tensor& s, const Tensor&) { return s.argmax().flatten(0); }, "the loss is int64"},
      {2, whole, [](const Tensor&, const Tensor&) { return Tensor(); }, "the loss is undefined"}};
  for (const Fault& fault : faults) {
    INFO(fault.told);
    const int guilty = fault.told.starts_with("stage 0") ? 0 : fault.guilty;
    std::vector<char> own_type(kRanks);
    const Timed timed = on_ranks([&](const Group& group) {
      Chain chain = Chain::stage(group->rank(), kRanks);
      const bool bad_stage = group->rank() == (fault.told.starts_with("stage") ? 0 : -1);
      const Stage stage = bad_stage
                              ? faulty_stage(chain, [&](const Tensor& x) { return fault.stage(chain, x); })
                              : Stage(chain.modules(), kCPU);
      Pipeline pipeline(group, stage, {.micro_batches = kMicroBatches});
      const auto [x, labels] = chain_batch(0, 8);
      try {
        pipeline.forward_backward(x, labels, fault.loss);
      } catch (const DistributedError&) {
        throw;
      } catch (const Error&) {
        own_type[static_cast<std::size_t>(group->rank())] = true;
        throw;
      }
    });
    CHECK(timed.seconds < kSoon);
    for (int r = 0; r < kRanks; ++r) {
      CHECK_THAT(timed.outcomes[static_cast<std::size_t>(r)].error,
                 ContainsSubstring(fault.told) && ContainsSubstring("stage " + std::to_string(guilty)));
      CHECK(static_cast<bool>(own_type[static_cast<std::size_t>(r)]) == (r == guilty));
    }
  }
}

TEST_CASE("different options or a bad stage throw on all ranks at construction, and a second attempt works") {
  const auto outcomes = run_ranks(
      transports()[0], 2,
      [&](const Group& group) {
        Chain chain = Chain::stage(group->rank(), 2);
        const bool first = group->rank() == 0;
        const std::vector<std::pair<PipelineOptions, const char*>> seconds = {
            {{.micro_batches = 3}, "1f1b, 3 micro-batches"},
            {{.schedule = Schedule::gpipe, .micro_batches = 2}, "gpipe, 2 micro-batches"},
            {{.micro_batches = 2, .uneven = true}, "uneven sizes allowed"}};
        for (const auto& [second, text] : seconds) {
          const PipelineOptions options = first ? PipelineOptions{.micro_batches = 2} : second;
          try {
            Pipeline pipeline(group, {chain.modules(), kCPU}, options);
            throw std::runtime_error("nobody noticed");
          } catch (const ValueError& e) {
            for (const char* part : {"rank 0  1f1b, 2 micro-batches", "rank 1  ", text})
              if (std::string(e.what()).find(part) == std::string::npos) throw;
          }
        }
        for (const bool no_device : {false, true}) {
          try {
            Pipeline pipeline(group, {chain.modules(), no_device && !first ? Device("cpu:63") : kCPU},
                              {.micro_batches = no_device || first ? 1 : 0});
            throw std::runtime_error("nobody noticed");
          } catch (const Error& e) {
            const std::string text = e.what();
            if (first && text.find("rank 1 could not take part") == std::string::npos) throw;
            if (text.find(no_device ? "cpu:63" : "0 micro-batches") == std::string::npos) throw;
          }
        }
        Pipeline pipeline(group, {chain.modules(), kCPU}, {.micro_batches = 2});
        const auto [x, labels] = chain_batch(0, 4);
        if (!(pipeline.forward_backward(x, labels, chain_loss).item() > 0))
          throw std::runtime_error("no loss");
      },
      kLongTimeout);
  for (const Outcome& outcome : outcomes) CHECK(outcome.error == "");
  Chain chain;
  CHECK_THROWS_WITH(Pipeline(Group(), Stage(chain.modules(), kCPU), {}),
                    ContainsSubstring("process group is null"));
}

TEST_CASE("a bad batch is an error on all ranks, and the next batch trains") {
  const auto outcomes = run_ranks(
      transports()[0], 2,
      [&](const Group& group) {
        Chain chain = Chain::stage(group->rank(), 2);
        const bool first = group->rank() == 0;
        Pipeline pipeline(group, {chain.modules(), kCPU}, {.micro_batches = 4});
        const auto [x, labels] = chain_batch(0, 8);
        const auto refused = [&](const Tensor& inputs, const Tensor& targets, const char* text) {
          try {
            pipeline.forward_backward(inputs, targets, chain_loss);
            throw std::runtime_error(std::string("nobody noticed: ") + text);
          } catch (const Error& e) {
            if (std::string(e.what()).find(text) == std::string::npos) throw;
          }
        };
        const Tensor seven = x.narrow(0, 0, 7), few = labels.narrow(0, 0, 4);
        for (int pass = 0; pass < 2; ++pass) {
          refused(first ? seven : Tensor(), labels,
                  "a batch of 7 samples is not divisible into 4 micro-batches");
          refused(x, few, "rank 0 has inputs of 8 samples, and rank 1 targets of 4");
          refused(Tensor(), labels, "the batch has no tensor to split");
          refused(x, Tensor(), "the batch has no tensor to split");
          refused(x, x.detach().set_requires_grad(), "requires gradients, but only inputs");
          {
            std::optional<NoGradGuard> off;
            if (first) off.emplace();
            refused(x, labels, "with gradients switched off");
          }
          if (!first) chain.modules()[0].get().to("cpu:1");
          refused(x, labels, "of stage 1 (Part) is on cpu:1");
          if (!first) chain.modules()[0].get().to(kCPU);
          for (const nn::Parameter& p : chain.parameters())
            if (p->grad().defined() && pass == 0) throw std::runtime_error("a gradient of a refused batch");
          if (!(pipeline.forward_backward(x, labels, chain_loss).item() > 0))
            throw std::runtime_error("no loss");
        }
      },
      kLongTimeout);
  for (const Outcome& outcome : outcomes) CHECK(outcome.error == "");
}

TEST_CASE("bad or different arguments of clip_grad_norm_ are an error on all ranks") {
  const Timed timed = on_ranks([](const Group& group) {
    Chain chain = Chain::stage(group->rank(), kRanks);
    Pipeline pipeline(group, {chain.modules(), kCPU}, {.micro_batches = 2});
    const auto [x, labels] = chain_batch(0, 8);
    pipeline.forward_backward(x, labels, chain_loss);
    const bool guilty = group->rank() == 1;
    const auto expect = [&](double max_norm, double norm_type, bool strict, const char* own,
                            const char* others) {
      try {
        if (guilty) pipeline.clip_grad_norm_(max_norm, norm_type, strict);
        else pipeline.clip_grad_norm_(1);
      } catch (const Error& e) {
        if (std::string(e.what()).find(guilty ? own : others) == std::string::npos) throw;
        return;
      }
      throw std::runtime_error("nobody noticed");
    };
    const char* const told = "rank 1 could not take part in the call: [clip_grad_norm_] ";
    expect(-1, 2, false, "[clip_grad_norm_] max_norm must not be negative but is -1", told);
    expect(1, 0, false, "[clip_grad_norm_] norm_type must be positive but is 0", told);
    expect(std::nan(""), 2, false, "max_norm must not be negative but is nan", told);
    expect(0.5, 2, false, "rank 1  max_norm 0.5, norm_type 2", "rank 0  max_norm 1, norm_type 2");
    expect(1, 1, false, "rank 1  max_norm 1, norm_type 1", "different arguments");
    expect(1, 2, true, "rank 1  max_norm 1, norm_type 2, error_if_nonfinite", "different arguments");
    const nn::Parameter weight = chain.parameters()[0];
    const Tensor grad = weight->grad();
    if (guilty) weight->set_grad(grad.detach().clone().fill_(INFINITY));
    expect(1, 2, true, "different arguments", "different arguments");
    try {
      pipeline.clip_grad_norm_(1, 2, true);
      throw std::runtime_error("nobody noticed");
    } catch (const ValueError& e) {
      if (std::string(e.what()).find("the norm of the gradients is inf") == std::string::npos) throw;
    }
    weight->set_grad(grad);
    pipeline.clip_grad_norm_(1);
    pipeline.forward_backward(x, labels, chain_loss);
  });
  CHECK(timed.seconds < kSoon);
  for (const Outcome& outcome : timed.outcomes) CHECK(outcome.error == "");
}

TEST_CASE("too many output tensors throw on all ranks, with the stage that returned them") {
  const auto outcomes = run_ranks(
      transports()[0], 2,
      [&](const Group& group) {
        const auto first = [](const Tensor& x) { return std::vector<Tensor>(33, x); };
        const auto last = [](const std::vector<Tensor>& x) { return x[0]; };
        const Stage stage = group->rank() == 0 ? Stage(first, kCPU) : Stage(last, kCPU);
        Pipeline pipeline(group, stage);
        pipeline(chain_batch(0, 4).first);
      },
      kLongTimeout);
  for (const Outcome& outcome : outcomes)
    CHECK_THAT(outcome.error, ContainsSubstring("33 tensors from one stage to the next") &&
                                  ContainsSubstring("(stage 0, function, forward of micro-batch 0, rank 0"));
}

TEST_CASE("a stage on a device that does not exist is an error on all ranks, and a second attempt works") {
  const auto outcomes = run_ranks(
      transports()[0], 2,
      [&](const Group& group) {
        Chain chain = Chain::stage(group->rank(), 2);
        try {
          Pipeline(group,
                   {chain.modules(), Device(DeviceType::cpu, group->rank() == 0 ? 0 : kMaxDevices - 1)});
          throw std::runtime_error("nobody noticed");
        } catch (const Error& e) {
          const std::string text = e.what();
          if (text.find("does not exist") == std::string::npos ||
              text.find("(stage 1, Part)") == std::string::npos)
            throw;
        }
        Pipeline pipeline(group, {chain.modules(), kCPU});
        const auto [x, labels] = chain_batch(0, 8);
        pipeline.forward_backward(x, labels, chain_loss);
      },
      kLongTimeout);
  for (const Outcome& outcome : outcomes) CHECK(outcome.error == "");
}

TEST_CASE("if ranks make different calls, the error says which rank called what") {
  const auto outcomes = run_ranks(
      transports()[0], 2,
      [&](const Group& group) {
        Chain chain = Chain::stage(group->rank(), 2);
        Pipeline pipeline(group, {chain.modules(), kCPU}, {});
        const auto [x, labels] = chain_batch(0, 4);
        if (group->rank() == 0) pipeline.forward_backward(x, labels, chain_loss);
        else pipeline(x);
      },
      kLongTimeout);
  for (const Outcome& outcome : outcomes)
    CHECK_THAT(outcome.error, ContainsSubstring("rank 0 called") && ContainsSubstring("pipeline: training") &&
                                  ContainsSubstring("pipeline: evaluation"));
}

TEST_CASE("the other ranks name a rank that leaves during training") {
  const auto begin = Clock::now();
  const auto outcomes = run_ranks(
      transports()[0], kRanks,
      [&](const Group& group) {
        Chain chain = Chain::stage(group->rank(), kRanks);
        Pipeline pipeline(group, {chain.modules(), kCPU}, {.micro_batches = 2});
        const auto [x, labels] = chain_batch(0, 4);
        for (int step = 0; step < 3; ++step) {
          if (step == 2 && group->rank() == 1) return;
          pipeline.forward_backward(x, labels, chain_loss);
        }
      },
      kLongTimeout);
  CHECK(std::chrono::duration<double>(Clock::now() - begin).count() < kSoon);
  CHECK(outcomes[1].error == "");
  for (const int r : {0, 2})
    CHECK_THAT(outcomes[static_cast<std::size_t>(r)].error, ContainsSubstring("rank 1 has left"));
}
