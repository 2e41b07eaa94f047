// Tests process groups: argument checks, order of calls, sub-groups, Work handles, messages and destruction.
// collectives_test.cpp tests the values.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/fork.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;
using tapestry::detail::raw_view;

namespace {

Tensor filled(const Shape& shape, float x, DType dtype = DType::f32) {
  Tensor t = empty(shape, dtype);
  if (dtype == DType::f32) std::fill_n(t.data<float>(), t.numel(), x);
  else std::fill_n(static_cast<char*>(t.raw_data()), t.nbytes(), 0);
  return t;
}
Tensor one(float x = 1) { return filled({1}, x); }

// Checks that f throws an E whose text contains `text`.
template <class E, class F>
void refused(const std::string& text, F f) {
  try {
    f();
  } catch (const E& e) {
    return require(std::string(e.what()).find(text) != std::string::npos, "\"", e.what(),
                   "\" does not say \"", text, "\"");
  }
  throw std::runtime_error("not refused: " + text);
}

}  // namespace

TEST_CASE("invalid arguments throw at once and start nothing") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& g) {
      const Tensor x = filled({2, 3}, 1), whole = filled({4, 3}, 1), ints = filled({4}, 0, DType::i32);
      const Tensor expanded = raw_view(one(), {3}, {0}, 0);
      const Tensor crossing = raw_view(filled({5}, 1), {3, 3}, {1, 1}, 0);
      refused<ValueError>("[all_reduce] tensor is an undefined tensor", [&] { g->all_reduce({}); });
      refused<ValueError>("[all_reduce] elements of the tensor of shape [3] and strides [0] share memory",
                          [&] { g->all_reduce(expanded); });
      refused<ValueError>("share memory", [&] { g->broadcast(crossing); });
      refused<TypeError>("[all_reduce] the mean of int32", [&] { g->all_reduce(ints, ReduceOp::mean); });
      refused<TypeError>("[reduce] the mean of int32", [&] { g->reduce(ints, 0, ReduceOp::mean); });
      refused<TypeError>("[reduce_scatter] the mean of", [&] {
        g->reduce_scatter(filled({2}, 0, DType::boolean), filled({4}, 0, DType::boolean), ReduceOp::mean);
      });
      refused<IndexError>("[broadcast] root 2 of a group of 2 ranks", [&] { g->broadcast(x, 2); });
      refused<IndexError>("[reduce] root -1", [&] { g->reduce(x, -1); });
      refused<IndexError>("[gather] root 2", [&] { g->gather({}, x, 2); });
      refused<IndexError>("[scatter] root 3", [&] { g->scatter(x, {}, 3); });
      refused<ValueError>("[all_gather] the output of shape [2, 3] has 6 elements",
                          [&] { g->all_gather(x, x); });
      refused<ValueError>("12; make it 2 times as large", [&] { g->all_gather(x, x); });
      refused<TypeError>("[all_gather] the output is float32 and the input int32",
                         [&] { g->all_gather(filled({8}, 1), ints); });
      refused<TypeError>("[reduce_scatter] the output is float32 and the input int32",
                         [&] { g->reduce_scatter(filled({2}, 1), ints); });
      refused<ValueError>("[reduce_scatter] the input of shape [2, 3] has 6",
                          [&] { g->reduce_scatter(x, x); });
      refused<ValueError>("share memory", [&] { g->all_gather(expanded, one()); });
      if (g->rank() == 0) {
        refused<ValueError>("[gather] output is an undefined tensor", [&] { g->gather({}, x, 0); });
        refused<ValueError>("[gather] the output of shape [2, 3] has", [&] { g->gather(x, x, 0); });
        refused<ValueError>("[scatter] input is an undefined tensor", [&] { g->scatter(x, {}, 0); });
        refused<ValueError>("[scatter] the input of shape [2, 3]", [&] { g->scatter(x, x, 0); });
      }
      refused<ValueError>("[all_to_all] 3 elements of shape [3] cannot be divided into 2",
                          [&] { g->all_to_all(filled({3}, 1), filled({3}, 1)); });
      refused<ValueError>("[all_to_all] the output of shape [4, 3]", [&] { g->all_to_all(whole, x); });
      refused<IndexError>("[send] peer 2", [&] { g->send(x, 2); });
      refused<ValueError>("is this rank itself", [&] { g->recv(x, g->rank()); });
      refused<ValueError>("share memory", [&] { g->recv(expanded, 1 - g->rank()); });
      refused<ValueError>("[new_group] the list of ranks is empty", [&] { g->new_group({}); });
      refused<IndexError>("[new_group] rank 2 of a group of 2", [&] { g->new_group({0, 2}); });
      refused<ValueError>("a rank appears twice in [1, 0, 1]", [&] { g->new_group({1, 0, 1}); });
      refused<ValueError>("[enqueue] the function is empty", [&] { g->enqueue({}); });
      require(g->recorder().records().empty(), "something was posted");
      g->barrier().wait();
      require(g->recorder().records().at(0).sequence == 1, "a refused call was counted");
    });
  CHECK_THROWS_AS(make_process_group(nullptr, memory_store()), ValueError);
  CHECK_THROWS_AS(make_process_group(local_backends(1)[0], nullptr), ValueError);
  CHECK_THROWS_AS(local_backends(0), ValueError);
}

