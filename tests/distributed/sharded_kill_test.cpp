// Ends or fails the writer of a sharded checkpoint at each of its calls of the file system.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tests/core/child.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"
#include "tests/support/row_sharding.h"

#ifdef __linux__

namespace {

enum class At { nothing, kill, fail };
std::atomic<At> g_action{At::nothing};
std::atomic<int> g_calls{0};  // until the call at which the action is taken

// True if the action is to be taken at this call.
bool is_reached() { return g_action != At::nothing && g_calls.fetch_sub(1) == 0; }

// Says it without buffers, because the process may be killed next.
void say(const std::string& text) { syscall(SYS_write, STDOUT_FILENO, text.data(), text.size()); }

int result_of(long result) {
  if (result >= 0) return static_cast<int>(result);
  return -1;  // syscall() has set errno
}

// True if the call is to fail as on a full disk. Does not return if the process is to die.
bool fails(const char* call, const char* path) {
  if (!is_reached()) return false;
  if (g_action == At::kill) {
    say(std::string("killed before ") + call + " " + path + "\n");
    std::raise(SIGKILL);
  }
  errno = ENOSPC;
  return true;
}

}  // namespace

// These take the place of the C library's functions in the test program and in the libraries that it loads.
extern "C" {
__attribute__((visibility("default"))) ssize_t write(int fd, const void* data, size_t bytes) {
  if (is_reached()) {
    const long half = syscall(SYS_write, fd, data, bytes / 2);  // the disk takes a part
    if (g_action == At::kill) {
      say("killed during write\n");
      std::raise(SIGKILL);
    }
    static_cast<void>(half);
    errno = ENOSPC;
    return -1;
  }
  return syscall(SYS_write, fd, data, bytes);
}
__attribute__((visibility("default"))) int fsync(int fd) {
  return fails("fsync", "") ? -1 : result_of(syscall(SYS_fsync, fd));
}
__attribute__((visibility("default"))) int rename(const char* from, const char* to) noexcept {
  if (fails("rename", to)) return -1;
  const int result = result_of(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  if (g_action == At::kill && std::string(to).ends_with("index.json")) say("the index is there\n");
  return result;
}
__attribute__((visibility("default"))) int unlink(const char* path) noexcept {
  return fails("unlink", path) ? -1 : result_of(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
__attribute__((visibility("default"))) int remove(const char* path) noexcept {
  if (fails("remove", path)) return -1;
  const int result = result_of(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
  if (result == 0 || errno != EISDIR) return result;
  return result_of(syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}
__attribute__((visibility("default"))) int mkdir(const char* path, mode_t mode) noexcept {
  return fails("mkdir", path) ? -1 : result_of(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
}  // extern "C"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using distributed_test::Group, distributed_test::kBounded;
using tests::TempDir;
namespace fs = std::filesystem;

namespace {

constexpr int kRanks = 2;

/// A model whose weights say at which step they were saved.
struct Small : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 3, .out_features = 5});
  explicit Small(double value) {
    const NoGradGuard no_grad;
    for (const nn::Parameter& p : parameters()) p->fill_(value);
  }
};

/// The error of each rank, or "".
std::vector<std::string> save(const std::string& folder, std::int64_t step, double value, int keep_last) {
  std::vector<std::string> errors(kRanks);
  run_local_ranks(
      kRanks,
      [&](const Group& group) {
        Small net(value);
        tests::shard_rows(net, group->rank(), kRanks);
        try {
          ShardedCheckpointer(folder, group, {.keep_last = keep_last}).save(&net, {.step = step});
        } catch (const Error& e) {
          errors[static_cast<std::size_t>(group->rank())] = e.what();
        }
      },
      kBounded);
  return errors;
}

/// The value of all weights, or -1 if the checkpoint is refused.
double loaded(const std::string& path) {
  Small net(-1);
  try {
    load_sharded(path, &net);
  } catch (const IoError&) {
  }
  const double value = net.a.bias->select(0, 0).item();
  for (const nn::Parameter& p : net.parameters())
    for (const double x : to_vector(p))
      if (x != value) throw std::runtime_error("mixed steps in " + path);
  return value;
}

// Replacing a checkpoint of the same step, and writing a later one, after which the older one is removed.
struct Case {
  const char* name;
  std::int64_t step;
};
constexpr Case kCases[] = {{"replaced", 1}, {"next", 2}};

}  // namespace

TEST_CASE("a writer that is killed at any call of the file system leaves the old checkpoint or the new one") {
  const TempDir dir;
  for (const Case& c : kCases) {
    int points = 0, old_ones = 0;
    for (bool killed = true; killed; ++points) {
      REQUIRE(points < 100);
      const std::string folder = dir / (c.name + std::to_string(points));
      REQUIRE(save(folder, 1, 1, 1) == std::vector<std::string>(kRanks));
      const ChildResult child = run_child(
          "the writer that dies at a call",
          "FOLDER='" + folder + "' CALLS=" + std::to_string(points) + " STEP=" + std::to_string(c.step));
      INFO(c.name << ", call " << points << ": " << child.output);
      killed = child.output.find("not killed") == std::string::npos;
      CHECK((child.status != 0) == killed);
      if (killed) CHECK_THAT(child.output, ContainsSubstring("killed "));
      const bool complete = child.output.find("the index is there") != std::string::npos;
      if (!complete) ++old_ones;
      const auto latest = ShardedCheckpointer(folder, nullptr).latest();
      REQUIRE(latest);
      CHECK(loaded(*latest) == (complete ? 2 : 1));
      if (!complete && c.step == 2) CHECK(loaded(folder + "/step-00000002") == -1);
      // The next job cleans up and goes on.
      CHECK(save(folder, 2, 3, 1) == std::vector<std::string>(kRanks));
      CHECK(loaded(folder + "/step-00000002") == 3);
      CHECK_FALSE(fs::exists(folder + "/step-00000001"));
      CHECK(std::distance(fs::directory_iterator(folder + "/step-00000002"), fs::directory_iterator()) ==
            kRanks + 1);
    }
    INFO(points << " calls");
    // A rank writes, syncs and renames its shard, and rank 0 the index; then rank 0 removes what is old.
    CHECK(old_ones >= 3 * kRanks + 3);
    CHECK(points - old_ones >= kRanks + 1);
  }
}

TEST_CASE("the writer that dies at a call", "[.]") {
  const std::string folder = std::getenv("FOLDER");
  const std::int64_t step = std::atol(std::getenv("STEP"));
  g_calls = std::atoi(std::getenv("CALLS"));
  g_action = At::kill;
  const auto errors = save(folder, step, 2, 1);
  g_action = At::nothing;
  CHECK(errors == std::vector<std::string>(kRanks));
  std::printf("not killed\n");
}

TEST_CASE("a disk that is full at any call is an error on all ranks, or the new checkpoint is complete") {
  const TempDir dir;
  for (const Case& c : kCases) {
    int errors_seen = 0;
    bool reached = true;
    for (int points = 0; reached; ++points) {
      REQUIRE(points < 100);
      const std::string folder = dir / (c.name + std::to_string(points));
      REQUIRE(save(folder, 1, 1, 1) == std::vector<std::string>(kRanks));
      g_calls = points;
      g_action = At::fail;
      const auto errors = save(folder, c.step, 2, 1);
      g_action = At::nothing;
      reached = g_calls < 0;
      INFO(c.name << ", call " << points << ": " << errors[0] << " / " << errors[1]);
      CHECK(errors[0].empty() == errors[1].empty());
      const auto latest = ShardedCheckpointer(folder, nullptr).latest();
      REQUIRE(latest);
      CHECK(loaded(*latest) == (errors[0].empty() ? 2 : 1));
      if (!errors[0].empty()) ++errors_seen;
      CHECK(save(folder, 2, 3, 1) == std::vector<std::string>(kRanks));
      CHECK(loaded(folder + "/step-00000002") == 3);
    }
    // Nine calls write, sync or rename a file. The ranks run side by side, so a number is not always the
    // same call, and some of the nine may be missed while calls whose failure costs nothing are met twice.
    CHECK(errors_seen >= 5);
  }
}

#endif
