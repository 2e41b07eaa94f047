// connect_peers() over TCP and Unix sockets, while other processes connect to the same sockets.
#include "tapestry/distributed/comm/internal/peer_sockets.h"

#include <atomic>
#include <cstring>
#include <thread>

#include "tapestry/distributed/comm/internal/sha256.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;

namespace {

const std::optional<SocketAddress> kBoth[] = {addresses_of("127.0.0.1", 0).at(0), std::nullopt};

struct Result {
  PeerSockets sockets;
  std::string error;
  bool timeout = false;
};

/// Connects `size` ranks as threads of this process. Rank `absent` does not come.
std::vector<Result> connect_all(const std::shared_ptr<Store>& store, int size,
                                const std::optional<SocketAddress>& here, Milliseconds timeout,
                                int absent = -1) {
  std::vector<Result> results(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == absent) continue;
    threads.emplace_back([&, rank] {
      Result& result = results[static_cast<std::size_t>(rank)];
      try {
        result.sockets = connect_peers(*store, rank, size, here, Clock::now() + timeout);
      } catch (const TimeoutError& e) {
        result.error = e.what(), result.timeout = true;
      } catch (const DistributedError& e) {
        result.error = e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

/// Each pair of ranks must hold the two ends of one connection.
void check_connected(const std::vector<Result>& ranks) {
  for (std::size_t a = 0; a < ranks.size(); ++a) {
    INFO(ranks[a].error);
    REQUIRE(ranks[a].sockets.to.size() == ranks.size());
    CHECK_FALSE(ranks[a].sockets.to[a].open());
    for (std::size_t b = 0; b < a; ++b) {
      const char sent = static_cast<char>(10 * a + b);
      char got = 0;
      REQUIRE(::send(ranks[a].sockets.to[b].get(), &sent, 1, MSG_NOSIGNAL) == 1);
      REQUIRE(::recv(ranks[b].sockets.to[a].get(), &got, 1, 0) == 1);
      CHECK(got == sent);
    }
  }
}

/// The address that a rank has published, without its key.
SocketAddress published(Store& store, int rank) {
  const std::string text = store.get("socket/" + std::to_string(rank), 10s);
  SocketAddress address{.length = static_cast<socklen_t>(text.size() - 32)};
  std::memcpy(&address.storage, text.data() + 32, address.length);
  return address;
}

Fd call(const SocketAddress& address) {
  Fd socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), address.get(), address.length) != 0) socket.close();
  return socket;
}

}  // namespace

TEST_CASE("connect_peers connects every rank with every other one") {
  for (const auto& here : kBoth)
    for (const int size : {1, 2, 3, 7}) check_connected(connect_all(memory_store(), size, here, 20s));
}

TEST_CASE("connections of strangers do not disturb the ranks, and are counted") {
  for (const auto& here : kBoth) {
    CAPTURE(here.has_value());
    const auto store = memory_store();
    std::vector<Result> ranks;
    std::thread job([&] { ranks = connect_all(store, 3, here, 30s, 2); });
    // Ranks 0 and 1 wait for rank 2. Meanwhile, strangers are silent, send garbage, or claim to be rank 2.
    std::vector<Fd> strangers;
    for (int i = 0; i < 400; ++i) {
      for (const int rank : {0, 1}) {
        strangers.push_back(call(published(*store, rank)));
        if (!strangers.back().open()) continue;
        std::string bytes(static_cast<std::size_t>(i % 60), static_cast<char>(i));
        if (i % 3 == 0) bytes = std::string("\2\0\0\0", 4) + std::string(32, 'x');
        static_cast<void>(!::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
      }
      if (i % 7 == 6) strangers.erase(strangers.begin(), strangers.begin() + 6);
    }
    Result last;
    last.sockets = connect_peers(*store, 2, 3, here, Clock::now() + 30s);
    job.join();
    ranks[2] = std::move(last);
    check_connected(ranks);
    CHECK(ranks[0].sockets.refused > 100);
    const std::string from = here ? "127.0.0.1:" : "process " + std::to_string(getpid()) + " of user ";
    CHECK_THAT(ranks[0].sockets.refused_of, ContainsSubstring(from));
    CHECK(ranks[2].sockets.refused == 0);
  }
}

TEST_CASE("connect_peers names the missing ranks and the strangers at the deadline") {
  for (const auto& here : kBoth) {
    const auto store = memory_store();
    std::vector<Result> ranks;
    const auto start = Clock::now();
    std::thread job([&] { ranks = connect_all(store, 3, here, 1s, 2); });
    const Fd stranger = call(published(*store, 0));
    REQUIRE(::send(stranger.get(), std::string(36, 'x').data(), 36, MSG_NOSIGNAL) == 36);
    job.join();
    CHECK(Clock::now() - start < 5s);
    for (const int rank : {0, 1}) {
      CHECK(ranks[static_cast<std::size_t>(rank)].timeout);
      CHECK_THAT(ranks[static_cast<std::size_t>(rank)].error,
                 ContainsSubstring("has no connection with rank 2 at the deadline"));
    }
    CHECK_THAT(ranks[0].error,
               ContainsSubstring("refused 1 connection(s) that did not prove within 5 s that they "
                                 "belong to this job, the last from "));
  }
}

TEST_CASE("a rank whose connection breaks before it has read the proof can connect again") {
  for (const auto& here : kBoth) {
    const auto store = memory_store();
    std::vector<Result> ranks;
    std::thread job([&] { ranks = connect_all(store, 2, here, 30s, 1); });
    {
      const Fd broken = call(published(*store, 0));
      const std::string hello =
          std::string("\1\0\0\0", 4) + hmac_sha256(store->get("socket/0", 10s).substr(0, 32), "connect 1");
      CHECK(::send(broken.get(), hello.data(), hello.size(), MSG_NOSIGNAL) == 36);
      char answer[32];
      CHECK(::recv(broken.get(), answer, sizeof answer, MSG_WAITALL) == 32);
    }
    try {
      Result last;
      last.sockets = connect_peers(*store, 1, 2, here, Clock::now() + 30s);
      job.join();
      ranks[1] = std::move(last);
    } catch (const DistributedError& error) {
      job.join();
      FAIL(error.what());
    }
    check_connected(ranks);
    CHECK(ranks[0].sockets.refused == 0);  // the broken connection came from a rank
  }
}

TEST_CASE("a rank that has ended after it published its address is reported at once") {
  for (const auto& here : kBoth) {
    const auto store = memory_store();
    const auto start = Clock::now();
    CHECK_THROWS_AS(connect_peers(*store, 0, 2, here, Clock::now() + 100ms), TimeoutError);
    CHECK_THROWS_WITH(connect_peers(*store, 1, 2, here, Clock::now() + 30s),
                      ContainsSubstring("cannot connect to rank 0: Connection refused; that rank has ended"));
    CHECK(Clock::now() - start < 10s);
  }
}

TEST_CASE("a rank refuses an address of another kind") {
  const auto store = memory_store();
  store->set("socket/0", std::string(33, 'k'));  // a key, and an address of one byte
  CHECK_THROWS_WITH(connect_peers(*store, 1, 2, std::nullopt, Clock::now() + 10s),
                    ContainsSubstring("rank 0 published another kind of address"));
}
