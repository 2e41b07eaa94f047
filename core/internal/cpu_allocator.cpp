#include "tapestry/core/internal/cpu_allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/core/internal/fork.h"
#include "tapestry/core/internal/limits.h"
#include "tapestry/core/tls_model.h"

namespace tapestry::detail {
namespace {

constexpr std::size_t kAlignment = 64;
// More than any machine has. Sums of sizes up to this limit cannot overflow.
constexpr std::size_t kMaxBytes = std::size_t{1} << 46;

// The statistics of one logical device. Thread-safe.
class alignas(64) Counters {
 public:
  void allocated(std::size_t bytes) {
    const std::int64_t now =
        allocated_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed) +
        static_cast<std::int64_t>(bytes);
    std::int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  void count(std::int64_t allocations) { count_.fetch_add(allocations, std::memory_order_relaxed); }
  void freed(std::size_t bytes) {
    allocated_.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
  void reserve(std::size_t bytes) {
    reserved_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
  void unreserve(std::size_t bytes) {
    reserved_.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
  void reset_peak() { peak_.store(allocated_.load(std::memory_order_relaxed), std::memory_order_relaxed); }
  MemoryStats stats() const {
    return {allocated_.load(std::memory_order_relaxed), peak_.load(std::memory_order_relaxed),
            reserved_.load(std::memory_order_relaxed), count_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<std::int64_t> allocated_{0}, peak_{0}, reserved_{0}, count_{0};
};

void* from_system(std::size_t bytes) {
  void* data = nullptr;
  if (bytes > kMaxBytes || posix_memalign(&data, kAlignment, bytes) != 0) return nullptr;
  return data;
}

[[noreturn]] void out_of_memory(Device device, std::size_t bytes, const Counters& counters) {
  const MemoryStats s = counters.stats();
  fail<OutOfMemoryError>("[allocate] the system could not provide ", bytes, " bytes for ", device, ", where ",
                         s.allocated, " bytes are allocated and ", s.reserved, " reserved", memory_limits(),
                         "; free tensors, or use a smaller batch or model");
}

// ---- system allocator ----

class SystemAllocator final : public Allocator {
 public:
  void* allocate(Device device, std::size_t bytes) override {
    Counters& counters = counters_[device.index];
    void* const data = bytes > 0 ? from_system(bytes) : nullptr;
    if (!data && bytes > 0) out_of_memory(device, bytes, counters);
    counters.reserve(bytes);
    counters.allocated(bytes);
    counters.count(1);
    return data;
  }
  void deallocate(Device device, void* data, std::size_t bytes) noexcept override {
    std::free(data);
    counters_[device.index].freed(bytes);
    counters_[device.index].unreserve(bytes);
  }
  MemoryStats stats(Device device) const override { return counters_[device.index].stats(); }
  void reset_peak(Device device) override { counters_[device.index].reset_peak(); }
  void empty_cache() override {}
  void copy(Device, void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

 private:
  Counters counters_[kMaxDevices];
};

// ---- caching allocator ----

// Size classes: the multiples of 64 up to 512 bytes, then eight classes per power of two, so that at most an
// eighth of a block is wasted. Large blocks waste only address space, because their last pages are never
// touched. A block consists of the header and the size of its class.
constexpr std::size_t kHeader = 64;
constexpr int kClasses = 8 + 8 * (46 - 9);
constexpr int class_of(std::size_t bytes) {
  if (bytes <= 512) return bytes <= 64 ? 0 : static_cast<int>((bytes - 1) / 64);
  // The step between classes is 2^shift: (bytes - 1) >> shift keeps the four leading bits.
  const int shift = std::bit_width(bytes - 1) - 4;
  return 8 * (shift - 6) + static_cast<int>((bytes - 1) >> shift);
}
constexpr std::size_t class_bytes(int c) {
  if (c < 8) return 64 * (static_cast<std::size_t>(c) + 1);
  return (static_cast<std::size_t>(c % 8) + 9) << (c / 8 + 5);
}
static_assert(class_of(0) == 0 && class_of(64) == 0 && class_of(65) == 1 && class_of(512) == 7);
static_assert(class_of(513) == 8 && class_bytes(8) == 576 && class_of(1024) == 15 && class_of(1025) == 16);
static_assert(class_bytes(15) == 1024 && class_bytes(16) == 1152 && class_of(kMaxBytes) == kClasses - 1);

// A thread caches only blocks of up to kSmallBytes, and at most kCachedBlocks[c] blocks of size class c.
constexpr std::size_t kSmallBytes = 32 * 1024;
constexpr int kSmallClasses = class_of(kSmallBytes) + 1;
constexpr auto kCachedBlocks = [] {
  std::array<int, kSmallClasses> blocks{};
  for (int c = 0; c < kSmallClasses; ++c)
    blocks[c] = static_cast<int>(std::clamp<std::size_t>(128 * 1024 / class_bytes(c), 8, 64));
  return blocks;
}();

// A free block stores the link to the next one.
struct Block {
  Block* next;
};
struct FreeList {
  Block* first = nullptr;
  int count = 0;

  void push(Block* b) {
    b->next = first;
    first = b;
    ++count;
  }
  Block* pop() {
    Block* const b = first;
    if (b) first = b->next, --count;
    return b;
  }
};

// Large blocks request transparent huge pages (madvise MADV_HUGEPAGE). A tensor of 12 MiB has 3072 pages of
// 4 KiB, which fill the TLB of a current core, but only 6 huge pages. The first touch of each page also costs
// one page fault.
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPageMultiple = 64 * 1024;  // a multiple of every base page size

// The bytes to map for a large block: rounded up to whole huge pages if that wastes at most an eighth.
constexpr std::size_t mapped_bytes(std::size_t block_bytes) {
  const std::size_t huge = (block_bytes + kHugePage - 1) / kHugePage * kHugePage;
  return huge - block_bytes <= block_bytes / 8
             ? huge
             : (block_bytes + kPageMultiple - 1) / kPageMultiple * kPageMultiple;
}

void* new_block(std::size_t bytes) {
  if (bytes < kHugePage || bytes > kMaxBytes) return from_system(bytes);
  const std::size_t mapped = mapped_bytes(bytes), room = mapped + kHugePage;
  void* const start = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  // Align the block to a huge page, and unmap the rest on both sides.
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(start) % kHugePage;
  char* const block = static_cast<char*>(start) + before;
  if (before > 0) munmap(start, before);
  munmap(block + mapped, kHugePage - before);
  madvise(block, mapped, MADV_HUGEPAGE);  // a hint: without huge pages the block still works
  return block;
}

void delete_block(void* block, std::size_t bytes) {
  if (bytes < kHugePage) std::free(block);
  else munmap(block, mapped_bytes(bytes));
}

// A thread's free blocks of one logical device.
struct ThreadCache {
  FreeList free[kSmallClasses];
  // The allocations through this cache. Only its thread writes the number, so it needs no atomic addition.
  std::atomic<std::int64_t> allocations{0};
  ThreadCache* next = nullptr;  // in Pool::caches

  void count() {
    allocations.store(allocations.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
};

// The statistics of one logical device, and its free blocks that are in no thread's cache.
struct Pool {
  Counters counters;  // without the allocations that the caches in `caches` count
  std::mutex mutex;
  ThreadCache* caches = nullptr;  // of all threads
  FreeList free[kClasses];
  std::size_t free_bytes = 0;
  std::int64_t high_water = 0;  // the largest `allocated` seen when a block was taken from the system

  // The caller holds the mutex.
  void release(int c) {
    while (Block* const b = free[c].pop()) {
      delete_block(b, kHeader + class_bytes(c));
      free_bytes -= kHeader + class_bytes(c);
      counters.unreserve(kHeader + class_bytes(c));
    }
  }
  void release_all() {
    for (int c = 0; c < kClasses; ++c) release(c);
  }
  // Releases free blocks, the largest first, so that `reserved` stays below twice the largest use plus
  // 256 MiB. Otherwise blocks of sizes that are never requested again would accumulate.
  void make_room(std::size_t bytes) {
    const MemoryStats s = counters.stats();
    high_water = std::max(high_water, s.allocated);
    const std::int64_t limit = 2 * high_water + (std::int64_t{256} << 20);
    for (int c = kClasses - 1; c >= kSmallClasses && free_bytes > 0; --c) {
      if (counters.stats().reserved + static_cast<std::int64_t>(bytes) <= limit) return;
      release(c);
    }
  }
};

// Never destroyed, because tensors in static storage are freed after main has returned.
Pool* pools() {
  static Pool* const all = [] {
    Pool* const pools = new Pool[kMaxDevices];
    for (int d = 0; d < kMaxDevices; ++d) lock_during_fork(pools[d].mutex);
    return pools;
  }();
  return all;
}

// The calling thread's caches, one per device. The pointer is null before the first use, and kClosed after
// the thread's destructors have run. It is trivially destructible, so that it can be read even then.
struct ThreadCaches {
  std::unique_ptr<ThreadCache> of[kMaxDevices];
};
TAPESTRY_HOT_TLS thread_local constinit ThreadCaches* caches = nullptr;
ThreadCaches* const kClosed = reinterpret_cast<ThreadCaches*>(alignof(ThreadCaches));

void to_pool(Pool& pool, FreeList& list, int c, int keep) {
  const std::lock_guard lock(pool.mutex);
  while (list.count > keep) {
    pool.free[c].push(list.pop());
    pool.free_bytes += kHeader + class_bytes(c);
  }
}

// Enters the thread's new cache into the pool's list.
void enter(Pool& pool, ThreadCache& cache) {
  const std::lock_guard lock(pool.mutex);
  cache.next = std::exchange(pool.caches, &cache);
}
void leave(Pool& pool, ThreadCache& cache) {
  const std::lock_guard lock(pool.mutex);
  ThreadCache** at = &pool.caches;
  while (*at != &cache) at = &(*at)->next;
  *at = cache.next;
  pool.counters.count(cache.allocations.load(std::memory_order_relaxed));
}

void flush(ThreadCaches& own, int device) {
  if (!own.of[device]) return;
  for (int c = 0; c < kSmallClasses; ++c)
    if (FreeList& list = own.of[device]->free[c]; list.count > 0) to_pool(pools()[device], list, c, 0);
}

struct ThreadExit {
  std::unique_ptr<ThreadCaches> own;  // not the caches themselves: thread-local memory is scarce
  ~ThreadExit() {
    caches = kClosed;
    if (!own) return;
    for (int d = 0; d < kMaxDevices; ++d) {
      flush(*own, d);
      if (own->of[d]) leave(pools()[d], *own->of[d]);
    }
  }
};

// The calling thread's cache for a device; null while the thread ends, and without memory.
[[gnu::noinline]] ThreadCache* new_thread_cache(int device) noexcept {
  if (caches == kClosed) return nullptr;
  thread_local ThreadExit at_exit;
  if (!at_exit.own) at_exit.own.reset(new (std::nothrow) ThreadCaches);
  if (!at_exit.own) return nullptr;
  caches = at_exit.own.get();
  std::unique_ptr<ThreadCache>& cache = at_exit.own->of[device];
  cache.reset(new (std::nothrow) ThreadCache);
  if (cache) enter(pools()[device], *cache);
  return cache.get();
}
ThreadCache* thread_cache(int device) noexcept {
  ThreadCaches* const own = caches;
  if (own && own != kClosed) [[likely]]
    if (ThreadCache* const cache = own->of[device].get()) [[likely]]
      return cache;
  return new_thread_cache(device);
}

class CachingAllocator final : public Allocator {
 public:
  CachingAllocator() : Allocator(kHeader) {}
  void* allocate(Device device, std::size_t bytes) override {
    Pool& pool = pools_[device.index];
    if (bytes > kMaxBytes) out_of_memory(device, bytes, pool.counters);
    const int c = class_of(bytes);
    ThreadCache* const cache = c < kSmallClasses ? thread_cache(device.index) : nullptr;
    Block* block = cache ? cache->free[c].pop() : nullptr;
    if (!block) block = refill(pool, device, bytes, c);
    pool.counters.allocated(bytes);
    if (cache) cache->count();
    else pool.counters.count(1);
    return reinterpret_cast<char*>(block) + kHeader;
  }

  void deallocate(Device device, void* data, std::size_t bytes) noexcept override {
    Pool& pool = pools_[device.index];
    Block* const block = reinterpret_cast<Block*>(static_cast<char*>(data) - kHeader);
    const int c = class_of(bytes);
    pool.counters.freed(bytes);
    if (c < kSmallClasses) {
      if (ThreadCache* const cache = thread_cache(device.index)) {
        FreeList& list = cache->free[c];
        list.push(block);
        if (list.count > kCachedBlocks[c]) to_pool(pool, list, c, kCachedBlocks[c] / 2);
        return;
      }
    }
    const std::lock_guard lock(pool.mutex);
    pool.free[c].push(block);
    pool.free_bytes += kHeader + class_bytes(c);
  }

  MemoryStats stats(Device device) const override {
    Pool& pool = pools_[device.index];
    const std::lock_guard lock(pool.mutex);
    MemoryStats stats = pool.counters.stats();
    for (const ThreadCache* cache = pool.caches; cache; cache = cache->next)
      stats.allocations += cache->allocations.load(std::memory_order_relaxed);
    return stats;
  }
  void reset_peak(Device device) override { pools_[device.index].counters.reset_peak(); }
  // Empties the pools and the calling thread's cache. It cannot empty the caches of other threads. Each of
  // them keeps at most 64 blocks and 256 KiB per small size class.
  void empty_cache() override {
    for (int d = 0; d < kMaxDevices; ++d) {
      if (caches && caches != kClosed) flush(*caches, d);
      const std::lock_guard lock(pools_[d].mutex);
      pools_[d].release_all();
    }
  }
  void copy(Device, void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

 private:
  // Takes a block from the pool or, if the pool has none, from the system. From the pool, it also moves more
  // blocks of this class to the thread's cache.
  [[gnu::noinline]] static Block* refill(Pool& pool, Device device, std::size_t bytes, int c) {
    const std::size_t block_bytes = kHeader + class_bytes(c);
    {
      const std::lock_guard lock(pool.mutex);
      if (Block* const block = pool.free[c].pop()) {
        pool.free_bytes -= block_bytes;
        if (ThreadCache* const cache = c < kSmallClasses ? thread_cache(device.index) : nullptr) {
          for (int i = kCachedBlocks[c] / 2; i > 0; --i) {
            Block* const more = pool.free[c].pop();
            if (!more) break;
            pool.free_bytes -= block_bytes;
            cache->free[c].push(more);
          }
        }
        return block;
      }
      pool.make_room(block_bytes);
    }
    void* block = new_block(block_bytes);
    if (!block) {
      for (int d = 0; d < kMaxDevices; ++d) {
        const std::lock_guard lock(pools()[d].mutex);
        pools()[d].release_all();
      }
      block = new_block(block_bytes);
      if (!block) out_of_memory(device, bytes, pool.counters);
    }
    pool.counters.reserve(block_bytes);
    return static_cast<Block*>(block);
  }

  Pool* const pools_ = pools();
};

std::unique_ptr<Allocator> make_configured_allocator() {
#ifdef TAPESTRY_SANITIZED
  std::string_view kind = "system";
#else
  std::string_view kind = "caching";
#endif
  if (const char* const text = std::getenv("TAPESTRY_CPU_ALLOCATOR")) kind = text;
  check(kind == "caching" || kind == "system", "[allocator] TAPESTRY_CPU_ALLOCATOR is \"", kind,
        "\"; set it to caching or system, or unset it");
  return kind == "caching" ? make_caching_cpu_allocator() : make_system_cpu_allocator();
}

}  // namespace

std::unique_ptr<Allocator> make_caching_cpu_allocator() { return std::make_unique<CachingAllocator>(); }
std::unique_ptr<Allocator> make_system_cpu_allocator() { return std::make_unique<SystemAllocator>(); }

Allocator& cpu_allocator() {
  static Allocator& one = *make_configured_allocator().release();
  return one;
}

}  // namespace tapestry::detail
