#pragma once
// Declarations of variables and parameters.
#include <string_view>

#include "tapestry/tools/ptx/module.h"
#include "tapestry/tools/ptx/parser_tokens.h"

namespace tapestry::ptx {

/// A declaration that is right, but that the machine does not know.
struct Unsupported : ParseError {
  using ParseError::ParseError;
};

/// The state space that a directive such as ".shared" names; kGeneric if it names none.
Space named_space(std::string_view directive);

/// What follows ".param": ".align 4 .b8 name[16]". Parameters end at ',' or ')'.
Variable parse_parameter(Tokens& tokens);
/// What follows another state space: ".align 4 .b8 name[16] = {...}". Variables end at ',' or ';'.
Variable parse_variable(Tokens& tokens, Space space);

}  // namespace tapestry::ptx