TEST_CASE("many small collectives run in order") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 3, [](const Group& g) {
      std::vector<Tensor> tensors;
      std::vector<Work> works;
      for (int i = 0; i < 500; ++i) {
        tensors.push_back(one(static_cast<float>(g->rank() * 1000 + i)));
        works.push_back(i % 5 == 0 ? g->broadcast(tensors.back(), i % 3) : g->all_reduce(tensors.back()));
      }
      for (std::size_t i = works.size(); i-- > 0;) works[i].wait();  // waits for the last call first
      for (int i = 0; i < 500; ++i) {
        const auto k = static_cast<std::size_t>(i);
        const float expected = static_cast<float>(i % 5 == 0 ? i % 3 * 1000 + i : 3000 + 3 * i);
        require(tensors[k].data<float>()[0] == expected, "call ", i, " gave ", tensors[k].data<float>()[0]);
        require(works[k].done() && works[k].started() <= works[k].finished(), "times of call ", i);
        if (i > 0) require(works[k - 1].finished() <= works[k].started(), "call ", i, " overtook");
      }
    });
}

TEST_CASE("sub-groups number their ranks in the given order") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 4, [](const Group& world) {
      const int me = world->rank();
      const Group odd = world->new_group({3, 1}), all = world->new_group({2, 0, 3, 1}),
                  alone = world->new_group({2});
      require((odd != nullptr) == (me % 2 == 1), "who is in odd");
      require((alone != nullptr) == (me == 2), "who is alone");
      require(all->rank() == std::vector{1, 3, 0, 2}[static_cast<std::size_t>(me)], "rank in all");
      require(all->size() == 4 && all->name() == "world.2" && all->timeout() == world->timeout(), "all");

      Tensor order = filled({4}, 0);
      std::vector<Work> works = {all->all_gather(order, one(static_cast<float>(me)))};
      Work mean;
      Tensor sum = one(static_cast<float>(me)), from_two = one(static_cast<float>(me));
      if (odd) {
        require(odd->rank() == (me == 3 ? 0 : 1) && odd->name() == "world.1", "odd");
        works.push_back(odd->broadcast(sum, 0));  // rank 0 of `odd` is rank 3 of the world
      }
      if (alone) mean = alone->all_reduce(from_two, ReduceOp::mean);
      works.push_back(world->broadcast(from_two, 2, after(mean)));
      for (const Work& work : works) work.wait();
      const float* const o = order.data<float>();
      require(o[0] == 2 && o[1] == 0 && o[2] == 3 && o[3] == 1, "all_gather in the order given");
      require(sum.data<float>()[0] == (me == 1 ? 3 : me), "broadcast in odd");
      require(from_two.data<float>()[0] == 2, "broadcast from 2");

      // A sub-group of a sub-group must work after the handle of its parent was destroyed.
      if (odd) {
        const Group again = odd->new_group({1, 0});
        require(again->name() == "world.1.1" && again->rank() == (me == 1 ? 0 : 1), "a group of a group");
        again->store().set("from " + std::to_string(me), "x");
        again->barrier().wait();
        require(again->store().try_get("from " + std::to_string(4 - me)) == "x", "the store of a group");
        require(!world->store().try_get("from 1"), "stores apart");
      }
      const auto records = world->recorder().records();
      require(std::any_of(records.begin(), records.end(), [](const auto& r) { return r.group == "world.2"; }),
              "one record for all groups");
    });
}

