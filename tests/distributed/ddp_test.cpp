// Tests DistributedDataParallel with ranks as threads. It must train like one process with the whole batch,
// and refuse models and options that it does not support.
#include <cmath>
#include <mutex>

#include "tapestry/distributed/common/internal/bucket.h"
#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::Group, distributed_test::kBounded, distributed_test::on_ranks;

struct Variant {
  std::string name;
  DdpOptions options;
  bool no_sync = false;  // two backward passes per step, the first one under no_sync()
  double clip = 0;
  bool zero_to_none = true;
};

constexpr int kPerRank = 3;

// Runs kSteps steps of SGD with momentum. Each batch has `shards` parts, and each rank trains on one of them.
// If `group` is null, the process trains on all parts.
StateDictCopy train(const Group& group, int shards, const Variant& v) {
  SmallCnn net;
  net.to(DType::f64);
  fill_by_formula(net);
  std::unique_ptr<DistributedDataParallel<SmallCnn>> ddp;
  if (group) {
    convert_sync_batchnorm(net, group);
    DdpOptions options = v.options;
    options.process_group = group;
    ddp = std::make_unique<DistributedDataParallel<SmallCnn>>(net, options);
  }
  optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  for (int step = 0; step < kSteps; ++step) {
    const int parts = v.no_sync ? 2 : 1;
    optimizer.zero_grad(v.zero_to_none);
    for (int part = 0; part < parts; ++part) {
      const int batch = step * parts + part;
      const int first = group ? group->rank() * kPerRank : 0;
      const int count = group ? kPerRank : shards * kPerRank;
      const auto [x, labels] = formula_batch(batch, first, count);
      const auto backward = [&, &x = x, &labels = labels] {
        const Tensor loss = cross_entropy(ddp ? (*ddp)(x) : net(x), labels);
        loss.backward();
      };
      if (ddp && part + 1 < parts) {
        const auto guard = ddp->no_sync();
        backward();
      } else {
        backward();
      }
    }
    if (v.clip > 0) nn::clip_grad_norm_(net.parameters(), v.clip);
    optimizer.step();
  }
  return copy_state(net);
}

}  // namespace

TEST_CASE("buckets are filled in order, one per dtype and device, and the first one is small") {
  const std::vector<BucketParameter> same{{4, DType::f32, kCPU},
                                          {4, DType::f32, kCPU},
                                          {8, DType::f32, kCPU},
                                          {4, DType::f32, kCPU},
                                          {100, DType::f32, kCPU}};
  const std::vector<int> order{4, 3, 2, 1, 0};
  using Buckets = std::vector<std::vector<int>>;
  CHECK(assign_buckets(same, order, 8, 12) == Buckets{{4}, {3, 2}, {1, 0}});
  CHECK(assign_buckets(same, order, 1000, 1000) == Buckets{{4, 3, 2, 1, 0}});
  CHECK(assign_buckets(same, order, 1, 1) == Buckets{{4}, {3}, {2}, {1}, {0}});
  CHECK(assign_buckets(same, std::vector<int>{}, 1, 1).empty());
  std::vector<BucketParameter> one_alone = same;
  one_alone[3].alone = true;
  CHECK(assign_buckets(one_alone, order, 1000, 1000) == Buckets{{3}, {4, 2, 1, 0}});

  const std::vector<BucketParameter> mixed{{4, DType::f32, kCPU},
                                           {4, DType::f64, kCPU},
                                           {4, DType::f32, Device("cpu:1")},
                                           {4, DType::f32, kCPU},
                                           {4, DType::f64, kCPU}};
  // Buckets are in the order of their last parameters.
  CHECK(assign_buckets(mixed, std::vector<int>{4, 3, 2, 1, 0}, 100, 100) == Buckets{{2}, {4, 1}, {3, 0}});
}

