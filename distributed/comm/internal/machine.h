#pragma once
// The machine that this process runs on, and what it may use of it.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tapestry::distributed {

/// Empty where the system does not say.
std::string host_name();

/// Of the running kernel: the same in all containers of a machine, and another one after each boot. Empty
/// where the system does not say.
std::string boot_id();

/// A name or address by which a host reaches itself alone.
bool is_loopback(std::string_view host);

/// Cores that this process may keep busy: those of its affinity mask, and no more than its control group's
/// quota (`docker run --cpus`). At least 1.
int available_cores();

/// The number under `key` in a file of this process's control group (version 2), as the kernel writes
/// "key number" lines: cgroup_counter("memory.events", "oom_kill").
std::optional<std::int64_t> cgroup_counter(const std::string& file, const std::string& key);

}  // namespace tapestry::distributed
