// Tests fully_shard with copies of the model (HSDP): the gradients of a unit are reduced over the ranks that
// divide it, and then over the copies. The data are small integers and the learning rates powers of two, so
// all sums are exact, and every mode gives the same bits.
#include <filesystem>
#include <mutex>
#include <thread>

#include "tapestry/distributed/common/internal/cut_parameter.h"
#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using distributed_test::require;

namespace {

enum class Accumulate { each, no_sync, by_copy };

struct Mode {
  int copies = 2, shards = 2;
  FsdpOptions options = {};
  Accumulate accumulate = Accumulate::each;
  bool units = true;  // the layers are units too
};

// `tied` has the weight of b, `frozen` is not trained, `early` is called in the first part of a step alone,
// `rare` is used by the last rank in one part alone, and nothing uses `spare`.
struct Net : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 3, .out_features = 5});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 5, .out_features = 5, .bias = false});
  nn::Linear& tied = add<nn::Linear>("tied", {.in_features = 5, .out_features = 5, .bias = false});
  nn::Linear& frozen = add<nn::Linear>("frozen", {.in_features = 5, .out_features = 5});
  nn::Linear& early = add<nn::Linear>("early", {.in_features = 5, .out_features = 5});
  bool is_early = false;
  nn::Linear& rare = add<nn::Linear>("rare", {.in_features = 5, .out_features = 5});
  nn::Linear& spare = add<nn::Linear>("spare", {.in_features = 2, .out_features = 1});
  nn::Linear& c = add<nn::Linear>("c", {.in_features = 5, .out_features = 3});

  explicit Net(DType dtype = DType::f64) {
    tied.weight = b.weight;
    frozen.requires_grad_(false);
    to(dtype);
    const NoGradGuard no_grad;
    std::int64_t seed = 0;
    for (const auto& [name, slot] : named_parameters()) {
      const Tensor values = empty(slot.sizes(), DType::f64);
      double* const x = values.data<double>();
      for (std::int64_t i = 0, count = values.numel(); i < count; ++i)
        x[i] = static_cast<double>((++seed * 7 + i) % 5 - 2);
      slot.tensor().detach().copy_(values);
    }
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = relu(b(a(x.narrow(1, 0, 3))));
    if (x.narrow(1, 3, 1).sum().item() > 0) h = h + rare(h);
    if (is_early) h = h + early(h);
    return c(frozen(relu(tied(h))));
  }
};

constexpr int kRows = 2, kParts = 3, kSteps3 = 3;

