// Every registered operation must have each kind of test, or a stated reason why not. This program contains
// the registry of operations, the tests of all operations and the recorded cases, so it can compare them.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "tests/support/catch.h"
#include "tests/support/op_check.h"
#include "tests/support/source.h"

using namespace tapestry::test;

TEST_CASE("every operation has each kind of test") {
  const Matrix matrix =
      build_matrix(registered_ops(), golden_rows(), kind_rows(), golden_families(), golden_family);
  CHECK(!registered_ops().empty());
  for (const std::string& failure : matrix.failures) FAIL_CHECK(failure);
  if (!matrix.failures.empty()) std::cout << matrix.markdown;

  const std::string path = tests::source_path("docs/reference/operations.md");
  const std::string page =
      "# Operations and how they are tested\n\n"
      "tests/autograd/matrix_test.cpp writes this page from the registry of operations. tests/README.md "
      "explains the "
      "kinds of test.\nTo update the page, run `TAPESTRY_WRITE_DOCS=1 build/ci/bin/tests_autograd \"every "
      "operation*\"`.\n\n" +
      matrix.markdown;
  if (std::getenv("TAPESTRY_WRITE_DOCS")) {
    std::ofstream file(path);
    file << page;
    REQUIRE(file.flush());
  }
  std::ifstream file(path);
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  INFO("docs/reference/operations.md is out of date; run this test with TAPESTRY_WRITE_DOCS=1");
  CHECK((written == page));
}

TEST_CASE("tests/golden stays below 8 MB") {
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(tests::source_path("tests/golden")))
    if (entry.is_regular_file()) bytes += entry.file_size();
  CHECK(bytes < 8'000'000);
}
