#include "tapestry/core/atomic_file.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <regex>
#include <set>
#include <thread>

#include "tapestry/core/error.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/isolation.h"

using namespace tapestry;
using tests::FileSizeLimit;
using tests::read_file;
using tests::TempDir;
using tests::write_file;

namespace {

std::size_t files_in(const TempDir& dir) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir.path())) ++count;
  return count;
}

void remove_all_abandoned(const TempDir& dir) {
  remove_abandoned_files(dir.path().string(), [](const std::string&) { return true; });
}

/// A process that writes to `path` and never commits. wait() returns the name of its temporary file.
class Writer {
 public:
  explicit Writer(const std::string& path) {
    int name[2];
    REQUIRE(pipe(name) == 0);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      AtomicFile file(path);
      const std::string text = file.temporary_path();
      if (::write(name[1], text.data(), text.size()) < 0) _exit(1);
      close(name[0]);
      close(name[1]);
      for (;;) pause();
    }
    close(name[1]);
    char bytes[4096];
    for (ssize_t n; (n = ::read(name[0], bytes, sizeof bytes)) > 0;) temporary_.append(bytes, n);
    close(name[0]);
  }
  ~Writer() { kill_it(); }
  void kill_it() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  const std::string& temporary() const { return temporary_; }

 private:
  pid_t pid_ = -1;
  std::string temporary_;
};

/// A file that another open file has locked, as a writer does.
class LockedFile {
 public:
  explicit LockedFile(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    REQUIRE(fcntl(fd_, F_OFD_SETLK, &lock) == 0);
  }
  ~LockedFile() { close(fd_); }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

 private:
  int fd_;
};

}  // namespace

TEST_CASE("AtomicFile creates the file at commit, and leaves nothing without it") {
  const TempDir dir;
  const std::string path = dir / "file", large(3 << 20, 'x');
  {
    AtomicFile file(path);
    file.write("lost");
    CHECK_FALSE(std::filesystem::exists(path));
    CHECK(std::filesystem::exists(file.temporary_path()));
  }
  CHECK(files_in(dir) == 0);
  {
    AtomicFile file(path);
    file.write("a");
    file.write(large);  // larger than the buffer
    file.write("b");
    file.commit();
    CHECK_THROWS_AS(file.commit(), IoError);
    CHECK_THROWS_AS(file.write("c"), IoError);
  }
  CHECK(files_in(dir) == 1);
  CHECK(read_file(path) == "a" + large + "b");
  write_file_atomically(path, "");
  CHECK(read_file(path).empty());
  struct stat status {};
  REQUIRE(stat(path.c_str(), &status) == 0);
  const mode_t mask = umask(0);
  umask(mask);
  CHECK((status.st_mode & 0777) == (0666 & ~mask));
}

