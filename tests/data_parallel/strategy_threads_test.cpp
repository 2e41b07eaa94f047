// Every mode of distributed::Strategy computes what one process computes, with ragged batches whose ranks
// have different numbers of valid targets.
#include "tapestry/distributed/strategy/internal/row.h"
#include "tests/data_parallel/strategy_net.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::strategy_net;

TEST_CASE("every mode trains and evaluates as one process does") {
  const Trained expected = expected_training();
  for (const bool mean : {false, true})
    for (const int parts : {1, 2}) {
      for (const char* text : {"none", "replicate=2:devices", "dp-master", "shard=2:devices", "model",
                               "pipeline-gpipe", "pipeline-1f1b", "pipeline-zero-bubble"}) {
        CAPTURE(text, parts, mean);
        check_same(train(text, nullptr, parts, mean), expected, true);
      }
      for (const char* text :
           {"ddp", "zero1", "replicate=2:zero=2", "fsdp", "shard=2:gather=step", "shard=2:reduce=part",
            "pipeline=2", "pipeline=-1:schedule=gpipe", "pipeline=2:schedule=zero-bubble"}) {
        CAPTURE(text, parts, mean);
        const auto ranks = on_ranks<Trained>(2, [&](const Group& g) { return train(text, g, parts, mean); });
        for (std::size_t r = 0; r < 2; ++r) check_same(ranks[r], expected, r == 0);
      }
    }
}
TEST_CASE("the divisor of a step may be rounded, and what a step counts that fails is forgotten") {
  const auto errors = on_ranks<std::string>(6, [](const Group& world) {
    const auto net = make_mlp();
    Strategy strategy("ddp", {.world = world, .parts = 2});
    ModelParts parts = parts_of(*net, true);
    parts.loss = [](const Tensors& out, const Tensors&) -> Loss { return {out[0].mean(), 0.1 / 12}; };
    strategy.wrap(*net, parts);
    const auto step = [&](double count, bool fails) -> std::string {
      try {
        strategy.gradients(
            [&](const Part& part) {
              require(!fails || part.index == 0, "no samples");
              return whole_batch(part.index);
            },
            count);
      } catch (const std::exception& e) {
        return e.what();
      }
      return "";
    };
    for (int i = 0; i < 2; ++i)
      require(step(0.1 + 1e-3 * world->rank(), false).find("the same on all ranks") != std::string::npos,
              "other divisors");
    require(step(0.1, true) == "no samples", "the exception");
    return step(0.1, false);
  });
  for (const std::string& error : errors) CHECK(error.empty());
}

TEST_CASE("each device's forward is on its own row of the timeline") {
  for (const char* text : {"replicate=2:devices", "shard=2:devices"}) {
    CAPTURE(text);
    const Timeline timeline;
    norm(text, nullptr, 1);
    std::vector<std::string> rows;
    for (const Span& span : timeline.spans())
      if (span.activity == Activity::forward) rows.push_back(span.row);
    CHECK(rows == std::vector<std::string>{"cpu:0", "cpu:1"});
  }
}

TEST_CASE("with three ranks, the parts of a step divide its samples without gaps") {
  const auto all = on_ranks<std::vector<Samples>>(3, [](const Group& world) {
    const Strategy strategy("replicate=-1", {.world = world});
    require(strategy.name() == "replicate=3", strategy.name());
    require(strategy.data_size() == 3 && strategy.data_rank() == world->rank(), "data coordinates");
    require(strategy.logs() == (world->rank() == 0), "one rank logs");
    const RandomPlace place = strategy.random_place();
    require(place.data == world->rank() && place.data_size == 3 && place.stages == 1, "the place");
    require(strategy.choices() == StringMap{{"parts", "1"}, {"ranks", "3"}, {"strategy", "replicate=3"}},
            "choices");
    return std::vector{strategy.share(11, {0, 2, false}), strategy.share(11, {1, 2, true})};
  });
  // 6 samples, then 5.
  const std::int64_t first[2][3] = {{0, 2, 4}, {6, 8, 10}}, count[2][3] = {{2, 2, 2}, {2, 2, 1}};
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t p = 0; p < 2; ++p) {
      CHECK(all[r][p].first == first[p][r]);
      CHECK(all[r][p].count == count[p][r]);
    }
}

