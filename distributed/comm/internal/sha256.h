#pragma once
// SHA-256 (FIPS 180-4) and HMAC (RFC 2104), with which two sides prove to each other that they hold the same
// secret. They are implemented here because no library that has them is present on every supported machine.
#include <cstddef>
#include <string>
#include <string_view>

namespace tapestry::distributed {

/// 32 bytes.
std::string sha256(std::string_view message);
std::string hmac_sha256(std::string_view key, std::string_view message);
/// Compares in constant time: the duration does not reveal where the texts differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);
/// Random bytes from the system's generator. Throws Error if there is none.
std::string random_bytes(std::size_t count);

}  // namespace tapestry::distributed