// The rows of a rank in a part of a step. The third rank has none in the second part. The last column says
// whether `rare` is used: by the last rank, in the first part of the second step.
Tensor rows_of(int rank, int ranks, int step, int part) {
  const std::int64_t count = rank == 2 && part == 1 ? 0 : kRows;
  const Tensor x = empty({count, 4}, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<double>()[i] = static_cast<double>((i * 5 + rank * 3 + step * 2 + part) % 7 - 3);
  x.narrow(1, 3, 1).fill_(rank + 1 == ranks && step == 1 && part == 0 ? 1 : 0);
  return x;
}

// The sum of outputs times integers.
Tensor loss_of(Net& net, const Tensor& x) {
  const Tensor out = net(x);
  return (out * tensor({1, -2, 3}, out.dtype())).sum();
}

struct Result {
  std::vector<StateDictCopy> gradients;  // of each step, whole
  StateDictCopy weights;
  std::int64_t scatters = 0, all_reduces = 0;  // of the last step and unit
};

// The whole tensor from the boxes of the ranks.
std::vector<double> whole_of(const nn::Parameter& slot, const Tensor& part) {
  if (!slot.layout()) return to_vector(part);
  const Tensor whole = zeros(slot.layout()->whole_sizes(), part.dtype());
  slot.layout()->region(0).of(whole).copy_(part);
  for (const nn::Cut& cut : slot.layout()->cuts()) cut.group->sum(0, whole);
  return to_vector(whole);
}

// Trains on the rows of `ranks` ranks; if `world` is null, on all of them. The second step adds its gradients
// to those of the first.
Result trained(Net& net, const Group& world, int ranks, double factor, const FullyShard* sharded,
               Accumulate accumulate) {
  optim::SGD optimizer(net.parameters(), {.lr = 0x1p-8, .momentum = 0.5});
  Result result;
  for (int step = 0; step < kSteps3; ++step) {
    if (step != 1) optimizer.zero_grad();
    if (sharded) sharded->reset_report();
    for (int part = 0; part < kParts; ++part) {
      std::optional<NoSync> scope;
      if (sharded && part + 1 < kParts && accumulate != Accumulate::each)
        scope.emplace(accumulate == Accumulate::no_sync ? sharded->no_sync() : sharded->no_all_reduce());
      net.is_early = part == 0;
      for (int rank = 0; rank < ranks; ++rank)
        if (!world || world->rank() == rank)
          (loss_of(net, rows_of(rank, ranks, step, part)) * factor).backward();
    }
    StateDictCopy gradients;
    for (const auto& [name, slot] : net.named_parameters()) {
      const Tensor own = slot.layout() ? slot.layout()->stored(0) : slot.tensor(), gradient = own.grad();
      const Tensor has = full({1}, gradient.defined() ? 1.0 : 0.0);
      if (slot.layout())
        for (const nn::Cut& cut : slot.layout()->cuts()) cut.group->sum(0, has);
      if (has.item() > 0)
        gradients[name] = whole_of(slot, gradient.defined() ? gradient : zeros_like(own.detach()));
    }
    result.gradients.push_back(gradients);
    if (step > 0) optimizer.step();
  }
  for (const auto& [name, slot] : net.named_parameters()) {
    const Tensor own = slot.layout() ? slot.layout()->stored(0) : slot.tensor();
    result.weights[name] = whole_of(slot, own.detach());
  }
  if (sharded) {
    result.scatters = sharded->report().units.back().scatters;
    result.all_reduces = sharded->report().units.back().all_reduces;
  }
  return result;
}

FsdpOptions options_of(const Mode& mode, const Group& world) {
  FsdpOptions options = mode.options;
  const Mesh mesh(world, {{"replicate", mode.copies}, {"shard", mode.shards}});
  options.group = mesh["shard"].group();
  options.replicate_group = mesh["replicate"].group();
  return options;
}

FullyShard shard(Net& net, const Mode& mode, const FsdpOptions& options) {
  if (mode.units)
    for (nn::Module* unit : std::vector<nn::Module*>{&net.a, &net.early, &net.frozen, &net.c})
      fully_shard(*unit, options);
  return fully_shard(net, options);
}

// What one process computes.
Result expected_result(int ranks, double factor) {
  Net net;
  return trained(net, nullptr, ranks, factor, nullptr, Accumulate::each);
}

void check_equal(const Result& got, const Result& expected) {
  CHECK(got.weights == expected.weights);
  for (std::size_t step = 0; step < expected.gradients.size(); ++step) {
    CAPTURE(step);
    CHECK(got.gradients[step] == expected.gradients[step]);
  }
}

}  // namespace

