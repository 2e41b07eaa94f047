#pragma once
// Locks that the kernel drops when their holder ends, and the safe opening of files with known names.
#include <string>

namespace tapestry {

enum class LockState {
  held,        ///< this open file has the lock
  busy,        ///< another open file has it, in this process or another one
  unsupported  ///< the kernel or the file system has no such locks; errno says why
};

/// Tries to take the exclusive lock of an open file without waiting. It is an open file description lock
/// (F_OFD_SETLK, fcntl(2)): the kernel drops it when the last descriptor of this open file is closed, also if
/// the process is killed. Processes in other containers see it, and so do other hosts on NFSv4. `fd` must be
/// open for writing.
LockState try_lock(int fd) noexcept;

/// Returns true if the open file is the one that `path` names now.
bool is_file_at(int fd, const std::string& path) noexcept;

/// Opens a regular file for reading and writing. Never follows a symbolic link in the last component of
/// `path`, never waits for a FIFO, and refuses a file with a second hard link: in a folder that others can
/// write to, each of these can lead to a file elsewhere. Does not truncate. If `create` is
/// true, a missing file is created with mode 0666 and the umask. Returns the descriptor, which is
/// close-on-exec, or -1 with the reason in `problem`.
int open_regular_file(const std::string& path, bool create, std::string& problem);

}  // namespace tapestry
