// Tests the errors of collectives that do not complete. In every case all ranks must get an error in bounded
// time, which names the ranks and calls.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>

#include "tapestry/distributed/comm/internal/descriptor.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;

namespace {

constexpr GroupOptions kQuick{.timeout = 1s};
// Used by tests whose failure must be noticed long before this timeout.
constexpr GroupOptions kNever{.timeout = 60s};

Tensor zeros(const Shape& shape, DType dtype = DType::f32) {
  Tensor t = empty(shape, dtype);
  std::fill_n(static_cast<char*>(t.raw_data()), t.nbytes(), 0);
  return t;
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  Clock::time_point start_ = Clock::now();
};

/// Calls fn(transport) for all transports at the same time, because these tests mostly wait for timeouts.
/// Returns the results by transport. `fn` must not use Catch2's checks, which are not thread-safe.
template <class F>
auto on_all_transports(const F& fn) {
  std::vector<std::future<decltype(fn(transports()[0]))>> running;
  for (const Transport& transport : transports())
    running.push_back(std::async(std::launch::async, [&fn, &transport] { return fn(transport); }));
  std::vector<decltype(fn(transports()[0]))> results;
  for (auto& one : running) results.push_back(one.get());
  return results;
}

/// Like run_ranks(), on all transports at the same time.
std::vector<std::vector<Outcome>> run_ranks_everywhere(int size, const RankFunction& fn,
                                                       const GroupOptions& options) {
  return on_all_transports([&](const Transport& t) { return run_ranks(t, size, fn, options); });
}

/// Ranks 0 and 1 make one call, and rank 2 makes another. All three must get the error at once.
void check_mismatch(const RankFunction& most, const RankFunction& other,
                    const std::vector<std::string>& texts) {
  const Stopwatch watch;
  const auto all = run_ranks_everywhere(
      3,
      [&](const Group& group) {
        group->barrier("start").wait();
        (group->rank() == 2 ? other : most)(group);
      },
      kNever);
  CHECK(watch.seconds() < 10);
  for (const auto& outcomes : all)
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.distributed);
      CHECK_FALSE(outcome.timeout);
      CHECK_THAT(outcome.error, ContainsSubstring("not in the same call"));
      CHECK_THAT(outcome.error, ContainsSubstring("rank 2 called #2 "));
      CHECK_THAT(outcome.error, ContainsSubstring("ranks 0, 1 called #2 "));
      CHECK_THAT(outcome.error, ContainsSubstring("at diagnosis_test.cpp:"));
      for (const std::string& text : texts) CHECK_THAT(outcome.error, ContainsSubstring(text));
    }
}

/// A store that can be switched to fail or to hang.
class BadStore final : public Store {
 public:
  enum class Mood { good, failing, hanging };
  explicit BadStore(std::shared_ptr<Store> base) : base_(std::move(base)) {}
  ~BadStore() override { set_mood(Mood::good); }

  void set_mood(Mood mood) {
    const std::lock_guard lock(mutex_);
    mood_ = mood;
    changed_.notify_all();
  }
  void set(std::string_view key, std::string_view value) override { ask().set(key, value); }
  std::string get(std::string_view key, Milliseconds timeout) override { return ask().get(key, timeout); }
  std::optional<std::string> try_get(std::string_view key) override { return ask().try_get(key); }
  std::int64_t add(std::string_view key, std::int64_t amount) override { return ask().add(key, amount); }
  std::string compare_set(std::string_view key, std::optional<std::string_view> expected,
                          std::string_view desired) override {
    return ask().compare_set(key, expected, desired);
  }
  bool erase(std::string_view key) override { return ask().erase(key); }
  std::string str() const override { return "tcp 192.0.2.1:9"; }

 private:
  Store& ask() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 20s, [this] { return mood_ != Mood::hanging; });
    if (mood_ == Mood::failing) throw DistributedError("[store] connection refused");
    return *base_;
  }

  const std::shared_ptr<Store> base_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Mood mood_ = Mood::good;
};

}  // namespace

