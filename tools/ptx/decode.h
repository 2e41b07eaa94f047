#pragma once
// Decodes a kernel and the functions that it calls.
#include <functional>

#include "tapestry/tools/ptx/program.h"

namespace tapestry::ptx {

/// The address of a variable of the module in global or constant space; 0 if there is none.
using AddressOf = std::function<std::uint64_t(std::string_view)>;

/// Decodes the entry `function`. Throws a ParseError that names the line of an instruction that is unknown,
/// has wrong operands, or is not supported.
Program decode(const Module& module, const Function& function, const AddressOf& address_of);

/// The table entry of an opcode; false if the opcode is unknown. Control flow and mov are not in it.
bool find_entry(std::string_view opcode, Entry& entry);
/// The opcodes whose whole name decides what they do.
const Table& opcode_table();
/// A special register such as %tid.x. `width` are its bytes per lane, or 0 for a predicate.
struct Special {
  SpecialRow row{};
  std::uint8_t width = 4;
  bool is_clock = false;
};
/// False if the machine does not have it. Some can be read with 4 or 8 bytes; `width` is the wish, or -1.
bool find_special(std::string_view name, int width, Special& to);

}  // namespace tapestry::ptx
