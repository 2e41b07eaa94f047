// Tests collectives through shared memory. The ranks are threads with one mapping, so that ThreadSanitizer
// sees all accesses.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "tapestry/distributed/comm/internal/host_exchange.h"
#include "tests/distributed/store_support.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace std::chrono_literals;

namespace {

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product};
constexpr DType kAll[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                          DType::i64, DType::i32, DType::u8,  DType::boolean};

class Hopeless : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A PeerWatch that gives up at a deadline or when `lost` is set.
class Watch : public PeerWatch {
 public:
  explicit Watch(Milliseconds time = tests::kSoon) : deadline_(Clock::now() + time) {}
  bool hopeless(int) override { return lost || Clock::now() >= deadline_; }
  void fail(int peer) override { throw Hopeless(std::to_string(peer)); }
  std::atomic<bool> lost = false;

 private:
  const Deadline deadline_;
};

using Bytes = std::vector<std::byte>;

// Arbitrary bits, including bools that are neither 0 nor 1. Infinities and NaN are excluded, because the
// compiler may choose which of two NaN a sum returns.
Bytes random_bits(std::size_t bytes, DType dtype, unsigned seed) {
  std::mt19937 random(seed);
  Bytes values(bytes);
  constexpr std::size_t kPeriod = 65'521;  // a prime, so that all slots have different content
  for (std::size_t i = 0; i < std::min(bytes, kPeriod); ++i) values[i] = static_cast<std::byte>(random());
  for (std::size_t i = kPeriod; i < bytes; i += kPeriod)
    std::memcpy(values.data() + i, values.data() + i - kPeriod, std::min(kPeriod, bytes - i));
  for (std::size_t i = dtype_size(dtype) - 1; is_floating(dtype) && i < bytes; i += dtype_size(dtype))
    values[i] &= std::byte{0xbf};  // clears the highest bit of the exponent
  return values;
}

// The calls of one tensor.
void reduce_scatter(HostExchange& exchange, const void* in, void* out, std::int64_t count, DType dtype,
                    ReduceOp op, PeerWatch& watch) {
  const ScatterPart part{in, out, count, dtype, static_cast<std::size_t>(count) * dtype_size(dtype)};
  exchange.reduce_scatter(std::span(&part, 1), op, watch);
}
void all_gather(HostExchange& exchange, const void* in, void* out, std::size_t bytes, PeerWatch& watch) {
  const GatherPart part{in, out, bytes, bytes};
  exchange.all_gather(std::span(&part, 1), watch);
}

// The reduction of the ranks' `count` elements.
Bytes reduced(const std::vector<Bytes>& inputs, std::size_t offset, std::int64_t count, DType dtype,
              ReduceOp op) {
  std::vector<const void*> values;
  for (const Bytes& input : inputs) values.push_back(input.data() + offset);
  Bytes out(static_cast<std::size_t>(count) * dtype_size(dtype));
  reduce_in_order(out.data(), values.data(), static_cast<int>(values.size()), count, dtype, op);
  return out;
}

// Uses memcmp, because == of vectors compares byte by byte, which takes minutes under sanitizers.
bool same(const Bytes& x, const std::byte* expected) {
  return x.empty() || std::memcmp(x.data(), expected, x.size()) == 0;
}

