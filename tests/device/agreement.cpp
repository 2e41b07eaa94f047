// machine.agreement runs this test after device.op_* and machine.op_*: what nvcc made of the kernels,
// executed by the PTX machine, must agree with what g++ made of them, executed by the emulator, in every
// golden case.
#include <cstdio>
#include <cstdlib>

#include "tests/support/agreement.h"
#include "tests/support/catch.h"

using namespace tapestry::test;

TEST_CASE("results of compiled kernels agree with the emulator's", "[.agreement]") {
  const char* const emulated = std::getenv("TAPESTRY_EMULATED_RESULTS");
  const char* const machine = std::getenv("TAPESTRY_MACHINE_RESULTS");
  REQUIRE(emulated);
  REQUIRE(machine);
  const Agreement all = compare_results(emulated, machine);
  std::printf("%zu results have the same bits; %zu others differ by at most %.3g of their tolerance\n",
              all.equal, all.within, all.largest);
  for (const std::string& failure : all.failures) FAIL_CHECK(failure);
  CHECK(all.equal > 50000);
}
