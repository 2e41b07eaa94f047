// Tests what nn and the optimizers do with sharded parameters: clipping by the norm of all ranks, steps,
// averages and state dicts of shards, and refusals. fully_shard() itself is tested in tests/distributed.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tapestry/distributed/data_parallel/steps.h"
#include "tests/nn/golden.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/sharded.h"

using namespace tapestry;
using namespace tapestry::test;
using distributed::run_local_ranks;
using distributed_test::Group;
using distributed_test::require;
using nn::StateDict;

namespace {

// Ranks may have several rows, one or none: with five ranks, only rank 0 has rows of the last two parameters.
const std::vector<Shape> kShapes = {{7, 3}, {5}, {3, 2, 2}, {1, 4}, {}};
constexpr int kUnsharded = 1;  // the index of a parameter that is not sharded

struct Params {
  std::vector<nn::Parameter> slots;
  explicit Params(DType dtype = DType::f64) {
    for (std::size_t i = 0; i < kShapes.size(); ++i)
      slots.emplace_back("p", formula(kShapes[i], static_cast<int>(i), 1, dtype));
  }
  void shard(const RankGroups& groups) {
    for (std::size_t i = 0; i < slots.size(); ++i)
      if (i != kUnsharded) test::shard(slots[i], groups);
  }
};

Tensor full_grad(std::size_t i, int step, DType dtype = DType::f64) {
  return formula(kShapes[i], 100 * step + static_cast<int>(i), 3, dtype);
}

// This replica's part of a full tensor: its box, or all of it.
Tensor part_of(const nn::Parameter& slot, int replica, const Tensor& full) {
  return slot.layout() ? slot.layout()->region(replica).of(full) : full;
}

// Sets the gradients of a step. Parameter 2 has none in odd steps, and empty shards have none in step 2.
void set_grads(const std::vector<nn::Parameter>& slots, int step) {
  for (std::size_t i = 0; i < slots.size(); ++i)
    for (int r = 0; r < slots[i].replicas(); ++r) {
      const Tensor stored = slots[i].replica(r);
      if ((i == 2 && step % 2 == 1) || (stored.numel() == 0 && step == 2)) stored.zero_grad();
      else
        stored.set_grad(part_of(slots[i], r, full_grad(i, step, stored.dtype())).clone().to(stored.device()));
    }
}

void require_close(const std::string& what, const Tensor& got, const Tensor& wanted,
                   double tolerance = 1e-12) {
  require(got.sizes() == wanted.sizes() || got.numel() == 1, what, ": shape ", got.sizes(), " instead of ",
          wanted.sizes());
  const auto a = values_of(got), b = values_of(wanted);
  for (std::size_t i = 0; i < a.size(); ++i)
    require(std::abs(a[i] - b[i]) <= tolerance * std::max(1.0, std::abs(b[i])), what, ", element ", i, ": ",
            a[i], " instead of ", b[i]);
}

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class E, class F>
std::string thrown(const F& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("cuts in units or blocks of no elements are errors") {
  const auto ranks = std::make_shared<SilentRanks>(0, 2);
  const auto divided = [&](std::int64_t unit, int blocks) {
    const std::vector<nn::Cut> cuts{{.group = ranks, .dim = 0, .unit = unit, .blocks = blocks}};
    return nn::Layout({8, 3}, cuts, std::vector<Tensor>()).boxes(0).sizes()[0];
  };
  CHECK(divided(2, 2) == 4);
  for (const std::int64_t unit : {0, -2}) {
    for (const int blocks : {1, 2})
      CHECK_THROWS_WITH(divided(unit, blocks),
                        ContainsSubstring(concat({"units of ", unit, " elements; use 1 or more"})));
    CHECK_THROWS_WITH(nn::Region::whole({8}).part(0, 0, 2, unit), ContainsSubstring("use 1 or more"));
  }
  for (const int blocks : {0, -1})
    CHECK_THROWS_WITH(divided(1, blocks), ContainsSubstring(concat({blocks, " blocks; use 1 or more"})));
}

TEST_CASE("clip_grad_norm_ of shards clips by the norm of all ranks, with one sum over the ranks") {
  for (const int size : {1, 2, 3, 5})
    for (const DType dtype : {DType::f64, DType::f32})
      run_local_ranks(size, [&](const Group& group) {
        const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
        for (const double norm_type : {2.0, 1.0, 3.0, kInf})
          for (const double max_norm : {0.5, 1e9})
            for (const int step : {1, 2, 3}) {
              Params whole(dtype), sharded(dtype);
              sharded.shard({group});
              set_grads(whole.slots, step);
              set_grads(sharded.slots, step);
              group->barrier().wait();
              const int before = GroupRanks::sums;
              group->barrier().wait();
              const Tensor wanted = nn::clip_grad_norm_(whole.slots, max_norm, norm_type);
              const Tensor total = nn::clip_grad_norm_(sharded.slots, max_norm, norm_type);
              group->barrier().wait();
              require(GroupRanks::sums - before == size, "there were ", GroupRanks::sums - before, " sums");
              require(total.dim() == 0, "the norm is no number");
              require_close("the norm", total, wanted, tolerance);
              for (std::size_t i = 0; i < whole.slots.size(); ++i) {
                const Tensor full = whole.slots[i]->grad(), own = sharded.slots[i].replica(0).grad();
                require(own.defined() || !full.defined() || sharded.slots[i]->numel() == 0,
                        "a gradient is gone");
                if (own.defined())
                  require_close("gradient " + std::to_string(i), own, part_of(sharded.slots[i], 0, full),
                                tolerance);
              }
              const Tensor sum = total.clone();
              group->all_reduce(sum, distributed::ReduceOp::max).wait();
              require(sum.item() == total.item(), "the ranks have different norms");
            }
      });
}

TEST_CASE("clip_grad_norm_ sums each group of ranks once, without gradients too") {
  run_local_ranks(4, [](const Group& group) {
    const Group pair = group->rank() < 2 ? group->new_group({0, 1}) : (group->new_group({0, 1}), nullptr);
    const Group other = group->rank() < 2 ? (group->new_group({2, 3}), nullptr) : group->new_group({2, 3});
    const Group mine = pair ? pair : other;
    Params whole, sharded;
    for (const std::size_t i : {0, 2, 4}) shard(sharded.slots[i], {i == 0 ? group : mine});
    group->barrier().wait();
    const int before = GroupRanks::sums;
    group->barrier().wait();
    require(nn::clip_grad_norm_(sharded.slots, 1).item() == 0, "a norm without gradients");
    set_grads(whole.slots, 4);
    set_grads(sharded.slots, 4);
    require_close("the norm", nn::clip_grad_norm_(sharded.slots, 1), nn::clip_grad_norm_(whole.slots, 1));
    group->barrier().wait();
    const int sums = GroupRanks::sums - before;
    group->barrier().wait();  // the next sums begin after all ranks have read the number
    require(sums == 2 * 2 * 4, "there were ", sums, " sums");
    // An infinite gradient of one rank is seen by all ranks, and nothing is scaled.
    if (group->rank() == 0) sharded.slots[0].replica(0).grad().fill_(kInf);
    const Tensor kept = sharded.slots[2].replica(0).grad();
    const Tensor copy = kept.defined() ? kept.clone() : Tensor();
    const auto text = thrown<ValueError>([&] { nn::clip_grad_norm_(sharded.slots, 1, 2, true); });
    require(text.find("the norm of the gradients is inf") != std::string::npos, text);
    if (kept.defined()) require_close("the gradient", kept, copy, 0);
  });
}

TEST_CASE("parameters with several cuts, and copies, are clipped, stepped and loaded as the whole") {
  // Six ranks: two tensor ranks, innermost, times three shard ranks.
  run_local_ranks(6, [](const Group& world) {
    Group tensor_group, shard_group;
    for (const auto& ranks : std::vector<std::vector<int>>{{0, 1}, {2, 3}, {4, 5}})
      if (const Group made = world->new_group(ranks)) tensor_group = made;
    for (const auto& ranks : std::vector<std::vector<int>>{{0, 2, 4}, {1, 3, 5}})
      if (const Group made = world->new_group(ranks)) shard_group = made;
    const auto tensor_ranks = std::make_shared<GroupRanks>(RankGroups{tensor_group}),
               shard_ranks = std::make_shared<GroupRanks>(RankGroups{shard_group});
    constexpr int kCopied = nn::Cut::kCopied;
    // For each of kShapes: the dimension that the tensor ranks divide, then that of the shard ranks.
    const std::vector<std::pair<int, int>> dims = {{1, 0}, {kCopied, kCopied}, {0, 0}, {1, 1}, {kCopied, 0}};
    Params whole, divided;
    whole.slots[0].detach().data<double>()[20] = divided.slots[0].detach().data<double>()[20] = -0.0;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      cut(divided.slots[i], tensor_ranks, dims[i].first);
      cut(divided.slots[i], shard_ranks, dims[i].second);
    }
    // 3 rows: the tensor ranks have 2 and 1, of which the shard ranks have 1, 1, 0 and 1, 0, 0.
    require(divided.slots[2].numel() == (world->rank() < 3 ? 4 : 0), "the cuts have another order");
    optim::AdamW reference(whole.slots, {.lr = 0.1}), adam(divided.slots, {.lr = 0.1});
    const auto require_parts = [&](const std::string& what) {
      for (std::size_t i = 0; i < kShapes.size(); ++i)
        require_close(concat({what, ", parameter ", i}), divided.slots[i].detach(),
                      part_of(divided.slots[i], 0, whole.slots[i].detach()), 0);
    };
    for (int step = 0; step < 3; ++step)
      for (const double norm_type : {2.0, kInf}) {
        for (std::size_t i = 0; i < kShapes.size(); ++i) {
          const Tensor all = empty(kShapes[i], DType::f64), wanted = whole.slots[i].detach();
          divided.slots[i].layout()->gather(0, all);
          const auto got = values_of(all), values = values_of(wanted);
          for (std::size_t k = 0; k < got.size(); ++k)
            require(got[k] == values[k] && std::signbit(got[k]) == std::signbit(values[k]), "gathered ", i);
        }
        set_grads(whole.slots, step);
        set_grads(divided.slots, step);
        require_close("the norm", nn::clip_grad_norm_(divided.slots, 1e9, norm_type),
                      nn::clip_grad_norm_(whole.slots, 1e9, norm_type));
        reference.step();
        adam.step();
        require_parts("a step");
      }
    // The state of the whole, and this rank's own.
    optim::AdamW from_whole(divided.slots, {.lr = 0.1}), from_own(divided.slots, {.lr = 0.1});
    from_whole.load_state_dict(reference.state_dict());
    from_own.load_state_dict(from_whole.local_state_dict());
    set_grads(whole.slots, 4);
    set_grads(divided.slots, 4);
    reference.step();
    from_own.step();
    require_parts("a loaded state");
    StateDict of_other = from_own.local_state_dict();
    for (auto& [key, t] : of_other)
      if (key == "shard.rank")
        t = tensor(std::vector<std::int64_t>{1 - tensor_group->rank(), shard_group->rank()}, DType::i64);
    const std::string refused = thrown<ValueError>([&] { adam.load_state_dict(of_other); });
    require(refused.find(concat({"but this is rank ", tensor_group->rank(), ",", shard_group->rank(),
                                 " of 2,3"})) != std::string::npos,
            refused);

    // A function that would fill a box as if it were the whole.
    const std::string filled = thrown<ValueError>([&] { nn::init::normal_(divided.slots[0]); });
    require(filled.find("a parameter of shape [7, 3] is sharded") != std::string::npos, filled);
    nn::Parameter low("low", formula({4, 6}, 1, 1, DType::bf16));
    cut(low, tensor_ranks, 1);
    low.set_grad(ones(low.sizes(), DType::bf16));
    optim::AdamW stochastic({low}, {.low_precision = optim::LowPrecision::stochastic});
    const std::string columns = thrown<ValueError>([&] { stochastic.step(); });
    require(columns.find("do not follow one another in the whole") != std::string::npos, columns);
  });
}

namespace {

// Runs fn with slots of two replicas, which are the two ranks of a local group. The second shard is on cpu:1,
// or on cpu:0 too, as shards in host memory of two GPUs are.
void with_replicas(const std::function<void(Params& whole, Params& sharded)>& fn,
                   Device of_second = "cpu:1") {
  const auto store = distributed::memory_store();
  const auto backends = distributed::local_backends(2);
  const RankGroups groups = {distributed::make_process_group(backends[0], store),
                             distributed::make_process_group(backends[1], store)};
  Params whole, sharded;
  for (nn::Parameter& p : sharded.slots) {
    const Tensor first = p.replica(0).detach(), second = first.clone().to(of_second);
    for (const Tensor& t : {first, second}) t.set_requires_grad(true);
    p.set_replicas({first, second});
  }
  sharded.shard(groups);
  fn(whole, sharded);
}

}  // namespace

TEST_CASE("shards of the replicas of one process are clipped and stepped as one parameter") {
  const auto check = [](Params& whole, Params& sharded) {
    optim::AdamW reference(whole.slots, {.lr = 0.1}), adam(sharded.slots, {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      set_grads(whole.slots, step);
      set_grads(sharded.slots, step);
      require_close("the norm", nn::clip_grad_norm_(sharded.slots, 0.5),
                    nn::clip_grad_norm_(whole.slots, 0.5));
      reference.step();
      adam.step();
    }
    for (std::size_t i = 0; i < whole.slots.size(); ++i)
      for (int r = 0; r < 2; ++r)
        require_close("parameter " + std::to_string(i), sharded.slots[i].replica(r).detach(),
                      part_of(sharded.slots[i], r, whole.slots[i].tensor().detach()));
    // The state of the whole optimizer gives each replica its rows, and is put together from them.
    for (const auto& [key, t] : adam.state_dict())
      require_close(key, t, *nn::find(reference.state_dict(), key));
    optim::AdamW loaded(sharded.slots, {.lr = 0.1}), own(sharded.slots, {.lr = 0.1});
    loaded.load_state_dict(reference.state_dict());
    set_grads(sharded.slots, 2);
    adam.zero_grad();
    for (int r = 0; r < 2; ++r) CHECK_FALSE(sharded.slots[0].replica(r).grad().defined());
    const auto before = sharded.slots[0].replica(1).detach().clone();
    set_grads(sharded.slots, 4);
    set_grads(whole.slots, 4);
    loaded.step();
    reference.step();
    for (int r = 0; r < 2; ++r)
      require_close("after loading", sharded.slots[0].replica(r).detach(),
                    part_of(sharded.slots[0], r, whole.slots[0].tensor().detach()));
    CHECK(distance(values_of(before), values_of(sharded.slots[0].replica(1))) > 1e-3);
  };
  with_replicas(check, "cpu:1");
  with_replicas(check, "cpu:0");
}

TEST_CASE("optimizers step shards as rows of the whole, and take their rows of whole states") {
  run_local_ranks(3, [](const Group& group) {
    Params whole, sharded;
    sharded.shard({group});
    optim::AdamW reference(whole.slots, {.lr = 0.1}), adam(sharded.slots, {.lr = 0.1});
    const auto train = [&](optim::Optimizer& a, optim::Optimizer& b, int begin, int end) {
      for (int step = begin; step < end; ++step) {
        set_grads(whole.slots, step);
        set_grads(sharded.slots, step);
        a.step();
        b.step();
      }
      for (std::size_t i = 0; i < whole.slots.size(); ++i) {
        const auto got = values_of(sharded.slots[i].tensor());
        require(got == values_of(part_of(sharded.slots[i], 0, whole.slots[i].tensor().detach())),
                "parameter ", i);
      }
    };
    train(reference, adam, 0, 4);
    const StateDict shards = adam.local_state_dict(), full = reference.state_dict();
    for (const auto& [name, t] : shards)
      if (name == "state.0.exp_avg") require(t.sizes() == sharded.slots[0]->sizes(), "the state's shape");
    const std::string refused = thrown<ValueError>([&] { adam.state_dict(); });
    require(refused.find("[state_dict] the state of a parameter of shape [7, 3] is sharded over 3 ranks") !=
                std::string::npos,
            refused);
    // Both this rank's part and the full state of another world size can be loaded.
    optim::AdamW from_full(sharded.slots, {.lr = 0.3}), from_shards(sharded.slots, {.lr = 0.3});
    from_full.load_state_dict(full);
    train(reference, from_full, 4, 6);
    from_shards.load_state_dict(from_full.local_state_dict());
    train(reference, from_shards, 6, 8);

    StateDict wrong = full;
    for (auto& [name, t] : wrong)
      if (name == "state.0.exp_avg") t = zeros({2, 2}, DType::f64);
    const std::string text = thrown<ValueError>([&] { adam.load_state_dict(wrong); });
    require(text.find("wrong shape: state.0.exp_avg expected [7, 3] but got [2, 2]") != std::string::npos,
            text);
  });
}

TEST_CASE("an optimizer that stepped before its parameters were sharded says so") {
  run_local_ranks(2, [](const Group& group) {
    Params params;
    optim::SGD unused(params.slots, {.lr = 0.1, .momentum = 0.9}),
        stepped(params.slots, {.lr = 0.1, .momentum = 0.9});
    set_grads(params.slots, 0);
    stepped.step();
    params.shard({group});
    set_grads(params.slots, 0);
    unused.step();
    const Tensor before = params.slots[0].tensor().detach().clone();
    const std::string text = thrown<ValueError>([&] { stepped.step(); });
    require(
        text.find("[SGD] the state momentum_buffer of a parameter has shape [7, 3]") != std::string::npos &&
            text.find("Create the optimizer after") != std::string::npos,
        text);
    require_close("the parameter", params.slots[0].tensor().detach(), before, 0);
  });
}

TEST_CASE("optimizers that need whole tensors refuse shards by name") {
  run_local_ranks(2, [](const Group& group) {
    const Tensor value = formula({4, 3}, 1);
    const nn::Parameter early("p", value), slot("q", value);
    optim::Muon muon({early});
    optim::LBFGS lbfgs({early});
    for (const nn::Parameter& p : {early, slot}) shard(p, {group});
    early->set_grad(formula({2, 3}, 2));
    const Tensor before = early->detach().clone();
    for (const std::string& text :
         {thrown<ValueError>([&] { optim::Muon({slot}); }), thrown<ValueError>([&] { muon.step(); })})
      require(text.find("[Muon] a parameter of shape [4, 3] is sharded") != std::string::npos &&
                  text.find("AdamW") != std::string::npos,
              text);
    for (const std::string& text :
         {thrown<ValueError>([&] { optim::LBFGS({slot}); }), thrown<ValueError>([&] {
            lbfgs.step([&]() -> Tensor { throw std::runtime_error("the closure was called"); });
          })})
      require(text.find("[LBFGS] a parameter of shape [4, 3] is sharded") != std::string::npos, text);
    require_close("the parameter", early->detach(), before, 0);
  });
}

namespace {

struct Net : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 3, .out_features = 5});
  nn::Linear& last = add<nn::Linear>("last", {.in_features = 5, .out_features = 2});
  Tensor forward(const Tensor& x) override { return last(fc(x)); }
  std::shared_ptr<TestLayout> shard(const Group& group) {
    test::shard(fc.bias, {group});
    return test::shard(fc.weight, {group});
  }
};

}  // namespace

