#include "tapestry/core/internal/worker.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/core/threads.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace std::chrono_literals;

namespace {
constexpr auto kBound = 30s;

void finish(std::future<void> done) {
  REQUIRE(done.wait_for(kBound) == std::future_status::ready);
  done.get();
}
}  // namespace

TEST_CASE("a worker runs tasks in order on its own thread") {
  DeviceWorker& worker = device_worker(kCPU);
  CHECK(&worker == &device_worker(kCPU));
  std::vector<int> order;
  std::thread::id first, second;
  std::string name;
  std::vector<std::future<void>> done;
  for (int i = 0; i < 100; ++i) done.push_back(worker.run([&order, i] { order.push_back(i); }));
  done.push_back(worker.run([&] {
    first = std::this_thread::get_id();
    char text[16] = "";
    pthread_getname_np(pthread_self(), text, sizeof text);
    name = text;
  }));
  done.push_back(worker.run([&] { second = std::this_thread::get_id(); }));
  for (auto& d : done) finish(std::move(d));
  REQUIRE(order.size() == 100);
  for (int i = 0; i < 100; ++i) REQUIRE(order[static_cast<std::size_t>(i)] == i);
  CHECK(first == second);
  CHECK(first != std::this_thread::get_id());
  CHECK(name == "compute cpu:0");
}

TEST_CASE("on_workers runs one task per worker, and rethrows the first exception with the device") {
  const std::vector<Device> devices{kCPU};
  int ran = -1;
  on_workers(devices, [&](int i) {
    ran = i;
    CHECK(device_worker(kCPU).is_current());
  });
  CHECK(ran == 0);
  on_workers({}, [](int) { throw 1; });
  const auto throwing = [&](auto error) { on_workers(devices, [&](int) { throw error; }); };
  CHECK_THROWS_WITH(throwing(IndexError("[op] out of range")), "[op] out of range (on cpu:0)");
  CHECK_THROWS_AS(throwing(IndexError("x")), IndexError);
  CHECK_THROWS_WITH(throwing(std::logic_error("a user's")), "a user's (on cpu:0)");
  CHECK_THROWS_AS(throwing(std::logic_error("x")), std::nested_exception);
  CHECK_THROWS_AS(throwing(5), int);
  CHECK_THROWS_AS(on_workers(std::vector<Device>{"cpu:63"}, [](int) {}), DeviceError);
}

TEST_CASE("after a task has thrown, the worker runs further tasks") {
  DeviceWorker& worker = device_worker(kCPU);
  auto bad = worker.run([] { throw IndexError("[op] out of range"); });
  REQUIRE(bad.wait_for(kBound) == std::future_status::ready);
  CHECK_THROWS_AS(bad.get(), IndexError);
  bool ran = false;
  finish(worker.run([&] { ran = true; }));
  CHECK(ran);
}

TEST_CASE("wait_for of a task's future returns at its timeout") {
  std::promise<void> gate;
  auto done = device_worker(kCPU).run([&gate] { gate.get_future().wait_for(kBound); });
  CHECK(done.wait_for(20ms) == std::future_status::timeout);
  gate.set_value();
  finish(std::move(done));
}

TEST_CASE("a task has the submitter's context and the compute threads of one device") {
  const int saved = get_num_threads();
  set_num_threads(6);
  Context context = current_context();
  context.replica = 2;
  context.grad_enabled = false;
  Context seen, later;
  int threads = 0;
  {
    const ContextGuard guard(context);
    finish(device_worker(kCPU).run([&] {
      seen = current_context();
      threads = compute_threads();
      current_context().replica = 7;  // must not affect later tasks
    }));
  }
  finish(device_worker(kCPU).run([&] { later = current_context(); }));
  CHECK(seen.replica == 2);
  CHECK_FALSE(seen.grad_enabled);
  CHECK(later.replica == current_context().replica);
  CHECK(threads == 6 / device_count(DeviceType::cpu));
  set_num_threads(saved);
}

TEST_CASE("a task that is submitted from the worker's own thread runs immediately") {
  bool inner = false, current = false;
  finish(device_worker(kCPU).run([&] {
    DeviceWorker& worker = device_worker(kCPU);
    current = worker.is_current();
    worker.run([&] { inner = true; }).get();
  }));
  CHECK(inner);
  CHECK(current);
  CHECK_FALSE(device_worker(kCPU).is_current());
}

TEST_CASE("the captures of a task are freed before its future is ready") {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  auto done = device_worker(kCPU).run([held = std::move(held)] { static_cast<void>(*held); });
  REQUIRE(done.wait_for(kBound) == std::future_status::ready);
  CHECK(watch.expired());
}

TEST_CASE("several threads may submit concurrently") {
  std::atomic<int> sum{0}, failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        auto done = device_worker(kCPU).run([&sum] { sum.fetch_add(1); });
        if (i % 10 == 0 && done.wait_for(kBound) != std::future_status::ready) failed.fetch_add(1);
      }
    });
  for (auto& t : threads) t.join();
  finish(device_worker(kCPU).run([] {}));
  CHECK(sum == 800);
  CHECK(failed == 0);
}

TEST_CASE("device_worker throws for a device that does not exist") {
  CHECK_THROWS_AS(device_worker(Device("cpu:63")), DeviceError);
}

TEST_CASE("child: logical workers", "[.]") {
  set_num_threads(6);
  std::string shares;
  for (int d = 0; d < device_count(DeviceType::cpu); ++d)
    device_worker({DeviceType::cpu, d}).run([&] { shares += std::to_string(compute_threads()) + ","; }).get();
  std::printf("shares=%s;caller=%d;", shares.c_str(), compute_threads());
}

TEST_CASE("the compute threads are divided among the logical devices") {
  CHECK_THAT(run_child("child: logical workers", "TAPESTRY_LOGICAL_DEVICES=3").output,
             ContainsSubstring("shares=2,2,2,;caller=2;"));
  CHECK_THAT(run_child("child: logical workers", "TAPESTRY_LOGICAL_DEVICES=8").output,
             ContainsSubstring("shares=1,1,1,1,1,1,1,1,;caller=1;"));
}

TEST_CASE("child: stuck worker", "[.]") {
  static std::promise<void> never;
  device_worker(kCPU).run([] { never.get_future().wait(); });
  device_worker(kCPU).run([] { std::printf("ran;"); });  // queued behind the stuck task, so it is dropped
  std::printf("leaving;");
}

TEST_CASE("child: exit in a worker", "[.]") {
  device_worker(kCPU).run([] { std::exit(3); }).wait_for(kBound);
}

TEST_CASE("the program ends even if a worker is stuck or calls exit") {
  const auto begin = std::chrono::steady_clock::now();
  const ChildResult stuck = run_child("child: stuck worker");
  CHECK(std::chrono::steady_clock::now() - begin < kBound);
  CHECK(stuck.status == 0);
  CHECK_THAT(stuck.output, ContainsSubstring("leaving;") && !ContainsSubstring("ran;"));
  CHECK(run_child("child: exit in a worker").status == 3);
}
