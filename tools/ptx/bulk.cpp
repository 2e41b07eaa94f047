// cp.async.bulk and cp.async.bulk.tensor: copies of whole rows and of boxes of tensors. Source: the PTX
// manual, "Data Movement and Conversion Instructions: Bulk copy" and "Tensor copy".
#include <algorithm>

#include "tapestry/tools/ptx/async.h"
#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/tensor_map.h"

namespace tapestry::ptx {
namespace {

// Flags: bits 0-2 the space of the first address; 3-5 the dimensions; 6-12 a reduction and its type.
constexpr u32 kDimensionShift = 3, kReductionShift = 6, kTypeShift = 4;
constexpr u32 kWritesShared = 1 << 13, kReads = 1 << 14, kMulticast = 1 << 15, kFromShared = 1 << 16;

// ---- reductions ----

enum Reduction : u32 { kNone, kAdd, kMin, kMax, kIncrement, kDecrement, kAnd, kOr, kXor };
enum ReductionType : u32 { kU32, kS32, kU64, kS64, kF16, kBf16, kF32, kF64 };
constexpr std::string_view kReductions[] = {"", "add", "min", "max", "inc", "dec", "and", "or", "xor"};
constexpr std::string_view kTypes[] = {"u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64"};

template <class T>
T reduce_integer(u32 op, T a, T b) {
  using U = std::make_unsigned_t<T>;
  switch (op) {
    case kAdd:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    case kMin:
      return std::min(a, b);
    case kMax:
      return std::max(a, b);
    case kIncrement:
      return static_cast<U>(a) >= static_cast<U>(b) ? T{0} : static_cast<T>(a + 1);
    case kDecrement:
      return a == 0 || static_cast<U>(a) > static_cast<U>(b) ? b : static_cast<T>(a - 1);
    case kAnd:
      return a & b;
    case kOr:
      return a | b;
    default:
      return a ^ b;
  }
}
template <class T>
T reduce_number(u32 op, T a, T b) {
  if (op == kAdd) return a + b;
  if (a != a || b != b) return a != a ? b : a;
  return (op == kMin) == (a < b) ? a : b;
}
template <class T, class F>
void each_element(std::byte* to, const std::byte* from, u32 bytes, F f) {
  for (u32 at = 0; at < bytes; at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + at, sizeof(T));
    std::memcpy(&b, from + at, sizeof(T));
    const T result = f(a, b);
    std::memcpy(to + at, &result, sizeof(T));
  }
}

// ---- operands ----

// An address that is neither the first nor the second operand in brackets: a base, and its offset as a
// constant.
void later_addresses(Warp& w, const Ref* o, u64 (&to)[32]) {
  // The offset is the same in all lanes.
  w.addresses(Space::kShared, o[0], static_cast<i64>(*w.row<const u64>(o[1])), to);
}
BulkOperation begin(Warp& w, const Code& c, int lane, BulkOperation::Kind kind) {
  BulkOperation o;
  o.warp = &w;
  o.code = &c;
  o.lane = lane;
  o.kind = kind;
  o.reduction = (c.flags >> kReductionShift) & 127;
  if (w.races()) o.agent = w.races()->begin(w.number(), static_cast<u32>(lane));
  if (w.races() && kind == BulkOperation::kStore)
    o.writer = w.races()->begin(w.number(), static_cast<u32>(lane));
  o.group = w.async().bulk_group[32 * w.number() + static_cast<u32>(lane)];
  return o;
}
void check_multicast(Warp& w, const Code& c, int lane, const Ref& mask) {
  const u32 blocks = mask.width == 2 ? w.row<const u16>(mask)[lane] : w.row<const u32>(mask)[lane];
  if (blocks != 1)
    w.fail(c, lane, "multicasts to the blocks " + hex(blocks) + " of the cluster, which has one block");
}
// The memory of a range of global addresses that a bulk copy reads or writes, after all checks: bounds,
// initialised bytes, races. The range need not be aligned.
std::byte* global_range(const BulkOperation& o, u64 address, u32 bytes) {
  const bool load = o.kind == BulkOperation::kLoad;
  return o.warp->locate(*o.code, o.lane, load ? o.agent : o.writer, Space::kGlobal, address, bytes,
                        load               ? Warp::Access::kRead
                        : o.reduction != 0 ? Warp::Access::kUpdate
                                           : Warp::Access::kWrite);
}

// ---- cp.async.bulk ----

void run_bulk(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  u64 first[32], second[32], barrier[32] = {};
  const bool load = (c.flags & kWritesShared) != 0;
  w.addresses(load ? Space::kShared : Space::kGlobal, o[0], c.offset[0], first);
  w.addresses(load ? Space::kGlobal : Space::kShared, o[1], c.offset[1], second);
  if (load) later_addresses(w, o + 3, barrier);
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const u32 bytes = w.row<const u32>(o[2])[lane];
    const u64 shared = load ? first[lane] : second[lane], global = load ? second[lane] : first[lane];
    for (const u64 value : {shared, global, u64{bytes}})
      if (value % 16 != 0)
        w.fail(c, lane,
               hex(value) + " is no multiple of 16: the size and both addresses of a bulk copy must be");
    if (load && (c.flags & kMulticast) != 0) check_multicast(w, c, lane, o[5]);
    BulkOperation operation = begin(w, c, lane, load ? BulkOperation::kLoad : BulkOperation::kStore);
    operation.bytes = bytes;
    operation.shared = shared;
    if (load) operation.barrier = barrier[lane];
    if ((c.flags & kFromShared) != 0)
      w.fail(c, lane, "copies within the shared memory of a cluster, which is not supported");
    if (bytes != 0) operation.segments.push_back({shared, global_range(operation, global, bytes), bytes, 0});
    w.async().start(std::move(operation));
  }
}
void run_prefetch(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  u64 address[32];
  w.addresses(Space::kGlobal, o[0], c.offset[0], address);
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    if (const u32 bytes = w.row<const u32>(o[1])[lane]; address[lane] % 16 != 0 || bytes % 16 != 0)
      w.fail(c, lane, "the size and the address of a prefetch must be multiples of 16");
  }
}
void run_commit(Warp& w, const Code&, u32 mask) {
  for (u32 m = mask; m != 0; m &= m - 1)
    ++w.async().bulk_group[32 * w.number() + static_cast<u32>(std::countr_zero(m))];
}
// Threads that overwrite what is still read have their chance before it completes.
void run_wait(Warp& w, const Code& c, u32 mask) {
  u32 waits = 0;
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const std::size_t thread = 32 * w.number() + static_cast<u32>(lane);
    u32& delayed = w.async().bulk_delayed[thread];
    if (const u32 committed = w.async().bulk_group[thread]; delayed < committed) {
      delayed = committed;
      waits |= 1u << lane;
    } else {
      w.async().wait_stores(w, lane, static_cast<u64>(c.offset[0]), (c.flags & kReads) != 0);
    }
  }
  if (waits != 0) w.wait_for_event(waits, true, Warp::Event::kStore);
}

