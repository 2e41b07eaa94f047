// Tests rendezvous(), and init_process_group() with every init_method.
#include "tapestry/distributed/comm/init.h"

#include <filesystem>
#include <thread>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/distributed/comm/internal/rendezvous.h"
#include "tests/core/child.h"
#include "tests/distributed/environment_support.h"
#include "tests/distributed/store_support.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/files.h"
#include "tests/support/ports.h"

using namespace tapestry;
using namespace tapestry::distributed;
using tests::JobVariables;
using tests::kSoon;
using tests::message_of;
using tests::Process;
using tests::since;
using Variables = std::map<std::string, std::string>;

namespace {

/// Calls rendezvous() in threads. Returns the error text of each, "" for none.
std::vector<std::string> meet(const std::shared_ptr<Store>& store, const std::vector<int>& ranks,
                              const std::vector<int>& sizes, Milliseconds timeout) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] {
      errors[i] = message_of<DistributedError>([&] { rendezvous(*store, ranks[i], sizes[i], timeout); });
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

bool has_gloo() {
  try {
    gloo_backend(memory_store(), 0, 1, Milliseconds(5000));
    return true;
  } catch (const DistributedError& error) {
    WARN("skipped, without Gloo: " << error.what());
    return false;
  }
}

/// A function that a rank runs in its own process, after it has joined, reduced its rank and checked the sum.
using Body = std::function<void(ProcessGroup&)>;
std::vector<std::unique_ptr<Process>> start_ranks(
    int size, const Variables& variables, const InitOptions& options = {},
    const Body& more = [](ProcessGroup&) {}) {
  std::vector<std::unique_ptr<Process>> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(std::make_unique<Process>([&, r] {
      Variables own = variables;
      const bool by_options = options.world_size > 0;
      if (!by_options) own.insert({{"RANK", std::to_string(r)}, {"WORLD_SIZE", std::to_string(size)}});
      own.insert({"TAPESTRY_TIMEOUT_S", "20"});
      const JobVariables set(own);
      InitOptions mine = options;
      if (by_options) mine.rank = r;
      const auto group = init_process_group(mine);
      Tensor t = full({3}, r + 1.0);
      group->all_reduce(t).wait();
      const bool right = t.select(0, 2).item<float>() == static_cast<float>(size * (size + 1) / 2);
      if (!right || group->rank() != r || group->size() != size) throw Error("wrong sum or rank");
      more(*group);
    }));
  }
  return ranks;
}

bool all_end_well(const std::vector<std::unique_ptr<Process>>& ranks) {
  bool well = true;
  for (const auto& rank : ranks) well = rank->join() == 0 && well;
  return well;
}

}  // namespace

TEST_CASE("rendezvous() returns when all ranks have come") {
  for (const int size : {1, 2, 5}) {
    const auto store = memory_store();
    std::vector<int> ranks;
    for (int r = size - 1; r >= 0; --r) ranks.push_back(r);
    for (const std::string& error : meet(store, ranks, std::vector<int>(ranks.size(), size), kSoon))
      CHECK(error == "");
  }
}

TEST_CASE("missing ranks are named at the deadline") {
  const auto begin = Clock::now();
  for (const std::string& error : meet(memory_store(), {0, 2}, {5, 5}, Milliseconds(200)))
    CHECK_THAT(error,
               ContainsSubstring("3 of 5 ranks did not come (1, 3, 4)") && ContainsSubstring("200 ms"));
  CHECK(since(begin) >= Milliseconds(200));
  CHECK(since(begin) < Milliseconds(1200));
  const auto store = memory_store();
  CHECK_THROWS_AS(rendezvous(*store, 0, 2, Milliseconds(10)), TimeoutError);
  CHECK_THAT(
      meet(memory_store(), {0}, {100}, Milliseconds(10))[0],
      ContainsSubstring("99 of 100 ranks did not come (1, 2, ") && ContainsSubstring(", 16 and more)"));
}

