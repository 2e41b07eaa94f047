#pragma once
// The alphabet in which GPT-2's files write bytes: printable characters of Latin-1 stand for themselves, the
// other 68 bytes for U+0100 and following (bytes_to_unicode() of openai/gpt-2).
#include <string>
#include <string_view>

namespace tapestry::data {

/// The bytes of a token. A text with characters outside the alphabet stands for itself.
std::string from_byte_alphabet(std::string_view text);
std::string to_byte_alphabet(std::string_view bytes);

}  // namespace tapestry::data
