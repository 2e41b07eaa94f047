// Tests batch_isend_irecv() on every transport.
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/distributed/comm/p2p_op.h"
#include "tests/distributed/lists_support.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;
using namespace lists_test;
using tapestry::detail::raw_view;

namespace {

using Messages = std::vector<P2POp>;

// Message `number` from one rank to another.
Tensor content(int from, int to, int number) {
  const DType dtype = kAll[(from + 2 * to + number) % 8];
  const std::int64_t length =
      std::vector<std::int64_t>{3, 0, 50'000, 1}[static_cast<std::size_t>(number % 4)];
  return numbers(dtype, {length, 2}, from, static_cast<unsigned>(16 * to + number));
}

bool same_tensor(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && same_bytes(x.raw_data(), y.raw_data(), x.nbytes());
}

}  // namespace

TEST_CASE("the messages of a batch arrive by peer and tag, in the order of the list") {
  for (const Transport& transport : transports())
    for (const int size : {2, 3})
      run_ranks_well(transport, size, [](const Group& g) {
        const int me = g->rank();
        Messages messages;
        Tensors received, expected;
        // To each other rank two messages with tag 0 and one with tag 5. Some ranks list what they receive
        // first.
        for (const bool sends : {me != 1, me == 1})
          for (int peer = 0; peer < g->size(); ++peer)
            for (int number = 0; peer != me && number < 3; ++number) {
              const std::uint32_t tag = number == 2 ? 5 : 0;
              if (sends) {
                messages.push_back(P2POp::send(content(me, peer, number), peer, tag));
                continue;
              }
              expected.push_back(content(peer, me, number));
              received.push_back(garbage(expected.back().dtype(), expected.back().sizes()));
              messages.push_back(P2POp::recv(received.back(), peer, tag));
            }
        const auto version = received[0].version();
        for (int step = 0; step < 2; ++step) {
          const Work work = g->batch_isend_irecv(messages, "halo");
          require(received[0].version() > version, "the version");
          g->barrier();  // collectives run at the same time
          work.wait();
          require(work.done() && work.started() <= work.finished() && work.started() != Clock::time_point{},
                  "the times");
          for (std::size_t i = 0; i < received.size(); ++i) {
            require(same_tensor(received[i], expected[i]), "message ", i, " of step ", step);
            received[i].copy_(garbage(expected[i].dtype(), expected[i].sizes()));
          }
        }
        require(g->batch_isend_irecv({}).done(), "a batch of no messages");
      });
}

TEST_CASE("a batch fits single messages, and its tensors may be strided") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& g) {
      const Tensor x = numbers(DType::f32, {4, 3}, g->rank(), 1), first = garbage(DType::f32, {3, 4}),
                   second = garbage(DType::f32, {4, 3});
      if (g->rank() == 0) {
        const Tensor columns = garbage(DType::f32, {4, 3});
        g->batch_isend_irecv({P2POp::send(x.t(), 1), P2POp::send(x, 1), P2POp::recv(columns.t(), 1, 2)});
        require(same_tensor(columns.t(), numbers(DType::f32, {3, 4}, 9, 1)), "what a single send sent");
      } else {
        const Work two = g->recv(first, 0), one = g->batch_isend_irecv({P2POp::recv(second, 0)});
        one.wait();
        two.wait();
        require(same_tensor(first, numbers(DType::f32, {4, 3}, 0, 1).t()), "the first message");
        require(same_tensor(second, numbers(DType::f32, {4, 3}, 0, 1)), "the second message");
        g->send(numbers(DType::f32, {3, 4}, 9, 1), 0, 2).wait();
      }
    });
}

