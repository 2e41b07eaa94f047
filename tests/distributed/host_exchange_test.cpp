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
  // Whole elements of every dtype, and no divisor of a slot, so that all slots have different content.
  constexpr std::size_t kPeriod = 8 * 8191;
  const std::size_t own = std::min(bytes, kPeriod);
  for (std::size_t i = 0; i < own; i += 4) {
    const auto word = static_cast<std::uint32_t>(random());
    std::memcpy(values.data() + i, &word, std::min<std::size_t>(4, own - i));
  }
  if (is_floating(dtype))  // clears the highest bit of the exponent, in the top byte of each element
    for (std::size_t i = dtype_size(dtype) - 1; i < own; i += dtype_size(dtype)) values[i] &= std::byte{0xbf};
  for (std::size_t i = kPeriod; i < bytes; i += kPeriod)
    std::memcpy(values.data() + i, values.data() + i - kPeriod, std::min(kPeriod, bytes - i));
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

// A call of each collective: what the ranks have, and the reduction of their first `count` elements.
struct Case {
  Case(int size, std::int64_t elements, DType type, ReduceOp how, unsigned seed)
      : count(elements), dtype(type), op(how), root(static_cast<int>(seed) % size) {
    for (int rank = 0; rank < size; ++rank)
      inputs.push_back(random_bits(bytes() * static_cast<std::size_t>(size), dtype,
                                   seed * 8 + static_cast<unsigned>(rank)));
    sum = reduced(inputs, 0, count, dtype, op);
  }
  std::size_t bytes() const { return static_cast<std::size_t>(count) * dtype_size(dtype); }
  void require(bool ok, const char* what) const {
    if (ok) return;
    throw std::runtime_error(concat({what, " of ", count, " ", dtype_name(dtype), ", ", reduce_op_name(op),
                                     ", ", inputs.size(), " ranks"}));
  }

  std::int64_t count;
  DType dtype;
  ReduceOp op;
  int root;
  std::vector<Bytes> inputs;  // `count` elements for each rank
  Bytes sum;
};

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

// Calls every collective once.
void check_all(HostExchange& exchange, int rank, const Case& c) {
  Watch watch;
  const std::size_t bytes = c.bytes();
  const Bytes& mine = c.inputs[static_cast<std::size_t>(rank)];

  Bytes x(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(bytes));
  exchange.reduce(x.data(), c.count, c.dtype, c.op, HostExchange::kEveryone, watch);
  c.require(same(x, c.sum.data()), "all_reduce");

  std::copy_n(mine.begin(), bytes, x.begin());
  exchange.reduce(x.data(), c.count, c.dtype, c.op, c.root, watch);
  c.require(rank != c.root || same(x, c.sum.data()), "reduce");

  reduce_scatter(exchange, mine.data(), x.data(), c.count, c.dtype, c.op, watch);
  const Bytes part = reduced(c.inputs, bytes * static_cast<std::size_t>(rank), c.count, c.dtype, c.op);
  c.require(same(x, part.data()), "reduce_scatter");

  std::copy_n(mine.begin(), bytes, x.begin());
  exchange.broadcast(x.data(), bytes, c.root, watch);
  c.require(same(x, c.inputs[static_cast<std::size_t>(c.root)].data()), "broadcast");

  Bytes all(mine.size());
  all_gather(exchange, mine.data(), all.data(), bytes, watch);
  for (std::size_t r = 0; r < c.inputs.size(); ++r)
    c.require(std::memcmp(c.inputs[r].data(), all.data() + bytes * r, bytes) == 0, "all_gather");

  // Rank i sends its first `bytes / (1 + (i + j) % 3)` bytes to rank j.
  const auto length = [&](std::size_t i, std::size_t j) { return bytes / (1 + (i + j) % 3); };
  std::vector<ExchangePart> parts;
  for (std::size_t r = 0, me = static_cast<std::size_t>(rank); r < c.inputs.size(); ++r)
    parts.push_back({mine.data(), all.data() + bytes * r, length(me, r), length(r, me)});
  exchange.all_to_all(parts, watch);
  for (std::size_t r = 0; r < c.inputs.size(); ++r)
    c.require(std::memcmp(c.inputs[r].data(), all.data() + bytes * r, parts[r].out_bytes) == 0, "all_to_all");
}

