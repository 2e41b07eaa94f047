#pragma once
// The little that the stand-in runtime reads of the PTX in a fat binary: a kernel's parameters and launch
// bounds.
#include <string>

#include "tests/support/cuda_runtime/control.h"

namespace stand_in {

/// Fills `parameters` and `max_threads` of the kernel from the first PTX of its fat binary that has it.
void read_entry(Kernel& kernel);

}  // namespace stand_in
