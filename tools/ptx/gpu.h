#pragma once
// What is documented about two GPUs: how many blocks an SM holds, and how fast its parts are. From these and
// from counters follows which part of a kernel's work dominates. It is arithmetic and no measurement: caches,
// clocks and the order of instructions are not in it.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tapestry/tools/ptx/counters.h"

namespace tapestry::ptx {

/// Limits are those of the CUDA programming guide's table "Technical Specifications per Compute Capability";
/// rates are of NVIDIA's whitepapers, per clock and SM.
struct Gpu {
  const char* name;
  std::uint32_t sms, warps, blocks, registers, shared_bytes, shared_bytes_per_block;
  double dram_bytes;       // of memory, shared out to all SMs
  double l2_bytes;         // between the L2 cache and an SM
  double fma_lanes;        // f32 instructions of a lane
  double double_lanes;     // f64
  double alu_lanes;        // integers
  double special_lanes;    // ex2, rsqrt, ...
  double tensor_products;  // of f16 and bf16
};
/// A100 SXM (80) or H100 SXM (90). Throws a UsageError for others.
const Gpu& gpu_of(int architecture);

/// What ptxas decided.
struct Resources {
  std::uint32_t registers = 0;                       // of a thread
  std::uint64_t shared = 0, stack = 0, spilled = 0;  // bytes; spilled: stores and loads
};
/// By kernel, from what `ptxas -v` (nvcc -Xptxas -v) or `cuobjdump --dump-resource-usage` prints. With
/// several architectures in the text, only the one given counts.
std::map<std::string, Resources> parse_resources(std::string_view text, int architecture);

struct Residency {
  std::uint32_t blocks = 0, warps = 0;  // of an SM
  double fraction = 0;                  // of the warps that it can hold
  const char* limit = "";  // what there is too little of: "registers", "shared memory", "warps", "blocks"
};
/// `shared` is static and dynamic shared memory of a block. No blocks fit if there are 0.
Residency residency(const Gpu& gpu, std::uint32_t registers, std::uint64_t shared, std::uint32_t threads);

enum class Bound : std::uint8_t { kBytes, kFma, kTensor, kShared, kIssue, kLatency };
const char* name_of(Bound bound);

/// Which part of the work dominates. The rule:
/// 1. Each part has a least time in clocks, if all SMs that have a block share the work evenly:
///    bytes: the larger of (different 32-byte sectors / rate of memory) and (sectors of all requests / rate
///    of L2); FMA: the larger of f32, f64, integer and special instructions of lanes over their rates;
///    tensor: products over their rate; shared: passes through the banks, one a clock; issue: instructions of
///    warps, four a clock.
/// 2. The largest dominates, unless there are too few warps to hide latencies: then it is latency. For bytes,
/// the
///    warps of an SM, each with one request under way, must have the bytes in flight that memory delivers in
///    600 clocks; for the others, an SM needs 16 warps (four schedulers, four clocks to a dependent
///    instruction), and tensor work 4.
struct Verdict {
  Bound bound = Bound::kLatency;
  double clocks[5] = {};  // by Bound, without kLatency
  double warps = 0;       // resident on an SM, on average
  double warps_needed = 0;
  std::string text;
};
Verdict verdict(const Gpu& gpu, const Counters& counters, const Residency& residency);

}  // namespace tapestry::ptx
