#pragma once
// Keeps two jobs from writing to one folder at the same time.
#include <string>
#include <string_view>

namespace tapestry {

/// Holds the lock of a folder during its lifetime. The lock belongs to the file `.lock` in the folder, which
/// is created if it is missing and stays afterwards; the file contains the host and the process id of its
/// last holder. The kernel drops the lock if the holder dies, so a crash leaves nothing to clean up. Do not
/// delete the file while a job runs: the next job would create and lock another one.
///
/// The lock is an open file description lock (fcntl(2)). Other containers see it, and other hosts see it on
/// file systems that share locks, such as NFSv4. A child of fork() shares the lock and keeps it until the
/// child ends or calls exec.
class FolderLock {
 public:
  /// Locks `folder`, which must exist. Throws IoError if another FolderLock, in this process or another one,
  /// holds the lock; the text names the folder and the holder. Also throws IoError if the file cannot be
  /// opened, or is not a regular file with one hard link. Messages begin with [op]. If the kernel or the file
  /// system has no such locks, nothing is locked, and a warning is printed once per process.
  FolderLock(std::string_view op, const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace tapestry
