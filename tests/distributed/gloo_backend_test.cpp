// Tests the gloo backend alone. collectives_test.cpp tests what all transports have in common.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/processes.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;

namespace {

Deadline in(Milliseconds time) { return Clock::now() + time; }

// The tests run with shared memory, and with messages only.
constexpr const char* kGloo[] = {"gloo", "gloo, messages only"};

using Backends = std::vector<std::shared_ptr<Backend>>;

Backends connect(const std::string& name, int size) {
  for (const Transport& transport : transports())
    if (transport.name == name) return transport.connect(size);
  throw std::runtime_error("no transport " + name);
}

// Runs f(backend) on a thread per rank.
void on_each(const Backends& backends, const std::function<void(Backend&)>& f) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(backends.size());
  for (std::size_t r = 0; r < backends.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        f(*backends[r]);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

// Values whose sum depends on the order of the additions, including extreme ones.
template <class T>
std::vector<T> awkward(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = random();
    float x = std::ldexp(static_cast<float>(bits % 10'007) - 5'000, static_cast<int>(bits >> 16) % 24 - 12);
    if (bits % 97 == 0) x = bits % 2 ? 0.0f : -0.0f;
    if (bits % 1009 == 0) x = INFINITY;
    values[i] = static_cast<T>(x);
  }
  return values;
}

template <class T>
std::vector<std::vector<T>> reduced_by(const std::string& name, int size, std::size_t count, ReduceOp op) {
  std::vector<std::vector<T>> results(static_cast<std::size_t>(size));
  on_each(connect(name, size), [&](Backend& backend) {
    auto values = awkward<T>(backend.rank(), count);
    backend.all_reduce(values.data(), static_cast<std::int64_t>(count), dtype_of<T>, op, in(30s));
    results[static_cast<std::size_t>(backend.rank())] = std::move(values);
  });
  return results;
}

template <class T>
void check_same_bits(int size, std::size_t count, ReduceOp op) {
  CAPTURE(size, count, reduce_op_name(op), dtype_name(dtype_of<T>));
  const auto local = reduced_by<T>("local", size, count, op);
  for (const char* name : kGloo) {
    CAPTURE(name);
    for (const auto& values : reduced_by<T>(name, size, count, op))
      CHECK(std::memcmp(values.data(), local[0].data(), count * sizeof(T)) == 0);
  }
}

}  // namespace

TEST_CASE("gloo and local reduce to the same bits") {
  if (!has_gloo()) return;
  for (const int size : {2, 3, 5}) {
    // The lengths select both algorithms, and one or several pieces.
    for (const std::size_t count : {7, 1021, 4099, 300'007}) {
      check_same_bits<float>(size, count, ReduceOp::sum);
      check_same_bits<BFloat16>(size, count, ReduceOp::mean);
    }
    check_same_bits<float>(size, 10'007, ReduceOp::min);
    check_same_bits<double>(size, 10'007, ReduceOp::product);
    check_same_bits<Half>(size, 10'007, ReduceOp::sum);
  }
}

namespace {

// Checks messages of 700,001 elements. With 2 to 4 ranks their blocks have several pieces, of which the last
// is shorter.
void check_large_messages(const char* name, int size) {
  constexpr std::size_t count = 700'001;
  on_each(connect(name, size), [&](Backend& backend) {
    const auto value = [](std::size_t i, int rank) {
      return static_cast<std::int32_t>(i * 7 + static_cast<std::size_t>(rank) * 1'000'003 % 8191);
    };
    std::vector<std::int32_t> x(count), all(count * static_cast<std::size_t>(size));
    for (int root = 0; root < size; ++root) {
      for (std::size_t i = 0; i < count; ++i) x[i] = value(i, backend.rank());
      auto y = x;
      backend.broadcast(x.data(), count * sizeof x[0], root, in(30s));
      backend.reduce(y.data(), static_cast<std::int64_t>(count), DType::i32, ReduceOp::sum, root, in(30s));
      for (std::size_t i = 0; i < count; ++i) {
        std::int32_t sum = 0;
        for (int r = 0; r < size; ++r) sum += value(i, r);
        if (x[i] != value(i, root)) throw std::runtime_error("broadcast, element " + std::to_string(i));
        if (backend.rank() == root && y[i] != sum)
          throw std::runtime_error("reduce, element " + std::to_string(i));
      }
    }
    for (std::size_t i = 0; i < count; ++i) x[i] = value(i, backend.rank());
    backend.all_gather(x.data(), all.data(), count * sizeof x[0], in(30s));
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i] != value(i % count, static_cast<int>(i / count)))
        throw std::runtime_error("all_gather, element " + std::to_string(i));
    backend.reduce_scatter(all.data(), x.data(), static_cast<std::int64_t>(count), DType::i32, ReduceOp::max,
                           in(30s));
    for (std::size_t i = 0; i < count; ++i)
      if (x[i] != value(i, backend.rank()))
        throw std::runtime_error("reduce_scatter, element " + std::to_string(i));
  });
}

}  // namespace

TEST_CASE("large messages arrive complete, for every root and number of pieces") {
  if (!has_gloo()) return;
  for (const char* name : kGloo)
    for (const int size : {2, 3, 4}) check_large_messages(name, size);
}

TEST_CASE("messages with different tags can be received in any order") {
  if (!has_gloo()) return;
  on_each(connect("gloo", 2), [](Backend& backend) {
    const int peer = 1 - backend.rank();
    if (backend.rank() == 0) {
      const int one = 1, two = 2, three = 3;
      std::thread first([&] { backend.send(&one, sizeof one, peer, 7, in(30s)); });
      backend.send(&two, sizeof two, peer, 8, in(30s));
      first.join();
      backend.send(&three, sizeof three, peer, 7, in(30s));
    } else {
      int two = 0, one = 0, three = 0;
      backend.recv(&two, sizeof two, peer, 8, in(30s));
      backend.recv(&one, sizeof one, peer, 7, in(30s));
      backend.recv(&three, sizeof three, peer, 7, in(30s));
      if (one != 1 || two != 2 || three != 3) throw std::runtime_error("wrong message");
    }
  });
}

TEST_CASE("split() makes a group of some ranks") {
  if (!has_gloo()) return;
  const auto store = memory_store();
  on_each(connect("gloo", 4), [&](Backend& backend) {
    if (backend.rank() % 2 == 0) return;
    const auto odd = backend.split({1, 3}, prefix_store("odd/", store), in(30s));
    float x = static_cast<float>(backend.rank());
    odd->all_reduce(&x, 1, DType::f32, ReduceOp::sum, in(30s));
    if (x != 4 || odd->rank() != backend.rank() / 2 || odd->size() != 2)
      throw std::runtime_error("wrong group");
  });
}

TEST_CASE("abort() ends calls in progress, on this rank and on its peers") {
  if (!has_gloo()) return;
  const Backends backends = connect("gloo", 3);
  std::thread aborts([&] {
    std::this_thread::sleep_for(100ms);
    backends[0]->abort("[test] enough");
  });
  std::vector<std::string> errors(3);
  const auto start = Clock::now();
  on_each(backends, [&](Backend& backend) {
    if (backend.rank() == 2) return;  // rank 2 does not take part in the call
    std::vector<float> x(100'000);
    try {
      backend.all_reduce(x.data(), 100'000, DType::f32, ReduceOp::sum, in(30s));
    } catch (const DistributedError& e) {
      errors[static_cast<std::size_t>(backend.rank())] = e.what();
    }
  });
  CHECK(Clock::now() - start < 5s);
  aborts.join();
  CHECK(errors[0] == "[test] enough");
  CHECK_THAT(errors[1], ContainsSubstring("rank 1 of 3 lost its connection to rank 0"));
  backends[0]->abort("[test] again");
  CHECK_THROWS_WITH(backends[0]->barrier(in(30s)), "[test] enough");
}

TEST_CASE("a wait ends at its deadline, and the transport fails") {
  if (!has_gloo()) return;
  const Backends backends = connect("gloo", 2);
  const auto start = Clock::now();
  CHECK_THROWS_AS(backends[0]->barrier(in(200ms)), TimeoutError);
  CHECK(Clock::now() - start >= 200ms);
  CHECK(Clock::now() - start < 5s);
  CHECK_THROWS_WITH(backends[0]->barrier(in(30s)), ContainsSubstring("rank 0 of 2 waited for rank 1"));
  CHECK_THROWS_WITH(backends[1]->barrier(in(30s)), ContainsSubstring("lost its connection to rank 0"));
}

TEST_CASE("a rank that does not connect is named") {
  if (!has_gloo()) return;
  const auto store = memory_store();
  CHECK_THROWS_AS(gloo_backend(store, 1, 3, 100ms), TimeoutError);
  CHECK_THROWS_WITH(gloo_backend(store, 1, 3, 100ms),
                    ContainsSubstring("rank 1 of 3") && ContainsSubstring("for rank 0, 2, which did not"));
  CHECK_THROWS_AS(gloo_backend(store, 3, 3, 100ms), ValueError);
}

TEST_CASE("child of an interface that is not there", "[.]") {
  const auto self = child_rank();
  CHECK_THROWS_WITH(
      gloo_backend(self.store, self.rank, self.size, 20s),
      ContainsSubstring("TAPESTRY_INTERFACE is nowhere0, but this host has ") && ContainsSubstring("lo"));
}

TEST_CASE("a network interface that does not exist is an error") {
  if (!has_gloo()) return;
  RankProcesses ranks("child of an interface that is not there", 2, {{"TAPESTRY_INTERFACE", "nowhere0"}});
  for (int rank = 0; rank < 2; ++rank) {
    const Ended& end = ranks.wait(rank);
    CAPTURE(rank, end.output, end.signal);
    CHECK(end.well());
  }
}

namespace {

// The local addresses of this process's TCP sockets, in the kernel's hexadecimal notation.
std::set<std::string> own_addresses() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    own.insert(std::filesystem::read_symlink(entry.path(), gone));
  }
  std::set<std::string> addresses;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);  // the heading
    while (std::getline(in, line)) {
      std::istringstream columns(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      columns >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >>
          inode;
      if (own.count("socket:[" + inode + "]") > 0) addresses.insert(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

}  // namespace

TEST_CASE("child without TCP", "[.]") {
  const auto self = child_rank();
  CHECK(own_addresses().empty());
  const auto backend = gloo_backend(self.store, self.rank, self.size, 20s);
  backend->barrier(in(20s));
  CHECK(own_addresses().empty());
  backend->barrier(in(20s));  // no rank leaves before all have checked
}

TEST_CASE("ranks of one host have no TCP socket") {
  if (!has_gloo()) return;
  RankProcesses ranks("child without TCP", 2);
  for (int rank = 0; rank < 2; ++rank) {
    const Ended& end = ranks.wait(rank);
    CAPTURE(rank, end.output, end.signal);
    CHECK(end.well());
  }
}

TEST_CASE("child of collectives between processes", "[.]") {
  const auto self = child_rank();
  const auto backend = gloo_backend(self.store, self.rank, self.size, 20s);
  for (const std::size_t count : {5, 300'007}) {
    auto values = awkward<float>(self.rank, count);
    backend->all_reduce(values.data(), static_cast<std::int64_t>(count), DType::f32, ReduceOp::sum, in(20s));
    std::vector<float> expected = awkward<float>(0, count);
    for (int r = 1; r < self.size; ++r) {
      const auto more = awkward<float>(r, count);
      for (std::size_t i = 0; i < count; ++i) expected[i] += more[i];
    }
    CHECK(std::memcmp(values.data(), expected.data(), count * sizeof(float)) == 0);

    // A list of a large and a small tensor, whose blocks are gathered again, must give the same bits.
    const auto size = static_cast<std::size_t>(self.size), each = count / size;
    const auto own = awkward<float>(self.rank, count);
    std::vector<float> part(each), few(1), whole(count), three(size);
    const auto bytes = [](std::size_t n) { return n * sizeof(float); };
    const ScatterPart sums[] = {
        {own.data(), part.data(), static_cast<std::int64_t>(each), DType::f32, bytes(each)},
        {own.data(), few.data(), 1, DType::f32, bytes(each)}};
    backend->reduce_scatter(sums, ReduceOp::sum, in(20s));
    const GatherPart gathered[] = {{part.data(), whole.data(), bytes(each), bytes(each)},
                                   {few.data(), three.data(), bytes(1), bytes(1)}};
    backend->all_gather(gathered, in(20s));
    CHECK(std::memcmp(whole.data(), expected.data(), bytes(each * size)) == 0);
    for (std::size_t r = 0; r < size; ++r)
      CHECK(std::memcmp(&three[r], &expected[r * each], sizeof(float)) == 0);
  }
}

TEST_CASE("collectives between processes have the right values") {
  if (!has_gloo()) return;
  for (const char* interface : {"", "lo"}) {
    RankProcesses ranks("child of collectives between processes", 3, {{"GLOO_SOCKET_IFNAME", interface}});
    for (int rank = 0; rank < 3; ++rank) {
      const Ended& end = ranks.wait(rank);
      CAPTURE(interface, rank, end.output, end.signal);
      CHECK(end.well());
    }
  }
}
