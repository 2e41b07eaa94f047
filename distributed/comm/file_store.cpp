// A store in one file. The file holds a magic line and then one record per change. Writers append under an
// exclusive lock, and readers hold a shared lock. A process that is killed while it writes leaves an
// incomplete last record, which readers ignore and the next writer truncates. Each call opens the file again,
// for two reasons: a forked process needs its own lock, because flock() locks belong to the open file, and a
// removed file is noticed.
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "tapestry/core/internal/lock_file.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/hash.h"
#include "tapestry/distributed/comm/internal/key_table.h"

namespace tapestry::distributed {
namespace {

constexpr std::string_view kMark = "tapestry store 1\n";
constexpr Milliseconds kLockTimeout{30'000};
constexpr std::uint32_t kErased = 0xffffffff;  // the value size of a record that erases its key

struct Record {
  std::uint64_t hash;  // of the rest of the record
  std::uint32_t key_size, value_size;
};

/// The open file, locked for the lifetime of this object.
class LockedFile {
 public:
  LockedFile(const std::string& path, int lock, bool create = false)
      : path_(path), fd_{open_regular_file(path, create, problem_)} {
    check<IoError>(fd_.value >= 0, "[store] file ", path_, " ", problem_, kAdvice);
    // Polls, because a lock held by a stopped process must not block all others for ever.
    const Deadline deadline = deadline_after(kLockTimeout);
    for (auto pause = std::chrono::microseconds(50); ::flock(fd_.value, lock | LOCK_NB) != 0;) {
      if (errno != EWOULDBLOCK && errno != EINTR) broken("cannot be locked");
      check<DistributedError>(Clock::now() < deadline, "[store] file ", path,
                              " has been locked by another process for ", kLockTimeout.count(),
                              " ms; look for a stopped process of this job");
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(500));
    }
  }

  struct stat status() const {
    struct stat status {};
    if (::fstat(fd_.value, &status) != 0) broken("cannot be read");
    return status;
  }

  /// Reads up to `bytes` bytes at `offset`.
  std::string read(std::uint64_t offset, std::size_t bytes) const {
    std::string out(bytes, '\0');
    std::size_t have = 0;
    while (have < bytes) {
      const ssize_t got =
          ::pread(fd_.value, out.data() + have, bytes - have, static_cast<off_t>(offset + have));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) broken("cannot be read");
      if (got == 0) break;
      have += static_cast<std::size_t>(got);
    }
    out.resize(have);
    return out;
  }

  /// Truncates the file at `offset`, and appends `bytes`.
  void write(std::uint64_t offset, std::string_view bytes) const {
    std::size_t wrote = 0;
    bool ok = ::ftruncate(fd_.value, static_cast<off_t>(offset)) == 0;
    while (ok && wrote < bytes.size()) {
      const ssize_t n =
          ::pwrite(fd_.value, bytes.data() + wrote, bytes.size() - wrote, static_cast<off_t>(offset + wrote));
      ok = n >= 0 || errno == EINTR;
      if (n > 0) wrote += static_cast<std::size_t>(n);
    }
    if (ok) return;
    const int error = errno;
    static_cast<void>(
        !::ftruncate(fd_.value, static_cast<off_t>(offset)));  // if this fails, the next writer truncates
    errno = error;
    broken("cannot be written");
  }

 private:
  [[noreturn]] void broken(const char* what) const {
    const int error = errno;
    fail<IoError>("[store] file ", path_, " ", what, ": ", std::strerror(error), kAdvice);
  }

  struct Descriptor {
    int value;
    ~Descriptor() {
      if (value >= 0) ::close(value);
    }
  };

  static constexpr const char* kAdvice =
      "; use a path that every rank can write to, and do not remove the file while the job runs";

  const std::string& path_;
  std::string problem_;  // declared before fd_, whose initializer fills it
  const Descriptor fd_;
};

class FileStore final : public Store {
 public:
  explicit FileStore(std::string path) : path_(std::move(path)) {
    const LockedFile file(path_, LOCK_EX, true);
    const std::string begin = file.read(0, kMark.size());
    check<IoError>(kMark.starts_with(begin), "[store] file ", path_,
                   " exists and is not a store of this version; choose another path");
    if (begin.size() < kMark.size()) file.write(0, kMark);  // the file is new, or its creator was killed
  }

  void set(std::string_view key, std::string_view value) override {
    check_key(key), check_value(value);
    const Change change(*this);
    change.put(key, value);
  }

