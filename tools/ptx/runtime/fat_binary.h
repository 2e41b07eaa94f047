#pragma once
// Reads fat binaries, which nvcc embeds in objects: the PTX in them, and a kernel's parameters and launch
// bounds.
#include <string>

#include "tapestry/tools/ptx/runtime/control.h"

namespace stand_in {

/// Sets `parameters` and `max_threads` of the kernel. They are read from the first PTX text in its fat binary
/// that contains the kernel.
void read_entry(Kernel& kernel);

/// The PTX in a fat binary for the newest GPU that is not newer than compute capability `major`.`minor`.
struct FoundPtx {
  std::string text;  // empty if there is none
  std::string why;   // why there is none, and how to compile the program
};
FoundPtx find_ptx(const void* fat_binary, int major, int minor);

}  // namespace stand_in