// ---- cp.async.bulk.tensor ----

TensorMap read_map(Warp& w, const Code& c, int lane, u64 address, u32 rank) {
  if (address % 64 != 0)
    w.fail(c, lane,
           "the tensor map at " + hex(address) + " is not aligned: its address must be a multiple of 64");
  alignas(64) std::byte bytes[kTensorMapBytes];
  for (u64 at = 0; at < kTensorMapBytes; at += 16)
    std::memcpy(bytes + at, w.locate(c, lane, Space::kGeneric, address + at, 16, Warp::Access::kRead), 16);
  TensorMap map;
  if (!decode_tensor_map(bytes, map))
    w.fail(c, lane, "there is no tensor map at " + hex(address) + ": cuTensorMapEncodeTiled makes them");
  if (map.rank != rank)
    w.fail(c, lane,
           "names " + std::to_string(rank) + " coordinates of a tensor of " + std::to_string(map.rank) +
               " dimensions");
  return map;
}
u32 nan_pattern(TensorType type) {
  switch (type) {
    case TensorType::kF16:
    case TensorType::kBf16:
      return 0x7fff7fff;
    case TensorType::kF64:
      return 0xffffffff;
    default:
      return 0x7fffffff;
  }
}

// cp.reduce.async.bulk.tensor takes the type from the map.
u32 reduction_type(Warp& w, const Code& c, int lane, TensorType type) {
  switch (type) {
    case TensorType::kU32:
      return kU32;
    case TensorType::kS32:
      return kS32;
    case TensorType::kU64:
      return kU64;
    case TensorType::kS64:
      return kS64;
    case TensorType::kF16:
      return kF16;
    case TensorType::kBf16:
      return kBf16;
    case TensorType::kF32:
    case TensorType::kF32Ftz:
      return kF32;
    default:
      w.fail(c, lane, "reduces a tensor of a type that has no reductions");
  }
}

