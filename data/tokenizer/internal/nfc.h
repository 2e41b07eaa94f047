#pragma once
// Unicode's normalization form C, by ICU.
#include <string>
#include <string_view>

namespace tapestry::data {

/// Composes the characters of valid UTF-8. Throws Error if the text has a character from U+0300 on and
/// Tapestry was built without ICU.
std::string to_nfc(std::string_view text);

}  // namespace tapestry::data
