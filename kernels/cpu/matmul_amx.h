#pragma once
// Products of bf16 matrices by the tile registers of AMX, for kernels that compute on blocks in the cache.
#include <cstdint>

#include "tapestry/core/half.h"

namespace tapestry::kernels::cpu {

/// Whether kernels compute products of bf16 by AMX: isa() is Isa::amx, unless a test says otherwise.
bool amx_tiles();
/// For tests: switches AMX off, or on, where the processor or a stand-in executes its instructions.
void set_amx_tiles(bool on);

/// The rows of a and c that are computed together.
inline constexpr std::int64_t kAmxRows = 32;

/// The operands of c = a b or c += a b, for an (m, depth) matrix a of bf16, a (depth, n) matrix b of bf16 in
/// panels of kPanelColumns columns, which pack_pairs() wrote, and an (m, n) matrix c of f32. n is a multiple
/// of kPanelColumns. The rows of a and c are contiguous, and begin a_row and c_row elements apart. Panel j of
/// b begins at b + j b_panel. Nothing beyond the operands is read.
struct AmxProduct {
  std::int64_t m, n, depth;
  const BFloat16* a;
  std::int64_t a_row;
  const BFloat16* b;
  std::int64_t b_panel;
  float* c;
  std::int64_t c_row;
  bool accumulate;
};

/// The tile registers of this thread. While they are configured, the system saves them at each change of
/// threads, which takes time. So an object lives only as long as one part of a parallel region.
class AmxTiles {
 public:
  AmxTiles() = default;
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
  ~AmxTiles();

  /// Computes the product. An element of c is the sum of its products in an order that depends on `depth`
  /// alone. Subnormal operands and sums count as 0. Call it only if amx_tiles().
  void multiply(const AmxProduct& p);

 private:
  void configure(std::int64_t rows);

  std::int64_t rows_ = 0;  // of a, for which the tiles are configured; 0: they are not
};

}  // namespace tapestry::kernels::cpu
