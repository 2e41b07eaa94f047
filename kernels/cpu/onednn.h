#pragma once
// What the kernels that call oneDNN share. Only for builds with oneDNN.
#include <oneapi/dnnl/dnnl.hpp>

#include "tapestry/kernels/cpu/onednn_faults.h"

namespace tapestry::kernels::cpu {

inline const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}
inline dnnl::stream& stream() {
  thread_local dnnl::stream s(engine());
  return s;
}
/// The version of the library that the process has loaded.
inline OneDnnVersion onednn_version() {
  const dnnl_version_t& v = *dnnl_version();
  return {v.major, v.minor, v.patch};
}
/// oneDNN accepts bf16 on every processor with AVX-512, but without AVX512_BF16 or AMX it is slower than f32.
inline bool has_bf16_instructions() {
  static const bool has = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & needed) == needed;  // an instruction set has the bits of those that it contains
  }();
  return has;
}

}  // namespace tapestry::kernels::cpu
