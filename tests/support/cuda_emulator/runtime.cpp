// This file is compiled without sanitizer instrumentation, because the emulator's own memory accesses are not
// those of the kernel. For the same reason its state is in plain arrays: a function template of the standard
// library might be linked in an instrumented version.
#include "tests/support/cuda_emulator/runtime.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include "tests/support/cuda_emulator/fiber.h"

#if CUDA_EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace cuda_emulator {

const ThreadIndex* current = nullptr;

namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr std::size_t kMaxStaticShared = std::size_t{48} << 10, kMaxShared = std::size_t{227} << 10;
constexpr unsigned kMaxArrays = 64, kMaxCopies = 64;

/// While this object exists, ThreadSanitizer ignores memory accesses of the emulator. It intercepts memcpy,
/// malloc and free even in uninstrumented code.
class IgnoreAccesses {
 public:
#if CUDA_EMULATOR_TSAN
  IgnoreAccesses() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~IgnoreAccesses() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  IgnoreAccesses() {}
#endif
  IgnoreAccesses(const IgnoreAccesses&) = delete;
  IgnoreAccesses& operator=(const IgnoreAccesses&) = delete;
};

/// Creates a happens-before edge for ThreadSanitizer, from release() to acquire() of the same point.
void release([[maybe_unused]] void* point) {
#if CUDA_EMULATOR_TSAN
  __tsan_release(point);
#endif
}
void acquire([[maybe_unused]] void* point) {
#if CUDA_EMULATOR_TSAN
  __tsan_acquire(point);
#endif
}

