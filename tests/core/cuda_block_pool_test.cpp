#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tapestry/core/cuda/internal/block_pool.h"
#include "tapestry/core/error.h"
#include "tests/support/catch.h"

using namespace tapestry;
using cuda::BlockPool;
using cuda::StreamId;

namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

/// A fake MemorySource. Its addresses have no memory behind them, and the test decides when a stream has done
/// its work.
class Source final : public cuda::MemorySource {
 public:
  explicit Source(std::size_t room = 64 * kGiB) : room_(room) {}
  ~Source() override { CHECK(marks_ == 0); }

  void* allocate(std::size_t bytes) override {
    if (bytes > room_) return nullptr;
    room_ -= bytes;
    auto* const data = reinterpret_cast<char*>(next_);
    next_ += bytes + 4 * kMiB;
    segments[data] = bytes;
    return data;
  }
  void release(void* data) noexcept override {
    room_ += segments.at(static_cast<char*>(data));
    segments.erase(static_cast<char*>(data));
  }
  void* mark(StreamId stream) override {
    if (broken) throw DeviceError("the driver is gone");
    ++marks_;
    return new Mark{stream, given[stream]};
  }
  bool reached(void* mark) override {
    const Mark& m = *static_cast<Mark*>(mark);
    return done[m.stream] >= m.at;
  }
  void await(void* mark) override {
    const Mark& m = *static_cast<Mark*>(mark);
    done[m.stream] = std::max(done[m.stream], m.at);
    ++waits;
  }
  void drop(void* mark) noexcept override {
    --marks_;
    delete static_cast<Mark*>(mark);
  }

  std::map<char*, std::size_t> segments;
  std::map<StreamId, int> given, done;  // the amount of work that each stream was given and has done
  int waits = 0;
  bool broken = false;

 private:
  struct Mark {
    StreamId stream;
    int at;
  };
  std::size_t room_;
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
  int marks_ = 0;
};

std::size_t offset(const void* a, const void* b) {
  return static_cast<std::size_t>(static_cast<const char*>(b) - static_cast<const char*>(a));
}

}  // namespace

TEST_CASE("a block is taken from a segment of its size class") {
  Source source;
  BlockPool pool(source);
  struct Case {
    std::size_t bytes, segment;
  };
  for (const auto& [bytes, segment] :
       {Case{1, 2 * kMiB}, Case{kMiB, 2 * kMiB}, Case{kMiB + 1, 20 * kMiB}, Case{10 * kMiB - 512, 20 * kMiB},
        Case{10 * kMiB, 10 * kMiB}, Case{10 * kMiB + 1, 12 * kMiB}, Case{kGiB, kGiB}}) {
    INFO(bytes);
    void* const p = pool.allocate(bytes, 1);
    REQUIRE(source.segments.size() == 1);
    CHECK(source.segments.begin()->second == segment);
    CHECK(pool.stats().reserved == static_cast<std::int64_t>(segment));
    pool.deallocate(p);
    pool.empty_cache();
    CHECK(source.segments.empty());
    CHECK(pool.stats().reserved == 0);
  }
}

TEST_CASE("blocks are split off a segment, and freed neighbours are merged") {
  Source source;
  BlockPool pool(source);
  void* const a = pool.allocate(1, 1);
  void* const b = pool.allocate(513, 1);
  void* const c = pool.allocate(512, 1);
  CHECK(offset(a, b) == 512);
  CHECK(offset(b, c) == 1024);
  CHECK(pool.largest_free(1) == 2 * kMiB - 2048);
  CHECK(pool.largest_free(2) == 0);

  pool.deallocate(b);
  CHECK(pool.allocate(1024, 1) == b);  // best fit: the smallest sufficient block
  pool.deallocate(b);
  pool.deallocate(a);
  CHECK(pool.allocate(1536, 1) == a);  // the merged blocks a and b
  pool.deallocate(a);
  pool.deallocate(c);
  CHECK(pool.largest_free(1) == 2 * kMiB);
  CHECK(source.segments.size() == 1);

  // In larger segments a remainder of up to 1 MiB is not split off.
  void* const large = pool.allocate(9 * kMiB, 1);
  void* const rest = pool.allocate(10 * kMiB - 512, 1);
  CHECK(offset(large, rest) == 9 * kMiB);
  CHECK(pool.largest_free(1) ==
        2 * kMiB);  // the remaining 1 MiB and 512 bytes are free; `rest` fills the gap
  pool.deallocate(rest);
  pool.deallocate(large);
  CHECK(pool.largest_free(1) == 20 * kMiB);
  CHECK(pool.allocate(19 * kMiB, 1) == large);
  CHECK(source.segments.size() == 2);
}

