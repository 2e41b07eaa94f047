// An MLP that two axes divide at once: its first Linear by outputs and its second by inputs over tensor
// ranks, and what is left by rows over shard ranks. It shows that layouts compose: for gradients, clipping,
// found_inf and checkpoints.
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tapestry/distributed/checkpoint/internal/boxes.h"
#include "tapestry/distributed/placement/check.h"
#include "tapestry/distributed/placement/convert.h"
#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"
#include "tests/support/sharded.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using distributed_test::Group, distributed_test::on_ranks, distributed_test::require;

namespace {

struct Mlp : nn::Module {
  nn::Linear& in = add<nn::Linear>("in", {.in_features = 4, .out_features = 3});
  nn::Linear& up = add<nn::Linear>("up", {.in_features = 3, .out_features = 10});
  nn::Linear& down = add<nn::Linear>("down", {.in_features = 10, .out_features = 3});
  std::optional<Axis> tensor;  // none in one process
  Mlp() {
    to(DType::f64);
    fill_by_formula(*this);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = in(x).tanh();
    if (!tensor) return down(up(h).tanh());
    const Placement whole = Placement::invariant();
    const Tensor part = linear(up(convert(h, *tensor, whole, Placement::replicated())).tanh(), down.weight);
    return convert(part, *tensor, Placement::partial(), whole) + down.bias;
  }
  void divide(const Axis& axis) {
    tensor = axis;
    const auto ranks = std::make_shared<GroupRanks>(RankGroups{axis.group()});
    for (const nn::Parameter& p : {up.weight, up.bias}) cut(p, ranks, 0);
    cut(down.weight, ranks, 1);
    cut(down.bias, ranks, nn::Cut::kCopied);
  }
};

constexpr int kBatch = 4;
constexpr double kMaxNorm = 0.25;

// One rank of a training, or one process.
struct Rank {
  Mlp net;
  std::optional<Mesh> mesh;
  Group shard;  // null in one process
  std::optional<optim::AdamW> optimizer;
  optim::GradScaler scaler{{.init_scale = 8}};
  std::vector<double> losses, norms;

  explicit Rank(const Group& world = nullptr, int tensors = 1) {
    if (world) {
      mesh.emplace(world, std::vector<AxisSize>{{"shard", -1}, {"tensor", tensors}});
      shard = (*mesh)["shard"].group();
      if (tensors > 1) net.divide((*mesh)["tensor"]);
      if (shard->size() > 1) fully_shard(net, {.group = shard});
    }
    optimizer.emplace(net.parameters(), optim::AdamW::Options{.lr = 0.05});
  }
  void train(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      const int parts = shard ? shard->size() : 1, part = shard ? shard->rank() : 0;
      const Tensor x = empty({kBatch, 4}, DType::f64), y = empty({kBatch, 3}, DType::f64);
      for (int i = 0; i < 16; ++i) x.data<double>()[i] = std::sin(1.3 * i + step);
      for (int i = 0; i < 12; ++i) y.data<double>()[i] = std::cos(0.7 * i - step);
      const auto mine = [&](const Tensor& t) { return t.narrow(0, part * kBatch / parts, kBatch / parts); };
      optimizer->zero_grad();
      const PlacementCheck on;
      if (net.tensor) place_parameters(net, *net.tensor);
      const Tensor loss = mse_loss(net(mine(x)), mine(y));
      if (net.tensor) require_placement(loss, *net.tensor, Placement::invariant());
      scaler.scale(loss).backward();
      scaler.unscale_(*optimizer);
      norms.push_back(nn::clip_grad_norm_(net.parameters(), kMaxNorm).item());
      require(scaler.step(*optimizer), "the step was skipped");
      scaler.update();
      const Tensor mean = loss.detach().clone();
      if (shard) shard->all_reduce(mean, ReduceOp::mean).wait();
      losses.push_back(mean.item());
    }
  }
  // Whole values. Collective.
  StateDictCopy values() const {
    StateDictCopy all;
    for (const auto& [name, p] : net.named_parameters()) {
      Tensor whole = p.tensor().detach();
      if (p.layout()) {
        whole = empty(p.layout()->whole_sizes(), DType::f64);
        p.layout()->gather(0, whole);
      }
      all[name] = to_vector(whole);
    }
    return all;
  }
};

