#pragma once
// What runs beside the threads of a block: mbarriers, bulk copies (TMA), and the reads of wgmma. All of them
// complete as late as allowed: when no thread can go on otherwise, or at a wait that names them.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {

/// An mbarrier. Its 64 bits in shared memory mirror this, so that a store over them is noticed.
struct Barrier {
  std::uint32_t expected = 0, pending = 0;  // arrivals
  std::int64_t transactions = 0;            // bytes that are expected and have not come
  std::uint64_t phase = 0;
  bool fenced = false;  // whether the initialisation is visible to the async proxy
  std::uint32_t thread = 0;
  std::string line;  // of mbarrier.init
  std::uint64_t bits() const {
    return (phase & 1) << 63 | std::uint64_t{expected} << 42 | std::uint64_t{pending} << 22 |
           (static_cast<std::uint64_t>(transactions) & 0x3fffff);
  }
};

constexpr std::uint64_t kNoBarrier = ~std::uint64_t{0};
/// Keys of BlockRaces for what is no mbarrier: + the thread, + the warpgroup.
constexpr std::uint64_t kStoreKey = std::uint64_t{1} << 32, kWarpgroupKey = std::uint64_t{2} << 32,
                        kClusterKey = std::uint64_t{3} << 32;

/// A bulk copy, a bulk reduction, or the arrival that cp.async.mbarrier.arrive asks for.
struct BulkOperation {
  Warp* warp = nullptr;
  const Code* code = nullptr;
  int lane = 0;
  enum Kind : std::uint8_t { kLoad, kStore, kCopyArrival } kind = kLoad;
  std::uint64_t bytes = 0;
  std::uint64_t barrier = kNoBarrier, phase = 0;
  std::uint32_t group = 0;          // of a store
  bool source_read = false;         // of a store: `staged` holds what it writes
  std::uint32_t reduction = 0;      // 0: a copy; otherwise an operation of bulk.cpp and a type
  std::uint64_t shared = 0;         // it reads or writes `bytes` bytes from here on
  BlockRaces::Agent agent, writer;  // of a store: `writer` writes global memory, which ends later
  std::uint64_t copies = 0;         // of kCopyArrival: the thread's cp.async that must have completed
  struct Segment {
    std::uint64_t shared;
    std::byte* global;  // null: filled
    std::uint32_t bytes, pattern;
  };
  std::vector<Segment> segments;
  std::vector<std::byte> staged;
};

/// The asynchronous side of one block.
class Async {
 public:
  explicit Async(Block& block);

  // ---- mbarriers ----

  /// The offset of an address in shared memory; an error of the lane if it is elsewhere.
  static std::uint64_t shared_offset(Warp& w, const Code& c, int lane, Space space, std::uint64_t address);
  /// The mbarrier at this offset; an error of the lane if there is none, or if it was overwritten.
  Barrier& barrier(Warp& w, const Code& c, int lane, std::uint64_t offset);
  /// The same for a lane that waits or arrives. It is an error, too, if nothing orders the initialisation
  /// before this.
  Barrier& use_barrier(Warp& w, const Code& c, int lane, std::uint64_t offset);
  void init(Warp& w, const Code& c, int lane, std::uint64_t offset, std::uint32_t count);
  void invalidate(Warp& w, const Code& c, int lane, std::uint64_t offset);
  /// Counts arrivals and transactions; completes the phase if nothing is missing any more.
  void update(Warp& w, const Code& c, int lane, std::uint64_t offset, std::uint32_t arrivals,
              std::int64_t transactions, std::uint32_t dropped = 0);
  /// One more arrival is missing in this phase.
  void increment(Warp& w, const Code& c, int lane, std::uint64_t offset);
  void fence_barriers(Warp& w, std::uint32_t mask);

  // ---- bulk operations ----

