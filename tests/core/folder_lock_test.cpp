#include "tapestry/core/folder_lock.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <optional>

#include "tapestry/core/error.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/isolation.h"

using namespace tapestry;
using tests::read_file;
using tests::TempDir;
using tests::write_file;

namespace {

std::string host() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Returns the error of locking `folder`, or an empty string if the lock was taken.
std::string refusal(const std::string& folder) try {
  const FolderLock lock("job", folder);
  return "";
} catch (const IoError& e) {
  return e.what();
}

/// A process that locks `folder` and then waits until it is killed.
class Holder {
 public:
  explicit Holder(const std::string& folder) {
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      std::optional<FolderLock> lock;
      try {
        lock.emplace("job", folder);
      } catch (const Error&) {
        _exit(1);
      }
      close(ready[0]);
      close(ready[1]);
      for (;;) pause();
    }
    close(ready[1]);
    char byte;
    REQUIRE(read(ready[0], &byte, 1) == 0);  // the holder has closed its end
    close(ready[0]);
  }
  ~Holder() { kill_it(); }
  void kill_it() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

}  // namespace

TEST_CASE("a second lock of a folder is refused and names the folder and the holder") {
  const TempDir dir;
  const std::string folder = dir.path().string();
  const std::string here = "process " + std::to_string(getpid()) + " on host " + host();
  {
    const FolderLock lock("job", folder);
    CHECK(read_file(dir / ".lock") == here + "\n");
    const std::string text = refusal(folder);
    CHECK_THAT(text, ContainsSubstring("[job] " + folder + " is in use by " + here + "; "));
    CHECK_THAT(text, ContainsSubstring("choose another folder"));
    CHECK(refusal(folder) == text);  // a refused attempt does not release the lock
    CHECK(tests::in_fork([&] { return refusal(folder) == text ? 0 : 1; }) == 0);
  }
  CHECK(refusal(folder).empty());
}

TEST_CASE("the lock of a killed process vanishes with it") {
  const TempDir dir;
  const std::string folder = dir.path().string();
  for (int round = 0; round < 3; ++round) {
    Holder holder(folder);
    CHECK_THAT(refusal(folder), ContainsSubstring("process " + std::to_string(holder.pid()) + " on host "));
    holder.kill_it();
    CHECK(refusal(folder).empty());
  }
}

TEST_CASE("a process in another PID namespace sees the lock") {
  const TempDir dir;
  const std::string folder = dir.path().string();
  const FolderLock lock("job", folder);
  const auto status = tests::in_new_pid_namespace([&] { return refusal(folder).empty() ? 1 : 0; });
  if (!status) WARN("skipped: the kernel permits no new PID namespace");
  CHECK(status.value_or(0) == 0);
}

TEST_CASE("a forged record neither takes a folder nor frees it") {
  const TempDir dir;
  const std::string folder = dir.path().string();
  const std::string alive = "process " + std::to_string(getpid()) + " on host " + host() + "\n";
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  REQUIRE(waitpid(dead, nullptr, 0) == dead);
  write_file(dir / ".lock", alive);  // this process lives, but has no lock
  CHECK(refusal(folder).empty());

  const Holder holder(folder);
  write_file(dir / ".lock", "process " + std::to_string(dead) + " on host " + host() + "\n");
  CHECK_THAT(refusal(folder), ContainsSubstring("is in use by process " + std::to_string(dead)));
  for (const std::string& record : {std::string(), std::string("process 1"), std::string("process \x1b[2J\n"),
                                    std::string("\xff\n"), "process " + std::string(5000, '9') + "\n",
                                    std::string("process 1\0on host\n", 18), std::string("root\n")}) {
    write_file(dir / ".lock", record);
    CHECK_THAT(refusal(folder), ContainsSubstring("is in use by another process; "));
  }
}

