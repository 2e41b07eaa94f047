#pragma once
// The limits of this process on memory, processes and threads, for error messages.
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace tapestry::detail {

// These functions read control groups (cgroups) of version 2 only. They look for /proc and /sys in the folder
// `root`, which tests set.

/// Returns the content of a file of this process's cgroup. If the cgroup does not have the file, returns the
/// content of the file of the topmost cgroup, which is the container's own cgroup in a container. Returns ""
/// if neither file exists.
std::string cgroup_file(const std::string& name, const std::string& root = "");

/// Returns the limits of memory that are set, such as " (ulimit -v is 1024 MiB; memory.max of its control
/// group is 512 MiB)". Returns "" if none is set.
std::string memory_limits(const std::string& root = "");

/// Returns the limits that can keep a process or a thread from being started, such as " (ulimit -u is 100
/// processes and threads of this user; pids.max of its control group is 64)". Returns "" if none is set.
std::string process_limits(const std::string& root = "");

[[noreturn]] void fail_to_start_thread(const char* op, const std::system_error& error);

/// Starts a thread that calls run(). Throws Error, which gives the limits of this process, if the system
/// cannot start one.
template <class F>
std::thread start_thread(const char* op, F&& run) {
  try {
    return std::thread(std::forward<F>(run));
  } catch (const std::system_error& error) {
    fail_to_start_thread(op, error);
  }
}

}  // namespace tapestry::detail