namespace {

/// A store to which each request takes a millisecond, as over a network.
class SlowStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override { wait(), base_->set(key, value); }
  std::string get(std::string_view key, Milliseconds timeout) override {
    return wait(), base_->get(key, timeout);
  }
  std::optional<std::string> try_get(std::string_view key) override { return wait(), base_->try_get(key); }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return wait(), base_->add(key, amount);
  }
  std::string compare_set(std::string_view key, std::optional<std::string_view> expected,
                          std::string_view desired) override {
    return wait(), base_->compare_set(key, expected, desired);
  }
  bool erase(std::string_view key) override { return wait(), base_->erase(key); }
  std::string str() const override { return base_->str(); }

 private:
  static void wait() { std::this_thread::sleep_for(Milliseconds(1)); }
  const std::shared_ptr<Store> base_ = memory_store();
};

}  // namespace

TEST_CASE("a million missing ranks do not delay the error") {
  const auto store = std::make_shared<SlowStore>();
  // These ranks came, and the search for the missing ones finds them first.
  for (int rank = 1; rank < 3'000; ++rank) store->set("rank/" + std::to_string(rank), "came");
  store->add("arrived", 2'999);
  const auto begin = Clock::now();
  CHECK_THAT(meet(store, {0}, {1'000'000}, Milliseconds(100))[0],
             ContainsSubstring("997000 of 1000000 ranks did not come"));
  CHECK(since(begin) < Milliseconds(3000));
}

TEST_CASE("duplicate ranks and different world sizes are errors on all ranks at once") {
  const auto begin = Clock::now();
  for (const std::string& error : meet(memory_store(), {0, 1, 1}, {3, 3, 3}, kSoon))
    CHECK_THAT(error, ContainsSubstring("two processes have rank 1") &&
                          ContainsSubstring("process " + std::to_string(getpid())));
  for (const std::string& error : meet(memory_store(), {0, 1}, {2, 3}, kSoon))
    CHECK_THAT(error, ContainsSubstring("WORLD_SIZE"));
  CHECK(since(begin) < Milliseconds(2000));
  // If one process too many comes after the rendezvous, only that process fails.
  const auto store = memory_store();
  for (const std::string& error : meet(store, {0, 1}, {2, 2}, kSoon)) CHECK(error == "");
  CHECK_THROWS_WITH(rendezvous(*store, 0, 2, kSoon), ContainsSubstring("rank 0"));
}

TEST_CASE("a world of one needs no network") {
  const Variables cases[] = {
      {},
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}},
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "no-such-host.invalid"}, {"MASTER_PORT", "1"}},
  };
  for (const Variables& variables : cases) {
    const JobVariables set(variables);
    for (const char* backend : {"", "gloo", "nccl"}) {
      const auto group = init_process_group({.backend = backend});
      CHECK(group->rank() == 0);
      CHECK(group->size() == 1);
      const Tensor t = full({2}, 3.0);
      group->all_reduce(t).wait();
      CHECK(t.select(0, 1).item<float>() == 3.0f);
      group->store().set("k", "v");
      CHECK(group->store().get("k", kSoon) == "v");
    }
  }
  const JobVariables set(Variables{{"TAPESTRY_TIMEOUT_S", "7"}});
  CHECK(init_process_group()->timeout() == Milliseconds(7000));
  CHECK(init_process_group({.group = {.timeout = Milliseconds(1500)}})->timeout() == Milliseconds(1500));
  CHECK(init_process_group({.rank = 0, .world_size = 1})->size() == 1);
  CHECK(init_process_group({.init_method = "tcp://h:1", .rank = 0, .world_size = 1})->size() == 1);
}