TEST_CASE("ranks in different calls get an error at once that shows the calls") {
  const auto sum = [](const Group& g) { g->all_reduce(zeros({4}), ReduceOp::sum, "loss").wait(); };
  SECTION("another operation") {
    check_mismatch(
        sum, [](const Group& g) { g->broadcast(zeros({4}), 1, "loss").wait(); },
        {"rank 2 called #2 broadcast(loss) float32 [4] root 1", "#2 all_reduce(loss) float32 [4] sum"});
  }
  SECTION("another shape") {
    check_mismatch(sum, [](const Group& g) { g->all_reduce(zeros({5}), ReduceOp::sum, "loss").wait(); },
                   {"rank 2 called #2 all_reduce(loss) float32 [5] sum", "all_reduce(loss) float32 [4] sum"});
  }
  SECTION("another shape of as many elements") {
    check_mismatch(sum,
                   [](const Group& g) {
                     g->all_reduce(zeros({2, 2}), ReduceOp::sum, "loss").wait();
                   },
                   {"[2, 2]", "[4]"});
  }
  SECTION("another dtype") {
    check_mismatch(
        sum, [](const Group& g) { g->all_reduce(zeros({4}, DType::f64), ReduceOp::sum, "loss").wait(); },
        {"float64 [4]", "float32 [4]"});
  }
  SECTION("another reduction") {
    check_mismatch(sum, [](const Group& g) { g->all_reduce(zeros({4}), ReduceOp::max, "loss").wait(); },
                   {"[4] max", "[4] sum"});
  }
  SECTION("another name") {
    check_mismatch(sum, [](const Group& g) { g->all_reduce(zeros({4}), ReduceOp::sum, "accuracy").wait(); },
                   {"all_reduce(accuracy)", "all_reduce(loss)"});
  }
  SECTION("another root") {
    check_mismatch([](const Group& g) { g->broadcast(zeros({4}), 0).wait(); },
                   [](const Group& g) { g->broadcast(zeros({4}), 2).wait(); }, {"root 2", "root 0"});
  }
  SECTION("a skipped collective") {
    check_mismatch(
        [](const Group& g) {
          g->all_reduce(zeros({4}), ReduceOp::sum, "bucket 1").wait();
          g->all_reduce(zeros({9}), ReduceOp::sum, "bucket 2").wait();
        },
        [](const Group& g) { g->all_reduce(zeros({9}), ReduceOp::sum, "bucket 2").wait(); },
        {"rank 2 called #2 all_reduce(bucket 2)", "ranks 0, 1 called #2 all_reduce(bucket 1)"});
  }
  SECTION("another list for a new group") {
    check_mismatch(
        [](const Group& g) {
          g->new_group({0, 1});
        },
        [](const Group& g) {
          g->new_group({1, 2});
        },
        {"new_group([1, 2])", "new_group([0, 1])"});
  }
}

TEST_CASE("calls with different sequence numbers are different calls") {
  for (const Transport& transport : transports()) {
    const auto ends = transport.connect(2);
    // Rank 1 sends a descriptor with a wrong sequence number. Rank 0 must report different calls.
    std::thread other([&] {
      const CollectiveRecord record{.sequence = 7, .group = "world", .op = Op::barrier, .site = "lost.cpp:1"};
      const Descriptor mine(record);
      std::vector<Descriptor> all(2);
      std::string text = record.str();
      const std::size_t length = text.size();
      std::vector<std::size_t> lengths(2);
      const Deadline deadline = Clock::now() + 20s;
      try {
        ends[1]->all_gather(&mine, all.data(), sizeof mine, deadline);
        ends[1]->all_gather(&length, lengths.data(), sizeof length, deadline);
        const std::size_t longest = std::max(lengths[0], lengths[1]);
        text.resize(longest);
        std::string texts(2 * longest, '\0');
        ends[1]->all_gather(text.data(), texts.data(), longest, deadline);
        ends[1]->barrier(deadline);
      } catch (const DistributedError&) {  // rank 0 checks the error
      }
    });
    const Group group = make_process_group(ends[0], memory_store(), kNever);
    CHECK_THROWS_WITH(group->barrier().wait(),
                      ContainsSubstring("rank 0 called #1 barrier; rank 1 called #7 barrier"));
    other.join();
  }
}

