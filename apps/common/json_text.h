#pragma once
// Writes JSON without the library that reads it, which takes seconds to compile.
#include <string>
#include <string_view>

namespace apps {

/// A string of JSON, in quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);
/// A number with five digits, or null if it is not finite, because JSON has no such numbers.
std::string json_number(double value);

}  // namespace apps
