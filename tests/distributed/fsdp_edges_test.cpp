// Tests fully_shard where programs differ from a plain training loop: passes that use a part of the model,
// several forwards, exceptions, tied weights, and graphs that outlive what they need.
#include <cmath>
#include <stdexcept>

#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::require;

// Layers with dimensions that 2 to 4 ranks do not divide, and a scalar. `use` selects the branches.
struct Branches : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 3, .out_features = 5});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 5, .out_features = 1});
  nn::Linear& c = add<nn::Linear>("c", {.in_features = 5, .out_features = 1});
  nn::Linear& d = add<nn::Linear>("d", {.in_features = 1, .out_features = 2});
  nn::Parameter& scale = param("scale", full({}, 1.5));
  int use = 3;
  Tensor forward(const Tensor& x) override {
    const Tensor h = a(x).tanh();
    Tensor y = h.sum({1}, true);
    if (use & 1) y = y + b(h);
    if (use & 2) y = y * c(h);
    return d(y.tanh()) * scale;
  }
};

using Step = std::function<void(Branches& net, const Group& group,
                                const std::function<Tensor(const Tensor&)>& forward)>;

Tensor batch(const Group& group, int number) {
  const Tensor x = empty({2, 3});
  for (int i = 0; i < 6; ++i)
    x.data<float>()[i] = static_cast<float>(std::sin(number + 2.3 * group->rank() + 0.7 * i));
  return x;
}

// Trains four steps with DistributedDataParallel, or sharded, and returns weights and gradients.
std::vector<StateDictCopy> run(int ranks, bool sharded, const Step& step, const FsdpOptions& options = {}) {
  return on_ranks<StateDictCopy>(ranks, [&](const Group& group) {
    Branches net;
    fill_by_formula(net);
    std::unique_ptr<DistributedDataParallel<Branches>> ddp;
    std::optional<FullyShard> fsdp;
    if (sharded) {
      FsdpOptions o = options;
      o.group = group;
      for (nn::Linear* m : {&net.a, &net.b, &net.c, &net.d}) fully_shard(*m, o);
      fsdp = fully_shard(net, o);
    } else {
      ddp = std::make_unique<DistributedDataParallel<Branches>>(net, DdpOptions{.process_group = group});
    }
    optim::AdamW optimizer(net.parameters(), {.lr = 0.05});
    for (int i = 0; i < 4; ++i) {
      optimizer.zero_grad();
      step(net, group, [&](const Tensor& x) { return ddp ? (*ddp)(x) : net(x); });
      optimizer.step();
    }
    StateDictCopy state;
    for (const auto& [name, slot] : net.named_parameters()) {
      const Tensor grad = slot.grad();
      if (!sharded) {
        state[name] = to_vector(slot.tensor());
        if (grad.defined()) state[name + ".grad"] = to_vector(grad);
        continue;
      }
      nn::Layout& s = *slot.layout();
      const Tensor full = empty(s.whole_sizes());
      s.gather(0, full);
      state[name] = to_vector(full);
      if (!grad.defined()) continue;
      // Puts the rows of all ranks together.
      const Tensor sum = zeros(s.whole_sizes());
      s.region(0).of(sum).copy_(grad);
      s.divided()[0]->sum(0, sum);
      state[name + ".grad"] = to_vector(sum);
    }
    return state;
  });
}

void check_like_ddp(const std::string& what, const Step& step, const FsdpOptions& options = {}) {
  for (const int ranks : {2, 3, 4}) {
    if (kSanitized && ranks != 3) continue;
    INFO(what << ", " << ranks << " ranks");
    const auto expected = run(ranks, false, step), sharded = run(ranks, true, step, options);
    for (std::size_t r = 0; r < expected.size(); ++r) CHECK(sharded[r] == expected[r]);
  }
}

}  // namespace

TEST_CASE("parameters that some ranks or no ranks use get DDP's gradients") {
  check_like_ddp("all used", [](Branches& net, const Group& g, const auto& forward) {
    net.use = 3;
    forward(batch(g, 1)).sum().backward();
  });
  check_like_ddp("a unit unused by all", [](Branches& net, const Group& g, const auto& forward) {
    net.use = 1;
    forward(batch(g, 1)).sum().backward();
  });
  for (const bool keep : {true, false})
    check_like_ddp("a scalar used by one rank",
                   [](Branches&, const Group& g, const auto& forward) {
                     const Tensor y = forward(batch(g, 1));
                     (g->rank() == 0 ? y.sum() : y.detach().sum() + y.sum()).backward();
                   },
                   {.reshard_after_forward = keep});
}