TEST_CASE("copies of a sharded model train as one process does, bit for bit") {
  struct Variant {
    const char* name;
    Mode mode;
  };
  std::vector<Variant> list;
  for (const Accumulate how : {Accumulate::each, Accumulate::no_sync, Accumulate::by_copy})
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean})
      list.push_back({"2 x 2", {.options = {.reduce = op}, .accumulate = how}});
  const auto sum = ReduceOp::sum;
  if (kSanitized) list = {list[0], list[3]};  // the other ways are below
  else list.push_back({"kept full", {.options = {.reshard_after_forward = false, .reduce = sum}}});
  list.push_back({"one full unit",
                  {.options = {.max_full_units = 1, .reduce = sum}, .accumulate = Accumulate::by_copy}});
  list.push_back({"2 x 3", {.copies = 2, .shards = 3, .options = {.reduce = sum}}});
  if (!kSanitized) {
    list.push_back(
        {"one unit", {.options = {.reduce = sum}, .accumulate = Accumulate::by_copy, .units = false}});
    list.push_back({"3 x 2", {.copies = 3, .options = {.reduce = sum}, .accumulate = Accumulate::by_copy}});
    for (const int copies : {4, 1})
      list.push_back({copies == 4 ? "4 x 1" : "1 x 4",
                      {.copies = copies,
                       .shards = 4 / copies,
                       .options = {.reduce = ReduceOp::mean},
                       .accumulate = Accumulate::by_copy}});
  }
  for (const Variant& v : list) {
    const int ranks = v.mode.copies * v.mode.shards;
    CAPTURE(v.name, static_cast<int>(v.mode.accumulate), v.mode.options.reduce == sum);
    const Result expected = expected_result(ranks, v.mode.options.reduce == sum ? 1 : 1.0 / ranks);
    const auto got = on_ranks<Result>(ranks, [&](const Group& world) {
      Net net;
      if (world->rank() > 0) net.a.weight.tensor().detach().fill_(9);  // the first rank's values count
      const FullyShard sharded = shard(net, v.mode, options_of(v.mode, world));
      return trained(net, world, ranks, 1, &sharded, v.mode.accumulate);
    });
    for (const Result& r : got) {
      check_equal(r, expected);
      const bool each = v.mode.accumulate == Accumulate::each;
      CHECK(r.scatters == (v.mode.accumulate == Accumulate::no_sync ? 1 : kParts));
      CHECK(r.all_reduces == (v.mode.copies == 1 ? 0 : each ? kParts : 1));
    }
    // The parameter that nothing uses has no gradient, and the rare one has it from the second step on.
    CHECK(expected.gradients[0].count("spare.weight") == 0);
    CHECK(expected.gradients[0].count("rare.weight") == 0);
    CHECK(expected.gradients[1].count("rare.weight") == 1);
  }
}

TEST_CASE("with one copy, or with one rank for each, the bits are those of fully_shard and of DDP") {
  const Training t{.accumulate = 2, .steps = kSanitized ? 2 : 6};
  for (const Parallel how : {Parallel::fsdp, Parallel::ddp}) {
    const auto expected = on_ranks<Trained>(3, [&](const Group& g) { return train_gpt(how, g, 3, t); });
    const auto got = on_ranks<Trained>(3, [&](const Group& g) {
      const bool one_copy = how == Parallel::fsdp;
      const Mesh mesh(g, {{"replicate", one_copy ? 1 : 3}, {"shard", one_copy ? 3 : 1}});
      TinyGpt net;
      fill_by_formula(net);
      const FsdpOptions options{.group = mesh["shard"].group(), .replicate_group = mesh["replicate"].group()};
      for (nn::Module* block : std::vector<nn::Module*>{&net.block0, &net.block1, &net.block2})
        fully_shard(*block, options);
      const FullyShard sharded = fully_shard(net, options);
      optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
      Trained result;
      for (int i = 0; i < t.steps * t.accumulate; ++i) {
        if (i % 2 == 0) optimizer.zero_grad();
        const auto [x, y] = formula_words(i, g->rank() * 2, 2);
        const Tensor loss = cross_entropy(net(x).reshape({-1, TinyGpt::kWords}), y.reshape({-1}));
        result.losses.push_back(loss.item());
        std::optional<NoSync> alone;
        if (i % 2 == 0) alone.emplace(sharded.no_sync());
        loss.backward();
        if (i % 2 == 1) optimizer.step();
      }
      const auto full = sharded.unshard(true);
      result.weights = copy_parameters(net);
      return result;
    });
    for (std::size_t r = 0; r < 3; ++r) {
      CAPTURE(static_cast<int>(how), r);
      CHECK(got[r].losses == expected[r].losses);
      CHECK(got[r].weights == expected[r].weights);
    }
  }
}

