#pragma once
// Known faults of oneDNN's kernels, which the callers of oneDNN avoid.
#include <cstdint>
#include <string_view>

#include "tapestry/kernels/ops/conv.h"

namespace tapestry::kernels::cpu {

struct OneDnnVersion {
  int major, minor, patch;
};

/// True if this kernel of oneDNN must not compute a bf16 product of inner size k. Before 2.7.4, and in 3.0,
/// oneDNN's AMX kernels compute the last part along k with the tile registers still configured for another
/// part if k is 63, or if k is 32 i + 31 and the operands exceed the L2 cache: the process ends with SIGILL,
/// or rows beyond the result are written (oneDNN's issue 1661).
inline bool has_tile_fault(std::string_view kernel, std::int64_t k, OneDnnVersion version) {
  const auto [major, minor, patch] = version;
  const bool mended =
      major > 3 || (major == 3 && minor > 0) || (major == 2 && (minor > 7 || (minor == 7 && patch >= 4)));
  return !mended && k > 32 && k % 32 == 31 && kernel.find("amx") != kernel.npos;
}

/// True if this kernel of oneDNN must not compute the forward pass of this convolution. Before 3.14, oneDNN's
/// AMX kernels reserve too little memory for their copy of the input if a stride is larger than the window,
/// and overwrite it with sums: the results are wrong (oneDNN's pull request 5494). The kernels for windows of
/// 1 x 1 without padding copy nothing.
inline bool has_stride_fault(std::string_view kernel, const Conv2dShape& s, OneDnnVersion version) {
  const bool mended = version.major > 3 || (version.major == 3 && version.minor >= 14);
  // oneDNN 3 calls the kernel "brg_conv_fwd", oneDNN 2 "brgconv". "brgconv_1x1" is right.
  const bool copies = kernel.starts_with("brgconv:") || kernel.starts_with("brg_conv_fwd:");
  return !mended && copies && kernel.find("amx") != kernel.npos && (s.stride_h > s.r || s.stride_w > s.s);
}

}  // namespace tapestry::kernels::cpu
