// Trains random small models in float64 in every mode, and compares the loss, the gradients and the state of
// each step with those of one process. TAPESTRY_FUZZ_SEED draws other cases, and TAPESTRY_FUZZ_CASES sets the
// number of cases of each mode; tools/fuzz_modes sets both.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "tapestry/tapestry.h"
#include "tests/data_parallel/mode_cases.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"
#include "tests/support/fuzz_setting.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using namespace mode_cases;
using distributed_test::Group, distributed_test::kBounded;

namespace {

constexpr int kInputs = 3, kSide = 2, kOutputs = 2, kTrainedSteps = 5;
constexpr double kTolerance = 1e-10;

struct Net : nn::Callable<Net> {
  explicit Net(const Case& c) : second(c.second) {
    const std::int64_t w = c.width;
    for (int i = 0; i < c.blocks; ++i) {
      blocks.push_back(&add<nn::Linear>("block" + std::to_string(i),
                                        {.in_features = w, .out_features = w, .bias = !c.norm}));
      if (c.norm) norms.push_back(&add<nn::BatchNorm1d>("norm" + std::to_string(i), {.num_features = w}));
    }
    in = &add<nn::Linear>("in", {.in_features = kInputs, .out_features = w});
    head = &add<nn::Linear>("head", {.in_features = w, .out_features = kOutputs});
    if (c.second) side = &add<nn::Linear>("side", {.in_features = kSide, .out_features = w});
    if (c.unused) spare = &add<nn::Linear>("spare", {.in_features = 2, .out_features = 3});
    to(DType::f64);
    if (c.tied) blocks.back()->weight = blocks[0]->weight;
    if (c.frozen && c.fault != Fault::thawed) blocks[1]->requires_grad_(false);
  }
  Tensor compute(std::size_t begin, std::size_t end, const std::vector<Tensor>& inputs) {
    Tensor h = inputs[0];
    if (begin == 0) {
      h = (*in)(h);
      // Only rows with a 1 in the first column use the second input. Members without such rows do not call
      // the layer.
      const Tensor uses = inputs[1].narrow(1, 0, 1);
      if (second && uses.sum().item() > 0) h = h + (*side)(inputs[1]) * uses;
    }
    for (std::size_t i = begin; i < end; ++i) {
      const Tensor x = (*blocks[i])(h);
      h = h + (norms.empty() ? x : (*norms[i])(x)).tanh();
    }
    return end == blocks.size() ? (*head)(h) : h;
  }
  Tensor forward(const Tensor& x, const Tensor& z) { return compute(0, blocks.size(), {x, z}); }