TEST_CASE("sums of a copy that are dropped, or of a pass that failed, are in no later gradient") {
  struct Fails {};
  const auto gradient = [](const Group& world, bool fails) {
    Net net;
    const FullyShard sharded = shard(net, {}, options_of({}, world));
    const Tensor x = rows_of(world->rank(), 4, 0, 0);
    bool throws = fails;
    net.a.register_forward_hook([&](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>& outputs) {
      outputs[0].register_hook([&](const Tensor&) -> Tensor {
        if (throws) throw Fails();
        return {};
      });
    });
    for (int part = 0; part < 2 && fails; ++part) {
      throws = part == 1;
      const NoSync scope = sharded.no_all_reduce();
      try {
        loss_of(net, x).backward();
        require(!throws, "the hook of a has run");
      } catch (const Fails&) {
      }
      if (part == 0) sharded.discard_unreduced();
    }
    throws = fails;
    try {
      loss_of(net, x).backward();
    } catch (const Fails&) {
    }
    for (const nn::Parameter& p : net.parameters()) p.tensor().set_grad({});
    throws = false;
    loss_of(net, x).backward();
    return whole_of(net.c.weight, net.c.weight.layout()->stored(0).grad());
  };
  const auto expected = on_ranks<std::vector<double>>(4, [&](const Group& g) { return gradient(g, false); });
  const auto got = on_ranks<std::vector<double>>(4, [&](const Group& g) { return gradient(g, true); });
  CHECK(got == expected);
}

TEST_CASE(
    "copies of a sharded model begin with the first rank's values and buffers, also from the meta device") {
  for (const bool meta : {false, true}) {
    CAPTURE(meta);
    const auto all = on_ranks<StateDictCopy>(4, [&](const Group& world) {
      std::optional<DeviceGuard> guard;
      if (meta) guard.emplace("meta");
      // The ranks are threads, and draw different numbers from one generator.
      nn::Sequential net(nn::Linear::Options{.in_features = 3, .out_features = 5},
                         nn::BatchNorm1d::Options{.num_features = 5});
      guard.reset();
      FsdpOptions options = options_of({}, world);
      options.device = kCPU;
      fully_shard(net[0], options);
      const FullyShard sharded = fully_shard(net, options);
      const Tensor mean = net.named_buffers()[0].second.tensor();
      mean.fill_(world->rank() + 5.0);
      sharded.sync_buffers();
      StateDictCopy copy;
      for (const auto& [name, slot] : net.named_parameters())
        copy[name] = whole_of(slot, slot.layout()->stored(0).detach());
      copy["mean"] = to_vector(mean);
      return copy;
    });
    CHECK(all[0].at("mean") == std::vector<double>(5, 5.0));
    for (const StateDictCopy& other : all) CHECK(other == all[0]);
  }
}

