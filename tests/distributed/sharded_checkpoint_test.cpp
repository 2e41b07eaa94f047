// Tests that sharded checkpoints load at any number of ranks.
#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"

#include <filesystem>
#include <optional>

#include "tapestry/core/allocator.h"
#include "tests/distributed/sharded_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using distributed_test::Group, distributed_test::kBounded, distributed_test::on_ranks;

namespace {

/// A model with an optimizer of two groups and a schedule, divided among `ranks` ranks unless that is 0.
struct Run {
  Mixed net;
  optim::AdamW optimizer;
  optim::StepLR schedule;

  explicit Run(int rank = 0, int ranks = 0, const std::vector<std::string>& whole = {})
      : optimizer((shard(net, rank, ranks, whole), first_group(net)), {.lr = 0.01, .amsgrad = true}),
        schedule((add_second(*this), optimizer), {.step_size = 2, .gamma = 0.5}) {}

  static void shard(Mixed& net, int rank, int ranks, const std::vector<std::string>& whole) {
    if (ranks > 0) test::shard_rows(net, rank, ranks, whole);
  }
  static std::vector<nn::Parameter> first_group(Mixed& net) {
    return {net.narrow.weight, net.narrow.bias, net.scale, net.none};
  }
  static void add_second(Run& run) {
    run.optimizer.add_param_group(
        {{run.net.embed.weight, run.net.conv.weight, run.net.conv.bias, run.net.bn.weight, run.net.bn.bias},
         {.lr = 0.02, .weight_decay = 0.1, .amsgrad = true}});
  }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      formula_step(net, optimizer, step);
      schedule.step();
    }
  }
  ShardedTraining training() { return nn::Training{&net, &optimizer, &schedule}; }
  Rows rows() { return rows_of(net, optimizer); }
  void spoil() {
    const NoGradGuard no_grad;
    for (const nn::Parameter& p : net.parameters()) p.tensor().detach().fill_(-3);
    for (const nn::Buffer& b : net.buffers()) b.tensor().fill_(4);
  }
};

const nn::Progress kProgress{.epoch = 2, .step = 3, .metric = 0.25, .extra = {{"loader", "epoch 2 \"x\""}}};

/// Saves after three steps with `ranks` ranks, some of whose parameters may be whole.
void save_with(int ranks, const std::string& folder, const std::vector<std::string>& whole = {}) {
  run_local_ranks(
      ranks,
      [&](const Group& group) {
        Generator generator;
        Context context = current_context();
        context.generator = &generator;
        const ContextGuard guard(context);
        Run run(group->rank(), ranks, whole);
        run.train(0, 3);
        generator.set_state({rank_seed(5, group->rank()), 10 + static_cast<std::uint64_t>(group->rank())});
        save_sharded(folder, group, run.training(), kProgress);
      },
      kBounded);
}

/// Loads with `ranks` ranks (0: one process, not sharded), and returns what differs from `whole`, and after
/// two more steps from `later`. Also checks the generators.
std::vector<std::string> load_with(int ranks, const std::string& folder, const Rows& whole, const Rows& later,
                                   int saved_ranks) {
  return on_ranks<std::string>(ranks == 0 ? 1 : ranks, [&](const Group& group) {
    Generator generator(99);
    Context context = current_context();
    context.generator = &generator;
    const ContextGuard guard(context);
    const int rank = group->rank();
    Run run(rank, ranks);
    run.spoil();
    const nn::Progress progress = load_sharded(folder, run.training(), {.rank = rank});
    std::string wrong = differences(run.rows(), whole);
    if (progress.step != 3 || progress.epoch != 2 || progress.metric != 0.25 ||
        progress.extra != kProgress.extra)
      wrong += " progress";
    if (run.schedule.steps() != 3) wrong += " schedule";
    if (!run.net.head.weight.is_same(run.net.embed.weight)) wrong += " tie";
    const std::uint64_t seed = rank_seed(5, rank), derived = rank_seed(rank_seed(5, 0), rank);
    const std::array<std::uint64_t, 2> expected =
        rank < saved_ranks ? std::array<std::uint64_t, 2>{seed, 10 + static_cast<std::uint64_t>(rank)}
                           : std::array<std::uint64_t, 2>{derived, 0};
    if (generator.state() != expected) wrong += " generator";
    run.train(3, 5);
    return wrong + (differences(run.rows(), later).empty() ? "" : " later");
  });
}

}  // namespace

