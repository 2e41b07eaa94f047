#include "tapestry/tools/ptx/warp.h"

#include <algorithm>

#include "tapestry/tools/ptx/async.h"

namespace tapestry::ptx {
namespace {

// In order, a warp runs so many instructions at most before others have their turn.
constexpr u64 kSlice = 1 << 16;

std::string triple(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
  return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
}
std::string bytes_text(std::uint64_t n) { return std::to_string(n) + (n == 1 ? " byte" : " bytes"); }
const char* space_name(Space space) {
  static constexpr const char* kNames[] = {"generic", "global", "shared", "local", "constant", "parameter"};
  return kNames[static_cast<int>(space)];
}
// Addresses in these spaces have 32 bits on every GPU; a wider register is cut.
bool has_narrow_addresses(Space space) {
  return space == Space::kShared || space == Space::kLocal || space == Space::kParam;
}

// ", byte 12 of 'parts'": which variable or allocation the address is in.
std::string describe_place(const Launch& launch, Space space, u64 address) {
  if (space == Space::kGlobal || space == Space::kConst) {
    const Allocation* const a = launch.memory->find(address);
    return a ? ", byte " + std::to_string(address - a->begin) + " of an allocation of " + bytes_text(a->bytes)
             : "";
  }
  if (space != Space::kShared) return "";
  for (const Program::Place& v : launch.program->shared)
    if (address >= v.offset && address < v.offset + v.bytes)
      return ", byte " + std::to_string(address - v.offset) + " of '" + v.name + "'";
  return ", byte " + std::to_string(address - launch.program->dynamic_offset) + " of dynamic shared memory";
}

}  // namespace

Warp::Warp(Block& block, std::uint32_t number, std::uint32_t threads)
    : local(32 * block.launch->program->local_bytes, std::byte{0xff}),
      local_states(32 * block.launch->program->local_bytes, kNoMemory),
      block_(&block),
      program_(block.launch->program),
      refs_(program_->refs.data()),
      races_(block.races.get()),
      observer_(block.launch->observer),
      number_(number) {
  // Rows are aligned to 32 bytes. No instruction writes a constant: destinations are registers.
  const auto address = reinterpret_cast<std::uintptr_t>(block.registers.data());
  bases_[0] = block.registers.data() + ((32 - address % 32) % 32) + number * program_->register_bytes;
  std::memset(bases_[0], 0, program_->register_bytes);
  bases_[1] = const_cast<std::byte*>(program_->constants.data());
  prepare_matrix_registers(*this);
  const Launch& l = *block.launch;
  const u32 here = std::min(32u, threads - 32 * number);
  if (l.traced_block == block.number && l.traced_thread / 32 == number)
    traced_lane_ = static_cast<int>(l.traced_thread % 32);
  existing_ = alive_ = here == 32 ? kAllLanes : (1u << here) - 1;
  park(alive_, program_->start);
  const auto row_of = [&](u32 index) { return reinterpret_cast<u32*>(bases_[0] + index * 128); };
  const u32 same[][2] = {{kNtidX, l.block.x},
                         {kNtidY, l.block.y},
                         {kNtidZ, l.block.z},
                         {kCtaidX, block.index.x},
                         {kCtaidY, block.index.y},
                         {kCtaidZ, block.index.z},
                         {kNctaidX, l.grid.x},
                         {kNctaidY, l.grid.y},
                         {kNctaidZ, l.grid.z},
                         {kWarpId, number},
                         {kNwarpId, (threads + 31) / 32},
                         {kDynamicShared, static_cast<u32>(l.shared_bytes)},
                         {kTotalShared, static_cast<u32>(l.shared_bytes + program_->shared_without_gaps)},
                         {kZero, 0},
                         {kOne, 1},
                         {kProcessors, l.options->multiprocessors},
                         {kEnvironmentHigh, static_cast<u32>(l.workspace >> 32)},
                         {kEnvironmentLow, static_cast<u32>(l.workspace)},
                         {kGridIdLow, static_cast<u32>(l.grid_id)}};
  for (const auto& [index, value] : same) std::fill_n(row_of(index), 32, value);
  std::fill_n(reinterpret_cast<u64*>(row_of(kGridId)), 32, l.grid_id);
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 thread = 32 * number + lane, bit = 1u << lane;
    row_of(kTidX)[lane] = thread % l.block.x;
    row_of(kTidY)[lane] = thread / l.block.x % l.block.y;
    row_of(kTidZ)[lane] = thread / l.block.x / l.block.y;
    row_of(kLaneId)[lane] = lane;
    row_of(kLaneEq)[lane] = bit;
    row_of(kLaneLt)[lane] = bit - 1;
    row_of(kLaneLe)[lane] = bit | (bit - 1);
    row_of(kLaneGt)[lane] = ~(bit | (bit - 1));
    row_of(kLaneGe)[lane] = ~(bit - 1);
    for (const Program::Place& v : program_->local)
      std::fill_n(local_states.begin() + static_cast<std::ptrdiff_t>(lane * program_->local_bytes + v.offset),
                  v.bytes, kUninitialised);
  }
}