void require_like(const Rank& rank, const Rank& one, std::size_t first, const std::string& what) {
  // Sums over ranks and over a process's rows have another order: a few ulps a step.
  for (std::size_t i = 0; i < rank.losses.size(); ++i) {
    require(std::abs(rank.losses[i] - one.losses[first + i]) < 1e-12, what, ": loss ", i, " is ",
            rank.losses[i], ", not ", one.losses[first + i]);
    require(std::abs(rank.norms[i] - one.norms[first + i]) < 1e-12, what, ": norm ", i, " is ", rank.norms[i],
            ", not ", one.norms[first + i]);
  }
  require(distance(rank.values(), one.values()) < 1e-11, what, ": the weights differ by ",
          distance(rank.values(), one.values()));
}

}  // namespace

TEST_CASE("an MLP that tensor and shard ranks divide trains, clips, saves and loads as in one process") {
  Rank one;
  one.train(0, 3);
  REQUIRE(*std::min_element(one.norms.begin(), one.norms.end()) > kMaxNorm);
  const Rank& after_3 = one;
  for (const int tensors : {1, 2, 4})
    on_ranks<int>(4, [&](const Group& world) {
      Rank rank(world, tensors);
      rank.train(0, 3);
      require_like(rank, after_3, 0, concat({"tensor=", tensors}));
      const Tensor norm = full({}, rank.norms.back(), DType::f64), lowest = norm.clone();
      world->all_reduce(norm, ReduceOp::max).wait();
      world->all_reduce(lowest, ReduceOp::min).wait();
      require(norm.item() == lowest.item(), "the ranks have different norms");
      return 0;
    });
}

TEST_CASE("a slot's second cut divides what the first has left, and one rank's infinity stops all") {
  on_ranks<int>(4, [&](const Group& world) {
    Rank rank(world, 2);
    const int t = rank.net.tensor->coordinate(), s = rank.shard->rank();
    const auto region = [](const nn::Parameter& p) { return p.layout()->region(0).str(); };
    // 10 rows: 5 a tensor rank, and of these 3 and 2 a shard rank.
    const int first = 5 * t + 3 * s;
    require(region(rank.net.up.weight) == concat({"[", first, ":", first + 3 - s, ", 0:3]"}),
            region(rank.net.up.weight));
    require(region(rank.net.down.weight) ==
                concat({"[", 2 * s, ":", 3 - (1 - s), ", ", 5 * t, ":", 5 * t + 5, "]"}),
            region(rank.net.down.weight));
    require(region(rank.net.down.bias) == concat({"[", 2 * s, ":", 3 - (1 - s), "]"}),
            region(rank.net.down.bias));
    require(
        rank.net.down.bias.layout()->counts_here(0) == (t == 0) && rank.net.in.bias.layout()->counts_here(0),
        "which copy counts");

    const StateDictCopy before = rank.values();
    rank.scaler.scale(rank.net(ones({2, 4}, DType::f64)).sum()).backward();
    if (world->rank() == 3) rank.net.up.weight.grad().fill_(INFINITY);
    require(!rank.scaler.step(*rank.optimizer), "an infinite gradient of rank 3 was not seen");
    require(rank.values() == before, "the weights have changed");

    // Ranks of another axis do not divide a box.
    Mlp other;
    other.divide(*rank.net.tensor);
    std::string error;
    try {
      fully_shard(other, {.group = world});
    } catch (const ValueError& e) {
      error = e.what();
    }
    require(error.find("up.weight has [") != std::string::npos, "fully_shard over the world: ", error);
    return 0;
  });
}

TEST_CASE("boxes that cuts make divide a tensor, and no others") {
  using checkpoint::why_not_divided;
  const nn::Region whole = nn::Region::whole({7, 5, 3});
  // Ranks cut dimension 1, then 0 of what is left, then 1 again: uneven boxes, some of them empty.
  std::vector<nn::Region> boxes;
  for (int a = 0; a < 2; ++a)
    for (int b = 0; b < 3; ++b)
      for (int c = 0; c < 2; ++c)
        if (const nn::Region box = whole.part(1, a, 2).part(0, b, 3).part(1, c, 2); box.sizes.numel() > 0)
          boxes.insert(boxes.begin() + c, box);
  CHECK(boxes.size() == 12);
  CHECK(why_not_divided(whole, boxes) == "");
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    auto wrong = boxes;
    wrong.erase(wrong.begin() + static_cast<std::ptrdiff_t>(i));
    CHECK(why_not_divided(whole, wrong) != "");  // one is missing
    wrong.push_back(boxes[(i + 1) % boxes.size()]);
    CHECK(why_not_divided(whole, wrong) != "");  // another one occurs twice
    wrong = boxes;
    --wrong[i].sizes[i % 3];
    CHECK(why_not_divided(whole, wrong) != "");
  }
  CHECK(why_not_divided(nn::Region::whole({3, 0}), {}) == "");
  CHECK(why_not_divided(nn::Region::whole({}), {nn::Region::whole({})}) == "");
}

