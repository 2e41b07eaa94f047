// Sharded parameters through the functions of the library that read and write whole ones: state dicts, model
// files, checkpoints in one file from every mode into every other, averages and optimizers under unshard().
#include <filesystem>

#include "tapestry/tapestry.h"
#include "tests/distributed/sharded_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using distributed_test::Group, distributed_test::on_ranks, distributed_test::require;

namespace {

// Rows of one number: row i of the weight is i.
nn::Linear::Options rows_of_one(std::int64_t rows) { return {.in_features = 1, .out_features = rows}; }

void count_up(nn::Linear& net) {
  const NoGradGuard no_grad;
  net.weight->copy_(arange(net.weight.size(0)).reshape({-1, 1}));
  net.bias->fill_(0.5);
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

void require_text(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) require(text.find(part) != std::string::npos, part, " is not in: ", text);
}

void require_values(const char* what, const Tensor& got, const std::vector<double>& expected) {
  require(to_vector(got) == expected, what, ": ", got.str());
}

struct Scale : nn::Module {
  nn::Parameter& by = param("by", full({}, 1.5));
  Tensor forward(const Tensor& x) override { return x * by.tensor(); }
};

// A parameter with fewer rows than ranks, and one without dimensions. A bias before bn would have a gradient
// of rounding errors, which AdamW does not damp.
struct Net : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 5, .out_features = 9, .bias = false});
  nn::BatchNorm1d& bn = add<nn::BatchNorm1d>("bn", {.num_features = 9});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 9, .out_features = 2});
  Scale& scale = add<Scale>("scale");
  Net() { fill_by_formula(*this); }
  Tensor first(const Tensor& x) { return bn(a(x)); }
  Tensor second(const Tensor& x) { return scale(b(x.tanh())); }
  Tensor forward(const Tensor& x) override { return second(first(x)); }
};

enum class Mode { single, ddp, fsdp, zero1, zero2, pipeline };

Tensor batch_of(int step) { return (arange(20).to(DType::f32) * 0.1 + step).sin().reshape({4, 5}); }
Tensor loss_of(const Tensor& y) { return y.square().mean(); }

// One rank. Every rank has the same data. A pipeline has two ranks.
struct Job {
  Net net;
  const Mode mode;
  std::optional<DistributedDataParallel<Net>> ddp;
  std::optional<Pipeline> pipeline;
  std::unique_ptr<optim::Optimizer> optimizer;

  Job(Mode how, const Group& group) : mode(how) {
    const optim::AdamW::Options options{.lr = 0.05};
    if (mode == Mode::fsdp) {
      fully_shard(net.a, {.group = group});
      fully_shard(net, {.group = group});
    } else if (mode == Mode::pipeline) {
      if (group->rank() == 0)
        pipeline.emplace(group,
                         Stage([this](const Tensor& x) { return net.first(x); }, kCPU, {net.a, net.bn}));
      else
        pipeline.emplace(group,
                         Stage([this](const Tensor& x) { return net.second(x); }, kCPU, {net.b, net.scale}));
    } else if (mode != Mode::single) {
      ddp.emplace(net, DdpOptions{.process_group = group});
    }
    const auto params = pipeline ? pipeline->parameters() : net.parameters();
    if (mode == Mode::zero1 || mode == Mode::zero2)
      optimizer = std::make_unique<ZeroRedundancyOptimizer<optim::AdamW>>(
          params, ZeroOptions{.process_group = group, .stage = mode == Mode::zero1 ? 1 : 2}, options);
    else optimizer = std::make_unique<optim::AdamW>(params, options);
  }
  ShardedTraining training() {
    return pipeline ? ShardedTraining(pipeline->stages(), optimizer.get())
                    : ShardedTraining(&net, optimizer.get());
  }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      optimizer->zero_grad();
      if (pipeline)
        pipeline->forward_backward(batch_of(step), zeros({4, 2}),
                                   [](const Tensor& y, const Tensor&) { return loss_of(y); });
      else loss_of(ddp ? (*ddp)(batch_of(step)) : net(batch_of(step))).backward();
      optimizer->step();
    }
  }
};

// All tensors of a checkpoint.
StateDictCopy content(const std::string& path) {
  StateDictCopy all;
  for (const auto& [name, tensor] : load_safetensors(path).tensors)
    if (name.find("generator") == std::string::npos) all[name] = to_vector(tensor);
  return all;
}

}  // namespace

