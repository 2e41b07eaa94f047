#include "tests/support/amx.h"

#include "tapestry/kernels/cpu/isa.h"
#include "tapestry/kernels/cpu/matmul_amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <signal.h>
#include <ucontext.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

using tapestry::kernels::cpu::Isa;

namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

struct Tile {
  int rows = 0, row_bytes = 0;
  alignas(64) std::array<std::array<unsigned char, kRowBytes>, kRows> data{};
};

// The tile registers of one thread.
struct Registers {
  bool configured = false;
  std::array<unsigned char, 64> config{};
  std::array<Tile, kTiles> tiles;
};

std::atomic<long> product_count{0}, configured_count{0};
struct sigaction before;  // NOLINT: the name of the struct

[[noreturn]] void fault(const char* what) {
  std::fprintf(stderr, "AMX stand-in: %s\n", what);
  std::abort();
}
void expect(bool right, const char* what) {
  if (!right) fault(what);
}

// A handler of signals must not allocate memory.
Registers& registers() {
  constexpr int kThreads = 256;
  static Registers all[kThreads];
  static std::atomic<int> taken{0};
  thread_local Registers* own = nullptr;
  if (!own) {
    const int number = taken++;
    expect(number < kThreads, "more than 256 threads have used AMX");
    own = &all[number];
  }
  return *own;
}

// ---- instructions ----
void release(Registers& r) {
  if (r.configured) --configured_count;
  r.configured = false;
  r.config = {};
  r.tiles = {};
}

void load_configuration(Registers& r, const void* from) {
  std::array<unsigned char, 64> bytes{};
  std::memcpy(bytes.data(), from, bytes.size());
  release(r);
  if (bytes[0] == 0) return;
  expect(bytes[0] == 1, "#GP: LDTILECFG of a palette other than 1");
  expect(bytes[1] == 0, "LDTILECFG with a start row, which the stand-in does not know");
  for (int i = 2; i < 64; ++i)
    if (i < 16 || (i >= 32 && i < 48) || i >= 56)
      expect(bytes[i] == 0, "#GP: LDTILECFG with a reserved byte that is not 0");
  for (int t = 0; t < kTiles; ++t) {
    const int row_bytes = bytes[16 + 2 * t] | bytes[17 + 2 * t] << 8, rows = bytes[48 + t];
    expect(row_bytes <= kRowBytes && rows <= kRows, "#GP: LDTILECFG of a tile that is too large");
    expect((row_bytes == 0) == (rows == 0), "#GP: LDTILECFG of a tile with one size of 0");
    r.tiles[t].rows = rows, r.tiles[t].row_bytes = row_bytes;
  }
  r.config = bytes;
  r.configured = true;
  ++configured_count;
}

Tile& used(Registers& r, int number) {
  expect(r.configured, "#UD: an instruction before LDTILECFG");
  expect(number < kTiles, "#UD: a tile above 7");
  expect(r.tiles[number].rows > 0, "#UD: a tile that is not configured");
  return r.tiles[number];
}

void load(Tile& t, const char* from, std::int64_t stride) {
  t.data = {};  // rows and columns beyond the configuration become 0
  for (int i = 0; i < t.rows; ++i)
    std::memcpy(t.data[i].data(), from + i * stride, static_cast<std::size_t>(t.row_bytes));
}
void store(const Tile& t, char* to, std::int64_t stride) {
  for (int i = 0; i < t.rows; ++i)
    std::memcpy(to + i * stride, t.data[i].data(), static_cast<std::size_t>(t.row_bytes));
}

