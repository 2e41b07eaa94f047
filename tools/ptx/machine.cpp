#include "tapestry/tools/ptx/machine.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "tapestry/tools/ptx/async.h"
#include "tapestry/tools/ptx/decode.h"
#include "tapestry/tools/ptx/parser.h"
#include "tapestry/tools/ptx/registers.h"
#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

std::string lanes_text(const Warp& w, u32 lanes, const Launch& l) {
  std::string text;
  int listed = 0;
  for (u32 m = lanes; m != 0; m &= m - 1) {
    const u32 thread = 32 * w.number() + static_cast<u32>(std::countr_zero(m));
    if (listed++ == 4) return text + " and " + std::to_string(std::popcount(m)) + " more";
    text += (text.empty() ? "(" : ", (") + std::to_string(thread % l.block.x) + ", " +
            std::to_string(thread / l.block.x % l.block.y) + ", " +
            std::to_string(thread / l.block.x / l.block.y) + ")";
  }
  return text;
}

// Runs the warps of one block. Warps run in order until they wait, or in random order.
class Scheduler {
 public:
  Scheduler(Launch& launch, Block& block) : l_(launch), b_(block), async_(block.async.get()) {
    const u32 threads = launch.block.x * launch.block.y * launch.block.z;
    const std::size_t warps = (threads + 31) / 32, bytes = warps * launch.program->register_bytes + 64;
    if (block.registers.size() < bytes) block.registers.resize(bytes);
    warps_.reserve(warps);
    for (u32 number = 0; number < warps; ++number) warps_.emplace_back(block, number, threads);
  }

  /// Gives each warp a turn, or a random one. Returns whether the block has ended.
  bool step() {
    bool ran = false;
    if (l_.options->seed == 0) {
      for (Warp& w : warps_) {
        if (!w.ready()) continue;
        w.run();
        ran = true;
      }
    } else {
      std::vector<Warp*> ready;
      for (Warp& w : warps_)
        if (w.ready()) ready.push_back(&w);
      if (!ready.empty()) ready[l_.random.below(static_cast<u32>(ready.size()))]->run();
      ran = !ready.empty();
      if (async_ && ran) disturb();
    }
    if (std::all_of(warps_.begin(), warps_.end(), [](const Warp& w) { return w.ended(); })) {
      if (async_) async_->finish();
      return true;
    }
    if (!release_barriers() && !ran && !(async_ && wake())) explain();
    return false;
  }