TEST_CASE("a strategy's text that cannot be trained is refused, and the message names what is wrong") {
  const auto refused = [](const std::string& text, const std::string& why, bool launched = true) {
    CAPTURE(text);
    CHECK_THROWS_WITH(plan_strategy(text, launched), ContainsSubstring(why));
  };
  refused("replicate=2:devices,shard=2:devices", "over the devices of one process cannot be combined yet");
  CHECK_FALSE(plan_strategy("replicate=2,shard=2", false).over_devices);
  refused("replicate=2:zero=1,shard=2", "shard and replicate:zero cannot be combined; shard divides");
  CHECK(plan_strategy("replicate=2:zero=1,expert=2", true).size == 4);
  refused("replicate=2:devices,shard=2", "axes over ranks and over devices cannot be combined yet");
  refused("replicate=2:zero=3", "zero is 3; choose one of 1|2");
  refused("replicate=2:devices:zero=1", "has no option zero");
  CHECK_FALSE(plan_strategy("replicate=2:zero=1", false).over_devices);
  refused(
      "shard=2:compress=f16",
      "shard over ranks has no option compress; it has gather=part|step reduce=step|part offload=none|host");
  refused("shard=2:gather=never", "gather is never; choose one of part|step");
  refused("shard=2:reduce=never", "reduce is never; choose one of step|part");
  refused("replicate=2:compress=f16,shard=2",
          "shard and replicate:compress cannot be combined; fully_shard adds");
  CHECK(plan_strategy("replicate=2:compress=none,shard=2", true).size == 4);
  refused("context=2:devices",
          "this program has no axis context over devices of one process; it has one over");
  CHECK_FALSE(plan_strategy("pipeline=2", true).over_devices);
  CHECK(plan_strategy("pipeline=2:schedule=sequential", true).over_devices);
  CHECK(plan_strategy("pipeline", true).over_devices);
  CHECK(plan_strategy("replicate=1,shard=4", true).axes.size() == 1);
  refused("replicate=1:bogus=3,shard=4", "has no option bogus");
  refused("replicate=65536,shard=65536", "for more than 2147483647 ranks");
  CHECK(plan_strategy("replicate=2", false).over_devices);
  CHECK_FALSE(plan_strategy("replicate=2", true).over_devices);
  CHECK(plan_strategy("replicate=2", true).reads("compress"));
  CHECK_FALSE(plan_strategy("shard=2", true).reads("compress"));

  const std::vector<Device> two{{DeviceType::cpu, 0}, {DeviceType::cpu, 1}};
  CHECK_THROWS_WITH(Strategy("replicate=3:devices", {.devices = two}), ContainsSubstring("needs 3 devices"));
  CHECK_THROWS_WITH(Strategy("zero1", {}), ContainsSubstring("world is null"));
  const auto net = make_mlp();
  Strategy split("pipeline=2:devices", {.devices = two});
  ModelParts parts = parts_of(*net, true);
  parts.stages = {};
  CHECK_THROWS_WITH(split.wrap(*net, parts), ContainsSubstring("ModelParts has no stages"));
  parts = parts_of(*net, true);
  parts.stages = [&](const std::vector<Device>& devices) {
    return std::vector<Stage>{{net->fc1, devices[0]}, {net->fc2, devices[1]}, {net->fc1, devices[1]}};
  };
  Strategy sequential("model", {.devices = two});
  CHECK_THROWS_WITH(
      sequential.wrap(*net, parts),
      ContainsSubstring("fc1.weight is in stages on cpu:0 and cpu:1") && ContainsSubstring("schedule=1f1b"));
  CHECK(net->fc2.weight->device() == two[0]);
  Strategy one("none", {});
  CHECK_THROWS_WITH(one.gradients({}, 1), ContainsSubstring("call wrap() first"));
  CHECK_THROWS_WITH(one.clip_grad_norm_(1), ContainsSubstring("call wrap() first"));
  CHECK_THROWS_WITH(one.whole_state(), ContainsSubstring("call wrap() first"));
  CHECK_THROWS_WITH(one.unshard(), ContainsSubstring("call wrap() first"));
  CHECK_THROWS_WITH(one.report(), ContainsSubstring("call wrap() first"));
  one.wrap(*net, parts_of(*net, true));
  CHECK_THROWS_WITH(one.gradients({}, 0), ContainsSubstring("divided by 0"));
  CHECK_THROWS_WITH(one.gradients([](const Part&) { return whole_batch(0); }, 4),
                    ContainsSubstring("divided by 4, but the losses of all ranks and parts count 8 targets"));
  Strategy uneven("none", {.parts = 2});
  parts = parts_of(*net, true);
  parts.loss = [n = 0](const Tensors& out, const Tensors&) mutable -> Loss {
    return {.value = out[0].mean(), .count = 1, .sums = Tensors(n++, ones({}))};
  };
  uneven.wrap(*net, parts);
  CHECK_THROWS_WITH(uneven.gradients([](const Part&) { return whole_batch(0); }, 2),
                    ContainsSubstring("Loss::sums has 1 numbers, and had 0"));
  run_local_ranks(1, [](const Group& world) {
    const auto whole = make_mlp();
    for (const bool shards : {false, true}) {
      std::string error;
      try {
        if (shards) fully_shard(*whole, {.group = world, .reduce = ReduceOp::max});
        else DistributedDataParallel<Mlp>(*whole, {.process_group = world, .reduce = ReduceOp::max});
      } catch (const ValueError& e) {
        error = e.what();
      }
      require(error.find("reduce must be ReduceOp::mean or ReduceOp::sum") != std::string::npos, error);
    }
  });
  run_local_ranks(2, [](const Group& world) {
    std::string error;
    try {
      const Strategy strategy("none", {.world = world});
    } catch (const ValueError& e) {
      error = e.what();
    }
    require(error.find("this is one of 2") != std::string::npos, error);
  });
}

