// On the PTX machine, golden cases check that operations do not make the host wait. The program does not link
// that machine's runtime, but asks the one that it runs on.
#include <dlfcn.h>

#include "tests/support/op_check.h"

namespace {

[[maybe_unused]] const bool asks = [] {
  void* const found = dlsym(RTLD_DEFAULT, "_ZN8stand_in10host_waitsEv");
  tapestry::test::host_waits = reinterpret_cast<std::int64_t (*)()>(found);
  return true;
}();

}  // namespace
