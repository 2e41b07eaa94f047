#pragma once
// A kernel decoded for execution: each instruction is a function with the places of its operands.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tapestry/tools/ptx/module.h"

namespace tapestry::ptx {

class Warp;

/// The place of an operand: a row of 32 lanes in the warp's registers or in the program's constants. A
/// predicate is one word with a bit for each lane.
struct Ref {
  std::uint32_t offset = 0;
  std::uint8_t base = 0;   // 0: registers, 1: constants
  std::uint8_t width = 0;  // bytes per lane; 0 for predicates
  bool negated = false;
};

struct Code;
/// Executes an instruction in the lanes of the mask, which is never empty.
using Handler = void (*)(Warp&, const Code&, std::uint32_t mask);

struct Code {
  Handler run = nullptr;
  std::uint32_t first = 0;  // its operands begin at refs[first]
  std::uint32_t count = 0;
  std::int64_t offset[2] = {0, 0};  // of its first and second address, or the target of a branch
  std::uint32_t flags = 0;          // their meaning depends on the instruction
  std::uint8_t order = 0;           // how its accesses take part in the memory model: Order in races.h
  std::uint32_t predicate = 0;
  std::int8_t guard = 0;  // 0: none; 1: @p; -1: @!p
  /// Whether it reads or writes registers that some wgmma also uses; a plain mov may, see wgmma.cpp.
  enum Touches : std::uint8_t { kNothing, kMatrix, kMatrixMove } touches = kNothing;
  std::uint16_t destinations = 0;  // its first operands
  const Instruction* source = nullptr;
};

/// How an opcode is executed. The signature lists the operands; decode.cpp explains its letters.
struct Entry {
  Handler run = nullptr;
  std::string signature;
  std::uint32_t flags = 0;
  bool uses_async = false;  // it needs the block's Async
  std::uint8_t order = 0;   // of accesses: Order in races.h
};
using Table = std::unordered_map<std::string, Entry>;

/// The parts of "cvt.rn.f32.s32": cvt, rn, f32, s32.
using Parts = std::vector<std::string_view>;

// The instructions by topic. The find_ functions read modifiers that are too many for a table.
void add_integer(Table& table);
void add_logic(Table& table);
void add_compare(Table& table);
void add_float(Table& table);
void add_approximate(Table& table);
void add_collective(Table& table);
void add_matrix(Table& table);
bool find_convert(const Parts& parts, Entry& entry);
bool find_access(const Parts& parts, Entry& entry);
bool find_atomic(const Parts& parts, Entry& entry);
bool find_async(const Parts& parts, Entry& entry);
bool find_mbarrier(const Parts& parts, Entry& entry);
bool find_bulk(const Parts& parts, Entry& entry);
bool find_half(const Parts& parts, Entry& entry);
bool find_wgmma(const Parts& parts, Entry& entry);
/// The signature of wgmma.mma_async depends on whether A is in registers.
void choose_wgmma_operands(Entry& entry, bool registers);

struct Program;
/// Finds the registers that wgmma works on, and the instructions that touch them (wgmma.cpp).
void find_matrix_registers(Program& program);

// Control flow; decode.cpp refers to them.
void run_branch(Warp& w, const Code& c, std::uint32_t mask);
void run_indexed_branch(Warp& w, const Code& c, std::uint32_t mask);
void run_exit(Warp& w, const Code& c, std::uint32_t mask);
void run_call(Warp& w, const Code& c, std::uint32_t mask);
void run_return(Warp& w, const Code& c, std::uint32_t mask);
void run_copies(Warp& w, const Code& c, std::uint32_t mask);
void run_trap(Warp& w, const Code& c, std::uint32_t mask);
void run_barrier(Warp& w, const Code& c, std::uint32_t mask);
void run_fence(Warp& w, const Code& c, std::uint32_t mask);
void run_barrier_arrive(Warp& w, const Code& c, std::uint32_t mask);
enum BarrierReduction : std::uint32_t { kReducePopc, kReduceAnd, kReduceOr };
void run_barrier_reduction(Warp& w, const Code& c, std::uint32_t mask);
/// vprintf and __assertfail, which the machine provides (print.cpp).
void run_print(Warp& w, const Code& c, std::uint32_t mask);
void run_assert(Warp& w, const Code& c, std::uint32_t mask);
void run_nothing(Warp& w, const Code& c, std::uint32_t mask);
/// Reads the clocks into their rows, before an instruction that has one as an operand.
void run_clock(Warp& w, const Code& c, std::uint32_t mask);

/// The rows of special registers, at the start of the warp's registers.
enum SpecialRow : std::uint32_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneId,
  kWarpId,
  kNwarpId,
  kLaneEq,
  kLaneLt,
  kLaneLe,
  kLaneGt,
  kLaneGe,
  kDynamicShared,
  kTotalShared,
  kZero,
  kOne,
  kProcessors,
  kEnvironmentHigh,  // %envreg1 and %envreg2: the address of the workspace of a cooperative launch
  kEnvironmentLow,
  kClockLow,
  kClockHigh,
  kGridIdLow,
  // Of 64 bits, in two rows each.
  kClock,
  kGridId = kClock + 2,
  kSpecialRows = kGridId + 2
};
constexpr std::uint32_t kRowBytes = 32 * 8;
/// What instructions write that have no destination, or the destination _.
constexpr std::uint32_t kTrash = kSpecialRows * 128, kFirstRegister = kTrash + kRowBytes;

/// Generic addresses of shared, local, constant and parameter memory are offsets in these windows, which no
/// host pointer is in.
constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 56, kLocalWindow = std::uint64_t{2} << 56,
                        kParamWindow = std::uint64_t{3} << 56, kWindow = std::uint64_t{1} << 56;

/// Descriptors of wgmma name addresses of shared memory with 18 bits.
constexpr std::uint64_t kMaxSharedAddress = std::uint64_t{1} << 18;

struct Program {
  const Module* module = nullptr;
  const Function* entry = nullptr;
  std::vector<Code> code;
  std::vector<Ref> refs;
  std::vector<std::byte> constants;
  std::uint32_t register_bytes = kFirstRegister;
  std::uint32_t start = 0;

  struct Place {
    std::string name;
    std::uint64_t offset, bytes;
  };
  /// Variables with static addresses. Between shared variables there are gaps, so that an index beyond one of
  /// them is found.
  std::vector<Place> shared, local;
  std::uint64_t shared_bytes = 0, local_bytes = 0;
  /// Shared memory that a GPU would use: without the gaps.
  std::uint64_t shared_without_gaps = 0;
  std::string dynamic_shared;  // the name of the dynamic variable
  /// Dynamic shared memory begins here, behind the static variables.
  std::uint64_t dynamic_offset = 0;
  std::vector<Place> parameters;
  std::uint64_t parameter_bytes = 0;

  bool uses_async = false;
  /// By multiples of 32 bytes of a register's offset: its number among those that wgmma uses, from 1; or 0.
  std::vector<std::uint16_t> matrix_registers;
  std::uint32_t matrix_register_count = 0;

  struct Copy {
    std::uint64_t to, from, bytes;  // offsets in local memory
  };
  std::vector<std::vector<Copy>> copies;          // of arguments and results of calls
  std::vector<std::vector<std::uint32_t>> jumps;  // of brx.idx

  /// "k.cu:12", or the line of the PTX if nvcc ran without -lineinfo.
  std::string line_of(std::uint32_t pc) const;
  std::string line_of(const Instruction& instruction) const;
};

}  // namespace tapestry::ptx
