#pragma once
// The state of a warp and its block while a kernel runs, and how instructions read and write it.
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/observe.h"
#include "tapestry/tools/ptx/races.h"

namespace tapestry::ptx {

using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
__extension__ typedef __int128 i128;
__extension__ typedef unsigned __int128 u128;

constexpr std::uint32_t kAllLanes = 0xffffffffu;

/// A generator of pseudo-random numbers (xorshift64*), for orders.
struct Random {
  std::uint64_t state;
  std::uint32_t below(std::uint32_t n) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return static_cast<std::uint32_t>(((state * 0x2545f4914f6cdd1dull) >> 32) * n >> 32);
  }
};

/// Memory with a state per byte: shared memory of a block, local memory of a thread.
struct Store {
  std::vector<std::byte> data;
  std::vector<std::uint8_t> states;
};

/// Races by their kernel and their two lines.
using FoundRaces = std::set<std::tuple<const Function*, std::string, std::string>>;

struct Launch {
  const Program* program = nullptr;
  Memory* memory = nullptr;
  const Options* options = nullptr;
  std::vector<std::byte> parameters;
  Dim grid, block;
  std::uint64_t shared_bytes = 0;
  Random random{1};
  Counts counts;
  Races* races = nullptr;        // null if they are not looked for
  Observer* observer = nullptr;  // null if nothing is counted
  std::vector<std::string>* findings = nullptr;
  std::uint64_t* clock = nullptr;  // of the machine
  std::uint64_t grid_id = 0;
  std::uint64_t workspace = 0;                     // of grid.sync(), if the launch is cooperative
  std::uint64_t traced_block = ~std::uint64_t{0};  // its number; see trace.cpp
  std::uint32_t traced_thread = 0;
  FoundRaces* found_races = nullptr;  // set if `findings` is
};

class Async;
struct MatrixRegisters;
struct Block {
  Launch* launch = nullptr;
  Dim index;
  std::uint32_t number = 0;  // in the grid
  Store shared;
  /// Of all warps, one after the other. Kept from launch to launch, because new pages cost more than small kernels.
  std::vector<std::byte> registers;
  /// Null if the kernel has no instructions of async.h.
  std::shared_ptr<Async> async;
  std::unique_ptr<BlockRaces> races;
  /// The lanes of warps that executed bar.arrive at a barrier that is not complete.
  struct Arrival {
    std::uint32_t barrier, threads, warp, lanes;
  };
  std::vector<Arrival> arrivals;
};

/// A group of 32 threads. Each thread has its own program counter. The warp runs the threads with the lowest
/// one together.
class Warp {
 public:
  Warp(Block& block, std::uint32_t number, std::uint32_t threads);

  /// Runs until all threads have ended or wait, or, in random order, until it stops by chance.
  void run();

  bool ended() const { return alive_ == 0; }
  bool ready() const { return (alive_ & ~(at_barrier_ | at_collective_ | at_event_)) != 0; }

  // ---- for instructions ----

  const Ref* operands(const Code& c) const { return refs_ + c.first; }
  template <class T>
  T* row(const Ref& r) {
    return reinterpret_cast<T*>(bases_[r.base] + r.offset);
  }
  std::uint32_t predicate(const Ref& r) {
    std::uint32_t bits;
    std::memcpy(&bits, bases_[r.base] + r.offset, 4);
    return r.negated ? ~bits : bits;
  }
  void set_predicate(const Ref& r, std::uint32_t bits, std::uint32_t mask) {
    std::uint32_t old;
    std::memcpy(&old, bases_[0] + r.offset, 4);
    bits = (bits & mask) | (old & ~mask);
    std::memcpy(bases_[0] + r.offset, &bits, 4);
  }
  /// Writes a row in the lanes of the mask.
  template <class T>
  void write(const Ref& r, const T (&values)[32], std::uint32_t mask) {
    T* const to = row<T>(r);
    if (mask == kAllLanes) {
      std::memcpy(to, values, sizeof values);
    } else {
      for (std::uint32_t m = mask; m != 0; m &= m - 1) {
        const int lane = std::countr_zero(m);
        to[lane] = values[lane];
      }
    }
  }
  /// The address of each lane. The sum wraps at the width of the space's addresses.
  void addresses(Space space, const Ref& base, std::int64_t offset, std::uint64_t (&to)[32]);