  const bool second;
  std::vector<nn::Linear*> blocks;
  std::vector<nn::BatchNorm1d*> norms;
  nn::Linear *in = nullptr, *head = nullptr, *side = nullptr, *spare = nullptr;
};

Tensor random_tensor(const Shape& shape, std::uint64_t seed, double scale) {
  std::mt19937_64 random(seed);
  const Tensor t = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<double>()[i] = scale * (static_cast<double>(random() >> 11) * 0x1p-52 - 1);
  return t;
}

void fill(Net& net, std::uint64_t seed, double change = 0) {
  const NoGradGuard no_grad;
  for (const auto& [name, slot] : net.named_parameters()) {
    slot.tensor().detach().copy_(random_tensor(slot.tensor().sizes(), ++seed * 7919, 0.6));
    if (name.starts_with("norm")) slot.tensor().detach().add_(1);
    if (change > 0) slot.tensor().detach().mul_(random_tensor(slot.tensor().sizes(), seed, change).add_(1));
  }
}

struct Batch {
  Tensor x, z, y;
  Batch rows(std::int64_t first, std::int64_t count) const {
    return {x.narrow(0, first, count), z.narrow(0, first, count), y.narrow(0, first, count)};
  }
  std::int64_t size() const { return x.size(0); }
};
// Consecutive rows, the larger numbers first.
std::vector<Batch> split(const Batch& batch, int count) {
  std::vector<Batch> all;
  std::int64_t first = 0;
  for (const std::int64_t rows : chunk_sizes(batch.size(), static_cast<std::size_t>(count))) {
    all.push_back(batch.rows(first, rows));
    first += rows;
  }
  return all;
}
// What one process computes at a time.
std::vector<Batch> parts_of(const Case& c, const Batch& batch) {
  std::vector<Batch> all;
  for (const Batch& call : split(batch, c.calls))
    for (const Batch& part : split(call, c.parts)) all.push_back(part);
  return all;
}
Batch batch_of(const Case& c, int step) {
  const std::int64_t n = step + 1 == kTrainedSteps ? c.last : c.samples;
  const std::uint64_t seed = c.seed * 100 + static_cast<std::uint64_t>(step) * 3;
  const Batch batch{random_tensor({n, kInputs}, seed, 1), random_tensor({n, kSide}, seed + 1, 1),
                    random_tensor({n, kOutputs}, seed + 2, 1)};
  std::mt19937_64 random(seed);
  // Members differ, but not with batch norm: ranks that use other layers would call it and the buckets of DDP
  // in another order.
  for (const Batch& part : parts_of(c, batch))
    for (const Batch& mine : split(part, is_pipeline(c) || c.norm ? 1 : c.members))
      mine.z.narrow(1, 0, 1).fill_(static_cast<double>(random() % 2));
  return batch;
}

struct Trace {
  std::vector<double> losses, norms;             // by step; no norms without clip
  std::vector<StateDictCopy> gradients, states;  // by step; empty if the mode does not show them here
};

template <class Named>
StateDictCopy copied(const Named& dict) {
  StateDictCopy copy;
  for (const auto& [name, tensor] : dict) copy[name] = to_vector(tensor);
  return copy;
}
StateDictCopy gradients_of(const Net& net) {
  StateDictCopy copy;
  for (const auto& [name, slot] : net.named_parameters())
    if (slot->grad().defined()) copy[name] = to_vector(slot->grad());
  return copy;
}

template <class O>
std::unique_ptr<optim::Optimizer> optimizer_of(const Case& c, std::vector<nn::Parameter> parameters,
                                               const typename O::Options& options, const Group& group) {
  if (!group || !c.mode.starts_with("zero")) return std::make_unique<O>(std::move(parameters), options);
  const ZeroOptions zero{.process_group = group,
                         .stage = c.mode == "zero1" ? 1 : 2,
                         .bucket_cap_mb = c.small_buckets ? 1e-4 : 25};
  return std::make_unique<ZeroRedundancyOptimizer<O>>(std::move(parameters), zero, options);
}
std::unique_ptr<optim::Optimizer> optimizer_of(const Case& c, std::vector<nn::Parameter> parameters,
                                               const Group& group = nullptr) {
  return c.adamw ? optimizer_of<optim::AdamW>(c, std::move(parameters), {.lr = 0.01}, group)
                 : optimizer_of<optim::SGD>(c, std::move(parameters), {.lr = 0.1, .momentum = 0.9}, group);
}

double norm_type(const Case& c) { return c.largest ? INFINITY : 2; }

// One process. `loss` computes and differentiates the loss of a part, which is the given share of the step.
using PartLoss = std::function<double(const Batch& part, double share)>;
Trace trained(const Case& c, Net& net, const PartLoss& loss, const std::function<StateDictCopy()>& state,
              bool shows_gradients) {
  const auto optimizer = optimizer_of(c, net.parameters());
  Trace trace;
  for (int step = 0; step < kTrainedSteps; ++step) {
    optimizer->zero_grad();
    const Batch batch = batch_of(c, step);
    double sum = 0;
    for (const Batch& part : parts_of(c, batch))
      sum += loss(part, static_cast<double>(part.size()) / static_cast<double>(batch.size()));
    trace.losses.push_back(sum);
    if (c.clip > 0) trace.norms.push_back(nn::clip_grad_norm_(net.parameters(), c.clip, norm_type(c)).item());
    if (shows_gradients) trace.gradients.push_back(gradients_of(net));
    optimizer->step();
    trace.states.push_back(state());
  }
  return trace;
}

// `change` is the relative change of the initial weights.
Trace alone(Case c, double change = 0) {
  c.fault = Fault::none;
  Net net(c);
  fill(net, c.seed, change);
  const auto loss = [&](const Batch& part, double share) {
    const Tensor l = mse_loss(net(part.x, part.z), part.y) * share;
    l.backward();
    return l.item();
  };
  return trained(
      c, net, loss, [&] { return copied(net.state_dict()); }, true);
}

Trace on_devices(const Case& c) {
  Net net(c);
  fill(net, c.seed);
  std::vector<Device> devices;
  for (int d = 0; d < c.members; ++d) devices.emplace_back(DeviceType::cpu, d);
  const auto run = [&](auto& parallel, const std::function<StateDictCopy()>& state, bool shows_gradients) {
    const auto loss = [&](const Batch& part, double share) {
      const Tensor l = parallel.loss(std::tie(part.x, part.z, part.y), [&](const Tensor& x, const Tensor& z,
                                                                           const Tensor& y) {
        return mse_loss(net(x, z), y);
      }) * share;
      l.backward();
      return l.item();
    };
    return trained(c, net, loss, state, shows_gradients);
  };
  if (c.mode == "sharded") {
    ShardedDataParallelOptions options{.max_full_units = c.full_units};
    for (std::size_t i = 0; i < net.blocks.size(); ++i)
      if (c.units >> i & 1) options.units.push_back(net.blocks[i]);
    ShardedDataParallel<Net> parallel(net, devices, options);
    return run(
        parallel, [&] { return copied(parallel.whole_state_dict()); }, false);
  }
  DataParallelOptions options{.mode =
                                  c.mode == "dp" ? DataParallelMode::replicated : DataParallelMode::master};
  if (c.small_buckets) options.bucket_cap_mb = options.first_bucket_mb = 1e-4;
  DataParallel<Net> parallel(net, devices, options);
  return run(
      parallel, [&] { return copied(net.state_dict()); }, true);
}

Trace on_rank(const Case& c, const Group& group) {
  const int ranks = group->size(), me = group->rank();
  Net net(c);
  fill(net, c.seed + (me == 0 ? 0 : 1));  // rank 0's values count
  if (c.norm && c.fault != Fault::local_statistics) convert_sync_batchnorm(net, group);
  std::unique_ptr<DistributedDataParallel<Net>> ddp;
  std::optional<FullyShard> fsdp;
  if (c.mode == "fsdp" || c.mode == "hsdp") {
    std::optional<Mesh> mesh;
    if (c.mode == "hsdp") mesh.emplace(group, std::vector<AxisSize>{{"replicate", c.copies}, {"shard", -1}});
    const FsdpOptions options{.group = mesh ? (*mesh)["shard"].group() : group,
                              .replicate_group = mesh ? (*mesh)["replicate"].group() : nullptr,
                              .reshard_after_forward = c.reshard,
                              .max_full_units = c.full_units,
                              .reduce = c.sums ? ReduceOp::sum : ReduceOp::mean};
    for (std::size_t i = 0; i < net.blocks.size(); ++i)
      if (c.units >> i & 1) fully_shard(*net.blocks[i], options);
    fsdp = fully_shard(net, options);
  } else {
    DdpOptions options{.process_group = group,
                       .find_unused_parameters = c.find_unused,
                       .static_graph = c.static_graph,
                       .reduce = c.sums ? ReduceOp::sum : ReduceOp::mean};
    if (c.small_buckets) options.bucket_cap_mb = options.first_bucket_mb = 1e-4;
    ddp = std::make_unique<DistributedDataParallel<Net>>(net, options);
  }
  const auto optimizer = optimizer_of(c, net.parameters(), group);
  Trace trace;
  for (int step = 0; step < kTrainedSteps; ++step) {
    optimizer->zero_grad();
    const Batch batch = batch_of(c, step);
    const std::vector<Batch> parts = parts_of(c, batch);
    double sum = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      if (c.fault == Fault::lost_part && step == 1 && p == 0 && parts.size() > 1) continue;
      const int who = c.fault == Fault::other_samples && me == 1 ? 0 : me;
      Batch mine = split(parts[p], ranks)[static_cast<std::size_t>(who)];
      if (c.fault == Fault::lost_input && me == 1) mine.z = zeros_like(mine.z);
      std::optional<NoSync> quiet;
      if ((p + 1 < parts.size() && !c.each) || c.fault == Fault::missing_sum)
        quiet.emplace(ddp ? ddp->no_sync() : c.by_copy ? fsdp->no_all_reduce() : fsdp->no_sync());
      const auto count = static_cast<double>(mine.size()), all = static_cast<double>(batch.size());
      double share = count * (c.sums ? 1 : ranks) / all;
      if (c.fault == Fault::even_divisor) share = static_cast<double>(parts[p].size()) / all;
      if (c.fault == Fault::even_parts) share *= all / static_cast<double>(parts[p].size() * c.parts);
      const Tensor out = ddp ? (*ddp)(mine.x, mine.z) : net(mine.x, mine.z);
      const Tensor loss = mse_loss(out, mine.y);
      sum += loss.item() * count / all;
      (loss * (c.fault == Fault::doubled && me == 1 ? 2 * share : share)).backward();
    }
    const Tensor total = full({1}, sum, DType::f64);
    group->all_reduce(total);
    trace.losses.push_back(total.item());
    if (c.clip > 0)
      trace.norms.push_back(nn::clip_grad_norm_(net.parameters(),
                                                c.fault == Fault::other_clip ? 1.01 * c.clip : c.clip,
                                                norm_type(c))
                                .item());
    if (c.mode == "ddp" || c.mode == "zero1") trace.gradients.push_back(gradients_of(net));
    optimizer->step();
    const auto full = fsdp ? std::optional(fsdp->unshard(true)) : std::nullopt;
    trace.states.push_back(copied(net.state_dict()));
  }
  return trace;
}

