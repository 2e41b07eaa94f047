#include "tapestry/apps/common/bounded_spin.h"

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace apps {
namespace {

// docs/benchmarks/cpu.md compares counts. libgomp's own is 300000 on an idle processor.
constexpr const char* kSpins = "10000";

// With these variables, libgomp has bound this thread to one place already, and the program would inherit it
// as all that it may use.
bool is_bound() { return std::getenv("OMP_PROC_BIND") || std::getenv("OMP_PLACES"); }

bool is_traced() {
  std::ifstream status("/proc/self/status");
  for (std::string key, value; status >> key && std::getline(status, value);)
    if (key == "TracerPid:") return std::atoi(value.c_str()) != 0;
  return false;
}

// An OpenMP runtime says itself what is wrong with OMP_NUM_THREADS, so this function need not.
bool has_one_thread() {
  const char* const threads = std::getenv("OMP_NUM_THREADS");
  cpu_set_t cores;
  return threads ? std::string_view(threads) == "1"
                 : sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) == 1;
}

}  // namespace

void bound_spin(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  if (has_one_thread() || is_bound() || is_traced()) return;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  // Under the dynamic loader, the link names the loader, which would take the first argument for the program.
  if (program.filename().string().starts_with("ld-")) return;
  if (error || setenv("GOMP_SPINCOUNT", kSpins, 1) != 0) return;
  execv(program.c_str(), argv);  // returns only if it fails; then this process goes on as it is
}

}  // namespace apps
