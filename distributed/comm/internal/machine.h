#pragma once
// What this process may use of the machine it runs on.
#include <cstdint>
#include <optional>
#include <string>

namespace tapestry::distributed {

/// Cores that this process may keep busy: those of its affinity mask, and no more than its control group's
/// quota (`docker run --cpus`). At least 1.
int available_cores();

/// The number under `key` in a file of this process's control group (version 2), as the kernel writes
/// "key number" lines: cgroup_counter("memory.events", "oom_kill").
std::optional<std::int64_t> cgroup_counter(const std::string& file, const std::string& key);

}  // namespace tapestry::distributed
