// Tests ranks that die or stop while others wait for them over Gloo, with and without shared memory.
// Deadlines are long, so that an early error proves that the failure was detected.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "tapestry/distributed/comm/p2p_op.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/processes.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;

namespace {

std::string now() { return std::to_string(Clock::now().time_since_epoch().count()); }

// The time since the parent sent the signal, by the monotonic clock that all processes share.
double seconds_since_strike(Store& store) {
  const auto then = Clock::duration(std::stoll(store.get("struck", 10s)));
  return std::chrono::duration<double>(Clock::now().time_since_epoch() - then).count();
}

// Tells the parent, after `steps` rounds, that this rank works.
void report_at(Store& store, int step, int steps) {
  if (step == steps) store.add("working", 1);
}

void wait_until_working(Store& store, int size) {
  const Deadline limit = Clock::now() + 30s;
  while (store.add("working", 0) < size && Clock::now() < limit) std::this_thread::sleep_for(1ms);
  REQUIRE(store.add("working", 0) == size);
}

std::set<std::string> files_in_shm() {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none))
    if (entry.path().filename().string().find("tapestry") != std::string::npos) names.insert(entry.path());
  return names;
}

// Runs two jobs, one with shared memory and one without. Sends a signal to rank 1 of each job while all ranks
// communicate without end. The other ranks check their errors. The jobs run at the same time, because they
// mostly wait.
void strike(const char* child, int size, int signal, std::chrono::microseconds delay,
            RankProcesses::Variables variables = {}) {
  variables.emplace_back("TAPESTRY_SHARED_MEMORY", "");
  {
    std::deque<RankProcesses> jobs;
    for (const char* shared : {"1", "0"}) {
      variables.back().second = shared;
      jobs.emplace_back(child, size, variables);
    }
    for (RankProcesses& ranks : jobs) wait_until_working(ranks.store(), size);
    std::this_thread::sleep_for(delay);
    for (RankProcesses& ranks : jobs) {
      ranks.store().set("struck", now());
      ranks.send_signal(1, signal);
    }
    for (RankProcesses& ranks : jobs)
      for (int rank = 0; rank < size; ++rank) {
        if (rank == 1) continue;
        const bool shared = &ranks == &jobs.front();
        const Ended& end = ranks.wait(rank);
        CAPTURE(child, shared, rank, delay.count(), end.output, end.exit_code, end.signal);
        CHECK(end.well());
      }
  }
  CHECK(files_in_shm().empty());  // checked when all processes have ended, so no file may be left
}

}  // namespace

TEST_CASE("child whose peer dies", "[.]") {
  const auto self = child_rank();
  const bool broadcasts = std::getenv("TEST_BROADCAST");
  const auto backend = gloo_backend(self.store, self.rank, self.size, 20s);
  std::vector<float> x(broadcasts ? 8'000'000 : 1'000'000);
  std::string error;
  for (int step = 0; error.empty(); ++step) {
    report_at(*self.store, step, 3);
    const Deadline deadline = Clock::now() + 50s;
    try {
      // The messages have 32 MB, so that one is almost always in flight when rank 1 dies.
      if (broadcasts) backend->broadcast(x.data(), x.size() * sizeof(float), 1, deadline);
      else
        backend->all_reduce(x.data(), static_cast<std::int64_t>(x.size()), DType::f32, ReduceOp::sum,
                            deadline);
    } catch (const TimeoutError& e) {
      FAIL("a timeout: " << e.what());
    } catch (const DistributedError& e) {
      error = e.what();
    }
  }
  CHECK(seconds_since_strike(*self.store) < 5);
  CHECK_THAT(error, ContainsSubstring("lost its connection to rank "));
  CHECK_THROWS_AS(backend->barrier(Clock::now() + 50s), DistributedError);
}

TEST_CASE("kill -9 of a rank during a collective is an error on the other ranks at once") {
  if (!has_gloo()) return;
  for (const int delay : {0, 700, 3100}) {
    strike("child whose peer dies", 3, SIGKILL, std::chrono::microseconds(delay));
    strike("child whose peer dies", 2, SIGKILL, std::chrono::microseconds(delay), {{"TEST_BROADCAST", "1"}});
  }
}

