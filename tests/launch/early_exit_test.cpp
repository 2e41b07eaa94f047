// A rank that ends early with exit code 0 is named as the cause, by the other ranks and by the launcher.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tapestry/autograd/ops.h"
#include "tapestry/distributed/comm/init.h"
#include "tests/launch/job.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using tests::Job;

namespace {

Job job_whose_rank_1(const std::string& ends) {
  return Job({"--nproc-per-node=3", tests::own_path(), "a rank that may exit early"},
             {"ENDS=" + ends, "TAPESTRY_TIMEOUT_S=30", "OMP_NUM_THREADS=1"});
}

}  // namespace

TEST_CASE("a rank that may exit early", "[.]") {
  const std::string ends = std::getenv("ENDS");
  if (ends == "exit in a child of fork()") {
    distributed::run_local_ranks(1, [](const distributed_test::Group& group) { group->barrier().wait(); });
    const pid_t child = fork();
    if (child != 0) {
      int status = 0;
      waitpid(child, &status, 0);
      _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
  }
  const auto world = distributed::init_process_group();
  const Tensor x = tensor({1.0});
  world->all_reduce(x, distributed::ReduceOp::sum, "first").wait();
  if (world->rank() == 1 && ends.starts_with("exit")) std::exit(0);
  if (world->rank() == 1 && ends == "_exit") _exit(0);
  try {
    world->all_reduce(x, distributed::ReduceOp::sum, "second").wait();
  } catch (const distributed::DistributedError& e) {
    std::fprintf(stderr, "%s\n", e.what());  // Catch2 would break the lines
    throw;
  }
}

TEST_CASE("a rank that calls exit(0) is named by the table of ranks and by the launcher") {
  if (!distributed_test::has_gloo()) return;
  // A child of fork() must report its own group, and not the groups of its parent.
  for (const char* ends : {"exit", "exit in a child of fork()"}) {
    Job job = job_whose_rank_1(ends);
    CHECK(job.wait(60) > 0);
    INFO(ends << "\n" << job.out() << job.err());
    CHECK(job.seconds() < 20);
    CHECK_THAT(job.out() + job.err(),
               ContainsSubstring("rank 1  has called exit() in the middle of the job; its last call was #1 "
                                 "all_reduce(first)"));
    CHECK_THAT(job.out() + job.err(), !ContainsSubstring("rank 1 is silent"));
    CHECK_THAT(job.err_last_line(),
               ContainsSubstring("failed first: it ended with exit code") &&
                   ContainsSubstring("; rank 1 had ended before with exit code 0: if that was "
                                     "too early, look at the output of rank 1"));
  }
}

TEST_CASE("a rank that calls _exit(0) is named by the launcher") {
  if (!distributed_test::has_gloo()) return;
  Job job = job_whose_rank_1("_exit");
  CHECK(job.wait(60) > 0);
  INFO(job.out() << job.err());
  CHECK(job.seconds() < 20);
  CHECK_THAT(job.err_last_line(), ContainsSubstring("; rank 1 had ended before with exit code 0"));
}