void require(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

// Runs f(exchange, rank) on a thread per rank. Throws the first error after all threads have ended.
template <class F>
void on_ranks(int size, const F& f) {
  const auto memory = std::make_shared<SharedMemory>(HostExchange::bytes_for(size));
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        HostExchange exchange(memory, rank, size);
        f(exchange, rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

// Calls every collective once, with `count` elements per rank.
void check_all(int size, std::int64_t count, DType dtype, ReduceOp op, unsigned seed) {
  const std::size_t bytes = static_cast<std::size_t>(count) * dtype_size(dtype);
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < size; ++rank)
    inputs.push_back(
        random_bits(bytes * static_cast<std::size_t>(size), dtype, seed * 8 + static_cast<unsigned>(rank)));
  const Bytes sum = reduced(inputs, 0, count, dtype, op);
  on_ranks(size, [&](HostExchange& exchange, int rank) {
    Watch watch;
    const Bytes& mine = inputs[static_cast<std::size_t>(rank)];
    const int root = static_cast<int>(seed) % size;

    Bytes x(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(bytes));
    exchange.reduce(x.data(), count, dtype, op, HostExchange::kEveryone, watch);
    require(same(x, sum.data()), "all_reduce");

    std::copy_n(mine.begin(), bytes, x.begin());
    exchange.reduce(x.data(), count, dtype, op, root, watch);
    require(rank != root || same(x, sum.data()), "reduce");

    reduce_scatter(exchange, mine.data(), x.data(), count, dtype, op, watch);
    const Bytes part = reduced(inputs, bytes * static_cast<std::size_t>(rank), count, dtype, op);
    require(same(x, part.data()), "reduce_scatter");

    std::copy_n(mine.begin(), bytes, x.begin());
    exchange.broadcast(x.data(), bytes, root, watch);
    require(same(x, inputs[static_cast<std::size_t>(root)].data()), "broadcast");

    Bytes all(bytes * static_cast<std::size_t>(size));
    all_gather(exchange, mine.data(), all.data(), bytes, watch);
    for (std::size_t r = 0; r < inputs.size(); ++r)
      require(std::memcmp(inputs[r].data(), all.data() + bytes * r, bytes) == 0, "all_gather");

    // Rank i sends its first `bytes / (1 + (i + j) % 3)` bytes to rank j.
    const auto length = [&](std::size_t i, std::size_t j) { return bytes / (1 + (i + j) % 3); };
    std::vector<ExchangePart> parts;
    for (std::size_t r = 0, me = static_cast<std::size_t>(rank); r < inputs.size(); ++r)
      parts.push_back({mine.data(), all.data() + bytes * r, length(me, r), length(r, me)});
    exchange.all_to_all(parts, watch);
    for (std::size_t r = 0; r < inputs.size(); ++r)
      require(std::memcmp(inputs[r].data(), all.data() + bytes * r, parts[r].out_bytes) == 0, "all_to_all");
  });
}

// The same with blocks of two rows, which lie one row apart.
void check_rows(int size, std::int64_t count, DType dtype, ReduceOp op, unsigned seed) {
  const std::size_t row = static_cast<std::size_t>(count) * dtype_size(dtype), pitch = 2 * row;
  std::vector<Bytes> inputs;  // block r has rows 2 r and 2 r + 1 of a dense one
  for (int rank = 0; rank < size; ++rank)
    inputs.push_back(
        random_bits(pitch * static_cast<std::size_t>(size), dtype, seed + static_cast<unsigned>(rank)));
  const auto spread = [&](const Bytes& dense) {
    Bytes wide(2 * dense.size());
    for (std::size_t at = 0; at < dense.size(); at += row) std::memcpy(&wide[2 * at], &dense[at], row);
    return wide;
  };
  on_ranks(size, [&](HostExchange& exchange, int rank) {
    Watch watch;
    const auto me = static_cast<std::size_t>(rank);
    const Bytes wide = spread(inputs[me]), sum = reduced(inputs, pitch * me, 2 * count, dtype, op);
    Bytes out(pitch), all(wide.size());
    const ScatterPart scatter{wide.data(), out.data(), 2 * count, dtype, 2 * pitch, 2, pitch};
    exchange.reduce_scatter(std::span(&scatter, 1), op, watch);
    require(same(out, sum.data()), "reduce_scatter of rows");
    const GatherPart gather{inputs[me].data(), all.data(), pitch, 2 * pitch, 2, pitch};
    exchange.all_gather(std::span(&gather, 1), watch);
    std::vector<ExchangePart> parts;
    Bytes own(all.size());
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      const Bytes theirs =
          spread(Bytes(inputs[r].begin(), inputs[r].begin() + static_cast<std::ptrdiff_t>(pitch)));
      require(std::memcmp(&all[2 * pitch * r], theirs.data(), theirs.size()) == 0, "all_gather of rows");
      parts.push_back({wide.data(), &own[2 * pitch * r], pitch, pitch, 2, pitch, 2, pitch});
    }
    exchange.all_to_all(parts, watch);
    require(same(own, all.data()), "all_to_all of rows");
  });
}

}  // namespace

TEST_CASE("every dtype and reduction has the reference values") {
  unsigned seed = 1;
  for (int size = 2; size <= 5; ++size)
    for (const DType dtype : kAll)
      for (const ReduceOp op : kOps) {
        if (op == ReduceOp::mean && !is_floating(dtype)) continue;
        for (const std::int64_t count : {1, 4, 1021}) {
          CAPTURE(size, dtype_name(dtype), reduce_op_name(op), count);
          check_all(size, count, dtype, op, ++seed);
          if (op == ReduceOp::sum && count != 4) check_rows(size, count, dtype, op, ++seed);
        }
      }
}

TEST_CASE("lengths around the size of a slot and more rounds than slots have the reference values") {
  unsigned seed = 1000;
  for (int size = 2; size <= (kSanitized ? 3 : 5); ++size)
    for (const std::int64_t bytes : {512 << 10, (512 << 10) + 1, (512 << 10) * size - 1, 3'000'001}) {
      CAPTURE(size, bytes);
      check_all(size, bytes, DType::u8, ReduceOp::sum, ++seed);
      check_all(size, bytes / 2, DType::bf16, ReduceOp::mean, ++seed);
      check_rows(size, bytes / 4, DType::bf16, ReduceOp::sum, ++seed);
    }
}

