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

/// True if this kernel of oneDNN must not compute the forward pass of this convolution in bf16. Before 3.14,
/// oneDNN's AMX kernels reserve too little memory for their copy of the input if a stride is larger than the
/// window, or than the part of it that they compute at once, and overwrite it with sums: the results are
/// wrong (oneDNN's pull request 5494). The smallest stride that was seen to be larger than such a part is 3.
/// The kernels for windows of 1 x 1 without padding copy nothing.
inline bool has_stride_fault(std::string_view kernel, const Conv2dShape& s, OneDnnVersion version) {
  const bool mended = version.major > 3 || (version.major == 3 && version.minor >= 14);
  // oneDNN 3 calls the kernel "brg_conv_fwd", oneDNN 2 "brgconv". "brgconv_1x1" is right.
  const bool copies = kernel.starts_with("brgconv:") || kernel.starts_with("brg_conv_fwd:");
  const auto beyond = [](std::int64_t stride, std::int64_t window) { return stride > window || stride > 2; };
  return !mended && copies && kernel.find("amx") != kernel.npos &&
         (beyond(s.stride_h, s.r) || beyond(s.stride_w, s.s));
}

/// True if this kernel of oneDNN must not compute the gradient of the weight of this convolution. With
/// windows of 1 x 1 and a stride, it copies the pixels that it needs, and writes beyond the memory for them
/// if a channels-last image has fewer channels than a register has numbers (oneDNN's issue 6035, open
/// in 3.14).
inline bool has_copy_fault(std::string_view kernel, const Conv2dShape& s) {
  return kernel.starts_with("jit_1x1:") && s.channels_last && (s.stride_h > 1 || s.stride_w > 1) &&
         s.c / s.groups < 16;
}

}  // namespace tapestry::kernels::cpu
