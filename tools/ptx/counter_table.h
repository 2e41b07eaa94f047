#pragma once
// The counters of a program's kernels: as a file that programs read, and as a table for people.
#include <string>
#include <vector>

#include "tapestry/tools/ptx/counters.h"

namespace tapestry::ptx {

/// What a kernel did in all its launches.
struct KernelRow {
  std::string kernel;           // the symbol
  std::uint64_t block = 0;      // threads of a block, in the last launch
  std::uint64_t shared = 0;     // bytes of shared memory of a block, in the last launch
  std::uint32_t registers = 0;  // of a thread, as ptxas allocates them; 0 if unknown
  Counters counters;
};

/// Lines of fields that tabs separate. A line `kernel` has names and values (name=value); the lines `place`
/// after it are its instructions that access memory.
std::string to_text(const std::vector<KernelRow>& rows);
std::vector<KernelRow> rows_from_text(const std::string& text);

/// The part of the warps of an H100's multiprocessor that the kernel's blocks fill, by threads, shared
/// memory, and registers if they are known.
double occupancy(const KernelRow& row);
/// "bytes", or "latency, then bytes": what dominates on an H100, by the rule in gpu.h.
std::string verdict(const KernelRow& row);

/// The table, with the accesses that waste most below it. Names are demangled.
std::string table(const std::vector<KernelRow>& rows);
/// "softmax_rows" of "_ZN3foo12softmax_rowsIfEEvPKfi".
std::string short_name(const std::string& symbol);

}  // namespace tapestry::ptx