  std::string get(std::string_view key, Milliseconds timeout) override {
    const Deadline deadline = deadline_after(timeout);
    for (Milliseconds pause{1};; pause = std::min(2 * pause, Milliseconds(20))) {
      if (std::optional<std::string> value = try_get(key)) return *std::move(value);
      const auto left = deadline - Clock::now();
      check<TimeoutError>(left > Clock::duration::zero(), "[store] key \"", key, "\" was not set within ",
                          timeout.count(), " ms in file ", path_,
                          "; check that the rank that sets it is running");
      std::this_thread::sleep_for(std::min<Clock::duration>(pause, left));
    }
  }

  std::optional<std::string> try_get(std::string_view key) override {
    check_key(key);
    const std::lock_guard lock(mutex_);
    const LockedFile file(path_, LOCK_SH);
    catch_up(file);
    const std::string* const value = table_.find(key);
    return value ? std::optional(*value) : std::nullopt;
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    check_key(key);
    const Change change(*this);
    const std::int64_t sum = table_.sum(key, amount);
    change.put(key, std::to_string(sum));
    return sum;
  }

  std::string compare_set(std::string_view key, std::optional<std::string_view> expected,
                          std::string_view desired) override {
    check_key(key), check_value(desired);
    const Change change(*this);
    if (table_.holds(key, expected)) change.put(key, desired);
    const std::string* const now = table_.find(key);
    return now ? *now : std::string();
  }

  bool erase(std::string_view key) override {
    check_key(key);
    const Change change(*this);
    if (!table_.find(key)) return false;
    change.put(key, std::nullopt);
    return true;
  }

  std::string str() const override { return "file " + path_; }

 private:
  /// A change of the store. It holds the exclusive lock while it exists. The constructor reads all earlier
  /// changes.
  struct Change {
    FileStore& store;
    const std::lock_guard<std::mutex> lock;
    const LockedFile file;

    explicit Change(FileStore& s) : store(s), lock(s.mutex_), file(s.path_, LOCK_EX) { s.catch_up(file); }

    void put(std::string_view key, std::optional<std::string_view> value) const {
      Record record{0, static_cast<std::uint32_t>(key.size()),
                    value ? static_cast<std::uint32_t>(value->size()) : kErased};
      std::string bytes(reinterpret_cast<const char*>(&record), sizeof record);
      bytes.append(key).append(value.value_or(""));
      record.hash = fnv1a(std::string_view(bytes).substr(sizeof record.hash));
      std::memcpy(bytes.data(), &record.hash, sizeof record.hash);
      file.write(store.end_, bytes);
      store.end_ += bytes.size();
      store.apply(key, value);
    }
  };

  void apply(std::string_view key, std::optional<std::string_view> value) {
    if (value) table_.set(key, *value);
    else table_.erase(key);
  }

  /// Applies the records that were added since the last call, up to the first incomplete one.
  void catch_up(const LockedFile& file) {
    const struct stat status = file.status();
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (end_ == 0) inode_ = status.st_ino, end_ = kMark.size();
    check<IoError>(status.st_ino == inode_ && size >= end_, "[store] file ", path_,
                   " was replaced or truncated while it was in use; use a different file for each job");
    while (size > end_) {
      const std::string header = file.read(end_, sizeof(Record));
      if (header.size() < sizeof(Record)) return;
      Record record;
      std::memcpy(&record, header.data(), sizeof record);
      const std::size_t value_size = record.value_size == kErased ? 0 : record.value_size;
      if (record.key_size > kMaxKey || value_size > kMaxValue) return;
      const std::string body = file.read(end_ + sizeof record, record.key_size + value_size);
      if (body.size() < record.key_size + value_size) return;
      if (fnv1a(header.substr(sizeof record.hash) + body) != record.hash) return;
      const std::string_view key = std::string_view(body).substr(0, record.key_size);
      if (record.value_size == kErased) apply(key, std::nullopt);
      else apply(key, std::string_view(body).substr(record.key_size));
      end_ += header.size() + body.size();
    }
  }

  const std::string path_;
  std::mutex mutex_;
  KeyTable table_;         // the content of the file up to end_
  std::uint64_t end_ = 0;  // 0 if nothing was read yet
  ino_t inode_ = 0;
};

}  // namespace

std::shared_ptr<Store> file_store(std::string path) { return std::make_shared<FileStore>(std::move(path)); }

}  // namespace tapestry::distributed