TEST_CASE("one file has the whole model and optimizer, from every mode and into every other") {
  const tests::TempDir dir;
  {
    Job job(Mode::single, nullptr);
    job.train(0, 3);
    nn::save_checkpoint(dir / "at_3", {&job.net, job.optimizer.get()}, {.step = 3});
    job.train(3, 5);
    nn::save_checkpoint(dir / "at_5", {&job.net, job.optimizer.get()}, {.step = 5});
  }
  const StateDictCopy at_3 = content(dir / "at_3"), at_5 = content(dir / "at_5");
  REQUIRE(at_3.contains("training/optimizer/state.0.exp_avg"));
  const std::pair<Mode, int> modes[] = {{Mode::single, 1},  {Mode::ddp, 2},   {Mode::fsdp, 2},
                                        {Mode::fsdp, 4},    {Mode::zero1, 3}, {Mode::zero2, 2},
                                        {Mode::pipeline, 2}};
  for (const auto& [from, ranks] : modes) {
    CAPTURE(static_cast<int>(from), ranks);
    on_ranks<int>(ranks, [&, mode = from](const Group& group) {
      Job job(mode, group);
      job.train(0, 3);
      save_checkpoint(dir / "file", group, job.training(), {.step = 3});
      return 0;
    });
    const StateDictCopy saved = content(dir / "file");
    CHECK(distance(saved, at_3) < 1e-5);  // the mean over three ranks may differ in the last bit
    for (const auto& [to, others] : modes) {
      // Each mode reads the file of one other.
      if (kSanitized && (static_cast<int>(from) + static_cast<int>(to)) % 6 != 3) continue;
      CAPTURE(static_cast<int>(to), others);
      on_ranks<int>(others, [&, mode = to](const Group& group) {
        Job job(mode, group);
        job.train(0, 1);  // has some state already
        require(load_checkpoint(dir / "file", group, job.training()).step == 3, "the step");
        save_checkpoint(dir / "again", group, job.training(), {.step = 3});
        job.train(3, 5);
        save_checkpoint(dir / "end", group, job.training(), {.step = 5});
        return 0;
      });
      CHECK(content(dir / "again") == saved);
      CHECK(distance(content(dir / "end"), at_5) < 1e-4);
    }
  }
}

TEST_CASE("a checkpoint of a pipeline's stages as if each were the model is refused before it is written") {
  const tests::TempDir dir;
  const auto other_names = on_ranks<std::string>(2, [&](const Group& group) {
    Job job(Mode::pipeline, group);
    Checkpointer checkpoints(dir / "folder", group);
    nn::Module* const own = group->rank() == 0 ? static_cast<nn::Module*>(&job.net.a) : &job.net.scale;
    return error_of([&] { checkpoints.save(own, {.step = 1}); });
  });
  const auto same_names = on_ranks<std::string>(2, [&](const Group& group) {
    nn::Linear stage(rows_of_one(3));
    count_up(stage);
    const NoGradGuard no_grad;
    stage.weight->add_(group->rank());
    return error_of([&] { save_checkpoint(dir / "same", group, &stage, {.step = 1}); });
  });
  for (const std::string& text : other_names) CHECK_THAT(text, ContainsSubstring("Pipeline::stages()"));
  for (const std::string& text : same_names)
    CHECK_THAT(text, ContainsSubstring("weight has other values on rank 1 than on rank 0"));
  CHECK(nn::Checkpointer(dir / "folder").steps().empty());
  CHECK_FALSE(std::filesystem::exists(dir / "same"));
}

