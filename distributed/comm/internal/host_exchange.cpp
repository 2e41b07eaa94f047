#include "tapestry/distributed/comm/internal/host_exchange.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>

namespace tapestry::distributed {
namespace {

// The most bytes of one rank in one round, and the number of rounds in flight. Their product is the size of a
// rank's slots in the segment. Its counters (Rank) come on top.
constexpr std::size_t kSlot = 512 << 10, kSlots = 4;
// How often a rank polls before it sleeps. The time is about that of waking a thread. Longer polling would
// take cores from the compute threads on small machines.
constexpr int kLooks = 400;
// The longest sleep. Peers wake a rank when they advance. A rank that sleeps this long checks whether the
// peer is still there.
constexpr timespec kNap{.tv_sec = 0, .tv_nsec = 10'000'000};

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The futexes are shared between processes, so FUTEX_PRIVATE_FLAG is not set.
void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &kNap, nullptr, 0);
}
void wake(std::atomic<std::uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0); }

std::size_t rounds_of(std::size_t bytes, std::size_t piece) { return (bytes + piece - 1) / piece; }

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

/// Describes how a tensor is divided: its elements into one block per rank, and each block into pieces, one
/// per round.
struct HostExchange::Blocks {
  std::int64_t count = 0;
  std::size_t element = 1;
  int size = 1;
  bool each = false;  // if true, `count` is the length of one block, otherwise of all blocks together

  std::size_t edge(int i) const {
    return static_cast<std::size_t>(each ? count * i : count * i / size) * element;
  }
  std::size_t begin(int i, std::size_t offset) const { return edge(i) + offset; }
  std::size_t length(int i, std::size_t offset, std::size_t most) const {
    const std::size_t bytes = edge(i + 1) - edge(i);
    return offset < bytes ? std::min(most, bytes - offset) : 0;
  }
  std::size_t longest() const {
    return static_cast<std::size_t>(each ? count : (count + size - 1) / size) * element;
  }
};

std::size_t HostExchange::bytes_for(int size) {
  return static_cast<std::size_t>(size) * (sizeof(Rank) + kSlots * kSlot);
}

// The counters need no initialisation: the segment is filled with zeros.
HostExchange::HostExchange(std::shared_ptr<SharedMemory> memory, int rank, int size)
    : memory_(std::move(memory)),
      rank_(rank),
      size_(size),
      ranks_(reinterpret_cast<Rank*>(memory_->data())),
      slots_(memory_->data() + static_cast<std::size_t>(size) * sizeof(Rank)) {
  check(size >= 2 && size <= kMostRanks && rank >= 0 && rank < size && memory_->bytes() >= bytes_for(size),
        "[host_exchange] rank ", rank, " of ", size, " in ", memory_->bytes(), " bytes");
}

std::byte* HostExchange::slot(int rank, Round round) const {
  return slots_ + (static_cast<std::size_t>(rank) * kSlots + round % kSlots) * kSlot;
}

// Calls f(i) for every other rank i. The calls begin with the next rank, so that the ranks do not all access
// the same slot at once.
template <class F>
void HostExchange::for_others(const F& f) const {
  for (int i = 1; i < size_; ++i) f((rank_ + i) % size_);
}

void HostExchange::advance(Counter Progress::*counter, Round value) {
  // This store and the loads below are sequentially consistent, like those in await(). So either the waiting
  // rank sees the new value, or this rank sees that the waiting rank is asleep and wakes it.
  (at(rank_).progress.*counter).store(value);
  for_others([&](int i) {
    Bell& bell = at(i).bell;
    if (bell.asleep.load() == 0) return;
    bell.rings.fetch_add(1);
    wake(bell.rings);
  });
}

void HostExchange::await(Counter Progress::*counter, int peer, Round value, PeerWatch& watch) {
  const Counter& theirs = at(peer).progress.*counter;
  for (int look = 0; look < kLooks; ++look) {
    if (theirs.load(std::memory_order_acquire) >= value) return;
    pause_core();
  }
  Bell& bell = at(rank_).bell;
  const auto wait = [&] {
    for (;;) {
      const std::uint32_t rings = bell.rings.load();
      bell.asleep.store(1);
      if (theirs.load() >= value) return true;
      sleep_while(bell.rings, rings);
      if (theirs.load() >= value) return true;
      // The peer may have advanced between the last check and its exit.
      if (watch.hopeless(peer)) return theirs.load() >= value;
    }
  };
  const bool came = wait();
  bell.asleep.store(0, std::memory_order_relaxed);
  if (!came) watch.fail(peer);
}

// Waits until all other ranks have read the earlier content of this round's slot.
void HostExchange::await_slot(Round round, PeerWatch& watch) {
  if (round < kSlots) return;
  for_others([&](int i) { await(&Progress::taken, i, round + 1 - kSlots, watch); });
}

