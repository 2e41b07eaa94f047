// Tests when ranks of one host use shared memory, and what happens if they cannot.
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/environment.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/processes.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace distributed_test;

namespace {

constexpr const char* kNotice = "communicate over sockets";

int mappings() {
  std::ifstream in("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(in, line);) count += line.find("memfd:tapestry") != std::string::npos;
  return count;
}

int descriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto to = std::filesystem::read_symlink(entry.path(), gone).string();
    count += to.find("memfd:tapestry") != std::string::npos;
  }
  return count;
}

void check_sum(Backend& backend, std::size_t count) {
  std::vector<double> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<double>(i) * (backend.rank() + 1);
  backend.all_reduce(x.data(), static_cast<std::int64_t>(count), DType::f64, ReduceOp::sum,
                     Clock::now() + 20s);
  bool ok = true;
  const double all = backend.size() * (backend.size() + 1) / 2;
  for (std::size_t i = 0; i < count; ++i) ok = ok && x[i] == static_cast<double>(i) * all;
  CHECK(ok);
}

void check_children(const char* child, int size, const RankProcesses::Variables& variables,
                    const std::string& from_rank_0) {
  RankProcesses ranks(child, size, variables);
  for (int rank = 0; rank < size; ++rank) {
    const Ended& end = ranks.wait(rank);
    CAPTURE(child, rank, end.output, end.signal);
    CHECK(end.well());
    const bool says = rank == 0 && !from_rank_0.empty();
    CHECK((end.output.find(kNotice) != std::string::npos) == says);
    if (says) CHECK_THAT(end.output, ContainsSubstring(from_rank_0));
  }
}

}  // namespace

TEST_CASE("child of ranks that share memory", "[.]") {
  const auto self = child_rank();
  {
    const auto backend = gloo_backend(self.store, self.rank, self.size, 20s);
    CHECK(mappings() == 0);  // small collectives make no shared memory
    backend->barrier(Clock::now() + 20s);
    CHECK(mappings() == 0);
    check_sum(*backend, 200'000);
    CHECK(mappings() == 1);
    CHECK(descriptors() == 0);
    check_sum(*backend, 70'001);
    CHECK(mappings() == 1);
    const auto part = backend->split({1, 0}, prefix_store("part/", self.store), Clock::now() + 20s);
    check_sum(*part, 70'001);
    CHECK(mappings() == 2);
  }
  CHECK(mappings() == 0);
}

TEST_CASE("ranks of one host share memory from the first large collective on") {
  if (!has_gloo()) return;
  check_children("child of ranks that share memory", 2, {}, "");
}

TEST_CASE("child of ranks that share none", "[.]") {
  const auto self = child_rank();
  if (const char* const rank = std::getenv("TEST_OFF_AT"); rank && std::atoi(rank) == self.rank)
    setenv("TAPESTRY_SHARED_MEMORY", "0", 1);
  if (std::getenv("TEST_LIMIT")) {
    rlimit files{};
    getrlimit(RLIMIT_FSIZE, &files);
    files.rlim_cur = 1 << 20;
    setrlimit(RLIMIT_FSIZE, &files);
  }
  const auto backend = gloo_backend(self.store, self.rank, self.size, 20s);
  check_sum(*backend, 200'000);
  check_sum(*backend, 200'000);
  CHECK(mappings() == 0);
  CHECK(descriptors() == 0);
  const auto part = backend->split({0, 1}, prefix_store("part/", self.store), Clock::now() + 20s);
  check_sum(*part, 70'001);
  CHECK(mappings() == 0);
}

TEST_CASE("ranks that cannot share memory send messages and print one warning") {
  if (!has_gloo()) return;
  const char* const child = "child of ranks that share none";
  check_children(child, 2, {{"TAPESTRY_SHARED_MEMORY", "0"}},
                 "");  // no warning, because the user asked for it
  check_children(child, 2, {{"TEST_OFF_AT", "0"}}, "");
  check_children(child, 2, {{"TEST_OFF_AT", "1"}},
                 "; rank 1: shared memory is switched off (TAPESTRY_SHARED_MEMORY)");
  check_children(child, 2, {{"TEST_LIMIT", "1"}},
                 "; rank 0: [shared_memory] files here are limited to 1048576");
}

TEST_CASE("child with a wrong TAPESTRY_SHARED_MEMORY", "[.]") {
  CHECK_THROWS_WITH(gloo_backend(memory_store(), 0, 1, 1s),
                    ContainsSubstring("TAPESTRY_SHARED_MEMORY is \"yes\"; set it to 0 or 1"));
}

TEST_CASE("TAPESTRY_SHARED_MEMORY must be 0 or 1") {
  if (!has_gloo()) return;
  check_children("child with a wrong TAPESTRY_SHARED_MEMORY", 1, {{"TAPESTRY_SHARED_MEMORY", "yes"}}, "");
}