TEST_CASE("rank_list() sorts and abbreviates ranks") {
  CHECK(rank_list({3}) == "rank 3");
  CHECK(rank_list({2, 0, 1, 7}) == "ranks 0-2, 7");
  CHECK(rank_list({5, 4}) == "ranks 4, 5");
  CHECK(join({2, 0, 1}) == "2, 0, 1");
  CHECK(seconds(12'345ms) == "12.3 s");
  MessageDescriptor header(CollectiveRecord{.sequence = 3, .shape = {2, 3}, .name = std::string(200, 'x')});
  CHECK(header.str().starts_with("message 3, uint8 [2, 3] (xxx"));
  CHECK(header.fits(header));
  header.ndim = 99;
  CHECK(header.str() == "bytes that are not a message header");
}

TEST_CASE("after a failure all later calls fail, also those of sub-groups") {
  for (const Transport& transport : transports()) {
    std::atomic<int> told{0};
    const auto outcomes = run_ranks(
        transport, 2,
        [&](const Group& world) {
          const Group part = world->new_group({1, 0});
          Work first, second;
          bool queued = false;  // stays false if the first call fails before the second is queued
          try {
            first = world->broadcast(zeros({2}), world->rank(), "clash");
            second = world->barrier();
            queued = true;
            first.wait();
          } catch (const DistributedError& e) {
            for (const auto& again : {std::function<void()>([&] { queued ? second.wait() : first.wait(); }),
                                      {[&] { world->barrier(); }},
                                      {[&] { part->barrier(); }},
                                      {[&] { part->send(zeros({1}), 0 == part->rank()); }},
                                      {[&] { world->enqueue([] {}); }},
                                      {[&] { world->new_group({0}); }}}) {
              try {
                again();
              } catch (const DistributedError& later) {
                told += later.what() == std::string(e.what());
              }
            }
            throw;
          }
        },
        kNever);
    CHECK(told == 12);
    for (const Outcome& outcome : outcomes) CHECK_THAT(outcome.error, ContainsSubstring("broadcast(clash)"));
  }
}

TEST_CASE("a rank that does not come is named, and its own groups fail too") {
  const auto all = run_ranks_everywhere(
      3,
      [](const Group& group) {
        group->broadcast(zeros({3}), 0, "weights").wait();
        if (group->rank() != 1) {
          group->all_reduce(zeros({1024}), ReduceOp::sum, "bucket 1").wait();
          return;
        }
        // Rank 1 computes until the failure reaches it.
        for (const Stopwatch watch; watch.seconds() < 20;) {
          std::this_thread::sleep_for(10ms);
          group->enqueue([] {});
        }
      },
      kQuick);
  for (const auto& outcomes : all)
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.timeout);
      CHECK_THAT(outcome.error,
                 ContainsSubstring("#2 all_reduce(bucket 1) float32 [1024] sum at diagnosis_test.cpp"));
      CHECK_THAT(
          outcome.error,
          ContainsSubstring("rank 1 is in no call, the last was #1 broadcast(weights) diagnosis_test"));
      CHECK_THAT(outcome.error, ContainsSubstring("ranks 0, 2 wait in #2 all_reduce(bucket 1)"));
      // The line of rank 2 ends with the time that it has waited. The time is not checked, because rank 2 may
      // have made its call late.
      CHECK_THAT(outcome.error, ContainsSubstring("\n  rank 2  waits "));
      CHECK_THAT(outcome.error,
                 ContainsSubstring("\n  rank 1  runs its own code; its last call was #1 broadcast"));
    }
}

TEST_CASE("ranks in collectives of different groups are named") {
  const auto all = run_ranks_everywhere(
      2,
      [](const Group& world) {
        const Group part = world->new_group({0, 1});
        if (world->rank() == 0) part->all_reduce(zeros({1}), ReduceOp::sum, "a").wait();
        else world->broadcast(zeros({1}), 0, "b").wait();
      },
      kQuick);
  for (const auto& outcomes : all)
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.timeout);
      CHECK_THAT(outcome.error, ContainsSubstring("#2 broadcast(b)"));
      CHECK_THAT(outcome.error, ContainsSubstring("world.1#1 all_reduce(a)"));
      CHECK_THAT(outcome.error,
                 ContainsSubstring("\nranks 0 and 1 make the calls of the groups that they share in different "
                                   "orders: call 2 of these is world.1#1 all_reduce(a) float32 [1] sum at "
                                   "diagnosis_test.cpp:") &&
                     ContainsSubstring(" on rank 0 and #2 broadcast(b) float32 [1] root 0 at diagnosis_test.cpp:"));
    }
}