 private:
  // No thread can run. Wakes those that wait for events, and completes an asynchronous operation if nothing
  // has happened since they were woken last.
  bool wake() {
    bool waits = false;
    for (const Warp& w : warps_) waits = waits || w.at_event() != 0;
    if (!waits) return false;
    if (async_->progress != progress_ || async_->complete_one()) fruitless_ = 0;
    else if (++fruitless_ > kMaxFruitless) return false;
    progress_ = async_->progress;
    for (Warp& w : warps_) w.wake();
    return true;
  }
  // In random order, operations complete and threads wake at any time.
  void disturb() {
    if (l_.random.below(16) == 0) async_->complete_one();
    if (l_.random.below(4) == 0)
      for (Warp& w : warps_) w.wake();
  }
  // Releases each barrier that all its threads have reached.
  bool release_barriers() {
    bool released = false;
    u32 used = 0;
    for (const Warp& w : warps_)
      for (u32 m = w.at_barrier(); m != 0; m &= m - 1) used |= 1u << w.waiting(std::countr_zero(m)).barrier;
    for (const Block::Arrival& a : b_.arrivals) used |= 1u << a.barrier;
    for (; used != 0; used &= used - 1) {
      const auto barrier = static_cast<u32>(std::countr_zero(used));
      // Threads that have ended count as arrived. A barrier for a number of threads counts whole warps: lanes
      // that have ended or do not exist count with the others.
      u32 wanted = 0, waiting = 0, live = 0;
      came_.assign(warps_.size(), 0);
      for (std::size_t i = 0; i < warps_.size(); ++i) {
        const Warp& w = warps_[i];
        each(w, barrier, [&](int lane) {
          came_[i] |= 1u << lane;
          wanted = std::max(wanted, w.waiting(lane).threads);
        });
        live += static_cast<u32>(std::popcount(w.alive()));
        waiting += static_cast<u32>(std::popcount(came_[i]));
      }
      u32 arrived = waiting;
      for (const Block::Arrival& a : b_.arrivals)
        if (a.barrier == barrier) {
          ++arrived;
          came_[a.warp] |= a.lanes;
          wanted = std::max(wanted, a.threads);
        }
      if (arrived == 0) continue;
      for (std::size_t i = 0; i < warps_.size(); ++i) {
        const Warp& w = warps_[i];
        if (wanted != 0 && (came_[i] == 0 || (w.alive() & ~came_[i]) != 0)) continue;
        const u32 gone = ~(w.alive() | came_[i]);
        arrived += static_cast<u32>(std::popcount(gone));
        came_[i] |= gone & w.existing();
      }
      if (wanted != 0 ? arrived < wanted : waiting < live) continue;
      check(barrier, arrived, wanted);
      std::vector<u32> leaving;
      u32 ones = 0, voters = 0;
      for (Warp& w : warps_) {
        u32 lanes = 0;
        each(w, barrier, [&](int lane) { lanes |= 1u << lane; });
        w.release(lanes);
        leaving.push_back(lanes);
        ones += static_cast<u32>(std::popcount(w.votes & lanes));
        voters += static_cast<u32>(std::popcount(lanes));
      }
      for (std::size_t i = 0; i < warps_.size(); ++i) warps_[i].finish_reduction(leaving[i], ones, voters);
      std::erase_if(b_.arrivals, [&](const Block::Arrival& a) { return a.barrier == barrier; });
      if (b_.races) b_.races->barrier(came_, leaving);
      if (l_.observer) l_.observer->barrier();
      released = true;
    }
    return released;
  }
  template <class F>
  void each(const Warp& w, u32 barrier, F f) const {
    for (u32 m = w.at_barrier(); m != 0; m &= m - 1)
      if (const int lane = std::countr_zero(m); w.waiting(lane).barrier == barrier) f(lane);
  }
  // bar.sync without a number of threads is for all threads of the block, at one place of the program.
  void check(u32 barrier, u32 arrived, u32 wanted) {
    const Warp* first = nullptr;
    int first_lane = 0;
    for (const Warp& w : warps_)
      each(w, barrier, [&](int lane) {
        if (!first) {
          first = &w;
          first_lane = lane;
          return;
        }
        const Warp::Waiting &a = first->waiting(first_lane), &b = w.waiting(lane);
        if (a.threads != b.threads)
          fail(w, lane,
               "waits for " + std::to_string(b.threads) + " threads, and other threads for " +
                   std::to_string(a.threads));
        if (wanted == 0 && a.pc != b.pc)
          fail(w, lane,
               "the threads of a block must wait at the same barrier, but others wait at " +
                   first->line_of(a.pc));
      });
    if (wanted == 0 || arrived == wanted) return;
    if (!first)
      throw KernelError("[ptx] kernel '" + l_.program->entry->name + "': " + std::to_string(arrived) +
                        " threads executed bar.arrive at barrier " + std::to_string(barrier) +
                        ", which is for " + std::to_string(wanted));
    fail(*first, first_lane,
         std::to_string(arrived) + " threads wait, and the barrier is for " + std::to_string(wanted));
  }
  [[noreturn]] void fail(const Warp& w, int lane, const std::string& what) const {
    w.fail(l_.program->code[w.waiting(lane).pc], lane, what);
  }
  // Nothing can run: says which threads wait for which.
  [[noreturn]] void explain() const {
    for (const Warp& w : warps_)
      if (const u32 waits = w.at_event(); waits != 0) {
        const int lane = std::countr_zero(waits);
        w.fail(l_.program->code[w.event(lane).pc], lane, async_->explain(w, lane));
      }
    for (const Warp& w : warps_) {
      if (w.at_collective() == 0) continue;
      const int lane = std::countr_zero(w.at_collective());
      const u32 pc = w.pc_of(lane);
      u32 here = 0;
      for (u32 m = w.at_collective(); m != 0; m &= m - 1)
        if (w.pc_of(std::countr_zero(m)) == pc) here |= m & (0u - m);
      const auto absent = [&](u32 lanes) { return lanes_text(w, lanes & ~here, l_); };
      std::string text = "the lanes " + hex(here) + " wait for lanes that never come:";
      if (const u32 elsewhere = (w.at_collective() | w.at_barrier()) & ~here; elsewhere != 0)
        text +=
            " waiting at " +
            w.line_of(w.at_barrier() & elsewhere ? w.waiting(std::countr_zero(w.at_barrier() & elsewhere)).pc
                                                 : w.pc_of(std::countr_zero(elsewhere))) +
            ": " + absent(elsewhere) + ";";
      text.pop_back();
      w.fail(l_.program->code[pc], lane, text);
    }
    for (const Warp& w : warps_)
      if (w.at_barrier() != 0) {
        const int lane = std::countr_zero(w.at_barrier());
        for (const Warp& other : warps_)
          for (u32 m = other.at_barrier(); m != 0; m &= m - 1)
            if (const int o = std::countr_zero(m); other.waiting(o).pc != w.waiting(lane).pc)
              fail(w, lane,
                   "waits for all threads of the block, but others wait at " +
                       other.line_of(other.waiting(o).pc));
        fail(w, lane,
             "waits for " + std::to_string(w.waiting(lane).threads) + " threads, and only " +
                 std::to_string(std::popcount(w.at_barrier())) + " of its warp came");
      }
    throw KernelError("[ptx] kernel '" + l_.program->entry->name + "': no thread can go on");
  }

