// Tests training jobs over Gloo with one process per rank, under DDP and under each mode along an axis of a
// mesh. If a rank dies, freezes or makes a different call, every other rank must throw in time an error that
// names the rank and the place. Checkpoints must be complete. After restarts, the weights must equal those of
// an undisturbed job.
#include <algorithm>
#include <cstdlib>

#include "tapestry/distributed/comm/internal/sockets.h"
#include "tapestry/tapestry.h"
#include "tests/launch/job.h"
#include "tests/launch/training.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/ports.h"
#include "tests/support/processes.h"

using namespace distributed_test;
using tapestry::distributed::start_store_server;
using tests::check_checkpoints;
using tests::Fault;
using tests::Job;
using tests::to_text;

namespace {

using Texts = std::vector<std::string>;

/// A job of three ranks that are started without a launcher, because a launcher would end the other ranks
/// before they could report the error.
struct Training {
  tests::TempDir dir;
  Fault fault;
  RankProcesses ranks;

  explicit Training(const Fault& f, const std::string& timeout = "30", int port = tests::free_port(),
                    const RankProcesses::Variables& more = {})
      : fault(f), ranks(tests::kTrainingRank, 3, variables(timeout, port, more)) {}

  RankProcesses::Variables variables(const std::string& timeout, int port,
                                     RankProcesses::Variables all) const {
    all.insert(all.end(), {{"DIR", dir.path().string()},
                           {"JOB_STEPS", "6"},
                           {"JOB_FAULTS", to_text({fault})},
                           {"JOB_STORE", "tcp://127.0.0.1:" + std::to_string(port)},
                           {"OMP_NUM_THREADS", "1"},
                           {"TAPESTRY_TIMEOUT_S", timeout}});
    return all;
  }

  /// Checks that a rank reported the failure within this many seconds of the start of its step, with these
  /// words.
  void told(int rank, double seconds, const Texts& texts) {
    const Ended& end = ranks.wait(rank);
    CAPTURE(to_text({fault}), rank, end.exit_code, end.signal, end.output);
    CHECK(end.exit_code > 0);
    const std::size_t at = end.output.find("told after ");
    REQUIRE(at != std::string::npos);
    CHECK(std::stod(end.output.substr(at + 11)) < seconds);
    for (const std::string& text : texts) CHECK_THAT(end.output, ContainsSubstring(text));
  }
  void others_told(double seconds, const Texts& texts) {
    for (int rank = 0; rank < 3; ++rank)
      if (rank != fault.rank) told(rank, seconds, texts);
  }
  void killed() {
    const Ended& end = ranks.wait(fault.rank);
    CAPTURE(end.exit_code, end.output);
    CHECK(end.signal == SIGKILL);
  }
};

}  // namespace

TEST_CASE("after kill -9 of a rank, the others throw at once and name the call and the rank") {
  if (!has_gloo()) return;
  // The timeout is 30 s, so a faster error was not a timeout. All jobs run at the same time, because they
  // mostly wait.
  Training forward({"KILL", "forward", 3, 1}), backward({"KILL", "backward", 3, 1}),
      reduce({"KILL", "reduce", 3, 2}), save({"KILL", "save", 4, 0});
  for (Training* job : {&forward, &backward, &reduce, &save}) job->killed();
  forward.others_told(10, {"all_reduce(bucket 0 (", "rank 1 is silent (frozen, dead or cut off)"});
  backward.others_told(10, {"all_reduce(bucket ", "rank 1 is silent (frozen, dead or cut off)"});
  reduce.others_told(10, {"all_reduce(bucket 0 (", "rank 2 is silent (frozen, dead or cut off)"});
  save.others_told(10, {"(save_checkpoint)", "lost its connection to rank 0"});
  for (Training* job : {&forward, &backward, &reduce, &save}) {
    const auto files = std::filesystem::directory_iterator(job->dir / "checkpoints");
    CHECK(std::distance(begin(files), end(files)) ==
          (job == &save ? 3 : 2));  // .lock, one checkpoint, and the incomplete file if there is one
    CHECK(check_checkpoints(job->dir.path()) == std::vector<std::int64_t>{2});
  }
}