TEST_CASE("a sub-group outlives the handle of the world") {
  for (const Transport& transport : transports()) {
    auto backends = transport.connect(2);
    const auto store = memory_store();
    std::vector<std::thread> ranks;
    std::atomic<int> good{0};
    for (int r = 0; r < 2; ++r)
      ranks.emplace_back([&, r] {
        Group world = make_process_group(std::exchange(backends[static_cast<std::size_t>(r)], nullptr), store,
                                         {.timeout = 20s});
        const Group part = world->new_group({0, 1});
        world.reset();
        Tensor x = one(2);
        part->all_reduce(x).wait();
        good += x.data<float>()[0] == 4;
      });
    for (std::thread& rank : ranks) rank.join();
    CHECK(good == 2);
  }
}

TEST_CASE("enqueue() runs tasks in order with collectives") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& g) {
      const Tensor x = one(1);
      const Work first = g->all_reduce(x);
      float seen = 0;
      std::thread::id thread;
      const Work task = g->enqueue(
          [&] {
            seen = x.data<float>()[0];
            x.data<float>()[0] = 10;
            thread = std::this_thread::get_id();
          },
          "double");
      const Work after = g->all_reduce(x);
      after.wait();
      require(task.done() && seen == 2 && x.data<float>()[0] == 20, "the order of a task");
      require(thread != std::this_thread::get_id(), "the thread of a task");

      const Work bad = g->enqueue([] { throw IndexError("[copy] row 9"); });
      refused<IndexError>("row 9", [&] { bad.wait(); });
      refused<IndexError>("row 9", [&] { bad.wait(1s); });
      const Work inside = g->enqueue([&] { g->barrier().wait(); });
      refused<DistributedError>("do not call wait() in a task of enqueue()", [&] { inside.wait(); });
      g->barrier().wait();  // the exception of a task must not affect the group
    });
}

TEST_CASE("wait(timeout) throws after the timeout, and the call continues") {
  Work().wait();
  CHECK(Work().done());
  CHECK(Work().started() == Clock::time_point{});
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& g) {
      std::atomic<bool> go{false};
      const Work blocked = g->enqueue([&] {
        for (int i = 0; !go && i < 2000; ++i) std::this_thread::sleep_for(10ms);
      });
      Tensor x = one();
      const Work work = g->all_reduce(x, ReduceOp::sum, "loss");
      refused<TimeoutError>("#1 all_reduce(loss) is not done after 30 ms", [&] { work.wait(30ms); });
      require(!work.done() && work.started() == Clock::time_point{}, "it started");
      require(g->recorder().running().empty(), "it runs");
      go = true;
      work.wait();
      require(work.done() && work.started() >= blocked.finished() && x.data<float>()[0] == 2, "it went on");
    });
}