TEST_CASE("small blocks are not taken from large segments") {
  Source source;
  BlockPool pool(source);
  pool.deallocate(pool.allocate(30 * kMiB, 1));
  static_cast<void>(pool.allocate(100, 1));
  CHECK(source.segments.size() == 2);
  CHECK(pool.largest_free(1) == 30 * kMiB);
}

TEST_CASE("a freed block is reused at once by its own stream, and by no other") {
  Source source;
  BlockPool pool(source);
  void* const p = pool.allocate(3 * kMiB, 1);
  pool.deallocate(p);
  void* const q = pool.allocate(3 * kMiB, 2);
  CHECK(q != p);
  CHECK(pool.allocate(3 * kMiB, 1) == p);
  CHECK(source.segments.size() == 2);
}

TEST_CASE("a block that other streams used is reused only after they have finished with it") {
  Source source;
  BlockPool pool(source);
  void* const p = pool.allocate(12 * kMiB, 1);
  source.given[2] = 5;
  source.given[3] = 7;
  CHECK(pool.use(p, 1));  // a use by the block's own stream does not delay reuse
  CHECK(pool.use(static_cast<char*>(p) + 5 * kMiB, 2));
  CHECK(pool.use(p, 2));
  CHECK(pool.use(p, 3));
  source.given[2] = 6;  // work that a stream was given before the block is freed delays its reuse
  pool.deallocate(p);
  source.given[2] = 9;  // later work does not
  CHECK_FALSE(pool.contains(p));
  CHECK(pool.stats().allocated == 0);

  void* const q = pool.allocate(12 * kMiB, 1);
  CHECK(q != p);
  source.done[2] = 6;
  void* const r = pool.allocate(12 * kMiB, 1);
  CHECK(r != p);
  source.done[3] = 7;
  CHECK(pool.allocate(12 * kMiB, 1) == p);
  CHECK(source.waits == 0);
  pool.deallocate(q);
  CHECK(pool.allocate(12 * kMiB, 1) == q);  // reuse cleared the streams that use() recorded
}

TEST_CASE("the cache is released on request, and when memory runs out") {
  Source source(100 * kMiB);
  BlockPool pool(source);
  void* const kept = pool.allocate(40 * kMiB, 1);
  pool.deallocate(pool.allocate(30 * kMiB, 2));
  void* const used = pool.allocate(20 * kMiB, 1);
  pool.use(used, 3);
  source.given[3] = 1;
  pool.deallocate(used);
  CHECK(pool.stats().reserved == static_cast<std::int64_t>(90 * kMiB));

  void* const p = pool.allocate(60 * kMiB, 1);  // after waiting for stream 3
  CHECK(p != nullptr);
  CHECK(source.waits == 1);
  CHECK(pool.stats().reserved == static_cast<std::int64_t>(100 * kMiB));
  CHECK(pool.allocate(1, 1) == nullptr);
  CHECK(pool.allocate(std::numeric_limits<std::size_t>::max(), 1) == nullptr);
  CHECK(pool.stats().allocated == static_cast<std::int64_t>(100 * kMiB));
  pool.deallocate(p);
  CHECK(pool.allocate(1, 1) != nullptr);
  pool.deallocate(kept);
  pool.empty_cache();
  CHECK(pool.stats().reserved == static_cast<std::int64_t>(2 * kMiB));
}

TEST_CASE("if a shared segment does not fit, the block gets a segment of its own size") {
  Source source(6 * kMiB);
  BlockPool pool(source);
  CHECK(pool.allocate(5 * kMiB, 1) != nullptr);
  CHECK(source.segments.begin()->second == 6 * kMiB);
}

