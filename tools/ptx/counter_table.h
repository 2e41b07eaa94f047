#pragma once
// The counters of a program's kernels: as a file that programs read, and as a table for people.
#include <map>
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

/// Blocks of this kernel that fit on a multiprocessor of an H100 (sm_90), and the part of its 64 warps that
/// they fill.
struct Occupancy {
  std::uint32_t blocks = 0;
  double part = 0;
};
Occupancy occupancy(const KernelRow& row);

/// What limits the kernel: the largest of the times that an H100 would need at least, by its data sheet, for
/// the bytes that must be moved, for the bytes that its requests move from L2, for its instructions, for its
/// products on tensor cores, for passes of shared memory; with the factor to the second one. "latency" if the
/// grid leaves most of the GPU empty.
std::string verdict(const KernelRow& row);

/// The table, with the accesses that waste most below it. Names are demangled.
std::string table(const std::vector<KernelRow>& rows);
/// "softmax_rows" of "_ZN3foo12softmax_rowsIfEEvPKfi".
std::string short_name(const std::string& symbol);

}  // namespace tapestry::ptx