bool Warp::pick() {
  const u32 ready = alive_ & ~(at_barrier_ | at_collective_ | at_event_);
  if (ready == 0) return false;
  const u64 seed = block_->launch->options->seed;
  u32 pc = 0xffffffffu;
  if (seed != 0 || rotate_) {
    u32 skip = block_->launch->random.below(static_cast<u32>(std::popcount(ready)));
    u32 m = ready;
    for (; skip != 0; --skip) m &= m - 1;
    pc = lane_pc_[std::countr_zero(m)];
  } else {
    for (u32 m = ready; m != 0; m &= m - 1) pc = std::min(pc, lane_pc_[std::countr_zero(m)]);
  }
  active_ = 0;
  limit_ = 0xffffffffu;
  for (u32 m = ready; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    if (lane_pc_[lane] == pc) active_ |= 1u << lane;
    else limit_ = std::min(limit_, lane_pc_[lane]);
  }
  if (seed != 0 || rotate_) limit_ = 0xffffffffu;
  rotate_ = false;
  pc_ = pc;
  return true;
}

void Warp::run() {
  Launch& l = *block_->launch;
  const Code* const code = program_->code.data();
  const bool random = l.options->seed != 0;
  u64 instructions = 0, threads = 0,
      budget =
          l.options->max_instructions - std::min(l.options->max_instructions, l.counts.warp_instructions);
  const u64 last = random ? ~u64{0} : kSlice;
  for (;;) {
    if (instructions >= last) {
      // A thread that spins must not keep others from running: neither other warps nor lanes of this one.
      if (active_ != 0) park(active_, pc_);
      active_ = 0;
      rotate_ = true;
      break;
    }
    if (active_ == 0) {
      if (!pick()) break;
    } else if (pc_ >= limit_) {
      park(active_, pc_);
      pick();
    } else if (random) {
      const u32 chance = l.random.below(16);
      if (chance < 2) {
        park(active_, pc_);
        active_ = 0;
        if (chance == 0) break;
        pick();
      }
    }
    const Code& c = code[pc_++];
    u32 mask = active_;
    if (c.guard != 0) {
      u32 bits;
      std::memcpy(&bits, bases_[0] + c.predicate, 4);
      mask &= c.guard > 0 ? bits : ~bits;
    }
    ++instructions;
    threads += static_cast<u64>(std::popcount(mask));
    const u32 active = active_;
    if (c.touches != Code::kNothing && mask != 0) check_matrix_access(*this, c);
    if (mask != 0) c.run(*this, c, mask);
    if (observer_) observer_->executed(static_cast<u32>(&c - code), active, mask);
    if (traced_lane_ >= 0 && (active >> traced_lane_ & 1) != 0)
      print_traced(*this, c, traced_lane_, (mask >> traced_lane_ & 1) != 0);
    if (instructions > budget)
      fail(c, std::countr_zero(mask != 0 ? mask : existing_),
           "the launch did not end within " + std::to_string(l.options->max_instructions) +
               " instructions of warps");
  }
  l.counts.warp_instructions += instructions;
  l.counts.thread_instructions += threads;
}

