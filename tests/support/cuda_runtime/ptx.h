#pragma once
// Reads a kernel's parameters and launch bounds from the PTX in a fat binary. The stand-in runtime needs
// nothing else of the PTX.
#include <string>

#include "tests/support/cuda_runtime/control.h"

namespace stand_in {

/// Sets `parameters` and `max_threads` of the kernel. They are read from the first PTX text in its fat binary
/// that contains the kernel.
void read_entry(Kernel& kernel);

}  // namespace stand_in
