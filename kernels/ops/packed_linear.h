#pragma once
// Contracts of products with weights in the blocks of core/packed_tensor.h. Only CPUs have these kernels.
//   Dtypes: x, y and bias are f32. Accumulation: f32, and integers where the activations are int8.
//   Layout: the arrays are dense.
#include <cstdint>

#include "tapestry/core/packed_tensor.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// A (rows, columns) matrix. A row is a whole number of blocks.
struct PackedMatrix {
  BlockType type;
  std::int64_t rows, columns;
  const std::uint8_t* blocks;
};

/// Computes y = x W^T + bias for x (m, columns), y (m, rows) and a bias (rows) that may be null.
struct PackedLinearArgs {
  std::int64_t m;
  ConstArray x;
  PackedMatrix weight;
  ConstArray bias;
  MutableArray y;
};
inline constinit Slot<PackedLinearArgs> packed_linear{"packed_linear"};

/// Computes y = x W for x (m, rows) and y (m, columns).
struct PackedBackwardArgs {
  std::int64_t m;
  ConstArray x;
  PackedMatrix weight;
  MutableArray y;
};
inline constinit Slot<PackedBackwardArgs> packed_linear_backward{"packed_linear_backward"};

// ---- activations of int8 ----
// A copy of the weight has the blocks of 16 rows side by side, so that one vector instruction multiplies 4
// elements of each row by 4 elements of x. It is made once for a weight (PackedTensor::derived).

inline constexpr std::int64_t kPanelRows = 16;

/// The type whose panels hold the elements of `type`: those of Q5_0 fit into Q8_0's, and those of Q3_K into
/// Q6_K's.
constexpr BlockType panel_form(BlockType type) {
  return type == BlockType::q5_0 ? BlockType::q8_0 : type == BlockType::q3_k ? BlockType::q6_k : type;
}

/// A panel is 16 rows. It consists of parts of kSuper columns. A part begins with kHead bytes, and then has
/// for each group of kGroup columns kScales bytes of scales and the elements. Scales are those of the blocks,
/// in the order of the rows. Elements lie in chunks of 64 bytes, 4 for each row. Chunk c of 8-bit elements
/// has the columns 4 c to 4 c + 3 of the group. Chunk c of 4-bit elements has the same columns in the low
/// halves of its bytes, and the columns that are kGroup / 2 further on in the high halves. The elements of
/// Q2_K are widened to 4 bits.
template <BlockType type>
struct PanelLayout {
  static constexpr bool kIsK = type == BlockType::q2_k || type == BlockType::q4_k ||
                               type == BlockType::q5_k || type == BlockType::q6_k;
  static constexpr bool kIs4 = type == BlockType::q4_0 || type == BlockType::q4_1 ||
                               type == BlockType::q4_k || type == BlockType::q2_k;
  static constexpr bool kHasMinimum =
      type == BlockType::q4_1 || type == BlockType::q5_1 || (kIsK && type != BlockType::q6_k);
  static constexpr std::int64_t kGroup = type == BlockType::q6_k || type == BlockType::q2_k ? 16 : 32;
  static constexpr std::int64_t kSuper = kIsK ? 256 : 32;
  /// Of types of 256 elements: f16 d, and with minima f16 m.
  static constexpr std::int64_t kHead = kIsK ? (kHasMinimum ? 64 : 32) : 0;
  /// Of types of 256 elements, bytes sc and mn, or int8 scales for Q6_K; of the others f16 d and f16 m.
  static constexpr std::int64_t kScales = (kHasMinimum ? 32 : 16) * (kIsK ? 1 : 2);
  static constexpr std::int64_t kData = kGroup * kPanelRows / (kIs4 ? 2 : 1);
  static constexpr std::int64_t kBytes = kHead + kSuper / kGroup * (kScales + kData);  ///< of a part
  /// What is subtracted from an unsigned element. The 8-bit elements of Q8_0 are signed.
  static constexpr int kOffset = type == BlockType::q4_0 ? 8 : type == BlockType::q6_k ? 32 : 0;
};

/// Calls f.template operator()<form>() with the panel_form() of a type whose weights are multiplied by int8,
/// and returns true. Returns false for the others.
template <class F>
bool for_int8_type(BlockType type, F&& f) {
  switch (panel_form(type)) {
    case BlockType::q4_0:
      f.template operator()<BlockType::q4_0>();
      return true;
    case BlockType::q4_1:
      f.template operator()<BlockType::q4_1>();
      return true;
    case BlockType::q8_0:
      f.template operator()<BlockType::q8_0>();
      return true;
    case BlockType::q5_1:
      f.template operator()<BlockType::q5_1>();
      return true;
    case BlockType::q2_k:
      f.template operator()<BlockType::q2_k>();
      return true;
    case BlockType::q5_k:
      f.template operator()<BlockType::q5_k>();
      return true;
    case BlockType::q4_k:
      f.template operator()<BlockType::q4_k>();
      return true;
    case BlockType::q6_k:
      f.template operator()<BlockType::q6_k>();
      return true;
    default:
      return false;
  }
}

/// The bytes of the panels of a matrix, or 0 for a type that is not multiplied by int8.
inline std::int64_t panel_bytes(const PackedMatrix& w) {
  std::int64_t bytes = 0;
  for_int8_type(w.type, [&]<BlockType type> {
    bytes = (w.rows + kPanelRows - 1) / kPanelRows * (w.columns / PanelLayout<type>::kSuper) *
            PanelLayout<type>::kBytes;
  });
  return bytes;
}

/// Writes the panels of a matrix, panel_bytes() of them, of the dtype u8. Rows beyond the last are 0.
struct InterleaveArgs {
  PackedMatrix weight;
  MutableArray panels;
};
inline constinit Slot<InterleaveArgs> interleave{"interleave"};

/// Computes y = x W^T + bias as packed_linear does, from the panels of the weight. x is rounded to int8 in
/// blocks of 32 columns: the scale of a block is its largest magnitude / 127. The products of 32 columns (16
/// for Q2_K, Q3_K and Q6_K) are summed as integers. These partial sums are added in f32 in the order of the
/// columns. If a row of x has a number that is not finite, its results are NaN.
struct PackedInt8Args {
  std::int64_t m;
  ConstArray x;
  PackedMatrix weight;  ///< its blocks are not read
  ConstArray panels;    ///< u8
  ConstArray bias;
  MutableArray y;
};
inline constinit Slot<PackedInt8Args> packed_linear_int8{"packed_linear_int8"};

}  // namespace tapestry::kernels