TEST_CASE("a sharded module takes its rows of whole tensors, and has no state dict of its own") {
  run_local_ranks(3, [](const Group& group) {
    Net whole, net;
    fill(whole);
    net.to(DType::f64);
    const auto sharding = net.shard(group);
    const nn::Region rows = sharding->region(0);
    const auto check_values = [&](const std::string& what) {
      require_close(what, net.fc.weight.tensor().detach(), rows.of(whole.fc.weight->detach()), 0);
      require_close(what, net.last.weight.tensor().detach(), whole.last.weight->detach(), 0);
    };
    net.load_state_dict(whole.state_dict());
    check_values("a full state");
    sharding->computing = true;  // in forward(), too
    const std::string refused = thrown<ValueError>([&] { net.state_dict(); });
    sharding->computing = false;
    require(refused.find(
                concat({"[state_dict] 'fc.weight' of shape [5, 3] is sharded over 3 ranks, and this one has ",
                        rows.str(), " of it; "})) != std::string::npos,
            refused);

    StateDict wrong = whole.state_dict();
    wrong[0].second = net.fc.weight->detach().clone();  // this rank's rows
    wrong[1].second = zeros({9}, DType::f64);
    const std::string text = thrown<ValueError>([&] { net.load_state_dict(wrong); });
    require(text.find(concat({"wrong shape: fc.weight expected [5, 3] (the whole tensor, of which each rank "
                              "takes its part) but got [",
                              rows.sizes[0], ", 3]"})) != std::string::npos &&
                text.find("wrong shape: fc.bias expected") != std::string::npos,
            text);
    check_values("after an error");
  });
}