Stage stage_of(const Case& c, Net& net, int number, Device device) {
  const auto s = static_cast<std::size_t>(number), count = static_cast<std::size_t>(c.members);
  const std::size_t begin = s * net.blocks.size() / count, end = (s + 1) * net.blocks.size() / count;
  Stage::Modules modules;
  for (std::size_t i = begin; i < end; ++i) {
    modules.emplace_back(*net.blocks[i]);
    if (c.norm) modules.emplace_back(*net.norms[i]);
  }
  if (s == 0) modules.emplace_back(*net.in);
  if (s == 0 && net.side) modules.emplace_back(*net.side);
  if (s + 1 == count) modules.emplace_back(*net.head);
  if (s + 1 == count && net.spare) modules.emplace_back(*net.spare);
  return Stage([&net, begin, end](const std::vector<Tensor>& in) { return net.compute(begin, end, in); },
               device, modules);
}
std::vector<Stage> stages_of(const Case& c, Net& net) {
  std::vector<Stage> stages;
  for (int s = 0; s < c.members; ++s) stages.push_back(stage_of(c, net, s, {DeviceType::cpu, s}));
  return stages;
}

Trace in_stages(const Case& c, const Group& group) {
  Net net(c);
  fill(net, c.seed);
  PipelineOptions options{
      .schedule = c.schedule, .micro_batches = c.parts, .uneven = true, .checkpoint = c.checkpoint};
  if (group && c.tied) options.tied = {{"block0.weight", concat({"block", c.blocks - 1, ".weight"})}};
  Pipeline pipeline = group ? Pipeline(group, stage_of(c, net, group->rank(), kCPU), options)
                            : Pipeline(stages_of(c, net), options);
  const auto optimizer = optimizer_of(c, pipeline.parameters());
  Trace trace;
  for (int step = 0; step < kTrainedSteps; ++step) {
    optimizer->zero_grad();
    const Batch batch = batch_of(c, step);
    double sum = 0;
    for (const Batch& call : split(batch, c.calls)) {
      const double share = static_cast<double>(call.size()) / static_cast<double>(batch.size());
      sum += pipeline
                 .forward_backward(
                     std::vector<Tensor>{call.x, call.z}, call.y,
                     [&](const Tensor& out, const Tensor& target) { return mse_loss(out, target) * share; })
                 .item();
    }
    trace.losses.push_back(sum);
    if (c.clip > 0) trace.norms.push_back(pipeline.clip_grad_norm_(c.clip, norm_type(c)).item());
    if (!group) trace.gradients.push_back(gradients_of(net));
    optimizer->step();
    const nn::StateDict whole = pipeline.whole_state_dict();
    if (!group || group->rank() == 0) trace.states.push_back(copied(whole));
  }
  return trace;
}

