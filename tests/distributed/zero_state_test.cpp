// Tests that the state of ZeroRedundancyOptimizer is saved and loaded at any number of ranks and without it.
#include "tests/distributed/zero_support.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using tests::TempDir;

namespace {

using distributed_test::Group, distributed_test::on_ranks, distributed_test::require;
using Zero = ZeroRedundancyOptimizer<optim::AdamW>;

constexpr int kBefore = 4, kAfter = 3;

// One rank's model and optimizer. Stage 0 is DDP alone.
struct Run {
  Group group;
  UnevenNet net;
  DistributedDataParallel<UnevenNet> ddp;
  std::unique_ptr<optim::Optimizer> optimizer;

  Run(const Group& g, int stage, DType dtype = DType::f32)
      : group(g), net(dtype), ddp(net, {.process_group = g, .bucket_cap_mb = 1e-3}) {
    if (stage == 0)
      optimizer = std::make_unique<optim::AdamW>(net.parameters(), optim::AdamWOptions{.lr = 0.01});
    else
      optimizer = std::make_unique<Zero>(
          net.parameters(), ZeroOptions{.process_group = g, .stage = stage, .bucket_cap_mb = 1e-3},
          optim::AdamWOptions{.lr = 0.01});
  }
  Zero& zero() { return dynamic_cast<Zero&>(*optimizer); }
  // All ranks train on the same data, so that the number of ranks does not matter (2 and 4 divide exactly).
  void train(int first, int steps) {
    for (int step = first; step < first + steps; ++step) {
      const auto [x, labels] = uneven_batch(step, 0);
      net.use_rare = step % 3 == 0;
      optimizer->zero_grad();
      cross_entropy(ddp(x.to(net.wide.weight.dtype())), labels).backward();
      optimizer->step();
    }
  }
};

struct Saved {
  nn::StateDict model, optimizer;
};

Saved copy(const nn::StateDict& model, const nn::StateDict& optimizer) {
  Saved s;
  for (const auto& [name, t] : model) s.model.emplace_back(name, t.clone());
  for (const auto& [name, t] : optimizer) s.optimizer.emplace_back(name, t.clone());
  return s;
}

// Trains kBefore steps and returns rank `to`'s consolidated state, or that of DDP.
Saved save(int ranks, int stage, int to = 0, DType dtype = DType::f32) {
  const auto results = on_ranks<Saved>(ranks, [&](const Group& g) {
    Run run(g, stage, dtype);
    run.train(0, kBefore);
    if (stage > 0) run.zero().consolidate_state_dict(to);
    if (g->rank() != to) return Saved();
    return copy(run.net.state_dict(), run.optimizer->state_dict());
  });
  return results[static_cast<std::size_t>(to)];
}

StateDictCopy go_on(int ranks, int stage, const Saved& saved) {
  const auto results = on_ranks<StateDictCopy>(ranks, [&](const Group& g) {
    Run run(g, stage, saved.model[0].second.dtype());
    run.net.load_state_dict(saved.model);
    run.optimizer->load_state_dict(saved.optimizer);
    run.train(kBefore, kAfter);
    return copy_state(run.net);
  });
  for (const StateDictCopy& r : results) CHECK(distance(r, results[0]) == 0);
  return results[0];
}

}  // namespace

TEST_CASE("a consolidated state is that of the optimizer without ZeRO and loads at any number of ranks") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    INFO(dtype);
    const Saved plain = save(2, 0, 0, dtype);
    const StateDictCopy expected = go_on(2, 0, plain);
    for (const int stage : {1, 2}) {
      const Saved saved = save(4, stage, stage, dtype);
      REQUIRE(saved.optimizer.size() == plain.optimizer.size());
      REQUIRE((nn::find(saved.optimizer, "state.0.master_param") != nullptr) == (dtype == DType::bf16));
      for (std::size_t i = 0; i < saved.optimizer.size(); ++i) {
        INFO(saved.optimizer[i].first);
        CHECK(saved.optimizer[i].first == plain.optimizer[i].first);
        CHECK(saved.optimizer[i].second.dtype() == plain.optimizer[i].second.dtype());
        CHECK(saved.optimizer[i].second.sizes() == plain.optimizer[i].second.sizes());
        CHECK(to_vector(saved.optimizer[i].second) == to_vector(plain.optimizer[i].second));
      }
      CHECK(distance(go_on(2, 0, saved), expected) == 0);
      CHECK(distance(go_on(1, stage, saved), expected) == 0);
      CHECK(distance(go_on(2, 3 - stage, saved), expected) == 0);
      CHECK(distance(go_on(4, stage, plain), expected) == 0);
    }
  }
}

