// Tests the TCP store: wrong secrets, garbage, connections that send slowly or claim large sizes, and the end
// of its server.
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <thread>

#include "tapestry/distributed/comm/internal/held_key.h"
#include "tapestry/distributed/comm/internal/sha256.h"
#include "tapestry/distributed/comm/internal/sockets.h"
#include "tapestry/distributed/comm/internal/tcp_wire.h"
#include "tapestry/distributed/comm/store.h"
#include "tests/distributed/store_support.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"
#include "tests/support/ports.h"

using namespace tapestry;
using namespace tapestry::distributed;
using tests::kSoon;
using tests::message_of;
using tests::Process;
using tests::since;

namespace {

const std::string kHere = "127.0.0.1";
const TcpOptions kQuick{
    .secret = "s3cret", .connect_timeout = Milliseconds(5000), .request_timeout = Milliseconds(300)};

/// A raw socket that can violate the protocol.
class Raw {
 public:
  explicit Raw(int port) {
    if (start_connect(addresses_of(kHere, port).at(0), fd_) != 0 ||
        !wait_until(fd_.get(), POLLOUT, Clock::now() + kSoon) || connect_error(fd_.get()) != 0)
      throw std::runtime_error("cannot connect");
  }

  /// False if the other side has closed the connection.
  bool send(std::string_view bytes) {
    while (send_some(fd_.get(), bytes) == 0) {
      if (bytes.empty()) return true;
      if (!wait_until(fd_.get(), POLLOUT, Clock::now() + kSoon)) break;
    }
    return false;
  }
  /// Reads until `bytes` bytes have come, the other side closes the connection, or `limit` has passed.
  std::string receive(std::size_t bytes, Milliseconds limit = Milliseconds(5000)) {
    std::string out;
    for (const auto end = Clock::now() + limit; !ended_ && out.size() < bytes;) {
      if (!wait_until(fd_.get(), POLLIN, end)) break;
      ended_ = distributed::receive(fd_.get(), out, bytes) != 0;
    }
    return out;
  }
  /// True if the other side closes the connection within `limit`. Discards all data.
  bool hung_up(Milliseconds limit = Milliseconds(5000)) {
    const auto begin = Clock::now();
    while (!ended_ && since(begin) < limit) receive(4096, Milliseconds(50));
    return ended_;
  }
  void half_close() { shutdown(fd_.get(), SHUT_WR); }