TEST_CASE("a failed AtomicFile leaves the old file and no temporary file") {
  const TempDir dir;
  const std::string path = dir / "file";
  write_file_atomically(path, "old");
  {
    const FileSizeLimit limit(1 << 20);
    AtomicFile file(path);
    const std::string half(700 << 10, 'x');
    file.write(half);
    CHECK_THROWS_WITH(file.write(half + half),
                      ContainsSubstring(path + ": cannot be written: File too large"));
  }
  {
    const FileSizeLimit limit(100);
    AtomicFile file(path);
    file.write(std::string(200, 'x'));
    CHECK_THROWS_AS(file.commit(), IoError);  // the buffered bytes are written here and exceed the limit
  }
  {
    AtomicFile file(path);
    {
      const FileSizeLimit limit(100);
      file.write(std::string(200, 'x'));
      CHECK_THROWS_AS(file.commit(), IoError);
    }
    // Half of the bytes were written before the failure. A later write would append after a gap, so it must
    // fail.
    CHECK_THROWS_WITH(file.write("y"), ContainsSubstring("open it again"));
    CHECK_THROWS_WITH(file.commit(), ContainsSubstring("open it again"));
  }
  CHECK(read_file(path) == "old");
  CHECK(files_in(dir) == 1);
  CHECK_THROWS_WITH(AtomicFile(dir / "absent/file"), ContainsSubstring("cannot be created: No such file"));
  CHECK_THROWS_WITH(AtomicFile(path + "/below"), ContainsSubstring("Not a directory"));
  CHECK_THROWS_AS(AtomicFile(""), IoError);
  CHECK_THROWS_AS(AtomicFile(dir.path().string() + "/"), IoError);
  std::filesystem::create_directory(dir / "folder");
  CHECK_THROWS_WITH(AtomicFile(dir / "folder"), ContainsSubstring("is a folder"));
  {
    AtomicFile late(dir / "late");
    std::filesystem::create_directory(dir / "late");
    CHECK_THROWS_WITH(late.commit(), ContainsSubstring("cannot be put in place"));
    std::filesystem::remove(dir / "late");
  }
  CHECK(files_in(dir) == 2);
  // A pipe or device must not be replaced by a file; root could lose /dev/null that way.
  REQUIRE(mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(write_file_atomically(dir / "pipe", "text"), ContainsSubstring("is a device or a pipe"));
  CHECK(std::filesystem::is_fifo(dir / "pipe"));
  CHECK(files_in(dir) == 3);
}

TEST_CASE("temporary names are random, and planted links are not followed") {
  const TempDir dir;
  const std::string path = dir / "file";
  std::set<std::string> names;
  const std::regex expected(R"(.*/file\.tmp-[0-9a-f]{16})");
  for (int i = 0; i < 20; ++i) {
    const AtomicFile file(path);
    CHECK(std::regex_match(file.temporary_path(), expected));
    names.insert(file.temporary_path());
  }
  CHECK(names.size() == 20);
  // A name made of the process id and a counter could be guessed.
  write_file(dir / "victim", "kept");
  for (int i = 0; i < 5000; ++i)
    std::filesystem::create_symlink(dir / "victim",
                                    path + ".tmp-" + std::to_string(getpid()) + "-" + std::to_string(i));
  write_file_atomically(path, "new");
  CHECK(read_file(dir / "victim") == "kept");
  CHECK(read_file(path) == "new");
  CHECK_FALSE(std::filesystem::is_symlink(path));
  // A link in the place of the target is replaced.
  std::filesystem::create_symlink(dir / "victim", dir / "target");
  write_file_atomically(dir / "target", "new");
  CHECK(read_file(dir / "victim") == "kept");
  CHECK_FALSE(std::filesystem::is_symlink(dir / "target"));
}

TEST_CASE("a temporary file is removed once its writer is dead, and not before") {
  const TempDir dir;
  AtomicFile own(dir / "own");
  own.write("own");
  Writer writer(dir / "other");
  REQUIRE(std::filesystem::exists(writer.temporary()));
  remove_all_abandoned(dir);
  CHECK(std::filesystem::exists(own.temporary_path()));
  CHECK(std::filesystem::exists(writer.temporary()));
  CHECK(tests::in_fork([&] { return remove_all_abandoned(dir), 0; }) == 0);
  CHECK(std::filesystem::exists(own.temporary_path()));
  writer.kill_it();
  CHECK(std::filesystem::exists(writer.temporary()));
  remove_abandoned_files(dir.path().string(), [](const std::string& target) { return target == "own"; });
  CHECK(std::filesystem::exists(writer.temporary()));
  remove_all_abandoned(dir);
  CHECK_FALSE(std::filesystem::exists(writer.temporary()));
  own.commit();
  CHECK(read_file(dir / "own") == "own");
  CHECK(files_in(dir) == 1);
  remove_abandoned_files(dir / "absent", [](const std::string&) { return true; });
}

TEST_CASE("clean-up in another PID namespace spares the file of a living writer") {
  const TempDir dir;
  AtomicFile file(dir / "file");
  file.write("text");
  const auto status = tests::in_new_pid_namespace([&] { return remove_all_abandoned(dir), 0; });
  if (!status) WARN("skipped: the kernel permits no new PID namespace");
  CHECK(status.value_or(0) == 0);
  CHECK(std::filesystem::exists(file.temporary_path()));
  file.commit();
  CHECK(read_file(dir / "file") == "text");
}

TEST_CASE("the lock decides about a leftover file, whatever process id its name contains") {
  const TempDir dir;
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  REQUIRE(waitpid(dead, nullptr, 0) == dead);
  const std::string alive_name = dir / ("file.tmp-" + std::to_string(getpid()) + "-0");
  const std::string dead_name = dir / ("file.tmp-" + std::to_string(dead) + "-0");
  write_file(alive_name, "x");
  const LockedFile held(dead_name);
  std::vector<std::string> others;
  for (const char* name : {"file.tmp-", "file.tmp-backup", "file.tmp-12", "file.tmp-1-", "file.tmp--1",
                           "file.tmp-1-2-3", "file.tmp-0123456789abcde", "file.tmp-0123456789abcdef0",
                           "file.tmp-0123456789abcdeF", ".tmp-0123456789abcdef", "file"})
    write_file(others.emplace_back(dir / name), "x");
  write_file(dir / "victim", "kept");
  std::filesystem::create_symlink(dir / "victim", others.emplace_back(dir / "file.tmp-0000000000000001"));
  REQUIRE(mkfifo(others.emplace_back(dir / "file.tmp-0000000000000002").c_str(), 0600) == 0);
  std::filesystem::create_directory(others.emplace_back(dir / "file.tmp-0000000000000003"));
  remove_all_abandoned(dir);
  CHECK_FALSE(std::filesystem::exists(alive_name));
  CHECK(std::filesystem::exists(dead_name));
  for (const std::string& path : others) {
    CAPTURE(path);
    CHECK(std::filesystem::exists(std::filesystem::symlink_status(path)));
  }
  CHECK(read_file(dir / "victim") == "kept");
}

TEST_CASE("clean-up that runs all the time never removes a file that is being written") {
  const TempDir dir;
  std::atomic<bool> stop{false};
  std::vector<std::thread> cleaners;
  for (int i = 0; i < 2; ++i)
    cleaners.emplace_back([&] {
      while (!stop) remove_all_abandoned(dir);
    });
  // For about one file in 1,000, a clean-up runs between creating and locking the file.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  int written = 0, lost = 0;
  std::string error;
  while (written < 6000 && error.empty() && std::chrono::steady_clock::now() < end) {
    try {
      AtomicFile file(dir / "file");
      if (!std::filesystem::exists(file.temporary_path())) ++lost;
      // A commit is rare, because it waits for the disk, and the clean-ups go on meanwhile.
      if (++written % 500 == 0) file.write(std::to_string(written)), file.commit();
    } catch (const IoError& e) {
      error = e.what();
    }
  }
  stop = true;
  for (std::thread& t : cleaners) t.join();
  CHECK(error == "");
  CHECK(lost == 0);
  CHECK(written > 0);
}

TEST_CASE("without file locks, files are written, and no leftover file is removed") {
  const TempDir dir;
  write_file(dir / "file.tmp-0123456789abcdef", "x");
  const int status = tests::in_fork([&] {
    if (!tests::forbid_locks()) return 2;
    write_file_atomically(dir / "file", "text");
    remove_all_abandoned(dir);
    return 0;
  });
  if (status == 2) {
    WARN("skipped: the kernel permits no filter of system calls");
    return;
  }
  CHECK(status == 0);
  CHECK(read_file(dir / "file") == "text");
  CHECK(files_in(dir) == 2);
}

TEST_CASE("a temporary file that another program removed is an error, and the old file stays") {
  const TempDir dir;
  write_file_atomically(dir / "file", "old");
  AtomicFile file(dir / "file");
  file.write("new");
  std::filesystem::remove(file.temporary_path());
  CHECK_THROWS_WITH(file.commit(), ContainsSubstring("was removed meanwhile"));
  CHECK_THROWS_WITH(file.write("x"), ContainsSubstring("open it again"));
  CHECK(read_file(dir / "file") == "old");
}

TEST_CASE("a process killed while it writes leaves the old file or the new one") {
  const TempDir dir;
  const std::string path = dir / "file";
  // Version v is 2 MiB of one letter. The child writes version after version until it is killed.
  auto version = [](int v) { return std::string(2 << 20, static_cast<char>('a' + v % 26)); };
  write_file_atomically(path, version(0));
  int last = 0;
  for (int round = 0; round < 12; ++round) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (int v = last + 1;; ++v) write_file_atomically(path, version(v));
    }
    usleep(static_cast<useconds_t>(1000 + 2700 * round));
    REQUIRE(kill(child, SIGKILL) == 0);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    const std::string now = read_file(path);
    REQUIRE(now.size() == std::size_t{2} << 20);
    CHECK(now == std::string(now.size(), now[0]));
    last = now[0] - 'a';
  }
}
