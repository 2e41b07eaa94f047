#pragma once
// Races: two threads of a launch access the same bytes, at least one writes, and the memory model of PTX
// orders neither before the other. Found by happens-before, so that a race is found in whatever order the
// machine runs the threads, if both accesses execute at all.
//
// What orders accesses (PTX manual, "Memory Consistency Model"):
// - the program order of a thread,
// - bar.sync, barrier.sync and bar.warp.sync among their threads. Shuffles, votes and matches order nothing,
// - a release that an acquire observes. A release is st.release, atom.release, or a fence and then a strong
//   write. An acquire is ld.acquire, atom.acquire, or a strong read and then a fence. Scopes count: .cta
//   reaches only threads of the block. Atomics continue the release that they read,
// - asynchronous copies, when their thread waits for them; see Agent,
// - observation: what follows an atomic or another strong read comes after the strong writes that it has
//   read. Atomics that read one another's results form a chain, so that the last one comes after all.
// Strong accesses (volatile, relaxed, acquire, release, atomics) never race with each other if their scopes
// include both threads; they do race with weak ones. The exception is a weak read whose thread then executes
// a compare-and-swap at the same place, which confirms or repeats it: such a read does not race with strong
// writes.
//
// The method is FastTrack's (Flanagan and Freund, PLDI 2009) with entries for lanes of a warp: each cell of
// memory remembers its last write and the reads since then, each as (warp, lanes, clock); a thread knows from
// which clock of each other thread on it has not been synchronised. What blocks learn about each other is
// found in the history of the location through which they synchronised.
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "tapestry/tools/ptx/program.h"

namespace tapestry::ptx {

/// How an access takes part in the memory model: the bits of Entry::order and Code::order.
enum Order : std::uint8_t {
  kWeak = 0,
  kScopeBlock = 1,
  kScopeDevice = 2,  // also .cluster
  kScopeSystem = 3,
  kScopeMask = 3,  // an access with a scope is strong
  kAcquire = 4,
  kRelease = 8,
  kNonCoherent = 16,  // ld.global.nc: the kernel must not write these bytes at all
  kObserves = 32,     // an atomic that returns what it has read
  kReduces = 64,      // an atomic that does not
  kCompares = 128,    // a compare-and-swap
};

/// A thread of a launch, or an agent that works for it. Warps are numbered through all blocks.
struct Actor {
  std::uint32_t warp = 0;
  std::uint32_t lane = 0;
};

/// A race; the machine makes a message of it.
struct Race {
  bool now_writes = false, then_writes = false, non_coherent = false;
  Actor then;  // who accessed the byte before
  std::uint32_t then_pc = 0;
  bool then_is_agent = false;
  std::uint64_t address = 0;  // the first byte of the cell
  bool same_warp = false, same_block = false;
  bool now_strong = false, then_strong = false;
  std::uint32_t then_lanes = 0;  // all lanes of `then` that are not ordered
};

class BlockRaces;

/// The races of one launch.
class Races {
 public:
  /// What a thread knew at a moment: for operations that go on after their instruction.
  struct View;
  using Moment = std::shared_ptr<const View>;

  struct Rules {
    /// Unordered stores of the value that is there already are no races. PTX calls them races.
    bool allow_equal_writes = false;
    /// Strong reads acquire without a fence, as atomics of today's GPUs do. PTX does not promise it.
    bool reads_acquire = false;
  };
  Races(std::uint32_t threads_per_block, Rules rules);
  ~Races();
  Races(const Races&) = delete;
  Races& operator=(const Races&) = delete;

  /// A weak read and a strong write without an order. They race, unless the reader goes on with a
  /// compare-and-swap at the same place, which notices if the value that it read is an old one: the usual
  /// loop reads plainly before its first compare-and-swap. So the pair waits for one, until it is too old.
  struct Doubt {
    Race race;
    Actor reader, now;  // `now` made the second of the two accesses
    std::uint32_t now_pc = 0;
    bool shared = false, now_reads = false;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t since = 0;  // the time
  };
  bool has_doubts() const { return !doubts_.empty(); }
  /// Takes a doubt of a block, or one that is older than `before`; false if there is none.
  bool take_doubt(std::uint32_t block, std::uint64_t before, Doubt& doubt);
  /// Any number that grows while the launch runs: the age of doubts.
  std::uint64_t time = 0;

