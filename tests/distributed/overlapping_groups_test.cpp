// Tests groups that share ranks. They run at the same time, after() orders their calls, and ranks that call
// them in different orders get an error that names the calls.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "tapestry/core/tensor.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/threads.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;

namespace {

using Row = std::vector<std::int64_t>;
constexpr std::int64_t kModulus = 10'007, kLength = 5;
constexpr std::size_t kRegisters = 4;

Tensor tensor_of(const Row& row) {
  const Tensor t = empty({static_cast<std::int64_t>(row.size())}, DType::i64);
  std::copy(row.begin(), row.end(), t.data<std::int64_t>());
  return t;
}
Row row_of(const Tensor& t) { return {t.data<std::int64_t>(), t.data<std::int64_t>() + t.numel()}; }
Tensor one(std::int64_t x) { return tensor_of({x}); }

/// A program that all ranks run: calls of overlapping groups, each of which changes a register of its ranks.
struct Program {
  enum Kind { kSum, kMax, kBroadcast, kReduce, kGather, kKinds };
  struct Step {
    Kind kind;
    std::size_t group, reg;
    int root;
    std::chrono::microseconds delay;  // before the local arithmetic behind the call
  };
  std::vector<std::vector<int>> groups;  // the ranks of the world, in the order of the group
  std::vector<Step> steps;
  // Ranks that make two steps in the other order: the steps `inverted` and `inverted` + 1.
  std::optional<std::size_t> inverted = std::nullopt;
  int culprit = 0;

  Program(std::mt19937& random, int ranks) {
    const auto below = [&](std::size_t n) {
      return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
    };
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t size : {all.size(), all.size(), std::size_t{2}, 1 + below(all.size()),
                             1 + below(all.size()), std::size_t{1}}) {
      std::shuffle(all.begin(), all.end(), random);
      groups.emplace_back(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size));
    }
    for (int i = 0; i < 30; ++i) steps.push_back(draw(random));
  }

  Step draw(std::mt19937& random) const {
    const auto below = [&](std::size_t n) {
      return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
    };
    const std::size_t group = below(groups.size());
    return {static_cast<Kind>(below(kKinds)), group, below(kRegisters),
            static_cast<int>(below(groups[group].size())),
            std::chrono::microseconds(below(4) == 0 ? below(300) : 0)};
  }

  /// Plants two calls of the first two groups, which have all ranks, in an order that differs on one rank.
  void invert(std::mt19937& random, int ranks) {
    inverted = std::uniform_int_distribution<std::size_t>(0, steps.size())(random);
    culprit = std::uniform_int_distribution<int>(0, ranks - 1)(random);
    const Step pair[] = {{kSum, 0, 0, 0, {}}, {kMax, 1, 1, 0, {}}};
    steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(*inverted), std::begin(pair), std::end(pair));
  }

  static Row initial(int rank, std::size_t reg) {
    Row row;
    for (std::int64_t i = 0; i < kLength; ++i)
      row.push_back(1000 * rank + 100 * static_cast<std::int64_t>(reg) + i);
    return row;
  }
  /// The arithmetic of a rank behind each call. It does not commute with the calls.
  static void change(std::int64_t* row, int rank) {
    for (std::int64_t i = 0; i < kLength; ++i) row[i] = (3 * row[i] + 31 * rank + i) % kModulus;
  }

  using Registers = std::vector<Row>;
  /// The registers of all ranks after the program, computed in one thread.
  std::vector<Registers> expected(int ranks) const {
    std::vector<Registers> all(static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r)
      for (std::size_t k = 0; k < kRegisters; ++k) all[static_cast<std::size_t>(r)].push_back(initial(r, k));
    for (const Step& step : steps) {
      const std::vector<int>& members = groups[step.group];
      const auto reg = [&](std::size_t member) -> Row& {
        return all[static_cast<std::size_t>(members[member])][step.reg];
      };
      Row result(kLength, 0);
      for (std::size_t m = 0; m < members.size(); ++m)
        for (std::size_t i = 0; i < kLength; ++i) {
          const std::int64_t x = reg(m)[i];
          if (step.kind == kMax) result[i] = std::max(result[i], x);
          else if (step.kind == kGather)
            result[i] = (result[i] + static_cast<std::int64_t>(m + 1) * x) % kModulus;
          else if (step.kind != kBroadcast) result[i] += x;
        }
      if (step.kind == kBroadcast) result = reg(static_cast<std::size_t>(step.root));
      for (std::size_t m = 0; m < members.size(); ++m) {
        if (step.kind != kReduce || m == static_cast<std::size_t>(step.root)) reg(m) = result;
        change(reg(m).data(), members[m]);
      }
    }
    return all;
  }

  /// Runs the program on one rank and returns its registers.
  Registers run(const Group& world, unsigned seed) const {
    const int me = world->rank();
    std::mt19937 random(seed + 1000u * static_cast<unsigned>(me));
    std::vector<Group> made;
    for (const std::vector<int>& ranks : groups) made.push_back(world->new_group(ranks));
    std::vector<Tensor> registers;
    for (std::size_t k = 0; k < kRegisters; ++k) registers.push_back(tensor_of(initial(me, k)));
    std::vector<Work> last(kRegisters);
    std::vector<std::size_t> order(steps.size());
    std::iota(order.begin(), order.end(), 0);
    if (inverted && me == culprit) std::swap(order[*inverted], order[*inverted + 1]);
    for (const std::size_t i : order) {
      const Step& step = steps[i];
      const Group& group = made[step.group];
      if (!group) continue;
      const Tensor& x = registers[step.reg];
      const std::string name = concat({"step ", i});
      const CallOptions options = after(last[step.reg], name);
      Tensor gathered;
      Work call;
      if (step.kind == kBroadcast) call = group->broadcast(x, step.root, options);
      else if (step.kind == kReduce) call = group->reduce(x, step.root, ReduceOp::sum, options);
      else if (step.kind == kGather)
        call = group->all_gather(gathered = empty({group->size(), kLength}, DType::i64), x, options);
      else call = group->all_reduce(x, step.kind == kSum ? ReduceOp::sum : ReduceOp::max, options);
      last[step.reg] = group->enqueue([x, gathered, me, delay = step.delay] {
        if (delay.count() > 0) std::this_thread::sleep_for(delay);
        auto* const row = x.data<std::int64_t>();
        if (gathered.defined()) {
          std::fill_n(row, kLength, 0);
          for (std::int64_t k = 0; k < gathered.numel(); ++k)
            row[k % kLength] =
                (row[k % kLength] + (k / kLength + 1) * gathered.data<std::int64_t>()[k]) % kModulus;
        }
        change(row, me);
      });
      // Some ranks wait now and then.
      if (!inverted && random() % 5 == 0) last[random() % kRegisters].wait();
    }
    for (const Work& work : last) work.wait();
    Registers rows;
    for (const Tensor& t : registers) rows.push_back(row_of(t));
    return rows;
  }
};