TEST_CASE("a sharded checkpoint loads at any number of ranks") {
  Run reference;
  reference.train(0, 3);
  const Rows whole = reference.rows();
  reference.train(3, 5);
  const Rows later = reference.rows();
  REQUIRE(whole.tensors.contains("embed.weight.exp_avg"));
  REQUIRE(whole.tensors.contains("scale.max_exp_avg_sq"));
  const tests::TempDir dir;
  for (const int saved : {1, 3, 4, 11}) {
    if (kSanitized && saved < 4) continue;
    const std::string folder = dir / std::to_string(saved);
    save_with(saved, folder);
    for (const int ranks : {0, 1, 2, 3, 4, 5, 12}) {
      if (kSanitized && ranks != 0 && ranks != 5) continue;
      INFO(saved << " to " << ranks);
      for (const std::string& wrong : load_with(ranks, folder, whole, later, saved)) CHECK(wrong == "");
    }
  }
}

TEST_CASE("parameters that are whole on all ranks are divided among the files") {
  Run reference;
  reference.train(0, 3);
  const Rows whole = reference.rows();
  reference.train(3, 5);
  const Rows later = reference.rows();
  const tests::TempDir dir;
  const std::vector<std::string> some{"embed.weight", "scale", "narrow.weight"};
  save_with(4, dir / "some", some);
  for (const int ranks : {0, 4, 5})
    for (const std::string& wrong : load_with(ranks, dir / "some", whole, later, 4)) CHECK(wrong == "");

  // As under DDP: nothing is sharded.
  struct Large : nn::Module {
    nn::Linear& a = add<nn::Linear>("a", {.in_features = 521, .out_features = 521});  // more than 1 MiB
    nn::Linear& b = add<nn::Linear>("b", {.in_features = 200, .out_features = 200});
    nn::Linear& c = add<nn::Linear>("c", {.in_features = 200, .out_features = 199});
    nn::Linear& d = add<nn::Linear>("d", {.in_features = 199, .out_features = 200});
  };
  run_local_ranks(
      3,
      [&](const Group& group) {
        Large net;
        fill_by_formula(net);
        save_sharded(dir / "ddp", group, &net, {.step = 1});
      },
      kBounded);
  Large expected, net;
  fill_by_formula(expected);
  load_sharded(dir / "ddp", &net);
  CHECK(copy_state(net) == copy_state(expected));
  std::vector<std::uintmax_t> sizes;
  for (int i = 0; i < 3; ++i)
    sizes.push_back(
        std::filesystem::file_size(dir / ("ddp/shard-0000" + std::to_string(i) + "-of-00003.safetensors")));
  const std::uintmax_t all = sizes[0] + sizes[1] + sizes[2];
  for (const std::uintmax_t size : sizes) CHECK(static_cast<double>(size) < 0.36 * static_cast<double>(all));
}

