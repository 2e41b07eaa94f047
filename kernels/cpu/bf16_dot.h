#pragma once
// Which kernels multiply bf16 numbers by AVX512_BF16's instruction vdpbf16ps.
#include <string_view>

namespace tapestry::kernels::cpu {

/// Whether vdpbf16ps is faster than FMA on widened numbers. vdpbf16ps has twice FMA's rate on Zen 4, and half
/// of it on processors with AMX. On these, a kernel that does not use AMX's tiles computes in f32. False
/// without the instruction, and where isa() excludes it.
bool bf16_dot_pays();
/// For tests: what bf16_dot_pays() says from now on, where isa() allows the instruction.
void set_bf16_dot_pays(bool pays);

/// Whether the kernel of oneDNN with this name multiplies by vdpbf16ps.
inline bool multiplies_by_bf16_dot(std::string_view kernel) {
  return kernel.find("bf16") != kernel.npos && kernel.find("amx") == kernel.npos;
}

}  // namespace tapestry::kernels::cpu
