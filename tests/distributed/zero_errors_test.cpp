// Tests that misuse of ZeroRedundancyOptimizer is an error on every rank, before anything changes.
#include "tests/distributed/zero_support.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::Group, distributed_test::on_ranks, distributed_test::require;
using Zero = ZeroRedundancyOptimizer<optim::AdamW>;

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// Runs fn on 2 ranks and checks that the text is in the error of each.
void check_errors(const std::string& expected, const std::function<void(const Group&)>& fn) {
  const auto errors = on_ranks<std::string>(2, [&](const Group& g) { return error_of([&] { fn(g); }); });
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(error.find(expected) != std::string::npos);
  }
}

nn::LinearOptions small() { return {.in_features = 5, .out_features = 3}; }

// One rank's model in DDP with a ZeRO optimizer.
struct Job {
  nn::Linear net{small()};
  DistributedDataParallel<nn::Linear> ddp;
  Zero optimizer;
  Job(const Group& g, int stage)
      : ddp(net, {.process_group = g}), optimizer(net.parameters(), {.process_group = g, .stage = stage}) {}
  void backward() { ddp(ones({2, 5})).sum().backward(); }
};

}  // namespace

TEST_CASE("ZeroRedundancyOptimizer refuses bad arguments on every rank") {
  check_errors("process_group is null", [](const Group&) {
    nn::Linear net(small());
    Zero(net.parameters(), {});
  });
  check_errors("stage is 3", [](const Group& g) {
    nn::Linear net(small());
    Zero(net.parameters(), {.process_group = g, .stage = 3});
  });
  check_errors("lr must not be negative", [](const Group& g) {
    nn::Linear net(small());
    Zero(net.parameters(), {.process_group = g}, {.lr = g->rank() == 1 ? -1.0 : 0.1});
  });
  check_errors("group 0 lr", [](const Group& g) {
    nn::Linear net(small());
    Zero(net.parameters(), {.process_group = g}, {.lr = g->rank() == 1 ? 0.2 : 0.1});
  });
  check_errors("ranks differ", [](const Group& g) {
    nn::Linear net({.in_features = 5 + g->rank(), .out_features = 3});
    Zero(net.parameters(), {.process_group = g});
  });
  check_errors("bucket_cap_mb is 0", [](const Group& g) {
    nn::Linear net(small());
    Zero(net.parameters(), {.process_group = g, .bucket_cap_mb = 0});
  });
  check_errors("no parameter requires gradients", [](const Group& g) {
    nn::Linear net(small());
    for (const nn::Parameter& p : net.parameters()) p.requires_grad_(false);
    Zero(net.parameters(), {.process_group = g});
  });
  check_errors("given twice", [](const Group& g) {
    nn::Linear net(small());
    Zero({net.weight, net.weight}, {.process_group = g});
  });
  check_errors("shares memory", [](const Group& g) {
    nn::Linear net(small());
    Zero({net.weight, nn::Parameter("view", net.weight.detach())}, {.process_group = g});
  });
  check_errors("Muon computes with whole tensors", [](const Group& g) {
    nn::Linear net(small());
    ZeroRedundancyOptimizer<optim::Muon>({net.weight}, {.process_group = g});
  });
  check_errors("LBFGS computes with whole tensors", [](const Group& g) {
    nn::Linear net(small());
    ZeroRedundancyOptimizer<optim::LBFGS>(net.parameters(), {.process_group = g});
  });
}

TEST_CASE("stage 2 refuses a model that it cannot divide") {
  check_errors("wrap the model in DistributedDataParallel first", [](const Group& g) {
    nn::Linear net(small());
    Zero(net.parameters(), {.process_group = g, .stage = 2});
  });
  check_errors("bias is trained by the DistributedDataParallel", [](const Group& g) {
    nn::Linear net(small());
    DistributedDataParallel ddp(net, {.process_group = g});
    Zero({net.weight}, {.process_group = g, .stage = 2});
  });
  check_errors("is no trained parameter of the DistributedDataParallel", [](const Group& g) {
    nn::Linear net(small()), other(small());
    DistributedDataParallel ddp(net, {.process_group = g});
    std::vector<nn::Parameter> all = net.parameters();
    all.push_back(other.weight);
    Zero(all, {.process_group = g, .stage = 2});
  });
  check_errors("divided already", [](const Group& g) {
    Job job(g, 2);
    Zero(job.net.parameters(), {.process_group = g, .stage = 2});
  });
  check_errors("not the group of the DistributedDataParallel", [](const Group& g) {
    nn::Linear net(small());
    DistributedDataParallel ddp(net, {.process_group = g});
    const auto other = g->new_group({0, 1});
    Zero(net.parameters(), {.process_group = other, .stage = 2});
  });
}