TEST_CASE("stages of a pipeline save and load their parts") {
  struct Whole : nn::Module {
    nn::Linear& a = add<nn::Linear>("a", {.in_features = 4, .out_features = 6});
    nn::Linear& b = add<nn::Linear>("b", {.in_features = 6, .out_features = 6});
    nn::Linear& c = add<nn::Linear>("c", {.in_features = 6, .out_features = 2});
  };
  const auto stages = [](Whole& net, int rank, int ranks) {
    std::vector<Stage> mine;
    std::vector<nn::Module*> all = net.children();
    for (int i = 0; i < 3; ++i)
      if (i * ranks / 3 == rank) mine.push_back(Stage({*all[static_cast<std::size_t>(i)]}, kCPU));
    return mine;
  };
  const auto parameters = [](const std::vector<Stage>& mine) {
    std::vector<nn::Parameter> list;
    for (const Stage& stage : mine)
      for (const auto& [name, p] : stage.named_parameters()) list.push_back(p);
    return list;
  };
  Whole reference;
  fill_by_formula(reference);
  optim::AdamW optimizer(reference.parameters(), {});
  for (int step = 0; step < 2; ++step) formula_step(reference, optimizer, step);
  const Rows whole = rows_of(reference, optimizer);

  const tests::TempDir dir;
  run_local_ranks(
      3,
      [&](const Group& group) {
        Whole net;
        fill_by_formula(net);
        const std::vector<Stage> mine = stages(net, group->rank(), 3);
        optim::AdamW own(parameters(mine), {});
        for (int step = 0; step < 2; ++step) {
          for (const auto& [name, p] : net.named_parameters()) p.set_grad(gradient(name, p.sizes(), step));
          own.step();
        }
        save_sharded(dir / "stages", group, ShardedTraining(mine, &own), {.step = 2});
      },
      kBounded);
  for (const int ranks : {1, 2, 3}) {
    run_local_ranks(
        ranks,
        [&](const Group& group) {
          Whole net;
          const std::vector<Stage> mine = stages(net, group->rank(), ranks);
          optim::AdamW own(parameters(mine), {});
          load_sharded(dir / "stages", ShardedTraining(mine, &own));
          for (const Stage& stage : mine)
            for (const auto& [name, p] : stage.named_parameters())
              distributed_test::require(to_vector(p) == to_vector(whole.tensors.at(name)), name);
        },
        kBounded);
  }
  // The whole model on sharded ranks, and back into stages.
  const auto wrong = on_ranks<std::string>(2, [&](const Group& group) {
    Whole net;
    test::shard_rows(net, group->rank(), 2);
    optim::AdamW own(net.parameters(), {});
    load_sharded(dir / "stages", {&net, &own});
    save_sharded(dir / "sharded", group, {&net, &own}, {.step = 2});
    return differences(rows_of(net, own), whole);
  });
  for (const std::string& text : wrong) CHECK(text == "");
  Whole net;
  const std::vector<Stage> last = stages(net, 2, 3);
  optim::AdamW own(parameters(last), {});
  load_sharded(dir / "sharded", ShardedTraining(last, &own));
  CHECK(to_vector(net.c.weight) == to_vector(whole.tensors.at("c.weight")));
  CHECK(to_vector(net.a.weight) != to_vector(whole.tensors.at("a.weight")));
}

TEST_CASE("values are converted to the dtypes of the model") {
  const tests::TempDir dir;
  save_with(2, dir / "f32");
  Run reference;
  reference.train(0, 3);
  for (const DType dtype : {DType::bf16, DType::f64}) {
    Run run;
    run.net.to(dtype);
    load_sharded(dir / "f32", run.training());
    CHECK(run.net.conv.weight.dtype() == dtype);
    const Tensor expected = reference.net.conv.weight.detach().to(dtype);
    CHECK(to_vector(run.net.conv.weight) == to_vector(expected));
    for (const optim::StateTensor& t : run.optimizer.state_tensors())
      if (t.key == "state.5.exp_avg") CHECK(t.tensor.dtype() == (dtype == DType::bf16 ? DType::f32 : dtype));
  }
}

TEST_CASE("channels-last shards are saved row-major, and loaded into either format") {
  const tests::TempDir dir;
  Mixed expected;
  run_local_ranks(
      4,
      [&](const Group& group) {
        Mixed net;
        net.to(MemoryFormat::channels_last);
        save_sharded(dir / "last", group, &net, {.step = 1});
      },
      kBounded);
  Mixed rows, last;
  const NoGradGuard no_grad;
  rows.conv.weight->zero_();
  last.to(MemoryFormat::channels_last);
  last.conv.weight->zero_();
  load_sharded(dir / "last", &rows);
  load_sharded(dir / "last", &last);
  CHECK(copy_state(rows) == copy_state(expected));
  CHECK(copy_state(last) == copy_state(expected));
  CHECK(last.conv.weight->is_contiguous(MemoryFormat::channels_last));
}

TEST_CASE("loading needs the memory of the shards and one part of a tensor") {
  struct Large : nn::Module {  // 20 MiB; parts have 16
    nn::Parameter& w = param("w", zeros({5120, 1024}));
  };
  const tests::TempDir dir;
  const optim::SGDOptions sgd{.lr = 0.1, .momentum = 0.9};
  {
    Large net;
    optim::SGD optimizer(net.parameters(), sgd);
    net.w.set_grad(zeros(net.w.sizes()));
    optimizer.step();
    save_sharded(dir / "one", nullptr, {&net, &optimizer}, {.step = 1});
  }
  Large net;
  test::shard_rows(net, 1, 4);
  optim::SGD optimizer(net.parameters(), sgd);
  std::int64_t shards = 0;
  for (const nn::Parameter& p : net.parameters()) shards += static_cast<std::int64_t>(p.nbytes());
  reset_peak_memory(kCPU);
  const std::int64_t before = memory_stats(kCPU).allocated;
  load_sharded(dir / "one", {&net, &optimizer});
  const std::int64_t peak = memory_stats(kCPU).peak_allocated - before;
  CHECK(peak >= shards);                             // the momenta
  CHECK(peak <= shards + (std::int64_t{17} << 20));  // and one part of 16 MiB
}

