// Tests fully_shard with ranks as threads: it must train exactly as DistributedDataParallel does.
#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

struct Variant {
  std::string name;
  Training training;
};

std::vector<Variant> variants() {
  std::vector<Variant> list{
      {"defaults", {}},
      {"kept full", {.options = {.reshard_after_forward = false}}},
      {"model resharded too", {.options = {.reshard_after_forward = true}}},
      {"nothing gathered ahead", {.options = {.max_full_units = 1}}},
      {"four full units", {.options = {.max_full_units = 4}}},
      {"SGD", {.adamw = false}},
      {"accumulation", {.accumulate = 3}},
      {"checkpointing", {.checkpointed = true}},
      {"units in units", {.nested = true}},
      {"a frozen block", {.frozen = 1}},
      {"frozen embeddings", {.frozen = 2}},
  };
  return list;
}

void compare(const Trained& a, const Trained& b, const std::string& what) {
  INFO(what);
  CHECK(a.losses == b.losses);
  CHECK(a.weights == b.weights);
}

}  // namespace

TEST_CASE("sharded ranks train as replicated ranks do, bit for bit") {
  for (const Variant& v : variants())
    for (const int ranks : {2, 3, 4}) {
      if (ranks == 3 && v.name != "defaults") continue;
      const auto expected = on_ranks<Trained>(
          ranks, [&](const Group& g) { return train_gpt(Parallel::ddp, g, ranks, v.training); });
      const auto sharded = on_ranks<Trained>(
          ranks, [&](const Group& g) { return train_gpt(Parallel::fsdp, g, ranks, v.training); });
      for (std::size_t r = 0; r < expected.size(); ++r)
        compare(sharded[r], expected[r], concat({v.name, ", rank ", r, " of ", ranks}));
      CHECK(expected[0].losses.back() < expected[0].losses.front());
    }
}