// The pieces of the box: runs of at most 16 bytes in shared memory, because swizzling moves 16-byte chunks.
// Elements outside of the tensor are filled by a load and skipped by a store.
void add_box(const TensorMap& map, const i64 (&origin)[5], BulkOperation& operation) {
  const u64 element = map.element_bytes(), row_bytes = element * map.box[0];
  const bool load = operation.kind == BulkOperation::kLoad;
  const u32 pattern = map.fill_nan ? nan_pattern(map.type) : 0;
  u64 rows = 1;
  for (u32 d = 1; d < map.rank; ++d) rows *= map.count(d);
  // The bytes of a row that lie in the tensor.
  const i64 size = static_cast<i64>(map.sizes[0]);
  const u64 low = static_cast<u64>(std::clamp(-origin[0], i64{0}, i64{map.box[0]})) * element,
            high = static_cast<u64>(std::clamp(size - origin[0], i64{0}, i64{map.box[0]})) * element;
  for (u64 row = 0; row < rows; ++row) {
    u64 rest = row, address = map.address;
    bool inside = low < high;
    for (u32 d = 1; d < map.rank; ++d) {
      const i64 x = origin[d] + static_cast<i64>(rest % map.count(d) * map.element_strides[d]);
      rest /= map.count(d);
      inside = inside && x >= 0 && x < static_cast<i64>(map.sizes[d]);
      address += static_cast<u64>(x) * map.strides[d - 1];
    }
    std::byte* data = nullptr;
    if (inside) {
      const u64 begin = address + static_cast<u64>(origin[0]) * element + low;
      data = global_range(operation, begin, static_cast<u32>(high - low));
    }
    for (u64 at = 0; at < row_bytes; at += 16) {
      const u64 place = swizzled(operation.shared + row * row_bytes + at, map.span());
      const u64 cut[4] = {at, inside ? std::clamp(low, at, at + 16) : at + 16,
                          inside ? std::clamp(high, at, at + 16) : at + 16, at + 16};
      for (int piece = 0; piece < 3; ++piece) {
        const u64 length = cut[piece + 1] - cut[piece];
        if (length == 0 || (piece != 1 && !load)) continue;
        std::byte* const from = piece == 1 ? data + (cut[1] - low) : nullptr;
        operation.segments.push_back({place + cut[piece] - at, from, static_cast<u32>(length), pattern});
      }
    }
  }
}