TEST_CASE("a stopped rank and mismatched calls give an error on every rank within the timeout") {
  if (!has_gloo()) return;
  Training frozen({"STOP", "backward", 3, 1}, "2"), skips({"SKIP", "backward", 3, 1}),
      barrier({"CALL", "barrier", 3, 2}), shape({"CALL", "shape", 3, 1}), dtype({"CALL", "dtype", 3, 0});
  skips.others_told(10, {"rank 1 called #", "broadcast(buffers of rank 0)", "ranks 0, 2 called #",
                         "all_reduce(bucket 0 ("});
  barrier.others_told(
      10, {"rank 2 called #", "barrier(evaluation)", "ranks 0, 1 called #", "all_reduce(bucket 0 ("});
  shape.others_told(
      10, {"rank 1 called #", "all_reduce(loss) float32 [2]", "ranks 0, 2 called #", "float32 [1]"});
  dtype.others_told(
      10, {"rank 0 called #", "all_reduce(loss) float64 [1]", "ranks 1, 2 called #", "float32 [1]"});
  for (Training* job : {&skips, &barrier, &shape, &dtype})
    job->told(job->fault.rank, 10, {"not in the same call"});
  frozen.told(2, 10, {"all_reduce(bucket ", "rank 1 is silent (frozen, dead or cut off)"});
  frozen.ranks.send_signal(1, SIGCONT);  // the rank resumes and finds that the job has ended
  frozen.told(1, 60, {"all_reduce(bucket "});
  frozen.told(0, 10, {"all_reduce(bucket ", "rank 1 is silent (frozen, dead or cut off)"});
}

namespace {

using namespace tapestry;
using namespace tapestry::distributed;

struct Halves : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 3, .out_features = 4});
  nn::Linear& last = add<nn::Linear>("last", {.in_features = 4, .out_features = 2});
  std::function<void(const char* phase)> at;  // is called when a phase begins
  Tensor layer(nn::Linear& layer, const Tensor& x) {
    at("forward");
    const Tensor out = layer(x);
    if (out.requires_grad())
      out.register_hook([this](const Tensor& gradient) {
        at("backward");
        return gradient;
      });
    return out;
  }
  Tensor forward(const Tensor& x) override { return layer(last, first(x)); }
};

/// Trains a step in a mode.
std::function<void()> step_of(const std::string& mode, const Group& group, Halves& net) {
  using Tensors = std::vector<Tensor>;
  const Tensor x = ones({2, 3}), y = ones({2, 2});
  const auto strategy = std::make_shared<Strategy>(mode, StrategyOptions{.world = group, .parts = 2});
  strategy->wrap(net, {.units = {&net.first},
                       .forward = [&net](const Tensors& in) { return Tensors{net(in[0])}; },
                       .loss = [](const Tensors& out, const Tensors& targets) -> Loss {
                         return {mse_loss(out[0], targets[0]), static_cast<double>(targets[0].size(0))};
                       },
                       .stages =
                           [&net](const std::vector<Device>& devices) {
                             std::vector<Stage> stages;
                             for (nn::Linear* const layer : {&net.first, &net.last})
                               stages.emplace_back(
                                   [&net, layer](const Tensor& in) { return net.layer(*layer, in); },
                                   devices.at(stages.size()), Stage::Modules{*layer});
                             return stages;
                           }});
  const std::shared_ptr<optim::Optimizer> optimizer =
      make_optimizer<optim::SGD>(*strategy, net.parameters(), {.lr = 0.1});
  return [=, &net] {
    optimizer->zero_grad();
    const auto read = [&](const Part& part) {
      const std::int64_t rows = strategy->share(8, part).count;
      return Batch{{x.narrow(0, 0, 1).expand({rows, 3})}, {y.narrow(0, 0, 1).expand({rows, 2})}};
    };
    strategy->gradients(read, 8);
    net.at("clip");
    strategy->clip_grad_norm_(1);
    optimizer->step();
    net.at("evaluate");
    strategy->evaluate(1, [&](std::int64_t) { return Batch{{x}, {y}}; });
  };
}

}  // namespace