TEST_CASE("a batch is done when all of its messages are, and none waits for another") {
  for (const Transport& transport : transports())
    run_ranks_well(transport, 2, [](const Group& g) {
      const Tensor early = garbage(DType::f32, {1}), late = garbage(DType::f32, {1}),
                   sum = garbage(DType::f32, {1});
      if (g->rank() == 1) {
        g->send(numbers(DType::f32, {1}, 1, 8), 0, 8).wait();
        g->recv(garbage(DType::f32, {1}), 0, 9).wait();  // rank 0 has seen that the batch is not done
        g->send(numbers(DType::f32, {1}, 1, 7), 0, 7).wait();
        g->all_reduce(sum).wait();
        return;
      }
      const Work both = g->batch_isend_irecv({P2POp::recv(late, 1, 7), P2POp::recv(early, 1, 8)});
      const Work reduced = g->all_reduce(sum, ReduceOp::sum, after(both));
      const Deadline limit = Clock::now() + 20s;
      while (!g->recorder().last() && Clock::now() < limit) std::this_thread::sleep_for(1ms);
      require(g->recorder().last().has_value(), "the early message did not come");
      require(!both.done() && both.finished() == Clock::time_point{}, "the batch is done too early");
      bool timed_out = false;
      try {
        both.wait(20ms);
      } catch (const TimeoutError&) {
        timed_out = true;
      }
      require(timed_out, "wait() did not time out");
      g->send(garbage(DType::f32, {1}), 1, 9).wait();
      both.wait();
      require(both.done() && same_tensor(early, numbers(DType::f32, {1}, 1, 8)) &&
                  same_tensor(late, numbers(DType::f32, {1}, 1, 7)),
              "the messages");
      reduced.wait();
      require(reduced.started() >= both.finished(), "a call after() the batch began before");
    });
}

TEST_CASE("an invalid message is refused, and no message of the batch begins") {
  run_local_ranks(2, [](const Group& g) {
    const Tensor x = garbage(DType::f32, {2}), y = garbage(DType::f32, {2});
    const int peer = 1 - g->rank();
    const auto version = y.version();
    refused<IndexError>("[recv] peer 2 of a group of 2", [&] {
      g->batch_isend_irecv({P2POp::send(x, peer), P2POp::recv(y, 2)});
    });
    refused<ValueError>("[send] peer " + std::to_string(g->rank()) + " is this rank itself", [&] {
      g->batch_isend_irecv({P2POp::recv(y, peer), P2POp::send(x, g->rank())});
    });
    refused<ValueError>("[send] tensor is an undefined tensor", [&] {
      g->batch_isend_irecv({P2POp::recv(y, peer), P2POp::send({}, peer)});
    });
    refused<ValueError>("share memory", [&] {
      g->batch_isend_irecv({P2POp::send(x, peer), P2POp::recv(raw_view(y, {3}, {0}, 0), peer)});
    });
    require(g->recorder().records().empty() && y.version() == version, "a message began");
    g->batch_isend_irecv({P2POp::send(x, peer, 3), P2POp::recv(y, peer, 3)}, "halo");
    const auto records = g->recorder().records();
    require(records.size() == 2 &&
                records[0].str().starts_with(concat({"#1 send(halo) float32 [2] to ", peer})) &&
                records[1].str().starts_with(concat({"#1 recv(halo) float32 [2] from ", peer})),
            records[0].str());
  });
}

TEST_CASE("a message of a batch that does not come or does not fit is an error of the batch, on all ranks") {
  for (const Transport& transport : transports())
    for (const bool comes : {false, true}) {
      const auto outcomes =
          run_ranks(transport, 3,
                    [&](const Group& g) {
                      const int next = (g->rank() + 1) % 3, previous = (g->rank() + 2) % 3;
                      const Tensor x = garbage(DType::f32, {2}),
                                   y = garbage(DType::f32, {g->rank() == 1 && comes ? 3 : 2});
                      if (g->rank() == 0 && !comes) return;  // leaves
                      g->batch_isend_irecv({P2POp::send(x, next), P2POp::recv(y, previous)}, "ring").wait();
                      g->barrier();
                    },
                    {.timeout = 20s});
      for (const int rank : {1, 2}) {
        const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
        CAPTURE(transport.name, comes, outcome.error);
        CHECK(outcome.distributed);
        CHECK_FALSE(outcome.timeout);
        if (comes)
          CHECK_THAT(outcome.error, ContainsSubstring("rank 0 sent message 1, float32 [2] (ring)") &&
                                        ContainsSubstring("expects message 1, float32 [3]"));
        else CHECK_THAT(outcome.error, ContainsSubstring("rank 0"));
      }
    }
}