TEST_CASE("DdpOptions has PyTorch's defaults") {
  const DdpOptions o;
  CHECK(o.bucket_cap_mb == 25);
  CHECK(o.first_bucket_mb == 1);
  CHECK(o.broadcast_buffers);
  CHECK_FALSE(o.static_graph);
}

TEST_CASE("N ranks train as one process with the N-fold batch") {
  const std::vector<Variant> variants = {
      {.name = "defaults"},
      {.name = "one bucket per parameter", .options = {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6}},
      {.name = "small buckets, order kept", .options = {.bucket_cap_mb = 1e-3, .relearn_order = false}},
      {.name = "static graph", .options = {.bucket_cap_mb = 1e-3, .static_graph = true}},
      {.name = "unused found late", .options = {.bucket_cap_mb = 1e-3, .find_unused_parameters = false}},
      {.name = "buffers not broadcast", .options = {.broadcast_buffers = false}},
      {.name = "accumulation", .options = {.bucket_cap_mb = 1e-3}, .no_sync = true},
      {.name = "gradients zeroed in place",
       .options = {.bucket_cap_mb = 1e-3},
       .no_sync = true,
       .zero_to_none = false},
      {.name = "clipping", .options = {.bucket_cap_mb = 1e-3}, .clip = 0.5}};
  for (const Variant& v : variants) {
    for (const int ranks : {1, 2, 3}) {
      INFO(v.name << ", " << ranks << " ranks");
      const StateDictCopy expected = train(nullptr, ranks, v);
      const auto results = on_ranks<StateDictCopy>(ranks, [&](const Group& g) { return train(g, ranks, v); });
      for (const StateDictCopy& result : results) {
        CHECK(distance(result, expected) < 1e-10);
        CHECK(distance(result, results[0]) == 0);
      }
    }
  }
}

TEST_CASE("the comparison detects a different number of steps") {
  Variant v{.name = "defaults"};
  const StateDictCopy two = train(nullptr, 2, v), three = train(nullptr, 3, v);
  CHECK(distance(two, three) > 1e-3);
}

namespace {

// The identity. Its backward calls `fn`.
struct Mark : autograd::Function<Mark> {
  static constexpr const char* kName = "mark";
  static Tensor forward(autograd::FunctionContext& ctx, const Tensor& x, std::function<void()> fn) {
    ctx.data = std::move(fn);
    return x.clone();
  }
  static std::vector<Tensor> backward(autograd::FunctionContext& ctx, const std::vector<Tensor>& grads) {
    std::any_cast<std::function<void()>&>(ctx.data)();
    return {grads[0], Tensor()};
  }
};

// Four matrix products, with the weight as the first or the second argument.
struct Layers : nn::Module {
  explicit Layers(bool weight_first) : weight_first_(weight_first) {
    for (int i = 0; i < 4; ++i) weights.push_back(&param("w" + std::to_string(i), full({3, 3}, 0.5)));
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const Tensor& w = *weights[i];
      h = weight_first_ ? matmul(w, h) : matmul(h, w);
      if (i == 0 && first_layer) h = Mark::apply(h, first_layer);
    }
    return h;
  }
  std::vector<nn::Parameter*> weights;
  std::function<void()> first_layer;

 private:
  bool weight_first_;
};

}  // namespace

TEST_CASE("buckets are posted in order, and all but the last before backward reaches the first layer") {
  for (const bool weight_first : {false, true}) {
    for (const bool static_graph : {false, true}) {
      const auto orders = on_ranks<std::vector<std::string>>(2, [&](const Group& group) {
        Layers net(weight_first);
        DistributedDataParallel ddp(net, {.process_group = group,
                                          .bucket_cap_mb = 1e-6,
                                          .first_bucket_mb = 1e-6,
                                          .static_graph = static_graph});
        std::vector<std::string> events;
        ddp.set_comm_hook([&](ProcessGroup& g, GradBucket& bucket) {
          for (const std::string& p : bucket.parameters) events.push_back(p);
          return InFlight{g.all_reduce(bucket.gradients, ReduceOp::mean, bucket.name)};
        });
        net.first_layer = [&] { events.push_back("first layer"); };
        for (int pass = 0; pass < 2; ++pass) ddp(ones({3, 3})).sum().backward();
        return events;
      });
      const std::vector<std::string> pass{"w3", "w2", "w1", "first layer", "w0"};
      std::vector<std::string> expected = pass;
      expected.insert(expected.end(), pass.begin(), pass.end());
      CHECK(orders[0] == expected);
      CHECK(orders[1] == expected);
    }
  }
}