TEST_CASE("a rank of a mesh of 2 x 2 ranks that trains", "[.]") {
  const ChildRank self = child_rank();
  const std::string mode = std::getenv("JOB_MODE"), fault = std::getenv("JOB_FAULT");
  const bool is_faulty = self.rank == 3;
  try {
    // A killed rank is noticed by its connections. If the others waited for the timeout, the test would fail,
    // because RankProcesses ends a process after 60 s.
    const Milliseconds timeout = fault == "STOP" || fault == "ORDER" ? 4s : 120s;
    const Group world = make_process_group(gloo_backend(self.store, self.rank, self.size, 30s),
                                           prefix_store("group/", self.store), {.timeout = timeout});
    const std::string axis = mode.substr(0, mode.find('=')), phase = std::getenv("JOB_PHASE");
    const bool combines = mode.find(',') != std::string::npos;
    std::optional<Mesh> mesh;
    const std::vector<AxisSize> axes{{"outer", is_faulty && fault == "MESH" ? 4 : 2}, {axis, -1}};
    if (!combines) mesh.emplace(world, axes);
    int step = 0;
    Halves net;
    net.at = [&](const std::string& now) {
      if (!is_faulty || step != 2 || now != phase) return;
      if (fault == "KILL") raise(SIGKILL);
      if (fault == "STOP") raise(SIGSTOP);
    };
    const std::function<void()> train = step_of(mode, combines ? world : (*mesh)[axis].group(), net);
    for (; step < 4; ++step) {
      if (is_faulty && step == 2 && fault == "ORDER") world->barrier("evaluation");
      train();
      if (!is_faulty || step != 2 || fault != "ORDER") world->barrier("evaluation");
    }
  } catch (const std::exception& e) {
    std::printf("told: %s\n", e.what());
    std::fflush(stdout);
    throw;
  }
}

namespace {

/// A job of 2 x 2 ranks, of which rank 3 has the fault when the phase of its third step begins.
std::unique_ptr<RankProcesses> start(const std::string& mode, const std::string& fault,
                                     const std::string& phase = "forward") {
  return std::make_unique<RankProcesses>(
      "a rank of a mesh of 2 x 2 ranks that trains", 4,
      RankProcesses::Variables{
          {"JOB_MODE", mode}, {"JOB_FAULT", fault}, {"JOB_PHASE", phase}, {"OMP_NUM_THREADS", "1"}});
}
void told(RankProcesses& job, int rank, const Texts& texts) {
  const Ended& end = job.wait(rank);
  CAPTURE(rank, end.signal, end.output);
  CHECK_THAT(end.output, ContainsSubstring("told: "));
  for (const std::string& text : texts) CHECK_THAT(end.output, ContainsSubstring(text));
}

}  // namespace

TEST_CASE("in each phase of a combined step, a killed rank is named with an axis and the coordinates") {
  if (!has_gloo()) return;
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {"pipeline=2,replicate=2", {"forward", "clip"}},
      {"pipeline=2,shard=2", {"backward", "evaluate"}},
      {"replicate=2,shard=2", {"clip", "backward"}}};
  for (const auto& [mode, phases] : cases) {
    std::vector<std::unique_ptr<RankProcesses>> jobs;
    for (const std::string& phase : phases) jobs.push_back(start(mode, "KILL", phase));
    const std::string outer = mode.substr(0, mode.find('=')), rest = mode.substr(mode.find(',') + 1),
                      inner = rest.substr(0, rest.find('='));
    for (std::size_t p = 0; p < phases.size(); ++p)
      for (int rank = 0; rank < 3; ++rank) {
        CAPTURE(mode, phases[p]);
        told(*jobs[p], rank, {"rank 3 is silent (frozen, dead or cut off)"});
        // The axis of the call, and the coordinate of its ranks along the other one.
        CHECK_THAT(jobs[p]->wait(rank).output,
                   ContainsSubstring("(" + outer + "=1)#") || ContainsSubstring("(" + inner + "=1)#"));
      }
  }
}

