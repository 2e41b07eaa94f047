#include "tapestry/distributed/comm/internal/host_exchange.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>

#include "tapestry/distributed/comm/internal/blocks.h"

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

  std::size_t edge(int i) const { return static_cast<std::size_t>(count * i / size) * element; }
  std::size_t begin(int i, std::size_t offset) const { return edge(i) + offset; }
  std::size_t length(int i, std::size_t offset, std::size_t most) const {
    const std::size_t bytes = edge(i + 1) - edge(i);
    return offset < bytes ? std::min(most, bytes - offset) : 0;
  }
  std::size_t longest() const { return static_cast<std::size_t>((count + size - 1) / size) * element; }
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

std::size_t HostExchange::part_bytes() const {
  return kSlot / static_cast<std::size_t>(size_) / BlockRow::kAlign * BlockRow::kAlign;
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

// Reduces in rounds. In a round, each rank writes one piece of every other rank's block of `data` to its own
// slot; part i of the slot is for rank i. Then the rank reads the pieces of its own block from the slots of
// all ranks and reduces them. It writes the reduced piece to its own slot, to the part with its own number,
// which holds no input. `root`, or every rank, copies it from there to `data`.
void HostExchange::reduce(std::byte* data, std::int64_t count, DType dtype, ReduceOp op, int root,
                          PeerWatch& watch) {
  const Blocks blocks{.count = count, .element = dtype_size(dtype), .size = size_};
  std::byte* const out = data + blocks.begin(rank_, 0);
  const bool receives = root == kEveryone || root == rank_;
  const std::size_t part = part_bytes();
  const std::size_t rounds = rounds_of(blocks.longest(), part);
  const auto part_of = [&](int i, Round round, int of) {
    return slot(i, round) + static_cast<std::size_t>(of) * part;
  };
  const void* values[kMostRanks];

  const auto give = [&](std::size_t k) {
    const Round round = round_ + k;
    await_slot(round, watch);
    for_others([&](int i) {
      copy_bytes(part_of(rank_, round, i), data + blocks.begin(i, k * part),
                 blocks.length(i, k * part, part));
    });
    advance(&Progress::given, round + 1);
  };
  const auto reduce = [&](std::size_t k) {
    const Round round = round_ + k;
    for_others([&](int i) {
      await(&Progress::given, i, round + 1, watch);
      values[i] = part_of(i, round, rank_);
    });
    values[rank_] = out + k * part;
    const std::size_t length = blocks.length(rank_, k * part, part);
    reduce_in_order(out + k * part, values, size_, static_cast<std::int64_t>(length / dtype_size(dtype)),
                    dtype, op);
    if (root != rank_) copy_bytes(part_of(rank_, round, rank_), out + k * part, length);
    advance(&Progress::reduced, round + 1);
    if (!receives) advance(&Progress::taken, round + 1);
  };
  const auto take = [&](std::size_t k) {
    if (!receives) return;
    const Round round = round_ + k;
    for_others([&](int i) {
      await(&Progress::reduced, i, round + 1, watch);
      copy_bytes(data + blocks.begin(i, k * part), part_of(i, round, i), blocks.length(i, k * part, part));
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

// The rounds are those of reduce(), without results. The blocks of the parts for one rank form a row, of
// which each round moves one piece.
void HostExchange::reduce_scatter(std::span<const ScatterPart> parts, ReduceOp op, PeerWatch& watch) {
  const BlockRow row(parts, [](const ScatterPart& p) { return p.bytes(); });
  const std::size_t most = part_bytes(), rounds = rounds_of(row.bytes(), most);
  const auto block = [&](std::size_t part, int of) {
    return static_cast<const std::byte*>(parts[part].in) + static_cast<std::size_t>(of) * parts[part].pitch;
  };
  const auto input = [&](Round round, int rank, int of, std::size_t at) {
    return slot(rank, round) + static_cast<std::size_t>(of) * most + at;
  };
  const auto give = [&](std::size_t k) {
    await_slot(round_ + k, watch);
    for (int i = 0; i < size_; ++i)
      row.for_each(k * most, most, [&](std::size_t part, std::size_t offset, std::size_t at, std::size_t n) {
        // This rank reads its own block in place, unless that has rows.
        if (i != rank_ || parts[part].rows > 1)
          Rows::of(parts[part]).read(input(round_ + k, rank_, i, at), block(part, i), offset, n);
      });
    advance(&Progress::given, round_ + k + 1);
  };
  const auto reduce = [&](std::size_t k) {
    const Round round = round_ + k;
    for_others([&](int i) { await(&Progress::given, i, round + 1, watch); });
    const void* values[kMostRanks];
    row.for_each(k * most, most, [&](std::size_t part, std::size_t offset, std::size_t at, std::size_t n) {
      const DType dtype = parts[part].dtype;
      for (int i = 0; i < size_; ++i) values[i] = input(round, i, rank_, at);
      if (parts[part].rows == 1) values[rank_] = block(part, rank_) + offset;
      reduce_in_order(static_cast<std::byte*>(parts[part].out) + offset, values, size_,
                      static_cast<std::int64_t>(n / dtype_size(dtype)), dtype, op);
    });
    advance(&Progress::taken, round + 1);
  };
  for (std::size_t k = 0; k < rounds + 1; ++k) {
    if (k < rounds) give(k);
    if (k >= 1) reduce(k - 1);
  }
  round_ += rounds;
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

void HostExchange::all_gather(std::span<const GatherPart> parts, PeerWatch& watch) {
  const BlockRow row(parts, [](const GatherPart& p) { return p.bytes; });
  const std::size_t rounds = rounds_of(row.bytes(), kSlot);
  const auto block = [&](std::size_t part, int of) {
    return static_cast<std::byte*>(parts[part].out) + static_cast<std::size_t>(of) * parts[part].pitch;
  };
  for (std::size_t k = 0; k < rounds + 1; ++k) {
    if (k < rounds) {
      await_slot(round_ + k, watch);
      std::byte* const to = slot(rank_, round_ + k);
      row.for_each(k * kSlot, kSlot,
                   [&](std::size_t part, std::size_t offset, std::size_t at, std::size_t n) {
                     std::memcpy(to + at, static_cast<const std::byte*>(parts[part].in) + offset, n);
                   });
      advance(&Progress::given, round_ + k + 1);
    }
    if (k == 0) continue;
    const Round round = round_ + k - 1;
    for_others([&](int i) {
      await(&Progress::given, i, round + 1, watch);
      row.for_each((k - 1) * kSlot, kSlot,
                   [&](std::size_t part, std::size_t offset, std::size_t at, std::size_t n) {
                     Rows::of(parts[part]).write(block(part, i), slot(i, round) + at, offset, n);
                   });
    });
    advance(&Progress::taken, round + 1);
  }
  for (std::size_t part = 0; part < parts.size(); ++part)
    if (block(part, rank_) != parts[part].in)
      Rows::of(parts[part]).write(block(part, rank_), parts[part].in, 0, parts[part].bytes);
  round_ += rounds;
}

// The ranks first tell one another the length of their longest part, because all of them must make as many
// rounds. In a round, part i of a rank's slot is for rank i.
void HostExchange::all_to_all(std::span<const ExchangePart> parts, PeerWatch& watch) {
  std::size_t longest = 0;
  for (const ExchangePart& part : parts) longest = std::max({longest, part.in_bytes, part.out_bytes});
  std::vector<std::size_t> all(parts.size());
  const GatherPart lengths{&longest, all.data(), sizeof longest, sizeof longest};
  all_gather(std::span(&lengths, 1), watch);
  const std::size_t most = part_bytes(), rounds = rounds_of(*std::max_element(all.begin(), all.end()), most);
  const auto part_at = [&](int i) -> const ExchangePart& { return parts[static_cast<std::size_t>(i)]; };
  const auto piece = [&](std::size_t bytes, std::size_t k) {
    return bytes > k * most ? std::min(most, bytes - k * most) : 0;
  };
  for (std::size_t k = 0; k < rounds + 1; ++k) {
    if (k < rounds) {
      await_slot(round_ + k, watch);
      for_others([&](int i) {
        const ExchangePart& part = part_at(i);
        in_rows(part).read(slot(rank_, round_ + k) + static_cast<std::size_t>(i) * most, part.in, k * most,
                           piece(part.in_bytes, k));
      });
      advance(&Progress::given, round_ + k + 1);
    }
    if (k == 0) continue;
    const Round round = round_ + k - 1;
    for_others([&](int i) {
      await(&Progress::given, i, round + 1, watch);
      const ExchangePart& part = part_at(i);
      out_rows(part).write(part.out, slot(i, round) + static_cast<std::size_t>(rank_) * most, (k - 1) * most,
                           piece(part.out_bytes, k - 1));
    });
    advance(&Progress::taken, round + 1);
  }
  copy_own(part_at(rank_));
  round_ += rounds;
}

}  // namespace tapestry::distributed
