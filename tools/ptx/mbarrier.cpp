// mbarrier, the fences of the async proxy, barrier.cluster for clusters of one block, elect and setmaxnreg.
// Source: the PTX manual, "Parallel Synchronization and Communication Instructions: mbarrier".
#include <algorithm>

#include "tapestry/tools/ptx/async.h"

namespace tapestry::ptx {
namespace {

// Flags: bits 0-2 the space, then these.
enum Flag : u32 {
  kHasState = 1 << 3,
  kDrop = 1 << 4,
  kExpects = 1 << 5,
  kNoComplete = 1 << 6,
  kParity = 1 << 7,
  kIncrement = 1 << 8,
};

// The token that arrive returns: the state before the arrival.
u64 token(const Barrier& b) { return b.phase << 20 | b.pending; }

template <class F>
void each_barrier(Warp& w, const Code& c, u32 mask, const Ref& base, F f) {
  u64 address[32];
  w.addresses(static_cast<Space>(c.flags & 7), base, c.offset[0], address);
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    f(lane, Async::shared_offset(w, c, lane, static_cast<Space>(c.flags & 7), address[lane]));
  }
}

void run_init(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  each_barrier(w, c, mask, o[0],
               [&](int lane, u64 at) { w.async().init(w, c, lane, at, w.row<const u32>(o[1])[lane]); });
}
void run_invalidate(Warp& w, const Code& c, u32 mask) {
  each_barrier(w, c, mask, w.operands(c)[0], [&](int lane, u64 at) { w.async().invalidate(w, c, lane, at); });
}
void run_arrive(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u32 address = (c.flags & kHasState) != 0 ? 1 : 0;
  const u32* const number = c.count > address + 1 ? w.row<const u32>(o[address + 1]) : nullptr;
  u64 states[32] = {};
  each_barrier(w, c, mask, o[address], [&](int lane, u64 at) {
    const Barrier& b = w.async().use_barrier(w, c, lane, at);
    if (w.races()) w.races()->release(w.number(), static_cast<u32>(lane), at);
    states[lane] = token(b);
    const bool expects = (c.flags & kExpects) != 0;
    const u32 count = number && !expects ? number[lane] : 1;
    if (count == 0) w.fail(c, lane, "arrives 0 times; the count must be at least 1");
    if ((c.flags & kNoComplete) != 0 && count >= b.pending && b.transactions == 0)
      w.fail(c, lane, "completes the phase, which .noComplete excludes");
    w.async().update(w, c, lane, at, count, expects ? i64{number[lane]} : 0,
                     (c.flags & kDrop) != 0 ? count : 0);
  });
  if (address != 0) w.write(o[0], states, mask);
}
// expect_tx (sign 1) and complete_tx (sign -1).
template <int sign>
void run_transactions(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  each_barrier(w, c, mask, o[0], [&](int lane, u64 at) {
    w.async().use_barrier(w, c, lane, at);
    w.async().update(w, c, lane, at, 0, sign * i64{w.row<const u32>(o[1])[lane]});
  });
}
// test_wait and try_wait. A lane whose phase is not complete lets others run first: a GPU suspends it.
void run_wait(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  u32 done = 0;
  u64 offsets[32] = {};
  each_barrier(w, c, mask, o[1], [&](int lane, u64 at) {
    const Barrier& b = w.async().use_barrier(w, c, lane, at);
    offsets[lane] = at;
    bool complete = false;
    if ((c.flags & kParity) != 0) {
      const u32 parity = w.row<const u32>(o[2])[lane];
      if (parity > 1) w.fail(c, lane, "waits for the parity " + std::to_string(parity) + "; it is 0 or 1");
      complete = (b.phase & 1) != parity;
    } else {
      const u64 phase = w.row<const u64>(o[2])[lane] >> 20;
      if (phase > b.phase || phase + 1 < b.phase)
        w.fail(c, lane,
               "waits with a state of phase " + std::to_string(phase) + "; the mbarrier is in phase " +
                   std::to_string(b.phase) + ", and only that one and the one before can be tested");
      complete = phase < b.phase;
    }
    done |= static_cast<u32>(complete) << lane;
    if (complete && w.races()) w.races()->acquire(w.number(), static_cast<u32>(lane), at);
  });
  w.set_predicate(o[0], done, mask);
  if (done != 0) ++w.async().progress;
  if (const u32 waits = mask & ~done; waits != 0)
    w.wait_for_event(waits, false, Warp::Event::kBarrier, offsets);
}
void run_pending_count(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u64* const state = w.row<const u64>(o[1]);
  u32 values[32];
  for (int lane = 0; lane < 32; ++lane) values[lane] = static_cast<u32>(state[lane] & 0xfffff);
  w.write(o[0], values, mask);
}
// The arrival happens when the thread's earlier cp.async have completed. Without .noinc, the pending count
// grows by one now, so that the arrival leaves it as it was.
void run_copy_arrive(Warp& w, const Code& c, u32 mask) {
  each_barrier(w, c, mask, w.operands(c)[0], [&](int lane, u64 at) {
    w.async().use_barrier(w, c, lane, at);
    if ((c.flags & kIncrement) != 0) w.async().increment(w, c, lane, at);
    BulkOperation operation;
    operation.warp = &w;
    operation.code = &c;
    operation.lane = lane;
    operation.kind = BulkOperation::kCopyArrival;
    operation.barrier = at;
    operation.copies = w.copies_issued[lane];
    w.async().start(std::move(operation));
  });
}

void run_proxy_fence(Warp& w, const Code&, u32 mask) {
  w.async().fence_proxy(w, mask);
  w.async().fence_barriers(w, mask);
}
void run_init_fence(Warp& w, const Code&, u32 mask) { w.async().fence_barriers(w, mask); }

// Any lane may be elected, but always the same for the same mask. In random order, it is not the first.
void run_elect(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  u32 members[32];
  std::copy_n(w.row<const u32>(o[2]), 32, members);
  w.collective(c, mask, members, [&](u32 lanes) {
    u32 rest = lanes;
    if (const u64 seed = w.launch().options->seed; seed != 0)
      for (u64 skip = (seed * 0x9e3779b9u + lanes) % static_cast<u32>(std::popcount(lanes)); skip != 0;
           --skip)
        rest &= rest - 1;
    const auto leader = static_cast<u32>(std::countr_zero(rest));
    u32 values[32];
    std::fill_n(values, 32, leader);
    w.write(o[0], values, lanes);
    w.set_predicate(o[1], 1u << leader, lanes);
  });
}

// ---- a cluster of one block ----

void run_cluster_arrive(Warp& w, const Code& c, u32 mask) {
  Async& a = w.async();
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    u64& own = a.cluster_waits[32 * w.number() + static_cast<u32>(lane)];
    if (own != 0) w.fail(c, lane, "arrives twice without barrier.cluster.wait");
    own = a.cluster_phase + 1;
    if (w.races()) w.races()->release(w.number(), static_cast<u32>(lane), kClusterKey);
    ++a.cluster_arrived;
    a.complete_cluster_phase();
  }
}
void run_cluster_wait(Warp& w, const Code& c, u32 mask) {
  Async& a = w.async();
  u32 waits = 0;
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    u64& own = a.cluster_waits[32 * w.number() + static_cast<u32>(lane)];
    if (own == 0) w.fail(c, lane, "waits without barrier.cluster.arrive");
    if (own > a.cluster_phase) {
      waits |= 1u << lane;
      continue;
    }
    own = 0;
    if (w.races()) w.races()->acquire(w.number(), static_cast<u32>(lane), kClusterKey);
  }
  if (waits != 0) w.wait_for_event(waits, true, Warp::Event::kCluster);
}