TEST_CASE("summary(), to() and requires_grad_() see one parameter with its full shape") {
  run_local_ranks(2, [](const Group& group) {
    Net net;
    const std::string before = net.summary();
    require(before.find("shards") == std::string::npos, before);
    net.shard(group);
    const std::string text = net.summary();
    const int bytes =
        group->rank() == 0 ? 4 * (3 * 4 + 12) : 4 * (2 * 4 + 12);  // 3 or 2 rows, and the last layer
    require(text.find("Parameters: 32 (32 trained)") != std::string::npos &&
                text.find(concat({"parameters ", bytes, " B (this rank's shards of 128 B)"})) !=
                    std::string::npos &&
                text.substr(0, text.find("Memory")) == before.substr(0, before.find("Memory")),
            text);
    net.fc.weight->set_grad(ones({group->rank() == 0 ? 3 : 2, 3}));
    net.to(DType::f64);
    const Tensor shard = net.fc.weight.layout()->stored(0);
    require(shard.dtype() == DType::f64 && shard.requires_grad() && shard.grad().dtype() == DType::f64,
            "to()");
    net.requires_grad_(false);
    require(!shard.requires_grad(), "frozen");
    net.fc.weight.requires_grad_();
    require(shard.requires_grad() && net.summary().find("(15 trained)") != std::string::npos, net.summary());
    net.zero_grad();
    require(!shard.grad().defined(), "zero_grad()");
  });
}