TEST_CASE("a rank that leaves early is named at once") {
  for (const Transport& transport : transports()) {
    const Stopwatch watch;
    const auto outcomes = run_ranks(
        transport, 3,
        [](const Group& group) {
          for (int step = 0; step < (group->rank() == 2 ? 3 : 4); ++step)
            group->all_reduce(zeros({8}), ReduceOp::sum, "step " + std::to_string(step)).wait();
        },
        kNever);
    CHECK(watch.seconds() < 10);
    CHECK(outcomes[2].error.empty());
    for (const int r : {0, 1}) {
      const std::string& error = outcomes[static_cast<std::size_t>(r)].error;
      CHECK_THAT(error, ContainsSubstring("rank 2 is gone, the last call was #3 all_reduce(step 2)"));
      CHECK_THAT(error, ContainsSubstring("ranks 0, 1 wait in #4 all_reduce(step 3)"));
      CHECK_THAT(error, ContainsSubstring("\n  rank 2  has left"));
    }
  }
}

TEST_CASE("a rank that does not report is called silent") {
  const Stopwatch watch;
  const auto errors = on_all_transports([](const Transport& transport) -> std::string {
    auto backends = transport.connect(2);  // rank 1 keeps its backend and does nothing, as if it were frozen
    const auto group = make_process_group(backends[0], memory_store(), kQuick);
    try {
      group->barrier("last").wait();
    } catch (const DistributedError& e) {
      return e.what();
    }
    return "it ended";
  });
  for (const std::string& error : errors) {
    // Rank 0 gets a TimeoutError, or the error of a connection that timed out first.
    CHECK_THAT(error, ContainsSubstring("rank 1 is silent"));
    CHECK_THAT(error, ContainsSubstring("rank 0 waits in #1 barrier(last)"));
    CHECK_THAT(error, ContainsSubstring("\n  rank 1  no report within 3.0 s"));
  }
  CHECK(watch.seconds() < 12);
}

TEST_CASE("abort() wakes waiting ranks") {
  for (const Transport& transport : transports()) {
    const Stopwatch watch;
    const auto outcomes = run_ranks(
        transport, 3,
        [](const Group& group) {
          if (group->rank() == 1) {
            std::this_thread::sleep_for(100ms);
            group->abort("the disk is full");
            group->barrier();
          } else if (group->rank() == 0) {
            group->all_reduce(zeros({4})).wait();
          } else {
            group->recv(zeros({4}), 1).wait();
          }
        },
        kNever);
    CHECK(watch.seconds() < 10);
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.distributed);
      CHECK_THAT(outcome.error, ContainsSubstring("rank 1 aborted the group: the disk is full"));
    }
  }
}

TEST_CASE("run_local_ranks rethrows the first exception, and aborts the other ranks") {
  std::atomic<int> told{0};
  const Stopwatch watch;
  CHECK_THROWS_WITH(run_local_ranks(
                        3,
                        [&](const Group& group) {
                          if (group->rank() == 2) throw IndexError("row 7 of 5");
                          try {
                            group->all_reduce(zeros({4})).wait();
                          } catch (const DistributedError& e) {
                            told += std::string(e.what()).find(
                                        "rank 2 aborted the group: it ended with an exception: "
                                        "row 7 of 5") != std::string::npos;
                            throw;
                          }
                        },
                        kNever),
                    ContainsSubstring("row 7 of 5"));
  CHECK(told == 2);
  CHECK_THROWS_AS(run_local_ranks(2, [](const Group&) { throw 7; }), int);
  CHECK(watch.seconds() < 10);
}

TEST_CASE("a missing message is a timeout") {
  const auto all = run_ranks_everywhere(
      2,
      [](const Group& group) {
        if (group->rank() == 0) group->recv(zeros({2, 3}), 1, 5, "activations").wait();
        else group->barrier().wait();
      },
      kQuick);
  for (const auto& outcomes : all)
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.timeout);
      CHECK_THAT(outcome.error, ContainsSubstring("#1 recv(activations) float32 [2, 3] from 1"));
    }
}

TEST_CASE("the error for a mismatched message shows both headers") {
  const auto wrong = [](const Tensor& sent, const std::string& text) {
    const auto all = run_ranks_everywhere(
        2,
        [&](const Group& group) {
          if (group->rank() == 0) group->recv(zeros({2, 3}), 1, 0, "activations").wait();
          else group->send(sent, 0, 0, "gradients").wait();
          group->barrier().wait();
        },
        kNever);
    for (const auto& outcomes : all)
      for (const Outcome& outcome : outcomes) {
        CHECK(outcome.distributed);
        CHECK_THAT(outcome.error, ContainsSubstring("rank 1 sent message 1, " + text + " (gradients)"));
        CHECK_THAT(outcome.error, ContainsSubstring("expects message 1, float32 [2, 3] (activations)"));
      }
  };
  wrong(zeros({3, 2}), "float32 [3, 2]");
  wrong(zeros({7}), "float32 [7]");
  wrong(zeros({2, 3}, DType::i32), "int32 [2, 3]");
}

