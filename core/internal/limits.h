#pragma once
// The limits of this process on memory, processes and threads, for error messages.
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace tapestry::detail {

/// The content of a file of this process's cgroup (version 2), or "" if there is none.
std::string cgroup_file(const std::string& name);

/// " (ulimit -v is 1024 MiB; memory.max of its control group is 512 MiB)": the limits that are set, or "".
std::string memory_limits();

/// " (ulimit -u is 100 processes and threads of this user; ...)": the limits that can keep a process or a
/// thread from being started, or "" if none is set.
std::string process_limits();

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
