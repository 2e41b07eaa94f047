#pragma once
// The settings of the runtime, which a program reads from its environment when it makes the first call to
// CUDA. `tapestry-ptx run` sets these variables from its options.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/tools/ptx/machine.h"

namespace stand_in {

struct Settings {
  // TAPESTRY_PTX_DEVICES=N: the number of GPUs.
  int devices = 1;
  // TAPESTRY_PTX_MEMORY=BYTES: the memory of each GPU; K, M and G may follow the number.
  std::size_t memory = std::size_t{4} << 30;

  // TAPESTRY_PTX_CHECK=LIST: what is checked besides addresses, alignment, barriers and the arguments of
  // calls, which always are. A list of these words, or `all` or `none`; the default is all but `leaks`:
  //   initialised   reads of bytes of global and local memory that no one has written
  //   shared        the same for shared memory. Some kernels load tiles that are written in part only, and
  //                 drop the results of the rest, which are NaN
  //   races         accesses to the same bytes that nothing orders: of threads, blocks and streams
  //   leaks         memory, streams, events and graphs that the program does not release
  bool initialised = true, shared = true, races = true, leaks = false;
  // TAPESTRY_PTX_ALLOW=LIST: errors that are not reported, by a part of the symbol of their kernel, or by
  // FILE:LINE; of a race, either of the two lines.
  std::vector<std::string> allowed;

  // TAPESTRY_PTX_SCHEDULE=order (default) or random: the order of blocks, warps and threads, and of streams.
  // TAPESTRY_PTX_SEED=N: which random order; it implies random. 0 if the order is not random.
  std::uint64_t seed = 0;
  // TAPESTRY_PTX_APPROXIMATE=nearest (default), low or high: the results of approximate instructions.
  tapestry::ptx::Approximate approximate = tapestry::ptx::Approximate::kNearest;
  // TAPESTRY_PTX_LIMIT=N: a launch ends with an error after so many instructions of warps.
  std::uint64_t max_instructions = std::uint64_t{1} << 32;

  // TAPESTRY_PTX_TRACE=KERNEL:BLOCK:THREAD, such as saxpy:0:5 or step:(1,0,0):(3,2,0): prints the
  // instructions of this thread. The kernel is part of a name.
  std::string trace;
  // TAPESTRY_PTX_COUNTERS=FILE: at the end, a table of what each kernel executed is written to the file; `-`
  // is the standard error.
  std::string counters;
  // TAPESTRY_PTX_LAUNCHES=FILE: a line is appended for each kernel and block size that ran: the symbol, a
  // space, and the number of threads of a block. Tests of coverage read it.
  std::string launches;
  // TAPESTRY_PTX_SPEED=FILE: at the end, a line is appended: how many thread-instructions the kernels had, and
  // how many seconds of CPU time the machine took for them. `-` is the standard error.
  std::string speed;
  // TAPESTRY_PTX_REPORT=FILE: errors are written there; else to the standard error.
  std::string report;
  // TAPESTRY_PTX_EXIT=keep: the program keeps its own exit status. Else the status is 70 if there were
  // errors.
  bool keep_exit_status = false;
};

/// Reads the environment once. If a variable is wrong, a message says so and there are no GPUs, because a
/// check that was asked for must not be left out silently.
const Settings& settings();

/// Parses the value of a variable into `to`. Returns what is wrong with it, or an empty string. `name` has no
/// prefix: "CHECK". Programs such as tapestry-ptx check their options with it.
std::string parse_setting(const std::string& name, const std::string& value, Settings& to);

}  // namespace stand_in
