#include "tapestry/tools/ptx/async.h"

#include <algorithm>
#include <utility>

#include "tapestry/tools/ptx/tensor_map.h"

namespace tapestry::ptx {
namespace {

// "mbarrier" sections of the PTX manual: "Size and alignment", "Supported operations".
constexpr u32 kMaxCount = (1u << 20) - 1;
constexpr i64 kMaxTransactions = (i64{1} << 20) - 1;
constexpr u32 kEpochBits = 21;  // of writers_; above them the thread + 1

std::string bytes_text(u64 n) { return std::to_string(n) + (n == 1 ? " byte" : " bytes"); }

}  // namespace

Async::Async(Block& block) : block_(block) {
  const Dim& d = block.launch->block;
  const u32 threads = d.x * d.y * d.z;
  bulk_group.resize(threads);
  bulk_delayed.resize(threads);
  proxy_fences_.resize(threads);
  cluster_waits.resize(threads);
  warpgroups.resize((threads + 127) / 128);
  readers_.resize(block.shared.data.size() / 16 + 1);
  writers_.resize(block.shared.data.size() / 4 + 1);
}

u64 Async::shared_offset(Warp& w, const Code& c, int lane, Space space, u64 address) {
  if (space == Space::kShared) return address;
  if (space == Space::kGeneric && (address & ~(kWindow - 1)) == kSharedWindow) return address - kSharedWindow;
  w.fail(c, lane, "the address " + hex(address) + " is not in shared memory");
}

void Async::complete_cluster_phase() {
  ++progress;
  if (cluster_arrived == 0 || cluster_arrived + cluster_ended < cluster_waits.size()) return;
  cluster_arrived = 0;
  cluster_ended += std::exchange(cluster_leaves, 0);
  ++cluster_phase;
}
void Async::end_threads(u32 warp, u32 lanes) {
  for (; lanes != 0; lanes &= lanes - 1)
    ++(cluster_waits[32 * warp + static_cast<u32>(std::countr_zero(lanes))] > cluster_phase ? cluster_leaves
                                                                                            : cluster_ended);
  complete_cluster_phase();
}

// ---- mbarriers ----

void Async::store_bits(u64 offset, const Barrier& b) {
  const u64 bits = b.bits();
  std::memcpy(block_.shared.data.data() + offset, &bits, 8);
}

Barrier& Async::barrier(Warp& w, const Code& c, int lane, u64 offset) {
  if (offset % 8 != 0)
    w.fail(c, lane,
           "the mbarrier at " + hex(offset) + " is not aligned: its address must be a multiple of 8");
  const auto found = barriers_.find(offset);
  if (found == barriers_.end()) {
    std::string known;
    for (const auto& [at, b] : barriers_) known += (known.empty() ? "" : ", ") + hex(at);
    w.fail(c, lane,
           "no mbarrier was initialised at " + hex(offset) + " of shared memory; " +
               (known.empty() ? "there is none" : "there are mbarriers at " + known));
  }
  u64 bits = 0;
  std::memcpy(&bits, block_.shared.data.data() + offset, 8);
  if (bits != found->second.bits())
    w.fail(c, lane,
           "the mbarrier at " + hex(offset) + ", initialised at " + found->second.line +
               ", was overwritten by a store or a copy");
  return found->second;
}

Barrier& Async::use_barrier(Warp& w, const Code& c, int lane, u64 offset) {
  Barrier& b = barrier(w, c, lane, offset);
  Race race;
  if (w.races() && w.races()->access(w.number(), static_cast<u32>(lane), w.pc_of(c), true, offset, 8, true,
                                     kScopeBlock | kReduces, false, race))
    w.report(c, lane, Space::kShared, offset, 8, Warp::Access::kUpdate, race);
  return b;
}

void Async::note(Warp& w, const Code& c, int lane, BlockRaces::Agent agent, u64 offset, u64 bytes,
                 bool writes) {
  Race race;
  if (w.races() && bytes != 0 && w.races()->access(agent, w.pc_of(c), true, offset, bytes, writes, race))
    w.report(c, lane, Space::kShared, offset, static_cast<u32>(bytes),
             writes ? Warp::Access::kWrite : Warp::Access::kRead, race);
}

void Async::init(Warp& w, const Code& c, int lane, u64 offset, u32 count) {
  if (count == 0 || count > kMaxCount)
    w.fail(c, lane, "an mbarrier of " + std::to_string(count) + " arrivals; 1 to 1048575 are possible");
  // All checks of a store, which this is.
  w.locate(c, lane, Space::kShared, offset, 8, Warp::Access::kWrite);
  if (const auto found = barriers_.find(offset); found != barriers_.end())
    w.fail(c, lane,
           "there is an mbarrier at " + hex(offset) + " already, initialised at " + found->second.line +
               "; mbarrier.inval must come before");
  for (const BulkOperation& o : pending_)
    if (o.barrier == offset) w.fail(c, lane, "a bulk copy still signals the mbarrier at " + hex(offset));
  Barrier b;
  b.expected = b.pending = count;
  b.thread = thread_of(w, lane);
  b.line = w.line_of(w.next_pc() - 1);
  barriers_[offset] = b;
  store_bits(offset, b);
}

void Async::invalidate(Warp& w, const Code& c, int lane, u64 offset) {
  barrier(w, c, lane, offset);
  for (const BulkOperation& o : pending_)
    if (o.barrier == offset) w.fail(c, lane, "a bulk copy still signals the mbarrier at " + hex(offset));
  w.locate(c, lane, Space::kShared, offset, 8, Warp::Access::kWrite);
  barriers_.erase(offset);
  std::memset(block_.shared.states.data() + offset, kUninitialised, 8);
}

void Async::update(Warp& w, const Code& c, int lane, u64 offset, u32 arrivals, i64 transactions,
                   u32 dropped) {
  Barrier& b = barrier(w, c, lane, offset);
  const std::string name = "the mbarrier at " + hex(offset) + " (initialised at " + b.line + ")";
  if (arrivals > b.pending)
    w.fail(c, lane,
           std::to_string(arrivals) + " arrivals at " + name + ", whose phase " + std::to_string(b.phase) +
               " waits for " + std::to_string(b.pending) + " of " + std::to_string(b.expected));
  b.transactions += transactions;
  if (b.transactions > kMaxTransactions || b.transactions < -kMaxTransactions)
    w.fail(c, lane,
           "the tx-count of " + name + " becomes " + std::to_string(b.transactions) +
               "; it must stay within 1048575");
  b.pending -= arrivals;
  b.expected -= dropped;
  ++progress;
  if (b.pending == 0 && b.transactions == 0) {
    ++b.phase;
    b.pending = b.expected;
  }
  store_bits(offset, b);
}

void Async::increment(Warp& w, const Code& c, int lane, u64 offset) {
  Barrier& b = barrier(w, c, lane, offset);
  if (b.pending == kMaxCount) w.fail(c, lane, "the pending count exceeds 1048575");
  ++b.pending;
  store_bits(offset, b);
}
void Async::fence_barriers(Warp& w, u32 mask) {
  for (auto& [offset, b] : barriers_)
    if (b.thread / 32 == w.number() && ((mask >> (b.thread % 32)) & 1) != 0) b.fenced = true;
}

// ---- bulk operations ----

void Async::start(BulkOperation o) {
  Warp& w = *o.warp;
  const Code& c = *o.code;
  if (o.barrier != kNoBarrier) {
    const Barrier& b = use_barrier(w, c, o.lane, o.barrier);
    if (!b.fenced && o.kind == BulkOperation::kLoad)
      w.fail(c, o.lane,
             "the mbarrier at " + hex(o.barrier) + " was initialised at " + b.line +
                 ", but its thread did not make this visible to the async proxy; "
                 "fence.proxy.async or fence.mbarrier_init must follow mbarrier.init");
    o.phase = b.phase;
  }
  if (o.kind == BulkOperation::kLoad) {
    if (o.bytes != 0) {
      // The checks of a store, which also find operations that still read or write these bytes.
      w.locate(c, o.lane, o.agent, Space::kShared, o.shared, static_cast<u32>(o.bytes), Warp::Access::kWrite);
      std::fill_n(writers_.begin() + static_cast<std::ptrdiff_t>(o.shared / 4), o.bytes / 4, 0u);
      std::memset(block_.shared.states.data() + o.shared, kInBulkFlight, o.bytes);
    }
  } else if (o.kind == BulkOperation::kStore) {
    for (const BulkOperation::Segment& s : o.segments) {
      for (u64 at = s.shared / 16 * 16; at < s.shared + s.bytes; at += 16) read_chunk(w, c, o.lane, at);
      hold(s.shared, s.bytes, 1);
    }
    note(w, c, o.lane, o.agent, o.shared, o.bytes, false);
  }
  pending_.push_back(std::move(o));
}

void Async::read_source(BulkOperation& o) {
  if (o.source_read) return;
  o.source_read = true;
  for (const BulkOperation::Segment& s : o.segments) {
    const std::byte* const from = block_.shared.data.data() + s.shared;
    o.staged.insert(o.staged.end(), from, from + s.bytes);
    hold(s.shared, s.bytes, -1);
  }
  if (BlockRaces* const races = o.warp->races())
    races->complete(o.agent, kStoreKey + thread_of(*o.warp, o.lane));
}
void Async::write_destination(BulkOperation& o) {
  const std::byte* from = o.staged.data();
  for (const BulkOperation::Segment& s : o.segments) {
    if (o.reduction != 0) reduce_bulk(o.reduction, s.global, from, s.bytes);
    else std::memcpy(s.global, from, s.bytes);
    from += s.bytes;
  }
  if (BlockRaces* const races = o.warp->races())
    races->complete(o.writer, kStoreKey + thread_of(*o.warp, o.lane));
}

void Async::fail_too_few(const BulkOperation& o) const {
  o.warp->fail(*o.code, o.lane,
               "phase " + std::to_string(o.phase) + " of the mbarrier at " + hex(o.barrier) +
                   " ends without this copy, which was started in it: " + bytes_text(o.bytes) +
                   " too few were expected");
}

bool Async::complete_one() {
  // Stores complete at their waits. The other operations complete in order, or in random order.
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < pending_.size(); ++i)
    if (pending_[i].kind != BulkOperation::kStore) candidates.push_back(i);
  if (candidates.empty()) return false;
  Launch& l = *block_.launch;
  const std::size_t chosen =
      candidates[l.options->seed != 0 ? l.random.below(static_cast<u32>(candidates.size())) : 0];
  const BulkOperation o = std::move(pending_[chosen]);
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(chosen));
  if (o.kind == BulkOperation::kCopyArrival) {
    complete_copies(*o.warp, o.lane, o.copies);
    if (BlockRaces* const races = o.warp->races())
      races->release(o.warp->number(), static_cast<u32>(o.lane), o.barrier);
    update(*o.warp, *o.code, o.lane, o.barrier, 1, 0);
    return true;
  }
  for (const BulkOperation::Segment& s : o.segments) {
    std::byte* const to = block_.shared.data.data() + s.shared;
    if (s.global) {
      std::memcpy(to, s.global, s.bytes);
    } else {
      for (u32 i = 0; i < s.bytes; ++i) to[i] = static_cast<std::byte>(s.pattern >> (8 * (i % 4)));
    }
    std::memset(block_.shared.states.data() + s.shared, kInitialised, s.bytes);
  }
  const Barrier& b = barrier(*o.warp, *o.code, o.lane, o.barrier);
  if (b.phase != o.phase) fail_too_few(o);
  if (BlockRaces* const races = o.warp->races()) races->complete(o.agent, o.barrier);
  update(*o.warp, *o.code, o.lane, o.barrier, 0, -static_cast<i64>(o.bytes));
  return true;
}

