// The commands of the tutorial print what its page says.
#include "tapestry/tools/ptx/tests/catch.h"
#include "tapestry/tools/ptx/tests/laboratory/page.h"

TEST_CASE("the commands of the tutorial print what the page quotes") {
  CHECK(matches("one two three", "one ... three"));
  CHECK(matches("one two three", "..."));
  CHECK_FALSE(matches("one two three", "one ... two"));
  CHECK_FALSE(matches("one two three", "two ... three"));
  CHECK(check_quoted_commands(TAPESTRY_PTX_DOCS "/tutorials/cuda-without-a-gpu.md") > 0);
}