  /// Checks the destination or source in shared memory, and queues the operation.
  void start(BulkOperation operation);
  /// Completes one operation; false if there is none.
  bool complete_one();
  /// Of the stores of a thread: all but its `keep` youngest groups have read their source, or have also
  /// written.
  void wait_stores(Warp& w, int lane, std::uint64_t keep, bool read_only);
  std::vector<std::uint32_t> bulk_group;  // by thread: the number of the group that is not committed yet
  std::vector<std::uint32_t>
      bulk_delayed;  // by thread: the group up to which a wait has let others run first

  // ---- shared memory ----

  /// Called for each access of a thread to shared memory.
  void check_access(Warp& w, const Code& c, int lane, std::uint64_t offset, std::uint32_t bytes,
                    Warp::Access access);
  /// An asynchronous read of 16 bytes by the lane: they must be initialised, not in flight, and fenced if a
  /// thread wrote them.
  const std::byte* read_chunk(Warp& w, const Code& c, int lane, std::uint64_t offset);
  /// An agent reads or writes shared memory; finds races.
  static void note(Warp& w, const Code& c, int lane, BlockRaces::Agent agent, std::uint64_t offset,
                   std::uint64_t bytes, bool writes);
  /// Marks 16-byte chunks as being read, and no longer.
  void hold(std::uint64_t offset, std::uint64_t bytes, int change);
  void fence_proxy(Warp& w, std::uint32_t mask);

  // ---- wgmma ----

  /// The matrix multiplications of four warps in the order in which they must execute them.
  struct Warpgroup {
    struct Issue {
      const Code* code;
      std::uint64_t a, b;
      std::vector<std::uint32_t> reads;  // the chunks that the four warps hold
      std::vector<BlockRaces::Agent> agents;
    };
    std::vector<Issue> issues;
    std::uint64_t done[4] = {0, 0, 0, 0}, released = 0;
    std::uint32_t registers = 0;  // of setmaxnreg; 0: as launched
    /// How many all four have executed.
    std::uint64_t completed() const;
  };
  std::vector<Warpgroup> warpgroups;
  /// A wait of one warp ends the reads of all four.
  void release(Warpgroup& group, std::uint64_t issues);

  // ---- a cluster of one block: barrier.cluster ----

  std::uint32_t cluster_arrived = 0;
  // The barrier does not wait for threads that have ended: those that ended before they arrived in this
  // phase, and those that ended afterwards.
  std::uint32_t cluster_ended = 0, cluster_leaves = 0;
  std::uint64_t cluster_phase = 0;
  std::vector<std::uint64_t> cluster_waits;  // by thread: the phase it arrived in + 1, or 0
  void complete_cluster_phase();
  void end_threads(std::uint32_t warp, std::uint32_t lanes);

  // ---- for the scheduler ----

  /// Grows with everything that may end a wait.
  std::uint64_t progress = 0;
  /// Why the lane, which waits for an event, waits in vain.
  std::string explain(const Warp& w, int lane) const;
  /// All threads have ended: throws if something still used the block's shared memory.
  void finish();

 private:
  static std::uint32_t thread_of(const Warp& w, int lane) {
    return 32 * w.number() + static_cast<std::uint32_t>(lane);
  }
  void store_bits(std::uint64_t offset, const Barrier& b);
  [[noreturn]] void fail_too_few(const BulkOperation& operation) const;
  void read_source(BulkOperation& operation);
  void write_destination(BulkOperation& operation);

  Block& block_;
  std::map<std::uint64_t, Barrier> barriers_;
  std::vector<BulkOperation> pending_;
  std::vector<std::uint16_t> readers_;       // by chunk of 16 bytes
  std::vector<std::uint32_t> writers_;       // by word: the thread + 1 and its number of fences
  std::vector<std::uint32_t> proxy_fences_;  // by thread
};

/// Completes the first `count` copies of cp.async that the lane has issued in all (access.cpp).
void complete_copies(Warp& w, int lane, std::uint64_t count);
/// Applies the reduction of a bulk operation (bulk.cpp).
void reduce_bulk(std::uint32_t reduction, std::byte* to, const std::byte* from, std::uint32_t bytes);

}  // namespace tapestry::ptx