TEST_CASE("the longest timeouts do not overflow") {
  constexpr Milliseconds kForEver = Milliseconds::max();
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2,
                   [](const Group& g) {
                     const Tensor x = one();
                     g->all_reduce(x).wait(kForEver);
                     require(x.item() == 2, "the sum is ", x.item());
                     const std::shared_ptr<ProcessGroup> part = g->new_group({1, 0});
                     part->barrier().wait();
                   },
                   {.timeout = kForEver});
}

TEST_CASE("the version of written tensors is bumped by the call itself") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& g) {
      const bool root = g->rank() == 0;
      const auto bumps = [&](const Tensor& t, const std::function<Work()>& call) {
        const auto before = t.version();
        const Work work = call();
        const auto after = t.version();
        work.wait();
        require(t.version() == after, "a version changed late");
        return after - before;
      };
      const Tensor x = one(), y = one(), big = filled({2}, 1);
      require(bumps(x, [&] { return g->all_reduce(x); }) == 1, "all_reduce");
      require(bumps(x, [&] { return g->broadcast(x, 0); }) == (root ? 0 : 1), "broadcast");
      require(bumps(x, [&] { return g->reduce(x, 0); }) == (root ? 1 : 0), "reduce");
      require(bumps(x, [&] { return g->all_gather(big, x); }) == 0, "all_gather input");
      require(bumps(big, [&] { return g->all_gather(big, x); }) == 1, "all_gather");
      require(bumps(big, [&] { return g->gather(root ? big : Tensor(), x, 0); }) == (root ? 1 : 0), "gather");
      require(bumps(y, [&] { return g->scatter(y, root ? big : Tensor(), 0); }) == 1, "scatter");
      require(bumps(y, [&] { return root ? g->send(y, 1) : g->recv(y, 0); }) == (root ? 0 : 1),
              "send and recv");
    });
}

TEST_CASE("messages of any size can go in both directions at once") {
  for (const Transport& transport : transports())
    for (const int size : {2, 3, 5})
      run_ranks_well(transport, size, [](const Group& g) {
        const int me = g->rank(), right = (me + 1) % g->size(), left = (me + g->size() - 1) % g->size();
        const auto count = [&](int i) {
          return std::vector<std::int64_t>{0, 1, 77, 1000, 40'000, 1'000'000}[static_cast<std::size_t>(i)];
        };
        std::vector<Work> works;
        std::vector<Tensor> clockwise, counter;
        for (int i = 0; i < 6; ++i) {
          const auto value = static_cast<float>(me * 10 + i);
          works.push_back(g->send(filled({count(i)}, value), right, 1));
          works.push_back(g->send(filled({count(i)}, -value), left, 2));
        }
        for (int i = 0; i < 6; ++i) {
          clockwise.push_back(empty({count(i)}));
          counter.push_back(empty({count(i)}));
          works.push_back(g->recv(counter.back(), right, 2));
          works.push_back(g->recv(clockwise.back(), left, 1));
        }
        g->barrier().wait();  // collectives run at the same time
        for (const Work& work : works) work.wait();
        for (int i = 0; i < 6; ++i) {
          const auto k = static_cast<std::size_t>(i);
          const auto all = [&](const Tensor& t, float x) {
            return std::count(t.data<float>(), t.data<float>() + t.numel(), x) == t.numel();
          };
          require(all(clockwise[k], static_cast<float>(left * 10 + i)), "clockwise ", i);
          require(all(counter[k], static_cast<float>(-(right * 10 + i))), "counter-clockwise ", i);
        }
      });
}

TEST_CASE("messages with different tags do not wait for one another, and tensors may be strided") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& g) {
      const int peer = 1 - g->rank();
      if (g->rank() == 0) {
        const Tensor late = one(), early = one();
        const Work first = g->recv(late, peer, 7), second = g->recv(early, peer, 8);
        second.wait();
        require(!first.done(), "tag 7 came unasked");
        g->barrier().wait();
        first.wait();
        require(early.data<float>()[0] == 8 && late.data<float>()[0] == 7, "tags");
      } else {
        g->send(one(8), peer, 8).wait();
        g->barrier().wait();
        g->send(one(7), peer, 7).wait();
      }
      const Tensor flat = empty({6});
      std::iota(flat.data<float>(), flat.data<float>() + 6, 0.f);
      const Tensor turned = raw_view(flat, {2, 3}, {1, 2}, 0);  // 0 2 4 / 1 3 5
      if (g->rank() == 0) return g->send(turned, peer).wait();
      const Tensor got = empty({2, 3});
      g->recv(got, peer).wait();
      require(got.data<float>()[1] == 2 && got.data<float>()[3] == 1, "the order of elements");
    });
}

