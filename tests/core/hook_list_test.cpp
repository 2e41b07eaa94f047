#include "tapestry/core/hook_list.h"

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using namespace tapestry;

namespace {
using List = HookList<std::function<void()>>;

int run(const List& list) {
  int count = 0;
  if (const auto hooks = list.hooks())
    for (const auto& [id, hook] : *hooks) (*hook)(), ++count;
  return count;
}
}  // namespace

TEST_CASE("hooks run in the order of registration until their handles remove them") {
  List list;
  std::vector<int> ran;
  CHECK(list.empty());
  CHECK(list.hooks() == nullptr);
  std::vector<HookHandle> handles;
  for (int i = 0; i < 3; ++i) handles.push_back(list.add([&ran, i] { ran.push_back(i); }));
  CHECK_FALSE(list.empty());
  CHECK(run(list) == 3);
  handles[1].remove();
  handles[1].remove();
  CHECK(run(list) == 2);
  CHECK(ran == std::vector{0, 1, 2, 0, 2});
  handles[0].remove();
  handles[2].remove();
  CHECK(list.empty());
}

TEST_CASE("a hook may remove itself and register another hook while the list runs") {
  List list;
  HookHandle handle, second;
  int ran = 0;
  handle = list.add([&] {
    handle.remove();
    second = list.add([&ran] { ran += 10; });
    ++ran;
  });
  CHECK(run(list) == 1);
  CHECK(ran == 1);
  CHECK(run(list) == 1);
  CHECK(ran == 11);
}

TEST_CASE("a handle outlives its list, and does not keep the hooks alive") {
  const auto captured = std::make_shared<int>(0);
  HookHandle handle;
  {
    List list;
    handle = list.add([captured] { ++*captured; });
    CHECK(captured.use_count() == 2);
  }
  CHECK(captured.use_count() == 1);
  handle.remove();
}

TEST_CASE("a hook whose destructor removes another hook does not deadlock") {
  List list;
  struct Owner {
    HookHandle other;
    ~Owner() { other.remove(); }
  };
  auto owner = std::make_shared<Owner>();
  owner->other = list.add([] {});
  HookHandle handle = list.add([owner = std::move(owner)] {});
  handle.remove();
  CHECK(list.empty());
}

// The list is replaced under a lock that all lists share. A functor of a user must not be copied there: the
// copy could be expensive, and it could register a hook itself.
TEST_CASE("registering and removing hooks copies no other hook") {
  struct Counted {
    explicit Counted(int& n) : copies(&n) {}
    Counted(const Counted& other) : copies(other.copies) { ++*copies; }
    void operator()() const {}
    int* copies;
  };
  List list;
  int copies = 0;
  std::function<void()> hook = Counted(copies);
  const int before = copies;
  HookHandle first = list.add(std::move(hook));
  HookHandle second = list.add([] {});
  second.remove();
  CHECK(run(list) == 1);
  CHECK(copies == before);
}

TEST_CASE("several threads register, remove and run hooks of one list at the same time") {
  List list;
  std::atomic<int> ran{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      while (!stop)
        if (!list.empty()) run(list);
    });
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        HookHandle first = list.add([&] { ++ran; }), second = list.add([&] { ++ran; });
        run(list);
        first.remove();
        second.remove();
      }
    });
  threads[2].join();
  threads[3].join();
  stop = true;
  threads[0].join();
  threads[1].join();
  CHECK(ran >= 2 * 2 * 2000);
  CHECK(list.empty());
}
