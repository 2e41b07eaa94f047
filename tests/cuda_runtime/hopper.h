#pragma once
// What the tests of kernels for sm_90a (kernels/cuda/hopper) share. The PTX machine executes what nvcc made
// of them, launched by the library itself, with every access, mbarrier and fence checked.
#include <cstdlib>
#include <string_view>

#include "tapestry/kernels/policy.h"
#include "tests/cuda_runtime/gpus.h"

/// Allows the kernels, and forbids NVIDIA's libraries, while it exists.
struct AllowWgmma {
  AllowWgmma() {
    ::setenv("TAPESTRY_WGMMA", "1", 1);
    kernels::reset_policy();
    set_kernel_policy(KernelPolicy::custom);
  }
  ~AllowWgmma() {
    ::unsetenv("TAPESTRY_WGMMA");
    kernels::reset_policy();
  }
};

/// Whether a kernel with this text in its name has run.
inline bool ran(std::string_view kernel) {
  for (const auto& [name, what] : stand_in::executed())
    if (name.find(kernel) != std::string::npos) return true;
  return false;
}
