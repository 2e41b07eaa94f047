// Every registered operation must have each kind of test, or a stated reason why not. This program contains
// the registry of operations, the tests of all operations and the recorded cases, so it can compare them.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "tapestry/kernels/slot.h"
#include "tests/device/exceptions.h"
#include "tests/support/catch.h"
#include "tests/support/op_check.h"
#include "tests/support/source.h"

using namespace tapestry::test;

namespace {

std::string names_of(tapestry::DTypeSet dtypes) {
  std::string text;
  for (int d = 0; d < tapestry::kNumDTypes; ++d)
    if (contains(dtypes, static_cast<tapestry::DType>(d)))
      text.append(text.empty() ? "" : ", ").append(dtype_name(static_cast<tapestry::DType>(d)));
  return text;
}

// The CUDA kernels in the slot that has the operation's name. tests/device/slots_test.cpp checks that they
// exist.
DeviceCell cuda_kernels(const std::string& op) {
  if (op == "packed_embedding") return {"none", device_tests::kPacked};  // it reads the blocks without a slot
  std::string reason;
  tapestry::DTypeSet excepted = 0;
  for (const device_tests::Exception& e : device_tests::kExceptions)
    if (op == e.slot) excepted |= e.dtypes, reason = e.reason;
  using tapestry::kernels::SlotBase;
  for (const SlotBase* slot = SlotBase::first(); slot; slot = slot->next()) {
    const tapestry::DTypeSet cpu = slot->dtypes(tapestry::DeviceType::cpu);
    if (op != slot->name() || !cpu) continue;
    const auto there = static_cast<tapestry::DTypeSet>(device_tests::required_of_cuda(cpu) & ~excepted);
    return {there ? names_of(there) : "none", reason};
  }
  return {"others",
          "the operation has no kernel of its own: it is a view, or made of other operations' kernels"};
}

// The test that runs the operation on a CUDA device.
DeviceCell device_test(const std::string& op) {
  if (const DeviceCell kernels = cuda_kernels(op); kernels.reason == device_tests::kPacked) return kernels;
  for (const GoldenRow& row : golden_rows())
    if (base_name(row.op) == op) return {"yes", ""};
  for (const device_tests::Elsewhere& e : device_tests::kElsewhere)
    if (op == e.op) return {"yes", e.test};
  return {};
}

}  // namespace

TEST_CASE("every operation has each kind of test") {
  const Matrix matrix =
      build_matrix(registered_ops(), golden_rows(), kind_rows(), golden_families(), golden_family,
                   {{"CUDA kernels", cuda_kernels}, {"on a device", device_test}});
  CHECK(!registered_ops().empty());
  for (const std::string& failure : matrix.failures) FAIL_CHECK(failure);
  if (!matrix.failures.empty()) std::cout << matrix.markdown;

  const std::string path = tests::source_path("docs/reference/operations.md");
  const std::string page =
      "# Operations and how they are tested\n\n"
      "tests/autograd/matrix_test.cpp writes this page from the registry of operations. tests/README.md "
      "explains the "
      "kinds of test.\nThe kernels for GPUs are those of the slot with the operation's name, without those "
      "that "
      "tests/device/exceptions.h\nlists with their reasons. The tests `machine.op_*` run every operation "
      "with "
      "golden cases on the PTX machine.\nTo update the page, run `TAPESTRY_WRITE_DOCS=1 "
      "build/ci/bin/tests_autograd \"every "
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