TEST_CASE("a job resumes from the latest checkpoint, whether it is one file or a folder") {
  const tests::TempDir dir;
  on_ranks<int>(2, [&](const Group& group) {
    nn::Linear net(rows_of_one(3));
    const auto set = [&](double value) {
      const NoGradGuard no_grad;
      net.weight->fill_(value);
      net.bias->fill_(value);
    };
    const auto open = [&](bool sharded) {
      return Checkpointer(group->rank() == 0 ? dir / "run" : "", group, {},
                          sharded ? CheckpointFiles::sharded : CheckpointFiles::one);
    };
    for (std::int64_t step = 0; step < 4; ++step) {
      set(-1);
      Checkpointer checkpoints = open(step % 2 == 1);
      const auto found = checkpoints.resume(&net);
      require(found.has_value() == (step > 0), "step ", step);
      if (found) require(found->step == step - 1, "resumed from ", found->step);
      const double expected = found ? static_cast<double>(step - 1) : -1;
      require_values("resumed", net.weight, {expected, expected, expected});
      Checkpointer second = open(step % 2 == 0);
      require_text(error_of([&] { second.resume(&net); }), {"another"});  // run has the lock
      set(static_cast<double>(step));
      checkpoints.save(&net, {.step = step});
    }
    for (const bool sharded : {false, true}) {
      Checkpointer other_run = open(sharded);
      require_text(error_of([&] { other_run.save(&net, {.step = 1}); }),
                   {"has a checkpoint of step 3, later than step 1"});
      // The last three checkpoints are kept, whatever their kinds.
      require(other_run.steps() == std::vector<std::int64_t>{1, 2, 3}, "the steps");
    }
    {
      Checkpointer again = open(false);  // a step that is saved again in the other kind replaces the former
      again.save(&net, {.step = 3});
    }
    const std::string folder = dir / "run/step-00000003";
    require(std::filesystem::exists(folder + ".safetensors") && !std::filesystem::exists(folder),
            "both kinds");
    return 0;
  });
}

TEST_CASE("one file has the states of every kind of optimizer, schedule and scaler") {
  const tests::TempDir dir;
  const auto run = [&](auto make, const std::string& name) {
    const auto with = [&](const Group& group, std::int64_t steps, const std::string& load,
                          const std::string& save, bool alone) {
      Net net;
      DistributedDataParallel ddp(net, {.process_group = group});
      auto optimizer = make(net);
      optim::ReduceLROnPlateau schedule(*optimizer, {.patience = 0});
      optim::GradScaler scaler;
      const nn::Training training{&net, optimizer.get(), &schedule, &scaler};
      if (!load.empty()) {
        if (alone) nn::load_checkpoint(load, training);
        else load_checkpoint(load, group, training);
      }
      for (std::int64_t step = 0; step < steps; ++step) {
        const auto closure = [&] {
          optimizer->zero_grad();
          const Tensor loss = loss_of(ddp(batch_of(static_cast<int>(step))));
          loss.backward();
          return loss;
        };
        if constexpr (requires { optimizer->step(closure); }) optimizer->step(closure);
        else closure(), optimizer->step();
        schedule.step(1.0 + static_cast<double>(step));
      }
      save_checkpoint(save + "-all", group, training, {.step = 1});
      if (group->rank() == 0) nn::save_checkpoint(save, training, {.step = 1});
      group->barrier().wait();
    };
    const std::string first = dir / name, all = first + "-all";
    on_ranks<int>(2, [&](const Group& group) { return with(group, 3, "", first, true), 0; });
    CHECK(content(all) == content(first));
    for (const bool alone : {true, false}) {
      on_ranks<int>(2, [&](const Group& group) { return with(group, 0, all, first + "-again", alone), 0; });
      CHECK(content(first + "-again-all") == content(first));
    }
  };
  run(
      [](Net& net) {
        return std::make_unique<optim::LBFGS>(net.parameters(), optim::LBFGS::Options{.lr = 0.1});
      },
      "LBFGS");
  run([](Net& net) { return std::make_unique<optim::NAdam>(net.parameters()); }, "NAdam");
  // The vectors of LBFGS have the shape of the only parameter.
  nn::Linear bias({.in_features = 1, .out_features = 3});
  optim::LBFGS lbfgs({bias.bias}), loaded({bias.bias});
  lbfgs.step([&] {
    lbfgs.zero_grad();
    const Tensor loss = bias(ones({1, 1})).square().sum();
    loss.backward();
    return loss;
  });
  save_checkpoint(dir / "vector", nullptr, {&bias, &lbfgs}, {.step = 1});
  load_checkpoint(dir / "vector", nullptr, {&bias, &loaded});
  for (const auto& [key, t] : lbfgs.state_dict())
    CHECK(to_vector(*nn::find(loaded.state_dict(), key)) == to_vector(t));
}

TEST_CASE("a failure to write is an error on all ranks, and the old file stays") {
  const tests::TempDir dir;
  const auto errors = on_ranks<std::string>(2, [&](const Group& group) {
    Job job(Mode::fsdp, group);
    save_checkpoint(dir / "file", group, job.training(), {.step = 1});
    const std::string text =
        error_of([&] { save_checkpoint(dir / "none/file", group, job.training(), {.step = 2}); });
    require(load_checkpoint(dir / "file", group, job.training()).step == 1, "the group can be used");
    return text;
  });
  for (const std::string& text : errors) CHECK_THAT(text, ContainsSubstring("none/file"));
}

