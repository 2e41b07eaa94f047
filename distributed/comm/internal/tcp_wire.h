#pragma once
// What a client of the TCP store and its server say to each other.
//
//   server: kGreeting, its nonce        client: its nonce, proof(client)       server: verdict, proof(server)
//   then, one at a time:                client: size, request                  server: size, response
//
// Sizes are of 4 bytes, little-endian as all numbers. A side that hears anything else hangs up.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed::wire {

constexpr std::string_view kGreeting = "tapestry store 1";
constexpr std::size_t kNonce = 32;
constexpr std::size_t kProof = 32;
constexpr char kWelcome = 'y', kRefused = 'n';
constexpr std::size_t kSize = 4;

enum class Side : char { client = 'c', server = 's' };
/// Both nonces are in it, so that an answer serves once, and the side, so that it cannot be sent back.
std::string proof(Side side, std::string_view secret, std::string_view server_nonce,
                  std::string_view client_nonce);

enum class Op : std::uint8_t { set, get, try_get, add, compare_set, erase };

struct Request {
  Op op = Op::set;
  std::int64_t number = 0;              // add: the amount; get: milliseconds to wait
  std::optional<std::string> expected;  // compare_set
  std::string key, value;
};

enum class Status : std::uint8_t { ok, absent, timeout, refused, full };

struct Response {
  Status status = Status::ok;
  std::string value;  // refused: why
};

constexpr std::size_t kMaxRequest = 64 + Store::kMaxKey + 2 * Store::kMaxValue;
constexpr std::size_t kMaxResponse = 64 + Store::kMaxKey + Store::kMaxValue;

std::uint32_t read_size(std::string_view bytes);
/// With the size in front.
std::string encode(const Request& request);
std::string encode(const Response& response);
/// nullopt: `bytes` are none.
std::optional<Request> decode_request(std::string_view bytes);
std::optional<Response> decode_response(std::string_view bytes);

}  // namespace tapestry::distributed::wire
