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
#include <memory>
#include <string>
#include <string_view>

#include "tapestry/distributed/checkpoint/checkpointer.h"
#include "tapestry/distributed/comm/backend.h"
#include "tests/core/child.h"
#include "tests/distributed/models.h"
#include "tests/distributed/store_support.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"
#include "tests/support/sharded.h"

#ifdef __linux__

namespace {

using tapestry::concat;

enum class At { nothing, kill, fail };
std::atomic<At> g_action{At::nothing};
std::atomic<int> g_calls{0};  // until the call at which the action is taken

// Only calls on paths that begin with this are counted, if it is not empty.
std::string_view g_folder;

bool is_counted(const char* path) { return std::string_view(path).starts_with(g_folder); }
bool is_counted(int fd) {
  if (g_folder.empty()) return true;
  char path[4096];
  const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return n > 0 && std::string_view(path, static_cast<std::size_t>(n)).starts_with(g_folder);
}

// True if the action is to be taken at this call of a function for a path or a file descriptor.
template <class File>
bool is_reached(File file) {
  return g_action != At::nothing && is_counted(file) && g_calls.fetch_sub(1) == 0;
}

// Says it without buffers, because the process may be killed next.
void say(const std::string& text) { syscall(SYS_write, STDOUT_FILENO, text.data(), text.size()); }

int result_of(long result) {
  if (result >= 0) return static_cast<int>(result);
  return -1;  // syscall() has set errno
}

// True if the call for a path or a file descriptor is to fail as on a full disk. Does not return if the
// process is to die.
template <class File>
bool fails(const char* call, File file) {
  if (!is_reached(file)) return false;
  if (g_action == At::kill) {
    say(concat({"killed before ", call, " ", file, "\n"}));
    std::raise(SIGKILL);
  }
  errno = ENOSPC;
  return true;
}

}  // namespace

// These take the place of the C library's functions in the test program and in the libraries that it loads.
extern "C" {
__attribute__((visibility("default"))) ssize_t write(int fd, const void* data, size_t bytes) {
  if (is_reached(fd)) {
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
  return fails("fsync", fd) ? -1 : result_of(syscall(SYS_fsync, fd));
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
        test::shard_rows(net, group->rank(), kRanks);
        try {
          Checkpointer(folder, group, {.keep_last = keep_last}).save(&net, {.step = step});
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
      const auto latest = Checkpointer(folder, nullptr).latest();
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

namespace {

constexpr int kProcesses = 3;
enum End { kSaved = 0, kFailed = 3, kWrong = 4 };

// Saves step 2 as one of several processes. The victim dies at a call of the file system in the checkpoints'
// folder, or, if `calls` is negative, before it begins to save.
End save_as_rank(const std::string& folder, int rank, int victim, int calls) {
  const auto store = file_store(folder + ".store");
  const Group group =
      make_process_group(gloo_backend(store, rank, kProcesses, kBounded.timeout), store, kBounded);
  Small net(2);
  test::shard_rows(net, rank, kProcesses);
  group->barrier().wait();
  if (rank == victim) {
    if (calls < 0) std::raise(SIGKILL);
    g_folder = folder;
    g_calls = calls;
    g_action = At::kill;
  }
  try {
    Checkpointer(folder, group, {.keep_last = 1}).save(&net, {.step = 2});
    return kSaved;
  } catch (const std::exception& e) {
    // A timeout would mean that the death was not noticed.
    const bool right = !dynamic_cast<const TimeoutError*>(&e) && dynamic_cast<const DistributedError*>(&e) &&
                       std::string(e.what()).find(concat({"rank ", victim})) != std::string::npos;
    if (!right) say(concat({"rank ", rank, " got another error: ", e.what(), "\n"}));
    return right ? kFailed : kWrong;
  }
}

}  // namespace

// The processes of a job of which one dies.
struct DyingJob {
  const std::string folder;
  const int calls;
  std::vector<std::unique_ptr<tests::Process>> ranks;

  DyingJob(const std::string& base, int victim, int at) : folder(base + "/" + std::to_string(at)), calls(at) {
    for (int r = 0; r < kProcesses; ++r)
      ranks.push_back(
          std::make_unique<tests::Process>([=, this] { _exit(save_as_rank(folder, r, victim, calls)); }));
  }
};

// Only forks, because a process with threads must not. Several jobs run at a time: the ranks that stay alive
// wait seconds for a sign of the dead one, to say in their error what it did last.
TEST_CASE("jobs of which one rank dies at a call", "[.]") {
  constexpr int kAtOnce = 10, kMost = 60;
  const std::string base = std::getenv("FOLDER");
  const int victim = std::atoi(std::getenv("VICTIM"));
  int old_ones = 0, new_ones = 0;
  bool died = true;
  for (int first = -1; died; first += kAtOnce) {
    REQUIRE(first < kMost);
    const auto folder_of = [&](int calls) { return base + "/" + std::to_string(calls); };
    REQUIRE(tests::Process([&] {
              save(folder_of(first), 1, 1, 1);
              for (int calls = first + 1; calls < first + kAtOnce; ++calls)
                fs::copy(folder_of(first), folder_of(calls), fs::copy_options::recursive);
            }).join() == 0);
    std::vector<std::unique_ptr<DyingJob>> jobs;
    for (int calls = first; calls < first + kAtOnce; ++calls)
      jobs.push_back(std::make_unique<DyingJob>(base, victim, calls));
    for (const auto& job : jobs) {
      std::vector<int> ends;
      for (const auto& rank : job->ranks) ends.push_back(rank->join());
      died = ends[static_cast<std::size_t>(victim)] == -SIGKILL;
      INFO("call " << job->calls);
      for (int r = 0; r < kProcesses; ++r)
        if (r != victim) CHECK(ends[static_cast<std::size_t>(r)] == (died ? kFailed : kSaved));
      const bool complete = fs::exists(job->folder + "/step-00000002/index.json");
      if (died) ++(complete ? new_ones : old_ones);
      CHECK((died || complete));
      tests::Process next([&] {
        const std::string& folder = job->folder;
        const auto latest = Checkpointer(folder, nullptr).latest();
        distributed_test::require(latest && loaded(*latest) == (complete ? 2 : 1), "not the last complete");
        distributed_test::require(complete || loaded(folder + "/step-00000002") == -1, "half a checkpoint");
        distributed_test::require(save(folder, 2, 3, 1) == std::vector<std::string>(kRanks), "the next job");
        distributed_test::require(loaded(folder + "/step-00000002") == 3, "not the next job's");
        distributed_test::require(!fs::exists(folder + "/step-00000001"), "the old one is left");
      });
      CHECK(next.join() == 0);
    }
  }
  // A rank dies before its shard, during write, and before fsync and rename; rank 0 also makes the folder and
  // writes the index, and then removes the old checkpoint.
  CHECK(old_ones >= (victim == 0 ? 9 : 4));
  CHECK(new_ones >= (victim == 0 ? kRanks + 1 : 0));
  std::printf("%d died before the index, %d after it\n", old_ones, new_ones);
}

TEST_CASE("a rank that dies while it saves is an error on the other ranks, and the old checkpoint stays") {
  if (!distributed_test::has_gloo()) return;
  for (const int victim : {0, 1}) {
    const TempDir dir;
    const ChildResult job = run_child("jobs of which one rank dies at a call",
                                      concat({"FOLDER='", dir / "jobs", "' VICTIM=", victim}));
    INFO("rank " << victim << " dies: " << job.output);
    CHECK(job.status == 0);
  }
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
      const auto latest = Checkpointer(folder, nullptr).latest();
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
