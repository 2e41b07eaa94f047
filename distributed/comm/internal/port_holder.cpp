#include "tapestry/distributed/comm/internal/port_holder.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

namespace tapestry::distributed {
namespace {

namespace fs = std::filesystem;

/// The inodes of the sockets that /proc/net/tcp lists for the port: only listening sockets if there are any.
std::set<std::string> sockets_at(int port) {
  std::set<std::string> listening, others;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line;
    std::getline(in, line);  // the heading
    while (std::getline(in, line)) {
      std::istringstream columns(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      columns >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >>
          inode;
      const std::size_t colon = local.rfind(':');
      if (colon == std::string::npos || std::strtol(local.c_str() + colon + 1, nullptr, 16) != port) continue;
      (state == "0A" ? listening : others).insert(inode);
    }
  }
  return listening.empty() ? others : listening;
}

std::string command_of(const fs::path& process) {
  std::ifstream in(process / "cmdline", std::ios::binary);
  std::string command(std::istreambuf_iterator<char>(in), {});
  while (!command.empty() && command.back() == '\0') command.pop_back();
  for (char& c : command)  // arguments are separated by zero bytes
    if (!std::isprint(static_cast<unsigned char>(c))) c = ' ';
  return command.size() <= 80 ? command : command.substr(0, 77) + "...";
}

}  // namespace

std::string port_holder(int port) {
  const std::set<std::string> sockets = sockets_at(port);
  if (sockets.empty()) return "";
  std::error_code error;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end;
       process.increment(error)) {
    const std::string id = process->path().filename().string();
    if (!std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isdigit(c); })) continue;
    std::error_code closed;  // the folders of other users' processes cannot be read
    for (fs::directory_iterator file(process->path() / "fd", closed), last; !closed && file != last;
         file.increment(closed)) {
      std::error_code gone;
      const std::string target = fs::read_symlink(file->path(), gone).string();
      if (target.starts_with("socket:[") && sockets.count(target.substr(8, target.size() - 9)))
        return "process " + id + " (" + command_of(process->path()) + ")";
    }
  }
  return "";
}

}  // namespace tapestry::distributed