bool same_place(const Location& a, const Location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

enum class State : std::uint8_t { ready, at_barrier, in_warp, exited };

/// The asynchronous copies that a thread has issued, oldest first, in a ring buffer.
struct CopyQueue {
  AsyncCopy copies[kMaxCopies];
  int groups[kMaxCopies];
  unsigned first, end;
  int group;
};

struct Thread {
  ThreadIndex index;
  Fiber* fiber;
  State state;
  Location where;
  unsigned warp;
  CopyQueue copies;
};

/// A warp operation that at least one lane has started. `present` is the mask of the lanes that have arrived;
/// `mask` is the mask of all lanes that must arrive.
struct PendingOperation {
  unsigned mask, present;
  WarpOperation operation;
  std::size_t bytes;
  Location where;
};

struct Warp {
  unsigned exists, exited;
  PendingOperation pending[32];  // the operations in progress; their masks are disjoint
  unsigned pending_count;
  LaneCall calls[32];
};

struct SharedArray {
  const void* declaration;
  void* data;
};

/// The running block, and how it is executed.
struct Machine {
  void (*kernel)() = nullptr;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
  std::uint64_t random = 0;
  bool shuffled = false;

  Thread threads[kMaxThreads];
  Warp warps[kMaxThreads / 32];
  unsigned thread_count = 0, live = 0;
  Thread* self = nullptr;
  Thread* ready[kMaxThreads];
  unsigned ready_count = 0;

  unsigned arrived = 0;  // threads that have arrived at the barrier
  int count = 0;
  BarrierResult result{};
  Location barrier;

  SharedArray arrays[kMaxArrays];
  unsigned array_count = 0;
  std::size_t static_bytes = 0, dynamic_bytes = 0;
  void* dynamic = nullptr;

  bool failed = false;
  char error[1024];

  // Synchronization points for ThreadSanitizer. Each block has its own, because shared ones would order
  // blocks. Barriers alternate between two points, since a thread may arrive at the next barrier before
  // another has left the previous one.
  struct BlockPoints {
    char barriers[2], warps[kMaxThreads / 32];
  } points[1024];
  BlockPoints* block_points = points;
  unsigned blocks = 0, barriers = 0;
  char fence_point, end_point;
} m;

/// ThreadSanitizer treats everything on one fiber as ordered. Blocks alternate between two sets of fibers, so
/// that races between consecutive blocks are visible. Within a set, threads are shifted to other fibers for
/// the same reason.
constexpr unsigned kSets = CUDA_EMULATOR_TSAN ? 2 : 1;
std::unique_ptr<Fiber> fibers[kSets][kMaxThreads];

std::uint64_t random_number() {  // xorshift
  m.random ^= m.random << 13;
  m.random ^= m.random >> 7;
  m.random ^= m.random << 17;
  return m.random;
}

void make_ready(Thread* t) {
  t->state = State::ready;
  m.ready[m.ready_count++] = t;
}

void release_barrier() {
  m.result = {m.count, m.count != 0, m.count == static_cast<int>(m.live)};
  m.arrived = 0;
  m.count = 0;
  ++m.barriers;
  for (unsigned i = 0; i < m.thread_count; ++i)
    if (m.threads[i].state == State::at_barrier) make_ready(&m.threads[i]);
}

void set_error(const char* what) {
  if (!m.failed) std::snprintf(m.error, sizeof m.error, "%s", what);
  m.failed = true;
}

void thread_body(void*) {
  m.body(m.argument);
  Thread* const t = m.self;
  t->state = State::exited;
  m.warps[t->warp].exited |= 1u << t->index.lane;
  --m.live;
  if (t->copies.first != t->copies.end)
    set_error("a thread exited with asynchronous copies that it never waited for");
  release(&m.end_point);
  if (m.live && m.arrived == m.live) release_barrier();
}

void resume(Thread* t) {
  m.self = t;
  current = &t->index;
  t->fiber->resume();
  current = nullptr;
}

/// Reports where threads wait, with one entry per group of adjacent threads.
void describe_deadlock() {
  char text[sizeof m.error] = "threads of a block wait for threads that never come:";
  std::size_t length = std::strlen(text);
  const Thread* last = nullptr;
  for (unsigned i = 0; i < m.thread_count; ++i) {
    const Thread& t = m.threads[i];
    if (last && last->state == t.state && same_place(last->where, t.where)) continue;
    last = &t;
    const char* const does = t.state == State::at_barrier ? "at the barrier of line"
                             : t.state == State::in_warp  ? "in the warp operation of line"
                                                          : "exited, last seen at line";
    const int n = std::snprintf(text + length, sizeof text - length, " from thread %u on %s %u;", i, does,
                                static_cast<unsigned>(t.where.line()));
    if (n < 0 || length + static_cast<std::size_t>(n) >= sizeof text) break;
    length += static_cast<std::size_t>(n);
  }
  set_error(text);
}

void begin_block() {
  m.live = m.thread_count;
  m.ready_count = m.arrived = m.array_count = 0;
  m.count = 0;
  m.static_bytes = 0;
  m.failed = false;
  m.block_points = &m.points[m.blocks++ % std::size(m.points)];
  if (m.dynamic_bytes) {
    const IgnoreAccesses ignore;
    if (posix_memalign(&m.dynamic, 128, m.dynamic_bytes)) std::abort();
    std::memset(m.dynamic, 0xff, m.dynamic_bytes);
  }
  for (unsigned i = 0; i < m.thread_count; i += 32) {
    Warp& warp = m.warps[i / 32];
    warp.exists = m.thread_count - i < 32 ? (1u << (m.thread_count - i)) - 1 : ~0u;
    warp.exited = warp.pending_count = 0;
  }
  for (unsigned i = 0; i < m.thread_count; ++i) {
    Thread& t = m.threads[i];
    t.where = Location();
    t.copies.first = t.copies.end = 0;
    t.copies.group = 0;
    t.fiber->start(&thread_body, nullptr);
    make_ready(&t);
  }
}

void end_block() {
  const IgnoreAccesses ignore;
  for (unsigned i = 0; i < m.array_count; ++i) std::free(m.arrays[i].data);
  std::free(m.dynamic);
  m.dynamic = nullptr;
}

void run_block() {
  begin_block();
  while (m.live && !m.failed) {
    if (!m.ready_count) {
      describe_deadlock();
    } else if (m.shuffled) {
      std::swap(m.ready[random_number() % m.ready_count], m.ready[m.ready_count - 1]);
      resume(m.ready[--m.ready_count]);
    } else {
      Thread* round[kMaxThreads];  // threads that become ready meanwhile run in the next round
      const unsigned n = std::exchange(m.ready_count, 0);
      std::copy_n(m.ready, n, round);
      for (unsigned i = 0; i < n && !m.failed; ++i) resume(round[i]);
    }
  }
  end_block();
}

const char* symbol(void (*kernel)()) {
  Dl_info info{};
  return dladdr(reinterpret_cast<void*>(kernel), &info) && info.dli_sname ? info.dli_sname : "(no symbol)";
}

struct RawLaunch {
  void (*kernel)();
  dim3 grid, block;
  std::size_t shared_bytes;
};

/// Records launches. At exit, the process appends each kernel's symbol with its largest block and most
/// dynamic shared memory to the file named by TAPESTRY_EMULATED_LAUNCHES.
class Record {
 public:
  /// Adds a launch whose kernel does not run, so it is not written to the file.
  void add_unexecuted(const RawLaunch& launch) { launches_.push_back(launch); }
  void add(const RawLaunch& launch) {
    launches_.push_back(launch);
    Largest& largest = kernels_[launch.kernel];
    largest.threads = std::max(largest.threads, launch.block.x * launch.block.y * launch.block.z);
    largest.shared_bytes = std::max(largest.shared_bytes, launch.shared_bytes);
  }
  std::vector<Launch> take() {
    std::vector<Launch> launches;
    for (const RawLaunch& l : std::exchange(launches_, {}))
      launches.push_back({symbol(l.kernel), l.grid, l.block, l.shared_bytes});
    return launches;
  }
  std::vector<std::string> kernels() const {
    std::vector<std::string> names;
    for (const auto& [kernel, largest] : kernels_) names.emplace_back(symbol(kernel));
    std::sort(names.begin(), names.end());
    return names;
  }
  ~Record() {
    const char* const path = std::getenv("TAPESTRY_EMULATED_LAUNCHES");
    if (kernels_.empty() || !path || !*path) return;
    std::string text;  // a single write, so that concurrent processes do not interleave
    for (const auto& [kernel, largest] : kernels_)
      text += symbol(kernel) + (" " + std::to_string(largest.threads)) + " " +
              std::to_string(largest.shared_bytes) + "\n";
    std::ofstream(path, std::ios::app) << text << std::flush;
  }

 private:
  struct Largest {
    unsigned threads = 0;
    std::size_t shared_bytes = 0;
  };
  std::vector<RawLaunch> launches_;
  std::map<void (*)(), Largest> kernels_;
};
Record& record() {
  static Record instance;
  return instance;
}

[[noreturn]] void refuse(void (*kernel)(), const std::string& what) {
  throw Error("[" + readable(kernel) + "] " + what);
}

std::string text(dim3 d) {
  return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
}

void check_launch(void (*kernel)(), dim3 grid, dim3 block, std::size_t shared_bytes) {
  if (current) refuse(kernel, "launched from a kernel");
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMaxThreads || block.z > 64)
    refuse(kernel, "block " + text(block) + ": 1 to 1024 threads, at most 64 of them in z");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    refuse(kernel, "grid " + text(grid) + ": no dimension is 0, x at most 2^31 - 1, y and z at most 65535");
  if (shared_bytes > kMaxShared)
    refuse(kernel, std::to_string(shared_bytes) + " bytes of shared memory; a block has " +
                       std::to_string(kMaxShared));
}