TEST_CASE("invalid options and variables are errors that say what to do") {
  const auto error = [](const Variables& variables, const InitOptions& options) {
    const JobVariables set(variables);
    return message_of<ValueError>([&] { init_process_group(options); });
  };
  CHECK_THAT(error({}, {.backend = "mpi"}), ContainsSubstring("backend \"mpi\""));
  CHECK_THAT(error({}, {.backend = "local"}), ContainsSubstring("run_local_ranks"));
  for (const char* method : {"http://h:1", "", "env", "file://relative", "file:/x"})
    CHECK_THAT(error({}, {.init_method = method}), ContainsSubstring("file:///path"));
  CHECK_THAT(error({}, {.init_method = "tcp://h:1"}), ContainsSubstring("rank and world_size"));
  CHECK_THAT(error({}, {.init_method = "file:///tmp/x"}), ContainsSubstring("rank and world_size"));
  for (const char* place : {"h", "h:", ":1", "h:0", "h:65536", "h:1x", "::1:5", "h:1/path"})
    CHECK_THAT(error({}, {.init_method = std::string("tcp://") + place, .rank = 0, .world_size = 2}),
               ContainsSubstring("use tcp://host:port"));
  CHECK_THAT(error({}, {.rank = 2, .world_size = 2}), ContainsSubstring("rank 2 and world_size 2"));
  CHECK_THAT(error({}, {.rank = 1}), ContainsSubstring("set both"));
  CHECK_THAT(error({}, {.world_size = 2}), ContainsSubstring("set both"));
  const Variables two = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  CHECK_THAT(error(two, {.rank = 1, .world_size = 2}), ContainsSubstring("remove rank and world_size"));
  CHECK_THAT(error(two, {}), ContainsSubstring("MASTER_PORT"));
  CHECK_THAT(error({}, {.rank = 0, .world_size = 2}), ContainsSubstring("MASTER_PORT"));
  CHECK_THAT(error({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, {}), ContainsSubstring("RANK is \"x\""));
  CHECK_THAT(error({{"TAPESTRY_TIMEOUT_S", "soon"}}, {}),
             ContainsSubstring("TAPESTRY_TIMEOUT_S is \"soon\""));
  // Ranks on two hosts must be refused without a secret, and without an address.
  Variables hosts = {{"RANK", "0"},
                     {"WORLD_SIZE", "2"},
                     {"LOCAL_RANK", "0"},
                     {"LOCAL_WORLD_SIZE", "1"},
                     {"MASTER_PORT", "1"}};
  CHECK_THAT(error(hosts, {}), ContainsSubstring("MASTER_ADDR"));
  hosts["MASTER_ADDR"] = "0.0.0.0";
  CHECK_THAT(error(hosts, {}), ContainsSubstring("TAPESTRY_SECRET"));
  const Variables slurm = {{"SLURM_PROCID", "0"},  {"SLURM_STEP_ID", "0"},
                           {"SLURM_JOB_ID", "1"},  {"SLURM_NTASKS", "2"},
                           {"SLURM_LOCALID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}};
  for (const auto& [name, value] : slurm) setenv(name.c_str(), value.c_str(), 1);
  CHECK_THAT(error({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}}, {}),
             ContainsSubstring("scontrol show hostnames"));
  for (const auto& [name, value] : slurm) unsetenv(name.c_str());
}

TEST_CASE("rank 0 alone and a rank without rank 0 time out at the deadline") {
  const GroupOptions quick{.timeout = Milliseconds(300)};
  const int port = tests::free_port();
  const Variables job = {
      {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port)}};
  for (const char* rank : {"0", "1"}) {
    Variables own = job;
    own["RANK"] = rank;
    const JobVariables set(own);
    const auto begin = Clock::now();
    const std::string message = message_of<TimeoutError>([&] { init_process_group({.group = quick}); });
    CHECK_THAT(message,
               ContainsSubstring(rank[0] == '0' ? "1 of 2 ranks did not come (1)" : "no store answered") &&
                   ContainsSubstring("127.0.0.1:" + std::to_string(port)));
    CHECK(since(begin) >= Milliseconds(50));
    CHECK(since(begin) < Milliseconds(1300));
  }
  const tests::TempDir folder;
  const JobVariables none(Variables{});
  CHECK_THROWS_WITH(
      init_process_group(
          {.init_method = "file://" + (folder / "store"), .rank = 1, .world_size = 3, .group = quick}),
      ContainsSubstring("2 of 3 ranks did not come (0, 2)"));
}

TEST_CASE("processes join by environment variables, an address or a file") {
  if (!has_gloo()) return;
  const std::string port = std::to_string(tests::free_port());
  const Variables by_variables = {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", port}};
  CHECK(all_end_well(start_ranks(3, by_variables)));
  CHECK(all_end_well(start_ranks(2, by_variables)));  // the port is free again after the first job
  Variables with_secret = by_variables;
  with_secret["TAPESTRY_SECRET"] = "s3cret";
  CHECK(all_end_well(start_ranks(2, with_secret)));
  CHECK(all_end_well(
      start_ranks(2, {}, {.backend = "gloo", .init_method = "tcp://127.0.0.1:" + port, .world_size = 2})));
  const tests::TempDir folder;
  const InitOptions by_file{.init_method = "file://" + (folder / "store"), .world_size = 2};
  CHECK(all_end_well(start_ranks(2, {}, by_file)));
}

TEST_CASE("child: ranks that share a GPU", "[.]") {
  const tapestry::testing::FakeGpus one(1);
  REQUIRE(device_count(DeviceType::cuda) == 2);
  const Variables variables = {{"MASTER_ADDR", "localhost"},
                               {"MASTER_PORT", std::to_string(tests::free_port())}};
  CHECK(all_end_well(start_ranks(2, variables, {}, [](ProcessGroup& group) {
    if (group.backend() != "gloo") throw Error("joined by " + std::string(group.backend()));
  })));
}

TEST_CASE("NCCL is chosen only if each rank has its own GPU, not a logical device") {
  if (!has_gloo()) return;
  const ChildResult child = run_child("child: ranks that share a GPU", "TAPESTRY_LOGICAL_DEVICES=2");
  INFO(child.output);
  CHECK(child.status == 0);
}

TEST_CASE("restarts of a job can share the launcher's store") {
  if (!has_gloo()) return;
  const auto server = start_store_server("127.0.0.1", 0, {.secret = "s3cret"});
  Variables job = {{"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", std::to_string(server->port())},
                   {"TAPESTRY_SECRET", "s3cret"},
                   {"TAPESTRY_LAUNCHER", "tapestry-run"},
                   {"TAPESTRY_STORE_RUNNING", "1"}};
  for (const char* restart : {"0", "1", "2"}) {
    job["TAPESTRY_RESTART"] = restart;
    // Each process joins two groups, which must not share keys of the store.
    CHECK(all_end_well(start_ranks(2, job, {}, [](ProcessGroup& first) {
      const auto second = init_process_group();
      second->barrier().wait();
      first.barrier().wait();
    })));
  }
}

TEST_CASE("the store uses the next port if torchrun's agent listens at MASTER_PORT") {
  if (!has_gloo()) return;
  const auto agent = start_store_server("127.0.0.1", 0, {.secret = "PyTorch's"});
  const Variables job = {{"MASTER_ADDR", "localhost"},
                         {"MASTER_PORT", std::to_string(agent->port())},
                         {"TORCHELASTIC_RUN_ID", "1"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TAPESTRY_PORT", std::to_string(tests::free_port())}};
  CHECK(all_end_well(start_ranks(2, job)));
}

TEST_CASE("rank 0's store stays until the others have ended") {
  if (!has_gloo()) return;
  const Variables job = {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(tests::free_port())}};
  const auto begin = Clock::now();
  CHECK(all_end_well(start_ranks(2, job, {}, [](ProcessGroup& group) {
    if (group.rank() == 0) return;
    std::this_thread::sleep_for(Milliseconds(400));
    group.store().set("late", "v");
    if (group.store().get("late", kSoon) != "v") throw Error("lost");
  })));
  CHECK(since(begin) < Milliseconds(4500));  // rank 0 must stop waiting when the other ranks have ended
}