// Model parallelism over devices, or a pipeline over ranks whose stages may be replicated or sharded.
Trace by_strategy(const Case& c, const Group& group) {
  using Tensors = std::vector<Tensor>;
  Net net(c);
  fill(net, c.seed);
  std::vector<Device> devices;
  for (int d = 0; d < (group ? 1 : c.members); ++d) devices.emplace_back(DeviceType::cpu, d);
  Strategy strategy(group ? concat({"pipeline=", c.members, ":schedule=", schedule_name(c.schedule),
                                    c.readers > 1 ? "," : "", c.with})
                          : c.mode,
                    {.world = group, .devices = devices, .parts = c.parts});
  std::vector<nn::Module*> units;
  for (std::size_t i = 0; i < net.blocks.size(); ++i)
    if (c.units >> i & 1) units.push_back(net.blocks[i]);
  strategy.wrap(net, {.units = units,
                      .forward = [&](const Tensors& in) { return Tensors{net(in[0], in[1])}; },
                      .loss = [](const Tensors& out, const Tensors& targets) -> Loss {
                        return {mse_loss(out[0], targets[0]), static_cast<double>(targets[0].size(0))};
                      },
                      .stages =
                          [&](const std::vector<Device>& devices) {
                            std::vector<Stage> stages;
                            for (std::size_t s = 0; s < devices.size(); ++s)
                              stages.push_back(stage_of(c, net, s, devices[s]));
                            return stages;
                          }});
  const std::unique_ptr<optim::Optimizer> optimizer =
      c.adamw ? make_optimizer<optim::AdamW>(strategy, net.parameters(), {.lr = 0.01})
              : make_optimizer<optim::SGD>(strategy, net.parameters(), {.lr = 0.1, .momentum = 0.9});
  Trace trace;
  for (int step = 0; step < kTrainedSteps; ++step) {
    optimizer->zero_grad();
    const Batch batch = batch_of(c, step);
    const auto read = [&](const Part& part) {
      const Samples own = strategy.share(batch.size(), part);
      const Batch mine = batch.rows(own.first, own.count);
      return distributed::Batch{{mine.x, mine.z}, {mine.y}};
    };
    const Tensor loss = strategy.gradients(read, static_cast<double>(batch.size())).loss;
    trace.losses.push_back(strategy.sum({loss.item()})[0]);
    if (c.clip > 0) trace.norms.push_back(strategy.clip_grad_norm_(c.clip, norm_type(c)).item());
    if (!group) trace.gradients.push_back(gradients_of(net));
    optimizer->step();
    const nn::StateDict whole = strategy.whole_state();
    if (strategy.logs()) trace.states.push_back(copied(whole));
  }
  return trace;
}

