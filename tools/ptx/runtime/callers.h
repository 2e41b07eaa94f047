#pragma once
#include <string>

namespace stand_in {

/// The functions of the program that led to the current call, innermost first: "\nhost: PROGRAM+0x1234
/// PROGRAM+0x5678", where the numbers are addresses in the file. Empty after reset(), because tests do not
/// need it. tapestry-ptx makes lines of the source of them.
std::string callers();

}  // namespace stand_in
