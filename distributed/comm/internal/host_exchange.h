#pragma once
// Collectives between ranks of one host, by memory that they share.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/internal/shared_memory.h"

namespace tapestry::distributed {

/// What a rank asks while it waits for another one.
class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  /// The time is up, or `peer` does nothing more. What it had done before is seen by who asks then.
  virtual bool hopeless(int peer) = 0;
  [[noreturn]] virtual void fail(int peer) = 0;
};

/// One rank's end. Every rank has slots in the segment, which it writes and all read. A collective goes
/// through them in rounds of at most kSlot bytes a rank, a few of them in flight: a rank gives its input,
/// reduces its block of what all gave, takes the others' results. Three counters a rank say how far it is, by
/// which the others wait for it. Ranks touch the segment and their own memory only, so a rank that dies harms
/// nobody; its exchange is of no more use then.
///
/// Each element is reduced once, by one rank, in the order of the ranks (reduce_in_order): the same bits on
/// all ranks, and those of the other transports.
///
/// Calls as Backend's: by one thread at a time, in the same order with equal arguments on all ranks.
class HostExchange {
 public:
  static constexpr int kMostRanks = 64, kEveryone = -1;
  /// What the segment of so many ranks must have.
  static std::size_t bytes_for(int size);
  /// `memory` is zeros when the first rank begins. Ranks that are threads may have it in one mapping.
  HostExchange(std::shared_ptr<SharedMemory> memory, int rank, int size);

  /// In place, at `root` or for kEveryone; elsewhere `data` is left in any state.
  void reduce(std::byte* data, std::int64_t count, DType dtype, ReduceOp op, int root, PeerWatch& watch);
  /// `in`: size x count; `out`: count.
  void reduce_scatter(const std::byte* in, std::byte* out, std::int64_t count, DType dtype, ReduceOp op,
                      PeerWatch& watch);
  void broadcast(std::byte* data, std::size_t bytes, int root, PeerWatch& watch);
  void all_gather(const std::byte* in, std::byte* out, std::size_t bytes, PeerWatch& watch);

 private:
  using Round = std::uint64_t;  // counted from the first collective on
  using Counter = std::atomic<Round>;

  // How many rounds a rank has given, has reduced, and needs no more.
  struct alignas(64) Progress {
    Counter given, reduced, taken;
  };
  // Rung for a rank that sleeps until another one gets on.
  struct alignas(64) Bell {
    std::atomic<std::uint32_t> rings, asleep;
  };
  struct Rank {
    Progress progress;
    Bell bell;
  };
  static_assert(Counter::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

  struct Blocks;

  Rank& at(int rank) const { return ranks_[rank]; }
  std::byte* slot(int rank, Round round) const;
  void await(Counter Progress::*counter, int peer, Round value, PeerWatch& watch);
  void await_slot(Round round, PeerWatch& watch);
  void advance(Counter Progress::*counter, Round value);
  template <class F>
  void for_others(const F& f) const;
  void reduce_blocks(const Blocks& blocks, const std::byte* in, std::byte* out, std::byte* results,
                     DType dtype, ReduceOp op, int root, PeerWatch& watch);

  const std::shared_ptr<SharedMemory> memory_;
  const int rank_, size_;
  Rank* const ranks_;
  std::byte* const slots_;
  Round round_ = 0;  // of the next collective's first
};

}  // namespace tapestry::distributed