TEST_CASE("an all-reduce sends 2 (n - 1) / n of the bytes") {
  CHECK(all_reduce_bytes(1000, 1) == 0);
  CHECK(all_reduce_bytes(1000, 2) == 1000);
  CHECK(all_reduce_bytes(1000, 4) == 1500);
  CHECK(gather_bytes(1000, 1) == 0);
  CHECK(gather_bytes(1000, 4) == 750);
}

TEST_CASE("a report has what each axis sent, and the memory of each device by kind") {
  // By hand, in elements: fc1 has 5 * 7 + 7, fc2 7 * 6 + 6, and fc3 6 * 4 + 4. A shard has ceil(n / 2) rows
  // of n.
  constexpr std::int64_t kFirst = 42, kRest = 48 + 28, kAll = kFirst + kRest;
  // In a bucket each parameter begins at a multiple of 64 bytes.
  constexpr std::int64_t kInBuckets = (40 + 8) + (48 + 8) + (24 + 8);
  constexpr std::int64_t kShards[] = {(4 * 5 + 4) + (3 * 7 + 3) + (2 * 6 + 2),
                                      (3 * 5 + 3) + (3 * 7 + 3) + (2 * 6 + 2)};
  struct Mode {
    const char* text;
    std::vector<std::int64_t> stored;  // of each device
  };
  for (const auto& [text, stored] :
       {Mode{"none", {kAll}}, Mode{"replicate=2:devices", {kAll, kAll}}, Mode{"model", {kFirst, kRest}},
        Mode{"pipeline=2", {kFirst, kRest}}, Mode{"shard=2:devices", {kShards[0], kShards[1]}}}) {
    INFO(text);
    MemoryRecord record;
    Strategy strategy(text, {.devices = {{DeviceType::cpu, 0}, {DeviceType::cpu, 1}}, .parts = 2});
    const auto net = make_mlp();
    strategy.wrap(*net, parts_of(*net, true));
    const auto optimizer = make_optimizer<optim::AdamW>(strategy, net->parameters(), {.lr = 0.01});
    const Batch all = whole_batch(0);
    const auto step = [&] {
      optimizer->zero_grad();
      strategy.gradients([&](const Part& part) { return narrowed(all, strategy.share(kSamples, part)); },
                         valid(all.targets[0]));
      optimizer->step();
    };
    step();
    record.restart();
    for (const Device device : strategy.devices()) reset_peak_memory(device);
    step();
    const std::vector<MemorySample> memory = strategy.memory(&record);
    REQUIRE(memory.size() == stored.size());
    for (std::size_t i = 0; i < stored.size(); ++i) {
      INFO(i);
      const auto bytes = [&](MemoryKind kind) { return memory[i].bytes[static_cast<std::size_t>(kind)]; };
      const bool is_whole = std::string_view(text) != "shard=2:devices";  // else two units may be whole
      CHECK(memory[i].total() == strategy.memory()[i].total());           // as the allocator counts it
      CHECK((is_whole ? bytes(MemoryKind::parameters) == 8 * stored[i]
                      : bytes(MemoryKind::parameters) >= 8 * stored[i]));
      CHECK(bytes(MemoryKind::optimizer) == 2 * 8 * stored[i]);
      if (stored.size() == 1) CHECK(bytes(MemoryKind::gradients) == 8 * kAll);
    }
  }
  for (const auto& [text, sent] : {std::pair("replicate=2", std::vector<std::int64_t>{8 * kInBuckets}),
                                   {"replicate=2:zero=1", {8 * kInBuckets + 4 * kAll}},
                                   {"replicate=2:zero=2", {4 * kInBuckets + 4 * kAll}}}) {
    INFO(text);
    for (const auto& own : on_ranks<std::vector<std::int64_t>>(2, [&, text = text](const Group& world) {
           Strategy strategy(text, {.world = world});
           const auto net = make_mlp();
           strategy.wrap(*net, parts_of(*net, true));
           const Batch all = whole_batch(0);
           strategy.gradients([&](const Part& part) { return narrowed(all, strategy.share(kSamples, part)); },
                              valid(all.targets[0]));
           std::vector<std::int64_t> bytes;
           for (const AxisReport& axis : strategy.report()) bytes.push_back(axis.bytes_sent);
           return bytes;
         }))
      CHECK(own == sent);
  }
}

