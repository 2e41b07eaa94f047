#include "tapestry/autograd/slab.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "tapestry/core/internal/fork.h"
#include "tapestry/core/tls_model.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define TAPESTRY_POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define TAPESTRY_UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define TAPESTRY_POISON(p, n) ((void)0)
#define TAPESTRY_UNPOISON(p, n) ((void)0)
#endif

namespace tapestry::autograd {
namespace {

// Slabs are aligned to their size, so that slab_free finds the slab of a node by masking the node's address.
constexpr std::size_t kSlabBytes = 64 * 1024;
constexpr std::size_t kMaxCached = 64;

// The start value of Slab::live, the counter of a slab's live nodes. While a thread fills the slab, it counts
// in `made`, without atomic operations, the nodes that it creates minus those of them that it frees itself.
// Each node that another thread frees decrements `live`. kOpen is so large that `live` stays above 0
// meanwhile. When the slab is full, the thread subtracts kOpen - made. From then on `live` is the number of
// live nodes.
constexpr std::int64_t kOpen = std::int64_t{1} << 32;

struct alignas(16) Slab {
  std::atomic<std::int64_t> live{kOpen};
  std::int64_t made = 0;
  std::size_t bytes;
  std::size_t used = sizeof(Slab);
  Slab* next = nullptr;

  explicit Slab(std::size_t size) : bytes(size) {}
  char* at(std::size_t offset) { return reinterpret_cast<char*>(this) + offset; }
  void reopen() {
    used = sizeof(Slab);
    made = 0;
    live.store(kOpen, std::memory_order_relaxed);
  }
};

struct Cache {
  std::mutex mutex;
  Slab* head = nullptr;
  std::size_t count = 0;
};
// The cache is never destroyed, because static variables may free their nodes when the process ends.
Cache& cache() {
  static Cache* const c = [] {
    Cache* const made = new Cache;
    lock_during_fork(made->mutex);
    return made;
  }();
  return *c;
}
std::atomic<std::int64_t> in_use{0};

Slab* new_slab(std::size_t bytes) {
  void* memory = std::aligned_alloc(kSlabBytes, (bytes + kSlabBytes - 1) / kSlabBytes * kSlabBytes);
  if (!memory) throw std::bad_alloc();
  return new (memory) Slab(bytes);
}

Slab* acquire() {
  in_use.fetch_add(1, std::memory_order_relaxed);
  {
    std::lock_guard lock(cache().mutex);
    if (Slab* s = cache().head) {
      cache().head = s->next;
      --cache().count;
      s->reopen();
      return s;
    }
  }
  return new_slab(kSlabBytes);
}

void destroy(Slab* s) noexcept {
  TAPESTRY_UNPOISON(s->at(sizeof(Slab)), s->bytes - sizeof(Slab));
  s->~Slab();
  std::free(s);
}

void recycle(Slab* s) noexcept {
  in_use.fetch_sub(1, std::memory_order_relaxed);
  if (s->bytes != kSlabBytes) return destroy(s);
  TAPESTRY_POISON(s->at(sizeof(Slab)), s->bytes - sizeof(Slab));
  {
    std::lock_guard lock(cache().mutex);
    if (cache().count < kMaxCached) {
      s->next = cache().head;
      cache().head = s;
      ++cache().count;
      return;
    }
  }
  destroy(s);
}

void subtract_live(Slab* s, std::int64_t count) noexcept {
  if (s->live.fetch_sub(count, std::memory_order_acq_rel) == count) recycle(s);
}
void close(Slab* s) noexcept { subtract_live(s, kOpen - s->made); }

// The slab that this thread fills.
TAPESTRY_HOT_TLS thread_local constinit Slab* current = nullptr;

[[gnu::noinline]] void next_slab() {
  struct AtExit {
    ~AtExit() {
      if (current) close(std::exchange(current, nullptr));
    }
  };
  static thread_local AtExit at_exit;
  if (Slab* const s = current; s && s->live.load(std::memory_order_acquire) == kOpen - s->made) {
    s->reopen();  // all its nodes are freed, so fill it again
    TAPESTRY_POISON(s->at(sizeof(Slab)), s->bytes - sizeof(Slab));
    return;
  }
  Slab* const fresh = acquire();
  if (current) close(current);
  current = fresh;
}

}  // namespace

void* slab_allocate(std::size_t bytes) {
  bytes = (bytes + 15) / 16 * 16;
  if (bytes > kSlabBytes / 4) {  // a node with thousands of inputs gets its own slab
    in_use.fetch_add(1, std::memory_order_relaxed);
    Slab* own = new_slab(sizeof(Slab) + bytes);
    own->live.store(1, std::memory_order_relaxed);
    return own->at(sizeof(Slab));
  }
  if (!current || current->used + bytes > current->bytes) [[unlikely]]
    next_slab();
  Slab* const s = current;
  void* const p = s->at(s->used);
  s->used += bytes;
  ++s->made;
  TAPESTRY_UNPOISON(p, bytes);
  return p;
}

void slab_free(void* p) noexcept {
  Slab* const s = reinterpret_cast<Slab*>(reinterpret_cast<std::uintptr_t>(p) & ~(kSlabBytes - 1));
  if (s == current) --s->made;  // only this thread reads it
  else subtract_live(s, 1);
}

std::int64_t slabs_in_use() { return in_use.load(std::memory_order_relaxed); }

}  // namespace tapestry::autograd
