// Tests when fully_shard gathers, frees and reduces: from the recorder's list of collectives, and from the
// memory in use, never from a clock.
#include <atomic>

#include "tapestry/core/allocator.h"
#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

// Blocks of one layer without a bias, and a head that the model itself owns.
struct Chain : nn::Module {
  Chain(int count, std::int64_t features) {
    for (int i = 0; i < count; ++i)
      blocks.push_back(&add<nn::Linear>("b" + std::to_string(i),
                                        {.in_features = features, .out_features = features, .bias = false}));
    head = &add<nn::Linear>("head", {.in_features = features, .out_features = 1});
  }
  std::vector<nn::Linear*> blocks;
  nn::Linear* head;
  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (nn::Linear* block : blocks) h = (*block)(h).tanh();
    return (*head)(h);
  }
};

FullyShard shard(Chain& net, FsdpOptions options, const Group& group) {
  options.group = group;
  for (nn::Linear* block : net.blocks) fully_shard(*block, options);
  return fully_shard(net, options);
}

// The collectives of fully_shard since the `from`-th, as "b1 all_gather".
std::vector<std::string> posted(const Group& group, std::size_t from = 0) {
  std::vector<std::string> names;
  for (const CollectiveRecord& r : group->recorder().records()) {
    const std::size_t end = r.name.find(" (");
    if (r.name.rfind("fsdp ", 0) == 0 && end != std::string::npos) names.push_back(r.name.substr(5, end - 5));
  }
  return {names.begin() + static_cast<std::ptrdiff_t>(std::min(from, names.size())), names.end()};
}

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

using distributed_test::require;

}  // namespace

TEST_CASE("forward and backward post gathers and reduce-scatters in one order") {
  on_ranks<int>(2, [&](const Group& group) {
    Chain net(4, 3);
    const FullyShard handle = shard(net, {}, group);
    const auto step = [&] { net(ones({2, 3})).sum().backward(); };
    step();
    // The first forward does not know the order yet, so it gathers nothing ahead.
    const std::vector<std::string> backward{"b3 all_gather",     "b2 all_gather",     "b3 reduce_scatter",
                                            "b1 all_gather",     "b2 reduce_scatter", "b0 all_gather",
                                            "b1 reduce_scatter", "b0 reduce_scatter", "Chain reduce_scatter"};
    std::vector<std::string> expected{"Chain all_gather", "b0 all_gather", "b1 all_gather", "b2 all_gather",
                                      "b3 all_gather"};
    expected.insert(expected.end(), backward.begin(), backward.end());
    require(posted(group) == expected, "the first step posted other collectives");

    // From then on, each gather is posted before the block before it has computed, and each reduce-scatter
    // before the backward of the next block has ended.
    const std::size_t before = posted(group).size();
    std::vector<std::string> wrong;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::string self = std::to_string(i), next = std::to_string(i + 1);
      net.blocks[i]->register_forward_hook([&, i, next](nn::Module&, const auto&, std::vector<Tensor>& out) {
        if (i < 3 && !contains(posted(group, before), "b" + next + " all_gather"))
          wrong.push_back("gather of b" + next + " too late");
        if (out[0].requires_grad() && i > 0)
          out[0].register_hook([&, i, next](const Tensor&) -> Tensor {
            if (handle.report().most_full_units > 2) wrong.push_back("too many full units");
            return {};
          });
      });
      net.blocks[i]->register_forward_pre_hook([&, i, next](nn::Module&, std::vector<Tensor>& in) {
        if (i > 0 && i < 3)  // this gradient arrives when the backward of block i has ended
          in[0].register_hook([&, next](const Tensor&) -> Tensor {
            if (!contains(posted(group, before), "b" + next + " reduce_scatter"))
              wrong.push_back("reduce-scatter of b" + next + " too late");
            return {};
          });
      });
    }
    // Backward of the first block reads no parameter, because the input has no gradient. The block after it
    // is reduced all the same before the gradients of the first block exist.
    net.blocks[0]->register_forward_hook([&](nn::Module&, const auto&, std::vector<Tensor>& out) {
      out[0].register_hook([&](const Tensor&) -> Tensor {
        if (!contains(posted(group, before), "b1 reduce_scatter"))
          wrong.push_back("reduce-scatter of b1 after backward of b0 began");
        return {};
      });
    });
    step();
    require(wrong.empty(), wrong.empty() ? "" : wrong[0]);
    require(posted(group, before) == expected, "the second step posted other collectives");
    require(handle.report().most_full_units == 2, "expected two full units");
    return 0;
  });
}