TEST_CASE("a local state resumes on the rank that saved it, bit for bit") {
  for (const auto& [stage, dtype] : {std::pair(1, DType::f32), {2, DType::f32}, {2, DType::bf16}}) {
    const auto parts = on_ranks<Saved>(3, [&, stage = stage, dtype = dtype](const Group& g) {
      Run run(g, stage, dtype);
      run.train(0, kBefore);
      Saved s = copy(run.net.state_dict(), run.zero().local_state_dict());
      run.train(kBefore, kAfter);
      for (const auto& [name, t] : run.net.state_dict()) s.model.emplace_back("end." + name, t.clone());
      return s;
    });
    on_ranks<int>(3, [&, stage = stage, dtype = dtype](const Group& g) {
      const Saved& own = parts[static_cast<std::size_t>(g->rank())];
      Run run(g, stage, dtype);
      nn::StateDict model;
      for (const auto& entry : own.model)
        if (!entry.first.starts_with("end.")) model.push_back(entry);
      run.net.load_state_dict(model);
      run.optimizer->load_state_dict(own.optimizer);
      run.train(kBefore, kAfter);
      for (const auto& [name, t] : run.net.state_dict())
        require(to_vector(t) == to_vector(*nn::find(own.model, "end." + name)), name, " differs");
      std::string error;
      try {
        run.optimizer->load_state_dict(parts[static_cast<std::size_t>((g->rank() + 1) % 3)].optimizer);
      } catch (const ValueError& e) {
        error = e.what();
      }
      require(error.find("of 3 ranks, but this is rank") != std::string::npos,
              "another rank's part: ", error);
      return 0;
    });
  }
}

TEST_CASE("a Checkpointer collects the divided state and saves it") {
  const TempDir folder;
  for (const int stage : {1, 2}) {
    const std::string path = folder / std::to_string(stage);
    const auto results = on_ranks<StateDictCopy>(2, [&](const Group& g) {
      Run run(g, stage);
      optim::StepLR schedule(*run.optimizer, {.step_size = 2, .gamma = 0.5});
      Checkpointer checkpoints(path, g);
      run.train(0, kBefore);
      schedule.step();
      checkpoints.save({&run.net, run.optimizer.get(), &schedule}, {.step = kBefore});
      run.train(kBefore, kAfter);
      return copy_state(run.net);
    });
    for (const int into : {stage, 0})
      on_ranks<int>(2, [&](const Group& g) {
        Run run(g, into);
        optim::StepLR schedule(*run.optimizer, {.step_size = 2, .gamma = 0.5});
        Checkpointer checkpoints(path, g);
        const auto progress = checkpoints.resume({&run.net, run.optimizer.get(), &schedule});
        require(progress && progress->step == kBefore, "no checkpoint");
        run.train(kBefore, kAfter);
        require(distance(copy_state(run.net), results[0]) == 0, "the resumed run differs");
        return 0;
      });
  }
}

TEST_CASE("a wrong state dict is refused and nothing is loaded") {
  on_ranks<int>(2, [](const Group& g) {
    Run run(g, 2);
    run.train(0, 2);
    run.zero().consolidate_state_dict(g->size() - 1);
    if (g->rank() == 0) {
      std::string error;
      try {
        run.optimizer->state_dict();
      } catch (const ValueError& e) {
        error = e.what();
      }
      require(error.find("consolidate_state_dict(0)") != std::string::npos, "not consolidated: ", error);
      return 0;
    }
    nn::StateDict dict = run.optimizer->state_dict();
    const nn::StateDict before = run.zero().local_state_dict();
    const auto refuses = [&](const std::string& expected) {
      std::string error;
      try {
        run.optimizer->load_state_dict(dict);
      } catch (const ValueError& e) {
        error = e.what();
      }
      require(error.find(expected) != std::string::npos, "expected \"", expected, "\" in: ", error);
      const nn::StateDict now = run.zero().local_state_dict();
      for (std::size_t i = 0; i < now.size(); ++i)
        require(now[i].first == before[i].first && to_vector(now[i].second) == to_vector(before[i].second),
                now[i].first, " changed");
    };
    const auto key = [&](const std::string& name) -> Tensor& {
      for (auto& [k, t] : dict)
        if (k == name) return t;
      throw std::runtime_error(name);
    };
    const Tensor good = key("state.0.exp_avg");
    key("state.0.exp_avg") = zeros({7});
    refuses("wrong shape: state.0.exp_avg expected");
    key("state.0.exp_avg") = good;
    key("groups.0.lr") = full({}, -1.0, DType::f64);
    refuses("lr must not be negative");
    dict.emplace_back("state.0.more", zeros({}));
    refuses("unexpected: state.0.more");
    return 0;
  });
}