// Subnormal operands and results become 0, with their sign.
[[gnu::always_inline]] inline float flushed(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
[[gnu::always_inline]] inline float from_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// sums (rows, columns) += a (rows, depth pairs) b (depth, columns pairs). The products of the even and of the
// odd elements of pairs are added up in two sums, each by fused multiply-add. Their sum is added to the tile.
[[gnu::optimize("O3"), gnu::target("avx2,fma")]] void add_products(int rows, int depth, int columns,
                                                                   const std::uint32_t* a,
                                                                   const std::uint32_t* b, float* sums) {
  constexpr int kWidth = kRowBytes / 4;
  float b_even[kRows * kWidth], b_odd[kRows * kWidth];
  for (int i = 0; i < depth * kWidth; ++i) {
    b_even[i] = flushed(from_bits(b[i] << 16));
    b_odd[i] = flushed(from_bits(b[i] & 0xffff0000u));
  }
  for (int m = 0; m < rows; ++m) {
    float even[kWidth] = {}, odd[kWidth] = {};
    for (int k = 0; k < depth; ++k) {
      const float x = flushed(from_bits(a[m * kWidth + k] << 16)),
                  y = flushed(from_bits(a[m * kWidth + k] & 0xffff0000u));
      for (int n = 0; n < kWidth; ++n) {
        even[n] = flushed(__builtin_fmaf(x, b_even[k * kWidth + n], even[n]));
        odd[n] = flushed(__builtin_fmaf(y, b_odd[k * kWidth + n], odd[n]));
      }
    }
    for (int n = 0; n < columns; ++n) {
      float& sum = sums[m * kWidth + n];
      sum = flushed(flushed(sum) + flushed(even[n] + odd[n]));
    }
  }
}

void multiply(Tile& sum, const Tile& a, const Tile& b) {
  expect(&sum != &a && &sum != &b && &a != &b, "#UD: TDPBF16PS with the same tile twice");
  expect(sum.row_bytes % 4 == 0 && a.row_bytes % 4 == 0 && b.row_bytes % 4 == 0,
         "#UD: TDPBF16PS of rows that are no multiple of 4 bytes");
  expect(sum.rows == a.rows && sum.row_bytes == b.row_bytes && a.row_bytes / 4 == b.rows,
         "#UD: TDPBF16PS of tiles whose sizes do not fit");
  std::uint32_t left[kRows * kRowBytes / 4], right[kRows * kRowBytes / 4];
  float sums[kRows * kRowBytes / 4];
  static_assert(sizeof left == sizeof a.data);
  std::memcpy(left, a.data.data(), sizeof left);
  std::memcpy(right, b.data.data(), sizeof right);
  std::memcpy(sums, sum.data.data(), sizeof sums);
  add_products(sum.rows, b.rows, sum.row_bytes / 4, left, right, sums);
  std::memcpy(sum.data.data(), sums, sizeof sums);
  ++product_count;
}

// ---- decoding ----
// The operand in memory of an instruction with ModRM and SIB.
struct Operand {
  std::int64_t base = 0, index = 0;  // index: multiplied by the scale; the stride of a tile's rows
  int bytes = 0;                     // of ModRM, SIB and displacement
  bool has_sib = false;
};

std::int64_t register_of(const ucontext_t& context, int number) {
  constexpr int kNames[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return context.uc_mcontext.gregs[kNames[number]];
}

// `at` is the ModRM byte of an instruction, and `before_bytes` is the number of its bytes before that one.
Operand decode(const ucontext_t& context, const unsigned char* at, int before_bytes, bool x, bool b) {
  const int mod = at[0] >> 6, low = at[0] & 7;
  Operand o;
  o.bytes = 1;
  int displacement = mod == 1 ? 1 : mod == 2 ? 4 : 0;
  bool from_next = false;  // relative to the next instruction
  if (low == 4) {
    o.has_sib = true;
    const int scale = at[1] >> 6, index = (at[1] >> 3 & 7) | x << 3, base = at[1] & 7;
    o.bytes = 2;
    if (index != 4) o.index = register_of(context, index) * (1 << scale);
    if (mod == 0 && base == 5) displacement = 4;
    else o.base = register_of(context, base | b << 3);
  } else if (mod == 0 && low == 5) {
    displacement = 4, from_next = true;
  } else {
    o.base = register_of(context, low | b << 3);
  }
  if (displacement == 1) {
    o.base += static_cast<signed char>(at[o.bytes]);
  } else if (displacement == 4) {
    std::int32_t distance;
    std::memcpy(&distance, at + o.bytes, 4);
    o.base += distance;
  }
  o.bytes += displacement;
  if (from_next) o.base += context.uc_mcontext.gregs[REG_RIP] + before_bytes + o.bytes;
  return o;
}

// Executes the instruction at which the thread was interrupted. Returns false if it does not belong to AMX.
bool execute(ucontext_t& context) {
  constexpr int kVexBytes = 4;  // three of the prefix, and the opcode
  auto& rip = context.uc_mcontext.gregs[REG_RIP];
  const auto* const code = reinterpret_cast<const unsigned char*>(rip);
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84) != 0) return false;  // map 0F38, W0, 128
  const bool r = !(code[1] & 0x80), x = !(code[1] & 0x40), b = !(code[1] & 0x20);
  const int third = ~code[2] >> 3 & 15, opcode = code[3], modrm = code[4];
  const int reg = (modrm >> 3 & 7) | r << 3;
  constexpr int kPlain = 0, k66 = 1, kF3 = 2, kF2 = 3;
  const int prefix = code[2] & 3;
  const bool in_memory = modrm >> 6 != 3;
  Registers& mine = registers();
  Operand o;
  o.bytes = 1;
  if (in_memory) o = decode(context, code + kVexBytes, kVexBytes, x, b);
  // NOLINTNEXTLINE: addresses of the interrupted code
  char* const address = reinterpret_cast<char*>(o.base + (opcode == 0x49 ? o.index : 0));
  if (opcode == 0x49 && in_memory && reg == 0 && prefix == kPlain) {
    load_configuration(mine, address);
  } else if (opcode == 0x49 && in_memory && reg == 0 && prefix == k66) {  // STTILECFG
    std::memcpy(address, mine.config.data(), mine.config.size());
  } else if (opcode == 0x49 && modrm == 0xc0 && prefix == kPlain) {
    release(mine);
  } else if (opcode == 0x49 && !in_memory && (modrm & 7) == 0 && prefix == kF2) {  // TILEZERO
    used(mine, reg).data = {};
  } else if (opcode == 0x4b && o.has_sib && (prefix == kF2 || prefix == k66)) {  // TILELOADD and T1
    load(used(mine, reg), address, o.index);
  } else if (opcode == 0x4b && o.has_sib && prefix == kF3) {
    store(used(mine, reg), address, o.index);
  } else if (opcode == 0x5c && !in_memory && prefix == kF3) {
    multiply(used(mine, reg), used(mine, (modrm & 7) | b << 3), used(mine, third));
  } else {
    return false;
  }
  rip += kVexBytes + o.bytes;
  return true;
}