TEST_CASE("a rank may leave parameters of a unit unused") {
  struct Odd : nn::Module {
    nn::Linear& a = add<nn::Linear>("a", {.in_features = 3, .out_features = 3});
    nn::Linear& b = add<nn::Linear>("b", {.in_features = 3, .out_features = 3});
    nn::Linear& never = add<nn::Linear>("never", {.in_features = 2, .out_features = 3});
    bool both = true;
    Tensor forward(const Tensor& x) override { return both ? b(a(x)) : a(x); }
  };
  const auto run_odd = [](bool sharded) {
    return on_ranks<StateDictCopy>(3, [&](const Group& group) {
      Odd net;
      fill_by_formula(net);
      net.both = group->rank() != 1;
      std::optional<FullyShard> fsdp;
      std::unique_ptr<DistributedDataParallel<Odd>> ddp;
      if (sharded) fsdp = fully_shard(net, {.group = group});
      else ddp = std::make_unique<DistributedDataParallel<Odd>>(net, DdpOptions{.process_group = group});
      optim::SGD optimizer(net.parameters(), {.lr = 0.1});
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        (ddp ? (*ddp)(batch(group, i)) : net(batch(group, i))).square().sum().backward();
        require(!net.never.weight.grad().defined(), "the unused parameter got a gradient");
        optimizer.step();
      }
      std::optional<FullyShard::Unsharded> full;
      if (fsdp) full.emplace(fsdp->unshard());
      return copy_parameters(net);
    });
  };
  CHECK(run_odd(true) == run_odd(false));
}

TEST_CASE("several forwards before a backward, and passes over parts of them") {
  check_like_ddp("one pass over two forwards", [](Branches&, const Group& g, const auto& forward) {
    (forward(batch(g, 1)).sum() + forward(batch(g, 2)).square().sum()).backward();
  });
  for (const bool reshard : {true, false})
    check_like_ddp("a forward without backward",
                   [](Branches&, const Group& g, const auto& forward) {
                     forward(batch(g, 1));
                     {
                       const NoGradGuard no_grad;
                       forward(batch(g, 3));
                     }
                     forward(batch(g, 2)).sum().backward();
                   },
                   {.reshard_after_forward = reshard});
  // The gradients of two passes are added after they were averaged, so the last bits may differ from DDP's.
  const Step two = [](Branches&, const Group& g, const auto& forward) {
    const Tensor first = forward(batch(g, 1)).sum(), second = forward(batch(g, 2)).sum();
    first.backward();
    second.backward();
  };
  const Step twice = [](Branches&, const Group& g, const auto& forward) {
    const Tensor loss = forward(batch(g, 1)).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  };
  for (const Step& step : {two, twice}) {
    const auto expected = run(3, false, step), sharded = run(3, true, step);
    for (std::size_t r = 0; r < 3; ++r) CHECK(distance(sharded[r], expected[r]) < 1e-5);
  }
}

TEST_CASE("training goes on after an exception in forward or backward") {
  check_like_ddp("forward", [](Branches& net, const Group& g, const auto& forward) {
    const HookHandle hook = net.c.register_forward_hook(
        [](nn::Module&, const auto&, std::vector<Tensor>&) { throw std::runtime_error("stop"); });
    try {
      forward(batch(g, 1));
      require(false, "the hook did not throw");
    } catch (const std::runtime_error&) {
    }
    HookHandle(hook).remove();
    forward(batch(g, 2)).sum().backward();
  });
  const auto after = [](bool sharded) {
    return on_ranks<StateDictCopy>(2, [&](const Group& group) {
      Branches net;
      fill_by_formula(net);
      const FsdpOptions o{.group = group};
      std::optional<FullyShard> fsdp;
      if (sharded) {
        for (nn::Linear* m : {&net.a, &net.b, &net.c, &net.d}) fully_shard(*m, o);
        fsdp = fully_shard(net, o);
      }
      for (int i = 0; i < 3; ++i) {
        net.zero_grad();
        const Tensor x = batch(group, i).requires_grad_();
        const Tensor y = net(x);
        if (i == 1) x.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("stop"); });
        try {
          y.sum().backward();
          require(i != 1, "the hook did not throw");
        } catch (const std::runtime_error& e) {
          require(i == 1, e.what());
        }
      }
      if (fsdp)
        for (const FsdpUnitReport& u : fsdp->report().units) require(!u.is_full, u.name, " is still full");
      for (const auto& [name, slot] : net.named_parameters()) {
        const Tensor grad = slot.grad();
        if (sharded) continue;
        group->all_reduce(grad, ReduceOp::mean).wait();
      }
      StateDictCopy state;
      for (const auto& [name, slot] : net.named_parameters()) {
        if (!sharded) {
          state[name] = to_vector(slot.grad());
          continue;
        }
        nn::Layout& s = *slot.layout();
        const Tensor sum = zeros(s.whole_sizes());
        if (s.stored(0).numel() > 0) s.region(0).of(sum).copy_(slot.grad());
        s.divided()[0]->sum(0, sum);
        state[name] = to_vector(sum);
      }
      return state;
    });
  };
  CHECK(after(true) == after(false));
}