/// Assigns indices and fibers to the threads of the `nth` executed block.
void place_threads(std::uint64_t nth, uint3 block_index, dim3 grid, dim3 block) {
  const std::uint64_t room = std::max(m.thread_count, 64u), shift = kSets == 1 ? 0 : 37 * nth;
  for (unsigned i = 0; i < m.thread_count; ++i) {
    std::unique_ptr<Fiber>& fiber = fibers[nth % kSets][(i + shift) % room];
    if (!fiber) fiber = std::make_unique<Fiber>();
    Thread& t = m.threads[i];
    t.index = {
        {i % block.x, i / block.x % block.y, i / (block.x * block.y)}, block_index, block, grid, i % 32};
    t.fiber = fiber.get();
    t.warp = i / 32;
  }
}

}  // namespace

std::string readable(void (*kernel)()) {
  char* const name = abi::__cxa_demangle(symbol(kernel), nullptr, nullptr, nullptr);
  std::string text = name ? name : symbol(kernel);
  std::free(name);
  // Remove the parameter list at the end of the demangled name. Template arguments may contain parentheses
  // too.
  if (text.ends_with(')')) {
    int depth = 0;
    do {
      depth += (text.back() == ')') - (text.back() == '(');
      text.pop_back();
    } while (depth && !text.empty());
  }
  return text.starts_with("void ") ? text.substr(5) : text;
}