TEST_CASE("the order of buckets is learned from rank 0's first pass") {
  struct Backwards : nn::Module {  // registered in the order in which backward reaches the parameters
    nn::Parameter& last = param("last", ones({4}));
    nn::Parameter& middle = param("middle", ones({4}));
    nn::Parameter& first = param("first", ones({4}));
    Tensor forward(const Tensor& x) override { return x * first * middle * last; }
  };
  for (const bool learn : {false, true}) {
    const auto orders = on_ranks<std::vector<std::vector<std::string>>>(2, [&](const Group& group) {
      Backwards net;
      DistributedDataParallel ddp(
          net,
          {.process_group = group, .bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6, .relearn_order = learn});
      for (int pass = 0; pass < 2; ++pass) ddp(ones({4})).sum().backward();
      return ddp.buckets();
    });
    using Names = std::vector<std::vector<std::string>>;
    const Names registered{{"first"}, {"middle"}, {"last"}}, seen{{"last"}, {"middle"}, {"first"}};
    CHECK(orders[0] == (learn ? seen : registered));
    CHECK(orders[1] == orders[0]);
  }
}

namespace {

struct Branches : nn::Module {
  nn::Parameter& a = param("a", full({2}, 2.0));
  nn::Parameter& b = param("b", full({2}, 3.0));
  nn::Parameter& c = param("c", full({2}, 5.0));
  bool use_b = true;
  Tensor forward(const Tensor& x) override { return use_b ? x * a + x * b : x * a; }
};

}  // namespace

TEST_CASE(
    "a parameter that only one rank uses is averaged; one that no rank uses keeps its gradient and is "
    "named") {
  enum class Graph { searched, unsearched, fixed };
  for (const Graph graph : {Graph::searched, Graph::unsearched, Graph::fixed}) {
    for (const double cap : {1e-6, 1.0}) {
      for (const bool hook : {false, true}) {
        struct Result {
          std::vector<double> a, b;
          bool c_defined = false;
          std::vector<std::string> unused;
        };
        const auto results = on_ranks<Result>(2, [&](const Group& group) {
          Branches net;
          net.use_b = group->rank() == 1;
          DistributedDataParallel ddp(net, {.process_group = group,
                                            .bucket_cap_mb = cap,
                                            .first_bucket_mb = cap,
                                            .find_unused_parameters = graph == Graph::searched,
                                            .static_graph = graph == Graph::fixed});
          if (hook)
            ddp.set_comm_hook([](ProcessGroup& g, GradBucket& bucket) {
              return InFlight{g.all_reduce(bucket.gradients, ReduceOp::mean, bucket.name)};
            });
          for (int pass = 0; pass < 3; ++pass) {  // the second pass has rebuilt buckets
            net.a->zero_grad(), net.b->zero_grad();
            ddp(full({2}, group->rank() + 1.0)).sum().backward();
          }
          return Result{to_vector(net.a->grad()), to_vector(net.b->grad()), net.c->grad().defined(),
                        ddp.unused_parameters()};
        });
        for (const Result& r : results) {
          CHECK(r.a == std::vector<double>{1.5, 1.5});  // (1 + 2) / 2
          CHECK(r.b == std::vector<double>{1, 1});      // (0 + 2) / 2
          CHECK_FALSE(r.c_defined);
          CHECK(r.unused == std::vector<std::string>{"c"});
        }
      }
    }
  }
}

