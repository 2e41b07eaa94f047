#include "tapestry/distributed/launch/job_store.h"

#include <sys/random.h>

#include "tapestry/core/error.h"

namespace tapestry::distributed::launch {
namespace {

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

std::string secret_of(const LaunchOptions& o, const Variables& environment) {
  const auto given = environment.find("TAPESTRY_SECRET");
  if (given != environment.end() && !given->second.empty()) return given->second;
  if (o.nnodes == 1) return random_secret();
  check(is_loopback(o.host), "[tapestry-run] ", o.nnodes,
        " nodes need a secret, so that no stranger joins: set TAPESTRY_SECRET to the same text on each node "
        "(openssl rand -hex 16 makes one)");
  return "";
}

std::string random_secret() {
  unsigned char bytes[16];
  check<Error>(getrandom(bytes, sizeof bytes, 0) == sizeof bytes,
               "[tapestry-run] the kernel gave no random bytes for a secret; set TAPESTRY_SECRET");
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::unique_ptr<StoreServer> open_store(const LaunchOptions& o, const std::string& secret) {
  return start_store_server(is_loopback(o.host) ? o.host : "", o.port, {.secret = secret});
}

}  // namespace tapestry::distributed::launch
