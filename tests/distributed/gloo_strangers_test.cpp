// Processes that do not belong to the job connect to every socket on which ranks of one host listen, while
// the ranks connect to one another. The ranks must not notice, and must not listen on a TCP port.
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/distributed/comm/internal/sockets.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/processes.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;

namespace {

struct TcpSocket {
  std::string inode, state;
  int port = 0;
};

/// The sockets in /proc/net/tcp and tcp6.
std::vector<TcpSocket> tcp_sockets() {
  std::vector<TcpSocket> all;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);  // the heading
    while (std::getline(in, line)) {
      std::istringstream columns(line);
      std::string local, skip;
      TcpSocket socket;
      columns >> skip >> local >> skip >> socket.state >> skip >> skip >> skip >> skip >> skip >>
          socket.inode;
      socket.port = static_cast<int>(std::strtol(local.substr(local.rfind(':') + 1).c_str(), nullptr, 16));
      all.push_back(socket);
    }
  }
  return all;
}

std::set<std::string> own_sockets() {
  std::set<std::string> inodes;
  for (int fd = 0; fd < 1024; ++fd) {
    char target[64] = "";
    const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1);
    const std::string text(target, n > 0 ? static_cast<std::size_t>(n) : 0);
    if (text.starts_with("socket:[")) inodes.insert(text.substr(8, text.size() - 9));
  }
  return inodes;
}

/// Whether this process has a TCP socket that listens or is connected.
bool has_tcp_socket() {
  const auto own = own_sockets();
  for (const TcpSocket& socket : tcp_sockets())
    if (own.count(socket.inode)) return true;
  return false;
}

/// Connects to all listening sockets that did not exist before, over loopback or by their abstract Unix
/// names, and sends garbage.
class Stranger {
 public:
  Stranger() : before_(listening()), thread_([this] { run(); }) {}
  ~Stranger() { stop(); }
  int stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    return connections_;
  }

 private:
  using Names = std::set<std::string>;  // "tcp 4711" or "unix <name>"

  static Names listening() {
    Names names;
    for (const TcpSocket& socket : tcp_sockets())
      if (socket.state == "0A") names.insert("tcp " + std::to_string(socket.port));
    std::ifstream in("/proc/net/unix");
    for (std::string line; std::getline(in, line);)
      if (const auto at = line.find(" @"); at != std::string::npos)
        names.insert("unix " + line.substr(at + 2));
    return names;
  }

  void run() {
    while (!stopping_) {
      for (const std::string& name : listening())
        if (!before_.count(name)) disturb(name);
    }
  }

  void disturb(const std::string& name) {
    SocketAddress address;
    if (name.starts_with("tcp ")) {
      address = addresses_of("127.0.0.1", std::stoi(name.substr(4))).at(0);
    } else {
      auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
      un.sun_family = AF_UNIX;
      name.copy(un.sun_path + 1, sizeof un.sun_path - 1, 5);
      address.length = static_cast<socklen_t>(sizeof(sa_family_t) + 1 + name.size() - 5);
    }
    Fd& socket = held_.emplace_back();
    if (start_connect(address, socket) == 0) {
      usleep(200);
      const std::string garbage(200, '\xff');
      std::string_view rest = garbage;
      connections_ += send_some(socket.get(), rest) == 0 && rest.empty();
    }
    if (held_.size() >= 200) held_.clear();
  }

  const Names before_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> connections_{0};
  std::vector<Fd> held_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("child that connects while strangers do", "[.]") {
  const auto self = child_rank();
  std::atomic<bool> done{false}, tcp{false};
  std::thread sampler([&] {
    while (!done) tcp = tcp || has_tcp_socket();
  });
  {
    std::this_thread::sleep_for(self.rank * 150ms);  // the other ranks listen meanwhile
    const auto backend = gloo_backend(self.store, self.rank, self.size, 20s);
    std::vector<double> x(100'000, self.rank + 1.0);
    for (int i = 0; i < 3; ++i)
      backend->broadcast(x.data(), x.size() * sizeof x[0], i % self.size, Clock::now() + 20s);
    double one = 1;
    backend->all_reduce(&one, 1, DType::f64, ReduceOp::sum, Clock::now() + 20s);
    CHECK(one == self.size);
    CHECK(x.back() == 1.0);
    const auto part = backend->split({2, 1, 0}, prefix_store("part/", self.store), Clock::now() + 20s);
    part->barrier(Clock::now() + 20s);
  }
  done = true;
  sampler.join();
  CHECK_FALSE(tcp);
}

TEST_CASE("garbage from other processes does not end a job on one host, which opens no TCP port") {
  if (!has_gloo()) return;
  int disturbances = 0;
  for (int round = 0; round < 3; ++round) {
    Stranger stranger;
    RankProcesses ranks("child that connects while strangers do", 3);
    for (int rank = 0; rank < 3; ++rank) {
      const Ended& end = ranks.wait(rank);
      CAPTURE(round, rank, end.output, end.signal);
      CHECK(end.well());
    }
    disturbances += stranger.stop();
  }
  CHECK(disturbances > 0);  // otherwise this test shows nothing
}

TEST_CASE("ranks that are threads open no socket") {
  const auto before = own_sockets();
  std::atomic<bool> opened{false};
  run_local_ranks(
      3,
      [&](const Group& group) {
        group->barrier().wait();
        opened = opened || own_sockets() != before;
      },
      kBounded);
  CHECK_FALSE(opened);
}