TEST_CASE("rows 0 1 2 3 of a sharded model are whole in every file, or refused before it is written") {
  for (const auto& [ranks, rows] : {std::pair{2, 4}, {2, 3}, {3, 4}, {2, 1}}) {
    CAPTURE(ranks, rows);
    if (kSanitized && ranks != 3) continue;
    const tests::TempDir dir;
    std::vector<double> expected;
    for (int i = 0; i < rows; ++i) expected.push_back(i);
    on_ranks<int>(ranks, [&, &all = rows](const Group& group) {
      nn::Linear net(rows_of_one(all));
      count_up(net);
      const FullyShard sharded = fully_shard(net, {.group = group});
      optim::AdamW optimizer(net.parameters(), {.lr = 0});
      net(ones({1, 1})).sum().backward();
      optimizer.step();
      const std::string own = dir / concat({"own", group->rank()});
      const auto refused = [&](const std::function<void()>& fn) {
        require_text(error_of(fn), {"'weight' of shape", "distributed::save_checkpoint()", "save_sharded()"});
      };
      refused([&] { net.state_dict(); });
      refused([&] { nn::save_model(own, net); });
      refused([&] { nn::save_checkpoint(own, {&net, &optimizer}, {.step = 1}); });
      refused([&] { nn::Checkpointer(own + "-folder").save({&net}, {.step = 1}); });
      require_text(error_of([&] { optimizer.state_dict(); }), {"is sharded over", "save_checkpoint()"});
      require(!std::filesystem::exists(own) && nn::Checkpointer(own + "-folder").steps().empty(), "a file");
      Checkpointer checkpoints(dir / "files", group, {}, CheckpointFiles::one),
          sharded_files(group->rank() == 0 ? dir / "shards" : "", group);
      checkpoints.save({&net, &optimizer}, {.step = 1});
      require(sharded_files.save({&net, &optimizer}, {.step = 2}) == dir / "shards/step-00000002",
              "the path");
      {
        const auto full = sharded.unshard(true);
        nn::save_model(own, net);
      }
      // A whole state is loaded by every rank. A rank's own rows are not a state.
      nn::StateDict shards{{"weight", net.weight.detach().clone()}, {"bias", net.bias.detach().clone()}};
      if (shards[0].second.size(0) != all)
        require_text(error_of([&] { net.load_state_dict(shards); }),
                     {"wrong shape: weight expected", "whole"});
      net.load_state_dict({{"weight", full({all, 1}, 9.0)}, {"bias", full({all}, 9.0)}});
      require(checkpoints.resume({&net, &optimizer})->step == 1, "no checkpoint");
      require(sharded_files.resume({&net, &optimizer})->step == 2, "no sharded checkpoint");
      const auto full = sharded.unshard(true);
      require_values("resumed", net.weight, expected);
      return 0;
    });
    nn::Linear single(rows_of_one(rows));
    for (int r = 0; r < ranks; ++r) {
      nn::load_model(dir / concat({"own", r}), single);
      CHECK(to_vector(single.weight) == expected);
    }
    optim::AdamW optimizer(single.parameters(), {.lr = 0});
    nn::Checkpointer files(dir / "files");
    CHECK(files.resume({&single, &optimizer})->step == 1);
    CHECK(to_vector(single.weight) == expected);
    CHECK(to_vector(*nn::find(optimizer.state_dict(), "state.0.exp_avg")) ==
          std::vector<double>(static_cast<std::size_t>(rows), static_cast<double>(0.1f)));
  }
}

