// Tests prefix_store(), and on each kind of store the behaviour that all stores have in common.
#include "tapestry/distributed/comm/store.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/distributed/store_support.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using tests::kSoon;
using tests::message_of;
using tests::since;

namespace {

/// A store, and a handle for each rank.
struct Kind {
  std::string name;
  std::function<std::shared_ptr<Store>()> handle;
};

/// One new empty store of each kind.
class Kinds {
 public:
  Kinds() {
    const auto memory = memory_store();
    kinds_.push_back({"memory", [memory] { return memory; }});
    kinds_.push_back({"file", [this] { return file_store(folder_ / "store"); }});
    const auto base = memory_store();
    kinds_.push_back({"prefix", [base] { return prefix_store("p/", base); }});
    kinds_.push_back({"tcp", [this] { return tcp_store("127.0.0.1", server_->port(), kOptions); }});
  }
  auto begin() const { return kinds_.begin(); }
  auto end() const { return kinds_.end(); }

 private:
  static inline const TcpOptions kOptions{.secret = "of this test"};
  tests::TempDir folder_;
  std::unique_ptr<StoreServer> server_ = start_store_server("127.0.0.1", 0, kOptions);
  std::vector<Kind> kinds_;
};

void in_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (auto& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("a value with any bytes is visible through every handle") {
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const auto a = kind.handle(), b = kind.handle();
    CHECK(a->try_get("k") == std::nullopt);
    a->set("k", "first");
    CHECK(b->try_get("k") == "first");
    b->set("k", "second, longer than what a string holds without memory of its own");
    CHECK(a->get("k", kSoon) == "second, longer than what a string holds without memory of its own");
    a->set("k", "");
    CHECK(b->try_get("k") == "");
    std::string all(256, '\0');
    std::iota(all.begin(), all.end(), '\0');
    a->set(all, all + all);
    CHECK(b->try_get(all) == all + all);
    CHECK(b->try_get(all.substr(1)) == std::nullopt);
    CHECK(a->try_get(std::string("k\0", 2)) == std::nullopt);
    a->set("", "the empty key");
    CHECK(b->get("", kSoon) == "the empty key");
    CHECK_FALSE(a->str().empty());
  }
}

TEST_CASE("erase() removes a key and returns true once") {
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const auto a = kind.handle(), b = kind.handle();
    CHECK_FALSE(a->erase("k"));
    a->set("k", "v");
    CHECK(b->erase("k"));
    CHECK_FALSE(a->erase("k"));
    CHECK(a->try_get("k") == std::nullopt);
    CHECK(a->add("k", 2) == 2);
    CHECK(b->erase("k"));
    CHECK(b->add("k", 3) == 3);
  }
}

TEST_CASE("add() counts in decimal, and refuses other values and overflow") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const auto store = kind.handle();
    CHECK(store->add("n", 5) == 5);
    CHECK(store->add("n", -7) == -2);
    CHECK(store->add("n", 0) == -2);
    CHECK(store->try_get("n") == "-2");
    store->set("n", "40");
    CHECK(store->add("n", 2) == 42);
    for (const char* text : {"", "x", "4x", " 4", "4 ", "4.0", "99999999999999999999", "--1"}) {
      store->set("text", text);
      CHECK_THROWS_AS(store->add("text", 1), ValueError);
      CHECK(store->try_get("text") == text);
    }
    CHECK_THROWS_WITH(store->add("text", 1), ContainsSubstring("text") && ContainsSubstring("--1"));
    CHECK(store->add("most", kMost) == kMost);
    CHECK_THROWS_AS(store->add("most", 1), ValueError);
    CHECK(store->add("most", 0) == kMost);
    CHECK(store->add("least", kLeast) == kLeast);
    CHECK_THROWS_AS(store->add("least", -1), ValueError);
    CHECK(store->add("least", kMost) == -1);
  }
}

TEST_CASE("compare_set() sets a key only if it holds the expected value, and returns the value") {
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const auto store = kind.handle();
    CHECK(store->compare_set("k", "", "x") == "");  // a missing key is not an empty value
    CHECK(store->try_get("k") == std::nullopt);
    CHECK(store->compare_set("k", std::nullopt, "a") == "a");
    CHECK(store->compare_set("k", std::nullopt, "b") == "a");
    CHECK(store->compare_set("k", "b", "c") == "a");
    CHECK(store->compare_set("k", "a", "c") == "c");
    CHECK(store->compare_set("k", "c", "") == "");
    CHECK(store->compare_set("k", std::nullopt, "d") == "");  // an empty value is not a missing key
    CHECK(store->compare_set("k", "", "d") == "d");
  }
}

TEST_CASE("keys and values may have exactly the limits' sizes") {
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const auto store = kind.handle();
    const std::size_t longest = Store::kMaxKey - (kind.name == "prefix" ? 2 : 0);
    const std::string key(longest, 'k');
    store->set(key, "v");
    CHECK(store->get(key, kSoon) == "v");
    const std::string over = key + "k";
    CHECK_THROWS_AS(store->set(over, "v"), ValueError);
    CHECK_THROWS_AS(store->get(over, kSoon), ValueError);
    CHECK_THROWS_AS(store->try_get(over), ValueError);
    CHECK_THROWS_AS(store->add(over, 1), ValueError);
    CHECK_THROWS_AS(store->compare_set(over, std::nullopt, "v"), ValueError);
    CHECK_THROWS_AS(store->erase(over), ValueError);

    std::string value(Store::kMaxValue, 'v');
    value.back() = '!';
    store->set("large", value);
    CHECK(
        (store->get("large", kSoon) == value));  // in parentheses, so that a failure does not print the value
    value += '?';
    CHECK_THROWS_AS(store->set("large", value), ValueError);
    CHECK_THROWS_AS(store->compare_set("large", std::nullopt, value), ValueError);
    CHECK(store->get("large", kSoon).size() == Store::kMaxValue);
  }
}