TEST_CASE("with ReduceOp::sum, a sum to which a pass adds nothing counts once in the passes after it") {
  const auto results = on_ranks<std::vector<double>>(2, [](const Group& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group, .reduce = ReduceOp::sum});
    for (const bool use_b : {true, false, true}) {  // the second pass has rebuilt buckets
      net.use_b = use_b;
      ddp(full({2}, group->rank() + 1.0)).sum().backward();
    }
    return std::vector{net.a->grad().select(0, 0).item(), net.b->grad().select(0, 0).item()};
  });
  for (const auto& sums : results) CHECK(sums == std::vector<double>{9, 6});  // 3 and 2 times 1 + 2
}

TEST_CASE("passes add to existing gradients, with averaging and under no_sync()") {
  // Each rank runs two averaged passes, then one under no_sync() and one more averaged pass. x is rank + 1 in
  // all of them.
  const auto results = on_ranks<std::vector<double>>(2, [](const Group& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const Tensor x = full({2}, group->rank() + 1.0);
    std::vector<double> seen;
    const auto note = [&] { seen.push_back(net.a->grad().select(0, 0).item()); };
    ddp(x).sum().backward(), note();
    ddp(x).sum().backward(), note();
    const Tensor forward_outside = ddp(x).sum();
    {
      const auto guard = ddp.no_sync();
      forward_outside.backward();
    }
    note();
    ddp(x).sum().backward(), note();
    return seen;
  });
  CHECK(results[0] == std::vector<double>{1.5, 3, 4, 6});
  CHECK(results[1] == std::vector<double>{1.5, 3, 5, 6});
}

TEST_CASE("a parameter used only under no_sync is averaged by the next pass") {
  const auto results = on_ranks<std::vector<double>>(2, [](const Group& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const Tensor x = full({2}, group->rank() + 1.0);
    {
      const auto guard = ddp.no_sync();
      ddp(x).sum().backward();
    }
    net.use_b = false;
    ddp(x).sum().backward();
    return to_vector(net.b->grad());
  });
  CHECK(results[0] == std::vector<double>{1.5, 1.5});
  CHECK(results[1] == std::vector<double>{1.5, 1.5});
}

TEST_CASE("gradients are views of buckets, and several forwards may precede one backward") {
  const auto results = on_ranks<std::pair<bool, double>>(2, [](const Group& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const Tensor x = full({2}, group->rank() + 1.0);
    (ddp(x).sum() + ddp(x).sum()).backward();
    const auto address = [](const Tensor& t) { return static_cast<char*>(t.raw_data()); };
    const auto apart = address(net.a->grad()) - address(net.b->grad());
    return std::pair(std::abs(apart) == 64, net.a->grad().select(0, 0).item());
  });
  for (const auto& [adjacent, gradient] : results) {
    CHECK(adjacent);
    CHECK(gradient == 3);
  }
}

TEST_CASE("gradients begin at multiples of 64 bytes in their bucket, and the gaps are zero") {
  struct Sizes : nn::Module {
    nn::Parameter& a = param("a", ones({3}));
    nn::Parameter& b = param("b", ones({16}));
    nn::Parameter& c = param("c", ones({}));
    Tensor forward(const Tensor& x) override { return x * a->sum() * b->sum() * c; }
  };
  for (const DType dtype : {DType::f32, DType::f64})
    for (const bool flags : {false, true}) {
      CAPTURE(dtype, flags);
      struct Result {
        bool aligned = true;
        std::vector<double> bucket;
      };
      const auto results = on_ranks<Result>(2, [&](const Group& group) {
        Sizes net;
        net.to(dtype);
        DistributedDataParallel ddp(net, {.process_group = group, .static_graph = !flags});
        Result r;
        Tensor bucket;
        ddp.set_comm_hook([&](ProcessGroup& g, GradBucket& b) {
          bucket = b.gradients;
          return InFlight{g.all_reduce(b.gradients, ReduceOp::mean, b.name)};
        });
        ddp(full({}, group->rank() + 1.0, dtype)).backward();
        for (const nn::Parameter* p : {&net.a, &net.b, &net.c})
          r.aligned = r.aligned && reinterpret_cast<std::uintptr_t>((*p)->grad().raw_data()) % 64 == 0;
        r.bucket = to_vector(bucket);
        return r;
      });
      // The last registered parameter comes first. The mean of x is 1.5.
      const std::size_t unit = 64 / dtype_size(dtype), second = unit, third = second + 16;
      for (const Result& r : results) {
        CHECK(r.aligned);
        REQUIRE(r.bucket.size() == third + unit);
        for (std::size_t i = 0; i < r.bucket.size(); ++i) {
          const double expected = i == 0                        ? 1.5 * 3 * 16
                                  : i >= second && i < third    ? 1.5 * 3
                                  : i >= third && i < third + 3 ? 1.5 * 16
                                                                : 0;
          CHECK(r.bucket[i] == expected);
        }
      }
    }
}