TEST_CASE("a checkpoint of boxes loads on one, two and four ranks, divided in other ways") {
  const tests::TempDir dir;
  on_ranks<int>(4, [&](const Group& world) {
    Rank rank(world, 2);
    rank.train(0, 3);
    save_sharded(dir / "boxes", world, {&rank.net, &*rank.optimizer}, {.step = 3});
    save_checkpoint(dir / "whole", world, {&rank.net, &*rank.optimizer}, {.step = 3});
    return 0;
  });
  Rank one;
  one.train(0, 5);
  const struct { int ranks, tensors; } cases[] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}};
  for (const std::string from : {"boxes", "whole"})
    for (const auto& [ranks, tensors] : cases)
      on_ranks<int>(ranks, [&, &ranks = ranks, &tensors = tensors](const Group& world) {
        Rank rank(world, tensors);
        rank.train(7, 8);  // other values and states
        rank.losses.clear(), rank.norms.clear();
        const nn::Progress progress =
            load_sharded(dir / from, {&rank.net, &*rank.optimizer}, {.rank = world->rank()});
        require(progress.step == 3, "the step");
        rank.train(3, 5);
        require_like(rank, one, 3, concat({from, " on ", ranks, " ranks, tensor=", tensors}));
        return 0;
      });
  // One process reads the file of whole tensors without knowing of ranks.
  Rank plain;
  CHECK(nn::load_checkpoint(dir / "whole", {&plain.net, &*plain.optimizer}).step == 3);
  plain.train(3, 5);
  require_like(plain, one, 3, "nn::load_checkpoint()");
}

TEST_CASE("generators follow the parts of the samples and the stages, not the numbers of ranks") {
  const tests::TempDir dir;
  const auto on_places = [&](const std::vector<RandomPlace>& places,
                             const std::function<void(const Group&, const ShardedTraining&)>& fn) {
    return on_ranks<double>(static_cast<int>(places.size()), [&](const Group& world) {
      Generator generator(static_cast<std::uint64_t>(world->rank()));
      Context context = current_context();
      context.generator = &generator;
      const ContextGuard guard(context);
      Mlp net;
      ShardedTraining training(&net);
      training.place = places[static_cast<std::size_t>(world->rank())];
      fn(world, training);
      return rand({}, DType::f64).item();
    });
  };
  // Data 2, tensor 2: the ranks of a part draw the same numbers.
  const std::vector<RandomPlace> before = {{0, 2}, {0, 2}, {1, 2}, {1, 2}};
  for (const bool one_file : {false, true}) {
    const std::string path = dir / (one_file ? "whole" : "boxes");
    const auto load = [&](const Group& world, const ShardedTraining& training) {
      if (one_file) load_checkpoint(path, world, training);
      else load_sharded(path, training, {.rank = world->rank()});
    };
    const std::vector<double> saved = on_places(before, [&](const Group& world, const ShardedTraining& t) {
      current_generator(kCPU).manual_seed(100 + static_cast<std::uint64_t>(world->rank() / 2));
      if (one_file) save_checkpoint(path, world, t, {.step = 1});
      else save_sharded(path, world, t, {.step = 1});
    });
    CHECK(saved[0] == saved[1]);
    CHECK(saved[0] != saved[2]);
    CHECK(on_places({{1, 2}, {0, 2}}, load) == std::vector<double>{saved[2], saved[0]});
    // Another number of parts, or of stages: new numbers, which a part's ranks share.
    const auto three = on_places({{0, 3}, {1, 3}, {1, 3}, {2, 3}}, load);
    CHECK(three[1] == three[2]);
    CHECK(std::set<double>{saved[0], saved[2], three[0], three[1], three[3]}.size() == 5);
    const auto stages = on_places({{0, 2, 0, 2}, {1, 2, 0, 2}, {0, 2, 1, 2}, {1, 2, 1, 2}}, load);
    CHECK(std::set<double>(stages.begin(), stages.end()).size() == 4);
    Mlp net;
    load_sharded(path, &net);  // a process without a place
    ShardedTraining nowhere(&net);
    nowhere.place = RandomPlace{2, 2};
    CHECK_THROWS_AS(load_sharded(path, nowhere), ValueError);
  }
}
