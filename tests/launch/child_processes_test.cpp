// A program that runs itself as supervised child processes, and as a job of several ranks.
#include "tapestry/distributed/launch/child_processes.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/launch/job.h"
#include "tests/support/catch.h"

using namespace tapestry::distributed;
using tests::Job;
using namespace std::chrono_literals;

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "unset";
}

void write(const std::string& name, const std::string& text) {
  tests::write_file(variable("DIR") + "/" + name, text);
}

// A process with these variables is a rank of a job; its children must not be.
const std::vector<std::string> kOfARank = {"RANK=5", "WORLD_SIZE=7", "MASTER_ADDR=nowhere", "MASTER_PORT=1"};

launch::Child child_that(const std::string& acts, std::chrono::milliseconds limit = 30s) {
  return {.arguments = {"child: acts"}, .variables = {{"ACTS", acts}}, .limit = limit};
}

/// Runs a hidden test case, and returns it after its end.
std::unique_ptr<Job> end_of(const char* test_case) {
  auto job = std::make_unique<Job>(std::vector<std::string>{test_case}, kOfARank, tests::own_path());
  const int status = job->wait(60);
  INFO(job->out() << job->err());
  CHECK(status == 0);
  CHECK(job->all_gone());
  return job;
}

}  // namespace

TEST_CASE("child: acts", "[.]") {
  const std::string acts = variable("ACTS");
  write("seen", variable("RANK") + " " + variable("WORLD_SIZE") + " " + variable("MASTER_ADDR"));
  if (acts == "fails") {
    std::fprintf(stderr, "the cause\nand more\n");
    std::_Exit(3);
  }
  if (acts == "is killed") raise(SIGKILL);
  if (acts == "hangs") std::_Exit(std::system("sleep 300 & touch $DIR/hangs; wait"));
}

TEST_CASE("child: runs children", "[.]") {
  launch::ChildProcesses children;
  CHECK(children.run(child_that("succeeds")).empty());
  CHECK(tests::read_file(variable("DIR") + "/seen") == "unset unset unset");
  CHECK(children.run(child_that("fails")) == "the process ended with exit code 3\n  the cause\n  and more");
  CHECK_THAT(children.run(child_that("is killed")), ContainsSubstring("the process was killed by SIGKILL"));
  CHECK_THAT(children.run(child_that("hangs", 500ms)),
             ContainsSubstring("the process did not end within 0.5 s and was killed; allow more time"));
  CHECK(children.run(child_that("succeeds")).empty());
}

TEST_CASE("ChildProcesses returns why a child failed, and a child is not a rank of its parent's job") {
  end_of("child: runs children");
}

TEST_CASE("child: is interrupted", "[.]") {
  launch::ChildProcesses children;
  try {
    children.run(child_that("hangs"));
  } catch (const launch::Interrupted& interrupted) {
    write("interrupted", std::to_string(interrupted.signal));
  }
}

TEST_CASE("ChildProcesses forwards a signal to the child and its descendants, and then throws Interrupted") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Job job({"child: is interrupted"}, {}, tests::own_path());
    REQUIRE(job.made("hangs"));
    job.signal(signal);
    CHECK(job.wait(20) == 0);
    INFO(job.out() << job.err());
    CHECK(job.file("interrupted") == std::to_string(signal));
    CHECK(job.all_gone());
  }
}

TEST_CASE("a killed parent takes the child of ChildProcesses and its descendants with it") {
  Job job({"child: is interrupted"}, {}, tests::own_path());
  REQUIRE(job.made("hangs"));
  job.signal(SIGKILL);
  CHECK(job.wait(10) == 128 + SIGKILL);
  CHECK(job.all_gone());
}

TEST_CASE("child: is a rank", "[.]") {
  write("rank." + variable("RANK"), variable("WORLD_SIZE") + " " + variable("MASTER_ADDR"));
  if (variable("FAILS") == variable("RANK")) std::_Exit(7);
}

TEST_CASE("child: launches ranks", "[.]") {
  CHECK(launch::launch_ranks({"child: is a rank"}, 3) == 0);
  setenv("FAILS", "1", 1);
  CHECK(launch::launch_ranks({"child: is a rank"}, 2) == 7);
}

TEST_CASE("launch_ranks runs the program as ranks of a new job, and returns the status of the failed rank") {
  const auto job = end_of("child: launches ranks");
  // Rank 0 of the second job may have been ended, because rank 1 failed, before it wrote its file.
  CHECK(job->file("rank.0").ends_with(" 127.0.0.1"));
  CHECK(job->file("rank.1") == "2 127.0.0.1");
  CHECK(job->file("rank.2") == "3 127.0.0.1");
}
