#pragma once
// What a launch did, in the units in which a GPU does it: instructions by kind, 32-byte sectors of global
// memory, passes through the banks of shared memory, lanes that ran together. They follow from the PTX and
// from the addresses. A GPU executes SASS, whose number of instructions differs, and has caches and a clock,
// of which nothing is known here.
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::ptx {

/// Where a GPU executes an instruction, by the PTX opcode.
enum class Pipe : std::uint8_t {
  kFma,      // f32: add, mul, fma, and packed f16 and bf16
  kDouble,   // f64
  kAlu,      // integers, logic, comparisons, selections, moves
  kSpecial,  // ex2, lg2, sin, rsqrt, ..., divisions, and conversions between types
  kMemory,   // loads, stores, atomics, shuffles, ldmatrix, copies
  kTensor,   // mma, wgmma
  kControl,  // branches, calls, barriers, fences
};
constexpr std::size_t kPipes = 7;
const char* name_of(Pipe pipe);
Pipe pipe_of(std::string_view opcode);
/// What one lane computes: 2 for fma.rn.f32, 4 for fma.rn.f16x2, 0 for integers and f64.
std::uint64_t flops_of(std::string_view opcode);
/// The products of mma.sync, by all lanes together: m n k. A wgmma is executed by four warps and counts a
/// quarter.
std::uint64_t tensor_products_of(std::string_view opcode);

/// Accesses of global or local memory by instructions of warps.
struct Traffic {
  std::uint64_t requests = 0;  // instructions of warps
  std::uint64_t sectors = 0;   // different 32-byte sectors, summed over the requests
  std::uint64_t bytes = 0;     // that the lanes asked for
  double sectors_per_request() const;
};
/// Accesses of shared memory. It has 32 banks of 4 bytes; in a pass, each bank serves one word, to all lanes
/// that ask for it. Accesses of 8 bytes take a pass for each half of the warp, of 16 bytes (and ldmatrix) for
/// each quarter.
struct SharedTraffic {
  std::uint64_t requests = 0;
  std::uint64_t passes = 0;     // ncu calls them wavefronts
  std::uint64_t conflicts = 0;  // passes beyond those that the width needs
  std::uint64_t bytes = 0;
  std::uint32_t worst = 0;  // the largest number of words that one bank had to serve in one go
  double passes_per_request() const;
};

/// One instruction of the text that accesses memory.
struct PlaceCounters {
  std::string place;  // "k.cu:12 (ld.global.f32)"
  Traffic memory;
  SharedTraffic shared;
};

struct Counters {
  std::uint64_t launches = 0, blocks = 0, threads = 0;
  std::uint64_t warp_instructions = 0;
  /// Summed over the lanes that were active, and over those whose predicate was true.
  std::uint64_t active_lanes = 0, thread_instructions = 0;
  std::array<std::uint64_t, kPipes> warps_by_pipe{}, threads_by_pipe{};
  std::map<std::string, std::uint64_t> by_opcode;  // instructions of warps
  std::uint64_t branches = 0, diverged = 0;        // instructions of warps; those whose lanes went apart
  std::uint64_t barriers = 0, atomics = 0;  // barriers completed by blocks; lanes that executed an atomic
  /// Products of the inner loop of matrix multiplications on tensor cores: m n k of each mma.
  std::uint64_t tensor_products = 0;
  std::uint64_t flops = 0;  // of f32, f16 and bf16 outside of tensor cores; an fma has 2
  Traffic loads, stores, global_atomics, local;
  SharedTraffic shared_loads, shared_stores, shared_atomics;
  /// Different bytes of global memory that the launch read and wrote, and the different sectors of both.
  std::uint64_t unique_read = 0, unique_written = 0, unique_sectors = 0;
  std::vector<PlaceCounters> places;  // by their address in the program

  double average_active_lanes() const;
  /// 32 bytes for each sector of a load, store or atomic, over the different bytes that were read and
  /// written: 1 if every byte moves once. Caches of a GPU keep a part of the repetitions from memory.
  double moved_over_needed() const;
  std::uint64_t moved_bytes() const;
  void add(const Counters& other);
};

}  // namespace tapestry::ptx