TEST_CASE("step() of ZeRO fails on every rank if one rank cannot step, and changes nothing") {
  for (const int stage : {1, 2}) {
    const auto fails = [&](const std::string& expected, const std::function<void(Job&, const Group&)>& fn) {
      INFO("stage " << stage);
      check_errors(expected, [&](const Group& g) {
        Job job(g, stage);
        job.backward();
        const std::vector<double> before = to_vector(job.net.weight);
        const std::string error = error_of([&] { fn(job, g); });
        require(to_vector(job.net.weight) == before, "the weight changed");
        fail(error);
      });
    };
    fails("no parameter has a gradient", [](Job& job, const Group&) {
      job.optimizer.zero_grad();
      job.optimizer.step();
    });
    fails("no parameter has a gradient", [](Job& job, const Group& g) {
      if (g->rank() == 1) job.optimizer.zero_grad();
      job.optimizer.step();
    });
    fails("group 0 lr 0.5", [](Job& job, const Group& g) {
      if (g->rank() == 1) job.optimizer.set_lr(0.5);
      job.optimizer.step();
    });
    fails("grad_scale 0.5", [](Job& job, const Group& g) {
      if (g->rank() == 0) job.optimizer.set_grad_scale(0.5);
      job.optimizer.step();
    });
    fails("bias has no gradient", [](Job& job, const Group& g) {
      if (g->rank() == 0) job.net.bias.zero_grad();
      job.optimizer.step();
    });
    fails("is not the tensor that it was", [](Job& job, const Group& g) {
      if (g->rank() == 0) job.net.bias.set_replica(0, zeros({3}).set_requires_grad());
      job.optimizer.step();
    });
  }
  check_errors("weight has a gradient, but was frozen", [](const Group& g) {
    nn::Linear net(small());
    net.weight.requires_grad_(false);
    DistributedDataParallel ddp(net, {.process_group = g});
    Zero optimizer(net.parameters(), {.process_group = g});
    net.weight.requires_grad_();
    net(ones({1, 5})).sum().backward();
    try {
      optimizer.step();
    } catch (const Error& e) {
      const std::string text = e.what();
      fail(text.find("of shape [3, 5] has a gradient, but was frozen") == std::string::npos
               ? text
               : "weight has a gradient, but was frozen");
    }
  });
}

TEST_CASE("stage 2 refuses gradients that were not averaged, and reads of divided ones") {
  check_errors("a pass under no_sync() came after it", [](const Group& g) {
    Job job(g, 2);
    job.backward();
    {
      const auto alone = job.ddp.no_sync();
      job.backward();
    }
    job.optimizer.step();
  });
  check_errors("a pass under no_sync() came after it", [](const Group& g) {
    Job job(g, 2);
    if (g->rank() == 0) job.net.bias.set_grad(ones({3}));
    job.net.weight.set_grad(ones({3, 5}));
    job.optimizer.step();
  });
  check_errors("it is the gradient of weight, which ZeroRedundancyOptimizer with stage 2 divides",
               [](const Group& g) {
                 Job job(g, 2);
                 job.backward();
                 require(job.net.weight.grad().sizes() == Shape({3, 5}), "no gradient");
                 job.net.weight.grad().sum();
               });
  check_errors("without set_to_none = false", [](const Group& g) {
    Job job(g, 2);
    job.backward();
    job.optimizer.zero_grad(false);
  });
}

TEST_CASE("DDP and ZeRO may be destroyed in any order") {
  check_errors("was destroyed", [](const Group& g) {
    nn::Linear net(small());
    auto ddp = std::make_unique<DistributedDataParallel<nn::Linear>>(net, DdpOptions{.process_group = g});
    Zero optimizer(net.parameters(), {.process_group = g, .stage = 2});
    (*ddp)(ones({2, 5})).sum().backward();
    optimizer.step();
    ddp.reset();
    require(!net.weight.grad().defined(), "a divided gradient outlived its reducer");
    optimizer.consolidate_state_dict();
    net(ones({2, 5})).sum().backward();
    optimizer.step();
  });
  on_ranks<int>(2, [](const Group& g) {
    nn::Linear net(small());
    DistributedDataParallel ddp(net, {.process_group = g});
    {
      Zero optimizer(net.parameters(), {.process_group = g, .stage = 2});
      ddp(ones({2, 5})).sum().backward();
    }
    require(!net.weight.grad().defined(), "a divided gradient outlived its optimizer");
    ddp(ones({2, 5})).sum().backward();
    require(to_vector(net.bias.grad()) == std::vector<double>{2, 2, 2}, "DDP averages again");
    return 0;
  });
}

TEST_CASE("backward of ZeRO's stage 2 can be tried again after an exception in a hook") {
  on_ranks<int>(2, [](const Group& g) {
    Job job(g, 2);
    job.backward();
    job.optimizer.step();
    job.optimizer.zero_grad();
    bool throws = true;
    HookHandle hook = job.net.weight.register_hook([&](const Tensor&) -> Tensor {
      if (throws) throw std::runtime_error("stop");
      return {};
    });
    try {
      job.backward();
      require(false, "no exception");
    } catch (const std::runtime_error& e) {
      require(std::string(e.what()).find("stop") != std::string::npos, e.what());
    }
    throws = false;
    job.optimizer.zero_grad();
    job.backward();
    const std::vector<double> before = to_vector(job.net.bias);
    job.optimizer.step();
    require(to_vector(job.net.bias) != before, "no step");
    return 0;
  });
}