void Async::wait_stores(Warp& w, int lane, u64 keep, bool read_only) {
  const u32 committed = bulk_group[thread_of(w, lane)];
  for (std::size_t i = 0; i < pending_.size();) {
    BulkOperation& o = pending_[i];
    const bool waits =
        o.kind == BulkOperation::kStore && o.warp == &w && o.lane == lane && o.group + keep < committed;
    if (waits) read_source(o);
    if (!waits || read_only) {
      ++i;
      continue;
    }
    write_destination(o);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (w.races()) w.races()->acquire(w.number(), static_cast<u32>(lane), kStoreKey + thread_of(w, lane));
}

// ---- shared memory ----

void Async::hold(u64 offset, u64 bytes, int change) {
  for (u64 chunk = offset / 16; chunk < (offset + bytes + 15) / 16; ++chunk)
    readers_[chunk] = static_cast<u16>(readers_[chunk] + change);
}

void Async::check_access(Warp& w, const Code& c, int lane, u64 offset, u32 bytes, Warp::Access access) {
  const u8* const states = block_.shared.states.data() + offset;
  for (u32 i = 0; i < bytes; ++i)
    if (states[i] == kInBulkFlight) {
      std::string by = "a bulk copy";
      for (const BulkOperation& o : pending_)
        for (const BulkOperation::Segment& s : o.segments)
          if (o.kind == BulkOperation::kLoad && s.shared <= offset + i && offset + i < s.shared + s.bytes)
            by = "the copy of " + o.warp->line_of(*o.code);
      w.fail(c, lane,
             std::string(access == Warp::Access::kRead ? "reads " : "writes ") + bytes_text(bytes) +
                 " of shared memory at " + hex(offset) + ", which " + by +
                 " is still writing: no wait for its mbarrier came before");
    }
  if (access == Warp::Access::kRead) return;
  for (u64 chunk = offset / 16; chunk <= (offset + bytes - 1) / 16; ++chunk)
    if (readers_[chunk] != 0) {
      std::string by = "an asynchronous operation (wgmma) is still reading: no wgmma.wait_group came before";
      for (const BulkOperation& o : pending_)
        for (const BulkOperation::Segment& s : o.segments)
          if (o.kind == BulkOperation::kStore && !o.source_read && s.shared < 16 * chunk + 16 &&
              16 * chunk < s.shared + s.bytes)
            by = "the copy of " + o.warp->line_of(*o.code) +
                 " is still reading: no cp.async.bulk.wait_group came before";
      w.fail(c, lane,
             "writes " + bytes_text(bytes) + " of shared memory at " + hex(offset) + ", which " + by);
    }
  const u32 thread = thread_of(w, lane);
  const u32 tag = (thread + 1) << kEpochBits | (proxy_fences_[thread] & ((1u << kEpochBits) - 1));
  for (u64 word = offset / 4; word <= (offset + bytes - 1) / 4; ++word) writers_[word] = tag;
}

const std::byte* Async::read_chunk(Warp& w, const Code& c, int lane, u64 offset) {
  const std::byte* const data =
      w.locate(c, lane, BlockRaces::Agent{}, Space::kShared, offset, 16, Warp::Access::kRead);
  for (u64 word = offset / 4; word < offset / 4 + 4; ++word) {
    if (writers_[word] == 0) continue;
    const u32 thread = (writers_[word] >> kEpochBits) - 1;
    if ((proxy_fences_[thread] & ((1u << kEpochBits) - 1)) == (writers_[word] & ((1u << kEpochBits) - 1))) {
      const Dim& d = block_.launch->block;
      w.fail(c, lane,
             "reads shared memory at " + hex(4 * word) + " through the async proxy; thread (" +
                 std::to_string(thread % d.x) + ", " + std::to_string(thread / d.x % d.y) + ", " +
                 std::to_string(thread / d.x / d.y) +
                 ") wrote it and executed no fence.proxy.async after that");
    }
  }
  return data;
}

void Async::fence_proxy(Warp& w, u32 mask) {
  for (u32 m = mask; m != 0; m &= m - 1) ++proxy_fences_[thread_of(w, std::countr_zero(m))];
}

u64 Async::Warpgroup::completed() const { return *std::min_element(done, done + 4); }

void Async::release(Warpgroup& group, u64 issues) {
  for (; group.released < issues; ++group.released) {
    std::vector<u32>& reads = group.issues[static_cast<std::size_t>(group.released)].reads;
    for (const u32 chunk : reads) hold(u64{16} * chunk, 16, -1);
    reads = {};
    if (BlockRaces* const races = block_.races.get())
      for (const BlockRaces::Agent agent : group.issues[static_cast<std::size_t>(group.released)].agents)
        races->complete(agent, kWarpgroupKey + static_cast<u64>(&group - warpgroups.data()));
  }
}

// ---- for the scheduler ----

std::string Async::explain(const Warp& w, int lane) const {
  const Warp::Event& e = w.event(lane);
  switch (e.kind) {
    case Warp::Event::kBarrier: {
      const auto found = barriers_.find(e.object);
      if (found == barriers_.end()) return "waits for an mbarrier that no longer exists";
      const Barrier& b = found->second;
      std::string text = "waits for the mbarrier at " + hex(e.object) + " (initialised at " + b.line +
                         "), and nothing can complete its phase " + std::to_string(b.phase) + ": " +
                         std::to_string(b.pending) + " of " + std::to_string(b.expected) +
                         " arrivals are missing";
      if (b.transactions > 0)
        text += "; " + bytes_text(static_cast<u64>(b.transactions)) + " were expected that no copy brings";
      if (b.transactions < 0)
        text += "; copies brought " + bytes_text(static_cast<u64>(-b.transactions)) + " more than expected";
      return text;
    }
    case Warp::Event::kWarpgroup:
      return "waits for the other warps of its warpgroup, which did not execute the same wgmma.mma_async; "
             "all 128 threads must";
    case Warp::Event::kRegisters:
      return "waits for registers that no warpgroup releases: setmaxnreg.inc asks for more than the block "
             "has";
    default:
      return "waits at barrier.cluster for threads that never come";
  }
}

void Async::finish() {
  for (BulkOperation& o : pending_) {
    if (o.kind == BulkOperation::kStore && o.source_read) {
      write_destination(o);
      continue;
    }
    if (const auto b = barriers_.find(o.barrier);
        o.kind == BulkOperation::kLoad && b != barriers_.end() && b->second.phase != o.phase)
      fail_too_few(o);
    o.warp->fail(*o.code, o.lane,
                 o.kind == BulkOperation::kStore
                     ? "the block ended before this copy had read its shared memory; wait with "
                       "cp.async.bulk.wait_group.read"
                     : "the block ended while this operation was still using its shared memory");
  }
  pending_.clear();
  for (const Warpgroup& g : warpgroups)
    for (u32 i = 1; i < 4; ++i)
      if (g.done[i] != g.done[0] && !g.issues.empty())
        throw KernelError("[ptx] kernel '" + block_.launch->program->entry->name +
                          "': the warps of a warpgroup executed different numbers of wgmma.mma_async: " +
                          std::to_string(g.done[0]) + " and " + std::to_string(g.done[i]));
}

}  // namespace tapestry::ptx
