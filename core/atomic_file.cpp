#include "tapestry/core/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "tapestry/core/error.h"

namespace tapestry {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

struct AtomicFile::Impl {
  std::string path, temporary;
  int fd = -1;
  std::vector<char> buffer;

  // Abandons the file and throws. Later writes are refused, because the failed write may have left a gap.
  [[noreturn]] void broken(const char* what) {
    const int error = errno;
    abandon();
    fail<IoError>("[write] ", path, ": ", what, ": ", std::strerror(error),
                  error == ENOSPC || error == EDQUOT ? "; make room and try again"
                                                     : "; choose a folder that exists and can be written to");
  }

  void write_all(const char* data, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t wrote = ::write(fd, data, bytes);
      if (wrote < 0) {
        if (errno == EINTR) continue;
        broken("cannot be written");
      }
      data += wrote;
      bytes -= static_cast<std::size_t>(wrote);
    }
  }

  void flush() {
    write_all(buffer.data(), buffer.size());
    buffer.clear();
  }

  void check_open() const {
    check<IoError>(fd >= 0, "[write] ", path,
                   ": is closed, because it was committed or a write failed; open it again to write");
  }

  void abandon() noexcept {
    if (fd < 0) return;
    ::close(std::exchange(fd, -1));
    ::unlink(temporary.c_str());
  }
  ~Impl() { abandon(); }
};

AtomicFile::AtomicFile(std::string path) : impl_(std::make_unique<Impl>()) {
  static std::atomic<unsigned> counter{0};
  Impl& s = *impl_;
  s.path = std::move(path);
  check<IoError>(!s.path.empty() && s.path.back() != '/', "[write] \"", s.path,
                 "\" is not the name of a file; pass a name that does not end in /");
  struct stat status;
  const bool exists = ::stat(s.path.c_str(), &status) == 0;
  check<IoError>(!exists || !S_ISDIR(status.st_mode), "[write] ", s.path,
                 ": is a folder; pass the name of a file");
  check<IoError>(!exists || S_ISREG(status.st_mode), "[write] ", s.path,
                 ": is a device or a pipe, which this file would replace; choose another name");
  // The name is unique among the live processes and threads of this machine. A file that a dead process with
  // the same id left behind is overwritten.
  s.temporary =
      s.path + std::string(kTemporaryMark) + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  s.fd = ::open(s.temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (s.fd < 0) s.broken("cannot be created");
}

AtomicFile::~AtomicFile() = default;

void AtomicFile::write(const void* data, std::size_t bytes) {
  Impl& s = *impl_;
  s.check_open();
  const char* from = static_cast<const char*>(data);
  if (s.buffer.size() + bytes > kBufferBytes) s.flush();
  if (bytes >= kBufferBytes) s.write_all(from, bytes);
  else s.buffer.insert(s.buffer.end(), from, from + bytes);
}

void AtomicFile::commit() {
  Impl& s = *impl_;
  s.check_open();
  s.flush();
  // Some file systems report a full disk only here.
  if (::fsync(s.fd) != 0) s.broken("cannot be written");
  if (::close(std::exchange(s.fd, -1)) != 0 || std::rename(s.temporary.c_str(), s.path.c_str()) != 0) {
    const int error = errno;
    ::unlink(s.temporary.c_str());
    errno = error;
    s.broken("cannot be put in place");
  }
  // The rename is durable once the folder is synced. A failure is ignored: some network file systems cannot
  // sync folders.
  const int folder = ::open(folder_of(s.path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

const std::string& AtomicFile::temporary_path() const { return impl_->temporary; }

void write_file_atomically(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace tapestry