TEST_CASE("all calls work without the comparison of calls") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 3,
                   [](const Group& g) {
                     const Tensor x = one(static_cast<float>(g->rank()));
                     g->all_reduce(x).wait();
                     require(x.data<float>()[0] == 3, "all_reduce");
                     g->all_reduce(empty({0})).wait();
                     g->barrier().wait();
                     require(g->new_group({2, 1, 0})->rank() == 2 - g->rank(), "new_group");
                   },
                   {.check = false});
}

TEST_CASE("a call whose Work is dropped waits, and one whose Work is kept does not") {
  for (const Transport& transport : transports()) {
    std::atomic<bool> posted{false};
    run_ranks_well(
        transport, 2,
        [&](const Group& g) {
          const int rank = g->rank();
          // Rank 1 comes later than rank 0 reads its result.
          const auto then_holds = [&](const auto& call, const Tensor& t, std::vector<float> values) {
            if (rank == 1) std::this_thread::sleep_for(30ms);
            call();
            require(std::equal(values.begin(), values.end(), t.data<float>()), "a dropped call did not wait");
          };
          const Tensor x = filled({3}, static_cast<float>(1 + rank)), all = filled({6}, 0);
          then_holds([&] { g->all_reduce(x); }, x, {3, 3, 3});
          x.data<float>()[1] = static_cast<float>(rank);
          then_holds([&] { g->all_gather(all, x); }, all, {3, 0, 3, 3, 1, 3});
          then_holds([&] { g->broadcast(x, 1); }, x, {3, 1, 3});
          then_holds([&] { g->reduce_scatter(x, all); }, x, {6, rank == 0 ? 0.0f : 2.0f, 6});
          const Tensor message = filled({3}, rank == 0 ? 0.0f : 7.0f);
          then_holds([&] { rank == 0 ? g->recv(message, 1) : g->send(message, 0); }, message, {7, 7, 7});
          bool ran = false;
          g->enqueue([&] {
            std::this_thread::sleep_for(10ms);
            ran = true;
          });
          require(ran, "a dropped task did not wait");
          refused<ValueError>("the task failed",
                              [&] { g->enqueue([] { throw ValueError("the task failed"); }); });

          // Rank 1 takes part only after rank 0 has gone on.
          for (int i = 0; rank == 1 && !posted && i < 20'000; ++i) std::this_thread::sleep_for(1ms);
          auto scoped = g->all_reduce(x);  // waits at the end of the function, unless wait() was called
          Work work = g->barrier();
          posted = true;
          work.wait();
          require(scoped.done(), "the order of calls");
        },
        kBounded);
  }
}

TEST_CASE("the destructor waits for calls in flight") {
  for (const Transport& transport : transports()) {
    std::vector<Tensor> tensors;
    for (int r = 0; r < 3; ++r) tensors.push_back(one(1));
    run_ranks_well(transport, 3, [&](const Group& g) {
      if (g->rank() == 2) std::this_thread::sleep_for(50ms);
      const Tensor& own = tensors[static_cast<std::size_t>(g->rank())];
      const Work works[] = {g->all_reduce(own), g->enqueue([] { std::this_thread::sleep_for(20ms); }),
                            g->all_reduce(own)};
    });
    for (const Tensor& t : tensors) CHECK(t.data<float>()[0] == 9);
  }
}

TEST_CASE("collectives may be called from several threads") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& g) {
      // The order of calls must be the same on both ranks, so the threads take turns.
      std::mutex mutex;
      std::condition_variable changed;
      int turn = 0;
      std::vector<Tensor> tensors(40);
      std::vector<Work> works(40);
      const auto post = [&](int thread) {
        for (int i = thread; i < 40; i += 2) {
          std::unique_lock lock(mutex);
          if (!changed.wait_for(lock, 20s, [&] { return turn == i; })) return;
          const auto k = static_cast<std::size_t>(i);
          tensors[k] = one(static_cast<float>(i));
          works[k] = g->all_reduce(tensors[k]);
          ++turn;
          changed.notify_all();
        }
      };
      std::thread other(post, 1);
      post(0);
      other.join();
      for (int i = 0; i < 40; ++i) {
        works[static_cast<std::size_t>(i)].wait();
        require(tensors[static_cast<std::size_t>(i)].data<float>()[0] == static_cast<float>(2 * i), "call ",
                i);
      }
    });
}

