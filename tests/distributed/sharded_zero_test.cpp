// Tests sharded checkpoints of a ZeroRedundancyOptimizer, whose state is divided by elements and not by rows.
#include <filesystem>

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

// Fewer rows than ranks, no dimensions, and more than one bucket.
struct Net : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 5, .out_features = 9});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 9, .out_features = 2});
  nn::Parameter& scale = param("scale", full({}, 1.5));
  Net() { fill_by_formula(*this); }
  Tensor forward(const Tensor& x) override { return b(a(x).tanh()) * scale.tensor(); }
};

enum class Mode { plain, ddp, fsdp, zero1, zero2 };

// One rank, which may resume. Every rank has the same data, so the gradients do not depend on their number.
struct Job {
  Net net;
  std::optional<DistributedDataParallel<Net>> ddp;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::optional<optim::StepLR> schedule;

  Job(Mode mode, const Group& group, DType dtype = DType::f32) {
    net.to(dtype);
    const optim::AdamW::Options options{.lr = 0.05};
    if (mode == Mode::fsdp) {
      fully_shard(net.a, {.group = group});
      fully_shard(net, {.group = group});
    } else if (mode != Mode::plain) {
      ddp.emplace(net, DdpOptions{.process_group = group});
    }
    if (mode == Mode::zero1 || mode == Mode::zero2)
      optimizer = std::make_unique<ZeroRedundancyOptimizer<optim::AdamW>>(
          net.parameters(),
          ZeroOptions{.process_group = group, .stage = mode == Mode::zero1 ? 1 : 2, .bucket_cap_mb = 0.0001},
          options);
    else optimizer = std::make_unique<optim::AdamW>(net.parameters(), options);
    schedule.emplace(*optimizer, optim::StepLR::Options{.step_size = 2, .gamma = 0.5});
  }
  nn::Training training() { return {&net, optimizer.get(), &*schedule}; }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      optimizer->zero_grad();
      const Tensor x =
          (arange(20).to(DType::f32) * 0.1 + step).sin().reshape({4, 5}).to(net.a.weight.dtype());
      (ddp ? (*ddp)(x) : net(x)).square().mean().backward();
      optimizer->step();
      schedule->step();
    }
  }
  // The weights and the whole state, on rank 0.
  Rows rows() {
    if (auto* const zero = dynamic_cast<ZeroBase*>(optimizer.get())) zero->consolidate_state_dict(0);
    return rows_of(net, *optimizer);
  }
};

}  // namespace

TEST_CASE("the state of ZeRO is saved in sharded checkpoints and loads into every other mode and back") {
  const tests::TempDir dir;
  Job single(Mode::plain, nullptr);
  single.train(0, 3);
  const Rows at_3 = single.rows();
  single.train(3, 5);
  const Rows at_5 = single.rows();
  REQUIRE(at_3.tensors.contains("a.weight.exp_avg"));
  for (const auto& [mode, ranks] : {std::pair{Mode::zero1, 1}, {Mode::zero1, 3}, {Mode::zero2, 4}}) {
    const std::string folder = dir / (std::to_string(static_cast<int>(mode)) + std::to_string(ranks));
    on_ranks<int>(ranks, [&, &kind = mode](const Group& group) {
      Job job(kind, group);
      job.train(0, 3);
      const ShardedTraining training = job.training();
      save_sharded(folder, group, training, {.step = 3});
      return 0;
    });
    Job plain(Mode::plain, nullptr);
    load_sharded(folder, plain.training());
    CHECK(differences(plain.rows(), at_3) == "");
    plain.train(3, 5);
    CHECK(differences(plain.rows(), at_5) == "");
    for (const Mode to : {Mode::ddp, Mode::fsdp, Mode::zero1, Mode::zero2})
      for (const int others : {2, 5}) {
        INFO(folder << " to " << static_cast<int>(to) << " on " << others);
        const auto rows = on_ranks<std::pair<Rows, Rows>>(others, [&](const Group& group) {
          Job job(to, group);
          job.train(0, 1);  // has some state already
          load_sharded(folder, job.training(), {.rank = group->rank()});
          const Rows first = job.rows();
          job.train(3, 5);
          return std::pair(first, job.rows());
        });
        CHECK(differences(rows[0].first, at_3) == "");
        for (const auto& [name, tensor] : at_5.tensors) {
          // Sums over ranks of equal gradients, divided by their number, may differ in the last bits.
          const auto where = rows[0].second.where.find(name);
          Tensor expected = tensor;
          if (where != rows[0].second.where.end()) expected = where->second.of(tensor);
          INFO(name);
          CHECK(
              allclose(rows[0].second.tensors.at(name).to(DType::f64), expected.to(DType::f64), 1e-3, 1e-5));
        }
      }
  }
}

