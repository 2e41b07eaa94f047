#include "tapestry/core/atomic_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/core/internal/lock_file.h"

namespace tapestry {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// Returns 16 random hexadecimal digits, or an empty string and errno.
std::string random_digits() {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits) return "";
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(bits));
  return digits;
}

/// Returns "a" for a temporary file's name "a.tmp-0123456789abcdef", and an empty string for other names.
/// Also accepts the names "a.tmp-PID-COUNTER" of earlier versions.
std::string target_of(const std::string& name) {
  const std::size_t mark = name.rfind(AtomicFile::kTemporaryMark);
  if (mark == std::string::npos) return "";
  const std::string suffix = name.substr(mark + AtomicFile::kTemporaryMark.size());
  const std::string decimal = "0123456789";
  const bool random =
      suffix.size() == 16 && suffix.find_first_not_of(decimal + "abcdef") == std::string::npos;
  const std::size_t dash = suffix.find('-');
  const bool earlier = dash != std::string::npos && dash > 0 && dash + 1 < suffix.size() &&
                       suffix.find_first_not_of(decimal) == dash &&
                       suffix.find_first_not_of(decimal, dash + 1) == std::string::npos;
  return random || earlier ? name.substr(0, mark) : "";
}

void remove_if_abandoned(const std::string& temporary) {
  std::string ignored;
  const int fd = open_regular_file(temporary, false, ignored);
  if (fd < 0) return;
  // If the writer has committed since the file was opened here, the file now has the name of the target.
  if (try_lock(fd) == LockState::held && is_file_at(fd, temporary)) ::unlink(temporary.c_str());
  ::close(fd);
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

  /// Creates the temporary file and locks it.
  void create() {
    for (int attempt = 0; attempt < 100; ++attempt) {
      const std::string digits = random_digits();
      if (digits.empty()) broken("no random name can be made");
      temporary = path + std::string(kTemporaryMark) + digits;
      fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
      if (fd < 0 && errno == EEXIST) continue;
      if (fd < 0) broken("cannot be created");
      const LockState state = try_lock(fd);
      // Without locks, remove_abandoned_files() deletes nothing, so the file is safe.
      if (state == LockState::unsupported) return;
      // remove_abandoned_files() of another thread or process can lock the new file first. It then deletes
      // the file, or already has.
      if (state == LockState::held && is_file_at(fd, temporary)) return;
      abandon();
    }
    errno = EAGAIN;
    broken("another process locks every new temporary file");
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
  s.create();
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
  // Closing the file drops its lock, so the file is renamed first. The fsync above has reported all errors
  // that close() could report.
  if (std::rename(s.temporary.c_str(), s.path.c_str()) != 0) {
    if (errno != ENOENT) s.broken("cannot be put in place");
    s.abandon();
    fail<IoError>("[write] ", s.path, ": cannot be put in place, because its folder or ", s.temporary,
                  " was removed meanwhile; keep other programs from removing them, and save again");
  }
  ::close(std::exchange(s.fd, -1));
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

void remove_abandoned_files(const std::string& folder,
                            const std::function<bool(const std::string&)>& is_target) {
  namespace fs = std::filesystem;
  std::vector<std::string> temporaries;  // collected first, because deleting may disturb the iteration
  std::error_code error;
  for (fs::directory_iterator file(folder, error); !error && file != fs::directory_iterator();
       file.increment(error)) {
    const std::string target = target_of(file->path().filename().string());
    if (!target.empty() && is_target(target)) temporaries.push_back(file->path().string());
  }
  for (const std::string& temporary : temporaries) remove_if_abandoned(temporary);
}

}  // namespace tapestry