TEST_CASE("ranks whose tensors do not fit together cannot save") {
  const tests::TempDir dir;
  const auto texts = on_ranks<std::string>(3, [&](const Group& group) {
    nn::Linear net({.in_features = 3, .out_features = group->rank() == 1 ? 4 : 5});
    try {
      save_sharded(dir / "a", group, &net, {.step = 1});
    } catch (const ValueError& e) {
      return std::string(e.what());
    }
    return std::string();
  });
  for (const std::string& text : texts) {
    CHECK_THAT(text,
               ContainsSubstring("[5, 3]") && ContainsSubstring("rank 1") && ContainsSubstring("weight"));
  }
  // A group that lacks a rank of the sharded model.
  const auto lacking = on_ranks<std::string>(2, [&](const Group& group) {
    nn::Linear net({.in_features = 3, .out_features = 6});
    test::shard_rows(net, group->rank(), 3);
    try {
      save_sharded(dir / "a", group, &net, {.step = 1});
    } catch (const ValueError& e) {
      return std::string(e.what());
    }
    return std::string();
  });
  for (const std::string& text : lacking)
    CHECK_THAT(text, ContainsSubstring("of shape [6] once: no piece has [4:6]") ||
                         ContainsSubstring("of shape [6, 3] once: no piece has [4:6, 0:3]"));
  CHECK_FALSE(std::filesystem::exists(dir / "a"));
  nn::Linear net({.in_features = 1, .out_features = 1});
  CHECK_THROWS_AS(save_sharded(dir / "a", nullptr, &net, {.step = -1}), ValueError);
}

TEST_CASE("a sharded checkpoint of another model, optimizer or list of groups is refused before any change") {
  const tests::TempDir dir;
  save_with(2, dir / "run");
  Run run;
  const Rows before = run.rows();
  nn::Linear other({.in_features = 3, .out_features = 2});
  CHECK_THROWS_WITH(load_sharded(dir / "run", &other),
                    ContainsSubstring("missing: weight") && ContainsSubstring("unexpected: conv.weight"));
  struct Narrower : Mixed {
    nn::Linear& more = add<nn::Linear>("more", {.in_features = 2, .out_features = 2});
  } narrower;
  CHECK_THROWS_WITH(load_sharded(dir / "run", &narrower), ContainsSubstring("missing: more.weight"));
  optim::SGD sgd(run.net.parameters(), {.lr = 0.1});
  CHECK_THROWS_WITH(load_sharded(dir / "run", {&run.net, &sgd}), ContainsSubstring("AdamW, not SGD"));
  optim::AdamW one_group(run.net.parameters(), {});
  CHECK_THROWS_WITH(load_sharded(dir / "run", {&run.net, &one_group}),
                    ContainsSubstring("2 parameter groups") && ContainsSubstring("is in group 1"));
  save_sharded(dir / "model", nullptr, &run.net, {.step = 1});
  CHECK_THROWS_WITH(load_sharded(dir / "model", run.training()), ContainsSubstring("no optimizer state"));
  CHECK_THROWS_WITH(load_sharded(dir / "model", {&run.net, nullptr, &run.schedule}),
                    ContainsSubstring("no schedule state"));
  CHECK_THROWS_AS(load_sharded(dir / "absent", &run.net), IoError);
  CHECK_THROWS_AS(load_sharded(dir / "run", &run.net, {.rank = -1}), ValueError);
  // The schedule fits, the optimizer does not: what the schedule has set is undone.
  optim::AdamW plain(Run::first_group(run.net), {.lr = 0.125, .amsgrad = true});
  plain.add_param_group({run.optimizer.params(1), {.lr = 0.5}});
  optim::StepLR schedule(plain, {.step_size = 3, .gamma = 0.5});
  plain.set_option(0, "lr", 0.375);
  save_sharded(dir / "negative", nullptr, {&run.net, &run.optimizer, &run.schedule}, {.step = 1});
  CHECK(differences(run.rows(), before).empty());
  CHECK(plain.lr(0) == 0.375);
}
