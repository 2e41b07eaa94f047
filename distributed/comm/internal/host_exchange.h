#pragma once
// Collectives between the ranks of one host, through shared memory.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/internal/shared_memory.h"

namespace tapestry::distributed {

/// Tells a waiting rank whether it is worth waiting for a peer.
class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  /// True after the deadline, or when `peer` has exited. Writes that it made before are then visible.
  virtual bool hopeless(int peer) = 0;
  /// Throws the error for a peer for which hopeless() is true.
  [[noreturn]] virtual void fail(int peer) = 0;
};

/// One rank's view of the exchange. Every rank has slots in the segment, which it writes and all ranks read.
/// A collective proceeds in rounds of at most kSlot bytes per rank, with a few rounds in flight. In each
/// round a rank gives its input, reduces its own block of all inputs, and takes the results of the other
/// ranks. Three counters per rank show its progress, and the others wait for them. Ranks access only the
/// segment and their own memory, so a rank that dies does not corrupt the others, but the exchange cannot be
/// used any more.
///
/// Each element is reduced by exactly one rank, in order of rank (reduce_in_order). So all ranks get the same
/// bits, which are also those of the other host transports.
///
/// As for Backend, one thread at a time may call, and all ranks make the same calls in the same order with
/// arguments that fit.
class HostExchange {
 public:
  static constexpr int kMostRanks = 64, kEveryone = -1;
  /// The bytes that a segment for `size` ranks needs.
  static std::size_t bytes_for(int size);
  /// `memory` must be filled with zeros when the first rank begins. Ranks that are threads may share one
  /// mapping.
  HostExchange(std::shared_ptr<SharedMemory> memory, int rank, int size);

  /// Reduces `data` in place. The result is at `root`, or at all ranks if `root` is kEveryone. On other ranks
  /// `data` is unspecified afterwards.
  void reduce(std::byte* data, std::int64_t count, DType dtype, ReduceOp op, int root, PeerWatch& watch);
  /// As in Backend. Each element is copied once to the segment, and reduced from there into its `out`.
  void reduce_scatter(std::span<const ScatterPart> parts, ReduceOp op, PeerWatch& watch);
  void broadcast(std::byte* data, std::size_t bytes, int root, PeerWatch& watch);
  /// As in Backend. Each byte is copied once to the segment, and from there to its place in each rank's
  /// `out`.
  void all_gather(std::span<const GatherPart> parts, PeerWatch& watch);
  /// As in Backend. Each byte is copied once to the segment, and from there to its place.
  void all_to_all(std::span<const ExchangePart> parts, PeerWatch& watch);

 private:
  using Round = std::uint64_t;  // the number of a round, counted from the first collective
  using Counter = std::atomic<Round>;

  // The progress of one rank. Each counter is 1 + the last round in which the rank wrote its input (given),
  // reduced its block (reduced), or stopped reading the other ranks' slots (taken). It is 0 before the first
  // such round.
  struct alignas(64) Progress {
    Counter given, reduced, taken;
  };
  // The futex on which a rank sleeps until another rank advances.
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
  /// The part of a slot that is for one rank, in bytes.
  std::size_t part_bytes() const;

  const std::shared_ptr<SharedMemory> memory_;
  const int rank_, size_;
  Rank* const ranks_;
  std::byte* const slots_;
  Round round_ = 0;  // the first round of the next collective
};

}  // namespace tapestry::distributed
