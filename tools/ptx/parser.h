#pragma once
// Parses PTX text as nvcc writes it.
#include <string>
#include <vector>

#include "tapestry/tools/ptx/module.h"

namespace tapestry::ptx {

/// Parses the text of one PTX module. Throws a ParseError that names the line of a directive that is unknown
/// or wrong, of a register or variable that was not declared, and of a label that does not exist. Opcodes are
/// checked when a kernel is decoded.
Module parse(std::string text);

/// The PTX texts in the output of `cuobjdump -ptx`, or `text` itself if it is a module.
std::vector<std::string> split_modules(const std::string& text);

}  // namespace tapestry::ptx
