#include "tapestry/distributed/comm/internal/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "tapestry/core/internal/limits.h"
#include "tapestry/distributed/comm/internal/sockets.h"

namespace tapestry::distributed {
std::string host_name() {
  char name[256] = "";
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::string machine_id() {
  const char* const host = std::getenv("NCCL_HOSTID");
  return host ? boot_id() + "-" + host : boot_id();
}

bool is_loopback(std::string_view host) {
  const bool in_127 = host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos;
  return in_127 || host == "localhost" || host == "::1";
}

std::string loopback_host() {
  const auto is_here = [](const char* address) { return address_towards(address) == address; };
  return !is_here("127.0.0.1") && is_here("::1") ? "::1" : "127.0.0.1";
}

int available_cores(const std::string& root) {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) cores = CPU_COUNT(&allowed);
  std::istringstream quota(detail::cgroup_file("cpu.max", root));  // "max 100000" or "150000 100000"
  double time = 0, period = 0;
  if (quota >> time >> period && time > 0 && period > 0)
    cores = static_cast<int>(std::min<double>(cores, std::ceil(time / period)));
  return std::max(cores, 1);
}

std::optional<std::int64_t> cgroup_counter(const std::string& file, const std::string& key,
                                           const std::string& root) {
  std::istringstream lines(detail::cgroup_file(file, root));
  std::string name;
  for (std::int64_t value; lines >> name >> value;) {
    if (name == key) return value;
  }
  return std::nullopt;
}

}  // namespace tapestry::distributed