void run_tensor(Warp& w, const Code& c, u32 mask) {
  const Ref* o = w.operands(c);
  const u32 rank = (c.flags >> kDimensionShift) & 7;
  const bool load = (c.flags & kWritesShared) != 0;
  // A load has [shared], [map, coordinates], [mbarrier]; a store [map, coordinates], [shared].
  u64 shared[32], maps[32], barrier[32] = {};
  const Ref* coordinates = nullptr;
  if (load) {
    w.addresses(Space::kShared, o[0], c.offset[0], shared);
    w.addresses(Space::kGeneric, o[1], c.offset[1], maps);
    coordinates = o + 2;
    later_addresses(w, coordinates + rank, barrier);
  } else {
    w.addresses(Space::kGeneric, o[0], c.offset[0], maps);
    coordinates = o + 1;
    w.addresses(Space::kShared, coordinates[rank], c.offset[1], shared);
  }
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const TensorMap map = read_map(w, c, lane, maps[lane], rank);
    if (shared[lane] % 128 != 0)
      w.fail(c, lane,
             "the address " + hex(shared[lane]) +
                 " of shared memory is no multiple of 128, as a tensor copy needs");
    i64 origin[5] = {};
    for (u32 d = 0; d < rank; ++d) origin[d] = w.row<const i32>(coordinates[d])[lane];
    if (load && (c.flags & kMulticast) != 0) check_multicast(w, c, lane, coordinates[rank + 2]);
    BulkOperation operation = begin(w, c, lane, load ? BulkOperation::kLoad : BulkOperation::kStore);
    operation.bytes = map.box_bytes();
    if (operation.reduction != 0) operation.reduction |= reduction_type(w, c, lane, map.type) << kTypeShift;
    if (load) operation.barrier = barrier[lane];
    operation.shared = shared[lane];
    add_box(map, origin, operation);
    w.async().start(std::move(operation));
  }
}
void run_tensor_prefetch(Warp& w, const Code& c, u32 mask) {
  u64 maps[32];
  w.addresses(Space::kGeneric, w.operands(c)[0], c.offset[0], maps);
  for (u32 m = mask; m != 0; m &= m - 1)
    read_map(w, c, std::countr_zero(m), maps[std::countr_zero(m)], (c.flags >> kDimensionShift) & 7);
}

// ---- opcodes ----

u32 dimensions(std::string_view part) {
  return part.size() == 2 && part[0] >= '1' && part[0] <= '5' && part[1] == 'd'
             ? static_cast<u32>(part[0] - '0')
             : 0;
}

struct Modifiers {
  bool to_shared = false, to_global = false, from_shared = false, from_global = false, barrier = false,
       group = false, hint = false, multicast = false;
  u32 reduction = 0, type = 0, rank = 0;
  bool has_type = false;
};
// The parts behind "cp.async.bulk" or "cp.reduce.async.bulk".
bool read_modifiers(const Parts& p, std::size_t at, Modifiers& m) {
  bool first_space = true;
  for (; at < p.size(); ++at) {
    const std::string_view part = p[at];
    const bool shared = part == "shared::cluster" || part == "shared::cta";
    if (shared || part == "global") {
      (first_space ? (shared ? m.to_shared : m.to_global) : (shared ? m.from_shared : m.from_global)) = true;
      first_space = false;
    } else if (part == "mbarrier::complete_tx::bytes") {
      m.barrier = true;
    } else if (part == "bulk_group") {
      m.group = true;
    } else if (part == "L2::cache_hint") {
      m.hint = true;
    } else if (part == "multicast::cluster") {
      m.multicast = true;
    } else if (const u32 rank = dimensions(part); rank != 0) {
      m.rank = rank;
    } else if (const auto op = std::find(std::begin(kReductions) + 1, std::end(kReductions), part);
               op != std::end(kReductions)) {
      m.reduction = static_cast<u32>(op - std::begin(kReductions));
    } else if (const auto type = std::find(std::begin(kTypes), std::end(kTypes), part);
               type != std::end(kTypes)) {
      m.type = static_cast<u32>(type - std::begin(kTypes));
      m.has_type = true;
    } else if (part == "b32" || part == "b64") {
      m.type = part == "b32" ? kU32 : kU64;
      m.has_type = true;
    } else if (part != "tile" && part != "noftz" && part != "tensor") {
      return false;
    }
  }
  return true;
}

}  // namespace