// Calls the collectives with blocks of two rows, which lie one row apart. `count` is even.
void check_rows(HostExchange& exchange, int rank, const Case& c) {
  Watch watch;
  const std::size_t pitch = c.bytes(), row = pitch / 2;
  const auto spread = [&](const std::byte* dense, std::size_t bytes) {
    Bytes wide(2 * bytes);
    for (std::size_t at = 0; at < bytes; at += row) std::memcpy(&wide[2 * at], dense + at, row);
    return wide;
  };
  const auto me = static_cast<std::size_t>(rank);
  const Bytes& mine = c.inputs[me];  // block r has rows 2 r and 2 r + 1
  const Bytes wide = spread(mine.data(), mine.size()),
              sum = reduced(c.inputs, pitch * me, c.count, c.dtype, c.op);
  Bytes out(pitch), all(wide.size());
  const ScatterPart scatter{wide.data(), out.data(), c.count, c.dtype, 2 * pitch, 2, pitch};
  exchange.reduce_scatter(std::span(&scatter, 1), c.op, watch);
  c.require(same(out, sum.data()), "reduce_scatter of rows");
  const GatherPart gather{mine.data(), all.data(), pitch, 2 * pitch, 2, pitch};
  exchange.all_gather(std::span(&gather, 1), watch);
  std::vector<ExchangePart> parts;
  Bytes own(all.size());
  for (std::size_t r = 0; r < c.inputs.size(); ++r) {
    const Bytes theirs = spread(c.inputs[r].data(), pitch);
    c.require(std::memcmp(&all[2 * pitch * r], theirs.data(), theirs.size()) == 0, "all_gather of rows");
    parts.push_back({wide.data(), &own[2 * pitch * r], pitch, pitch, 2, pitch, 2, pitch});
  }
  exchange.all_to_all(parts, watch);
  c.require(same(own, all.data()), "all_to_all of rows");
}

}  // namespace

TEST_CASE("every dtype and reduction has the reference values") {
  unsigned seed = 1;
  for (int size = 2; size <= (kSanitized ? 3 : 5); ++size) {
    std::vector<Case> cases;
    for (const DType dtype : kAll)
      for (const ReduceOp op : kOps)
        if (op != ReduceOp::mean || is_floating(dtype))
          for (const std::int64_t count : {1, 2, 1021, 2042})
            if (count < 2042 || op == ReduceOp::sum) cases.emplace_back(size, count, dtype, op, ++seed);
    // One exchange for all of them: a segment costs more than a call.
    on_ranks(size, [&](HostExchange& exchange, int rank) {
      for (const Case& c : cases) {
        check_all(exchange, rank, c);
        if (c.op == ReduceOp::sum && c.count % 2 == 0) check_rows(exchange, rank, c);
      }
    });
  }
}

TEST_CASE("lengths around the size of a slot and more rounds than slots have the reference values") {
  constexpr std::int64_t kSlot = 512 << 10;  // bytes; a rank has 4 slots
  unsigned seed = 1000;
  for (const int size : {2, 3, 5})
    for (const std::int64_t bytes : {kSlot, kSlot + 1, kSlot * size - 1, 5 * kSlot + 1}) {
      const bool is_long = bytes > 5 * kSlot;
      if (kSanitized && (size == 5 || (bytes != kSlot + 1 && !is_long))) continue;
      std::vector<Case> cases;
      if (!kSanitized || !is_long) cases.emplace_back(size, bytes, DType::u8, ReduceOp::sum, ++seed);
      // One case has bf16, because its bytes have four times as many elements as those of f64.
      const DType mean = size == 3 && bytes == kSlot * size - 1 ? DType::bf16 : DType::f64;
      cases.emplace_back(size, bytes / static_cast<std::int64_t>(dtype_size(mean)), mean, ReduceOp::mean,
                         ++seed);
      cases.emplace_back(size, bytes / 4 * 2, DType::bf16, ReduceOp::sum, ++seed);
      on_ranks(size, [&](HostExchange& exchange, int rank) {
        for (const Case& c : cases)
          if (c.dtype == DType::bf16 && c.op == ReduceOp::sum) check_rows(exchange, rank, c);
          else check_all(exchange, rank, c);
      });
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
  constexpr int kCalls = kSanitized ? 60 : 300;
  constexpr std::size_t kLongest = kSanitized ? 150'000 : 400'000;
  std::vector<std::int32_t> numbers(kLongest + kCalls * 31 + 4);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i * 7);
  for (const int size : {2, 4}) {
    on_ranks(size, [&](HostExchange& exchange, int rank) {
      std::mt19937 same(42), own(static_cast<unsigned>(rank));
      for (int call = 0; call < kCalls; ++call) {
        Watch watch;
        const std::size_t n = (same() % 5 == 0 ? same() % kLongest : same() % 2'000) + 1;
        const int root = static_cast<int>(same()) % size & 1;
        // The numbers of a rank are larger than those of the ranks before it.
        const auto values = [&](int r) { return numbers.data() + call * 31 + r; };
        if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
        std::vector<std::int32_t> x(values(rank), values(rank) + n);
        auto* const data = reinterpret_cast<std::byte*>(x.data());
        const auto equals = [&](const std::int32_t* got, int r) {
          return std::memcmp(got, values(r), n * 4) == 0;
        };
        const unsigned kind = same() % 3;
        if (kind == 0) {
          exchange.broadcast(data, n * 4, root, watch);
          require(equals(x.data(), root), "broadcast");
        } else if (kind == 1) {
          exchange.reduce(data, static_cast<std::int64_t>(n), DType::i32, ReduceOp::max,
                          same() % 2 ? HostExchange::kEveryone : size - 1, watch);
          if (rank == size - 1) require(equals(x.data(), size - 1), "reduce");
        } else {
          std::vector<std::int32_t> all(n * static_cast<std::size_t>(size));
          all_gather(exchange, data, all.data(), n * 4, watch);
          for (int r = 0; r < size; ++r)
            require(equals(&all[n * static_cast<std::size_t>(r)], r), "all_gather");
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