void Warp::branch(u32 target, u32 mask) {
  if (mask == active_) {
    pc_ = target;
    return;
  }
  if (observer_) observer_->diverged(pc_ - 1);
  park(active_ & ~mask, pc_);
  park(mask, target);
  active_ = 0;
}
void Warp::branch_each(const u32 (&targets)[32], u32 mask) {
  if (observer_) {
    bool apart = mask != active_;
    for (u32 m = mask; m != 0; m &= m - 1)
      apart = apart || targets[std::countr_zero(m)] != targets[std::countr_zero(mask)];
    if (apart) observer_->diverged(pc_ - 1);
  }
  park(active_ & ~mask, pc_);
  for (u32 m = mask; m != 0; m &= m - 1) lane_pc_[std::countr_zero(m)] = targets[std::countr_zero(m)];
  active_ = 0;
}
void Warp::exit(u32 mask) {
  park(active_, pc_);
  alive_ &= ~mask;
  if (block_->async) block_->async->end_threads(number_, mask);
  at_collective_ = 0;  // those who wait look again: they do not wait for lanes that have ended
  active_ = 0;
}
void Warp::wait_at_barrier(const Code& c, u32 mask, const Ref& barrier_row, const Ref* threads_row,
                           bool only_arrives) {
  const u32* const barrier = row<const u32>(barrier_row);
  const u32* const threads = threads_row ? row<const u32>(*threads_row) : nullptr;
  if (!only_arrives) park(active_, pc_);
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    if (barrier[lane] > 15)
      fail(c, lane, "barrier " + std::to_string(barrier[lane]) + " does not exist; there are 16");
    if (threads && (threads[lane] == 0 || threads[lane] % 32 != 0))
      fail(c, lane,
           "a barrier for " + std::to_string(threads[lane]) +
               " threads: their number must be a multiple of 32");
    if (only_arrives) block_->arrivals.push_back({barrier[lane], threads[lane], number_, 1u << lane});
    else waiting_[lane] = {barrier[lane], threads ? threads[lane] : 0, pc_ - 1};
  }
  if (only_arrives) return;
  at_barrier_ |= mask;
  active_ = 0;
}
void Warp::wait_for_event(u32 mask, bool again, Event::Kind kind, const u64* objects) {
  park(active_ & ~mask, pc_);
  park(mask, again ? pc_ - 1 : pc_);
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    events_[lane] = {kind, objects ? objects[lane] : 0, pc_ - 1};
  }
  at_event_ |= mask;
  active_ = 0;
}

void Warp::addresses(Space space, const Ref& base, i64 offset, u64 (&to)[32]) {
  if (base.width == 8) {
    const u64* const from = row<const u64>(base);
    for (int lane = 0; lane < 32; ++lane) to[lane] = from[lane] + static_cast<u64>(offset);
  } else {
    // An address of 32 bits wraps: the compiler writes a[31 - i] as [-4 i + 124].
    const u32* const from = row<const u32>(base);
    for (int lane = 0; lane < 32; ++lane) to[lane] = from[lane] + static_cast<u32>(offset);
  }
  if (has_narrow_addresses(space))
    for (u64& address : to) address &= 0xffffffffu;
}

std::byte* Warp::locate(const Code& c, int lane, Space space, u64 address, u32 bytes, Access access,
                        u8** states, const std::byte* value) {
  std::byte* const data = resolve(c, lane, space, address, bytes, access, states, bytes);
  if ((races_ || observer_) && space != Space::kParam)
    observe(c, lane, space, address, bytes, access, value && std::memcmp(value, data, bytes) == 0);
  return data;
}

