// Tests sharded checkpoints of fully_shard: missing shards, ranks that do not share the folder, stages of a
// pipeline, and the memory of loading.
#include <algorithm>
#include <atomic>
#include <filesystem>

#include "tapestry/core/allocator.h"
#include "tapestry/tapestry.h"
#include "tests/distributed/sharded_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using distributed_test::Group, distributed_test::on_ranks;
namespace fs = std::filesystem;

namespace {

struct Layers : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 4, .out_features = 6});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 6, .out_features = 3});
  nn::Linear& c = add<nn::Linear>("c", {.in_features = 3, .out_features = 8});
  Layers() { fill_by_formula(*this); }
  Tensor forward(const Tensor& x) override { return c(b(a(x).relu()).relu()); }
};

void shard_all(nn::Module& net, const Group& group) {
  for (nn::Module* const child : net.children()) fully_shard(*child, {.group = group});
  fully_shard(net, {.group = group});
}

// Saves after `steps` steps of fully_shard with the gradients of sharded_models.h.
void save_fsdp(int ranks, const std::string& folder, int steps) {
  on_ranks<int>(ranks, [&](const Group& group) {
    Layers net;
    shard_all(net, group);
    optim::AdamW optimizer(net.parameters(), {.lr = 0.02});
    for (int step = 0; step < steps; ++step) formula_step(net, optimizer, step);
    save_sharded(folder, group, {&net, &optimizer}, {.step = steps});
    return 0;
  });
}

Rows reference(int steps) {
  Layers net;
  optim::AdamW optimizer(net.parameters(), {.lr = 0.02});
  for (int step = 0; step < steps; ++step) formula_step(net, optimizer, step);
  return rows_of(net, optimizer);
}

bool same(const Rows& a, const Rows& b) {
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const auto& x, const auto& y) {
                      return x.first == y.first && to_vector(x.second) == to_vector(y.second);
                    });
}

std::string name_of_shard(int shard, int shards) {
  return concat({"shard-0000", shard, "-of-0000", shards, ".safetensors"});
}

}  // namespace

TEST_CASE("whichever shard is missing, all ranks name it, change nothing, and resume from the step before") {
  const tests::TempDir dir;
  for (int shard = 0; shard < 4; ++shard) {
    const std::string folder = dir / std::to_string(shard), last = folder + "/step-00000002",
                      missing = last + "/" + name_of_shard(shard, 4);
    save_fsdp(4, folder + "/step-00000001", 1);
    save_fsdp(4, last, 2);
    fs::remove(missing);
    INFO(missing);
    for (const int ranks : {1, 3}) {
      on_ranks<int>(ranks, [&](const Group& group) {
        Layers net;
        shard_all(net, group);
        optim::AdamW optimizer(net.parameters(), {.lr = 0.02});
        const Rows before = rows_of(net, optimizer);
        std::string error;
        try {
          load_sharded(last, {&net, &optimizer});
        } catch (const IoError& e) {
          error = e.what();
        }
        // A rank that needs no row of the missing shard loads what it needs.
        if (ranks == 1)
          distributed_test::require(error.find(missing) != std::string::npos, "no error: " + error);
        if (!error.empty())
          distributed_test::require(same(rows_of(net, optimizer), before), "changed: " + error);
        group->barrier().wait();
        const auto progress = Checkpointer(folder, group).resume({&net, &optimizer});
        distributed_test::require(progress && progress->step == 1, "not the step before");
        distributed_test::require(differences(rows_of(net, optimizer), reference(1)).empty(), "wrong rows");
        return 0;
      });
    }
  }
}

TEST_CASE("a checkpoint whose ranks do not share its folder is not completed") {
  const tests::TempDir dir;
  const auto save = [&](const std::string& of_rank_1) {
    return on_ranks<std::string>(3, [&](const Group& group) -> std::string {
      Layers net;
      shard_all(net, group);
      try {
        save_sharded(dir / (group->rank() == 1 ? of_rank_1 : "shared"), group, &net, {.step = 1});
      } catch (const Error& e) {
        return e.what();
      }
      return "";
    });
  };
  for (const std::string& error : save("missing"))
    CHECK_THAT(error, ContainsSubstring("missing/" + name_of_shard(1, 3)));
  CHECK_FALSE(fs::exists(dir / "shared"));
  fs::create_directories(dir / "own");  // the same path on a disk of its own
  for (const std::string& error : save("own"))
    CHECK_THAT(error, ContainsSubstring("rank 1 has written") && ContainsSubstring("all ranks share") &&
                          ContainsSubstring("shared/" + name_of_shard(1, 3)));
  CHECK_FALSE(fs::exists(dir / "shared"));
  for (const std::string& error : save("shared")) CHECK(error == "");
}

