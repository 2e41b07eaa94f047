// Compiling a program that includes "tapestry/tapestry.h" must take less than 312 MB at -O2.
// tools/bench_compile measures the time.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/source.h"

TEST_CASE("a program that includes tapestry.h compiles in 312 MB") {
  const std::string include = std::string("-I") + TAPESTRY_BUILD_DIR + "/include";
  const std::string project = tests::source_path("tests/consumer/project");
  const std::string own = "-I" + project, source = project + "/main.cpp";
  const char* command[] = {TAPESTRY_CXX_COMPILER, "-std=c++20", "-O2", include.c_str(),
                           own.c_str(),           "-c",         "-o",  "/dev/null",
                           source.c_str(),        nullptr};
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    execv(command[0], const_cast<char* const*>(command));
    _exit(127);
  }
  int status = 0;
  rusage usage{};  // of the compiler driver and of all processes that it started and waited for
  REQUIRE(wait4(child, &status, 0, &usage) == child);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  const double megabytes = usage.ru_maxrss / 1000.0;
  INFO(megabytes << " MB");
  CHECK(megabytes > 30);  // the compiler proper is included, not only its driver
  CHECK(megabytes < 312);
}
