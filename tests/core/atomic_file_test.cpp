#include "tapestry/core/atomic_file.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tapestry/core/error.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using tests::FileSizeLimit;
using tests::read_file;
using tests::TempDir;

namespace {

std::size_t files_in(const TempDir& dir) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir.path())) ++count;
  return count;
}

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
