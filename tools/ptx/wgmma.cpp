// wgmma: matrix multiplications of warpgroups, which read shared memory and write registers asynchronously.
// The results are computed at once, but until wgmma.wait_group any use of the registers is an error, and so
// is any write of the shared memory that is read. Source: the PTX manual, "Asynchronous Warpgroup Level
// Matrix Multiply-Accumulate Operation", with its tables of fragments and of canonical layouts in shared
// memory.
#include <algorithm>
#include <limits>

#include "tapestry/tools/ptx/async.h"
#include "tapestry/tools/ptx/numeric.h"

namespace tapestry::ptx {

/// The state of a warp's registers that wgmma uses.
struct MatrixRegisters {
  struct Row {
    std::uint32_t writing = 0, reading = 0;  // the group of the wgmma that does, or 0
    std::uint32_t shape = 0;                 // of the wgmma that wrote it last without a fence since
    // By another instruction since the last wgmma.fence. A mov is less strict: compilers initialise
    // accumulators between wgmma.fence and wgmma.mma_async, and ptxas orders that itself. So it only needs a
    // fence since the last wgmma on the register.
    bool written = true, read = false, moved = false, fenced = false;
  };
  std::vector<Row> rows;
  bool fenced = false;
  std::uint32_t group = 1;    // the group that is not committed yet
  std::uint32_t delayed = 0;  // the last group whose wait has let other threads run first
  std::uint64_t issued = 0;
  std::vector<std::uint64_t> issued_before;  // by group - 1: all wgmma of it and of earlier groups
};

namespace {

// Flags: bits 0-8 are N, then these.
enum TypeNumber : u32 { kF16, kBf16, kTf32, kE4m3, kE5m2, kS8, kU8 };
constexpr std::string_view kTypeNames[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"};
enum ResultType : u32 { kResultF32, kResultF16, kResultS32 };
constexpr u32 kTypeShiftA = 9, kTypeShiftB = 12, kResultShift = 15, kRegisters = 1 << 17, kFinite = 1 << 18;

struct Shape {
  u32 n, a, b, result;
  bool registers, finite;
  u32 element_bytes() const { return a <= kBf16 ? 2 : a == kTf32 ? 4 : 1; }
  u32 k() const { return 32 / element_bytes(); }
  u32 accumulators() const { return result == kResultF16 ? n / 4 : n / 2; }
};
Shape shape_of(const Code& c) {
  return {c.flags & 511,
          (c.flags >> kTypeShiftA) & 7,
          (c.flags >> kTypeShiftB) & 7,
          (c.flags >> kResultShift) & 3,
          (c.flags & kRegisters) != 0,
          (c.flags & kFinite) != 0};
}

double number_of(u32 bits, u32 type) {
  switch (type) {
    case kF16:
      return widen(bits, kHalf);
    case kBf16:
      return widen(bits, kBrain);
    case kTf32:  // the lower 13 bits are ignored
      return static_cast<double>(std::bit_cast<float>(bits & 0xffffe000u));
    case kE4m3:
      return widen_e4m3(bits);
    case kE5m2:
      return widen(bits, Format{5, 2});
    case kS8:
      return static_cast<double>(static_cast<std::int8_t>(bits));
    default:
      return static_cast<double>(bits);
  }
}

// ---- shared memory ----

struct Descriptor {
  u64 start, leading, stride, base;
  u32 span;  // of the swizzling, in bytes; 0 for none
};
Descriptor read_descriptor(Warp& w, const Code& c, u64 bits) {
  if ((bits & 0x3ff1c000c000c000u) != 0)
    w.fail(c, 0, "reserved bits of the matrix descriptor " + hex(bits) + " are set");
  static constexpr u32 kSpans[] = {0, 128, 64, 32};
  return {(bits & 0x3fff) << 4, ((bits >> 16) & 0x3fff) << 4, ((bits >> 32) & 0x3fff) << 4, (bits >> 49) & 7,
          kSpans[bits >> 62]};
}
// Swizzling permutes the chunks of 16 bytes by their address; the base offset says where the pattern begins.
u64 place(const Descriptor& d, u64 offset) {
  if (d.span == 0) return offset;
  return offset ^ ((((offset >> 7) - d.base) & (d.span / 16 - 1)) << 4);
}
// A chunk of 16 bytes along k of a row (of A or of B transposed), if k is contiguous: row groups of 8 are
// `stride` apart; without swizzling, the rows of a group are 16 bytes apart, and chunks are `leading` apart.
u64 chunk_along_k(const Descriptor& d, u32 row, u32 chunk) {
  const u64 pitch = d.span == 0 ? 16 : d.span, step = d.span == 0 ? d.leading : 16;
  return place(d, d.start + row % 8 * pitch + row / 8 * d.stride + chunk * step);
}
// A chunk of 8 elements of 2 bytes along m or n at one k, if m or n is contiguous.
u64 chunk_across_k(const Descriptor& d, u32 chunk, u32 k) {
  if (d.span == 0) return d.start + chunk * d.stride + k % 8 * 16 + k / 8 * d.leading;
  const u32 chunks = d.span / 16;
  return place(
      d, d.start + chunk / chunks * d.leading + chunk % chunks * 16 + k % 8 * d.span + k / 8 * d.stride);
}

// Reads an operand of `rows` rows (m or n), from row `first` on, and of 32 bytes along k: store(row, k,
// bits).
template <class F>
void read_operand(Warp& w, const Code& c, u64 bits, u32 first, u32 rows, u32 element_bytes, bool across,
                  F store) {
  const Descriptor d = read_descriptor(w, c, bits);
  Async::Warpgroup& group = w.async().warpgroups[w.number() / 4];
  auto& reads = group.issues[static_cast<std::size_t>(group.done[w.number() % 4] - 1)].reads;
  const auto chunk_at = [&](u64 offset) {
    const std::byte* const data = w.async().read_chunk(w, c, 0, offset);
    w.async().hold(offset, 16, 1);
    reads.push_back(static_cast<u32>(offset / 16));
    return data;
  };
  if (across) {
    for (u32 k = 0; k < 16; ++k)
      for (u32 chunk = first / 8; chunk < (first + rows) / 8; ++chunk) {
        u16 values[8];
        std::memcpy(values, chunk_at(chunk_across_k(d, chunk, k)), 16);
        for (u32 e = 0; e < 8; ++e) store(8 * chunk + e - first, k, u32{values[e]});
      }
    return;
  }
  for (u32 row = first; row < first + rows; ++row)
    for (u32 chunk = 0; chunk < 2; ++chunk) {
      const std::byte* const data = chunk_at(chunk_along_k(d, row, chunk));
      for (u32 e = 0; e < 16 / element_bytes; ++e) {
        u32 value = 0;
        std::memcpy(&value, data + e * element_bytes, element_bytes);
        store(row - first, chunk * (16 / element_bytes) + e, value);
      }
    }
}

// ---- registers ----

MatrixRegisters::Row* row_of(Warp& w, const Ref& r) {
  if (r.base != 0 || r.width != 4) return nullptr;
  const u32 number = w.program().matrix_registers[r.offset / 32];
  return number == 0 ? nullptr : &w.matrix->rows[number - 1];
}

// All lanes must pass the same value.
template <class T>
T uniform(Warp& w, const Code& c, const Ref& r, const char* what) {
  const T* const row = w.row<const T>(r);
  for (int lane = 1; lane < 32; ++lane)
    if (row[lane] != row[0])
      w.fail(c, lane,
             "passes another " + std::string(what) + " than lane 0; it must be the same in all threads");
  return row[0];
}
int sign_of(Warp& w, const Code& c, const Ref& r) {
  const auto value = uniform<i32>(w, c, r, "scale");
  if (value != 1 && value != -1)
    w.fail(c, 0, "scales by " + std::to_string(value) + "; only 1 and -1 are possible");
  return value;
}
bool transpose_of(Warp& w, const Code& c, const Ref& r) {
  const auto value = uniform<u32>(w, c, r, "transposition");
  if (value > 1) w.fail(c, 0, "transposes by " + std::to_string(value) + "; only 0 and 1 are possible");
  return value != 0;
}

// The element of A that byte `byte` of register `r` begins: 8 x 16 bytes a register, as in mma.m16n8k16.
struct Element {
  u32 row, k;
};
Element element_of_a(u32 lane, u32 r, u32 byte, u32 element_bytes) {
  return {lane / 4 + 8 * (r % 2), (lane % 4 * 4 + byte + 16 * (r / 2)) / element_bytes};
}

struct Operands {
  const Ref *d, *a;
  u64 a_bits = 0, b_bits = 0;
  bool accumulate = false, a_across = false, b_across = false;
  int sign = 1;
};
Operands read_operands(Warp& w, const Code& c, const Shape& s) {
  Operands x{};
  const Ref* o = w.operands(c);
  x.d = o;
  o += s.accumulators();
  x.a = o;
  if (s.registers) o += 4;
  else x.a_bits = uniform<u64>(w, c, *o++, "descriptor");
  x.b_bits = uniform<u64>(w, c, *o++, "descriptor");
  const u32 accumulate = w.predicate(*o++);
  if (accumulate != 0 && accumulate != kAllLanes) w.fail(c, 0, "scale-d must be the same in all threads");
  x.accumulate = accumulate != 0;
  x.sign = 1;
  if (s.a <= kE5m2) {
    x.sign = sign_of(w, c, *o++);
    x.sign *= sign_of(w, c, *o++);
  }
  if (s.a <= kBf16) {
    if (!s.registers) x.a_across = transpose_of(w, c, *o++);
    x.b_across = transpose_of(w, c, *o++);
  }
  return x;
}

// The four warps must execute the same multiplications in the same order.
void check_warpgroup(Warp& w, const Code& c, const Operands& x) {
  Async::Warpgroup& group = w.async().warpgroups[w.number() / 4];
  const Dim& d = w.launch().block;
  if (d.x * d.y * d.z < 128 * (w.number() / 4 + 1))
    w.fail(c, 0, "a warpgroup has 128 threads, but the block has fewer");
  u64& done = group.done[w.number() % 4];
  if (done == group.issues.size()) group.issues.push_back({&c, x.a_bits, x.b_bits, {}, {}});
  const Async::Warpgroup::Issue& issue = group.issues[static_cast<std::size_t>(done++)];
  if (issue.code != &c)
    w.fail(c, 0,
           "another warp of the warpgroup executes the wgmma of " + w.line_of(*issue.code) +
               " instead; all four must execute the same ones in the same order");
  if (issue.a != x.a_bits || issue.b != x.b_bits)
    w.fail(c, 0, "passes another descriptor than another warp of the warpgroup");
  ++w.async().progress;
}

// Registers must be ordered by wgmma.fence, except between wgmma of the same shape on the same accumulators.
void check_registers(Warp& w, const Code& c, const Shape& s, const Operands& x) {
  MatrixRegisters& r = *w.matrix;
  if (!r.fenced) w.fail(c, 0, "no wgmma.fence came before the first wgmma.mma_async");
  const u32 shape = s.n | s.a << 9 | s.result << 12;
  for (u32 i = 0; i < s.accumulators(); ++i) {
    MatrixRegisters::Row* const row = row_of(w, x.d[i]);
    if (!row) continue;  // the sink
    if (row->written || row->read || (row->moved && !row->fenced))
      w.fail(c, 0,
             "accumulator " + std::to_string(i) + " was " + (row->read ? "read" : "written") +
                 " by another instruction after the last wgmma.fence; a wgmma.fence must come between");
    if (row->reading != 0)
      w.fail(c, 0,
             "accumulator " + std::to_string(i) + " is read as matrix A by a wgmma that has not completed");
    if (row->writing != 0 && row->shape != 0 && row->shape != shape)
      w.fail(c, 0, "a wgmma of another shape is still writing accumulator " + std::to_string(i));
    row->writing = r.group;
    row->shape = shape;
    row->moved = row->fenced = false;
  }
  if (!s.registers) return;
  for (u32 i = 0; i < 4; ++i) {
    MatrixRegisters::Row* const row = row_of(w, x.a[i]);
    if (!row) continue;
    if (row->writing != 0)
      w.fail(c, 0,
             "register " + std::to_string(i) +
                 " of matrix A is an accumulator of a wgmma that has not completed");
    if (row->written || (row->moved && !row->fenced))
      w.fail(c, 0,
             "register " + std::to_string(i) +
                 " of matrix A was written after the last wgmma.fence; a wgmma.fence must come between");
    row->reading = r.group;
    row->moved = row->fenced = false;
  }
}

// Tells the search for races which bytes the warp reads: neighbouring chunks together.
void note_reads(Warp& w, const Code& c, Async::Warpgroup::Issue& issue, std::size_t first) {
  const BlockRaces::Agent agent = w.races()->begin(w.number(), 0);
  issue.agents.push_back(agent);
  std::vector<u32> chunks(issue.reads.begin() + static_cast<std::ptrdiff_t>(first), issue.reads.end());
  std::sort(chunks.begin(), chunks.end());
  for (std::size_t i = 0; i < chunks.size();) {
    std::size_t end = i + 1;
    while (end < chunks.size() && chunks[end] - chunks[end - 1] <= 1) ++end;
    Async::note(w, c, 0, agent, u64{16} * chunks[i], u64{16} * (chunks[end - 1] - chunks[i] + 1), false);
    i = end;
  }
}

void multiply(Warp& w, const Code& c) {
  const Shape s = shape_of(c);
  const Operands x = read_operands(w, c, s);
  check_warpgroup(w, c, x);
  check_registers(w, c, s, x);
  ++w.matrix->issued;
  const u32 k = s.k(), element = s.element_bytes(), quarter = w.number() % 4;
  // Each warp computes 16 of the 64 rows.
  alignas(64) double left[16][32], right[32][256], sums[256];
  Async::Warpgroup& group = w.async().warpgroups[w.number() / 4];
  Async::Warpgroup::Issue& issue = group.issues[static_cast<std::size_t>(group.done[quarter] - 1)];
  const std::size_t earlier = issue.reads.size();
  if (s.registers) {
    for (u32 r = 0; r < 4; ++r)
      for (u32 lane = 0; lane < 32; ++lane) {
        const u32 bits = w.row<const u32>(x.a[r])[lane];
        for (u32 byte = 0; byte < 4; byte += element) {
          const Element e = element_of_a(lane, r, byte, element);
          const u32 value = element == 4 ? bits : (bits >> (8 * byte)) & ((1u << (8 * element)) - 1);
          left[e.row][e.k] = number_of(value, s.a);
        }
      }
  } else {
    read_operand(w, c, x.a_bits, 16 * quarter, 16, element, x.a_across,
                 [&](u32 row, u32 at, u32 bits) { left[row][at] = number_of(bits, s.a); });
  }
  read_operand(w, c, x.b_bits, 0, s.n, element, x.b_across,
               [&](u32 row, u32 at, u32 bits) { right[at][row] = number_of(bits, s.b); });
  if (w.races()) note_reads(w, c, issue, earlier);
  // The products are exact; their sum is computed in f64 and rounded once. Element (row, column) of the
  // result is accumulator 4 (column / 8) + 2 (row / 8) + column % 2 of lane 4 (row % 8) + column % 8 / 2; f16
  // are packed.
  for (u32 row = 0; row < 16; ++row) {
    const auto each = [&](auto f) {
      for (u32 column = 0; column < s.n; ++column)
        f(column, column / 8 * 4 + row / 8 * 2 + column % 2, row % 8 * 4 + column % 8 / 2);
    };
    std::fill_n(sums, s.n, 0.0);
    if (x.accumulate)
      each([&](u32 column, u32 index, u32 lane) {
        if (s.result == kResultF32) sums[column] = static_cast<double>(w.row<const float>(x.d[index])[lane]);
        else if (s.result == kResultS32) sums[column] = w.row<const i32>(x.d[index])[lane];
        else sums[column] = widen(w.row<const u16>(x.d[index / 2])[2 * lane + index % 2], kHalf);
      });
    for (u32 i = 0; i < k; ++i) {
      const double a = x.sign < 0 ? -left[row][i] : left[row][i];
      const double* const b = right[i];
      for (u32 column = 0; column < s.n; ++column) sums[column] += a * b[column];
    }
    each([&](u32 column, u32 index, u32 lane) {
      if (x.d[index / (s.result == kResultF16 ? 2 : 1)].offset == kTrash) return;
      if (s.result == kResultF32) {
        w.row<float>(x.d[index])[lane] = canonical(static_cast<float>(sums[column]));
      } else if (s.result == kResultF16) {
        w.row<u16>(x.d[index / 2])[2 * lane + index % 2] =
            static_cast<u16>(narrow(sums[column], kHalf, kNearestEven));
      } else {
        const auto sum = static_cast<i64>(sums[column]);
        const i64 low = std::numeric_limits<i32>::min(), high = std::numeric_limits<i32>::max();
        w.row<i32>(x.d[index])[lane] = static_cast<i32>(s.finite ? std::clamp(sum, low, high) : sum);
      }
    });
  }
}
void run_multiply(Warp& w, const Code& c, u32 mask) { w.require_all(c, mask, &multiply); }

void run_matrix_fence(Warp& w, const Code& c, u32 mask) {
  w.require_all(c, mask, [](Warp& warp, const Code&) {
    if (!warp.matrix) return;  // a kernel with fences alone
    warp.matrix->fenced = true;
    for (MatrixRegisters::Row& row : warp.matrix->rows) {
      row.written = row.read = row.moved = false;
      row.fenced = true;
      row.shape = 0;
    }
  });
}
void run_commit(Warp& w, const Code& c, u32 mask) {
  w.require_all(c, mask, [](Warp& warp, const Code&) {
    if (!warp.matrix) return;
    warp.matrix->issued_before.push_back(warp.matrix->issued);
    ++warp.matrix->group;
  });
}
// A wgmma completes for all four warps at once, so a wait also waits until all of them have executed it.
bool wait(Warp& w, const Code& c) {
  if (!w.matrix) return true;
  MatrixRegisters& r = *w.matrix;
  const auto keep = static_cast<u64>(c.offset[0]);
  if (r.group - 1 <= keep) return true;
  const auto complete = static_cast<u32>(r.group - 1 - keep);
  // The wait first lets the other threads run: one that overwrites an operand too early does so now, while the
  // wgmma still reads it, and is reported.
  if (r.delayed < complete) {
    r.delayed = complete;
    return false;
  }
  if (w.async().warpgroups[w.number() / 4].completed() < r.issued_before[complete - 1]) return false;
  for (MatrixRegisters::Row& row : r.rows) {
    if (row.writing <= complete) row.writing = 0;
    if (row.reading <= complete) row.reading = 0;
  }
  w.async().release(w.async().warpgroups[w.number() / 4], r.issued_before[complete - 1]);
  if (w.races())
    for (u32 lane = 0; lane < 32; ++lane)
      w.races()->acquire(w.number(), lane, kWarpgroupKey + w.number() / 4);
  ++w.async().progress;
  return true;
}
void run_wait(Warp& w, const Code& c, u32 mask) {
  bool done = true;
  w.require_all(c, mask, [&](Warp&, const Code&) { done = wait(w, c); });
  if (!done) w.wait_for_event(kAllLanes, true, Warp::Event::kWarpgroup);
}

bool type_number(std::string_view name, u32& type) {
  const auto found = std::find(std::begin(kTypeNames), std::end(kTypeNames), name);
  type = static_cast<u32>(found - std::begin(kTypeNames));
  return found != std::end(kTypeNames);
}

}  // namespace

void check_matrix_access(Warp& w, const Code& c) {
  const Ref* const o = w.operands(c);
  const auto fail = [&](const char* does, const char* role) {
    w.fail(c, 0,
           std::string(does) + " a register that is " + role +
               " of a wgmma.mma_async that has not completed; wgmma.wait_group must come before");
  };
  const bool moves = c.touches == Code::kMatrixMove;
  const auto check_write = [&](const Ref& r) {
    MatrixRegisters::Row* const row = row_of(w, r);
    if (!row) return;
    if (row->writing != 0) fail("writes", "an accumulator");
    if (row->reading != 0) fail("writes", "matrix A");
    (moves ? row->moved : row->written) = true;
  };
  if (moves) {
    // ptxas gives both the same register, so the copy is as unfinished as the original.
    MatrixRegisters::Row *const from = row_of(w, o[1]), *const to = row_of(w, o[0]);
    check_write(o[0]);
    if (from && to && from->writing != 0) *to = *from;
    else if (from) from->moved = true;
    return;
  }
  for (u32 i = c.destinations; i < c.count; ++i)
    if (MatrixRegisters::Row* const row = row_of(w, o[i])) {
      if (row->writing != 0) fail("reads", "an accumulator");
      row->read = true;
    }
  for (u32 i = 0; i < c.destinations; ++i) check_write(o[i]);
}

void find_matrix_registers(Program& p) {
  std::vector<u16>& numbers = p.matrix_registers;
  const auto add = [&](const Ref& r) {
    if (r.base != 0 || r.width != 4 || r.offset < kFirstRegister) return false;
    if (numbers.empty()) numbers.resize(p.register_bytes / 32 + 1);
    u16& number = numbers[r.offset / 32];
    if (number != 0) return false;
    number = static_cast<u16>(++p.matrix_register_count);
    return true;
  };
  for (const Code& c : p.code)
    if (c.run == &run_multiply) {
      const Shape s = shape_of(c);
      for (u32 i = 0; i < s.accumulators() + (s.registers ? 4 : 0); ++i) add(p.refs[c.first + i]);
    }
  // A mov of such a register makes its destination another one.
  for (bool grows = !numbers.empty(); grows;) {
    grows = false;
    for (const Code& c : p.code)
      if (const Ref* const o = &p.refs[c.first]; c.touches == Code::kMatrixMove && o[1].base == 0 &&
                                                 o[1].width == 4 && numbers[o[1].offset / 32] != 0)
        grows = add(o[0]) || grows;
  }
  for (Code& c : p.code) {
    const bool moves = c.touches == Code::kMatrixMove;
    c.touches = Code::kNothing;
    if (numbers.empty() || c.run == &run_multiply) continue;
    for (u32 i = 0; i < c.count; ++i)
      if (const Ref& r = p.refs[c.first + i]; r.base == 0 && r.width == 4 && numbers[r.offset / 32] != 0)
        c.touches = moves ? Code::kMatrixMove : Code::kMatrix;
  }
}

void prepare_matrix_registers(Warp& w) {
  if (w.program().matrix_register_count == 0) return;
  w.matrix = std::make_shared<MatrixRegisters>();
  w.matrix->rows.resize(w.program().matrix_register_count);
}

bool find_wgmma(const Parts& p, Entry& e) {
  if (p[0] != "wgmma" || p.size() < 4 || p[2] != "sync" || p[3] != "aligned") return false;
  e = Entry{};
  e.uses_async = true;
  if (p.size() == 4) {
    if (p[1] == "fence") e.run = &run_matrix_fence;
    else if (p[1] == "commit_group") e.run = &run_commit;
    else if (p[1] == "wait_group") {
      e.run = &run_wait;
      e.signature = "i";
    } else {
      return false;
    }
    return true;
  }
  // wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16; integers may have .satfinite.
  if (p[1] != "mma_async" || p.size() < 8 || !p[4].starts_with("m64n")) return false;
  const bool finite = p[5] == "satfinite";
  if (p.size() != 8u + (finite ? 1 : 0)) return false;
  const std::string_view result = p[p.size() - 3];
  u32 a = 0, b = 0, n = 0;
  if (!type_number(p[p.size() - 2], a) || !type_number(p.back(), b)) return false;
  std::size_t at = 4;
  for (; at < p[4].size() && p[4][at] >= '0' && p[4][at] <= '9' && n < 1000; ++at)
    n = 10 * n + static_cast<u32>(p[4][at] - '0');
  const bool small = a == kE4m3 || a == kE5m2, integer = a >= kS8;
  if (n < 8 || n > 256 || n % 8 != 0) return false;
  if (integer && n % 16 != 0 && n != 8 && n != 24) return false;
  if (small ? b != kE4m3 && b != kE5m2 : integer ? b < kS8 : a != b) return false;
  const u32 result_type = result == "f32" ? kResultF32 : result == "f16" ? kResultF16 : kResultS32;
  if (integer ? result != "s32" : result == "f16" ? a != kF16 && !small : result != "f32") return false;
  if (finite && !integer) return false;
  e.flags = n | a << kTypeShiftA | b << kTypeShiftB | result_type << kResultShift | (finite ? kFinite : 0u);
  const Shape s = shape_of(Code{.flags = e.flags});
  if (p[4].substr(at) != "k" + std::to_string(s.k())) return false;
  e.run = &run_multiply;
  // The operands behind d: decode.cpp replaces '*' by what the text passes as A, a vector or a descriptor.
  e.signature =
      "w" + std::to_string(s.accumulators()) + "=*lp" + (integer ? "" : "ww") + (a <= kBf16 ? "~w" : "");
  return true;
}

void choose_wgmma_operands(Entry& e, bool registers) {
  if (registers) e.flags |= kRegisters;
  std::string chosen;
  for (const char letter : e.signature) {
    if (letter == '*') chosen += registers ? "w4" : "l";
    else if (letter == '~') chosen += registers ? "" : "w";
    else chosen += letter;
  }
  e.signature = chosen;
}

}  // namespace tapestry::ptx
