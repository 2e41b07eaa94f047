#include "tapestry/core/internal/limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "tapestry/core/error.h"

namespace tapestry::detail {
namespace {

/// Returns the folders of this process's cgroup and of its ancestors, innermost first. /proc/self/cgroup
/// holds the line "0::/path", also if version 1 has all controllers; no file of a limit exists then. In a
/// container, that path may belong to the host; the container's own cgroup is then mounted at /sys/fs/cgroup.
std::vector<std::string> cgroup_folders(const std::string& root) {
  std::string path;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::/")) path = line.substr(3);
  }
  std::vector<std::string> folders;
  for (; path.size() > 1; path.resize(path.rfind('/')))
    folders.push_back(root + "/sys/fs/cgroup" + path + "/");
  folders.push_back(root + "/sys/fs/cgroup/");
  return folders;
}

std::string content(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  return in && text << in.rdbuf() ? text.str() : "";
}

/// Returns the number that `text` holds, without a sign and with at most a newline after it. "max" is no
/// number.
std::optional<std::int64_t> number_in(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// Returns the smallest limit that the cgroup and its ancestors set in this file, if one sets a limit.
std::optional<std::int64_t> cgroup_limit(const char* name, const std::string& root) {
  std::optional<std::int64_t> smallest;
  for (const std::string& folder : cgroup_folders(root)) {
    if (const auto limit = number_in(content(folder + name)))
      smallest = std::min(smallest.value_or(*limit), *limit);
  }
  return smallest;
}

std::optional<std::int64_t> ulimit(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

class List {
 public:
  void add(const char* name, std::optional<std::int64_t> limit, const char* unit, int shift = 0) {
    if (!limit) return;
    text_ += concat({text_.empty() ? " (" : "; ", name, " is ", *limit >> shift, unit});
  }
  std::string str() const { return text_.empty() ? "" : text_ + ")"; }

 private:
  std::string text_;
};

}  // namespace

std::string cgroup_file(const std::string& name, const std::string& root) {
  const std::vector<std::string> folders = cgroup_folders(root);
  const std::string own = content(folders.front() + name);
  return own.empty() ? content(folders.back() + name) : own;
}

std::string memory_limits(const std::string& root) {
  List list;
  list.add("ulimit -v", ulimit(RLIMIT_AS), " MiB", 20);
  list.add("memory.max of its control group", cgroup_limit("memory.max", root), " MiB", 20);
  return list.str();
}

std::string process_limits(const std::string& root) {
  List list;
  list.add("ulimit -u", ulimit(RLIMIT_NPROC), " processes and threads of this user");
  list.add("pids.max of its control group", cgroup_limit("pids.max", root), "");
  list.add("ulimit -v", ulimit(RLIMIT_AS), " MiB", 20);
  return list.str();
}

void fail_to_start_thread(const char* op, const std::system_error& error) {
  fail<Error>("[", op, "] cannot start a thread: ", error.code().message(), process_limits(),
              "; raise the limit, or use fewer ranks, loader workers and compute threads");
}

}  // namespace tapestry::detail