TEST_CASE("in each mode over ranks, a rank that fails is named with the axis and the coordinates") {
  if (!has_gloo()) return;
  const std::vector<std::string> all{"replicate=2", "replicate=2:zero=2", "shard=2", "pipeline=2"},
      some{"replicate=2:zero=2", "pipeline=2"};
  for (const std::string fault : {"none", "KILL", "STOP", "ORDER"}) {
    // The transport notices a silent rank, whatever the mode. Killed ranks have shown each mode's lines.
    const std::vector<std::string>& modes = fault == "STOP" ? some : all;
    std::vector<std::unique_ptr<RankProcesses>> jobs;
    for (const std::string& mode : modes) jobs.push_back(start(mode, fault));
    for (std::size_t m = 0; m < modes.size(); ++m) {
      CAPTURE(fault, modes[m]);
      const std::string line = modes[m].substr(0, modes[m].find('=')) + "(outer=1)#";
      for (int rank = 0; rank < 4; ++rank)
        if (fault == "none") CHECK(jobs[m]->wait(rank).well());
        else if (fault == "ORDER")
          told(*jobs[m], rank, {"ranks 2 and 3 make the calls of the groups", line, "barrier(evaluation)"});
        else if (rank < 3) told(*jobs[m], rank, {line, "rank 3 is silent (frozen, dead or cut off)"});
    }
  }
  const auto other = start("shard=2", "MESH");
  for (int rank = 0; rank < 4; ++rank)
    told(*other, rank,
         {"ranks 0-2 have outer=2 shard=2, rank 3 has outer=4 shard=1", "pass the same axes on every rank"});
}

TEST_CASE("if rank 0 exits before the others join, they report it") {
  if (!has_gloo()) return;
  Training job({"KILL", "start", 0, 0}, "2");
  job.killed();
  job.others_told(4, {"no store answered", "127.0.0.1:"});
}

TEST_CASE("a silent stranger on the store's port gives an error within the timeout") {
  if (!has_gloo()) return;
  const int number = tests::free_port();
  tapestry::distributed::SocketAddress address =
      tapestry::distributed::addresses_of("127.0.0.1", number).at(0);
  tapestry::distributed::Fd listener;
  REQUIRE(listen_at(address, listener) == 0);
  Training job({}, "2", number);
  const std::string port = std::to_string(number);
  job.told(0, 3,
           {"cannot listen at 127.0.0.1, port " + port + ": taken by process " + std::to_string(getpid())});
  for (const int rank : {1, 2}) job.told(rank, 6, {"127.0.0.1:" + port});
}

TEST_CASE("a rank with a wrong secret or none is refused and listed as missing") {
  if (!has_gloo()) return;
  const auto start = [](const char* secret_of_1) {
    return std::make_unique<Training>(
        Fault{}, "2", tests::free_port(),
        RankProcesses::Variables{{"TAPESTRY_SECRET", "right"}, {"JOB_SECRET_OF_1", secret_of_1}});
  };
  for (const auto& job : {start("wrong"), start("")}) {
    job->told(0, 6, {"1 of 3 ranks did not come (1)"});
    job->told(1, 6, {"secret"});
    job->told(2, 6, {"1 of 3 ranks did not come (1)"});
  }
}

TEST_CASE("a job killed and restarted three times ends with the bits of an undisturbed job") {
  if (!has_gloo()) return;
  const std::vector<Fault> faults = {
      {"KILL", "save", 4, 0}, {"KILL", "backward", 5, 1}, {"KILL", "reduce", 7, 0}};
  Job job({"--nproc-per-node=2", "--max-restarts=3", tests::own_path(), tests::kTrainingRank},
          {"JOB_STEPS=9", "JOB_FAULTS=" + to_text(faults), "OMP_NUM_THREADS=1", "TAPESTRY_TIMEOUT_S=30"});
  const int status = job.wait(60);
  INFO(job.out() << job.err());
  REQUIRE(status == 0);
  CHECK_THAT(job.err(), ContainsSubstring("rank 0 (pid ") && ContainsSubstring("restart 3 of 3"));
  CHECK(job.all_gone());
  const auto& weights = tests::undisturbed_weights(2, 9);
  for (int rank = 0; rank < 2; ++rank)
    CHECK((job.file("weights." + std::to_string(rank)) == weights[static_cast<std::size_t>(rank)]));
  CHECK(check_checkpoints(job.path("")) == std::vector<std::int64_t>{6, 8});
}