TEST_CASE("a fully sharded model loads into the stages of a pipeline with its optimizer, and back") {
  const tests::TempDir dir;
  const Rows whole = reference(3);
  save_fsdp(4, dir / "fsdp", 3);
  const auto stages_of = [](Layers& net, int rank, int ranks) {
    std::vector<Stage> stages;
    const std::vector<nn::Module*> all = net.children();
    for (int i = 0; i < 3; ++i)
      if (i * ranks / 3 == rank) stages.push_back(Stage({*all[static_cast<std::size_t>(i)]}, kCPU));
    return stages;
  };
  for (const int ranks : {1, 2, 3}) {
    const std::string back = dir / ("stages" + std::to_string(ranks));
    on_ranks<int>(ranks, [&](const Group& group) {
      Layers net;
      for (const nn::Parameter& p : net.parameters()) p.tensor().detach().fill_(-1);
      const std::vector<Stage> stages = stages_of(net, group->rank(), ranks);
      std::vector<nn::Parameter> own;
      std::vector<std::string> names;
      for (const Stage& stage : stages)
        for (const auto& [name, p] : stage.named_parameters()) own.push_back(p), names.push_back(name);
      optim::AdamW optimizer(own, {.lr = 0.3});
      const ShardedTraining training(stages, &optimizer);
      load_sharded(dir / "fsdp", training);
      const Rows rows = rows_of(net, optimizer);
      std::size_t compared = 0;
      for (const auto& [name, tensor] : whole.tensors) {
        const bool mine = std::any_of(names.begin(), names.end(), [&](const std::string& own_name) {
          return name == own_name || name.starts_with(own_name + ".");
        });
        if (!mine) continue;
        distributed_test::require(to_vector(rows.tensors.at(name)) == to_vector(tensor), name);
        ++compared;
      }
      distributed_test::require(compared == own.size() * 4, "weights, two moments and a step per parameter");
      distributed_test::require(optimizer.lr() == 0.02, "learning rate");
      save_sharded(back, group, training, {.step = 3});
      return 0;
    });
    for (const int others : {1, 2, 5}) {
      const auto wrong = on_ranks<std::string>(others, [&](const Group& group) {
        Layers net;
        shard_all(net, group);
        optim::AdamW optimizer(net.parameters(), {});
        load_sharded(back, {&net, &optimizer});
        return differences(rows_of(net, optimizer), whole);
      });
      for (const std::string& text : wrong) CHECK(text == "");
    }
  }
}

TEST_CASE("a model from the meta device is sharded and loaded within one unit above the shards") {
  constexpr int kLayers = 12, kRanks = 3;
  constexpr std::int64_t kWidth = 192;
  struct Wide : nn::Module {
    Wide() {
      for (int i = 0; i < kLayers; ++i)
        add<nn::Linear>("layer" + std::to_string(i),
                        {.in_features = kWidth, .out_features = kWidth, .bias = false});
    }
  };
  const tests::TempDir dir;
  {
    Wide net;
    fill_by_formula(net);
    save_sharded(dir / "one", nullptr, &net, {.step = 1});
  }
  const double unit = 4.0 * kWidth * kWidth, all = kLayers * unit;
  std::atomic<std::int64_t> peak{0};
  std::atomic<bool> right{true};
  on_ranks<int>(kRanks, [&](const Group& group) {
    group->barrier().wait();
    const std::int64_t before = memory_stats(kCPU).allocated;
    group->barrier().wait();
    if (group->rank() == 0) reset_peak_memory(kCPU);
    group->barrier().wait();
    std::unique_ptr<Wide> net;
    {
      const DeviceGuard meta("meta");
      net = std::make_unique<Wide>();
    }
    shard_all(*net, group);
    load_sharded(dir / "one", net.get());
    group->barrier().wait();
    if (group->rank() == 0) peak = memory_stats(kCPU).peak_allocated - before;
    group->barrier().wait();
    Wide expected;
    fill_by_formula(expected);
    const auto shards = net->parameters(), whole = expected.parameters();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      if (!shards[i].tensor().detach().equal(shards[i].layout()->region(0).of(whole[i].tensor().detach())))
        right = false;
    }
    return 0;
  });
  CHECK(right);
  INFO("the peak is " << double(peak) / unit << " units");
  CHECK(double(peak) >= all);
  // While a unit gets its values, a rank has its full tensor, a buffer of the broadcast, and the new shard.
  CHECK(double(peak) <= 1.05 * (all + kRanks * 3 * unit));
}