Options& options() {
  static Options instance = [] {
    const char* const seed = std::getenv("TAPESTRY_EMULATOR_SEED");
    return Options{.seed = seed ? std::strtoull(seed, nullptr, 10) : 0};
  }();
  return instance;
}

std::vector<Launch> take_launches() { return record().take(); }
std::vector<std::string> launched_kernels() { return record().kernels(); }

void run_grid(void (*kernel)(), dim3 grid, dim3 block, std::size_t shared_bytes, void (*body)(void*),
              void* argument) {
  check_launch(kernel, grid, block, shared_bytes);
  if (options().record_only) return record().add_unexecuted({kernel, grid, block, shared_bytes});
  record().add({kernel, grid, block, shared_bytes});
  m.kernel = kernel;
  m.body = body;
  m.argument = argument;
  m.dynamic_bytes = shared_bytes;
  m.thread_count = block.x * block.y * block.z;
  m.shuffled = options().seed != 0;
  m.random = (options().seed * 0x9E3779B97F4A7C15u) | 1;
  Fiber::enter_scheduler();

  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  const std::uint64_t first = m.shuffled ? random_number() % blocks : 0;
  const bool backwards = m.shuffled && random_number() % 2;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t b = (first + (backwards ? blocks - 1 - i : i)) % blocks;
    place_threads(i,
                  {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                   static_cast<unsigned>(b / (std::uint64_t{grid.x} * grid.y))},
                  grid, block);
    run_block();
    if (m.failed) {
      for (unsigned t = 0; t < m.thread_count; ++t)
        if (m.threads[t].state != State::exited) m.threads[t].fiber->abandon();
      acquire(&m.end_point);
      refuse(kernel, m.error);
    }
  }
  acquire(&m.end_point);
}

void fail(const char* what, const Location& where) {
  const ThreadIndex& t = m.self->index;
  const char* const slash = std::strrchr(where.file_name(), '/');
  char message[512];
  std::snprintf(message, sizeof message, "%s (thread (%u, %u, %u) of block (%u, %u, %u), %s:%u)", what,
                t.thread.x, t.thread.y, t.thread.z, t.block.x, t.block.y, t.block.z,
                slash ? slash + 1 : where.file_name(), static_cast<unsigned>(where.line()));
  set_error(message);
  Fiber::suspend();
  std::abort();  // not reached: the threads of a failed launch are never resumed
}

void* shared_array(const void* declaration, std::size_t bytes, std::size_t alignment) {
  for (unsigned i = 0; i < m.array_count; ++i)
    if (m.arrays[i].declaration == declaration) return m.arrays[i].data;
  m.static_bytes += bytes;
  if (m.static_bytes > kMaxStaticShared)
    fail("more than 48 KiB of static shared memory", Location::current());
  // launch() raises the limit of 48 KiB, which covers both, only for more dynamic shared memory than that.
  if (m.dynamic_bytes <= kMaxStaticShared && m.static_bytes + m.dynamic_bytes > kMaxStaticShared)
    fail("more than 48 KiB of static and dynamic shared memory together, without a raised limit",
         Location::current());
  if (m.static_bytes + m.dynamic_bytes > kMaxShared)
    fail("more than 227 KiB of shared memory", Location::current());
  if (m.array_count == kMaxArrays)
    fail("more shared arrays than the emulator has room for", Location::current());
  void* data = nullptr;
  const IgnoreAccesses ignore;
  if (posix_memalign(&data, std::max<std::size_t>(alignment, 16), bytes)) std::abort();
  std::memset(data, 0xff, bytes);
  m.arrays[m.array_count++] = {declaration, data};
  return data;
}

void* dynamic_shared() {
  if (!m.dynamic) fail("the launch asked for no dynamic shared memory", Location::current());
  return m.dynamic;
}

