// A block is 32 rows of a and one panel of b. Its sums are tiles 0 to 3, each 16 rows and 16 columns of f32.
// Tiles 4 and 5 hold 32 columns of a, and tiles 6 and 7 the rows of b that belong to them.
#include "tapestry/kernels/cpu/matmul_amx.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "tapestry/kernels/cpu/isa.h"
#include "tapestry/kernels/ops/matmul_packed.h"

namespace tapestry::kernels::cpu {

namespace {
std::atomic<bool>& amx_enabled() {
  static std::atomic<bool> on{isa() >= Isa::amx};
  return on;
}
}  // namespace

bool amx_tiles() { return amx_enabled().load(std::memory_order_relaxed); }
void set_amx_tiles(bool on) { amx_enabled() = on; }

#if defined(__x86_64__) && defined(__GNUC__)
#define TAPESTRY_AMX_CODE [[gnu::target("amx-tile,amx-bf16")]]

namespace {

static_assert(kPanelColumns == 32 && sizeof(BFloat16) == 2);
constexpr std::int64_t kTileHeight = 16;
constexpr std::int64_t kTileDepth = 32;  // columns of a tile of a
constexpr std::int64_t kTileRowBytes = 64, kPairRowBytes = 4 * kPanelColumns;
constexpr int kTop = 0, kBottom = 2, kA = 4, kB = 6;

// The operand of LDTILECFG, as Intel's manual defines it.
struct AmxConfiguration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(AmxConfiguration) == 64);

// g++ 12's functions for these instructions do not say that they read memory.
template <int kTile>
TAPESTRY_AMX_CODE inline void tile_load(const void* from, std::int64_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kTile>
TAPESTRY_AMX_CODE inline void tile_store(void* to, std::int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kTile>
TAPESTRY_AMX_CODE inline void tile_clear() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kSum, int kLeft, int kRight>
TAPESTRY_AMX_CODE inline void tile_add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}

template <int kTile>
TAPESTRY_AMX_CODE inline void start_sums(const AmxProduct& p, const float* c) {
  if (p.accumulate) {
    tile_load<kTile>(c, p.c_row * 4);
    tile_load<kTile + 1>(c + 16, p.c_row * 4);
  } else {
    tile_clear<kTile>();
    tile_clear<kTile + 1>();
  }
}
template <int kTile>
TAPESTRY_AMX_CODE inline void store_sums(const AmxProduct& p, float* c) {
  tile_store<kTile>(c, p.c_row * 4);
  tile_store<kTile + 1>(c + 16, p.c_row * 4);
}

template <bool kTwoTiles>
TAPESTRY_AMX_CODE inline void add_step(const char* a, std::int64_t a_row_bytes, const char* b) {
  tile_load<kA>(a, a_row_bytes);
  tile_load<kB>(b, kPairRowBytes);
  tile_add_product<kTop, kA, kB>();
  tile_load<kB + 1>(b + kPairRowBytes / 2, kPairRowBytes);
  tile_add_product<kTop + 1, kA, kB + 1>();
  if constexpr (kTwoTiles) {
    tile_load<kA + 1>(a + kTileHeight * a_row_bytes, a_row_bytes);
    tile_add_product<kBottom, kA + 1, kB>();
    tile_add_product<kBottom + 1, kA + 1, kB + 1>();
  }
}

// Computes `rows` rows, for which the tiles are configured. The last columns of a, if they fill no tile, are
// copied to a tile that is filled up with zeros, and so are the rows of b that belong to them.
template <bool kTwoTiles>
TAPESTRY_AMX_CODE void multiply_rows(const AmxProduct& p, std::int64_t rows, const BFloat16* first,
                                     float* c) {
  const auto* const a = reinterpret_cast<const char*>(first);
  const std::int64_t a_row = 2 * p.a_row, whole = p.depth / kTileDepth, rest = p.depth % kTileDepth;
  alignas(64) char a_rest[kAmxRows * kTileRowBytes], b_rest[kTileHeight * kPairRowBytes];
  if (rest > 0)
    for (std::int64_t i = 0; i < rows; ++i) {
      char* const to = a_rest + i * kTileRowBytes;
      std::memcpy(to, a + i * a_row + whole * kTileRowBytes, 2 * rest);
      std::memset(to + 2 * rest, 0, kTileRowBytes - 2 * rest);
    }
  for (std::int64_t j = 0; j < p.n; j += kPanelColumns, c += kPanelColumns) {
    const auto* const b = reinterpret_cast<const char*>(p.b + j / kPanelColumns * p.b_panel);
    start_sums<kTop>(p, c);
    if constexpr (kTwoTiles) start_sums<kBottom>(p, c + kTileHeight * p.c_row);
    for (std::int64_t k = 0; k < whole; ++k)
      add_step<kTwoTiles>(a + k * kTileRowBytes, a_row, b + k * sizeof b_rest);
    if (rest > 0) {
      const std::int64_t bytes = (rest + 1) / 2 * kPairRowBytes;
      std::memcpy(b_rest, b + whole * sizeof b_rest, bytes);
      std::memset(b_rest + bytes, 0, sizeof b_rest - bytes);
      if (rest % 2 == 1)  // the panel may have another row of b here, and zero times infinity is NaN
        for (std::int64_t at = bytes - kPairRowBytes + 2; at < bytes; at += 4) std::memset(b_rest + at, 0, 2);
      add_step<kTwoTiles>(a_rest, kTileRowBytes, b_rest);
    }
    store_sums<kTop>(p, c);
    if constexpr (kTwoTiles) store_sums<kBottom>(p, c + kTileHeight * p.c_row);
  }
}

}  // namespace

TAPESTRY_AMX_CODE void AmxTiles::configure(std::int64_t rows) {
  if (rows == rows_) return;
  AmxConfiguration config;
  const auto top = static_cast<std::uint8_t>(std::min(rows, kTileHeight)),
             bottom = static_cast<std::uint8_t>(rows - top);
  for (const int tile : {kTop, kTop + 1, kA}) config.rows[tile] = top;
  for (const int tile : {kBottom, kBottom + 1, kA + 1}) config.rows[tile] = bottom;
  for (const int tile : {kB, kB + 1}) config.rows[tile] = kTileHeight;
  for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = config.rows[tile] > 0 ? 64 : 0;
  asm volatile("ldtilecfg %0" : : "m"(config));
  rows_ = rows;
}

TAPESTRY_AMX_CODE AmxTiles::~AmxTiles() {
  if (rows_ > 0) asm volatile("tilerelease");
}

void AmxTiles::multiply(const AmxProduct& p) {
  for (std::int64_t i = 0; i < p.m; i += kAmxRows) {
    const std::int64_t rows = std::min(kAmxRows, p.m - i);
    configure(rows);
    if (rows > kTileHeight) multiply_rows<true>(p, rows, p.a + i * p.a_row, p.c + i * p.c_row);
    else multiply_rows<false>(p, rows, p.a + i * p.a_row, p.c + i * p.c_row);
  }
}

#else

AmxTiles::~AmxTiles() = default;
void AmxTiles::configure(std::int64_t) {}
void AmxTiles::multiply(const AmxProduct&) {}

#endif

}  // namespace tapestry::kernels::cpu