  enum class Access : std::uint8_t { kRead, kWrite, kUpdate };
  /// The host's pointer to `bytes` bytes at `address`, after all checks. A write makes them initialised.
  /// `states` is where their states are, or null. `value` are the bytes that a store will write, if known.
  /// Here races are found and memory is counted, so instructions need not do anything for it. Code::order
  /// says whether the access is strong; kUpdate is an atomic.
  std::byte* locate(const Code& c, int lane, Space space, std::uint64_t address, std::uint32_t bytes,
                    Access access, std::uint8_t** states = nullptr, const std::byte* value = nullptr);
  /// The same for an access of an asynchronous operation, in any alignment. Its agent takes part in the
  /// memory model.
  std::byte* locate(const Code& c, int lane, BlockRaces::Agent agent, Space space, std::uint64_t address,
                    std::uint32_t bytes, Access access);
  /// bar.warp.sync, and what else orders the accesses of lanes.
  void synchronise_lanes(std::uint32_t lanes) {
    if (races_) races_->warp_barrier(number_, lanes);
  }
  /// The races of the block, or null if they are not looked for. Asynchronous operations report theirs with
  /// agents.
  BlockRaces* races() { return races_; }
  /// An access of an asynchronous operation of the lane ends that began at a moment (BlockRaces::moment).
  void end_access(const Code& c, int lane, Space space, std::uint64_t address, std::uint32_t bytes,
                  Access access, const Races::Moment& since);
  /// Ends the kernel with a message about the race, or adds it to the findings of the machine.
  void report(const Code& c, int lane, Space space, std::uint64_t address, std::uint32_t bytes, Access access,
              const Race& race);
  static void report(Launch& launch, std::uint64_t block, std::uint32_t thread, std::uint32_t pc, Space space,
                     std::uint64_t address, std::uint64_t bytes, Access access, const Race& race);
  static void report(Launch& launch, const Races::Doubt& doubt);

  /// Ends the kernel with an error of this lane.
  [[noreturn]] void fail(const Code& c, int lane, const std::string& what) const;

  void branch(std::uint32_t target, std::uint32_t mask);
  /// Each lane goes on at its own target.
  void branch_each(const std::uint32_t (&targets)[32], std::uint32_t mask);
  void exit(std::uint32_t mask);
  /// bar.sync, bar.red and bar.arrive: `threads` is null if the barrier is for all threads. Lanes that only
  /// arrive go on.
  void wait_at_barrier(const Code& c, std::uint32_t mask, const Ref& barrier, const Ref* threads,
                       bool only_arrives = false);
  std::uint32_t next_pc() const { return pc_; }
  /// Calls execute(lanes) when all lanes that `members` (a row of 32-bit masks) names and that have not ended
  /// have reached the instruction. Until then, the lanes of `mask` wait.
  template <class F>
  void collective(const Code& c, std::uint32_t mask, const std::uint32_t (&members)[32], F execute);
  /// The same for an instruction that all 32 lanes must execute: it is an error if one of them has ended or
  /// does not exist.
  template <class F>
  void require_all(const Code& c, std::uint32_t mask, F execute) {
    if (alive_ != kAllLanes)
      fail(c, std::countr_zero(mask),
           "all 32 lanes of the warp must execute it, but the lanes " + hex(~alive_) +
               " have ended or do not exist");
    std::uint32_t members[32];
    for (std::uint32_t& m : members) m = kAllLanes;
    collective(c, mask, members, [&](std::uint32_t) { execute(*this, c); });
  }

  /// What lanes wait for outside of barriers.
  struct Event {
    enum Kind : std::uint8_t { kBarrier, kWarpgroup, kRegisters, kCluster, kStore } kind = kBarrier;
    std::uint64_t object = 0;
    std::uint32_t pc = 0;
  };
  /// The lanes let all others run first. Then they go on behind the instruction, or execute it `again`.
  void wait_for_event(std::uint32_t mask, bool again, Event::Kind kind,
                      const std::uint64_t* objects = nullptr);
  Async& async() { return *block_->async; }

  Block& block() { return *block_; }
  Launch& launch() { return *block_->launch; }
  const Program& program() const { return *program_; }
  /// The carry of add.cc and sub.cc, a bit per lane.
  std::uint32_t carry = 0;

  /// A copy of cp.async that has not completed.
  struct AsyncCopy {
    std::uint64_t to;
    const std::byte* from;
    std::uint32_t bytes, source_bytes;
    std::uint32_t group;
    std::uint64_t source;
    const Code* code;
    Races::Moment since;
  };
  std::vector<AsyncCopy> copies[32];
  std::uint64_t copies_issued[32] = {};
  std::uint32_t group[32] = {};
  std::vector<std::byte> local;
  std::vector<std::uint8_t> local_states;
  std::shared_ptr<MatrixRegisters> matrix;  // null if the kernel has no wgmma

  // ---- for the scheduler ----

  struct Waiting {
    std::uint32_t barrier = 0, threads = 0, pc = 0;
  };
  /// What the lanes pass to bar.red, a bit each, and the delivery of its result.
  std::uint32_t votes = 0;
  void finish_reduction(std::uint32_t lanes, std::uint32_t ones, std::uint32_t all);
  std::uint32_t at_barrier() const { return at_barrier_; }
  std::uint32_t at_collective() const { return at_collective_; }
  std::uint32_t alive() const { return alive_; }
  std::uint32_t existing() const { return existing_; }
  std::uint32_t number() const { return number_; }
  /// The place of a thread and of what it executes: "kernel 'k', k.cu:12 (ld.global.f32), block ...".
  static std::string where(const Launch& launch, std::uint32_t pc, std::uint64_t block, std::uint32_t thread);
  const Waiting& waiting(int lane) const { return waiting_[lane]; }
  std::uint32_t pc_of(int lane) const { return lane_pc_[lane]; }
  void release(std::uint32_t lanes) { at_barrier_ &= ~lanes; }
  std::uint32_t at_event() const { return at_event_; }
  const Event& event(int lane) const { return events_[lane]; }
  void wake() { at_event_ = 0; }
  std::string line_of(std::uint32_t pc) const { return program_->line_of(pc); }
  std::string line_of(const Code& c) const { return line_of(pc_of(c)); }
  std::uint32_t pc_of(const Code& c) const { return static_cast<std::uint32_t>(&c - program_->code.data()); }

