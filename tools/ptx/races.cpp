#include "tapestry/tools/ptx/races.h"

#include <algorithm>
#include <bit>

namespace tapestry::ptx {
namespace {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 kAgent = 1u << 31;                         // in the number of a warp: the number of an agent
constexpr u32 kWrites = 1u << 29, kReplaced = 1u << 30;  // in Access::pc
constexpr u32 kOrderShift = 24, kPcMask = (1u << kOrderShift) - 1, kStoredOrder = 31;
constexpr u32 kNever = ~0u;

bool is_strong(u32 pc) { return ((pc >> kOrderShift) & kScopeMask) != 0; }
bool is_non_coherent(u32 pc) { return (pc & (u32{kNonCoherent} << kOrderShift)) != 0; }
// A strong read of the value that is still there: what comes after it comes after the write, too.
bool is_observer(u32 pc) { return is_strong(pc) && (pc & (kWrites | kReplaced)) == 0; }
// Whether what races with an earlier access also races with the later one. Only weak accesses race with
// atomics, and only loads through the read-only cache with a write of their own thread. Observers stay.
bool replaces(u32 later, u32 earlier) {
  return (is_strong(earlier) || !is_strong(later)) && (!is_non_coherent(earlier) || is_non_coherent(later)) &&
         (is_strong(later) || !is_observer(earlier));
}
u32 scope(u32 pc) { return (pc >> kOrderShift) & kScopeMask; }
bool has_agent(u32 warp) { return (warp & kAgent) != 0; }
// Whether it is a weak read of a thread that races with a strong write.
bool may_be_confirmed(const Race& race, bool now_is_agent) {
  const bool weak_reads =
      race.now_strong != race.then_strong && !(race.now_strong ? race.then_writes : race.now_writes);
  return weak_reads && !race.non_coherent && !race.then_is_agent && !now_is_agent;
}

}  // namespace

Races::Races(u32 threads_per_block, Rules rules)
    : threads_(threads_per_block),
      warps_((threads_per_block + 31) / 32),
      rules_(rules),
      cached_(kCached),
      more_(1) {}
Races::~Races() = default;

bool Races::take_doubt(u32 block, u64 before, Doubt& doubt) {
  const auto found = std::find_if(doubts_.begin(), doubts_.end(), [&](const auto& one) {
    return one.second.reader.warp / warps_ == block || one.second.since < before;
  });
  if (found == doubts_.end()) return false;
  doubt = found->second;
  doubts_.erase(found);
  return true;
}

bool Races::learned(const std::vector<Acquired>& acquired, u32 own_block, Question& q) const {
  const bool agent = has_agent(q.who.warp);
  const u32 thread = agent ? 0 : (q.who.warp - q.block * warps_) * 32 + q.who.lane;
  for (const Acquired& a : acquired) {
    const auto asked = [&](const Acquired& o) {
      return o.history == a.history && o.begin <= a.begin && o.end >= a.end &&
             (!o.block_only || a.block_only);
    };
    if (std::any_of(q.asked.begin(), q.asked.end(), asked)) continue;
    q.asked.push_back(a);
    const History& h = *a.history;
    const auto hidden = [&](const Release& r) {
      return (r.block_only || a.block_only) && r.block != own_block;
    };
    if (const auto found = h.by_block.find(q.block); found != h.by_block.end()) {
      for (std::size_t i = found->second.size(); i-- > 0;) {
        const u32 at = found->second[i];
        if (at >= a.end) continue;
        if (at < a.begin) break;
        const Release& r = h.releases[at];
        if (hidden(r)) continue;
        if (r.warp == q.who.warp && r.lane == q.who.lane && r.clock >= q.clock) return true;
        if (!agent && r.view->known[thread] >= q.clock) return true;
      }
    }
    for (std::size_t i = h.indirect.size(); i-- > 0;) {
      const u32 at = h.indirect[i];
      if (at >= a.end) continue;
      if (at < a.begin) break;
      const Release& r = h.releases[at];
      if (!hidden(r) && learned(r.view->acquired, r.block, q)) return true;
    }
  }
  return false;
}

BlockRaces::BlockRaces(Races& launch) : l_(launch), clocks_(launch.warps_), threads_(launch.warps_ * 32) {
  auto start = std::make_shared<View>();
  start->known.assign(l_.warps_ * 32, 0);
  std::fill(start->known.begin() + l_.threads_, start->known.end(), kNever);
  start->least.assign(l_.warps_, 0);
  start_ = start;
}

void BlockRaces::begin_block(u32 block) {
  block_ = block;
  first_warp_ = block * l_.warps_;
  std::fill(clocks_.begin(), clocks_.end(), 1);
  for (Thread& t : threads_) {
    t = Thread();
    t.view = start_;
  }
  ++generation_;
  shared_histories_.clear();
  keyed_.clear();
  agents_.clear();
  sequential_fences_ = 0;
  cached_view_ = nullptr;
}

// ---- cells ----

Races::Page& BlockRaces::page(bool shared, u64 number) {
  if (shared) {
    if (number >= shared_.size()) shared_.resize(number + 1);
    Page& p = shared_[number];
    if (p.generation == generation_) return p;
    p.generation = generation_;
    if (p.cells.empty()) p.cells.resize(Races::kPage >> p.shift);
    for (Cell& c : p.cells) {
      c.write = c.read = {};
      if (c.more != 0) l_.more_[c.more].clear();
    }
    return p;
  }
  Races::Cached& cached = l_.cached_[number % Races::kCached];
  if (cached.number == number) return *cached.page;
  Page& p = l_.global_[number];
  if (p.cells.empty()) p.cells.resize(Races::kPage >> p.shift);
  cached = {number, &p};
  return p;
}

// Makes the cells smaller. Each part has had the accesses of the whole.
void BlockRaces::refine(Page& p, u32 shift) {
  const u32 parts = 1u << (p.shift - shift);
  std::vector<Cell> cells;
  cells.reserve(p.cells.size() * parts);
  for (const Cell& c : p.cells)
    for (u32 i = 0; i < parts; ++i) {
      cells.push_back(c);
      if (c.more == 0 || i == 0) continue;
      cells.back().more = static_cast<u32>(l_.more_.size());
      auto copy = l_.more_[c.more];
      l_.more_.push_back(std::move(copy));
    }
  p.cells = std::move(cells);
  p.shift = shift;
}

// The lanes of an access that are not ordered before this one.
u32 BlockRaces::unordered(const Access& then, const Who& who) const {
  u32 lanes = then.lanes;
  if (then.warp == who.warp) {
    lanes &= ~(1u << who.lane);
    if (lanes == 0) return 0;
  }
  Races::Question q;
  if (has_agent(then.warp)) {
    q.block = l_.agent_blocks_[then.warp & ~kAgent];
  } else {
    const u32 local = then.warp - first_warp_;
    if (local < l_.warps_) {
      if (who.view->least[local] >= then.clock) return 0;
      const u32* const known = &who.view->known[local * 32];
      for (u32 m = lanes; m != 0; m &= m - 1)
        if (const int lane = std::countr_zero(m); known[lane] >= then.clock) lanes &= ~(1u << lane);
    }
    q.block = then.warp / l_.warps_;
  }
  if (who.view->acquired.empty()) return lanes;
  for (u32 m = lanes; m != 0; m &= m - 1) {
    const auto lane = static_cast<u32>(std::countr_zero(m));
    q.who = {then.warp, lane};
    q.clock = then.clock;
    q.asked.clear();
    if (l_.learned(who.view->acquired, block_, q)) lanes &= ~(1u << lane);
  }
  return lanes;
}

bool BlockRaces::conflicts(const Access& then, const Who& who, const Access& now, bool equal,
                           Race& race) const {
  if (then.clock == 0) return false;
  const bool both_write = (then.pc & now.pc & kWrites) != 0;
  const bool non_coherent = is_non_coherent(then.pc | now.pc);
  const u32 block = has_agent(then.warp) ? l_.agent_blocks_[then.warp & ~kAgent] : then.warp / l_.warps_;
  if (is_strong(then.pc) && is_strong(now.pc) &&
      (block == block_ || (scope(then.pc) != kScopeBlock && scope(now.pc) != kScopeBlock)))
    return false;
  u32 lanes = unordered(then, who);
  if (non_coherent) {
    lanes = then.lanes;
  } else if (lanes == 0 || (equal && both_write)) {
    return false;
  }
  race.now_writes = (now.pc & kWrites) != 0;
  race.then_writes = (then.pc & kWrites) != 0;
  race.non_coherent = non_coherent;
  race.then = {then.warp, static_cast<u32>(std::countr_zero(lanes))};
  race.then_is_agent = has_agent(then.warp);
  race.then_pc = then.pc & kPcMask;
  race.same_block = block == block_;
  race.same_warp = then.warp == who.warp;
  race.then_strong = is_strong(then.pc);
  race.now_strong = is_strong(now.pc);
  race.then_lanes = lanes;
  return true;
}

// Whether the weak access `now` comes after a strong read of what the strong write has written.
bool BlockRaces::observed(const Cell& cell, const Access& write, const Who& who, const Access& now) const {
  if (!is_strong(write.pc) || is_strong(now.pc) || is_non_coherent(now.pc) || (write.pc & kReplaced) != 0)
    return false;
  const auto before = [&](const Access& a) {
    const bool reads_it = a.warp / l_.warps_ == write.warp / l_.warps_ ||
                          (scope(a.pc) != kScopeBlock && scope(write.pc) != kScopeBlock);
    return a.clock != 0 && is_observer(a.pc) && reads_it && unordered(a, who) != a.lanes;
  };
  if (before(cell.read)) return true;
  return cell.more != 0 && std::any_of(l_.more_[cell.more].begin(), l_.more_[cell.more].end(), before);
}

// The lane has compared the value: its earlier weak reads count as a part of the atomic.
void BlockRaces::confirm_reads(Cell& cell, const Who& who) {
  const auto confirm = [&](Access& a) {
    if (a.warp == who.warp && (a.pc & kWrites) == 0 && !is_strong(a.pc)) a.lanes &= ~(1u << who.lane);
    return a.lanes == 0;
  };
  if (cell.read.clock != 0 && confirm(cell.read)) cell.read = {};
  if (cell.more != 0) std::erase_if(l_.more_[cell.more], confirm);
}

// Remembers an access that the cell's newer one is not ordered after. Of other blocks, two accesses of a kind
// are enough: a thread that writes rarely synchronises with one of them only.
void BlockRaces::push(Cell& cell, Access access, const Access& now) {
  if (cell.more == 0) {
    cell.more = static_cast<u32>(l_.more_.size());
    l_.more_.emplace_back();
  }
  auto& more = l_.more_[cell.more];
  const auto foreign = [&](const Access& a) { return a.warp - first_warp_ >= l_.warps_; };
  // What races with an earlier access of a lane races with its later one as well, if that is not weaker.
  const auto drop_lanes = [](Access& a, const Access& later) {
    if (a.warp == later.warp && replaces(later.pc, a.pc)) a.lanes &= ~later.lanes;
  };
  u32 others = 0;
  std::erase_if(more, [&](Access& a) {
    if (((a.pc ^ access.pc) & kWrites) != 0) return false;
    drop_lanes(a, access);
    drop_lanes(a, now);
    return a.lanes == 0 || (foreign(a) && ++others > 1);
  });
  drop_lanes(access, now);
  if (access.lanes != 0) more.push_back(access);
}

void BlockRaces::check_cell(Cell& cell, const Who& who, const Access& now, u8 order, bool equal, Race& race) {
  const bool write = (now.pc & kWrites) != 0, strong = is_strong(now.pc);
  const auto same = [&](const Access& a) {
    return a.warp == now.warp && a.clock == now.clock && ((a.pc ^ now.pc) & ~kPcMask) == 0;
  };
  // Whether an access can race with a later one that does not race with this one.
  const auto stays = [&](const Access& a) {
    return a.clock != 0 && (!replaces(now.pc, a.pc) || unordered(a, who) != 0);
  };
  const auto note = [&](const Access& a) {
    if ((a.pc & kWrites) == 0 || !observed(cell, a, who, now)) conflicts_.push_back(race);
  };
  if ((order & kCompares) != 0) confirm_reads(cell, who);
  if (cell.write.clock != 0 &&
      !(!is_non_coherent(now.pc) && cell.write.warp == who.warp && cell.write.lanes == now.lanes) &&
      conflicts(cell.write, who, now, equal, race))
    note(cell.write);
  if (!write) {
    if (cell.more != 0)
      for (const Access& a : l_.more_[cell.more])
        if ((a.pc & kWrites) != 0 && conflicts(a, who, now, equal, race)) note(a);
    if (same(cell.read)) {
      cell.read.lanes |= now.lanes;
      return;
    }
    if (stays(cell.read)) push(cell, cell.read, now);
    cell.read = now;
    return;
  }
  if (cell.read.clock != 0 && conflicts(cell.read, who, now, equal, race)) note(cell.read);
  if (cell.more != 0)
    for (const Access& a : l_.more_[cell.more])
      if (conflicts(a, who, now, equal, race)) note(a);
  if (strong) {
    // Others may have made strong accesses that are not ordered with this one: they stay, except for the
    // writes that this atomic has observed. What races with one of those races with this access, or comes
    // after it.
    const bool observes = (order & kObserves) != 0, stores = (order & (kObserves | kReduces)) == 0;
    const auto replace = [&](Access& a) {
      if (is_strong(a.pc) && ((a.pc & kWrites) == 0 || stores)) a.pc |= kReplaced;
      const bool reached = scope(a.pc) != kScopeBlock || scope(now.pc) == kScopeBlock;
      return observes && is_strong(a.pc) && (a.pc & (kWrites | kReplaced)) == kWrites && reached;
    };
    replace(cell.read);
    if (cell.more != 0 && observes) std::erase_if(l_.more_[cell.more], replace);
    else if (cell.more != 0)
      for (Access& a : l_.more_[cell.more]) replace(a);
    if (!observes && same(cell.write)) {
      cell.write.lanes |= now.lanes;
      return;
    }
    if (!replace(cell.write) && stays(cell.write)) push(cell, cell.write, now);
    cell.write = now;
    return;
  }
  if (equal && same(cell.write)) {
    cell.write.lanes |= now.lanes;
    return;
  }
  cell.write = now;
  cell.read = {};
  if (cell.more != 0) l_.more_[cell.more].clear();
}

// Of the conflicts in a cell, a weak read that may still be confirmed is a doubt. Returns whether another one
// is there, and sets `race` to the first.
bool BlockRaces::settle_conflicts(Races::Doubt doubt, bool now_is_agent, u64 cell, Race& race) {
  bool found = false;
  for (Race& one : conflicts_) {
    one.address = std::max(doubt.address, cell);
    if (!may_be_confirmed(one, now_is_agent)) {
      if (!found) race = one;
      found = true;
      continue;
    }
    doubt.race = one;
    for (u32 m = one.now_strong ? one.then_lanes : 1u << one.then.lane; m != 0; m &= m - 1) {
      doubt.race.then.lane = static_cast<u32>(std::countr_zero(m));
      doubt.reader = one.now_strong ? doubt.race.then : doubt.now;
      l_.doubts_.try_emplace({doubt.reader.warp, doubt.reader.lane, doubt.shared, cell}, doubt);
    }
  }
  conflicts_.clear();
  return found;
}

bool BlockRaces::check(const Who& who, u32 pc, bool shared, u64 address, u64 bytes, bool write, u8 order,
                       bool equal, Race& race) {
  const Access now{who.warp, 1u << who.lane, who.clock,
                   (pc & kPcMask) | (order & kStoredOrder) << kOrderShift | (write ? kWrites : 0)};
  const u64 first = address;
  std::unique_ptr<Race> found;  // the first one
  equal = equal && l_.rules_.allow_equal_writes;
  for (const u64 end = address + bytes; address < end;) {
    const u64 number = address / Races::kPage, begin = number * Races::kPage;
    const u64 stop = std::min(end, begin + Races::kPage);
    Page& p = page(shared, number);
    const u64 wide = (address | stop) & 3;
    if (wide != 0 && p.shift != 0) {
      const u32 shift = (wide & 1) != 0 ? 0 : 1;
      if (p.shift > shift) refine(p, shift);
    }
    const u64 last = (stop - begin + (1u << p.shift) - 1) >> p.shift;
    for (u64 i = (address - begin) >> p.shift; i < last; ++i) {
      const u64 cell = begin + (i << p.shift);
      if ((order & kCompares) != 0 && !l_.doubts_.empty())
        l_.doubts_.erase({who.warp, who.lane, shared, cell});
      check_cell(p.cells[i], who, now, order, equal, race);
      if (conflicts_.empty()) continue;
      const bool now_reads = (order & (kObserves | kReduces)) != 0;
      if (settle_conflicts({{}, {}, {who.warp, who.lane}, pc, shared, now_reads, first, bytes, l_.time},
                           has_agent(who.warp), cell, race) &&
          !found)
        found = std::make_unique<Race>(race);
    }
    address = stop;
  }
  if (found) race = *found;
  return found != nullptr;
}

bool BlockRaces::access(u32 warp, u32 lane, u32 pc, bool shared, u64 address, u32 bytes, bool write, u8 order,
                        bool equal, Race& race) {
  const Who who{first_warp_ + warp, lane, clocks_[warp], threads_[warp * 32 + lane].view.get()};
  return check(who, pc, shared, address, bytes, write, order, equal, race);
}

bool BlockRaces::access(u32 warp, u32 lane, u32 pc, bool shared, u64 address, u32 bytes, bool write,
                        const Races::Moment& since, Race& race) {
  return check({first_warp_ + warp, lane, clocks_[warp], since.get()}, pc, shared, address, bytes, write,
               kWeak, false, race);
}

// ---- synchronisation ----

Races::History& BlockRaces::history(bool shared, u64 key) {
  Races::History*& h = (shared ? shared_histories_ : l_.global_histories_)[key];
  if (!h) h = &l_.histories_.emplace_back();
  return *h;
}
Races::History& BlockRaces::keyed(u64 key) {
  Races::History*& h = keyed_[key];
  if (!h) h = &l_.histories_.emplace_back();
  return *h;
}

void BlockRaces::append(Races::History& h, Races::Release release) {
  const auto at = static_cast<u32>(h.releases.size());
  h.by_block[release.block].push_back(at);
  const auto& acquired = release.view->acquired;
  if (std::any_of(acquired.begin(), acquired.end(),
                  [&](const Races::Acquired& a) { return a.history != &h; }))
    h.indirect.push_back(at);
  h.releases.push_back(std::move(release));
}

// Returns whether there was anything new.
bool BlockRaces::merge(std::vector<Races::Acquired>& to, const std::vector<Races::Acquired>& from,
                       bool block_only) {
  bool changed = false;
  for (Races::Acquired a : from) {
    a.block_only = a.block_only || block_only;
    const auto found = std::find_if(to.begin(), to.end(), [&](const Races::Acquired& o) {
      return o.history == a.history && o.block_only == a.block_only;
    });
    if (found == to.end()) {
      to.push_back(a);
      changed = true;
    } else if (a.begin < found->begin || a.end > found->end) {
      found->begin = std::min(found->begin, a.begin);
      found->end = std::max(found->end, a.end);
      changed = true;
    }
  }
  return changed;
}

void BlockRaces::learn(Thread& t, const std::vector<Races::Acquired>& acquired, bool block_only) {
  std::vector<Races::Acquired> all = t.view->acquired;
  if (!merge(all, acquired, block_only)) return;
  auto view = std::make_shared<View>(*t.view);
  view->acquired = std::move(all);
  t.view = std::move(view);
}

// What a strong write of the thread releases: what it knew at its last fence. What it has learned from
// barriers since then counts where the other thread had made a sequentially consistent fence: of such fences
// and one of the acquiring side, one comes first, and it can only be the former.
std::shared_ptr<const Races::View> BlockRaces::released(const Thread& t) {
  const std::shared_ptr<const View>& fenced = t.fenced ? t.fenced : start_;
  if (sequential_fences_ == 0 || t.view == fenced) return fenced;
  if (cached_view_ == t.view && cached_fenced_ == fenced && cached_fences_ == sequential_fences_)
    return cached_result_;
  auto view = std::make_shared<View>(*fenced);
  for (u32 i = 0; i < l_.threads_; ++i)
    view->known[i] = std::max(view->known[i], std::min(t.view->known[i], threads_[i].sequential_clock));
  for (u32 w = 0; w < l_.warps_; ++w)
    view->least[w] = *std::min_element(&view->known[w * 32], &view->known[w * 32] + 32);
  cached_view_ = t.view;
  cached_fenced_ = fenced;
  cached_fences_ = sequential_fences_;
  return cached_result_ = view;
}

void BlockRaces::synchronise(u32 warp, u32 lane, bool shared, u64 address, bool reads, bool writes,
                             u8 order) {
  Thread& t = threads_[warp * 32 + lane];
  const bool block_only = (order & kScopeMask) == kScopeBlock;
  const bool releases = writes && ((order & kRelease) != 0 || t.fence_clock != 0 || sequential_fences_ != 0);
  auto& histories = shared ? shared_histories_ : l_.global_histories_;
  if (!releases && histories.empty()) return;
  const auto found = histories.find(address);
  Races::History* h = found == histories.end() ? nullptr : found->second;
  if (reads && h && h->begin < h->releases.size()) {
    const std::vector<Races::Acquired> one{{h, h->begin, static_cast<u32>(h->releases.size()), block_only}};
    if ((order & kAcquire) != 0 || l_.rules_.reads_acquire) learn(t, one, false);
    else merge(t.pending, one, false);
  }
  if (h && writes && !reads) h->begin = static_cast<u32>(h->releases.size());
  if (!releases) return;
  if (!h) h = &history(shared, address);
  const u32 number = first_warp_ + warp;
  if ((order & kRelease) != 0) {
    append(*h, {t.view, number, lane, clocks_[warp]++, block_, block_only});
  } else {
    append(*h,
           {released(t), number, lane, t.fence_clock, block_, block_only || t.fence_scope == kScopeBlock});
  }
}

void BlockRaces::fence(u32 warp, u32 lanes, u8 fence_scope, bool sequential) {
  for (u32 m = lanes; m != 0; m &= m - 1) {
    Thread& t = threads_[warp * 32 + static_cast<u32>(std::countr_zero(m))];
    if (!t.pending.empty()) {
      learn(t, t.pending, fence_scope == kScopeBlock);
      if (fence_scope != kScopeBlock) t.pending.clear();
    }
    if (fence_scope == kScopeBlock && t.fence_scope > kScopeBlock)
      continue;  // the wider one says more to others
    t.fenced = t.view;
    t.fence_clock = clocks_[warp];
    t.fence_scope = fence_scope;
    if (sequential && fence_scope != kScopeBlock) t.sequential_clock = clocks_[warp];
  }
  if (sequential && fence_scope != kScopeBlock) ++sequential_fences_;
  ++clocks_[warp];
}

// Joins what the arrived lanes of warps [first, first + count) know, and gives it to those that leave.
void BlockRaces::join(const std::vector<u32>& arrived, const std::vector<u32>& leaving, u32 first,
                      u32 count) {
  std::vector<const View*> views;
  std::vector<Races::Acquired> pending;
  for (u32 w = first; w < first + count; ++w)
    for (u32 m = arrived[w - first]; m != 0; m &= m - 1) {
      const Thread& t = threads_[w * 32 + static_cast<u32>(std::countr_zero(m))];
      if (views.empty() || (views.back() != t.view.get() &&
                            std::find(views.begin(), views.end(), t.view.get()) == views.end()))
        views.push_back(t.view.get());
      if (!t.pending.empty()) merge(pending, t.pending, false);
    }
  if (views.empty()) return;
  auto joined = std::make_shared<View>(*views[0]);
  for (std::size_t i = 1; i < views.size(); ++i) {
    const u32* const other = views[i]->known.data();
    for (std::size_t k = 0; k < joined->known.size(); ++k)
      joined->known[k] = std::max(joined->known[k], other[k]);
    merge(joined->acquired, views[i]->acquired, false);
  }
  for (u32 w = first; w < first + count; ++w)
    for (u32 m = arrived[w - first]; m != 0; m &= m - 1)
      joined->known[w * 32 + static_cast<u32>(std::countr_zero(m))] = clocks_[w];
  for (u32 w = 0; w < l_.warps_; ++w)
    joined->least[w] = *std::min_element(&joined->known[w * 32], &joined->known[w * 32] + 32);
  const std::shared_ptr<const View> view = std::move(joined);
  for (u32 w = first; w < first + count; ++w) {
    if (arrived[w - first] != 0) ++clocks_[w];
    for (u32 m = leaving[w - first]; m != 0; m &= m - 1) {
      Thread& t = threads_[w * 32 + static_cast<u32>(std::countr_zero(m))];
      t.view = view;
      if (!pending.empty()) t.pending = pending;
    }
  }
}

void BlockRaces::barrier(const std::vector<u32>& arrived, const std::vector<u32>& leaving) {
  join(arrived, leaving, 0, l_.warps_);
}
void BlockRaces::warp_barrier(u32 warp, u32 lanes) { join({lanes}, {lanes}, warp, 1); }

// ---- asynchronous operations ----

BlockRaces::Agent BlockRaces::begin(u32 warp, u32 lane) {
  if (l_.agent_blocks_.empty()) l_.agent_blocks_.push_back(0);
  const Agent agent{static_cast<u32>(l_.agent_blocks_.size())};
  l_.agent_blocks_.push_back(block_);
  auto view = std::make_shared<View>(*threads_[warp * 32 + lane].view);
  view->known[warp * 32 + lane] = clocks_[warp]++;
  view->least[warp] = *std::min_element(&view->known[warp * 32], &view->known[warp * 32] + 32);
  agents_[agent.number] = std::move(view);
  return agent;
}

bool BlockRaces::access(Agent agent, u32 pc, bool shared, u64 address, u64 bytes, bool write, Race& race,
                        u8 order) {
  const auto found = agents_.find(agent.number);
  if (found == agents_.end()) return false;
  return check({kAgent | agent.number, 0, 1, found->second.get()}, pc, shared, address, bytes, write, order,
               false, race);
}

void BlockRaces::complete(Agent agent, u64 key) {
  const auto found = agents_.find(agent.number);
  if (found == agents_.end()) return;
  append(keyed(key), {found->second, kAgent | agent.number, 0, 1, block_, false});
  agents_.erase(found);
}

void BlockRaces::release(u32 warp, u32 lane, u64 key) {
  append(keyed(key),
         {threads_[warp * 32 + lane].view, first_warp_ + warp, lane, clocks_[warp]++, block_, false});
}

void BlockRaces::acquire(u32 warp, u32 lane, u64 key) {
  const auto found = keyed_.find(key);
  if (found == keyed_.end()) return;
  const Races::History& h = *found->second;
  if (h.begin < h.releases.size())
    learn(threads_[warp * 32 + lane], {{&h, h.begin, static_cast<u32>(h.releases.size()), false}}, false);
}

}  // namespace tapestry::ptx