TEST_CASE("each axis of replicate x shard reports its own bytes, with sender and receiver") {
  // By hand, in elements of 8 bytes: full units have 42, 48 and 28. fc1 and fc2 are gathered twice.
  constexpr std::int64_t kForward = 42 + 48 + 28, kBackward = 42 + 48, kScattered = 42 + 48 + 28;
  // The shards and flags of a unit are in one buffer, each at a multiple of 64 bytes.
  constexpr std::int64_t kShards = (24 + 8 + 8) + (24 + 8 + 8) + (16 + 8 + 8);
  for (const char* reduce : {"step", "part"}) {
    const std::int64_t parts = std::string_view(reduce) == "part" ? 2 : 1;
    const auto wrong = on_ranks<std::string>(4, [&](const Group& world) -> std::string {
      Strategy strategy(concat({"replicate=2,shard=2:reduce=", reduce}), {.world = world, .parts = 2});
      require(strategy.data_group() && strategy.data_group()->size() == 4, "the group of the data");
      const auto net = make_mlp();
      strategy.wrap(*net, parts_of(*net, true));
      const Batch all = whole_batch(0);
      strategy.gradients([&](const Part& part) { return narrowed(all, strategy.share(kSamples, part)); },
                         valid(all.targets[0]));
      std::string text;
      for (const AxisReport& axis : strategy.report())
        text += concat({axis.axis, " ", axis.bytes_sent, "; "});
      for (const Transfer& t : strategy.transfers())
        text += concat({t.from - world->rank(), " to ", (t.to - world->rank() + 4) % 4, " ", t.bytes, " ",
                        t.what, " ", t.axis, " ", t.phase, "; "});
      // Parameters are gathered in each part, gradients are reduce-scattered in each part or in the last one
      // (`reduce`), and the copies all-reduce once a step.
      const std::int64_t forward = 2 * kForward * 4, backward = 2 * kBackward * 4,
                         scattered = parts * kScattered * 4, added = kShards * 8;
      const int next = world->rank() % 2 ? 3 : 1;  // along `shard`
      const std::string expected = concat(
          {"shard ", forward + backward + scattered, "; replicate ", added, "; 0 to ", next, " ", forward,
           " parameters shard forward; 0 to ", next, " ", backward, " parameters shard backward; 0 to ", next,
           " ", scattered, " gradients shard backward; 0 to 2 ", added, " gradients replicate backward; "});
      return text == expected ? "" : text + "\ninstead of\n" + expected;
    });
    CHECK(wrong == std::vector<std::string>(4));
  }
}

TEST_CASE("a row that a program registers is a mode like the others") {
  // Computes as one device does, and counts the parts.
  struct Counting : StrategyLayer {
    using StrategyLayer::StrategyLayer;
    StepLoss gradients(const Part& part, const Batch& batch, double count,
                       optim::GradScaler* scaler) override {
      ++parts_;
      return StrategyLayer::gradients(part, batch, count, scaler);
    }
    LayerReport report() const override { return {{"tensor", parts_}}; }
    std::int64_t parts_ = 0;
  };
  const auto is_refused = [] {
    CHECK_THROWS_WITH(plan_strategy("tensor=2:devices", false), ContainsSubstring("no axis tensor"));
  };
  is_refused();
  {
    const RowRegistration registration{{.axis = "tensor",
                                        .over_devices = true,
                                        .order = 20,
                                        .options = "kind=column|row",
                                        .make = [](const LayerContext& c) -> std::unique_ptr<StrategyLayer> {
                                          return std::make_unique<Counting>(c);
                                        }}};
    CHECK_THROWS_WITH(plan_strategy("tensor=2:devices:kind=diagonal", false),
                      ContainsSubstring("column|row"));
    check_same(train("tensor=2:devices:kind=row", nullptr, 2, true), expected_training(), true);
    const auto net = make_mlp();
    Strategy strategy("tensor=2:devices",
                      {.devices = {{DeviceType::cpu, 0}, {DeviceType::cpu, 1}}, .parts = 3});
    strategy.wrap(*net, parts_of(*net, true));
    const Batch all = whole_batch(0);
    strategy.gradients([&](const Part& part) { return narrowed(all, strategy.share(kSamples, part)); },
                       valid(all.targets[0]));
    REQUIRE(strategy.report().size() == 1);
    CHECK(strategy.report()[0].bytes_sent == 3);
  }
  is_refused();
}