 private:
  bool pick();
  void park(std::uint32_t lanes, std::uint32_t pc) {
    for (; lanes != 0; lanes &= lanes - 1) lane_pc_[std::countr_zero(lanes)] = pc;
  }
  std::byte* resolve(const Code& c, int lane, Space& space, std::uint64_t& address, std::uint32_t bytes,
                     Access access, std::uint8_t** states, std::uint32_t alignment);
  void observe(const Code& c, int lane, Space space, std::uint64_t address, std::uint32_t bytes,
               Access access, bool equal);
  [[noreturn]] void fail_access(const Code& c, int lane, Space space, std::uint64_t address,
                                std::uint32_t bytes, Access access, const std::string& what) const;
  std::string describe_variables(Space space, std::uint64_t address, std::uint32_t bytes) const;

  Block* block_;
  const Program* program_;
  std::byte* bases_[2];
  const Ref* refs_;
  const Allocation* last_ = nullptr;
  BlockRaces* races_ = nullptr;
  Observer* observer_ = nullptr;
  int traced_lane_ = -1;
  bool rotate_ = false;  // any lane may run next
  std::uint32_t number_, existing_, alive_, active_ = 0, pc_ = 0, limit_ = 0;
  std::uint32_t at_barrier_ = 0, at_collective_ = 0, at_event_ = 0;
  std::uint32_t lane_pc_[32] = {};
  Waiting waiting_[32];
  Event events_[32];
};

/// Sets which thread of a launch is traced, from Options::trace. Throws a UsageError if it is malformed.
void choose_traced(Launch& launch);
/// Prints an instruction that the lane has executed, with the values of its operands.
void print_traced(Warp& w, const Code& c, int lane, bool executed);

/// An instruction is about to touch registers that wgmma works on (wgmma.cpp).
void check_matrix_access(Warp& w, const Code& c);
void prepare_matrix_registers(Warp& w);

template <class F>
void Warp::collective(const Code& c, std::uint32_t mask, const std::uint32_t (&members)[32], F execute) {
  const std::uint32_t at = pc_ - 1;
  std::uint32_t arrived = mask;
  for (std::uint32_t m = at_collective_; m != 0; m &= m - 1)
    if (lane_pc_[std::countr_zero(m)] == at) arrived |= m & (0u - m);
  std::uint32_t stays = 0, woken = 0;
  while (arrived != 0) {
    const int lane = std::countr_zero(arrived);
    const std::uint32_t wanted = members[lane];
    std::uint32_t named = 0;
    for (std::uint32_t m = arrived; m != 0; m &= m - 1)
      if (members[std::countr_zero(m)] == wanted) named |= m & (0u - m);
    arrived &= ~named;
    if ((named & ~wanted) != 0)
      fail(c, std::countr_zero(named & ~wanted),
           "the mask " + hex(wanted) + " does not name the lane itself");
    if (named == (wanted & alive_)) {
      execute(named);
      const std::uint32_t waited = named & at_collective_;
      park(waited, at + 1);
      at_collective_ &= ~waited;
      woken |= waited;
    } else {
      stays |= named;
    }
  }
  stays &= active_;
  if ((stays | woken) != 0) {
    park(active_ & ~stays, at + 1);
    park(stays, at);
    at_collective_ |= stays;
    active_ = 0;
  }
}

// ---- how instructions are written ----

/// Executes d = op(a, b, ...) in all lanes. Lanes outside of the mask compute something that is thrown away,
/// so `op` must be defined for all bits.
template <class Op, class D, class... S>
void run_lanes(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto compute = [&](const S*... sources) {
      alignas(32) D values[32];
      for (int lane = 0; lane < 32; ++lane) values[lane] = Op()(sources[lane]...);
      w.write(o[0], values, mask);
    };
    compute(w.row<const S>(o[1 + I])...);
  }
  (std::index_sequence_for<S...>());
}

template <class T>
constexpr char letter() {
  return sizeof(T) == 2 ? 'h' : sizeof(T) == 4 ? 'w' : 'l';
}
template <class Op, class D, class... S>
void add_op(Table& table, const std::string& name, u32 flags = 0) {
  table[name] = {&run_lanes<Op, D, S...>, std::string{letter<D>(), '='} + std::string{letter<S>()...}, flags};
}

}  // namespace tapestry::ptx
