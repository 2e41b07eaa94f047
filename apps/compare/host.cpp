#include "tapestry/apps/compare/host.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "tapestry/core/cuda/device.h"
#include "tapestry/core/device.h"

namespace apps::compare {

Host this_host() {
  Host host;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) {
      host.cpu = line.substr(line.find(": ") + 2);
      break;
    }
  host.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (const long pages = sysconf(_SC_PHYS_PAGES); pages > 0)
    host.memory_bytes = static_cast<std::int64_t>(pages) * sysconf(_SC_PAGESIZE);
  if (utsname name{}; uname(&name) == 0)
    host.os = std::string(name.sysname) + " " + name.release + " " + name.machine;
#ifdef __clang__
  host.compiler = "Clang " __clang_version__;
#else
  host.compiler = "GCC " __VERSION__;
#endif
  for (int i = 0; i < tapestry::device_count(tapestry::DeviceType::cuda); ++i)
    host.gpus.push_back(tapestry::cuda::device_properties({tapestry::DeviceType::cuda, i}).name);
  return host;
}

double load_average() {
  double one = -1;
  return getloadavg(&one, 1) == 1 ? one : -1;
}

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

}  // namespace apps::compare