/// Waits until the flag is set, at most 20 s.
void await(const std::atomic<bool>& flag) {
  for (int i = 0; !flag && i < 20'000; ++i) std::this_thread::sleep_for(1ms);
}

}  // namespace

TEST_CASE("random programs of overlapping groups give the values of one thread") {
  for (const Transport& transport : transports())
    for (int ranks = 2; ranks <= 8; ++ranks) {
      if (transport.name != "local" && ranks != 3) continue;
      for (unsigned seed = 1; seed <= 3; ++seed) {
        std::mt19937 random(100 * static_cast<unsigned>(ranks) + seed);
        const Program program(random, ranks);
        const auto expected = program.expected(ranks);
        run_ranks_well(
            transport, ranks,
            [&](const Group& world) {
              require(program.run(world, seed) == expected[static_cast<std::size_t>(world->rank())],
                      "other values in the program of ", ranks, " ranks with seed ", seed);
              world->barrier();
            },
            kBounded);
      }
    }
}

TEST_CASE("every rank names the two calls that one rank makes in the other order, although nothing hangs") {
  for (const Transport& transport : transports())
    for (int ranks = 2; ranks <= 5; ++ranks)
      for (const bool compares : {true, false}) {
        if (transport.name != "local" && ranks != 3) continue;
        for (unsigned seed = 1; seed <= (transport.name == "local" ? 4 : 1); ++seed) {
          std::mt19937 random(100 * static_cast<unsigned>(ranks) + seed);
          Program program(random, ranks);
          program.invert(random, ranks);
          CAPTURE(transport.name, ranks, seed, compares, *program.inverted, program.culprit);
          GroupOptions options = kBounded;
          options.check = compares;
          const auto outcomes = run_ranks(
              transport, ranks,
              [&](const Group& world) {
                program.run(world, seed);
                if (compares) world->barrier();
                else world->check_order();
              },
              options);
          for (const Outcome& outcome : outcomes) {
            CHECK((outcome.distributed && !outcome.timeout));
            CHECK_THAT(outcome.error, ContainsSubstring("in different orders: call "));
            CHECK_THAT(outcome.error, ContainsSubstring(concat({"on rank ", program.culprit})) ||
                                          ContainsSubstring(concat({" and ", program.culprit, " make"})));
            CHECK_THAT(outcome.error,
                       ContainsSubstring(concat({" all_reduce(step ", *program.inverted, ") int64"})));
            CHECK_THAT(outcome.error,
                       ContainsSubstring(concat({" all_reduce(step ", *program.inverted + 1, ") int64"})));
            CHECK_THAT(outcome.error, ContainsSubstring("at overlapping_groups_test.cpp:"));
          }
        }
      }
}