std::byte* Warp::locate(const Code& c, int lane, BlockRaces::Agent agent, Space space, u64 address, u32 bytes,
                        Access access) {
  std::byte* const data = resolve(c, lane, space, address, bytes, access, nullptr, 1);
  const bool reads = access != Access::kWrite, writes = access != Access::kRead;
  if (observer_ && space == Space::kGlobal)
    observer_->access({address, bytes, static_cast<u8>(lane), space, reads, writes},
                      {pc_of(c), 32 * number_ + static_cast<u32>(lane), block_->number, true});
  Race race;
  if (races_ && agent.number != 0 &&
      races_->access(agent, pc_of(c), space == Space::kShared, address, bytes, writes, race,
                     access == Access::kUpdate ? u8{kScopeDevice | kReduces} : u8{kWeak}))
    report(c, lane, space, address, bytes, access, race);
  return data;
}

// The host's pointer to memory, after all checks but those of the memory model. `space` and `offset` become
// those of the address if it is a generic one.
std::byte* Warp::resolve(const Code& c, int lane, Space& space, u64& offset, u32 bytes, Access access,
                         u8** found_states, u32 alignment) {
  const u64 address = offset;
  if (space == Space::kGeneric) {
    const u64 window = address & ~(kWindow - 1);
    space = window == kSharedWindow  ? Space::kShared
            : window == kLocalWindow ? Space::kLocal
            : window == kParamWindow ? Space::kParam
                                     : Space::kGlobal;
    if (space != Space::kGlobal) offset = address - window;
  }
  if ((offset & (alignment - 1)) != 0)
    fail_access(c, lane, space, offset, bytes, access,
                ", which is not aligned: the address must be a multiple of " + std::to_string(alignment));
  std::byte* data = nullptr;
  u8* states = nullptr;
  switch (space) {
    case Space::kShared: {
      Store& s = block_->shared;
      if (offset <= s.data.size() && bytes <= s.data.size() - offset) {
        data = s.data.data() + offset;
        states = s.states.data() + offset;
        if (block_->async) block_->async->check_access(*this, c, lane, offset, bytes, access);
      }
      break;
    }
    case Space::kLocal:
      if (const u64 size = program_->local_bytes; offset <= size && bytes <= size - offset) {
        data = local.data() + static_cast<u64>(lane) * size + offset;
        states = local_states.data() + static_cast<u64>(lane) * size + offset;
      }
      break;
    case Space::kParam: {
      auto& p = block_->launch->parameters;
      if (access != Access::kRead) fail_access(c, lane, space, offset, bytes, access, ", which is read-only");
      if (offset <= p.size() && bytes <= p.size() - offset) data = p.data() + offset;
      break;
    }
    default: {
      const Allocation* a = last_;
      if (!a || offset - a->begin >= a->bytes) a = block_->launch->memory->find(offset);
      if (a && bytes <= a->end() - offset) {
        last_ = a;
        data = a->data + (offset - a->begin);
        if (a->states) states = a->states + (offset - a->begin);
      }
    }
  }
  bool invalid = data == nullptr;
  if (states && !invalid) {
    for (u32 i = 0; i < bytes; ++i) invalid = invalid || states[i] == kNoMemory;
    if (!invalid && access != Access::kWrite) {
      for (u32 i = 0; i < bytes; ++i) {
        if (states[i] == kInFlight)
          fail_access(c, lane, space, offset, bytes, access,
                      ", which a cp.async is still writing: no wait_group came before");
        if (states[i] != kInitialised && block_->launch->options->check_initialised &&
            (space != Space::kShared || block_->launch->options->check_initialised_shared))
          fail_access(c, lane, space, offset, bytes, access,
                      ", of which byte " + std::to_string(i) + " was never written");
      }
    }
    if (!invalid && access != Access::kRead) {
      for (u32 i = 0; i < bytes; ++i)
        if (states[i] == kInFlight)
          fail_access(c, lane, space, offset, bytes, access,
                      ", which a cp.async is still writing: no wait_group came before");
      std::memset(states, kInitialised, bytes);
    }
  }
  if (invalid) {
    const bool global = space == Space::kGlobal || space == Space::kConst;
    fail_access(c, lane, space, offset, bytes, access,
                global ? ": " + block_->launch->memory->describe(offset, bytes)
                       : describe_variables(space, offset, bytes));
  }
  if (found_states) *found_states = states;
  return data;
}