TEST_CASE("copies of a sharded model reduce in f32 what is computed in bf16, and in bf16 what fits") {
  for (const DType reduce : {DType::f32, DType::bf16})
    for (const Accumulate how : {Accumulate::each, Accumulate::no_sync, Accumulate::by_copy}) {
      CAPTURE(dtype_name(reduce), static_cast<int>(how));
      // One step of small integers, of which bf16 has 8 bits.
      const auto gradients = [&](const Group& world) {
        nn::Linear net({.in_features = 3, .out_features = 3});
        for (const nn::Parameter& p : net.parameters()) p.tensor().detach().fill_(1);
        std::optional<FullyShard> sharded;
        if (world) {
          FsdpOptions options = options_of({}, world);
          options.mixed_precision = {.param_dtype = DType::bf16, .reduce_dtype = reduce};
          options.reduce = ReduceOp::sum;
          sharded = fully_shard(net, options);
        }
        for (int part = 0; part < 2; ++part)
          for (int rank = 0; rank < 4; ++rank) {
            if (world && rank != world->rank()) continue;
            std::optional<NoSync> scope;
            if (world && part == 0 && how != Accumulate::each)
              scope.emplace(how == Accumulate::no_sync ? sharded->no_sync() : sharded->no_all_reduce());
            (net(full({2, 3}, rank + 1.0)) * tensor({1.0F, 2.0F, -3.0F}).to(world ? DType::bf16 : DType::f32))
                .sum()
                .backward();
          }
        StateDictCopy all;
        for (const auto& [name, slot] : net.named_parameters()) {
          const Tensor own = slot.layout() ? slot.layout()->stored(0) : slot.tensor();
          require(own.grad().dtype() == DType::f32, "a shard's gradient is not f32");
          all[name] = whole_of(slot, own.grad());
        }
        return all;
      };
      const StateDictCopy expected = gradients(nullptr);
      for (const StateDictCopy& got : on_ranks<StateDictCopy>(4, gradients)) CHECK(got == expected);
    }
}

namespace {

// Runs fn on the ranks, of which each must throw ValueError with this text.
void all_refuse(int ranks, const std::string& text, const std::function<void(const Group&)>& fn) {
  const auto errors = on_ranks<std::string>(ranks, [&](const Group& world) -> std::string {
    try {
      fn(world);
    } catch (const ValueError& e) {
      return e.what();
    }
    return "nothing was thrown";
  });
  for (const std::string& error : errors) CHECK_THAT(error, ContainsSubstring(text));
}

}  // namespace

TEST_CASE("what differs between copies of a sharded model is an error on every rank") {
  const auto each = [](const std::string& text, int who,
                       const std::function<void(Net&, FsdpOptions&)>& change) {
    CAPTURE(text, who);
    all_refuse(4, text, [&](const Group& world) {
      Net net;
      FsdpOptions options = options_of({}, world);
      if (world->rank() == who || (who == 4 && world->rank() >= 2)) change(net, options);
      shard(net, {}, options);
    });
  };
  for (const int who : {0, 3, 4}) {
    each("weight float32", who, [](Net& net, FsdpOptions&) { net.a.to(DType::f32); });
    each("max_full_units 3", who, [](Net&, FsdpOptions& o) { o.max_full_units = 3; });
    each("max_full_units is 0", who, [](Net&, FsdpOptions& o) { o.max_full_units = 0; });
  }
  all_refuse(4, "are one group", [](const Group& world) {
    Net net;
    shard(net, {}, {.group = world, .replicate_group = world});
  });
  all_refuse(4, "a was sharded with another replicate_group", [](const Group& world) {
    Net net;
    const FsdpOptions options = options_of({}, world);
    fully_shard(net.a, options);
    fully_shard(net, {.group = options.group});
  });
  // Ranks of a third axis divide all parameters of a unit, whose copies are those of the model or fewer.
  const auto with_divided = [](const Group& world, bool divided, bool own) {
    Net net;
    const Mesh mesh(world, {{"replicate", 2}, {"shard", 1}, {"tensor", 2}});
    const auto ranks = std::make_shared<AxisRanks>(mesh["tensor"], "test");
    if (divided)
      for (nn::Parameter p : net.a.parameters()) cut_parameter(p, {{ranks, 0}});
    const auto group = mesh["shard"].group();
    fully_shard(net.a, {.group = group, .own_replicate_group = own});
    fully_shard(net, {.group = group, .replicate_group = mesh["replicate"].group()});
  };
  all_refuse(4, "a was sharded with another replicate_group",
             [&](const Group& world) { with_divided(world, true, false); });
  all_refuse(4, "a has own_replicate_group and parameters that no other axis divides",
             [&](const Group& world) { with_divided(world, false, true); });
  all_refuse(4, "nothing was thrown", [&](const Group& world) { with_divided(world, true, true); });
  // Copies 0 1 | 2 3 | 4 5 | 6 7, of which 0 and 2, 1 and 5, 4 and 7, 6 and 3 would be added.
  all_refuse(8, "pass the groups of two axes of one mesh", [](const Group& world) {
    Net net;
    const auto group = world->split_group({{0, 1}, {2, 3}, {4, 5}, {6, 7}});
    const auto copies = world->split_group({{0, 2}, {1, 5}, {6, 4}, {7, 3}});
    fully_shard(net, {.group = group, .replicate_group = copies});
  });
}