BarrierResult block_barrier(int predicate, const Location& where) {
  Thread* const t = m.self;
  t->where = where;
  if (m.arrived == 0) m.barrier = where;
  else if (!same_place(m.barrier, where)) fail("threads of one block are at different barriers", where);
  m.count += predicate != 0;
  t->state = State::at_barrier;
  ++m.arrived;
  char* const point = &m.block_points->barriers[m.barriers % 2];
  release(point);
  if (m.arrived == m.live) release_barrier();
  Fiber::suspend();
  acquire(point);
  return m.result;
}

void warp_operation(unsigned mask, WarpOperation operation, const LaneCall& call, std::size_t bytes,
                    bool orders_memory, const Location& where) {
  Thread* const t = m.self;
  Warp& warp = m.warps[t->warp];
  char* const point = &m.block_points->warps[t->warp];
  const unsigned lane = t->index.lane;
  t->where = where;
  if (!(mask >> lane & 1)) fail("the calling lane is not in the mask of the warp operation", where);
  if (mask & ~warp.exists) fail("the mask of the warp operation names a lane that does not exist", where);
  if (mask & warp.exited) fail("the mask of the warp operation names a lane that has exited", where);
  PendingOperation* const end = warp.pending + warp.pending_count;
  PendingOperation* const op =
      std::find_if(warp.pending, end, [=](const PendingOperation& o) { return (o.mask & mask) != 0; });
  if (op == end) {
    *op = {mask, 0, operation, bytes, where};
    ++warp.pending_count;
  } else if (op->mask != mask || op->operation != operation || op->bytes != bytes ||
             !same_place(op->where, where)) {
    fail("lanes of one mask are in different warp operations, or have different masks", where);
  }
  op->present |= 1u << lane;
  warp.calls[lane] = call;
  t->state = State::in_warp;
  if (orders_memory) release(point);

  if (op->present == mask) {
    *op = warp.pending[--warp.pending_count];
    {
      const IgnoreAccesses ignore;
      operation(warp.calls, mask, bytes);
    }
    for (unsigned other = 0; other < 32; ++other)
      if ((mask >> other & 1) && (m.shuffled || other != lane)) make_ready(&m.threads[t->warp * 32 + other]);
    if (m.shuffled) {
      Fiber::suspend();
    } else {
      t->state = State::ready;  // the last lane to arrive continues without a switch
    }
  } else {
    Fiber::suspend();
  }
  if (orders_memory) acquire(point);
}

void nothing(const LaneCall (&)[32], unsigned, std::size_t) {}

void shuffle(const LaneCall (&lanes)[32], unsigned mask, std::size_t bytes) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1)) continue;
    const unsigned source = static_cast<unsigned>(lanes[lane].argument) & 31;
    if (mask >> source & 1) std::memcpy(lanes[lane].out, lanes[source].in, bytes);
    else std::memset(lanes[lane].out, 0xff, bytes);
  }
}

void ballot(const LaneCall (&lanes)[32], unsigned mask, std::size_t) {
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) && lanes[lane].argument) votes |= 1u << lane;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) std::memcpy(lanes[lane].out, &votes, sizeof votes);
}

void fence() {
  acquire(&m.fence_point);
  release(&m.fence_point);
}

void begin_copy(const AsyncCopy& copy, const Location& where) {
  CopyQueue& q = m.self->copies;
  const auto misaligned = [&](const void* p) {
    return reinterpret_cast<std::uintptr_t>(p) % copy.bytes != 0;
  };
  if (misaligned(copy.to) || misaligned(copy.from))
    fail("an asynchronous copy from or to a misaligned address", where);
  if (q.end - q.first == kMaxCopies)
    fail("more asynchronous copies at once than the emulator has room for", where);
  q.copies[q.end % kMaxCopies] = copy;
  q.groups[q.end % kMaxCopies] = q.group;
  ++q.end;
}

void commit_copies() { ++m.self->copies.group; }

bool take_copy(int keep, AsyncCopy& copy) {
  CopyQueue& q = m.self->copies;
  if (q.first == q.end || q.groups[q.first % kMaxCopies] >= q.group - keep) return false;
  copy = q.copies[q.first++ % kMaxCopies];
  return true;
}

}  // namespace cuda_emulator
