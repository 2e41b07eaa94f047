#pragma once
// The machine that measures.
#include <cstdint>
#include <string>
#include <vector>

namespace apps::compare {

struct Host {
  std::string cpu;                ///< "AMD EPYC 9655"; empty if the system does not say
  int cores = 0;                  ///< logical ones
  std::int64_t memory_bytes = 0;  ///< 0 if the system does not say
  std::string os;                 ///< "Linux 6.1.0 x86_64"
  std::string compiler;           ///< of this program
  std::vector<std::string> gpus;
};
Host this_host();

/// The number of processes that ran or wanted to run, as the system's average over the last minute; below 0
/// if the system does not say.
double load_average();
/// The time of day in ISO 8601, "2026-11-28T09:30:00Z".
std::string time_now();

}  // namespace apps::compare