TEST_CASE("never more units are full than the limit") {
  for (const int limit : {1, 2, 3})
    on_ranks<int>(2, [&](const Group& group) {
      Chain net(5, 3);
      const FullyShard handle = shard(net, {.max_full_units = limit}, group);
      for (int step = 0; step < 3; ++step) net(ones({2, 3})).sum().backward();
      require(handle.report().most_full_units == limit, "limit ", limit, ": ",
              handle.report().most_full_units, " units were full");
      for (const FsdpUnitReport& u : handle.report().units) require(!u.is_full, u.name, " is still full");
      return 0;
    });
}

TEST_CASE("a unit that is kept full is gathered once per step") {
  on_ranks<int>(2, [&](const Group& group) {
    Chain net(3, 3);
    const FullyShard handle = shard(net, {.reshard_after_forward = false}, group);
    for (int step = 0; step < 2; ++step) net(ones({2, 3})).sum().backward();
    for (const FsdpUnitReport& u : handle.report().units)
      require(u.gathers == 2 && u.scatters == 2, u.name, " gathered ", u.gathers, " times");
    return 0;
  });
}

TEST_CASE("memory is that of the shards and of two units") {
  constexpr int kBlocks = 24;
  constexpr std::int64_t kFeatures = kSanitized ? 48 : 96;
  for (const int ranks : {2, 4, 8}) {
    // The ranks are threads of this process, so they share the statistics. A rank takes part in a barrier
    // before and after the measured steps.
    const double unit = 4.0 * kFeatures * kFeatures, all = kBlocks * unit;
    std::atomic<std::int64_t> peak{0};
    on_ranks<int>(ranks, [&](const Group& group) {
      Chain net(kBlocks, kFeatures);
      shard(net, {}, group);
      optim::AdamW optimizer(net.parameters(), {.lr = 1e-3});
      const auto step = [&] {
        optimizer.zero_grad();
        net(ones({1, kFeatures})).sum().backward();
        optimizer.step();
      };
      step();
      step();
      group->barrier().wait();
      if (group->rank() == 0) reset_peak_memory(kCPU);
      group->barrier().wait();
      step();
      step();
      group->barrier().wait();
      if (group->rank() == 0) peak = memory_stats(kCPU).peak_allocated;
      group->barrier().wait();
      return 0;
    });
    const double bound = ranks * (4 * all / ranks + 4 * unit);
    INFO(ranks << " ranks: " << double(peak) / bound << " of the bound");
    CHECK(double(peak) <= bound);
    CHECK(double(peak) > 0.9 * 4 * all);
  }
}

TEST_CASE("the timeline and the report show gathers and reduce-scatters") {
  const Timeline timeline;
  on_ranks<int>(2, [&](const Group& group) {
    Chain net(3, 3);
    const FullyShard handle = shard(net, {}, group);
    for (int step = 0; step < 2; ++step) net(ones({2, 3})).sum().backward();
    const FsdpReport report = handle.report();
    require(report.units.size() == 4, "expected a unit per block and the model");
    const FsdpUnitReport& b1 = report.units[1];
    require(b1.name == "b1" && b1.parameters == std::vector<std::string>{"weight"}, b1.name);
    require(b1.full_bytes == 36 && b1.shard_bytes == 24, "wrong bytes");
    require(b1.gathers == 4 && b1.scatters == 2, b1.gathers, " gathers, ", b1.scatters, " reduce-scatters");
    require(b1.backward_gathers == 2, b1.backward_gathers, " gathers in backward");
    require(report.units[3].backward_gathers == 0, "the model is not gathered again in backward");
    require(report.str().find("b1 ") != std::string::npos, "the table lacks a unit");
    handle.reset_report();
    require(handle.report().units[1].gathers == 0, "not reset");
    return 0;
  });
  int gathers = 0, scatters = 0, of_model = 0;
  for (const Span& span : timeline.spans()) {
    if (span.activity != Activity::communication) continue;
    of_model += span.subject.module.empty();  // the path of the model itself
    gathers += span.name.rfind("fsdp b1 all_gather", 0) == 0;
    scatters += span.name.rfind("fsdp b1 reduce_scatter", 0) == 0;
    const SpanSubject& about = span.subject;
    CHECK(about.module == span.name.substr(span.name.find("fsdp ") + 5, about.module.size()));
    CHECK(about.axis == "world");
    if (about.module == "b1") CHECK(about.bytes == 36);
  }
  CHECK(gathers == 8);
  CHECK(scatters == 4);
  CHECK(of_model > 0);
}