  // A thread that tests an mbarrier in a loop of its own may do something else after some failures.
  static constexpr int kMaxFruitless = 1000;
  Launch& l_;
  Block& b_;
  Async* async_;
  u64 progress_ = 0;
  int fruitless_ = 0;
  std::vector<Warp> warps_;
  std::vector<u32> came_;  // to a barrier: the lanes of each warp
};

}  // namespace

Machine::Machine() = default;
Machine::~Machine() = default;

std::size_t Machine::load(std::string text) {
  auto loaded = std::make_unique<Loaded>();
  loaded->module = parse(std::move(text));
  for (const Variable& v : loaded->module.variables) {
    if (v.space != Space::kGlobal && v.space != Space::kConst) continue;
    const u64 address = memory_.allocate(std::max<u64>(v.bytes, 1));
    std::vector<u8> bytes = v.initial;
    bytes.resize(v.bytes);  // the rest is zero
    memory_.write(address, bytes.data(), bytes.size());
    loaded->addresses[v.name] = address;
  }
  for (const Variable& v : loaded->module.variables)
    for (const Variable::Relocation& r : v.relocations) {
      const auto found = loaded->addresses.find(r.symbol);
      if (found == loaded->addresses.end())
        throw UsageError("[ptx] the initialiser of '" + v.name + "' needs '" + r.symbol + "'");
      const u64 value = found->second + static_cast<u64>(r.addend);
      memory_.write(loaded->addresses[v.name] + r.offset, &value, sizeof value);
    }
  modules_.push_back(std::move(loaded));
  return modules_.size() - 1;
}

std::vector<std::string> Machine::kernels() const {
  std::vector<std::string> names;
  for (const auto& loaded : modules_)
    for (const auto& f : loaded->module.functions)
      if (f->is_entry && f->has_body) names.push_back(f->name);
  return names;
}

u64 Machine::address_of(const std::string& variable, std::size_t module) const {
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    const auto& addresses = modules_[i]->addresses;
    if (const auto found = addresses.find(variable);
        found != addresses.end() && (module == kAnyModule || module == i))
      return found->second;
  }
  return 0;
}

const Program& Machine::program(const std::string& kernel, std::size_t module) {
  const auto key = std::pair(module, kernel);
  if (const auto found = programs_.find(key); found != programs_.end()) return found->second;
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    if (module != kAnyModule && module != i) continue;
    const auto& loaded = modules_[i];
    const Function* const f = loaded->module.find(kernel);
    if (!f || !f->is_entry) continue;
    const AddressOf address_of = [&](std::string_view name) -> u64 {
      const auto found = loaded->addresses.find(name);
      return found == loaded->addresses.end() ? 0 : found->second;
    };
    return programs_[key] = decode(loaded->module, *f, address_of);
  }
  throw UsageError("[ptx] no module that was loaded has a kernel '" + kernel + "'");
}