TEST_CASE("a checkpoint of DDP or fully_shard loads into ZeRO, and a damaged one changes nothing") {
  const tests::TempDir dir;
  for (const Mode from : {Mode::ddp, Mode::fsdp}) {
    const std::string folder = dir / (from == Mode::ddp ? "ddp" : "fsdp");
    on_ranks<int>(3, [&](const Group& group) {
      Job job(from, group);
      job.train(0, 3);
      save_sharded(folder, group, job.training(), {.step = 3});
      return 0;
    });
    Job plain(Mode::plain, nullptr);
    load_sharded(folder, plain.training());
    const Rows whole = plain.rows();
    for (const Mode to : {Mode::zero1, Mode::zero2})
      for (const int ranks : {1, 2, 4}) {
        const auto rows = on_ranks<Rows>(ranks, [&](const Group& group) {
          Job job(to, group);
          load_sharded(folder, job.training(), {.rank = group->rank()});
          return job.rows();
        });
        CHECK(differences(rows[0], whole) == "");
      }
    // One flipped bit in the optimizer's state is found before anything is loaded.
    const std::string shard = folder + "/shard-00001-of-00003.safetensors";
    std::string bytes = tests::read_file(shard);
    bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 16);
    tests::write_file(shard, bytes);
    on_ranks<int>(2, [&](const Group& group) {
      Job job(Mode::zero1, group);
      job.train(0, 1);
      const StateDictCopy before = copy_state(job.net);
      std::string error;
      try {
        load_sharded(folder, job.training(), {.rank = group->rank()});
      } catch (const IoError& e) {
        error = e.what();
      }
      distributed_test::require(error.find("checksum") != std::string::npos, error);
      distributed_test::require(copy_state(job.net) == before, "changed by a failed load");
      return 0;
    });
  }
}

TEST_CASE("the masters of bf16 parameters are in the sharded checkpoints of ZeRO") {
  const tests::TempDir dir;
  Job single(Mode::plain, nullptr, DType::bf16);
  single.train(0, 3);
  const Rows at_3 = single.rows();
  REQUIRE(at_3.tensors.contains("a.weight.master_param"));
  REQUIRE(at_3.tensors.at("a.weight.master_param").dtype() == DType::f32);
  for (const Mode from : {Mode::zero1, Mode::zero2}) {
    const std::string folder = dir / std::to_string(static_cast<int>(from));
    on_ranks<int>(4, [&](const Group& group) {
      Job job(from, group, DType::bf16);
      job.train(0, 3);
      static_cast<ZeroBase&>(*job.optimizer).consolidate_state_dict(0);
      save_sharded(folder, group, job.training(), {.step = 3});
      return 0;
    });
    Job plain(Mode::plain, nullptr, DType::bf16);
    load_sharded(folder, plain.training());
    CHECK(differences(plain.rows(), at_3) == "");
    for (const Mode to : {Mode::ddp, Mode::fsdp, Mode::zero1, Mode::zero2}) {
      INFO(static_cast<int>(from) << " to " << static_cast<int>(to));
      const auto rows = on_ranks<Rows>(3, [&](const Group& group) {
        Job job(to, group, DType::bf16);
        job.train(0, 1);
        load_sharded(folder, job.training(), {.rank = group->rank()});
        return job.rows();
      });
      CHECK(differences(rows[0], at_3) == "");
    }
  }
}