void reduce_bulk(u32 reduction, std::byte* to, const std::byte* from, u32 bytes) {
  const u32 op = reduction & 15, type = reduction >> kTypeShift;
  const auto small = [&](Format f) {
    each_element<u16>(to, from, bytes, [&](u16 a, u16 b) {
      return static_cast<u16>(narrow(reduce_number(op, widen(a, f), widen(b, f)), f, kNearestEven));
    });
  };
  const auto integer = [&]<class T>(T) {
    each_element<T>(to, from, bytes, [&](T a, T b) { return reduce_integer(op, a, b); });
  };
  if (type == kU32) integer(u32{});
  else if (type == kS32) integer(i32{});
  else if (type == kU64) integer(u64{});
  else if (type == kS64) integer(i64{});
  else if (type == kF16) small(kHalf);
  else if (type == kBf16) small(kBrain);
  else if (type == kF32)
    each_element<float>(to, from, bytes,
                        [&](float a, float b) { return reduce_number(op, flush(a), flush(b)); });
  else each_element<double>(to, from, bytes, [&](double a, double b) { return reduce_number(op, a, b); });
}

bool find_bulk(const Parts& p, Entry& e) {
  const bool reduces = p.size() > 3 && p[0] == "cp" && p[1] == "reduce" && p[2] == "async" && p[3] == "bulk";
  if (!reduces && !(p.size() > 3 && p[0] == "cp" && p[1] == "async" && p[2] == "bulk")) return false;
  e = Entry{};
  e.uses_async = true;
  const std::size_t at = reduces ? 4 : 3;
  if (!reduces && p[at] == "commit_group" && p.size() == at + 1) {
    e.run = &run_commit;
    return true;
  }
  if (!reduces && p[at] == "wait_group" &&
      (p.size() == at + 1 || (p.size() == at + 2 && p[at + 1] == "read"))) {
    e.run = &run_wait;
    e.signature = "i";
    e.flags = p.size() == at + 2 ? kReads : 0u;
    return true;
  }
  Modifiers m;
  if (!reduces && p[at] == "prefetch") {
    // cp.async.bulk.prefetch.L2.global and cp.async.bulk.prefetch.tensor.2d.L2.global
    Parts rest;
    for (std::size_t i = at + 1; i < p.size(); ++i)
      if (p[i] != "L2") rest.push_back(p[i]);
    if (!read_modifiers(rest, 0, m) || !m.to_global || m.barrier || m.group || m.multicast) return false;
    e.run = m.rank != 0 ? &run_tensor_prefetch : &run_prefetch;
    e.signature = m.rank != 0 ? "t" + std::to_string(m.rank) : "mw";
    if (m.hint) e.signature += "l";
    e.flags = static_cast<u32>(m.rank != 0 ? Space::kGeneric : Space::kGlobal) | (m.rank << kDimensionShift);
    return true;
  }
  if (!read_modifiers(p, at, m)) return false;
  const bool tensor = p[at] == "tensor",
             load = m.to_shared && m.barrier && !m.group && (m.from_global || m.from_shared),
             store = m.to_global && m.from_shared && m.group && !m.barrier && !m.multicast;
  if (tensor != (m.rank != 0) || load == store || (reduces && load)) return false;
  if (reduces && (m.reduction == 0 || (!tensor && !m.has_type))) return false;
  if (!reduces && (m.reduction != 0 || m.has_type)) return false;
  if (tensor && m.from_shared && load) return false;
  e.flags = m.rank << kDimensionShift | (load ? kWritesShared : 0u) | (m.multicast ? kMulticast : 0u) |
            (load && m.from_shared ? kFromShared : 0u) |
            (m.reduction | m.type << kTypeShift) << kReductionShift;
  if (tensor) {
    if (m.has_type) return false;
    e.run = &run_tensor;
    e.flags |= static_cast<u32>(load ? Space::kShared : Space::kGeneric);
    e.signature = load ? "mt" + std::to_string(m.rank) + "m" : "t" + std::to_string(m.rank) + "m";
  } else {
    e.run = &run_bulk;
    e.flags |= static_cast<u32>(load ? Space::kShared : Space::kGlobal);
    e.signature = load ? "mmwm" : "mmw";
  }
  if (m.multicast) e.signature += "x";
  if (m.hint) e.signature += "l";
  return true;
}

}  // namespace tapestry::ptx