TEST_CASE("under unshard() the library reads and writes the whole parameters") {
  for (const auto& [ranks, rows] : {std::pair{2, 2}, {2, 3}, {3, 4}})
    on_ranks<int>(ranks, [&all = rows](const Group& group) {
      const std::vector<double> counted = to_vector(arange(all));
      const auto scaled = [&](double by) {
        std::vector<double> values = counted;
        for (double& v : values) v *= by;
        return values;
      };
      nn::Linear net(rows_of_one(all));
      count_up(net);
      const FullyShard sharded = fully_shard(net, {.group = group});
      const auto output = [&] { return net(ones({1, 1})) - 0.5; };
      const NoGradGuard no_grad;
      optim::AveragedModel ema(net, {.avg_fn = optim::get_ema_avg(0.5)});
      ema.update_parameters();  // 1 times the rows
      {
        const auto scope = sharded.unshard();
        net.weight->mul_(3);
        ema.update_parameters();  // 2 times the rows: the change counts
        require_values("state_dict()", net.state_dict()[0].second, scaled(3));
        {
          const auto use = ema.use();
          require_values("the average", output(), scaled(2));
          require_values("state_dict() of the average", net.state_dict()[0].second, scaled(2));
        }
        require_values("the own weights", output(), scaled(3));
        net.load_state_dict({{"weight", arange(all).reshape({-1, 1}) * 5.0}, {"bias", full({all}, 0.5)}});
        require_values("load_state_dict()", output(), scaled(5));
        net.bias->fill_(0.5);
        net.weight->add_(0);  // a later change in place
        require_values("after a change in place", output(), scaled(5));
        for (const std::string& text :
             {error_of([&] { net.to(DType::f64); }), error_of([&] { net.requires_grad_(false); })})
          require_text(text, {"'weight' of shape", "unshard()", "before or after"});
      }
      const auto whole = [&] {
        const auto scope = sharded.unshard();
        return net.weight.tensor().detach().clone();
      };
      require_values("after the scope", whole(), scaled(5));
      // Scopes of both kinds that end in another order than they began.
      {
        std::optional<optim::AveragedModel::Scope> use;
        use.emplace(ema);
        {
          const auto scope = sharded.unshard();
          require_values("the average, gathered", output(), scaled(2));
          use.reset();
          require_values("the own weights in the scope", output(), scaled(5));
        }
        std::optional<FullyShard::Unsharded> scope(sharded.unshard());
        use.emplace(ema);
        scope.reset();
        require_values("the average after the scope", whole(), scaled(2));
      }
      require_values("the own weights at the end", whole(), scaled(5));
      return 0;
    });
}

TEST_CASE("a step under unshard() is seen there and afterwards") {
  on_ranks<int>(2, [](const Group& group) {
    nn::Linear net(rows_of_one(3));
    count_up(net);
    const FullyShard sharded = fully_shard(net, {.group = group});
    optim::SGD optimizer(net.parameters(), {.lr = 0.5});
    net(ones({1, 1})).sum().backward();  // the gradient of every row is 1
    {
      const auto scope = sharded.unshard();
      {
        const NoGradGuard no_grad;
        net.weight->mul_(2);
      }
      optimizer.step();
      require_values("the step", net.weight, {-0.5, 1.5, 3.5});
    }
    const auto scope = sharded.unshard();
    require_values("after the scope", net.weight, {-0.5, 1.5, 3.5});
    return 0;
  });
}

TEST_CASE("the part of one rank's optimizer state is loaded by that rank alone") {
  on_ranks<int>(2, [](const Group& group) {
    nn::Linear net(rows_of_one(4));
    count_up(net);
    fully_shard(net, {.group = group});
    optim::AdamW optimizer(net.parameters(), {.lr = 0.1}), other(net.parameters(), {.lr = 0.5});
    net(full({1, 1}, 1.0 + group->rank())).sum().backward();
    optimizer.step();
    nn::StateDict part = optimizer.local_state_dict();
    other.load_state_dict(part);
    require(other.lr() == 0.1, "the rate");
    for (auto& [key, t] : part)
      if (key == "shard.rank") t = scalar_tensor(std::int64_t{1 - group->rank()}, {DType::i64, kCPU});
    require_text(error_of([&] { other.load_state_dict(part); }), {"the part of rank", "but this is rank"});
    std::erase_if(part, [](const auto& entry) { return entry.first.starts_with("shard."); });
    require_text(
        error_of([&] { other.load_state_dict(part); }),
        {"wrong shape: state.0.exp_avg expected [4, 1] but got [2, 1], the shape of this rank's shard"});
    return 0;
  });
}

TEST_CASE("find_lr restores the rows of each rank") {
  on_ranks<int>(2, [](const Group& group) {
    nn::Linear net(rows_of_one(3));
    count_up(net);
    const FullyShard sharded = fully_shard(net, {.group = group});
    optim::SGD optimizer(net.parameters(), {.lr = 0.5, .momentum = 0.9});
    optim::find_lr(net, optimizer, [&] { return net(ones({1, 1})).square().sum(); }, {.num_iter = 3});
    const auto scope = sharded.unshard();
    require_values("the weight", net.weight, {0, 1, 2});
    return 0;
  });
}
