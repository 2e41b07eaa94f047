#include "tapestry/core/internal/lock_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tapestry {

LockState try_lock(int fd) noexcept {
  struct flock lock {};  // from the start to the end of the file, however long it becomes
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  int result = 0;
  do result = ::fcntl(fd, F_OFD_SETLK, &lock);
  while (result != 0 && errno == EINTR);
  if (result == 0) return LockState::held;
  return errno == EAGAIN || errno == EACCES ? LockState::busy : LockState::unsupported;
}

bool is_file_at(int fd, const std::string& path) noexcept {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::lstat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

int open_regular_file(const std::string& path, bool create, std::string& problem) {
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  int fd = -1;
  // The file is opened or created in two calls. With O_CREAT alone, Linux refuses files of other users in
  // sticky folders (fs.protected_regular).
  for (int attempt = 0; fd < 0 && attempt < 100; ++attempt) {
    fd = ::open(path.c_str(), kFlags);
    if (fd >= 0 || errno != ENOENT || !create) break;
    fd = ::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0666);
    if (fd < 0 && errno != EEXIST) break;  // EEXIST: another process has just created it
  }
  if (fd < 0) {
    problem = errno == ELOOP   ? "is a symbolic link"
              : errno == ENXIO ? "is not a regular file"
                               : std::string("cannot be opened: ") + std::strerror(errno);
    return -1;
  }
  struct stat status {};
  if (::fstat(fd, &status) != 0) problem = std::string("cannot be read: ") + std::strerror(errno);
  else if (!S_ISREG(status.st_mode)) problem = "is not a regular file";
  else if (status.st_nlink > 1) problem = "has a second hard link";
  else return fd;
  ::close(fd);
  return -1;
}

}  // namespace tapestry