TEST_CASE("the diagnosis ends in time even if the store does not answer") {
  struct Errors {
    std::string first;
    bool timeout, again;  // whether the first error and that of a later call are a TimeoutError
  };
  const auto fail_with = [](BadStore::Mood mood) -> Errors {
    auto backends = local_backends(2);
    const auto store = std::make_shared<BadStore>(memory_store());
    auto group = make_process_group(backends[0], store, kQuick);
    Work work = group->all_reduce(zeros({4}), ReduceOp::sum, "loss");
    store->set_mood(mood);
    Errors errors{};
    try {
      work.wait();
    } catch (const DistributedError& e) {
      errors.first = e.what();
      errors.timeout = dynamic_cast<const TimeoutError*>(&e) != nullptr;
    }
    try {
      group->barrier();
    } catch (const TimeoutError&) {
      errors.again = true;
    }
    group.reset();  // the destructor is bounded too
    store->set_mood(BadStore::Mood::good);
    return errors;
  };
  const Stopwatch watch;
  auto hanging = std::async(std::launch::async, fail_with, BadStore::Mood::hanging);
  const Errors refused = fail_with(BadStore::Mood::failing), silent = hanging.get();
  CHECK(watch.seconds() < 12);
  CHECK_THAT(refused.first, ContainsSubstring("connection refused"));
  CHECK_THAT(silent.first, ContainsSubstring("did not answer"));
  for (const Errors& errors : {refused, silent}) {
    CHECK_THAT(errors.first,
               ContainsSubstring("the store at tcp 192.0.2.1:9") && ContainsSubstring("\n  rank 0  waits "));
    CHECK(errors.timeout);
    CHECK(errors.again);
  }
}

TEST_CASE("a failure is diagnosed locally if the store's host has died") {
  auto server = start_store_server("", 0);
  auto backends = local_backends(2);
  std::vector<Group> groups;
  for (int r = 0; r < 2; ++r)
    groups.push_back(make_process_group(std::exchange(backends[static_cast<std::size_t>(r)], nullptr),
                                        tcp_store("127.0.0.1", server->port()), kQuick));
  server.reset();
  const Stopwatch watch;
  CHECK_THROWS_WITH(groups[0]->barrier("last").wait(), ContainsSubstring("the store at tcp 127.0.0.1:") &&
                                                           ContainsSubstring("\n  rank 0  waits "));
  groups.clear();
  CHECK(watch.seconds() < 15);
}

TEST_CASE("a store that disappears does not disturb collectives") {
  auto backends = local_backends(1);
  const auto store = std::make_shared<BadStore>(memory_store());
  store->set_mood(BadStore::Mood::failing);
  auto group = make_process_group(backends[0], store, kQuick);
  group->barrier().wait();
  group.reset();

  backends = local_backends(2);
  std::vector<std::thread> ranks;
  std::atomic<int> good{0};
  for (int r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] {
      const auto g = make_process_group(backends[static_cast<std::size_t>(r)], store, kQuick);
      for (int i = 0; i < 3; ++i) {
        g->barrier().wait();
        std::this_thread::sleep_for(100ms);
      }
      ++good;
    });
  for (std::thread& rank : ranks) rank.join();
  CHECK(good == 2);
}

TEST_CASE("a slow call is warned of once") {
  std::ostringstream said;
  std::streambuf* const standard = std::cerr.rdbuf(said.rdbuf());
  try {
    run_ranks_well(transports()[0], 2,
                   [](const Group& group) {
                     if (group->rank() == 1) std::this_thread::sleep_for(400ms);
                     group->all_reduce(zeros({4}), ReduceOp::sum, "late").wait();
                     group->all_reduce(zeros({4}), ReduceOp::sum, "in time").wait();
                   },
                   {.timeout = 10s, .warn_after = 50ms});
  } catch (...) {
    std::cerr.rdbuf(standard);
    throw;
  }
  std::cerr.rdbuf(standard);
  const std::string text = said.str();
  CHECK_THAT(text, ContainsSubstring("rank 0 has waited 0.") &&
                       ContainsSubstring("in #1 all_reduce(late) float32 [4]") &&
                       ContainsSubstring("error after 10.0 s"));
  CHECK(text.find("rank 1") == std::string::npos);
  CHECK(text.find("in time") == std::string::npos);
  CHECK(text.find("late") == text.rfind("late"));
}