TEST_CASE("tied weights belong to the smallest unit that contains all users") {
  on_ranks<int>(2, [](const Group& group) {
    TinyGpt net;
    const FsdpOptions o{.group = group};
    // tokens and head share a weight and are units. The model gets the weight.
    for (nn::Module* m : std::vector<nn::Module*>{&net.tokens, &net.block0, &net.head}) fully_shard(*m, o);
    const FullyShard handle = fully_shard(net, o);
    const auto units = handle.units();
    require(units[0].empty() && units[2].empty(), "a unit inside kept the tied weight");
    const auto& own = units.back();
    require(std::find(own.begin(), own.end(), "tokens.weight") != own.end(),
            "the model lacks the tied weight");
    const auto [x, y] = formula_words(0, 0, 2);
    net(x).sum().backward();
    require(net.head.weight.grad().defined(), "no gradient");
    require(net.parameters().size() == TinyGpt().parameters().size(), "a parameter was counted twice");
    return 0;
  });
}

TEST_CASE("methods other than forward, and changes by hand, need unshard()") {
  on_ranks<int>(3, [](const Group& group) {
    Branches net;
    const FsdpOptions o{.group = group};
    fully_shard(net.a, o);
    const FullyShard handle = fully_shard(net, o);
    const Tensor x = ones({1, 3});
    {
      const auto full = handle.unshard();
      const Tensor y = net.b(net.a(x)) * net.scale;  // a is a unit of its own, and gathers itself
      y.sum().backward();
      require(net.b.weight.sizes() == Shape({1, 5}), "not full");
      const NoGradGuard no_grad;
      net.d.weight.fill_(2.5);
    }
    require(net.b.bias->grad().defined() && net.a.weight->grad().defined(), "no gradient");
    for (const double v : to_vector(net.d.weight)) require(v == 2.5, "the change by hand was lost");
    {
      const auto all = handle.unshard(true);
      require(net.a.weight.sizes() == Shape({5, 3}), "not full");
      require(to_vector(net.d.weight) == std::vector<double>(2, 2.5), "the change by hand was lost");
    }
    return 0;
  });
}

TEST_CASE("hooks on a parameter see its shard's gradient") {
  on_ranks<int>(2, [](const Group& group) {
    Branches net;
    fully_shard(net.a, {.group = group});
    fully_shard(net, {.group = group});
    int calls = 0, posts = 0;
    const Tensor shard = net.a.weight;
    net.a.weight.register_hook([&](const Tensor& g) {
      require(g.sizes() == shard.sizes(), "the gradient is not the shard's");
      ++calls;
      return g * 2;
    });
    shard.register_post_accumulate_grad_hook([&](const Tensor&) { ++posts; });
    net(ones({1, 3})).sum().backward();
    const Tensor once = shard.grad().clone();
    net(ones({1, 3})).sum().backward();
    require(calls == 2 && posts == 2, calls, " and ", posts, " calls");
    require(allclose(shard.grad(), once * 2), "gradients were not accumulated");
    return 0;
  });
}