TEST_CASE("a program that was started while the lock was held does not keep it") {
  const TempDir dir;
  const std::string folder = dir.path().string();
  pid_t child = -1;
  {
    const FolderLock lock("job", folder);
    int started[2];
    REQUIRE(pipe2(started, O_CLOEXEC) == 0);
    child = fork();
    if (child == 0) {
      execlp("sleep", "sleep", "60", nullptr);
      _exit(1);
    }
    close(started[1]);
    char byte;
    REQUIRE(read(started[0], &byte, 1) == 0);  // exec has closed the child's end
    close(started[0]);
  }
  CHECK(refusal(folder).empty());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_CASE("a lock file that is a link, a FIFO or a folder is refused and left alone") {
  const TempDir dir;
  const std::string folder = dir / "run", lock = folder + "/.lock";
  std::filesystem::create_directory(folder);
  write_file(dir / "victim", "kept");
  SECTION("a symbolic link") {
    std::filesystem::create_symlink(dir / "victim", lock);
    CHECK_THAT(refusal(folder), ContainsSubstring("[job] " + lock + " is a symbolic link; "));
  }
  SECTION("a dangling symbolic link") {
    std::filesystem::create_symlink(dir / "absent", lock);
    CHECK_THAT(refusal(folder), ContainsSubstring("is a symbolic link"));
    CHECK_FALSE(std::filesystem::exists(dir / "absent"));
  }
  SECTION("a hard link") {
    std::filesystem::create_hard_link(dir / "victim", lock);
    CHECK_THAT(refusal(folder), ContainsSubstring("has a second hard link"));
  }
  SECTION("a FIFO") {
    REQUIRE(mkfifo(lock.c_str(), 0600) == 0);
    CHECK_THAT(refusal(folder), ContainsSubstring("is not a regular file"));
  }
  SECTION("a folder") {
    std::filesystem::create_directory(lock);
    CHECK_THAT(refusal(folder), ContainsSubstring("Is a directory"));
  }
  SECTION("no folder to lock") {
    CHECK_THAT(refusal(folder + "/absent"), ContainsSubstring("No such file or directory"));
  }
  CHECK(read_file(dir / "victim") == "kept");
}

TEST_CASE("a lock file is created with the umask, and another user is told which rights are missing") {
  const TempDir dir;
  const std::string folder = dir / "run", file = folder + "/.lock";
  std::filesystem::create_directory(folder);
  const auto mode_under = [&](mode_t mask) {
    std::filesystem::remove(file);
    const mode_t before = umask(mask);
    CHECK(refusal(folder).empty());
    umask(before);
    struct stat status {};
    CHECK(stat(file.c_str(), &status) == 0);
    return status.st_mode & 0777;
  };
  CHECK(mode_under(002) == 0664);
  CHECK(mode_under(027) == 0640);
  chmod(file.c_str(), 0444);
  chmod(dir.path().c_str(), 0755);
  chmod(folder.c_str(), 0777);
  std::string text;
  CHECK(tests::in_fork([&] {
          if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return 2;  // root may write to any file
          text = refusal(folder);
          const bool told = text.find("cannot be opened: Permission denied") != std::string::npos &&
                            text.find("chmod g+w") != std::string::npos &&
                            text.find("umask 002") != std::string::npos;
          return told ? 0 : 1;
        }) == 0);
}

TEST_CASE("a folder lock without file locks warns once (child)", "[.child]") {
  const TempDir dir;
  if (!tests::forbid_locks()) {
    std::printf("skipped: the kernel permits no filter of system calls\n");
    return;
  }
  const FolderLock one("job", dir.path().string()), two("job", dir.path().string());
}

TEST_CASE("a folder lock without file locks warns once") {
  const ChildResult result = run_child("a folder lock without file locks warns once (child)");
  CHECK(result.status == 0);
  if (result.output.find("skipped") != std::string::npos) {
    WARN(result.output);
    return;
  }
  CHECK_THAT(result.output, ContainsSubstring("[job] warning: ") &&
                                ContainsSubstring("cannot be locked (No locks available), so a second job"));
  CHECK(result.output.find("warning") == result.output.rfind("warning"));
}