// Trains in the mode of the case. Returns the trace of each rank.
std::vector<Trace> in_mode(const Case& c) {
  if (c.mode == "pipeline") return {in_stages(c, nullptr)};
  if (c.mode == "model") return {by_strategy(c, nullptr)};
  if (replicates_on_devices(c)) return {on_devices(c)};
  const bool stages = c.mode == "rank pipeline", strategy = c.mode == "strategy pipeline";
  const int ranks = c.members * c.readers;
  std::vector<Trace> traces(static_cast<std::size_t>(ranks));
  run_local_ranks(
      ranks,
      [&](const Group& group) {
        traces[static_cast<std::size_t>(group->rank())] = stages     ? in_stages(c, group)
                                                          : strategy ? by_strategy(c, group)
                                                                     : on_rank(c, group);
      },
      kBounded);
  return traces;
}

// Calls found(error, what) for each number or tensor of two traces. The error is relative to the norm of the
// tensor, or to a millionth of the norm of all tensors: smaller ones have the rounding errors of larger ones.
using Found = std::function<void(double error, const std::string& what)>;
void compare(const StateDictCopy& expected, const StateDictCopy& other, const std::string& where,
             const Found& found) {
  double all = 0;
  for (const auto& [name, values] : expected)
    for (const double v : values) all += v * v;
  for (const auto& [name, values] : expected) {
    const auto at = other.find(name);
    double off = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double value = at == other.end() || at->second.size() != values.size() ? NAN : at->second[i];
      off += (value - values[i]) * (value - values[i]);
      norm += values[i] * values[i];
    }
    found(std::sqrt(off) / std::max({std::sqrt(norm), 1e-6 * std::sqrt(all), 1e-300}), where + name);
  }
  if (expected.size() != other.size()) found(INFINITY, where + "a tensor that should not be there");
}
void compare(const Trace& expected, const Trace& other, const Found& found) {
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    const std::string where = concat({"step ", step, ": "});
    const double loss = expected.losses[step];
    found(std::abs(other.losses.at(step) - loss) / loss, where + "the loss");
    if (!expected.norms.empty())
      found(std::abs(other.norms.at(step) / expected.norms[step] - 1), where + "the norm of the gradients");
    if (!other.gradients.empty())
      compare(expected.gradients[step], other.gradients.at(step), where + "the gradient of ", found);
    if (!other.states.empty()) compare(expected.states[step], other.states.at(step), where, found);
  }
}