void on_illegal_instruction(int, siginfo_t*, void* context) {
  if (execute(*static_cast<ucontext_t*>(context))) return;
  ::sigaction(SIGILL, &before, nullptr);  // the instruction runs again, and meets the handler before this one
}

// A processor with AMX that this process may not use would execute LDTILECFG, which the handler must see.
bool can_stand_in() {
  const Isa isa = tapestry::kernels::cpu::isa_of_processor();
  return isa >= Isa::avx2 && isa < Isa::amx;
}

}  // namespace

bool amx_in_hardware() { return tapestry::kernels::cpu::isa() >= Isa::amx; }

Amx::Amx() {
  if (can_stand_in()) {
    struct sigaction action = {};
    action.sa_sigaction = &on_illegal_instruction;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGILL, &action, &before);
  }
  tapestry::kernels::cpu::set_amx_tiles(on());
}
Amx::~Amx() {
  tapestry::kernels::cpu::set_amx_tiles(amx_in_hardware());
  if (can_stand_in()) ::sigaction(SIGILL, &before, nullptr);
}
bool Amx::on() const { return amx_in_hardware() || can_stand_in(); }
long Amx::products() { return product_count; }
long Amx::configured_threads() { return configured_count; }

#else

bool amx_in_hardware() { return false; }
Amx::Amx() = default;
Amx::~Amx() = default;
bool Amx::on() const { return false; }
long Amx::products() { return 0; }
long Amx::configured_threads() { return 0; }

#endif
