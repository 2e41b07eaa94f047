#pragma once
// The protocol between a client of the TCP store and its server.
//
//   server: kGreeting, its nonce        client: its nonce, proof(client)       server: verdict, proof(server)
//   then, one at a time:                client: size, request                  server: size, response
//
// Sizes have 4 bytes. All numbers are little-endian. A side that receives anything else closes the
// connection.
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
/// An HMAC over both nonces and the side. The nonces prevent replay, and the side prevents reflection of the
/// proof to its sender.
std::string proof(Side side, std::string_view secret, std::string_view server_nonce,
                  std::string_view client_nonce);

enum class Op : std::uint8_t { set, get, try_get, add, compare_set, erase, hold };

struct Request {
  Op op = Op::set;
  std::int64_t number = 0;  // the amount to add for `add`, and the timeout in milliseconds for `get`
  std::optional<std::string>
      expected;  // the expected value for `compare_set`; nullopt expects that the key is absent
  std::string key, value;
};

enum class Status : std::uint8_t { ok, absent, timeout, refused, full };

struct Response {
  Status status = Status::ok;
  std::string value;  // the requested value, or the reason if the request was refused
};

constexpr std::size_t kMaxRequest = 64 + Store::kMaxKey + 2 * Store::kMaxValue;
constexpr std::size_t kMaxResponse = 64 + Store::kMaxKey + Store::kMaxValue;

std::string size_bytes(std::uint32_t size);
std::uint32_t read_size(std::string_view bytes);
/// The message, preceded by its size.
std::string encode(const Request& request);
std::string encode(const Response& response);
/// nullopt if `bytes` is not a valid message.
std::optional<Request> decode_request(std::string_view bytes);
std::optional<Response> decode_response(std::string_view bytes);

}  // namespace tapestry::distributed::wire
