// Compares the collectives of the planner's step with those that fully_shard() posts.
#include "tapestry/distributed/planner/internal/sharded_step.h"
#include "tests/distributed/fsdp_models.h"
#include "tests/planner/examples.h"

using namespace tests;
using tapestry::distributed::CollectiveRecord;
using tapestry::distributed::Op;
using namespace tapestry;

namespace {

constexpr std::int64_t kFeatures = 6;

// "all_gather of block 3: 168 bytes"
std::string said(bool gathers, std::size_t block, std::int64_t bytes) {
  return concat({gathers ? "all_gather" : "reduce_scatter", " of block ", block, ": ", bytes, " bytes"});
}

// The collectives of the second step, in which the order of units is known.
std::vector<std::string> posted(const std::shared_ptr<distributed::ProcessGroup>& group, int blocks) {
  nn::Sequential net;
  for (int i = 0; i < blocks; ++i)
    net.append<nn::Linear>(nn::Linear::Options{.in_features = kFeatures, .out_features = kFeatures});
  for (nn::Module* const block : net.children()) distributed::fully_shard(*block, {.group = group});
  distributed::fully_shard(net, {.group = group});
  const auto step = [&] { net(ones({2, kFeatures})).sum().backward(); };
  step();
  const std::size_t before = group->recorder().records().size();
  step();
  std::vector<std::string> all;
  const std::vector<CollectiveRecord> records = group->recorder().records();
  for (std::size_t i = before; i < records.size(); ++i) {
    const CollectiveRecord& r = records[i];
    if (!r.name.starts_with("fsdp ")) continue;  // the ranks compare what they have changed
    const bool gathers = r.op == Op::all_gather;
    const auto block = static_cast<std::size_t>(std::stoi(r.name.substr(std::string("fsdp ").size())));
    // The record has this rank's part. A reduce-scatter also moves a flag per parameter.
    const std::int64_t part = r.shape.numel() - (gathers ? 0 : 2);
    all.push_back(said(gathers, block, 4 * group->size() * part));
  }
  return all;
}

}  // namespace

TEST_CASE("fully_shard posts the collectives that the planner simulates") {
  for (const int blocks : {1, 2, 5})
    for (const int ranks : {2, 3}) {
      CAPTURE(blocks, ranks);
      const Profile profile = profile_with(blocks, 4 * (kFeatures * kFeatures + kFeatures));
      const Link link;
      const TrainingSetup setup = setup_of(ranks, ranks);
      const CostModel c{profile, link, setup, {sharded_over(ranks, link)}};
      const BlockTimes forward = forward_times(c, c.all_blocks(), 1, true, 1),
                      backward = backward_times(c, c.all_blocks(), 1, true, 1);
      const ShardedStep step(c, c.all_blocks(), &forward, &backward, {});
      std::vector<std::string> simulated;
      for (const ShardedStep::Unit& u : step.units) simulated.push_back(said(u.gathers, u.block, u.bytes));
      CHECK(step.collectives.size() == simulated.size());
      for (const std::vector<std::string>& rank : distributed_test::on_ranks<std::vector<std::string>>(
               ranks, [&](const auto& group) { return posted(group, blocks); }))
        CHECK(rank == simulated);
    }
}