 private:
  Fd fd_;
  bool ended_ = false;
};

/// A raw client that completes the handshake and then sends raw bytes.
std::unique_ptr<Raw> admitted(int port, const std::string& secret = kQuick.secret) {
  auto raw = std::make_unique<Raw>(port);
  const std::string greeting = raw->receive(wire::kGreeting.size() + wire::kNonce);
  REQUIRE(greeting.size() == wire::kGreeting.size() + wire::kNonce);
  const std::string theirs = greeting.substr(wire::kGreeting.size()), ours(wire::kNonce, 'n');
  raw->send(ours + wire::proof(wire::Side::client, secret, theirs, ours));
  const std::string verdict = raw->receive(1 + wire::kProof);
  REQUIRE(verdict.size() == 1 + wire::kProof);
  REQUIRE(verdict[0] == wire::kWelcome);
  return raw;
}

/// A server at a free port that accepts one connection at a time and calls `body` with it.
class Impostor {
 public:
  explicit Impostor(std::function<void(int fd)> body) {
    SocketAddress place = addresses_of(kHere, 0).at(0);
    if (listen_at(place, listener_) != 0) throw std::runtime_error("cannot listen");
    port_ = place.port();
    thread_ = std::thread([this, body = std::move(body)] {
      while (wait_until(listener_.get(), POLLIN, Clock::time_point::max()) && !ending_)
        if (const Fd peer(accept(listener_.get(), nullptr, nullptr)); peer.open()) body(peer.get());
    });
  }
  ~Impostor() {
    ending_ = true;
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  int port() const { return port_; }

 private:
  Fd listener_;
  int port_ = 0;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

/// The last step of every hostile test: checks that other clients are still served.
void check_healthy(const StoreServer& server) {
  const auto store = tcp_store(kHere, server.port(), kQuick);
  const std::int64_t n = store->add("healthy", 1);
  CHECK(store->add("healthy", 1) == n + 1);
  CHECK(store->get("healthy", kSoon) == std::to_string(n + 1));
}

std::size_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * 4096;
}

std::string hex(const std::string& bytes) {
  std::string out;
  for (const unsigned char c : bytes) {
    out += "0123456789abcdef"[c >> 4];
    out += "0123456789abcdef"[c & 15];
  }
  return out;
}

}  // namespace

TEST_CASE("SHA-256 and HMAC have the values of the standards") {
  // These are the examples of FIPS 180-4, and messages whose lengths are near the block size.
  CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  if (!kSanitized)
    CHECK(hex(sha256(std::string(1'000'000, 'a'))) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(hex(sha256(std::string(55, 'a'))) ==
        "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  CHECK(hex(sha256(std::string(56, 'a'))) ==
        "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  CHECK(hex(sha256(std::string(64, 'a'))) ==
        "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  // These are the test cases 1, 2 and 6 of RFC 4231. Case 6 has a key that is longer than a block.
  CHECK(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(
      hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(equal_in_constant_time("abc", "abc"));
  CHECK_FALSE(equal_in_constant_time("abc", "abd"));
  CHECK_FALSE(equal_in_constant_time("abc", "ab"));
  CHECK(random_bytes(32) != random_bytes(32));
}

TEST_CASE("a client with another secret is refused at once with that reason") {
  const auto server = start_store_server(kHere, 0, kQuick);
  const auto open = start_store_server(kHere, 0, {});
  struct Case {
    int port;
    std::string secret;
  };
  for (const Case& c :
       {Case{server->port(), "s3cret "}, Case{server->port(), ""}, Case{open->port(), "s3cret"}}) {
    TcpOptions options = kQuick;
    options.secret = c.secret;
    const auto begin = Clock::now();
    CHECK_THAT(message_of<DistributedError>([&] { tcp_store(kHere, c.port, options); }),
               ContainsSubstring("TAPESTRY_SECRET") && ContainsSubstring(std::to_string(c.port)));
    CHECK(since(begin) < Milliseconds(1000));
  }
  check_healthy(*server);
  CHECK(tcp_store(kHere, open->port(), {})->add("n", 1) == 1);
}

TEST_CASE("a client refuses a server that does not know the secret") {
  const std::string nonce(wire::kNonce, 'x');
  for (const bool reflect : {false, true}) {
    Impostor impostor([&](int fd) {
      const std::string greeting = std::string(wire::kGreeting) + nonce;
      if (send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL) < 0) return;
      std::string answer(wire::kNonce + wire::kProof, '\0');
      if (recv(fd, answer.data(), answer.size(), MSG_WAITALL) < 0) return;
      // A server without the secret can reply only with bytes that it received from the client, or with
      // others that it makes up.
      const std::string verdict =
          wire::kWelcome + (reflect ? answer.substr(wire::kNonce) : std::string(32, 'p'));
      if (send(fd, verdict.data(), verdict.size(), MSG_NOSIGNAL) < 0) return;
    });
    CHECK_THROWS_WITH(tcp_store(kHere, impostor.port(), kQuick), ContainsSubstring("TAPESTRY_SECRET"));
  }
}

TEST_CASE("a proof cannot be replayed") {
  const auto server = start_store_server(kHere, 0, kQuick);
  Raw first(server->port());
  const std::string theirs = first.receive(48).substr(16), ours(32, 'n');
  const std::string overheard = ours + wire::proof(wire::Side::client, kQuick.secret, theirs, ours);
  CHECK(first.send(overheard));
  CHECK(first.receive(1) == "y");
  Raw again(server->port());
  again.receive(48);
  CHECK(again.send(overheard));
  CHECK(again.receive(1) == "n");
  CHECK(again.hung_up());
}

TEST_CASE("a foreign, silent or missing server is an error that says so") {
  Impostor web([](int fd) {
    const std::string page(200, 'H');
    if (send(fd, page.data(), page.size(), MSG_NOSIGNAL) < 0) return;
    char c;
    while (recv(fd, &c, 1, 0) > 0) continue;
  });
  CHECK_THROWS_WITH(tcp_store(kHere, web.port(), kQuick),
                    ContainsSubstring("is not a store of this version"));

  TcpOptions impatient = kQuick;
  impatient.connect_timeout = Milliseconds(400);
  Impostor silent([](int fd) {
    char c;
    while (recv(fd, &c, 1, 0) > 0) continue;
  });
  for (const int port : {silent.port(), tests::free_port()}) {
    const auto begin = Clock::now();
    CHECK_THAT(message_of<TimeoutError>([&] { tcp_store(kHere, port, impatient); }),
               ContainsSubstring(":" + std::to_string(port)) && ContainsSubstring("400 ms"));
    CHECK(since(begin) >= Milliseconds(150));
    CHECK(since(begin) < Milliseconds(1400));
  }
  CHECK_THROWS_AS(tcp_store("no-such-host.invalid", 1, impatient), TimeoutError);
  CHECK_THROWS_AS(tcp_store(kHere, 0, impatient), ValueError);
  CHECK_THROWS_AS(tcp_store(kHere, 65536, impatient), ValueError);
}

TEST_CASE("a client waits for a server that starts later") {
  const int port = tests::free_port();
  std::unique_ptr<StoreServer> server;
  std::thread later([&] {
    std::this_thread::sleep_for(Milliseconds(150));
    server = start_store_server(kHere, port, kQuick);
  });
  const std::string error =
      message_of<Error>([&] { CHECK(tcp_store(kHere, port, kQuick)->add("n", 1) == 1); });
  later.join();
  CHECK(error == "");
}

TEST_CASE("a client at an ephemeral port does not connect to itself and take the server's port") {
  constexpr int kNoNamespace = 99;
  // With two ephemeral ports, the kernel soon chooses the server's port for the client's own end.
  Process alone([] {
    if (unshare((geteuid() == 0 ? 0 : CLONE_NEWUSER) | CLONE_NEWNET) != 0) _exit(kNoNamespace);
    if (std::system("ip link set lo up 2> /dev/null") != 0) _exit(kNoNamespace);
    std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << "40000 40001";
    for (const int port : {40000, 40001}) {
      std::unique_ptr<StoreServer> server;
      std::string error;
      std::thread later([&] {
        std::this_thread::sleep_for(Milliseconds(300));
        error = message_of<Error>([&] { server = start_store_server(kHere, port, kQuick); });
      });
      const std::string client = message_of<Error>([&] { tcp_store(kHere, port, kQuick)->set("k", "v"); });
      later.join();
      if (!error.empty() || !client.empty()) throw Error(error + client);
    }
  });
  const int status = alone.join();
  if (status == kNoNamespace) WARN("skipped: there is no iproute2, or network namespaces are not permitted");
  CHECK((status == 0 || status == kNoNamespace));
}

TEST_CASE("misbehaving strangers do not affect clients") {
  const auto server = start_store_server(kHere, 0, kQuick);
  const auto member = tcp_store(kHere, server->port(), kQuick);
  Raw silent(server->port()), slow(server->port()), half(server->port());
  half.half_close();
  CHECK(half.hung_up());
  for (const std::string& garbage : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(64, '\0'),
                                     std::string(1 << 20, '\xff'), std::string("\x16\x03\x01", 3)}) {
    Raw raw(server->port());
    raw.send(garbage);
    CHECK(raw.hung_up());
    check_healthy(*server);
  }
  // Each byte comes in time, but the whole handshake takes too long. The connection must be closed.
  const auto begin = Clock::now();
  bool there = true;
  for (int i = 0; i < 64 && there && since(begin) < kSoon; ++i) {
    there = slow.send("x") && !slow.hung_up(Milliseconds(50));
  }
  CHECK_FALSE(there);
  CHECK(since(begin) < Milliseconds(3000));
  CHECK(silent.hung_up());
  // A dropped connection causes no more events, although a forked process holds its socket too.
  Raw wrong(server->port());
  wrong.receive(1);
  const Process holder([] { pause(); });
  wrong.send(std::string(100, 'x'));
  std::this_thread::sleep_for(Milliseconds(100));
  wrong.send("x");
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(Milliseconds(300));
  CHECK(std::clock() - before < CLOCKS_PER_SEC / 10);
  CHECK(member->add("n", 1) == 1);
}

TEST_CASE("a client that violates the protocol is dropped without effects") {
  const auto server = start_store_server(kHere, 0, kQuick);
  const std::string good = wire::encode(wire::Request{.op = wire::Op::add, .number = 1, .key = "n"});
  const auto framed = [](const std::string& body) {
    return wire::size_bytes(static_cast<std::uint32_t>(body.size())) + body;
  };
  std::string unknown_op = good, long_key = good, lying = good;
  unknown_op[4] = 99;
  lying[14] = '\x7f';  // makes the length of an inner field wrong
  long_key = wire::encode(wire::Request{.op = wire::Op::set, .key = std::string(Store::kMaxKey + 1, 'k')});
  const std::string breaches[] = {
      wire::size_bytes(0xffffffff) + "x",
      wire::size_bytes(wire::kMaxRequest + 1),
      framed(""),
      framed("garbage"),
      framed(std::string(1000, '\xff')),
      framed(good.substr(4) + "and more"),
      unknown_op,
      long_key,
      lying,
      good + good,  // the second request comes before the response to the first
  };
  for (const std::string& breach : breaches) {
    INFO(hex(breach.substr(0, 40)));
    const auto raw = admitted(server->port());
    raw->send(breach);
    CHECK(raw->hung_up());
    check_healthy(*server);
  }
  // A connection that stops in the middle of a request must be closed. One that sends the rest of the request
  // after a pause must get its response.
  for (const std::size_t begun : {std::size_t{1}, std::size_t{4}, good.size() - 1}) {
    const auto raw = admitted(server->port());
    std::this_thread::sleep_for(Milliseconds(400));  // idle connections have no time limit
    const auto begin = Clock::now();
    raw->send(good.substr(0, begun));
    CHECK(raw->hung_up());
    CHECK(since(begin) >= Milliseconds(250));
    CHECK(since(begin) < Milliseconds(1300));
  }
  const auto idle = admitted(server->port());
  std::this_thread::sleep_for(Milliseconds(400));
  idle->send(good.substr(0, 7));
  std::this_thread::sleep_for(Milliseconds(50));
  idle->send(good.substr(7));
  CHECK(idle->receive(6).size() == 6);
  idle->send(wire::encode(wire::Request{.op = wire::Op::get, .number = 60'000, .key = "never"}));
  std::this_thread::sleep_for(Milliseconds(50));
  idle->send(good);  // while the client waits
  CHECK(idle->hung_up(Milliseconds(1000)));
}

TEST_CASE("a client that does not read its response is dropped at the deadline") {
  TcpOptions options = kQuick;
  options.request_timeout = Milliseconds(kSanitized ? 6000 : 2000);  // for a value of this size
  const auto server = start_store_server(kHere, 0, options);
  tcp_store(kHere, server->port(), options)->set("k", std::string(Store::kMaxValue, 'x'));
  const auto raw = admitted(server->port());
  raw->send(wire::encode(wire::Request{.op = wire::Op::try_get, .key = "k"}));
  std::this_thread::sleep_for(options.request_timeout + Milliseconds(300));
  check_healthy(*server);
  CHECK(raw->receive(Store::kMaxValue).size() < Store::kMaxValue);
}

TEST_CASE("without a free file descriptor, a server serves its clients and accepts others later") {
  const auto server = start_store_server(kHere, 0, kQuick);
  const auto member = tcp_store(kHere, server->port(), kQuick);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  Fd first(dup(STDERR_FILENO));
  const rlimit lower{static_cast<rlim_t>(first.get()) + 1, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &lower) == 0);
  first.close();
  Raw raw(server->port());  // has the last descriptor
  const std::clock_t begin = std::clock();
  const std::string silence = raw.receive(1, Milliseconds(300));
  const std::string unserved =
      message_of<DistributedError>([&] { tcp_store(kHere, server->port(), kQuick); });
  const std::clock_t used = std::clock() - begin;
  const std::int64_t served = member->add("n", 1);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(silence == "");
  CHECK_THAT(unserved, ContainsSubstring("ulimit -n"));
  CHECK(served == 1);
  CHECK(used < CLOCKS_PER_SEC / 10);
  CHECK(raw.receive(16) == wire::kGreeting);
}

TEST_CASE("announced sizes use no memory") {
  const auto server = start_store_server(kHere, 0, kQuick);
  const std::size_t before = resident_bytes();
  std::vector<std::unique_ptr<Raw>> greedy;
  for (int i = 0; i < 60; ++i) {
    greedy.push_back(admitted(server->port()));
    greedy.back()->send(wire::size_bytes(wire::kMaxRequest) + std::string(1000, 'x'));
  }
  CHECK(resident_bytes() < before + (std::size_t{32} << 20));
  check_healthy(*server);
  for (const auto& raw : greedy) CHECK(raw->hung_up());
}

TEST_CASE("many silent connections do not lock out clients with the secret") {
  TcpOptions patient = kQuick;
  patient.request_timeout = Milliseconds(5000);
  const auto server = start_store_server(kHere, 0, patient);
  std::vector<std::unique_ptr<Raw>> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(std::make_unique<Raw>(server->port()));
  check_healthy(*server);
  CHECK(silent.front()->hung_up());  // the oldest stranger was dropped
}

TEST_CASE("a store has a size limit, and erase() frees space") {
  if (kSanitized) return;  // 272 MiB go through a socket, in the same way as smaller values
  const auto server = start_store_server(kHere, 0, {});
  const auto store = tcp_store(kHere, server->port(), {});
  const std::string large(Store::kMaxValue, 'x');
  for (int i = 0; i < 15; ++i) store->set(std::to_string(i), large);
  const std::string message = message_of<DistributedError>([&] {
    store->set("15", large);
    store->set("16", large);
  });
  CHECK_THAT(message, ContainsSubstring("full"));
  CHECK(store->get("3", kSoon).size() == large.size());
  CHECK(store->erase("3"));
  store->set("16", large.substr(1000));
}

TEST_CASE("the error for a used port names the process, and the port is free again after the server ends") {
  auto server = start_store_server(kHere, 0, kQuick);
  const int port = server->port();
  CHECK(server->address() == kHere);
  CHECK(port > 0);
  const auto client = tcp_store(kHere, port, kQuick);
  for (const std::string host : {"127.0.0.1", "localhost", ""}) {
    const std::string message = message_of<DistributedError>([&] { start_store_server(host, port, kQuick); });
    CHECK_THAT(message, ContainsSubstring(std::to_string(port)) && ContainsSubstring("TAPESTRY_PORT"));
#ifdef __linux__
    CHECK_THAT(message, ContainsSubstring("process " + std::to_string(getpid()) + " (") &&
                            ContainsSubstring("tests_distributed"));
#endif
  }
  check_healthy(*server);
  client->set("k", "v");
  for (int round = 0; round < 5; ++round) {
    server.reset();
    server = start_store_server(kHere, port, kQuick);
    CHECK(server->port() == port);
    CHECK(tcp_store(kHere, port, kQuick)->try_get("k") == std::nullopt);
  }
}

TEST_CASE("a server listens on loopback unless it has a secret") {
  CHECK(start_store_server("", 0, {})->address() == "127.0.0.1");
  CHECK_THROWS_WITH(start_store_server("0.0.0.0", 0, {}), ContainsSubstring("TAPESTRY_SECRET"));
  CHECK_THROWS_AS(start_store_server("0.0.0.0", 0, {}), ValueError);
  CHECK(start_store_server("0.0.0.0", 0, kQuick)->address() == "0.0.0.0");
  CHECK(start_store_server("localhost", 0, {})->address() == "127.0.0.1");
  CHECK_THROWS_AS(start_store_server("192.0.2.1", 0, kQuick),
                  DistributedError);  // not an address of this machine
  CHECK_THROWS_AS(start_store_server("no-such-host.invalid", 0, kQuick), DistributedError);
  CHECK_THROWS_AS(start_store_server(kHere, -1, {}), ValueError);
  CHECK_THROWS_AS(start_store_server(kHere, 65536, {}), ValueError);
  const auto everywhere = start_store_server("", 0, kQuick);
  check_healthy(*everywhere);
  CHECK((everywhere->address() == "::" || everywhere->address() == "0.0.0.0"));
}

TEST_CASE("waits end at once with the server's address when the server ends") {
  auto server = start_store_server(kHere, 0, kQuick);
  const int port = server->port();
  const auto store = tcp_store(kHere, port, kQuick);
  std::string message;
  std::thread waiting([&] { message = message_of<DistributedError>([&] { store->get("never", kSoon); }); });
  std::this_thread::sleep_for(Milliseconds(100));
  const auto begin = Clock::now();
  server.reset();
  waiting.join();
  CHECK(since(begin) < Milliseconds(1000));
  CHECK_THAT(message, ContainsSubstring("tcp 127.0.0.1:" + std::to_string(port)));
  CHECK_THROWS_AS(store->set("k", "v"), DistributedError);
  CHECK_THROWS_AS(store->try_get("k"), DistributedError);
  CHECK(since(begin) < Milliseconds(3000));
}

TEST_CASE("requests to a stopped server end at their deadline, also waiting ones") {
  const int port = tests::free_port();
  Process host([&] {
    const auto server = start_store_server(kHere, port, kQuick);
    pause();
  });
  const auto store = tcp_store(kHere, port, kQuick);
  store->set("k", "v");
  kill(host.id(), SIGSTOP);
  // Wait until the process has stopped: it runs on for a moment after kill().
  int stopped = 0;
  REQUIRE(waitpid(host.id(), &stopped, WUNTRACED) == host.id());
  auto begin = Clock::now();
  CHECK_THROWS_WITH(store->try_get("k"), ContainsSubstring("127.0.0.1"));
  CHECK(since(begin) >= Milliseconds(300));
  CHECK(since(begin) < Milliseconds(1300));
  begin = Clock::now();
  CHECK_THROWS_AS(store->get("k", Milliseconds(200)), DistributedError);
  CHECK(since(begin) < Milliseconds(1500));
  kill(host.id(), SIGCONT);
  CHECK(store->get("k", kSoon) == "v");
}

TEST_CASE("clients that die while they wait are removed") {
  const auto server = start_store_server(kHere, 0, kQuick);
  const std::string wait = wire::encode(wire::Request{.op = wire::Op::get, .number = 60'000, .key = "k"});
  for (int i = 0; i < 20; ++i) {
    const auto raw = admitted(server->port());
    raw->send(wait);
    if (i % 2) raw->half_close();
  }
  const auto store = tcp_store(kHere, server->port(), kQuick);
  store->set("k", "v");
  CHECK(store->get("k", kSoon) == "v");
  check_healthy(*server);
}

TEST_CASE("drain() waits for connected clients and accepts no others") {
  const auto server = start_store_server(kHere, 0, kQuick);
  auto client = tcp_store(kHere, server->port(), kQuick);
  Raw stranger(server->port());
  auto begin = Clock::now();
  CHECK_FALSE(server->drain(Milliseconds(100)));
  CHECK(since(begin) >= Milliseconds(100));
  CHECK(since(begin) < Milliseconds(1100));
  CHECK(stranger.hung_up(Milliseconds(100)));  // before the limit of the handshake
  client->set("k", "still served");
  CHECK(client->get("k", kSoon) == "still served");
  TcpOptions impatient = kQuick;
  impatient.connect_timeout = Milliseconds(100);
  CHECK_THROWS_AS(tcp_store(kHere, server->port(), impatient), TimeoutError);
  std::thread leaving([&] {
    std::this_thread::sleep_for(Milliseconds(100));
    client.reset();
  });
  begin = Clock::now();
  CHECK(server->drain(kSoon));
  CHECK(since(begin) < Milliseconds(3000));
  leaving.join();
}

TEST_CASE("a held key ends with its connection, also if the process is killed") {
  const auto server = start_store_server(kHere, 0, kQuick);
  const auto store = tcp_store(kHere, server->port(), kQuick);
  const auto hold = [&](const std::string& value) {
    return hold_key(kHere, server->port(), "k", value, kQuick);
  };
  const auto gone = [&] {
    for (const auto begin = Clock::now(); store->try_get("k") && since(begin) < kSoon;)
      std::this_thread::sleep_for(Milliseconds(5));
    return !store->try_get("k");
  };
  auto handle = hold("mine");
  REQUIRE(handle);
  CHECK_FALSE(hold("other"));
  CHECK(store->compare_set("k", "mine", "changed") == "changed");
  handle.reset();
  CHECK(gone());
#ifndef __SANITIZE_THREAD__  // TSan ends a child of a process with several threads that starts a thread
  tests::Process process([&] {
    const auto held = hold("of a process");
    for (;;) pause();
  });
  CHECK(store->get("k", kSoon) == "of a process");
  CHECK_FALSE(hold("other"));
  kill(process.id(), SIGKILL);
  CHECK(process.join() == -SIGKILL);
  CHECK(gone());
#endif
  CHECK(hold("the next"));
}
