#pragma once
// Registers that are read although nothing has written them.
#include <vector>

#include "tapestry/tools/ptx/module.h"

namespace tapestry::ptx {

/// The instructions that read a register which no other instruction writes. nvcc writes each register before
/// it is read, so they come from inline PTX: an operand that an instruction reads and writes was passed as
/// "=r" instead of
/// "+r".
std::vector<const Instruction*> reads_of_unwritten_registers(const Function& function);

}  // namespace tapestry::ptx
