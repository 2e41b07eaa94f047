// Tests sharded checkpoints of models that fully_shard() divided, and of DDP.
#include "tapestry/tapestry.h"
#include "tests/distributed/sharded_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using distributed_test::Group, distributed_test::on_ranks;

namespace {

/// A tied weight, a parameter with fewer rows than ranks, one without dimensions, a frozen one, buffers, and
/// dropout, whose masks differ between ranks.
struct Net : nn::Module {
  nn::Embedding& embed = add<nn::Embedding>("embed", {.num_embeddings = 7, .embedding_dim = 5});
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 5, .out_features = 6});
  nn::BatchNorm1d& bn = add<nn::BatchNorm1d>("bn", {.num_features = 6});
  nn::Dropout& dropout = add<nn::Dropout>("dropout", {.p = 0.25});
  nn::Linear& narrow = add<nn::Linear>("narrow", {.in_features = 6, .out_features = 3});
  nn::Linear& back = add<nn::Linear>("back", {.in_features = 3, .out_features = 5});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 5, .out_features = 7, .bias = false});
  nn::Parameter& scale = param("scale", full({}, 1.5));
  Net() {
    head.weight = embed.weight;
    fill_by_formula(*this);
    back.weight.requires_grad_(false);
  }
  Tensor forward(const Tensor& ids) override {
    const Tensor h = dropout(bn(a(embed(ids))).relu());
    return head(back(narrow(h)) * scale.tensor());
  }
};

enum class Mode { fsdp, ddp };

/// One rank of a job.
struct Job {
  Generator generator;
  Net net;
  std::optional<DistributedDataParallel<Net>> ddp;
  std::optional<optim::AdamW> optimizer;
  std::optional<optim::CosineAnnealingLR> schedule;
  Checkpointer checkpoints;
  std::int64_t step = 0;

  Job(const Group& group, const std::string& folder, Mode mode)
      : generator(rank_seed(3, group->rank())),
        checkpoints(folder, group, {.keep_last = 0}, CheckpointFiles::sharded) {
    if (mode == Mode::fsdp) {
      const FsdpOptions options{.group = group};
      fully_shard(net.a, options);
      fully_shard(net.narrow, options);
      fully_shard(net, options);
    } else {
      ddp.emplace(net, DdpOptions{.process_group = group});
    }
    std::vector<nn::Parameter> trained;
    for (const nn::Parameter& p : net.parameters())
      if (p.requires_grad()) trained.push_back(p);
    optimizer.emplace(trained, optim::AdamW::Options{.lr = 0.02});
    schedule.emplace(*optimizer, optim::CosineAnnealingLR::Options{.T_max = 20});
    const auto progress = checkpoints.resume(training());
    if (progress) step = progress->step;
  }
  ShardedTraining training() { return {&net, &*optimizer, &*schedule}; }
  void train(std::int64_t to, int rank) {
    Context context = current_context();
    context.generator = &generator;
    const ContextGuard guard(context);
    for (; step < to; ++step) {
      const Tensor ids = (arange(6) * 3 + rank + step) % 7, labels = (arange(6) + rank) % 7;
      optimizer->zero_grad();
      const Tensor y = ddp ? (*ddp)(ids) : net(ids);
      cross_entropy(y, labels).backward();
      optimizer->step();
      schedule->step();
    }
  }
  void save() {
    Context context = current_context();
    context.generator = &generator;
    const ContextGuard guard(context);
    checkpoints.save(training(), {.step = step});
  }
};

/// A job resumes if the folder has a checkpoint. It trains to step `to`, and saves then. Returns the rows of
/// each rank.
std::vector<Rows> run(int ranks, const std::string& folder, Mode mode, std::int64_t to) {
  return on_ranks<Rows>(ranks, [&](const Group& group) {
    Generator fresh(1234);
    Context context = current_context();
    context.generator = &fresh;
    const ContextGuard guard(context);
    Job job(group, folder, mode);
    if (job.step > 0)
      job.generator.set_state(fresh.state());  // resume() has restored the context's generator
    job.train(to, group->rank());
    job.save();
    return rows_of(job.net, *job.optimizer);
  });
}

Rows load_whole(const std::string& path) {
  Net net;
  const NoGradGuard no_grad;
  for (const nn::Parameter& p : net.parameters()) p.tensor().detach().fill_(-1);
  std::vector<nn::Parameter> trained;
  for (const nn::Parameter& p : net.parameters())
    if (p.requires_grad()) trained.push_back(p);
  optim::AdamW optimizer(trained, {});
  optim::CosineAnnealingLR schedule(optimizer, {.T_max = 20});
  load_sharded(path, {&net, &optimizer, &schedule});
  return rows_of(net, optimizer);
}

bool is_state_of_rank(const std::string& name) {
  return name.starts_with("bn.running") || name == "bn.num_batches_tracked";
}

}  // namespace

TEST_CASE("a fully sharded model that 4 ranks saved loads at any number of ranks, and under DDP") {
  const tests::TempDir dir;
  const auto saved = run(4, dir / "four", Mode::fsdp, 3);
  const Rows whole = load_whole(dir / "four/step-00000003");
  CHECK(to_vector(whole.tensors.at("back.weight")).size() == 15);
  CHECK(whole.tensors.at("scale").sizes() == Shape{});
  // Running statistics are those of rank 0; the other ranks have their own.
  const auto differ = [&](Rows rows, Rows expected, bool all) {
    if (!all) {
      std::erase_if(rows.tensors, [](const auto& t) { return is_state_of_rank(t.first); });
      std::erase_if(expected.tensors, [](const auto& t) { return is_state_of_rank(t.first); });
    }
    return differences(rows, expected);
  };
  for (std::size_t r = 0; r < saved.size(); ++r) CHECK(differ(saved[r], whole, r == 0) == "");
  for (const int ranks : {1, 2, 3, 5}) {
    for (const Mode mode : {Mode::fsdp, Mode::ddp}) {
      INFO(ranks << (mode == Mode::ddp ? " ddp" : " fsdp"));
      const std::string folder = dir / (std::to_string(ranks) + (mode == Mode::ddp ? "d" : "f"));
      std::filesystem::copy(dir / "four", folder, std::filesystem::copy_options::recursive);
      for (const Rows& rows : run(ranks, folder, mode, 3)) CHECK(differ(rows, whole, true) == "");
      // And back: what these ranks have saved again.
      CHECK(differ(load_whole(folder + "/step-00000003"), whole, true) == "");
    }
  }
}

TEST_CASE("a job that resumes a sharded checkpoint with as many ranks continues bit for bit") {
  const tests::TempDir dir;
  for (const Mode mode : {Mode::fsdp, Mode::ddp}) {
    const std::string name = mode == Mode::ddp ? "ddp" : "fsdp";
    const auto expected = run(3, dir / (name + "-whole"), mode, 6);
    run(3, dir / name, mode, 3);
    const auto resumed = run(3, dir / name, mode, 6);
    for (std::size_t r = 0; r < 3; ++r) {
      INFO(name << " rank " << r);
      std::string wrong;
      for (const auto& [key, t] : expected[r].tensors)
        if (!is_state_of_rank(key) && to_vector(t) != to_vector(resumed[r].tensors.at(key)))
          wrong += ' ' + key;
      CHECK(wrong == "");
    }
    CHECK(differences(resumed[0], expected[0]) == "");
    CHECK(to_vector(expected[0].tensors.at("a.weight")) !=
          to_vector(load_whole(dir / name + "/step-00000003").tensors.at("a.weight")));
  }
}