std::vector<std::byte> Machine::pack(const std::string& kernel, const void* const* pointers,
                                     const std::size_t* sizes, std::size_t count) {
  const Program& p = program(kernel);
  if (count != p.parameters.size())
    throw UsageError("[ptx] kernel '" + kernel + "' has " + std::to_string(p.parameters.size()) +
                     " parameters, and " + std::to_string(count) + " were passed");
  std::vector<std::byte> bytes(p.parameter_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[i] != p.parameters[i].bytes)
      throw UsageError("[ptx] parameter " + std::to_string(i) + " of kernel '" + kernel + "' has " +
                       std::to_string(p.parameters[i].bytes) + " bytes, and " + std::to_string(sizes[i]) +
                       " were passed");
    std::memcpy(bytes.data() + p.parameters[i].offset, pointers[i], sizes[i]);
  }
  return bytes;
}

Counts Machine::launch(const Program& p, Dim grid, Dim block, u64 shared_bytes, const void* parameters,
                       u64 parameter_bytes) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError("[ptx] launch of '" + p.entry->name + "': " + what);
  };
  const u64 threads = u64{block.x} * block.y * block.z, blocks = u64{grid.x} * grid.y * grid.z;
  if (threads == 0 || threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64)
    refuse("a block of " + std::to_string(threads) +
           " threads; 1 to 1024 are possible, at most 64 of them in z");
  if (blocks == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    refuse("the grid is empty or too large");
  const auto& limit = p.entry->max_threads;
  if (limit[0] != 0 && threads > u64{limit[0]} * limit[1] * limit[2])
    refuse("a block of " + std::to_string(threads) + " threads, more than its .maxntid allows");
  if (shared_bytes + p.shared_without_gaps > options_.max_shared_bytes)
    refuse(std::to_string(shared_bytes + p.shared_without_gaps) +
           " bytes of shared memory, of which a block has " + std::to_string(options_.max_shared_bytes));
  if (parameter_bytes < p.parameter_bytes)
    refuse("its parameters need " + std::to_string(p.parameter_bytes) + " bytes, and " +
           std::to_string(parameter_bytes) + " were passed");

  Launch l;
  l.program = &p;
  l.memory = &memory_;
  l.options = &options_;
  l.parameters.assign(static_cast<const std::byte*>(parameters),
                      static_cast<const std::byte*>(parameters) + p.parameter_bytes);
  l.grid = grid;
  l.block = block;
  l.shared_bytes = shared_bytes;
  l.clock = &clock_;
  l.grid_id = ++launches_;
  if (options_.cooperative) {
    // What the driver prepares for grid.sync(): the size of the workspace and the counter of its barrier.
    constexpr u32 kWorkspace[2] = {sizeof kWorkspace, 0};
    if (workspace_ == 0) workspace_ = memory_.allocate(sizeof kWorkspace);
    memory_.write(workspace_, kWorkspace, sizeof kWorkspace);
    l.workspace = workspace_;
  }
  choose_traced(l);
  l.random.state = options_.seed * 0x9e3779b97f4a7c15ull + 1;
  std::vector<u64> order;
  if (options_.seed != 0) {
    for (u64 i = 0; i < blocks; ++i) order.push_back(i);
    for (u64 i = blocks; i > 1; --i) std::swap(order[i - 1], order[l.random.below(static_cast<u32>(i))]);
  }
  std::optional<Races> races;
  if (options_.check_races) {
    races.emplace(static_cast<u32>(threads),
                  Races::Rules{options_.allow_equal_writes, options_.reads_acquire});
    l.races = &*races;
    if (options_.collect_races) {
      l.findings = &findings_;
      l.found_races = &found_races_;
    }
  }
  std::optional<Observer> observer;
  if (options_.count || work_ != StreamOrder::kNone) l.observer = &observer.emplace(p, options_.count, true);
  if (options_.check_initialised && checked_.insert(p.entry).second)
    if (const auto reads = reads_of_unwritten_registers(*p.entry); !reads.empty()) {
      checked_.erase(p.entry);
      throw KernelError("[ptx] kernel '" + p.entry->name + "', " + p.line_of(*reads[0]) + " (" +
                        std::string(reads[0]->opcode) +
                        "): reads a register that no other instruction writes");
    }
  const u64 size = shared_bytes != 0 ? p.dynamic_offset + shared_bytes : p.shared_bytes;
  if (p.uses_async && size > kMaxSharedAddress)
    refuse("its shared memory with the gaps between variables ends at " + std::to_string(size) +
           ", beyond what descriptors can address");
  struct Resident {
    Block block;
    std::unique_ptr<Scheduler> scheduler;
  };
  std::vector<std::unique_ptr<Resident>> residents;
  u64 begun = 0;
  const auto begin = [&](Resident& r) {
    Block& b = r.block;
    const u64 n = order.empty() ? begun : order[begun];
    ++begun;
    b.index = {static_cast<u32>(n % grid.x), static_cast<u32>(n / grid.x % grid.y),
               static_cast<u32>(n / grid.x / grid.y)};
    b.number = static_cast<u32>(n);
    if (b.races) b.races->begin_block(b.number);
    // Shared memory begins full of NaN, without initialised bytes.
    const auto clear = [&](u64 offset, u64 bytes) {
      std::fill_n(b.shared.data.begin() + static_cast<std::ptrdiff_t>(offset), bytes, std::byte{0xff});
      std::fill_n(b.shared.states.begin() + static_cast<std::ptrdiff_t>(offset), bytes, kUninitialised);
    };
    for (const Program::Place& v : p.shared) clear(v.offset, v.bytes);
    if (shared_bytes != 0) clear(p.dynamic_offset, shared_bytes);
    b.arrivals.clear();
    r.scheduler.reset();  // its warps hold the old Async
    if (p.uses_async) b.async = std::make_shared<Async>(b);
    r.scheduler = std::make_unique<Scheduler>(l, b);
  };
  const u64 resident =
      options_.cooperative ? blocks : std::min<u64>(blocks, std::max(options_.resident_blocks, 1u));
  while (residents.size() < resident) {
    Resident& r = *residents.emplace_back(std::make_unique<Resident>());
    r.block.launch = &l;
    r.block.shared.data.resize(size);
    r.block.shared.states.resize(size);
    if (residents.size() == 1) r.block.registers = std::move(registers_);
    if (races) r.block.races = std::make_unique<BlockRaces>(*races);
    begin(r);
  }
  // Reports the doubts about a block that has ended, and those that no compare-and-swap has settled for long.
  const auto settle = [&](u32 block, u64 before) {
    for (Races::Doubt doubt; races && races->has_doubts() && races->take_doubt(block, before, doubt);)
      Warp::report(l, doubt);
  };
  constexpr u64 kPatience = 1 << 24;  // instructions of warps
  try {
    for (std::size_t turn = 0; !residents.empty();) {
      if (options_.seed != 0 && residents.size() > 1)
        turn = l.random.below(static_cast<u32>(residents.size()));
      if (turn >= residents.size()) turn = 0;
      Resident& r = *residents[turn];
      const u32 number = r.block.number;
      if (races) races->time = l.counts.warp_instructions;
      const bool ended = r.scheduler->step();
      settle(ended ? number : ~0u,
             l.counts.warp_instructions - std::min(l.counts.warp_instructions, kPatience));
      if (!ended) {
        ++turn;
      } else if (begun < blocks) {
        begin(r);
      } else {
        if (registers_.empty()) registers_ = std::move(r.block.registers);
        residents.erase(residents.begin() + static_cast<std::ptrdiff_t>(turn));
      }
    }
    settle(~0u, ~u64{0});
  } catch (const KernelError&) {
    settle(~0u, ~u64{0});  // a race may be the reason
    throw;
  }
  if (options_.count) {
    counters_ = observer->result();
    counters_.launches = 1;
    counters_.blocks = blocks;
    counters_.threads = blocks * threads;
  }
  if (work_ != StreamOrder::kNone)
    observer->footprint().each([&](u64 address, u64 bytes, bool write, const Footprint::Touch& t) {
      if (l.workspace != 0 && address - l.workspace < 8) return;  // a GPU has one for each launch
      order_->access(work_, address, bytes, write, [&] { return Warp::where(l, t.pc, t.block, t.thread); });
    });
  return l.counts;
}

}  // namespace tapestry::ptx