TEST_CASE("get() waits for a key that another handle sets by any call") {
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const std::vector<std::function<void(Store&)>> ways = {
        [](Store& s) { s.set("k", "1"); },
        [](Store& s) { s.add("k", 1); },
        [](Store& s) { s.compare_set("k", std::nullopt, "1"); },
    };
    for (const auto& set : ways) {
      kind.handle()->erase("k");
      const auto begin = Clock::now();
      std::thread later([&] {
        std::this_thread::sleep_for(Milliseconds(60));
        const auto store = kind.handle();
        store->set("other", "not this one");
        set(*store);
      });
      // Milliseconds::max() must not overflow to a time in the past.
      const std::string value =
          message_of<Error>([&] { CHECK(kind.handle()->get("k", Milliseconds::max()) == "1"); });
      later.join();
      CHECK(value == "");
      CHECK(since(begin) >= Milliseconds(60));
      CHECK(since(begin) < Milliseconds(1060));
    }
  }
}

TEST_CASE("a missing key is a TimeoutError at the deadline that names the key") {
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const auto store = kind.handle();
    for (const Milliseconds timeout : {Milliseconds(150), Milliseconds(0), Milliseconds(-5)}) {
      const auto begin = Clock::now();
      const std::string message = message_of<TimeoutError>([&] { store->get("no such key", timeout); });
      CHECK(since(begin) >= timeout);
      CHECK(since(begin) < timeout + Milliseconds(1000));
      CHECK_THAT(message,
                 ContainsSubstring("no such key") && ContainsSubstring(std::to_string(timeout.count())));
    }
    store->set("here", "v");
    CHECK(store->get("here", Milliseconds(0)) == "v");
    CHECK(store->get("here", Milliseconds::min()) == "v");
  }
}

TEST_CASE("a wait does not delay other calls on the same handle") {
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const auto store = kind.handle();
    std::vector<std::thread> waiting;
    std::atomic<int> got{0};
    for (int i = 0; i < 6; ++i) waiting.emplace_back([&] { got += store->get("go", kSoon) == "now"; });
    const auto begin = Clock::now();
    for (int i = 0; i < 20; ++i) store->add("n", 1);
    CHECK(since(begin) < Milliseconds(2000));
    CHECK(got == 0);
    store->set("go", "now");
    for (auto& thread : waiting) thread.join();
    CHECK(got == 6);
    CHECK(since(begin) < Milliseconds(5000));
  }
}

TEST_CASE("each add() of many threads and handles counts once") {
  constexpr int kThreads = 8, kAdds = 60;
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    const auto shared = kind.handle();
    std::vector<std::vector<std::int64_t>> sums(kThreads);
    in_threads(kThreads, [&](int t) {
      const auto store = t % 2 ? shared : kind.handle();
      for (int i = 0; i < kAdds; ++i) sums[t].push_back(store->add("n", 1));
    });
    std::vector<std::int64_t> all;
    for (const auto& some : sums) {
      CHECK(std::is_sorted(some.begin(), some.end()));
      all.insert(all.end(), some.begin(), some.end());
    }
    std::sort(all.begin(), all.end());
    std::vector<std::int64_t> expected(kThreads * kAdds);
    std::iota(expected.begin(), expected.end(), 1);
    CHECK(all == expected);
  }
}

TEST_CASE("exactly one of several concurrent compare_set() calls wins, and all see the same winner") {
  constexpr int kThreads = 6, kRounds = 20;
  for (const Kind& kind : Kinds()) {
    INFO(kind.name);
    std::vector<std::vector<std::string>> seen(kThreads, std::vector<std::string>(kRounds));
    in_threads(kThreads, [&](int t) {
      const auto store = kind.handle();
      for (int round = 0; round < kRounds; ++round) {
        seen[t][round] = store->compare_set("race" + std::to_string(round), std::nullopt, std::to_string(t));
        // The threads count with compare_set() only: each call that succeeds adds one.
        for (std::string old = store->try_get("count").value_or("");;) {
          const std::string next = std::to_string((old.empty() ? 0 : std::stoi(old)) + 1);
          const std::string tag = next + ":" + std::to_string(t) + ":" + std::to_string(round);
          const std::string now = store->compare_set(
              "count", old.empty() ? std::nullopt : std::optional<std::string_view>(old), tag);
          if (now == tag) break;
          old = now;
        }
      }
    });
    for (int round = 0; round < kRounds; ++round)
      for (int t = 1; t < kThreads; ++t) CHECK(seen[t][round] == seen[0][round]);
    CHECK(std::stoi(kind.handle()->get("count", kSoon)) == kThreads * kRounds);
  }
}

TEST_CASE("prefixes separate keys, and can be nested") {
  const auto base = memory_store();
  const auto a = prefix_store("a/", base), b = prefix_store("b/", base), inner = prefix_store("in/", a);
  a->set("k", "of a");
  b->set("k", "of b");
  inner->set("k", "of in");
  CHECK(base->try_get("k") == std::nullopt);
  CHECK(base->try_get("a/k") == "of a");
  CHECK(a->get("in/k", kSoon) == "of in");
  CHECK(b->erase("k"));
  CHECK(a->try_get("k") == "of a");
  CHECK(prefix_store("", base)->try_get("a/k") == "of a");
  CHECK(a->str() == base->str());
  CHECK_THROWS_AS(prefix_store("a/", nullptr), ValueError);
}