void Warp::observe(const Code& c, int lane, Space space, u64 address, u32 bytes, Access access, bool equal) {
  const bool reads = access != Access::kWrite, writes = access != Access::kRead;
  const auto pc = static_cast<u32>(&c - program_->code.data()), l = static_cast<u32>(lane);
  if (observer_)
    observer_->access({address, bytes, static_cast<u8>(lane), space, reads, writes},
                      {pc, 32 * number_ + l, block_->number, true});
  if (!races_ || space == Space::kLocal) return;
  const u8 order = c.order == 0 && access == Access::kUpdate ? u8{kScopeDevice | kReduces} : c.order;
  const bool shared = space == Space::kShared;
  Race race;
  if (races_->access(number_, l, pc, shared, address, bytes, writes, order, equal, race))
    report(c, lane, space, address, bytes, access, race);
  if ((order & kScopeMask) != 0) races_->synchronise(number_, l, shared, address, reads, writes, order);
}

void Warp::end_access(const Code& c, int lane, Space space, u64 address, u32 bytes, Access access,
                      const Races::Moment& since) {
  if (!races_ || bytes == 0) return;
  Race race;
  if (races_->access(number_, static_cast<u32>(lane), static_cast<u32>(&c - program_->code.data()),
                     space == Space::kShared, address, bytes, access != Access::kRead, since, race))
    report(c, lane, space, address, bytes, access, race);
}

void Warp::report(const Code& c, int lane, Space space, u64 address, u32 bytes, Access access,
                  const Race& race) {
  report(*block_->launch, block_->number, 32 * number_ + static_cast<u32>(lane), pc_of(c), space, address,
         bytes, access, race);
}
void Warp::report(Launch& launch, u64 block, u32 thread, u32 pc, Space space, u64 address, u64 bytes,
                  Access access, const Race& race) {
  const auto line_of = [&](u32 at) { return launch.program->line_of(at); };
  if (launch.findings) {
    std::string here = line_of(pc), there = line_of(race.then_pc);
    if (there < here) std::swap(here, there);
    if (!launch.found_races->emplace(launch.program->entry, here, there).second) return;
  }
  const char* const did = race.then_writes ? "writes" : "reads";
  const u32 warps = (launch.block.x * launch.block.y * launch.block.z + 31) / 32;
  std::string text = access == Access::kRead ? "reads " : access == Access::kWrite ? "writes " : "updates ";
  text += bytes_text(bytes) + " of " + space_name(space) + " memory at " + hex(address) +
          describe_place(launch, space, race.address);
  text = "race: " + text;
  if (race.then_is_agent) {
    text += ", which an asynchronous operation " + std::string(did) + " that was issued at " +
            line_of(race.then_pc);
  } else {
    text +=
        ", which " +
        where(launch, race.then_pc, race.then.warp / warps, 32 * (race.then.warp % warps) + race.then.lane) +
        " " + did;
  }
  if (race.non_coherent)
    text +=
        ". One of them is a load through the read-only cache (ld.global.nc): the kernel must not write what "
        "it reads"
        " so. Drop const __restrict__ or __ldg";
  else if (race.now_strong && race.then_strong)
    text += ". Both are strong, but the scope of one is the block, and the other is of another block";
  else if (race.then_is_agent)
    text += ". Nothing orders it with this access: a wait for it is missing, or the wait does not cover it";
  else if (race.same_warp) text += ". Nothing orders the two lanes: __syncwarp() is missing between them";
  else if (race.same_block)
    text += ". Nothing orders the two threads: __syncthreads() is missing between them";
  else
    text +=
        ". Nothing orders the two blocks: it takes __threadfence() and an atomic behind the one access, and "
        "an atomic"
        " and __threadfence() before the other";
  if (!race.non_coherent && race.now_strong != race.then_strong)
    text += ". One of the accesses is weak: an atomic or volatile access orders nothing for it";
  text = "[ptx] " + where(launch, pc, block, thread) + ": " + text;
  if (!launch.findings) throw KernelError(text);
  launch.findings->push_back(std::move(text));
}
void Warp::report(Launch& launch, const Races::Doubt& doubt) {
  const u32 warps = (launch.block.x * launch.block.y * launch.block.z + 31) / 32;
  report(launch, doubt.now.warp / warps, 32 * (doubt.now.warp % warps) + doubt.now.lane, doubt.now_pc,
         doubt.shared ? Space::kShared : Space::kGlobal, doubt.address, doubt.bytes,
         !doubt.race.now_writes ? Access::kRead
         : doubt.now_reads      ? Access::kUpdate
                                : Access::kWrite,
         doubt.race);
}