TEST_CASE("a checkpoint over several units gathers them again") {
  const auto train = [](bool checkpointed) {
    return on_ranks<StateDictCopy>(2, [&](const Group& group) {
      Branches net;
      fill_by_formula(net);
      const FsdpOptions o{.group = group};
      for (nn::Linear* m : {&net.a, &net.b, &net.c, &net.d}) fully_shard(*m, o);
      const FullyShard handle = fully_shard(net, o);
      optim::SGD optimizer(net.parameters(), {.lr = 0.1});
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        const Tensor x = batch(group, i);
        (checkpointed ? checkpoint([&](const Tensor& in) { return net(in); }, x) : net(x)).sum().backward();
        optimizer.step();
      }
      require(handle.report().most_full_units <= 2, "too many full units");
      const auto full = handle.unshard(true);
      return copy_parameters(net);
    });
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("a checkpoint over a part of a unit finds the unit's full parameters") {
  struct Parts : nn::Module {
    nn::Linear& a = add<nn::Linear>("a", {.in_features = 3, .out_features = 5});
    nn::Linear& b = add<nn::Linear>("b", {.in_features = 5, .out_features = 3});
    nn::Parameter& scale = param("scale", full({3}, 0.8));
    bool checkpointed = false;
    Tensor forward(const Tensor& x) override {
      const auto first = [&](const Tensor& in) { return b(a(in).tanh()); };
      const auto second = [&](const Tensor& in) { return (in * scale).exp(); };  // reads the slot by itself
      const Tensor h = checkpointed ? checkpoint(first, x) : first(x);
      return checkpointed ? checkpoint(second, h) : second(h);
    }
  };
  struct Outer : nn::Module {
    Parts& inner = add<Parts>("inner");
    nn::Linear& out = add<nn::Linear>("out", {.in_features = 3, .out_features = 2});
    Tensor forward(const Tensor& x) override {
      const Tensor h = inner(x);
      return inner.checkpointed ? checkpoint(out, h) : out(h);
    }
  };
  for (const std::optional<bool> reshard : {std::optional<bool>(), std::optional<bool>(true)})
    for (const int limit : {1, 2}) {
      if (kSanitized && reshard.has_value() == (limit == 2)) continue;
      const auto train = [&](bool checkpointed) {
        return on_ranks<StateDictCopy>(3, [&](const Group& group) {
          Outer net;
          fill_by_formula(net);
          net.inner.checkpointed = checkpointed;
          const FsdpOptions o{.group = group, .reshard_after_forward = reshard, .max_full_units = limit};
          fully_shard(net.inner, o);
          const FullyShard handle = fully_shard(net, o);
          optim::SGD optimizer(net.parameters(), {.lr = 0.1});
          for (int i = 0; i < 3; ++i) {
            optimizer.zero_grad();
            net(batch(group, i)).square().sum().backward();
            optimizer.step();
          }
          for (const FsdpUnitReport& u : handle.report().units) require(!u.is_full, u.name, " is still full");
          const auto full = handle.unshard(true);
          return copy_parameters(net);
        });
      };
      CHECK(train(true) == train(false));
    }
}

TEST_CASE("gradients of gradients stay inside the loss") {
  on_ranks<int>(2, [](const Group& group) {
    Branches net;
    fill_by_formula(net);
    Branches plain;
    fill_by_formula(plain);
    const FsdpOptions o{.group = group};
    for (nn::Linear* m : {&net.a, &net.b, &net.c, &net.d}) fully_shard(*m, o);
    fully_shard(net, o);
    const auto loss = [](nn::Module& m) {
      const Tensor x = full({2, 3}, 0.3).requires_grad_();
      const Tensor y = m(x).sum();
      const Tensor slope = autograd::grad({y}, {x}, {.create_graph = true})[0];
      return y + slope.square().sum();
    };
    loss(net).backward();
    loss(plain).backward();
    require(allclose(net.a.weight.grad(), net.a.weight.layout()->region(0).of(plain.a.weight.grad())),
            "differs");
    bool threw = false;
    try {
      net(full({2, 3}, 0.3)).sum().backward({}, false, /*create_graph=*/true);
    } catch (const AutogradError& e) {
      threw = std::string(e.what()).find("create_graph") != std::string::npos;
    }
    require(threw, "backward with create_graph did not throw");
    return 0;
  });
}

TEST_CASE("a graph may outlive handles and optimizers, and says so if it outlives the module") {
  on_ranks<int>(2, [](const Group& group) {
    const auto error_of = [](const Tensor& loss) -> std::string {
      try {
        loss.backward();
      } catch (const Error& e) {
        return e.what();
      }
      return {};
    };
    Tensor loss;
    nn::Parameter kept;
    {
      Branches net;
      fully_shard(net.a, {.group = group});
      fully_shard(net, {.group = group});
      net(ones({1, 3})).sum().backward();
      loss = net(ones({1, 3})).sum();
      kept = net.a.weight;
    }
    const std::string error = error_of(loss);
    require(error.find("destroyed") != std::string::npos, "another error: ", error);
    require(kept.numel() > 0 || group->rank() > 0, "the shard was lost");
    require(kept.grad().defined(), "the gradient was lost");
    loss = {};
    {  // a leaf without a saved parameter
      struct Bias : nn::Module {
        nn::Parameter& bias = param("bias", ones({4}));
        Tensor forward(const Tensor& x) override { return x + bias; }
      };
      Bias net;
      fully_shard(net, {.group = group});
      loss = net(ones({4})).sum();
    }
    require(error_of(loss).find("destroyed") != std::string::npos, "the gradient was dropped silently");
    return 0;
  });
}