TEST_CASE("copies of a sharded model that drift apart are found on every rank") {
  const auto trains = [](const Group& world, const std::function<void(Net&, optim::SGD&)>& change) {
    Net net;
    FsdpOptions options = options_of({}, world);
    options.reduce = ReduceOp::sum;
    options.check_every = 1;
    const FullyShard sharded = shard(net, {}, options);
    optim::SGD optimizer(net.parameters(), {.lr = 0x1p-8});
    for (int step = 0; step < 3; ++step) {
      loss_of(net, rows_of(world->rank(), 4, 0, 0)).backward();
      optimizer.step();
      if (step == 1 && world->rank() >= 2) change(net, optimizer);  // the second copy alone
    }
  };
  all_refuse(4, "replicate(shard=", [&](const Group& world) {
    trains(world, [](Net&, optim::SGD& o) { o.set_lr(0x1p-7); });
  });
  all_refuse(4, "the ranks changed a.weight differently", [&](const Group& world) {
    trains(world, [](Net& net, optim::SGD&) { net.a.weight.tensor().detach().mul_(2); });
  });
}

TEST_CASE("a copy of a sharded model whose gradients overflow makes all ranks skip the step") {
  const auto steps = on_ranks<int>(4, [](const Group& world) {
    Net net;
    const FullyShard sharded = shard(net, {}, options_of({}, world));
    optim::SGD optimizer(net.parameters(), {.lr = 0x1p-8});
    optim::GradScaler scaler({.init_scale = 4});
    const Tensor before = net.c.bias.tensor().detach().clone();
    const double factor = world->rank() == 1 ? INFINITY : 1;
    scaler.scale(loss_of(net, rows_of(world->rank(), 4, 0, 0)) * factor).backward();
    scaler.step(optimizer);
    scaler.update();
    require(scaler.get_scale() == 2, "the scale is ", scaler.get_scale());
    return before.numel() == 0 || before.eq(net.c.bias.tensor().detach()).all().item<bool>();
  });
  CHECK(steps == std::vector<int>(4, 1));
}