std::string Warp::describe_variables(Space space, u64 address, u32 bytes) const {
  std::vector<Program::Place> places = space == Space::kShared  ? program_->shared
                                       : space == Space::kLocal ? program_->local
                                                                : program_->parameters;
  const u64 dynamic = block_->launch->shared_bytes;
  if (space == Space::kShared && dynamic != 0)
    places.push_back({"dynamic shared memory", program_->dynamic_offset, dynamic});
  const Program::Place* nearest = nullptr;
  u64 distance = ~u64{0};
  // An address in the upper half is a negative one that has wrapped.
  const bool negative = address > 0x7fffffff && address <= 0xffffffff;
  const auto before = [&](const Program::Place& v) {
    return negative ? v.offset + (u64{1} << 32) - address : v.offset - address;
  };
  for (const Program::Place& v : places) {
    const u64 d = !negative && address >= v.offset
                      ? address + bytes - std::min(address + bytes, v.offset + v.bytes)
                      : before(v);
    if (d < distance) {
      distance = d;
      nearest = &v;
    }
  }
  if (!nearest) return ": the kernel has no such memory";
  const std::string of = " of '" + nearest->name + "' (" + bytes_text(nearest->bytes) + ")";
  if (negative || address < nearest->offset)
    return ": " + bytes_text(distance) + " before the beginning" + of;
  if (address < nearest->offset + nearest->bytes) return ": " + bytes_text(distance) + " over the end" + of;
  return ": " + bytes_text(address - nearest->offset - nearest->bytes) + " beyond the end" + of;
}

void Warp::fail_access(const Code& c, int lane, Space space, u64 address, u32 bytes, Access access,
                       const std::string& what) const {
  const char* const verb = access == Access::kRead    ? "reads "
                           : access == Access::kWrite ? "writes "
                                                      : "updates ";
  fail(c, lane, verb + bytes_text(bytes) + " of " + space_name(space) + " memory at " + hex(address) + what);
}

std::string Warp::where(const Launch& l, u32 pc, u64 block, u32 thread) {
  const Program& p = *l.program;
  return "kernel '" + p.entry->name + "', " + p.line_of(pc) + " (" + std::string(p.code[pc].source->opcode) +
         "), block " +
         triple(static_cast<u32>(block % l.grid.x), static_cast<u32>(block / l.grid.x % l.grid.y),
                static_cast<u32>(block / l.grid.x / l.grid.y)) +
         ", thread " +
         triple(thread % l.block.x, thread / l.block.x % l.block.y, thread / l.block.x / l.block.y);
}
void Warp::fail(const Code& c, int lane, const std::string& what) const {
  throw KernelError("[ptx] " +
                    where(*block_->launch, static_cast<u32>(&c - program_->code.data()), block_->number,
                          32 * number_ + static_cast<u32>(lane)) +
                    ": " + what);
}

// ---- control flow ----