// setmaxnreg: the block's registers are those of the launch, of which the machine knows an upper bound.
bool set_registers(Warp& w, const Code& c) {
  const auto number = static_cast<u32>(c.offset[0]);
  Async::Warpgroup& group = w.async().warpgroups[w.number() / 4];
  const Dim& d = w.launch().block;
  const u32 threads = d.x * d.y * d.z, groups = (threads + 127) / 128;
  const u32 launched = std::min(256u, 65536 / (128 * groups) / 8 * 8);
  const bool decreases = c.flags != 0;
  if (number < 24 || number > 256 || number % 8 != 0)
    w.fail(c, 0, std::to_string(number) + " registers; they must be a multiple of 8 between 24 and 256");
  if (threads % 128 != 0) w.fail(c, 0, "the block has no whole warpgroups");
  const u32 now = group.registers != 0 ? group.registers : launched;
  if (decreases && number > now)
    w.fail(c, 0,
           "decreases the registers to " + std::to_string(number) + ", but a thread has at most " +
               std::to_string(now));
  u32 others = 0;
  for (const Async::Warpgroup& g : w.async().warpgroups)
    if (&g != &group) others += g.registers != 0 ? g.registers : launched;
  if (!decreases && others + number > launched * groups) return false;
  group.registers = number;
  ++w.async().progress;
  return true;
}
void run_registers(Warp& w, const Code& c, u32 mask) {
  bool done = true;
  w.require_all(c, mask, [&](Warp&, const Code&) { done = set_registers(w, c); });
  if (!done) w.wait_for_event(kAllLanes, true, Warp::Event::kRegisters);
}

void run_policy(Warp& w, const Code& c, u32 mask) {
  u64 values[32] = {};
  w.write(w.operands(c)[0], values, mask);
}
void run_cluster_address(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  for (u32 m = mask; m != 0; m &= m - 1)
    if (const int lane = std::countr_zero(m); w.row<const u32>(o[2])[lane] != 0)
      w.fail(c, lane,
             "names block " + std::to_string(w.row<const u32>(o[2])[lane]) +
                 " of the cluster, which has one block");
  if (o[0].width == 4) {
    u32 values[32];
    std::copy_n(w.row<const u32>(o[1]), 32, values);
    w.write(o[0], values, mask);
  } else {
    u64 values[32];
    std::copy_n(w.row<const u64>(o[1]), 32, values);
    w.write(o[0], values, mask);
  }
}