TEST_CASE("child whose peer stops", "[.]") {
  const auto self = child_rank();
  const auto backend = gloo_backend(self.store, self.rank, self.size, 20s);
  std::vector<float> x(100'000);
  for (int step = 0;; ++step) {
    report_at(*self.store, step, 3);
    const auto start = Clock::now();
    try {
      backend->all_reduce(x.data(), 100'000, DType::f32, ReduceOp::sum, start + 2s);
    } catch (const DistributedError& e) {
      // The rank that times out first throws TimeoutError and closes its connections. So the other rank may
      // throw another DistributedError before its deadline.
      const bool timeout = dynamic_cast<const TimeoutError*>(&e);
      if (timeout) {
        CHECK(Clock::now() - start >= 2s);
        CHECK_THAT(e.what(), ContainsSubstring("until the deadline"));
      } else {
        CHECK_THAT(e.what(), ContainsSubstring("lost its connection to rank "));
      }
      CHECK(Clock::now() - start < 10s);
      return;
    }
  }
}

TEST_CASE("a stopped rank is a timeout on the other ranks, at the deadline") {
  if (!has_gloo()) return;
  strike("child whose peer stops", 3, SIGSTOP, 0us);
}

TEST_CASE("child of a group whose peer dies", "[.]") {
  const auto self = child_rank();
  const bool stops = std::getenv("TEST_STOPS");
  const char* const lists = std::getenv("TEST_LISTS");
  const std::string op = lists ? lists : "all_reduce";  // empty: messages
  std::string error;
  {
    const auto group =
        make_process_group(gloo_backend(prefix_store("gloo/", self.store), self.rank, self.size, 20s),
                           prefix_store("group/", self.store), {.timeout = stops ? 2s : 50s});
    Tensor x = empty({100'000}), large = empty({100'000 * self.size}), few = empty({5});
    for (const Tensor& t : {x, large}) std::fill_n(t.data<float>(), t.numel(), 1.0f);
    for (int step = 0; error.empty(); ++step) {
      report_at(*self.store, step, 3);
      try {
        const std::vector<Tensor> parts = {x, x.narrow(0, 0, 5)},
                                  wholes = {large, large.narrow(0, 0, 5 * self.size)};
        if (op == "all_gather") group->all_gather(wholes, parts, "gradients").wait();
        else if (op == "reduce_scatter")
          group->reduce_scatter(std::vector<Tensor>{x, few}, wholes, ReduceOp::mean, "gradients").wait();
        else if (op == "all_to_all") {
          std::vector<Tensor> outs;
          for (int i = 0; i < 3; ++i)
            outs.push_back(large.narrow(0, 100'000 * i, self.rank == 2 ? 5 : 100'000));
          group->all_to_all(outs, {x, x, x.narrow(0, 0, 5)}, "gradients").wait();
        } else if (op.empty()) {
          const int next = (self.rank + 1) % self.size, previous = (self.rank + self.size - 1) % self.size;
          group->batch_isend_irecv({P2POp::send(x, next), P2POp::recv(large.narrow(0, 0, 100'000), previous)},
                                   "gradients");
        } else group->all_reduce(x, ReduceOp::mean, "gradients").wait();
      } catch (const DistributedError& e) {
        error = e.what();
      }
    }
    CHECK(seconds_since_strike(*self.store) < 20);
    std::puts(error.c_str());  // the parent shows it if a check fails
    CHECK_THAT(error, ContainsSubstring(op + "(gradients)"));
    CHECK_THAT(error, ContainsSubstring("rank 1"));
  }
  CHECK(seconds_since_strike(*self.store) < 30);
}

TEST_CASE("a group over gloo names the rank that died or stopped") {
  if (!has_gloo()) return;
  strike("child of a group whose peer dies", 3, SIGKILL, 0us);
  strike("child of a group whose peer dies", 3, SIGSTOP, 0us, {{"TEST_STOPS", "1"}});
  for (const char* op : {"all_gather", "reduce_scatter", "all_to_all", ""})
    strike("child of a group whose peer dies", 3, SIGKILL, 0us, {{"TEST_LISTS", op}});
}
