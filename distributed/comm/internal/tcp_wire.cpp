#include "tapestry/distributed/comm/internal/tcp_wire.h"

#include "tapestry/distributed/comm/internal/sha256.h"

namespace tapestry::distributed::wire {
namespace {

void put_number(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> 8 * i & 0xff));
}

void put_text(std::string& out, std::string_view text) {
  put_number(out, text.size(), 4);
  out.append(text);
}

std::string framed(const std::string& body) {
  std::string out;
  out.reserve(kSize + body.size());
  put_text(out, body);
  return out;
}

/// Reads fields from the front. After the first field that is missing, all later reads fail.
struct Fields {
  std::string_view rest;
  bool ok = true;

  std::string_view take(std::size_t bytes) {
    ok = ok && bytes <= rest.size();
    if (!ok) return {};
    const std::string_view taken = rest.substr(0, bytes);
    rest.remove_prefix(bytes);
    return taken;
  }
  std::uint64_t number(std::size_t bytes) {
    const std::string_view taken = take(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < taken.size(); ++i)
      value |= std::uint64_t{static_cast<unsigned char>(taken[i])} << 8 * i;
    return value;
  }
  std::string text() { return std::string(take(number(4))); }
  bool done() const { return ok && rest.empty(); }
};

}  // namespace

std::string proof(Side side, std::string_view secret, std::string_view server_nonce,
                  std::string_view client_nonce) {
  std::string message(1, static_cast<char>(side));
  return hmac_sha256(secret, message.append(kGreeting).append(server_nonce).append(client_nonce));
}

std::string size_bytes(std::uint32_t size) {
  std::string bytes;
  put_number(bytes, size, kSize);
  return bytes;
}

std::uint32_t read_size(std::string_view bytes) {
  return static_cast<std::uint32_t>(Fields{bytes}.number(kSize));
}

std::string encode(const Request& request) {
  std::string body;
  put_number(body, static_cast<std::uint64_t>(request.op), 1);
  put_number(body, static_cast<std::uint64_t>(request.number), 8);
  put_number(body, request.expected.has_value(), 1);
  put_text(body, request.expected.value_or(""));
  put_text(body, request.key);
  put_text(body, request.value);
  return framed(body);
}

std::string encode(const Response& response) {
  std::string body;
  put_number(body, static_cast<std::uint64_t>(response.status), 1);
  return framed(body.append(response.value));
}

std::optional<Request> decode_request(std::string_view bytes) {
  Fields fields{bytes};
  Request request;
  const std::uint64_t op = fields.number(1);
  request.op = static_cast<Op>(op);
  request.number = static_cast<std::int64_t>(fields.number(8));
  const std::uint64_t has_expected = fields.number(1);
  std::string expected = fields.text();
  if (has_expected) request.expected = std::move(expected);
  request.key = fields.text();
  request.value = fields.text();
  const bool good = fields.done() && op <= static_cast<std::uint64_t>(Op::hold) && has_expected <= 1 &&
                    request.key.size() <= Store::kMaxKey && request.value.size() <= Store::kMaxValue;
  return good ? std::optional(std::move(request)) : std::nullopt;
}

std::optional<Response> decode_response(std::string_view bytes) {
  Fields fields{bytes};
  const std::uint64_t status = fields.number(1);
  if (!fields.ok || status > static_cast<std::uint64_t>(Status::full)) return {};
  return Response{static_cast<Status>(status), std::string(fields.rest)};
}

}  // namespace tapestry::distributed::wire