bool is_scope(std::string_view p) {
  static constexpr std::string_view kScopes[] = {"cta", "cluster", "release", "acquire", "relaxed"};
  return std::find(std::begin(kScopes), std::end(kScopes), p) != std::end(kScopes);
}

bool find_barrier(const Parts& p, Entry& e) {
  if (p.size() < 3 || p.back() != "b64") return false;
  if (p[1] == "pending_count") {
    e = {&run_pending_count, "w=l", 0};
    return p.size() == 3;
  }
  Space space = Space::kGeneric;
  bool parity = false, expects = false, no_complete = false;
  for (std::size_t i = 2; i + 1 < p.size(); ++i) {
    if (p[i] == "shared" || p[i] == "shared::cta" || p[i] == "shared::cluster") space = Space::kShared;
    else if (p[i] == "parity") parity = true;
    else if (p[i] == "expect_tx") expects = true;
    else if (p[i] == "noComplete") no_complete = true;
    else if (!is_scope(p[i])) return false;
  }
  const auto flags = static_cast<u32>(space);
  const bool arrives = p[1] == "arrive" || p[1] == "arrive_drop",
             waits = p[1] == "test_wait" || p[1] == "try_wait";
  if ((parity && !waits) || ((expects || no_complete) && !arrives)) return false;
  if (p[1] == "init") e = {&run_init, "mw", flags};
  else if (p[1] == "inval") e = {&run_invalidate, "m", flags};
  else if (p[1] == "expect_tx") e = {&run_transactions<1>, "mw", flags};
  else if (p[1] == "complete_tx") e = {&run_transactions<-1>, "mw", flags};
  else if (arrives)
    e = {&run_arrive, expects || no_complete ? "l=mw" : "l=m?w",
         flags | kHasState | (p[1] == "arrive_drop" ? kDrop : 0u) | (expects ? kExpects : 0u) |
             (no_complete ? kNoComplete : 0u)};
  else if (waits)
    e = {&run_wait, std::string(parity ? "p=mw" : "p=ml") + (p[1] == "try_wait" ? "?w" : ""),
         flags | (parity ? kParity : 0u)};
  else return false;
  return true;
}

}  // namespace

bool find_mbarrier(const Parts& p, Entry& e) {
  e.uses_async = true;
  const auto is = [&](std::size_t i, std::string_view name) { return i < p.size() && p[i] == name; };
  const auto found = [&](Handler run, const char* signature, u32 flags = 0) {
    e.run = run;
    e.signature = signature;
    e.flags = flags;
    return true;
  };
  if (p[0] == "mbarrier") {
    const bool known = find_barrier(p, e);
    e.uses_async = true;
    return known;
  }
  if (is(0, "cp") && is(1, "async") && is(2, "mbarrier") && is(3, "arrive") && p.back() == "b64") {
    u32 flags = static_cast<u32>(Space::kGeneric) | kIncrement;
    for (std::size_t i = 4; i + 1 < p.size(); ++i) {
      if (p[i] == "noinc") flags &= ~u32{kIncrement};
      else if (p[i] == "shared" || p[i] == "shared::cta")
        flags = (flags & ~7u) | static_cast<u32>(Space::kShared);
      else return false;
    }
    return found(&run_copy_arrive, "m", flags);
  }
  if (is(0, "fence") && is(1, "proxy") && is(2, "async")) return p.size() <= 4 && found(&run_proxy_fence, "");
  if (is(0, "fence") && is(1, "mbarrier_init")) return found(&run_init_fence, "");
  if (is(0, "fence") && is(1, "proxy") && (is(2, "alias") || is(2, "tensormap::generic")))
    return found(&run_nothing, is(3, "acquire") ? "mw" : "");
  if (is(0, "elect") && is(1, "sync") && p.size() == 2) return found(&run_elect, "wq=w");
  if (is(0, "setmaxnreg") && p.size() == 5 && is(2, "sync") && is(3, "aligned") && is(4, "u32") &&
      (is(1, "inc") || is(1, "dec")))
    return found(&run_registers, "i", is(1, "dec") ? 1 : 0);
  if (is(0, "createpolicy")) {
    e.uses_async = false;
    const bool range = is(1, "range");
    return (range || is(1, "fractional")) && found(&run_policy, range               ? "l=xxx"
                                                                : p.back() == "b64" ? "l=?x"
                                                                                    : "");
  }
  if (is(0, "barrier") && is(1, "cluster")) {
    for (std::size_t i = 3; i < p.size(); ++i)
      if (!is_scope(p[i]) && p[i] != "aligned") return false;
    if (is(2, "arrive")) return found(&run_cluster_arrive, "");
    return is(2, "wait") && found(&run_cluster_wait, "");
  }
  if (is(0, "mapa") && (is(p.size() - 1, "u32") || is(p.size() - 1, "u64"))) {
    e.uses_async = false;
    for (std::size_t i = 1; i + 1 < p.size(); ++i)
      if (p[i] != "shared::cluster") return false;
    return found(&run_cluster_address, is(p.size() - 1, "u32") ? "w=ww" : "l=lw");
  }
  return false;
}

}  // namespace tapestry::ptx