TEST_CASE("statistics count requested bytes, not rounded ones") {
  Source source;
  BlockPool pool(source);
  void* const p = pool.allocate(1000, 1);
  void* const q = pool.allocate(5000, 2);
  pool.deallocate(p);
  CHECK(pool.stats().allocated == 5000);
  CHECK(pool.stats().peak_allocated == 6000);
  CHECK(pool.stats().allocations == 2);
  pool.reset_peak();
  CHECK(pool.stats().peak_allocated == 5000);
  pool.deallocate(q);
  pool.deallocate(q);  // not live: ignored
  int local = 0;
  pool.deallocate(&local);
  CHECK(pool.stats().allocated == 0);
  CHECK_FALSE(pool.use(&local, 3));
}

TEST_CASE("a block is never reused if the driver fails while it is freed") {
  Source source;
  BlockPool pool(source);
  void* const p = pool.allocate(12 * kMiB, 1);
  pool.use(p, 2);
  source.broken = true;
  pool.deallocate(p);
  CHECK(pool.stats().allocated == 0);
  CHECK(pool.allocate(12 * kMiB, 1) != p);
  pool.empty_cache();
  CHECK(source.segments.size() == 2);
}

// Allocates and frees at random, and compares the pool with a simple model of the live blocks. Blocks must
// never overlap, and no stream may get a block that another stream may still use.
TEST_CASE("blocks never overlap under random calls") {
  Source source(300 * kMiB);
  BlockPool pool(source);
  std::mt19937 random(7);
  struct Live {
    std::size_t bytes;
    StreamId stream;
  };
  std::map<char*, Live> live;
  std::size_t total = 0;
  for (int step = 0; step < 20'000; ++step) {
    const StreamId stream = 1 + random() % 3;
    ++source.given[stream];
    source.done[stream] = std::max(source.done[stream], source.given[stream] - 20);
    if (live.empty() || random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % (std::size_t{1} << (5 + random() % 21));
      auto* const p = static_cast<char*>(pool.allocate(bytes, stream));
      if (!p) {
        REQUIRE(total > 100 * kMiB);
        continue;
      }
      const auto after = live.lower_bound(p);
      REQUIRE((after == live.end() || p + bytes <= after->first));
      if (after != live.begin()) {
        const auto before = std::prev(after);
        REQUIRE(before->first + before->second.bytes <= p);
      }
      live[p] = {bytes, stream};
      total += bytes;
    } else {
      const auto it = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      if (random() % 3 == 0) REQUIRE(pool.use(it->first + random() % it->second.bytes, stream));
      pool.deallocate(it->first);
      total -= it->second.bytes;
      live.erase(it);
    }
    REQUIRE(pool.stats().allocated == static_cast<std::int64_t>(total));
  }
  for (const auto& [p, block] : live) pool.deallocate(p);
  pool.empty_cache();
  CHECK(source.segments.empty());
  CHECK(pool.stats().reserved == 0);
}

TEST_CASE("several threads can use one pool") {
  Source source;
  BlockPool pool(source);
  std::vector<std::thread> threads;
  for (StreamId stream = 1; stream <= 3; ++stream)
    threads.emplace_back([&, stream] {
      std::vector<void*> mine;
      for (int i = 0; i < 2000; ++i) {
        mine.push_back(pool.allocate(static_cast<std::size_t>(i % 7 + 1) * 100'000, stream));
        if (i % 3 == 2) {
          pool.deallocate(mine[mine.size() / 2]);
          mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(mine.size() / 2));
        }
      }
      for (void* const p : mine) pool.deallocate(p);
    });
  for (std::thread& t : threads) t.join();
  CHECK(pool.stats().allocated == 0);
  CHECK(pool.stats().allocations == 6000);
  pool.empty_cache();
  CHECK(source.segments.empty());
}

TEST_CASE("the out-of-memory text gives the sizes and what to do") {
  MemoryStats stats;
  stats.allocated = 1536;
  stats.reserved = 2 << 20;
  CHECK(cuda::out_of_memory_text("cuda:1", 3 * kGiB, stats, 600, kGiB / 2, 8 * kGiB) ==
        "[allocate] no room for 3.00 GiB (3221225472 bytes) on cuda:1: 512.00 MiB (536870912 bytes) of 8.00 "
        "GiB "
        "(8589934592 bytes) are free there; this process has reserved 2.00 MiB (2097152 bytes), of which "
        "tensors "
        "hold 1.50 KiB (1536 bytes) and the largest free block is 600 bytes; free tensors, use a smaller "
        "batch or "
        "model, or check with nvidia-smi which other processes use the GPU");
}
