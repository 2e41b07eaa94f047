#pragma once
// The machine that this process runs on, and the resources that the process may use.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tapestry::distributed {

/// The name of this host; empty if the system does not report one.
std::string host_name();

/// Identifies the running kernel: the same in all containers of a machine, and different after each boot.
/// Empty if the system does not report one.
std::string boot_id();

/// Identifies the machine. NCCL_HOSTID is part of the identity if it is set, because NCCL treats processes
/// with different values as processes on different hosts.
std::string machine_id();

/// True for names and addresses that always mean this host, such as localhost and 127.0.0.1.
bool is_loopback(std::string_view host);

/// The loopback address of this host: 127.0.0.1, or ::1 if no interface has the former and one has the
/// latter.
std::string loopback_host();

/// The number of cores that this process may use: the cores of its affinity mask, limited by the quota of its
/// cgroup (`docker run --cpus`). At least 1. `root` is the folder of /proc and /sys, which tests set.
int available_cores(const std::string& root = "");

/// Reads a counter of this process's cgroup (version 2), whose files hold lines "key number". Example:
/// cgroup_counter("memory.events", "oom_kill"). nullopt if the file or the key is missing.
std::optional<std::int64_t> cgroup_counter(const std::string& file, const std::string& key,
                                           const std::string& root = "");

}  // namespace tapestry::distributed