TEST_CASE("AveragedModel averages the shards of each rank") {
  run_local_ranks(3, [](const Group& group) {
    Net whole, net;
    fill(whole);
    net.to(DType::f64);
    const auto sharding = net.shard(group);
    const nn::Region rows = sharding->region(0);
    optim::AveragedModel reference(whole, {.avg_fn = optim::get_ema_avg(0.7)}),
        ema(net, {.avg_fn = optim::get_ema_avg(0.7)});
    for (int step = 0; step < 3; ++step) {
      const NoGradGuard no_grad;
      whole.fc.weight->copy_(formula({5, 3}, step));
      net.load_state_dict(whole.state_dict());
      reference.update_parameters();
      ema.update_parameters();
    }
    const auto own = [&] { return net.fc.weight.tensor().detach(); };
    const auto rows_of = [&](const Tensor& full) { return rows.of(full); };
    StateDict full;
    {
      const auto scope = ema.use();
      const auto theirs = reference.use();
      require_close("the average", own(), rows_of(whole.fc.weight->detach()));
    }
    require_close("the weights", own(), rows_of(formula({5, 3}, 2)), 0);
    const std::string refused = thrown<ValueError>([&] { ema.state_dict(); });
    require(refused.find("the average of 'fc.weight' of shape [5, 3] is sharded over 3 ranks") !=
                std::string::npos,
            refused);
    optim::AveragedModel loaded(net);
    loaded.load_state_dict(reference.state_dict());
    {
      const auto scope = loaded.use();
      const auto theirs = reference.use();
      require_close("loaded", own(), rows_of(whole.fc.weight->detach()));
    }

    Net late;
    optim::AveragedModel early(late);
    early.update_parameters();
    late.shard(group);
    for (const auto& text : {thrown<ValueError>([&] { early.update_parameters(); }),
                             thrown<ValueError>([&] { static_cast<void>(early.use()); })})
      require(text.find("[AveragedModel] the average of 'fc.weight' has shape [5, 3]") != std::string::npos &&
                  text.find("after fully_shard()") != std::string::npos,
              text);
  });
}