TEST_CASE("three ranks that wait in a circle learn at the timeout where each of them waits") {
  for (const Transport& transport : transports()) {
    const auto outcomes =
        run_ranks(transport, 3,
                  [](const Group& world) {
                    const Group groups[] = {world->new_group({0, 1}), world->new_group({1, 2}),
                                            world->new_group({2, 0})};
                    const int me = world->rank();
                    groups[me]->barrier(concat({"of ", me}));
                    groups[(me + 2) % 3]->barrier("not reached");
                  },
                  {.timeout = 1'000ms});
    for (const Outcome& outcome : outcomes) {
      CHECK(outcome.timeout);
      for (int r = 0; r < 3; ++r)
        CHECK_THAT(outcome.error, ContainsSubstring(concat({"world.", r + 1, "#1 barrier(of ", r,
                                                            ") at overlapping_groups_test.cpp:"})));
    }
  }
}

TEST_CASE("groups that do not compare calls notice an inversion in their 1024th call") {
  GroupOptions options = kBounded;
  options.check = false;
  const auto outcomes = run_ranks(
      transports()[0], 2,
      [](const Group& world) {
        const Group first = world->new_group({0, 1}), second = world->new_group({1, 0});
        const Tensor x = one(1), y = one(2);
        const bool swaps = world->rank() == 1;
        const Work a = (swaps ? second : first)->barrier(swaps ? "b" : "a");
        const Work b = (swaps ? first : second)->barrier(swaps ? "a" : "b");
        for (int i = 0; i < 1022; ++i) first->barrier();
        require(world->recorder().records().size() == Recorder::kKept, "too few calls");
        first->barrier("last");
        fail("not noticed");
      },
      options);
  for (const Outcome& outcome : outcomes)
    CHECK_THAT(outcome.error,
               ContainsSubstring("[barrier] some ranks make the calls of the groups that they share "
                                 "in different orders; the first difference is older"));
}

TEST_CASE("a collective of one group finishes while one of another group waits for a slow rank") {
  for (const Transport& transport : transports()) {
    std::atomic<int> finished{0};
    std::atomic<bool> go{false};
    run_ranks_well(
        transport, 3,
        [&](const Group& world) {
          const Group all = world->new_group({0, 1, 2}), pair = world->new_group({1, 0});
          const Tensor x = one(1), y = one(world->rank() + 1);
          if (!pair) {
            await(go);
            require(finished == 2, "the pair has waited for rank 2");
            all->all_reduce(x);
          } else {
            const Work slow = all->all_reduce(x);
            pair->all_reduce(y);
            require(!slow.done() && row_of(y) == Row{3}, "the sum of the pair");
            if (++finished == 2) go = true;
            slow.wait();
          }
          require(row_of(x) == Row{3}, "the sum of all");
        },
        kBounded);
  }
}

TEST_CASE("after() takes several works, works without a call, and orders tasks and messages") {
  for (const Transport& transport : transports())
    run_ranks_well(
        transport, 2,
        [](const Group& world) {
          const Group a = world->new_group({0, 1}), b = world->new_group({0, 1}),
                      c = world->new_group({1, 0});
          const int me = world->rank(), peer = 1 - me;
          const Tensor x = one(0), y = one(0), z = one(0);
          const Work none;
          const auto late = [](const Tensor& t, std::int64_t value) {
            return [t, value] {
              std::this_thread::sleep_for(20ms);
              *t.data<std::int64_t>() = value;
            };
          };
          const Work first = a->enqueue(late(x, 1 + me)), second = b->enqueue(late(y, 10));
          const Work sum = c->all_reduce(x, ReduceOp::sum, after({first, second, none}, "sum"));
          const Work copied = a->enqueue([&] { late(z, *x.data<std::int64_t>() + 1)(); }, after(sum));
          const Work sent = b->send(z, peer, 0, after({copied}));
          const Tensor got = one(0);
          const Work received = b->recv(got, peer, 0, after(none));
          b->enqueue([] {}, after({sent, received}));
          require(row_of(x) == Row{3} && row_of(y) == Row{10} && row_of(got) == Row{4}, "got ", row_of(x)[0],
                  " ", row_of(y)[0], " ", row_of(got)[0]);
          const auto records = world->recorder().records();
          require(std::any_of(records.begin(), records.end(),
                              [](const auto& r) {
                                return r.str().ends_with(
                                    ", after the task without a name and the task without a name");
                              }),
                  "the recorder does not tell what the sum waits for");
        },
        kBounded);
}

TEST_CASE("a call after a failed one fails with the same error, and the other ranks are told") {
  for (const Transport& transport : transports()) {
    const auto outcomes = run_ranks(
        transport, 2,
        [](const Group& world) {
          const Group a = world->new_group({0, 1}), b = world->new_group({0, 1});
          const Tensor x = one(1);
          Work failed;
          if (world->rank() == 0) {
            failed = a->enqueue([] {
              std::this_thread::sleep_for(20ms);
              throw IndexError("[copy] row 9");
            });
            // A task has no other ranks, so the group goes on.
            const Work task = b->enqueue([] {}, after(failed));
            try {
              task.wait();
            } catch (const IndexError&) {
              a->barrier();
              b->all_reduce(x, ReduceOp::sum, after(failed, "loss"));
            }
          } else {
            a->barrier();
            b->all_reduce(x, ReduceOp::sum, "loss");
          }
        },
        kBounded);
    CHECK(outcomes[0].error == "[copy] row 9");
    CHECK_FALSE(outcomes[0].distributed);
    CHECK(outcomes[1].distributed);
    CHECK_THAT(outcomes[1].error,
               ContainsSubstring("world.2#1 all_reduce(loss)") &&
                   ContainsSubstring("did not begin on rank 0, because an earlier call failed: "
                                     "[copy] row 9"));
  }
}

TEST_CASE("a group of one rank needs no thread, unless one of its calls waits") {
  run_local_ranks(
      2,
      [](const Group& world) {
        const Group zero = world->new_group({0}), alone = zero ? zero : world->new_group({1}),
                    unused = zero ? (world->new_group({1}), nullptr) : nullptr,
                    both = world->new_group({0, 1});
        const Tensor x = one(7), all = one(0);
        alone->all_reduce(x);
        alone->all_gather(all, x);
        alone->barrier();
        require(row_of(x) == Row{7} && row_of(all) == Row{7}, "values");
        world->barrier();
        if (world->rank() == 0) {
          require(threads_named("world.1 0") == 0, "a group of one rank has a thread");
          require(threads_named("world.3 0") == 0, "a group without calls has a thread");
        }
        world->barrier();
        const Work slow = world->enqueue([x] {
          std::this_thread::sleep_for(20ms);
          *x.data<std::int64_t>() = 8;
        });
        const Work copy = alone->all_gather(all, x, after(slow));
        require(!copy.done(), "a call waits in the caller's thread");
        alone->all_reduce(all).wait();  // behind the copy
        require(row_of(all) == Row{8}, "the value after the task");
        both->barrier();
      },
      kBounded);
}

TEST_CASE("groups can be destroyed and aborted while calls wait for other calls") {
  enum State { kBehindTask, kBehindCall, kInCall };
  for (const Transport& transport : transports())
    for (const State state : {kBehindTask, kBehindCall, kInCall})
      for (const bool aborts : {true, false}) {
        CAPTURE(transport.name, static_cast<int>(state), aborts);
        std::atomic<bool> go{false}, posted{false};
        const Tensor values[] = {one(1), one(2)};
        const auto outcomes = run_ranks(
            transport, 2,
            [&](const Group& world) {
              const int me = world->rank();
              Group a = world->new_group({0, 1}), b = world->new_group({1, 0});
              Work blocked;
              if (state != kInCall) blocked = a->enqueue([&] { await(go); });
              if (state == kBehindCall) blocked = a->barrier();
              if (aborts && me == 1) {
                await(posted);
                world->abort("enough");
                b->barrier();
              } else if (aborts) {
                const Work sum = b->all_reduce(values[me], ReduceOp::sum, after(blocked));
                posted = true;
                try {
                  sum.wait();  // ends although the task is still running
                } catch (const DistributedError&) {
                  go = true;
                  throw;
                }
              }
              if (state == kInCall && me == 1) await(go);
              const Work sum = b->all_reduce(values[me], ReduceOp::sum, after(blocked));
              std::thread later([&] {
                std::this_thread::sleep_for(20ms);
                go = true;
              });
              b.reset();  // waits for the sum
              const bool waited = go;
              a.reset();
              later.join();
              require(waited && sum.done(), "the destructor did not wait");
            },
            kBounded);
        for (int r = 0; r < 2; ++r) {
          const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
          CHECK_THAT(outcome.error, ContainsSubstring(aborts ? "rank 1 aborted the group: enough" : ""));
          CHECK(outcome.error.empty() != aborts);
          if (!aborts) CHECK(row_of(values[r]) == Row{3});
        }
      }
}
