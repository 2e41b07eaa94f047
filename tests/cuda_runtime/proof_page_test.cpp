// The command of the page that proves a kernel prints what the page says. The kernel is one for Tapestry.
#include "tapestry/tools/ptx/tests/laboratory/page.h"
#include "tests/support/catch.h"
#include "tests/support/source.h"

TEST_CASE("the command of the page about proving a kernel prints what the page quotes") {
  CHECK(check_quoted_commands(tests::source_path("docs/tutorials/how-a-kernel-is-proved.md")) > 0);
}