TEST_CASE("what needs whole parameters refuses a sharded module by name") {
  run_local_ranks(2, [](const Group& group) {
    Net net, parametrized;
    net.shard(group);
    nn::weight_norm(parametrized.fc, "weight");
    for (const nn::Parameter& p : parametrized.parameters()) shard(p, {group});
    const auto refused = [](const std::string& words, const auto& f) {
      const std::string text = thrown<ValueError>(f);
      require(text.find(words) != std::string::npos, "\"", words, "\" was expected: ", text);
    };
    refused("[parameters_to_vector] a parameter of shape [5, 3] is sharded",
            [&] { nn::parameters_to_vector(net.parameters()); });
    refused("[vector_to_parameters] a parameter of shape [5, 3] is sharded",
            [&] { nn::vector_to_parameters(zeros({32}), net.parameters()); });
    refused("[register_parametrization] 'weight' of Linear is sharded",
            [&] { nn::weight_norm(net.fc, "weight"); });
    refused("[spectral_norm] 'weight' of Linear is sharded", [&] { nn::spectral_norm(net.fc, "weight"); });
    refused("[remove_parametrizations] an original of 'weight' of Linear is sharded",
            [&] { nn::remove_parametrizations(parametrized.fc, "weight"); });
    refused("[DistributedDataParallel] 'fc.weight' is divided among ranks",
            [&] { distributed::DistributedDataParallel<Net> ddp(net, {.process_group = group}); });
    const std::vector<Device> devices = {Device("cpu:0"), Device("cpu:1")};
    refused("[DataParallel] 'fc.weight' is sharded",
            [&] { distributed::DataParallel<Net> parallel(net, devices); });
    refused("[replicate] 'fc.weight' is sharded", [&] { distributed::replicate(net, devices); });
    require(net.fc.weight->sizes()[1] == 3 && net.fc.weight.replicas() == 1, "the module was changed");
  });
}
