#pragma once
// Tensor maps: what cuTensorMapEncodeTiled makes and cp.async.bulk.tensor reads. NVIDIA does not document
// their bits, so this machine has its own.
#include <cstdint>

namespace tapestry::ptx {

/// The types, in the order of CUtensorMapDataType.
enum class TensorType : std::uint8_t {
  kU8,
  kU16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kF32,
  kF64,
  kBf16,
  kF32Ftz,
  kTf32,
  kTf32Ftz
};
/// In the order of CUtensorMapSwizzle: the permutation of 16-byte chunks repeats in spans of so many bytes.
enum class TensorSwizzle : std::uint8_t { kNone, k32, k64, k128 };

/// The arguments of cuTensorMapEncodeTiled. Dimension 0 is contiguous.
struct TensorMap {
  TensorType type = TensorType::kF32;
  std::uint32_t rank = 1;
  std::uint64_t address = 0;
  std::uint64_t sizes[5] = {1, 1, 1, 1, 1};
  /// In bytes, of dimensions 1 to rank - 1.
  std::uint64_t strides[4] = {0, 0, 0, 0};
  std::uint32_t box[5] = {1, 1, 1, 1, 1};
  std::uint32_t element_strides[5] = {1, 1, 1, 1, 1};
  /// 0: none. CU_TENSOR_MAP_INTERLEAVE_16B (1) and _32B (2) are refused.
  std::uint32_t interleave = 0;
  TensorSwizzle swizzle = TensorSwizzle::kNone;
  /// Elements outside of the tensor become NaN instead of zero.
  bool fill_nan = false;

  std::uint32_t element_bytes() const;
  /// The elements that a copy moves in a dimension: ceil(box / element stride).
  std::uint32_t count(std::uint32_t dimension) const {
    const std::uint32_t step = dimension == 0 ? 1 : element_strides[dimension];
    return (box[dimension] + step - 1) / step;
  }
  std::uint64_t box_bytes() const;
  /// 0 without swizzle; otherwise 32, 64 or 128.
  std::uint32_t span() const {
    return swizzle == TensorSwizzle::kNone ? 0 : 16u << static_cast<int>(swizzle);
  }
};

constexpr std::uint64_t kTensorMapBytes = 128;
/// Writes the 128 bytes of a tensor map. Throws a UsageError that says which rule of cuTensorMapEncodeTiled
/// the arguments break; the function of the driver returns CUDA_ERROR_INVALID_VALUE then.
void encode_tensor_map(const TensorMap& map, void* to);
/// False if the bytes are no tensor map that encode_tensor_map made.
bool decode_tensor_map(const void* from, TensorMap& map);

/// The offset in shared memory at which swizzling places the byte at `offset`: XOR of the number of the
/// 16-byte chunk (bits 4 to 6) with bits 7 to 9, of which a span of 64 bytes uses two and one of 32 bytes
/// one. Source: "Tensor swizzling modes" in the PTX manual.
constexpr std::uint64_t swizzled(std::uint64_t offset, std::uint32_t span) {
  return span == 0 ? offset : offset ^ (((offset >> 7) & (span / 16 - 1)) << 4);
}

}  // namespace tapestry::ptx