// Trains both ways. Returns the first difference, or what was thrown, or an empty text. The tolerance is
// larger if the training amplifies rounding errors, as batch norm of few samples does: weights that differ by
// 1e-13 at the start show how much. `chaotic` counts trainings that amplify them so much that nothing is
// compared.
std::string compared(const Case& c, std::uint64_t& chaotic) {
  constexpr double kStart = 1e-13;
  std::string first;
  try {
    const Trace expected = alone(c), near = alone(c, kStart);
    double tolerance = kTolerance;
    compare(expected, near,
            [&](double error, const std::string&) { tolerance = std::max(tolerance, 10 * error); });
    const std::vector<Trace> traces = in_mode(c);
    chaotic += tolerance > 1e-6;
    if (tolerance > 1e-6) return "";
    for (std::size_t r = 0; r < traces.size(); ++r)
      compare(expected, traces[r], [&](double error, const std::string& what) {
        if (first.empty() && !(error <= tolerance))
          first = concat({"rank ", r, ", ", what, " differs by ", error, ", more than ", tolerance});
      });
  } catch (const std::exception& e) {
    return concat({"threw ", e.what()});
  }
  return first;
}

}  // namespace

TEST_CASE("every mode trains random models as one process does") {
  const std::uint64_t seed = test::fuzz_setting("TAPESTRY_FUZZ_SEED", 1);
  const std::uint64_t count = test::fuzz_setting("TAPESTRY_FUZZ_CASES", kSanitized ? 2 : 10);
  std::printf("fuzz: TAPESTRY_FUZZ_SEED=%llu, %llu cases of each mode\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(count));
  std::uint64_t chaotic = 0;
  for (std::uint64_t i = 0; i < count; ++i)
    for (const std::string& mode : kModes) {
      const Case c = drawn(mode, seed * 1'000'000 + i);
      const std::string what = compared(c, chaotic);
      INFO(c.str());
      CHECK(what == "");
    }
  CHECK(chaotic <= count * kModes.size() / 50);
}

TEST_CASE("the comparison of modes finds mistakes") {
  for (const char* mode : {"ddp", "zero1", "zero2", "fsdp", "hsdp"})
    for (int f = 0; f <= static_cast<int>(Fault::lost_input); ++f) {
      const Case c{.mode = mode,
                   .seed = 3,
                   .members = std::string_view(mode) == "hsdp" ? 4 : 2,
                   .frozen = true,
                   .second = true,
                   .norm = true,
                   .parts = 2,
                   .samples = 11,
                   .last = 9,
                   .clip = 0.05,
                   .units = 5,
                   .fault = static_cast<Fault>(f)};
      INFO(mode << ", fault " << f);
      std::uint64_t chaotic = 0;
      CHECK(compared(c, chaotic).empty() == (c.fault == Fault::none));
      CHECK(chaotic == 0);
    }
}
