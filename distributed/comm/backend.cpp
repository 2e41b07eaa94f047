#include "tapestry/distributed/comm/backend.h"

#include "tapestry/core/stream.h"

namespace tapestry::distributed {

void Backend::all_to_all(const void* in, void* out, std::size_t bytes, Deadline deadline) {
  std::vector<ExchangePart> parts;
  for (std::size_t i = 0; i < static_cast<std::size_t>(size()); ++i)
    parts.push_back({.in = static_cast<const std::byte*>(in) + i * bytes,
                     .out = static_cast<std::byte*>(out) + i * bytes,
                     .in_bytes = bytes,
                     .out_bytes = bytes});
  all_to_all(parts, deadline);
}

void Backend::exchange(std::span<const MessagePart> messages, Deadline deadline) {
  for (const MessagePart& message : messages) {
    const StreamGuard guard(*message.stream);
    if (message.sends) send(message.data, message.bytes, message.peer, message.tag, deadline);
    else recv(message.data, message.bytes, message.peer, message.tag, deadline);
  }
}

}  // namespace tapestry::distributed
