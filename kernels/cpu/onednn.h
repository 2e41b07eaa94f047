#pragma once
// What the kernels that call oneDNN share. Only for builds with oneDNN.
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <type_traits>

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

/// The primitive descriptor of the first kernel for which avoid(NAME) is false. `args` describe the
/// operation. `rest` has the attributes and, for a gradient, the descriptor of the forward pass. Throws
/// dnnl::error if no kernel remains. oneDNN 3 takes all arguments at once. oneDNN 2 makes an operation
/// descriptor of `args` first, which must exist as long as next_impl() is called.
template <class Primitive, class Avoid, class... Args, class... Rest>
auto describe(const Avoid& avoid, const std::tuple<Args...>& args, const Rest&... rest) {
#if DNNL_VERSION_MAJOR >= 3
  auto pd = std::apply(
      [&](const auto&... a) { return typename Primitive::primitive_desc(engine(), a..., rest...); }, args);
#else
  const auto desc = std::make_from_tuple<typename Primitive::desc>(args);
  // The engine stands before the forward pass, and after attributes.
  auto pd = [&] {
    if constexpr (std::is_constructible_v<typename Primitive::primitive_desc, decltype(desc), dnnl::engine,
                                          Rest...>)
      return typename Primitive::primitive_desc(desc, engine(), rest...);
    else return typename Primitive::primitive_desc(desc, rest..., engine());
  }();
#endif
  while (avoid(pd.impl_info_str()))
    if (!pd.next_impl()) throw dnnl::error(dnnl_unimplemented, "every kernel must be avoided");
  return pd;
}

}  // namespace tapestry::kernels::cpu
