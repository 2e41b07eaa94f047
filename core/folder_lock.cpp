#include "tapestry/core/folder_lock.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/core/internal/lock_file.h"

namespace tapestry {
namespace {

/// Describes this process for the messages of other processes.
std::string this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return concat({"process ", ::getpid(), " on host ", host[0] ? host.data() : "(unknown)"});
}

void record(int fd, const std::string& text) {
  // The record only serves messages, so a full disk is no error.
  if (::ftruncate(fd, 0) == 0) static_cast<void>(!::pwrite(fd, text.data(), text.size(), 0));
}

/// Returns the recorded holder, or a general description if the record is not one line of printable ASCII.
/// Others may have written the file.
std::string recorded(int fd) {
  std::array<char, 320> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  const std::string_view all(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  const std::string_view line = all.substr(0, all.find('\n'));
  bool printable = line.size() < all.size() && line.starts_with("process ");
  for (const char c : line) printable = printable && c >= ' ' && c <= '~';
  return printable ? std::string(line) : "another process";
}

void warn_of_no_locks(std::string_view op, const std::string& folder, const char* reason) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  const std::string text =
      concat({"[", op, "] warning: ", folder, " cannot be locked (", reason,
              "), so a second job that writes there is not noticed; start one job at a time there"});
  std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace

FolderLock::FolderLock(std::string_view op, const std::string& folder) {
  const std::string path = folder + "/.lock";
  std::string problem;
  LockState state = LockState::unsupported;
  for (int attempt = 0; attempt < 100; ++attempt) {
    errno = 0;
    fd_ = open_regular_file(path, true, problem);
    const bool denied = fd_ < 0 && errno == EACCES && ::access(path.c_str(), F_OK) == 0;
    check<IoError>(fd_ >= 0, "[", op, "] ", path, " ", problem,
                   denied
                       ? "; if another user of your group owns this file, let that user run chmod g+w on the "
                         "folder's files and start jobs with umask 002, or choose another folder"
                       : "; make the folder writable, remove that file if no job runs there, or choose "
                         "another folder");
    state = try_lock(fd_);
    // If the file was deleted before it was locked, another job may lock a new file of this name.
    if (state != LockState::held || is_file_at(fd_, path)) break;
    ::close(std::exchange(fd_, -1));
  }
  check<IoError>(fd_ >= 0, "[", op, "] ", path, " is deleted again and again; choose another folder");
  if (state == LockState::busy) {
    const std::string holder = recorded(fd_);
    ::close(std::exchange(fd_, -1));
    fail<IoError>("[", op, "] ", folder, " is in use by ", holder,
                  "; wait until it has ended, stop it, or choose another folder");
  }
  if (state == LockState::held) record(fd_, this_process() + "\n");
  else warn_of_no_locks(op, folder, std::strerror(errno));
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);  // drops the lock
}

}  // namespace tapestry
