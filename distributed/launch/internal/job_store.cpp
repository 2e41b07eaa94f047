#include "tapestry/distributed/launch/internal/job_store.h"

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/machine.h"
#include "tapestry/distributed/comm/internal/sha256.h"

namespace tapestry::distributed::launch {

std::string secret_of(const LaunchOptions& o, const Variables& environment) {
  const auto given = environment.find("TAPESTRY_SECRET");
  if (given != environment.end() && !given->second.empty()) return given->second;
  if (o.nnodes == 1) return random_secret();
  check(is_loopback(o.host), "[tapestry-run] ", o.nnodes,
        " nodes need a secret, so that only ranks of the job can join: set TAPESTRY_SECRET to the same text "
        "on each node "
        "(openssl rand -hex 16 makes one)");
  return "";
}

std::string random_secret() {
  std::string text;
  for (const unsigned char byte : random_bytes(16)) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::unique_ptr<StoreServer> open_store(const LaunchOptions& o, const std::string& secret) {
  return start_store_server(is_loopback(o.host) ? o.host : "", o.port, {.secret = secret});
}

}  // namespace tapestry::distributed::launch