// Reduces in rounds. In a round, each rank writes one piece of every other rank's block of `in` to its own
// slot; part i of the slot is for rank i. Then the rank reads the pieces of its own block from the slots of
// all ranks and reduces them to `out`. If `results` is not null, the rank also writes the reduced piece to
// its own slot, to the part with its own number, which holds no input. `root`, or every rank, copies it from
// there to `results`.
void HostExchange::reduce_blocks(const Blocks& blocks, const std::byte* in, std::byte* out,
                                 std::byte* results, DType dtype, ReduceOp op, int root, PeerWatch& watch) {
  const std::size_t part = kSlot / static_cast<std::size_t>(size_) / 64 * 64;
  const std::size_t rounds = rounds_of(blocks.longest(), part);
  const auto part_of = [&](int i, Round round, int of) {
    return slot(i, round) + static_cast<std::size_t>(of) * part;
  };
  const void* values[kMostRanks];

  const auto give = [&](std::size_t k) {
    const Round round = round_ + k;
    await_slot(round, watch);
    for_others([&](int i) {
      copy_bytes(part_of(rank_, round, i), in + blocks.begin(i, k * part), blocks.length(i, k * part, part));
    });
    advance(&Progress::given, round + 1);
  };
  const auto reduce = [&](std::size_t k) {
    const Round round = round_ + k;
    for_others([&](int i) {
      await(&Progress::given, i, round + 1, watch);
      values[i] = part_of(i, round, rank_);
    });
    values[rank_] = in + blocks.begin(rank_, k * part);
    const std::size_t length = blocks.length(rank_, k * part, part);
    reduce_in_order(out + k * part, values, size_, static_cast<std::int64_t>(length / dtype_size(dtype)),
                    dtype, op);
    if (results && root != rank_) copy_bytes(part_of(rank_, round, rank_), out + k * part, length);
    advance(&Progress::reduced, round + 1);
    if (!results || (root != kEveryone && root != rank_)) advance(&Progress::taken, round + 1);
  };
  const auto take = [&](std::size_t k) {
    if (!results || (root != kEveryone && root != rank_)) return;
    const Round round = round_ + k;
    for_others([&](int i) {
      await(&Progress::reduced, i, round + 1, watch);
      copy_bytes(results + blocks.begin(i, k * part), part_of(i, round, i), blocks.length(i, k * part, part));
    });
    advance(&Progress::taken, round + 1);
  };

  // Each iteration gives the input of one round, reduces the round before it, and takes the results of the
  // round before that. So each step needs data that its peers wrote in an earlier iteration and seldom waits.
  for (std::size_t k = 0; k < rounds + 2; ++k) {
    if (k < rounds) give(k);
    if (k >= 1 && k - 1 < rounds) reduce(k - 1);
    if (k >= 2) take(k - 2);
  }
  round_ += rounds;
}

void HostExchange::reduce(std::byte* data, std::int64_t count, DType dtype, ReduceOp op, int root,
                          PeerWatch& watch) {
  const Blocks blocks{.count = count, .element = dtype_size(dtype), .size = size_};
  reduce_blocks(blocks, data, data + blocks.begin(rank_, 0), data, dtype, op, root, watch);
}

void HostExchange::reduce_scatter(const std::byte* in, std::byte* out, std::int64_t count, DType dtype,
                                  ReduceOp op, PeerWatch& watch) {
  const Blocks blocks{.count = count, .element = dtype_size(dtype), .size = size_, .each = true};
  reduce_blocks(blocks, in, out, nullptr, dtype, op, kEveryone, watch);
}

void HostExchange::broadcast(std::byte* data, std::size_t bytes, int root, PeerWatch& watch) {
  for (std::size_t offset = 0; offset < bytes; offset += kSlot, ++round_) {
    const std::size_t length = std::min(kSlot, bytes - offset);
    if (rank_ == root) {
      await_slot(round_, watch);
      copy_bytes(slot(root, round_), data + offset, length);
      advance(&Progress::given, round_ + 1);
    } else {
      await(&Progress::given, root, round_ + 1, watch);
      copy_bytes(data + offset, slot(root, round_), length);
    }
    advance(&Progress::taken, round_ + 1);
  }
}

void HostExchange::all_gather(const std::byte* in, std::byte* out, std::size_t bytes, PeerWatch& watch) {
  const std::size_t rounds = rounds_of(bytes, kSlot);
  const auto length = [&](std::size_t k) { return std::min(kSlot, bytes - k * kSlot); };
  for (std::size_t k = 0; k < rounds + 1; ++k) {
    if (k < rounds) {
      await_slot(round_ + k, watch);
      copy_bytes(slot(rank_, round_ + k), in + k * kSlot, length(k));
      advance(&Progress::given, round_ + k + 1);
    }
    if (k == 0) continue;
    const Round round = round_ + k - 1;
    const std::size_t offset = (k - 1) * kSlot;
    for_others([&](int i) {
      await(&Progress::given, i, round + 1, watch);
      copy_bytes(out + static_cast<std::size_t>(i) * bytes + offset, slot(i, round), length(k - 1));
    });
    advance(&Progress::taken, round + 1);
  }
  copy_bytes(out + static_cast<std::size_t>(rank_) * bytes, in, bytes);
  round_ += rounds;
}

}  // namespace tapestry::distributed