TEST_CASE("static_graph names the parameter that a later pass does not use") {
  const auto texts = on_ranks<std::string>(2, [](const Group& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    ddp(ones({2})).sum().backward();
    net.use_b = false;
    try {
      ddp(ones({2})).sum().backward();
    } catch (const AutogradError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  });
  for (const std::string& text : texts) CHECK_THAT(text, ContainsSubstring("did not use b;"));
}

TEST_CASE("a model that differs between ranks is refused on every rank, with the difference") {
  const auto texts = on_ranks<std::string>(3, [](const Group& group) {
    nn::Linear net(nn::Linear::Options{.in_features = 4, .out_features = group->rank() == 2 ? 5 : 3});
    try {
      DistributedDataParallel ddp(net, {.process_group = group});
    } catch (const ValueError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  });
  for (const std::string& text : texts) {
    CHECK_THAT(text, ContainsSubstring("only rank 2 has:\n    parameter weight float32 [5, 4]"));
    CHECK_THAT(text, ContainsSubstring(
                         "only rank 0 has, compared with rank 2:\n    parameter weight float32 [3, 4]"));
    CHECK_THAT(text, !ContainsSubstring("rank 1"));
  }
}

TEST_CASE(
    "rank 0's parameters are broadcast at construction, and its buffers before each forward in training") {
  for (const bool on : {false, true}) {
    const auto means = on_ranks<std::vector<double>>(2, [&](const Group& group) {
      nn::BatchNorm1d net(nn::BatchNorm1d::Options{.num_features = 2, .momentum = 0.5});
      net.weight->detach().fill_(group->rank() + 1);
      net.running_mean->fill_(group->rank() + 7);
      DistributedDataParallel ddp(net, {.process_group = group, .broadcast_buffers = on});
      std::vector<double> seen{net.weight->select(0, 0).item(), net.running_mean->select(0, 0).item()};
      net.running_mean->fill_(group->rank() + 10);
      net.eval();
      if (group->rank() == 1) ddp(zeros({4, 2}));  // evaluation on one rank only
      seen.push_back(net.running_mean->select(0, 0).item());
      net.train();
      ddp(full({4, 2}, 20.0));
      seen.push_back(net.running_mean->select(0, 0).item());
      ddp.sync_buffers();
      seen.push_back(net.running_mean->select(0, 0).item());
      return seen;
    });
    CHECK(means[0] == std::vector<double>{1, 7, 10, 15, 15});
    CHECK(means[1] == std::vector<double>{1, 7, 11, on ? 15 : 15.5, 15});
  }
}

TEST_CASE("compression hooks divide before they round") {
  for (const bool bf16 : {false, true}) {
    const auto results = on_ranks<std::vector<double>>(2, [&](const Group& group) {
      Branches net;
      DistributedDataParallel ddp(net, {.process_group = group});
      ddp.set_comm_hook(bf16 ? bf16_compress : f16_compress);
      ddp(full({2}, group->rank() == 0 ? 1.0 : 1 + 0x1p-9)).sum().backward();
      return to_vector(net.a->grad());
    });
    // 2^-1 (1 + 2^-9) is exact in f16 (11 bits) but not in bf16 (8 bits).
    const double expected = bf16 ? 1 : 1 + 0x1p-10;
    for (const auto& r : results) CHECK(r == std::vector<double>{expected, expected});
  }
}

TEST_CASE("a pass works after one that an exception ended") {
  const auto results = on_ranks<std::vector<double>>(2, [](const Group& group) {
    Branches net;
    DistributedDataParallel ddp(net,
                                {.process_group = group, .bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6});
    bool fail = true;
    const Tensor x = full({2}, group->rank() + 1.0);
    net.b->register_post_accumulate_grad_hook([&](const Tensor&) {
      if (fail) throw ValueError("stop");
    });
    try {
      ddp(x).sum().backward();
    } catch (const ValueError&) {
    }
    fail = false;
    net.a->zero_grad(), net.b->zero_grad();
    ddp(x).sum().backward();
    return to_vector(net.a->grad());
  });
  for (const auto& r : results) CHECK(r == std::vector<double>{1.5, 1.5});
}

TEST_CASE("frozen parameters are not averaged, and bad options are refused") {
  Group world;
  run_local_ranks(
      1, [&](const Group& group) { world = group; }, kBounded);
  Branches net;
  CHECK_THROWS_WITH(DistributedDataParallel(net, {}), ContainsSubstring("process_group is null"));
  CHECK_THROWS_WITH(DistributedDataParallel(net, {.process_group = world, .bucket_cap_mb = 0}),
                    ContainsSubstring("bucket_cap_mb is 0"));
  CHECK_THROWS_WITH(DistributedDataParallel(net, {.process_group = world, .device_ids = {Device("cpu:3")}}),
                    ContainsSubstring("a is on cpu:0, which is not among device_ids"));
  CHECK_THROWS_WITH(
      DistributedDataParallel(
          net, {.process_group = world, .device_ids = {kCPU}, .output_device = Device("cpu:1")}),
      ContainsSubstring("output_device"));
  net.a->set_requires_grad(false);
  {
    DistributedDataParallel ddp(net, {.process_group = world});
    CHECK(ddp.buckets() == std::vector<std::vector<std::string>>{{"c", "b"}});
  }
  net.b->set_requires_grad(false), net.c->set_requires_grad(false);
  CHECK_THROWS_WITH(DistributedDataParallel(net, {.process_group = world}),
                    ContainsSubstring("nothing to train"));
}

TEST_CASE("a forward is refused if the model has parameters that would not be averaged") {
  using Change = std::function<void(Branches&)>;
  const auto attempt = [](const Change& change) {
    run_local_ranks(
        2,
        [&](const Group& group) {
          Branches net;
          net.c->set_requires_grad(false);
          DistributedDataParallel ddp(net, {.process_group = group});
          change(net);
          {
            const NoGradGuard no_grad;  // without gradients nothing is refused
            ddp(ones({2}, net.a->dtype()));
          }
          ddp(ones({2}, net.a->dtype())).sum().backward();
        },
        kBounded);
  };
  CHECK_THROWS_WITH(attempt([](Branches& net) { net.to(DType::f64); }),
                    ContainsSubstring("a is not the tensor that it was when the model was wrapped; to("));
  CHECK_THROWS_WITH(attempt([](Branches& net) { net.c->set_requires_grad(true); }),
                    ContainsSubstring("c requires gradients, but did not when"));
  CHECK_THROWS_WITH(
      attempt([](Branches& net) { net.param("late", ones({1})); }),
      ContainsSubstring("has 4 parameters, but had 3 when it was wrapped; wrap the model again"));
  // These changes add no parameters that need averaging, so they must be accepted.
  attempt([](Branches& net) {
    net.to(kCPU);
    net.b->set_requires_grad(false);
    net.a->detach().fill_(7);
  });
}