void run_branch(Warp& w, const Code& c, u32 mask) { w.branch(static_cast<u32>(c.offset[0]), mask); }
void run_indexed_branch(Warp& w, const Code& c, u32 mask) {
  const auto& targets = w.program().jumps[static_cast<std::size_t>(c.offset[0])];
  const u32* const index = w.row<const u32>(w.operands(c)[0]);
  u32 to[32] = {};
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    if (index[lane] >= targets.size())
      w.fail(c, lane, "index " + std::to_string(index[lane]) + " has no target");
    to[lane] = targets[index[lane]];
  }
  w.branch_each(to, mask);
}
void run_exit(Warp& w, const Code&, u32 mask) { w.exit(mask); }
void run_call(Warp& w, const Code& c, u32 mask) {
  u32 values[32];
  std::fill_n(values, 32, w.next_pc());
  w.write(Ref{static_cast<u32>(c.offset[1]), 0, 4, false}, values, mask);
  w.branch(static_cast<u32>(c.offset[0]), mask);
}
void run_return(Warp& w, const Code& c, u32 mask) {
  const u32* const row = w.row<const u32>(Ref{static_cast<u32>(c.offset[0]), 0, 4, false});
  u32 to[32];
  std::copy_n(row, 32, to);
  const u32 first = to[std::countr_zero(mask)];
  bool same = true;
  for (u32 m = mask; m != 0; m &= m - 1) same = same && to[std::countr_zero(m)] == first;
  if (same) w.branch(first, mask);
  else w.branch_each(to, mask);
}
void run_copies(Warp& w, const Code& c, u32 mask) {
  const u64 size = w.program().local_bytes;
  for (const Program::Copy& copy : w.program().copies[static_cast<std::size_t>(c.offset[0])])
    for (u32 m = mask; m != 0; m &= m - 1) {
      const u64 base = static_cast<u64>(std::countr_zero(m)) * size;
      std::memcpy(&w.local[base + copy.to], &w.local[base + copy.from], copy.bytes);
      std::memcpy(&w.local_states[base + copy.to], &w.local_states[base + copy.from], copy.bytes);
    }
}
void run_trap(Warp& w, const Code& c, u32 mask) {
  w.fail(c, std::countr_zero(mask), "the kernel stopped itself");
}
void run_barrier(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  w.wait_at_barrier(c, mask, o[0], c.count > 1 ? &o[1] : nullptr);
}
void run_barrier_arrive(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  w.wait_at_barrier(c, mask, o[0], &o[1], true);
}
// d, barrier {, threads}, predicate
void run_barrier_reduction(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  w.votes = (w.votes & ~mask) | (w.predicate(o[c.count - 1]) & mask);
  w.wait_at_barrier(c, mask, o[1], c.count > 3 ? &o[2] : nullptr);
}
void Warp::finish_reduction(u32 lanes, u32 ones, u32 all) {
  for (u32 m = lanes; m != 0; m &= m - 1) {
    const Code& c = program_->code[waiting_[std::countr_zero(m)].pc];
    if (c.run != &run_barrier_reduction) continue;
    const u32 lane = m & (0u - m);
    u32 values[32];
    std::fill_n(values, 32, ones);
    if (c.flags == kReducePopc) write(operands(c)[0], values, lane);
    else
      set_predicate(operands(c)[0], (c.flags == kReduceAnd ? ones == all : ones != 0) ? kAllLanes : 0, lane);
  }
}
void run_fence(Warp& w, const Code& c, u32 mask) {
  if (w.races()) w.races()->fence(w.number(), mask, c.order, c.flags != 0);
}
void run_nothing(Warp&, const Code&, u32) {}
void run_clock(Warp& w, const Code&, u32) {
  u64& clock = *w.launch().clock;
  clock += 1000;
  const u64 now[] = {clock, clock & 0xffffffffu, clock >> 32};
  static constexpr SpecialRow kRows[] = {kClock, kClockLow, kClockHigh};
  std::fill_n(w.row<u64>({kRows[0] * 128, 0, 8, false}), 32, now[0]);
  for (int i : {1, 2}) std::fill_n(w.row<u32>({kRows[i] * 128u, 0, 4, false}), 32, static_cast<u32>(now[i]));
}

}  // namespace tapestry::ptx