TEST_CASE("what timeout a group has", "[.child]") {
  run_local_ranks(1, [](const Group& g) {
    std::printf("timeout %lld ms\n", static_cast<long long>(g->timeout().count()));
  });
}

TEST_CASE("the timeout comes from the option, the variable or the default") {
  const std::string child = "what timeout a group has";
  CHECK_THAT(run_child(child).output, ContainsSubstring("timeout 300000 ms"));
  CHECK_THAT(run_child(child, "TAPESTRY_TIMEOUT_S=2.5").output, ContainsSubstring("timeout 2500 ms"));
  for (const char* bad : {"soon", "-1", "0", "5s"})
    CHECK_THAT(run_child(child, std::string("TAPESTRY_TIMEOUT_S=") + bad).output,
               ContainsSubstring(std::string("TAPESTRY_TIMEOUT_S is \"") + bad +
                                 "\"; set it to a number of seconds"));
  run_local_ranks(1, [](const Group& g) { CHECK(g->timeout() == 7s); }, {.timeout = 7s});
}

TEST_CASE("a process ends with a failed group and a stuck queue", "[.child]") {
  static Group kept[2];  // destroyed after main()
  auto backends = local_backends(2);
  const auto store = memory_store();
  for (int r = 0; r < 2; ++r)
    kept[r] = make_process_group(backends[static_cast<std::size_t>(r)], store, {.timeout = 200ms});
  const Work lost = kept[0]->barrier("lost");
  CHECK_THROWS_AS(lost.wait(), TimeoutError);
  CHECK_THROWS_AS(kept[1]->barrier(), TimeoutError);
}

TEST_CASE("a process with a failed group and a stuck task can end") {
  const auto start = Clock::now();
  const ChildResult child = run_child("a process ends with a failed group and a stuck queue");
  INFO(child.output);
  CHECK(child.status == 0);
  CHECK(Clock::now() - start < 20s);
}

TEST_CASE("in a child of fork(), calls of the parent's group throw at once, and the parent's job goes on") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& g) {
      const Tensor x = one();
      Group part = g->new_group({0, 1});
      part->all_reduce(x).wait();
      if (g->rank() == 0) {
        const tests::Forked child = tests::in_fork([&]() -> std::string {
          refused<DistributedError>("[barrier] the process group", [&] { g->barrier(); });
          refused<DistributedError>("was created before fork()", [&] { g->send(one(), 1); });
          refused<DistributedError>("[enqueue] the process group", [&] { g->enqueue([] {}); });
          refused<DistributedError>("[new_group] the process group", [&] { g->new_group({0, 1}); });
          g->abort("must not reach the parent's job");
          part.reset();
          return "refused";
        });
        require(child.ended && child.message == "refused", "the child: ", child.message);
      }
      part->all_reduce(x).wait();
      require(x.data<float>()[0] == 4, "sum ", x.data<float>()[0]);
    });
}
