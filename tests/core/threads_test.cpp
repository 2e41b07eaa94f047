#include "tapestry/core/threads.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/core/parallel.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

struct Threads {
  explicit Threads(int n) : saved(get_num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(saved); }
  int saved;
};

}  // namespace

TEST_CASE("the number of threads is set and checked") {
  const Threads four(4);
  CHECK(get_num_threads() == 4);
  CHECK(compute_threads() == 4);  // this is the first thread of the program that computes
  CHECK_THROWS_WITH(set_num_threads(0), ContainsSubstring("[set_num_threads] 0 threads"));
  CHECK_THROWS_AS(set_num_threads(-3), ValueError);
  CHECK_THROWS_WITH(set_num_threads(1025), ContainsSubstring("ask for 1 to 1024"));
  CHECK(get_num_threads() == 4);
  CHECK_THROWS_AS(ThreadShare(0), ValueError);
}

TEST_CASE("a second thread has one compute thread unless it has a ThreadShare") {
  const Threads four(4);
  REQUIRE(compute_threads() == 4);
  int alone = 0, shared = 0, inner = 0, after = 0;
  std::thread([&] {
    alone = compute_threads();
    {
      const ThreadShare share(3);
      shared = compute_threads();
      {
        const ThreadShare less(2);
        inner = compute_threads();
      }
      shared = std::min(shared, compute_threads());
    }
    after = compute_threads();
  }).join();
  CHECK(alone == 1);
  CHECK(shared == 3);
  CHECK(inner == 2);
  CHECK(after == 1);
  CHECK(compute_threads() == 4);
}

TEST_CASE("child: threads", "[.]") { std::printf("threads=%d;", get_num_threads()); }

TEST_CASE("child: first thread ends", "[.]") {
  set_num_threads(5);
  int first = 0, second = 0;
  std::thread([&] { first = compute_threads(); }).join();
  std::thread([&] { second = compute_threads(); }).join();
  std::printf("%d %d;", first, second);
}

TEST_CASE("OMP_NUM_THREADS sets the default") {
  const auto with = [](const std::string& value) {
    return run_child("child: threads", "OMP_NUM_THREADS=" + value).output;
  };
  const std::string cores = run_child("child: threads", "-u OMP_NUM_THREADS").output;
  CHECK_THAT(with("3"), ContainsSubstring("threads=3;"));
  CHECK_THAT(with("2,1"), ContainsSubstring("threads=2;"));
  CHECK_THAT(with("' 3'"), ContainsSubstring("threads=3;"));
  CHECK_THAT(with("100000"), ContainsSubstring("threads=1024;"));
  const std::string all = cores.substr(cores.find("threads="));
  for (const std::string bad : {"0", "-2", "abc", "3x", "99999999999"})
    CHECK_THAT(with(bad),
               ContainsSubstring("OMP_NUM_THREADS is \"" + bad + "\", which is not a number of threads") &&
                   ContainsSubstring(all.substr(0, all.find(';') + 1)));
  CHECK_THAT(with("''"),
             ContainsSubstring(all.substr(0, all.find(';') + 1)) && !ContainsSubstring("tapestry:"));
}

TEST_CASE("after the main thread has ended, the next thread that computes gets all compute threads") {
  CHECK_THAT(run_child("child: first thread ends").output, ContainsSubstring("5 5;"));
}

TEST_CASE("the chunks of a Partition cover each index once") {
  for (const std::int64_t n : {0, 1, 2, 63, 64, 65, 100, 127, 1000, 4097})
    for (const std::int64_t grain : {0, 1, 3, 64, 100, 5000})
      for (const int threads : {1, 2, 3, 7, 64}) {
        const Partition p(n, grain, threads);
        INFO(n << " " << grain << " " << threads);
        REQUIRE(p.count <= std::max(threads, 1));
        REQUIRE((p.count > 0) == (n > 0));
        std::int64_t next = 0;
        for (int i = 0; i < p.count; ++i) {
          REQUIRE(p.begin(i) == next);
          REQUIRE(p.end(i) > p.begin(i));
          if (grain >= 64) REQUIRE(p.begin(i) % 64 == 0);
          next = p.end(i);
        }
        REQUIRE(next == n);
      }
  CHECK(Partition(100, 100, 8).count == 1);
  CHECK(Partition(101, 100, 8).count == 2);
  CHECK(Partition(-5, 1, 8).count == 0);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / 2;
  CHECK(Partition(most, 1 << 15, 16).end(15) == most);
}

TEST_CASE("parallel_for visits each index once") {
  for (const int threads : {1, 2, 5}) {
    const Threads some(threads);
    for (const std::int64_t n : {1, 10, 1000, 12345}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(n));
      parallel_for(n, 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) visits[static_cast<std::size_t>(i)].fetch_add(1);
      });
      CHECK(std::all_of(visits.begin(), visits.end(), [](const auto& v) { return v.load() == 1; }));
    }
  }
  int calls = 0;
  parallel_for(0, 1, [&](std::int64_t, std::int64_t) { ++calls; });
  parallel_for(-1, 1, [&](std::int64_t, std::int64_t) { ++calls; });
  CHECK(calls == 0);
}

TEST_CASE("parallel_for with one chunk or one thread runs on the calling thread") {
  const Threads four(4);
  const auto alone = [](std::int64_t n, std::int64_t grain) {
    int calls = 0;
    std::thread::id id;
    parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
      calls += begin == 0 && end == n ? 1 : 100;
      id = std::this_thread::get_id();
    });
    return calls == 1 && id == std::this_thread::get_id();
  };
  CHECK(alone(100, 100));
  const ThreadShare one(1);
  CHECK(alone(1000000, 1));
}

TEST_CASE("a nested parallel_for runs on the calling thread") {
  const Threads four(4);
  REQUIRE(compute_threads() == 4);
  std::atomic<int> inner_calls{0}, outer_calls{0}, elsewhere{0}, shares{0};
  parallel_for(4, 1, [&](std::int64_t, std::int64_t) {
    outer_calls.fetch_add(1);
    shares.fetch_add(compute_threads());
    const auto id = std::this_thread::get_id();
    parallel_for(1000, 1, [&](std::int64_t begin, std::int64_t end) {
      inner_calls.fetch_add(begin == 0 && end == 1000);
      elsewhere.fetch_add(std::this_thread::get_id() != id);
    });
  });
  CHECK(outer_calls == 4);
  CHECK(shares == 4);
  CHECK(inner_calls == 4);
  CHECK(elsewhere == 0);
  CHECK(compute_threads() == 4);
}

TEST_CASE("parallel_for rethrows the exception of the lowest chunk after all chunks have ended") {
  const Threads four(4);
  std::atomic<int> ended{0};
  CHECK_THROWS_WITH(parallel_for(4, 1,
                                 [&](std::int64_t begin, std::int64_t) {
                                   ended.fetch_add(1);
                                   if (begin >= 1) throw std::runtime_error("chunk " + std::to_string(begin));
                                 }),
                    "chunk 1");
  CHECK(ended == 4);
  CHECK_THROWS_AS(parallel_for(1, 1, [](std::int64_t, std::int64_t) { throw ValueError("x"); }), ValueError);
  CHECK(compute_threads() == 4);  // the exception has restored the thread's state
  std::int64_t sum = 0;
  const ThreadShare one(1);
  parallel_for(10, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
  CHECK(sum == 10);
}