 private:
  friend class BlockRaces;
  // Which accesses have touched a cell: lanes of a warp at one of its clocks. A clock of 0 is no access.
  struct Access {
    std::uint32_t warp = 0, lanes = 0, clock = 0;
    // Bits 0-23 are the program counter, 24-28 the Order, and 29 says whether the access writes. Bit 30 says
    // that the value is no longer there: a later strong write replaced what this strong read has read, or a
    // later strong store replaced what this strong write has written.
    std::uint32_t pc = 0;
  };
  struct Cell {
    Access write, read;
    std::uint32_t more =
        0;  // index of further accesses that are ordered neither with these nor with each other
  };
  // The cells of kPage bytes. They cover 4 bytes each, or 2 or 1 after a narrower access.
  static constexpr std::uint32_t kPage = 1024;
  struct Page {
    std::uint64_t generation = 0;
    std::uint32_t shift = 2;
    std::vector<Cell> cells;
  };
  struct History;
  // What a thread has acquired: the entries [begin, end) of the history of a location.
  struct Acquired {
    const History* history;
    std::uint32_t begin, end;
    bool block_only;
  };
  // A thread (or agent) released what it knew, and what it had done itself until its clock.
  struct Release {
    std::shared_ptr<const View> view;
    std::uint32_t warp, lane, clock, block;
    bool block_only;
  };
  struct History {
    std::vector<Release> releases;
    std::uint32_t begin = 0;  // a plain store ends what atomics had continued
    std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> by_block;
    std::vector<std::uint32_t> indirect;  // releases that pass on what came through other locations
  };

 public:
  // What a thread knows: of each thread of its block, the last clock that is ordered before it.
  struct View {
    std::vector<std::uint32_t> known, least;  // by thread; by warp, the least of its threads
    std::vector<Acquired> acquired;
  };

 private:
  // Whether what was acquired is ordered after the actor's clock.
  struct Question {
    std::uint32_t block;
    Actor who;
    std::uint32_t clock;
    std::vector<Acquired> asked;
  };
  bool learned(const std::vector<Acquired>& acquired, std::uint32_t own_block, Question& question) const;

  std::uint32_t threads_, warps_;
  Rules rules_;
  std::unordered_map<std::uint64_t, Page> global_;
  static constexpr std::size_t kCached = 256;
  struct Cached {
    std::uint64_t number = ~std::uint64_t{0};
    Page* page = nullptr;
  };
  std::vector<Cached> cached_;
  std::vector<std::vector<Access>> more_;  // of cells; element 0 is unused
  std::deque<History> histories_;
  std::unordered_map<std::uint64_t, History*> global_histories_;
  std::vector<std::uint32_t> agent_blocks_;  // of agents 1, 2, ...
  // By the reader's warp and lane, whether in shared memory, and the cell's address.
  std::map<std::tuple<std::uint32_t, std::uint32_t, bool, std::uint64_t>, Doubt> doubts_;
};

/// The races of one block: what its threads know, and who accessed its shared memory.
class BlockRaces {
 public:
  explicit BlockRaces(Races& launch);
  /// A block begins; `block` is its number in the grid.
  void begin_block(std::uint32_t block);

  /// A lane accesses memory. `shared`: in shared memory, by its offset. `equal`: a store that does not change
  /// the bytes. Returns true if it races, and says with what.
  bool access(std::uint32_t warp, std::uint32_t lane, std::uint32_t pc, bool shared, std::uint64_t address,
              std::uint32_t bytes, bool write, std::uint8_t order, bool equal, Race& race);
  /// An access that a thread began at an earlier moment and that ends now, as cp.async at its wait: what
  /// others did since then races with it, even if a barrier orders it before now.
  bool access(std::uint32_t warp, std::uint32_t lane, std::uint32_t pc, bool shared, std::uint64_t address,
              std::uint32_t bytes, bool write, const Races::Moment& since, Race& race);
  Races::Moment moment(std::uint32_t warp, std::uint32_t lane) const {
    return threads_[warp * 32 + lane].view;
  }
  /// A strong access has happened: what it releases, and what a later fence acquires. `reads` and `writes`
  /// are both true for an atomic.
  void synchronise(std::uint32_t warp, std::uint32_t lane, bool shared, std::uint64_t address, bool reads,
                   bool writes, std::uint8_t order);
  /// membar and fence of a scope.
  /// `sequential`: membar and fence.sc.
  void fence(std::uint32_t warp, std::uint32_t lanes, std::uint8_t scope, bool sequential);
  /// Threads leave a barrier: `arrived` are the lanes of each warp that came, `leaving` those that waited.
  /// The two differ after bar.arrive.
  void barrier(const std::vector<std::uint32_t>& arrived, const std::vector<std::uint32_t>& leaving);
  /// bar.warp.sync.
  void warp_barrier(std::uint32_t warp, std::uint32_t lanes);

