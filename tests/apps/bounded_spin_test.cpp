// Tests that the programs bound the spinning of idle compute threads, once, and respect what the user has
// set.
#include <cstdlib>

#include "tests/apps/program.h"
#include "tests/support/catch.h"

namespace {

// What libgomp says of its settings each time that it is loaded, and then the program's own output.
std::string settings(const char* program, const char* name, const char* value) {
  for (const char* unset : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "OMP_PROC_BIND"})
    unsetenv(unset);
  setenv("OMP_NUM_THREADS", "2", 1);
  setenv("OMP_DISPLAY_ENV", "verbose", 1);
  if (name) setenv(name, value, 1);
  const tests::Ended ended = tests::run(tests::Launch{.arguments = {"--help"}, .program = program});
  for (const char* unset : {"OMP_DISPLAY_ENV", "OMP_NUM_THREADS"}) unsetenv(unset);
  if (name) unsetenv(name);
  CHECK(ended.status == 0);
  CHECK_THAT(ended.out, ContainsSubstring("--help"));
  return ended.err;
}

int loads(const std::string& text) {
  int count = 0;
  for (std::size_t at = 0; (at = text.find("GOMP_SPINCOUNT = ", at)) != std::string::npos; ++at) ++count;
  return count;
}

}  // namespace

TEST_CASE("programs start again with a bounded spin, unless the user chose one or there is one thread") {
  for (const char* program : {"classifier", "gpt", "tapestry-compare"}) {
    CAPTURE(program);
    const std::string bounded = settings(program, nullptr, nullptr);
    if (loads(bounded) == 0) {
      WARN("skipped: this build has no libgomp");
      return;
    }
    CHECK(loads(bounded) == 2);
    CHECK_THAT(bounded, ContainsSubstring("GOMP_SPINCOUNT = '10000'"));
    CHECK(loads(settings(program, "GOMP_SPINCOUNT", "77")) == 1);
    CHECK(loads(settings(program, "OMP_WAIT_POLICY", "active")) == 1);
    CHECK(loads(settings(program, "OMP_NUM_THREADS", "1")) == 1);
    CHECK(loads(settings(program, "OMP_PROC_BIND", "close")) == 1);
  }
}
