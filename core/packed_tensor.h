#pragma once
// Tensors in the block formats of GGML, which GGUF files contain. A row is a sequence of blocks; a block has
// the same number of elements, a scale, and a small integer for each element.
//
// The layouts and formulas are those of ggml (ggml-common.h and ggml-quants.c). All numbers are
// little-endian, d and m are f16, and nibble i of qs is the low half of byte i for i < n/2, else the high
// half of byte i-n/2.
//
// clang-format off
//   type  elements bytes  layout                                    element i
//   Q4_0        32    18  d, qs[16]                                 d * (nibble i - 8)
//   Q4_1        32    20  d, m, qs[16]                              d * nibble i + m
//   Q5_0        32    22  d, qh (32 bits), qs[16]                   d * (nibble i + 16 * bit i - 16)
//   Q5_1        32    24  d, m, qh (32 bits), qs[16]                d * (nibble i + 16 * bit i) + m
//   Q8_0        32    34  d, qs[32] (int8)                          d * qs[i]
//   Q2_K       256    84  scales[16], qs[64], d, m                  (d * sc[i/16]) * q - m * mn[i/16]
//   Q3_K       256   110  hmask[32], qs[64], scales[12], d          (d * (sc[i/16] - 32)) * (q - 4)
//   Q4_K       256   144  d, m, scales[12], qs[128]                 (d * sc[i/32]) * q - m * mn[i/32]
//   Q5_K       256   176  d, m, scales[12], qh[32], qs[128]         (d * sc[i/32]) * q - m * mn[i/32]
//   Q6_K       256   210  ql[128], qh[64], scales[16] (int8), d     (d * scales[i/16]) * (q - 32)
// clang-format on
//
// In Q4_K, 64 elements share 32 bytes of qs: the low halves are the first 32, the high halves the others. The
// eight scales sc and minima mn have 6 bits each. Those of j < 4 are the low 6 bits of scales[j] and
// scales[j + 4]. Those of j >= 4 have their low 4 bits in the low and in the high half of scales[j + 4], and
// their upper 2 bits are the upper 2 bits of scales[j - 4] and scales[j]. In Q5_K, element i has in addition
// bit i / 32 of qh[i % 32]. In Q2_K, sc and mn are the low and the high half of scales[i / 16], and 128
// elements share 32 bytes of qs: element i < 128 has two bits of qs[i % 32], from bit 2 * (i / 32) on. Q3_K
// has the same qs, and bit i / 32 of hmask[i % 32] above them. Its 16 scales have 6 bits: those of j < 8 have
// the low half of scales[j], those of j >= 8 the high half of scales[j - 8], and all have two bits of
// scales[8 + j % 4], from bit 2 * (j / 4) on. In Q6_K, a q has 6 bits: 128 elements share 64 bytes of ql,
// which have the low 4 bits, and 32 bytes of qh, which have the upper 2 bits. Element i < 128 has the low (i
// < 64) or high half of ql[i % 64], and two bits of qh[i % 32], from bit 2 * (i / 32) on.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tapestry/core/tensor_fwd.h"

namespace tapestry {

/// The numbers are those of GGML's types.
enum class BlockType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30,
};

/// What a type's blocks are. f32, f16 and bf16 have blocks of one element.
struct BlockLayout {
  const char* name;       ///< GGML's, such as "Q4_K"
  std::int64_t elements;  ///< of a block
  std::int64_t bytes;     ///< of a block
};
const BlockLayout& block_layout(BlockType type);
/// Returns nothing for a number that is not a BlockType.
std::optional<BlockType> block_type_of(std::uint32_t number);
/// GGML's name of any of its types, or "type N".
std::string ggml_type_name(std::uint32_t number);

/// A tensor whose elements stay in their blocks. It shares the memory of the file that it comes from, and
/// copies share it too. It is immutable.
class PackedTensor {
 public:
  PackedTensor() = default;
  /// `sizes` is row-major: the last dimension is the one along which blocks lie. `data` has the blocks of all
  /// rows, and `owner` keeps it alive. Throws ValueError unless a row is a whole number of blocks and `bytes`
  /// is the size of all blocks.
  PackedTensor(BlockType type, const Shape& sizes, const std::uint8_t* data, std::uint64_t bytes,
               std::shared_ptr<const void> owner);
  /// Converts a CPU tensor of f32, f16 or bf16 and of any layout to f32, f16, bf16 or Q8_0. Throws ValueError
  /// for another type, a row that is no whole number of blocks, or elements that Q8_0 cannot represent: NaN,
  /// infinity, or a magnitude above 127 * 65504.
  static PackedTensor pack(const Tensor& x, BlockType type);

  /// False for an object of the default constructor.
  bool defined() const { return derived_ != nullptr; }
  BlockType type() const { return type_; }
  const Shape& sizes() const { return sizes_; }
  std::int64_t numel() const { return sizes_.numel(); }
  const std::uint8_t* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  /// The number of rows, and the elements and bytes of each. A tensor without dimensions is one row.
  std::int64_t rows() const { return rows_; }
  std::int64_t row_elements() const { return row_elements_; }
  std::int64_t row_bytes() const { return row_bytes_; }

  /// Writes `rows` rows as f32 to `out`, beginning with row `first`. Throws IndexError unless they exist.
  void unpack_rows(std::int64_t first, std::int64_t rows, float* out) const;
  /// Returns all elements as a new f32 tensor on the CPU. The results are those of Python's gguf package, bit
  /// for bit. Uses the compute threads.
  Tensor unpack() const;
  /// Returns the elements in their own dtype (f32, f16, bf16), without a copy if their address permits it.
  /// Changes of the tensor change neither the file nor other processes. Throws ValueError for other types.
  Tensor tensor() const;

  /// An object that is computed from the blocks once and is kept as long as a copy of this tensor lives, such
  /// as the blocks in the order in which a kernel reads them. `make` is called by the first call alone; calls
  /// on other threads wait for it. If it throws, the next call tries again. Throws ValueError for a tensor
  /// that is not defined().
  const std::shared_ptr<const void>& derived(const std::function<std::shared_ptr<const void>()>& make) const;

 private:
  struct Derived;
  BlockType type_ = BlockType::f32;
  Shape sizes_{0};
  const std::uint8_t* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::int64_t rows_ = 0, row_elements_ = 0, row_bytes_ = 0;
  std::shared_ptr<const void> owner_;
  std::shared_ptr<Derived> derived_;
};

namespace detail {
/// A tensor that uses `data`, which must be writable memory that `owner` keeps alive.
Tensor share_memory(void* data, DType dtype, const Shape& sizes, std::shared_ptr<const void> owner);
/// The bytes of a packed tensor, or nullopt if a row is no whole number of blocks or the size does not fit in
/// 63 bits.
std::optional<std::uint64_t> packed_bytes(BlockType type, const Shape& sizes);
/// The integers of a block: element i is (d * scales[i / group]) * q[i], and in types with minima + m, or
/// - m * minima[i / group]. d and m are the bits of f16. Types of 32 elements have neither scales nor minima.
struct BlockParts {
  std::uint16_t d = 0, m = 0;
  int group = 32;
  std::int8_t scales[16], q[256];
  std::uint8_t minima[16];
};
/// The parts of a block of Q5_0, Q5_1, Q2_K, Q3_K or Q5_K.
BlockParts block_parts(BlockType type, const std::uint8_t* block);
/// Writes the elements of `blocks` adjacent blocks to `out`, for kernels.
void unpack_blocks(BlockType type, const std::uint8_t* from, std::int64_t blocks, float* out);
}  // namespace detail

}  // namespace tapestry