  // ---- asynchronous operations ----
  // cp.async.bulk, wgmma and the like read and write on their own, after the instruction. An agent is a
  // thread of its own that begins with what its thread knows. Its accesses are reported twice, when it is
  // issued and when it completes, so that every access of others in between is a race. Who observes the
  // completion acquires what the agent did:
  //   const Agent a = races.begin(warp, lane);                     // at the instruction
  //   races.access(a, pc, shared, address, bytes, write, race);    // for each range, now and at its
  //   completion races.complete(a, key);                                      // e.g. complete_tx on the
  //   mbarrier races.acquire(warp, lane, key);                              // test_wait/try_wait that
  //   returned true races.release(warp, lane, key);                              // mbarrier.arrive (with
  //   .release, its default)
  // `key` is any number of the synchronising object: the offset of the mbarrier, or the number of a commit
  // group of a thread. A key names another object than the same address of an atomic.
  struct Agent {
    std::uint32_t number = 0;  // 0: none
  };
  Agent begin(std::uint32_t warp, std::uint32_t lane);
  bool access(Agent agent, std::uint32_t pc, bool shared, std::uint64_t address, std::uint64_t bytes,
              bool write, Race& race, std::uint8_t order = kWeak);
  void complete(Agent agent, std::uint64_t key);
  void release(std::uint32_t warp, std::uint32_t lane, std::uint64_t key);
  void acquire(std::uint32_t warp, std::uint32_t lane, std::uint64_t key);

 private:
  using View = Races::View;
  using Access = Races::Access;
  using Cell = Races::Cell;
  using Page = Races::Page;
  // Who accesses: a lane of a warp, or an agent.
  struct Who {
    std::uint32_t warp, lane, clock;  // the warp's number in the launch
    const View* view;
  };
  struct Thread {
    std::shared_ptr<const View> view;
    std::shared_ptr<const View> fenced;  // what it knew at its last fence
    std::uint32_t fence_clock = 0, sequential_clock = 0;
    std::uint8_t fence_scope = 0;
    std::vector<Races::Acquired> pending;  // read by strong accesses; a fence acquires them
  };
  bool check(const Who& who, std::uint32_t pc, bool shared, std::uint64_t address, std::uint64_t bytes,
             bool write, std::uint8_t order, bool equal, Race& race);
  /// Records an access. Adds the races with earlier accesses to conflicts_. `race` is for its use.
  void check_cell(Cell& cell, const Who& who, const Access& now, std::uint8_t order, bool equal, Race& race);
  bool settle_conflicts(Races::Doubt doubt, bool now_is_agent, std::uint64_t cell, Race& race);
  bool conflicts(const Access& then, const Who& who, const Access& now, bool equal, Race& race) const;
  bool observed(const Cell& cell, const Access& write, const Who& who, const Access& now) const;
  void confirm_reads(Cell& cell, const Who& who);
  std::uint32_t unordered(const Access& then, const Who& who) const;
  void push(Cell& cell, Access access, const Access& now);
  Page& page(bool shared, std::uint64_t number);
  void refine(Page& page, std::uint32_t shift);
  Races::History& history(bool shared, std::uint64_t key);
  Races::History& keyed(std::uint64_t key);
  static void append(Races::History& history, Races::Release release);
  static bool merge(std::vector<Races::Acquired>& to, const std::vector<Races::Acquired>& from,
                    bool block_only);
  static void learn(Thread& thread, const std::vector<Races::Acquired>& acquired, bool block_only);
  std::shared_ptr<const View> released(const Thread& thread);
  void join(const std::vector<std::uint32_t>& arrived, const std::vector<std::uint32_t>& leaving,
            std::uint32_t first, std::uint32_t count);

  Races& l_;
  std::uint32_t block_ = 0, first_warp_ = 0;
  std::vector<std::uint32_t> clocks_;  // of warps
  std::vector<Thread> threads_;
  std::shared_ptr<const View> start_;
  std::vector<Page> shared_;
  std::uint64_t generation_ = 0;
  std::unordered_map<std::uint64_t, Races::History*> shared_histories_, keyed_;
  std::unordered_map<std::uint32_t, std::shared_ptr<const View>> agents_;
  std::vector<Race> conflicts_;
  // released() of threads that have left a barrier since their fence, for these views.
  std::uint32_t sequential_fences_ = 0, cached_fences_ = 0;
  std::shared_ptr<const View> cached_view_, cached_fenced_, cached_result_;
};

}  // namespace tapestry::ptx