TEST_CASE("a checkpoint of copies of a sharded model has each element once, and loads anywhere") {
  const tests::TempDir dir;
  const std::string folder = dir / "sharded", file = dir / "one.safetensors";
  const auto whole = [](const nn::Module& net) {
    StateDictCopy copy;
    for (const auto& [name, slot] : net.named_parameters())
      copy[name] = whole_of(slot, slot.layout() ? slot.layout()->stored(0).detach() : slot.tensor().detach());
    return copy;
  };
  const auto in_mode = [&](const Group& world, int copies,
                           const std::function<void(Net&, optim::Optimizer&)>& fn) {
    Net net;
    if (world) shard(net, {}, options_of({.copies = copies, .shards = world->size() / copies}, world));
    optim::SGD optimizer(net.parameters(), {.lr = 0x1p-8, .momentum = 0.5});
    fn(net, optimizer);
    return whole(net);
  };
  const auto saved = on_ranks<StateDictCopy>(4, [&](const Group& world) {
    return in_mode(world, 2, [&](Net& net, optim::Optimizer& optimizer) {
      loss_of(net, rows_of(world->rank(), 4, 0, 0)).backward();
      optimizer.step();
      save_sharded(folder, world, {&net, &optimizer}, {.step = 1});
      save_checkpoint(file, world, {&net, &optimizer}, {.step = 1});
    });
  });
  CHECK(saved[0] != whole(Net()));
  std::uintmax_t bytes = 0;
  std::vector<std::uintmax_t> of_file;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") {
      std::uint64_t header = 0;
      std::ifstream(entry.path(), std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof header);
      of_file.push_back(entry.file_size() - sizeof header - header);
      bytes += of_file.back();
    }
  std::uintmax_t elements = 0;
  for (const auto& [name, values] : saved[0]) elements += values.size();
  CHECK(bytes < 8 * 3 * elements);  // weights, and momenta of those that are trained; twice would be 4
  CHECK(of_file.size() == 4);
  for (const std::uintmax_t own : of_file) CHECK(own > bytes / 8);  // both copies write
  for (const std::string& from : {folder, file})
    for (const auto& [ranks, copies] : {std::pair(4, 2), {6, 3}, {4, 1}, {3, 3}, {1, 1}}) {
      if (kSanitized && ranks != 3) continue;
      CAPTURE(from, ranks, copies);
      const auto loaded = on_ranks<StateDictCopy>(ranks, [&, copies = copies](const Group& world) {
        return in_mode(
            world->size() == 1 ? nullptr : world, copies, [&](Net& net, optim::Optimizer& optimizer) {
              require(load_sharded(from, {&net, &optimizer}, {.rank = world->rank()}).step == 1, "the step");
            });
      });
      for (const StateDictCopy& weights : loaded) CHECK(weights == saved[0]);
    }
}

TEST_CASE("a rank that dies is an error that names the axis and the coordinate") {
  // The last rank dies before its gradients are reduced: rank 2 waits for it along `shard`, and rank 1 along
  // `replicate`.
  struct Dies {};
  std::vector<std::string> errors(4);
  distributed_test::run_ranks(
      distributed_test::transports()[0], 4,
      [&](const Group& world) {
        Net net;
        const FullyShard sharded = shard(net, {}, options_of({}, world));
        std::string& error = errors[static_cast<std::size_t>(world->rank())];
        try {
          const Tensor x = rows_of(world->rank(), 4, 0, 0);
          const Tensor loss = loss_of(net, x);
          if (world->rank() == 3) loss.register_hook([](const Tensor&) -> Tensor { throw Dies(); });
          loss.backward();
        } catch (const Dies&) {
          error = "dead";
        } catch (const std::exception& e) {
          error = e.what();
        }
      },
      distributed_test::kBounded);
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    CHECK_THAT(errors[static_cast<std::size_t>(rank)],
               ContainsSubstring("shard(replicate=") || ContainsSubstring("replicate(shard="));
    CHECK_THAT(errors[static_cast<std::size_t>(rank)], ContainsSubstring("rank 3"));
  }
  CHECK(errors[3] == "dead");
}

TEST_CASE("the all-reduce of a unit between copies is done while backward computes the units before it") {
  const auto ended = on_ranks<int>(4, [](const Group& world) {
    Net net;
    const FsdpOptions options = options_of({}, world);
    const FullyShard sharded = shard(net, {}, options);
    const Tensor x = rows_of(world->rank(), 4, 0, 0);
    bool done = false;
    const auto is_done = [&] {
      for (const CollectiveRecord& r : options.replicate_group->recorder().records())
        if (r.name.find("fsdp c all_reduce") != std::string::npos && r.finished != Clock::time_point{})
          return true;
      return false;
    };
    const auto forward_hook = net.a.register_forward_hook(
        [&](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>& outputs) {
          outputs[0].register_hook([&](const Tensor&) -> Tensor {
            const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
            while (!(done = is_done()) && std::chrono::steady_clock::now() < end)
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return {};
          });
        });
    loss_of(net, x).backward();
    return done;
  });
  CHECK(ended == std::vector<int>(4, 1));
}