TEST_CASE("collectives without elements complete") {
  on_ranks(2, [](HostExchange& exchange, int) {
    Watch watch;
    exchange.reduce(nullptr, 0, DType::f32, ReduceOp::sum, HostExchange::kEveryone, watch);
    exchange.broadcast(nullptr, 0, 1, watch);
    exchange.all_gather({}, watch);
    exchange.reduce_scatter({}, ReduceOp::sum, watch);
  });
}

TEST_CASE("a sequence of all collectives is right even if each rank is late in turn") {
  for (const int size : {2, 4}) {
    on_ranks(size, [&](HostExchange& exchange, int rank) {
      std::mt19937 same(42), own(static_cast<unsigned>(rank));
      for (int call = 0; call < (kSanitized ? 60 : 300); ++call) {
        Watch watch;
        const auto n = static_cast<std::size_t>(same() % 5 == 0 ? same() % 400'000 : same() % 2'000) + 1;
        const int root = static_cast<int>(same()) % size & 1;
        const auto value = [&](int r, std::size_t i) {
          return static_cast<std::int32_t>(static_cast<std::size_t>(call) * 31 + i * 7) + r;
        };
        if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
        std::vector<std::int32_t> x(n);
        for (std::size_t i = 0; i < n; ++i) x[i] = value(rank, i);
        auto* const data = reinterpret_cast<std::byte*>(x.data());
        const unsigned kind = same() % 3;
        if (kind == 0) {
          exchange.broadcast(data, n * 4, root, watch);
          for (std::size_t i = 0; i < n; ++i) require(x[i] == value(root, i), "broadcast");
        } else if (kind == 1) {
          exchange.reduce(data, static_cast<std::int64_t>(n), DType::i32, ReduceOp::max,
                          same() % 2 ? HostExchange::kEveryone : size - 1, watch);
          if (rank == size - 1)
            for (std::size_t i = 0; i < n; ++i) require(x[i] == value(size - 1, i), "reduce");
        } else {
          std::vector<std::int32_t> all(n * static_cast<std::size_t>(size));
          all_gather(exchange, data, all.data(), n * 4, watch);
          for (std::size_t i = 0; i < all.size(); ++i)
            require(all[i] == value(static_cast<int>(i / n), i % n), "all_gather");
        }
      }
    });
  }
}

TEST_CASE("a rank that waits for a lost peer gets an error soon, which names the peer") {
  const auto memory = std::make_shared<SharedMemory>(HostExchange::bytes_for(3));
  HostExchange exchange(memory, 0, 3), second(memory, 1, 3);
  float x = 1;
  auto* const data = reinterpret_cast<std::byte*>(&x);
  const auto start = Clock::now();
  {
    Watch watch(200ms);
    CHECK_THROWS_WITH(exchange.reduce(data, 1, DType::f32, ReduceOp::sum, HostExchange::kEveryone, watch),
                      "1");
    CHECK(tests::since(start) >= 200ms);
  }
  Watch watch;
  std::thread loses([&] {
    std::this_thread::sleep_for(100ms);
    watch.lost = true;
  });
  CHECK_THROWS_AS(second.broadcast(data, 4, 2, watch), Hopeless);
  CHECK(tests::since(start) < 10s);
  loses.join();
}

namespace {

// A PeerWatch for the following race. The peer sends its data and leaves after the waiting rank has looked
// for the data, but before the rank asks whether the peer is gone. The rank must receive the data.
class LastWord : public PeerWatch {
 public:
  LastWord(HostExchange& peer, float word) : peer_(peer), word_(word) {}
  bool hopeless(int) override {
    Watch watch;
    if (!sent_) peer_.broadcast(reinterpret_cast<std::byte*>(&word_), 4, 0, watch);
    sent_ = true;
    return true;
  }
  void fail(int peer) override { throw Hopeless(std::to_string(peer)); }

 private:
  HostExchange& peer_;
  float word_;
  bool sent_ = false;
};

}  // namespace

TEST_CASE("late ranks still receive what a rank wrote before it left") {
  const auto memory = std::make_shared<SharedMemory>(HostExchange::bytes_for(2));
  HostExchange leaves(memory, 0, 2), late(memory, 1, 2);
  LastWord watch(leaves, 5);
  float y = 0;
  late.broadcast(reinterpret_cast<std::byte*>(&y), 4, 0, watch);
  CHECK(y == 5);
  CHECK_THROWS_AS(late.broadcast(reinterpret_cast<std::byte*>(&y), 4, 0, watch), Hopeless);
}
