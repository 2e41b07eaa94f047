#pragma once
// How two sides show each other that they hold the same secret: SHA-256 (FIPS 180-4) and HMAC (RFC 2104). Here,
// since no library that has them is on every machine this runs on.
#include <cstddef>
#include <string>
#include <string_view>

namespace tapestry::distributed {

/// 32 bytes.
std::string sha256(std::string_view message);
std::string hmac_sha256(std::string_view key, std::string_view message);
/// In a time that says nothing of where they differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);
/// From the system's generator. Throws Error if it has none.
std::string random_bytes(std::size_t count);

}  // namespace tapestry::distributed
