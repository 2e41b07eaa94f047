#pragma once
// A machine that executes PTX: load a module, allocate memory, launch a kernel. Every access is checked.
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tapestry/tools/ptx/counters.h"
#include "tapestry/tools/ptx/error.h"
#include "tapestry/tools/ptx/memory.h"
#include "tapestry/tools/ptx/order.h"
#include "tapestry/tools/ptx/program.h"

namespace tapestry::ptx {

/// What approximate instructions (ex2.approx, rcp.approx, ...) return: the nearest number, or one at the edge
/// of the error that the PTX manual allows. A kernel that passes its tests with all three does not depend on
/// one GPU's tables.
enum class Approximate : std::uint8_t { kNearest, kLow, kHigh };

struct Options {
  /// 0: blocks, warps and threads run in order, and a warp runs until it waits. Otherwise they run in a
  /// random order, and a warp may stop after any instruction.
  std::uint64_t seed = 0;
  /// A launch may execute this many instructions of warps. Then it ends with a KernelError: its loop is
  /// probably infinite.
  std::uint64_t max_instructions = std::uint64_t{1} << 32;
  Approximate approximate = Approximate::kNearest;
  /// Whether reading a byte that no one has written is an error. Some kernels load tiles of which only a part
  /// was filled, and drop the results of the rest; their tests turn this off, and new memory is full of NaN.
  bool check_initialised = true;
  /// The same for shared memory alone.
  bool check_initialised_shared = true;
  /// Whether races between the threads of a launch are errors; races.h says what a race is.
  bool check_races = false;
  /// With check_races: whether threads may store without an order what is there already, as when all threads
  /// raise the same flag. PTX calls it a race.
  bool allow_equal_writes = false;
  /// With check_races: whether atomics and other strong reads acquire without a fence behind them, as they do
  /// on today's GPUs. PTX does not promise it.
  bool reads_acquire = false;
  /// Whether races are added to findings() instead of ending the launch, each pair of source lines once.
  bool collect_races = false;
  /// Whether launches fill counters().
  bool count = false;
  /// What printf in a kernel prints, a call at a time; null: to the standard output.
  std::function<void(const std::string&)> print;
  /// KERNEL:BLOCK:THREAD, such as saxpy:0:5 or step:(1,0,0):(3,2,0): what this thread executes is printed to
  /// the standard error. The kernel is a part of its symbol. Empty: nothing is printed.
  std::string trace;
  /// So many blocks run at the same time, in turns. More than one is needed by kernels whose blocks wait for
  /// each other.
  std::uint32_t resident_blocks = 1;
  /// The following launches are cooperative: all their blocks run at the same time, and grid.sync() works.
  bool cooperative = false;
  /// %nsmid.
  std::uint32_t multiprocessors = 132;
  /// Dynamic and static shared memory of a block. The default is what an H100 gives after opting in.
  std::uint64_t max_shared_bytes = 227 * 1024;
};

struct Dim {
  std::uint32_t x = 1, y = 1, z = 1;
};

/// What a launch executed.
struct Counts {
  std::uint64_t warp_instructions = 0;    // including those whose predicate was false in all lanes
  std::uint64_t thread_instructions = 0;  // the sum over the lanes that executed them
};

class Machine {
 public:
  Machine();
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  /// Parses a module and allocates its variables. Throws a ParseError if the text outside of functions is
  /// wrong. A kernel is decoded at its first launch, which throws if the kernel is wrong. Returns the
  /// module's number.
  std::size_t load(std::string text);
  /// What a module was compiled for: "sm_80".
  const std::string& target(std::size_t module) const { return modules_[module]->module.target; }
  /// The names of all kernels.
  std::vector<std::string> kernels() const;
  /// Decodes a kernel and lays out its parameters and shared memory. Throws a ParseError, or a UsageError if
  /// there is none.
  const Program& program(const std::string& kernel, std::size_t module = kAnyModule);
  /// The address of a variable of a module in global or constant memory; 0 if there is none.
  std::uint64_t address_of(const std::string& variable, std::size_t module = kAnyModule) const;
  /// Modules may have kernels and variables of the same names. The first module that has one is taken, unless
  /// its number is given.
  static constexpr std::size_t kAnyModule = ~std::size_t{0};

  /// The following launches count as `work` of a stream. After each launch, the machine reports the bytes
  /// that the launch touched to `order`, which throws an OrderError if unordered work touches them as well.
  /// Pass StreamOrder::kNone to stop reporting.
  void run_as(StreamOrder* order, StreamOrder::Work work) {
    order_ = order;
    work_ = work;
  }
  /// What the last launch did, if Options::count is set.
  const Counters& counters() const { return counters_; }
  /// The races that were collected. The caller may clear them.
  std::vector<std::string>& findings() { return findings_; }

  Memory& memory() { return memory_; }
  Options& options() { return options_; }

  /// Runs a kernel to its end. `parameters` are the bytes of its parameter space. Throws a UsageError if they
  /// do not fit the kernel, and a KernelError if the kernel does something invalid.
  Counts launch(const std::string& kernel, Dim grid, Dim block, std::uint64_t shared_bytes,
                const void* parameters, std::uint64_t parameter_bytes) {
    return launch(program(kernel), grid, block, shared_bytes, parameters, parameter_bytes);
  }
  Counts launch(const Program& program, Dim grid, Dim block, std::uint64_t shared_bytes,
                const void* parameters, std::uint64_t parameter_bytes);

  /// The same, with one argument per parameter.
  template <class... Args>
  Counts launch(const std::string& kernel, Dim grid, Dim block, std::uint64_t shared_bytes,
                const Args&... arguments) {
    const void* pointers[] = {&arguments..., nullptr};
    const std::size_t sizes[] = {sizeof(arguments)..., 0};
    const std::vector<std::byte> bytes = pack(kernel, pointers, sizes, sizeof...(Args));
    return launch(kernel, grid, block, shared_bytes, static_cast<const void*>(bytes.data()),
                  static_cast<std::uint64_t>(bytes.size()));
  }

 private:
  std::vector<std::byte> pack(const std::string& kernel, const void* const* pointers,
                              const std::size_t* sizes, std::size_t count);

  struct Loaded {
    Module module;
    std::map<std::string, std::uint64_t, std::less<>> addresses;
  };
  Memory memory_;
  Options options_;
  StreamOrder* order_ = nullptr;
  StreamOrder::Work work_ = StreamOrder::kNone;
  Counters counters_;
  std::vector<std::string> findings_;
  std::set<std::tuple<const Function*, std::string, std::string>> found_races_;  // FoundRaces
  std::set<const Function*> checked_;  // for registers without a value
  std::vector<std::unique_ptr<Loaded>> modules_;
  std::map<std::pair<std::size_t, std::string>, Program> programs_;
  std::vector<std::byte> registers_;  // Block::registers between launches
  std::uint64_t clock_ = 0, launches_ = 0, workspace_ = 0;
};

}  // namespace tapestry::ptx
