// Loads, stores, atomics, asynchronous copies and conversions of addresses.
#include <algorithm>

#include "tapestry/tools/ptx/async.h"
#include "tapestry/tools/ptx/numeric.h"
#include "tapestry/tools/ptx/races.h"
#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

// Flags: bits 0-2 the space, 3-6 the bytes of an element, 7-10 the elements, 11 whether to extend the sign.
constexpr u32 kSigned = 1 << 11;
constexpr u32 space_flag(Space s) { return static_cast<u32>(s); }

template <class T>
void load_element(Warp& w, const Ref& r, const u8 (&from)[32][16], u32 at, u32 bytes, bool is_signed,
                  u32 mask) {
  T values[32] = {};
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    std::memcpy(&values[lane], &from[lane][at], bytes);
    if (is_signed && bytes < sizeof(T)) {
      const int drop = static_cast<int>(8 * (sizeof(T) - bytes));
      using S = std::make_signed_t<T>;
      values[lane] = static_cast<T>(static_cast<S>(static_cast<S>(values[lane] << drop) >> drop));
    }
  }
  w.write(r, values, mask);
}

void run_load(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u32 bytes = (c.flags >> 3) & 15, count = (c.flags >> 7) & 15;
  const auto space = static_cast<Space>(c.flags & 7);
  u64 address[32];
  w.addresses(space, o[count], c.offset[0], address);
  u8 data[32][16];
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    std::memcpy(data[lane], w.locate(c, lane, space, address[lane], bytes * count, Warp::Access::kRead),
                bytes * count);
  }
  const bool is_signed = (c.flags & kSigned) != 0;
  for (u32 e = 0; e < count; ++e) {
    if (o[e].width == 2) load_element<u16>(w, o[e], data, e * bytes, bytes, is_signed, mask);
    else if (o[e].width == 4) load_element<u32>(w, o[e], data, e * bytes, bytes, is_signed, mask);
    else load_element<u64>(w, o[e], data, e * bytes, bytes, is_signed, mask);
  }
}
void run_store(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);  // the address, then the values
  const u32 bytes = (c.flags >> 3) & 15, count = (c.flags >> 7) & 15;
  const auto space = static_cast<Space>(c.flags & 7);
  u64 address[32];
  w.addresses(space, o[0], c.offset[0], address);
  const std::byte* rows[4];
  for (u32 e = 0; e < count; ++e) rows[e] = w.row<const std::byte>(o[1 + e]);
  for (u32 m = mask; m != 0; m &= m - 1) {
    const auto lane = static_cast<u32>(std::countr_zero(m));
    std::byte value[16];
    for (u32 e = 0; e < count; ++e) std::memcpy(value + e * bytes, rows[e] + lane * o[1 + e].width, bytes);
    std::byte* const to = w.locate(c, static_cast<int>(lane), space, address[lane], bytes * count,
                                   Warp::Access::kWrite, nullptr, value);
    std::memcpy(to, value, bytes * count);
  }
}

enum AtomicOp : u32 { kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCompare, kIncrement, kDecrement };
constexpr std::string_view kAtomicNames[] = {"add", "min",  "max", "and", "or",
                                             "xor", "exch", "cas", "inc", "dec"};
// Flags: bits 12-15 the operation, 16-18 the kind of type, 19 whether there is no destination.
template <class T>
T combine(u32 op, Type::Kind kind, T old, T b, T third) {
  using S = std::make_signed_t<T>;
  switch (op) {
    case kAdd:
      if (kind == Type::kFloat) {
        if constexpr (sizeof(T) == 4)
          return std::bit_cast<u32>(canonical(std::bit_cast<float>(old) + std::bit_cast<float>(b)));
        else if constexpr (sizeof(T) == 8)
          return std::bit_cast<u64>(std::bit_cast<double>(old) + std::bit_cast<double>(b));
      }
      return static_cast<T>(old + b);
    case kMin:
      return kind == Type::kSigned ? static_cast<T>(std::min(static_cast<S>(old), static_cast<S>(b)))
                                   : std::min(old, b);
    case kMax:
      return kind == Type::kSigned ? static_cast<T>(std::max(static_cast<S>(old), static_cast<S>(b)))
                                   : std::max(old, b);
    case kAnd:
      return static_cast<T>(old & b);
    case kOr:
      return static_cast<T>(old | b);
    case kXor:
      return static_cast<T>(old ^ b);
    case kExchange:
      return b;
    case kCompare:
      return old == b ? third : old;
    case kIncrement:
      return static_cast<T>(old >= b ? 0 : old + 1);
    default:
      return static_cast<T>(old == 0 || old > b ? b : old - 1);
  }
}
template <class T>
void run_atomic(Warp& w, const Code& c, u32 mask) {
  const Ref* o = w.operands(c);
  const bool has_result = (c.flags & (1u << 19)) == 0;
  const Ref result = *o;
  if (has_result) ++o;
  const u32 op = (c.flags >> 12) & 15;
  const auto kind = static_cast<Type::Kind>((c.flags >> 16) & 7);
  u64 address[32];
  const auto space = static_cast<Space>(c.flags & 7);
  w.addresses(space, o[0], c.offset[0], address);
  const T *const b = w.row<const T>(o[1]), *const third = op == kCompare ? w.row<const T>(o[2]) : b;
  T values[32] = {};
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    std::byte* const at = w.locate(c, lane, space, address[lane], sizeof(T), Warp::Access::kUpdate);
    std::memcpy(&values[lane], at, sizeof(T));
    const T updated = combine<T>(op, kind, values[lane], b[lane], third[lane]);
    std::memcpy(at, &updated, sizeof(T));
  }
  if (has_result) w.write(result, values, mask);
}

// add, min and max of f16 and bf16, alone, in pairs, and in vectors of them or of f32. Each element is an
// atomic of its own. Flags: bits 12-15 the operation, 16 whether bf16, 17-18 the type (0: 16 bits, 1: a pair,
// 2: f32), 19 as above, 20-23 the number of registers.
u16 combine_half(u32 op, Format f, u16 old, u16 b) {
  const double x = widen(old, f), y = widen(b, f);
  double result = x + y;  // exact, or far from a tie: two numbers of few bits
  if (op != kAdd) result = x != x ? y : y != y ? x : (op == kMin) == (x < y) ? x : y;
  return static_cast<u16>(narrow(result, f, kNearestEven));
}
void run_atomic_elements(Warp& w, const Code& c, u32 mask) {
  const Ref* o = w.operands(c);
  const bool has_result = (c.flags & (1u << 19)) == 0;
  const u32 op = (c.flags >> 12) & 15, type = (c.flags >> 17) & 3, count = (c.flags >> 20) & 15;
  const Format format = (c.flags & (1u << 16)) != 0 ? kBrain : kHalf;
  const u32 bytes = type == 0 ? 2 : 4;
  const Ref* const results = o;
  if (has_result) o += count;
  u64 address[32];
  const auto space = static_cast<Space>(c.flags & 7);
  w.addresses(space, o[0], c.offset[0], address);
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    if (address[lane] % (bytes * count) != 0)
      w.fail(c, lane,
             "updates " + hex(address[lane]) + ", which is no multiple of " + std::to_string(bytes * count));
    u32 sources[8] = {}, before[8] = {};
    for (u32 i = 0; i < count; ++i)
      sources[i] = bytes == 2 ? w.row<const u16>(o[1 + i])[lane] : w.row<const u32>(o[1 + i])[lane];
    for (u32 i = 0; i < count; ++i) {
      std::byte* const at = w.locate(c, lane, space, address[lane] + i * bytes, bytes, Warp::Access::kUpdate);
      std::memcpy(&before[i], at, bytes);
      u32 updated = 0;
      if (type == 2) {
        updated = combine<u32>(op, Type::kFloat, before[i], sources[i], 0);
      } else {
        for (u32 shift = 0; shift < 8 * bytes; shift += 16)
          updated |= u32{combine_half(op, format, static_cast<u16>(before[i] >> shift),
                                      static_cast<u16>(sources[i] >> shift))}
                     << shift;
      }
      std::memcpy(at, &updated, bytes);
    }
    for (u32 i = 0; has_result && i < count; ++i) {
      if (bytes == 2) w.row<u16>(results[i])[lane] = static_cast<u16>(before[i]);
      else w.row<u32>(results[i])[lane] = before[i];
    }
  }
}

// cp.async writes its destination at the wait, as late as it may. Until then, the bytes cannot be read.
void run_async_copy(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  u64 to[32], from[32];
  w.addresses(Space::kShared, o[0], c.offset[0], to);
  w.addresses(Space::kGlobal, o[1], c.offset[1], from);
  const auto number = [&](const Ref& r, int lane) {
    return r.width == 4   ? u64{w.row<const u32>(r)[lane]}
           : r.width == 8 ? w.row<const u64>(r)[lane]
                          : u64{w.row<const u16>(r)[lane]};
  };
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const u64 bytes = number(o[2], lane), source = c.count > 3 ? number(o[3], lane) : bytes;
    if ((bytes != 4 && bytes != 8 && bytes != 16) || source > bytes)
      w.fail(c, lane, "copies 4, 8 or 16 bytes");
    u8* states = nullptr;
    w.locate(c, lane, Space::kShared, to[lane], static_cast<u32>(bytes), Warp::Access::kWrite, &states);
    std::memset(states, kInFlight, bytes);
    // The source is read at the wait as well, but an invalid one is an error of this instruction.
    const std::byte* data = nullptr;
    if (source != 0) {
      if (from[lane] % bytes != 0)
        w.fail(c, lane, "reads " + hex(from[lane]) + ", which is no multiple of " + std::to_string(bytes));
      for (u64 at = 0; at < source; ++at) {
        const std::byte* const one =
            w.locate(c, lane, Space::kGlobal, from[lane] + at, 1, Warp::Access::kRead);
        if (at == 0) data = one;
      }
    }
    ++w.copies_issued[lane];
    w.copies[lane].push_back({to[lane], data, static_cast<u32>(bytes), static_cast<u32>(source),
                              w.group[lane], from[lane], &c,
                              w.races() ? w.races()->moment(w.number(), static_cast<u32>(lane)) : nullptr});
  }
}
void run_commit(Warp& w, const Code&, u32 mask) {
  for (u32 m = mask; m != 0; m &= m - 1) ++w.group[std::countr_zero(m)];
}
// Completes the copies of a lane, the oldest first, while they satisfy the condition.
template <class F>
void complete_while(Warp& w, int lane, F condition) {
  Store& shared = w.block().shared;
  auto& copies = w.copies[lane];
  std::size_t done = 0;
  for (; done < copies.size() && condition(copies[done], done); ++done) {
    const Warp::AsyncCopy& copy = copies[done];
    std::byte* const to = shared.data.data() + copy.to;
    std::memset(to, 0, copy.bytes);
    if (copy.source_bytes != 0) std::memcpy(to, copy.from, copy.source_bytes);
    std::memset(shared.states.data() + copy.to, kInitialised, copy.bytes);
    if (!copy.since) continue;
    w.end_access(*copy.code, lane, Space::kShared, copy.to, copy.bytes, Warp::Access::kWrite, copy.since);
    w.end_access(*copy.code, lane, Space::kGlobal, copy.source, copy.source_bytes, Warp::Access::kRead,
                 copy.since);
  }
  copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(done));
}
void complete(Warp& w, u32 mask, u64 keep, bool all) {
  for (u32 m = mask; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    complete_while(w, lane, [&](const Warp::AsyncCopy& copy, std::size_t) {
      return all || copy.group + keep < w.group[lane];
    });
  }
}
void run_wait_group(Warp& w, const Code& c, u32 mask) {
  complete(w, mask, static_cast<u64>(c.offset[0]), false);
}
void run_wait_all(Warp& w, const Code&, u32 mask) { complete(w, mask, 0, true); }

u64 window_of(u32 space) {
  const auto s = static_cast<Space>(space);
  return s == Space::kShared  ? kSharedWindow
         : s == Space::kLocal ? kLocalWindow
         : s == Space::kParam ? kParamWindow
                              : 0;
}
// cvta adds the window of a space, and cvta.to takes it away.
template <bool to>
void run_convert_address(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u64* const a = w.row<const u64>(o[1]);
  u64 values[32];
  for (int lane = 0; lane < 32; ++lane)
    values[lane] = to ? a[lane] - window_of(c.flags) : a[lane] + window_of(c.flags);
  w.write(o[0], values, mask);
}
void run_is_space(Warp& w, const Code& c, u32 mask) {
  const Ref* const o = w.operands(c);
  const u64* const a = w.row<const u64>(o[1]);
  u32 bits = 0;
  for (int lane = 0; lane < 32; ++lane)
    bits |= static_cast<u32>((a[lane] & ~(kWindow - 1)) == window_of(c.flags)) << lane;
  w.set_predicate(o[0], bits, mask);
}

bool space_of(std::string_view name, Space& space) {
  if (name == "global") space = Space::kGlobal;
  else if (name == "shared" || name == "shared::cta" || name == "shared::cluster") space = Space::kShared;
  else if (name == "local") space = Space::kLocal;
  else if (name == "const") space = Space::kConst;
  else if (name == "param" || name == "param::entry" || name == "param::func") space = Space::kParam;
  else return false;
  return true;
}
// How an access takes part in the memory model. Without a word about it, loads and stores are weak, and
// atomics are relaxed for the device.
u8 order_of(const Parts& parts, bool atomic) {
  const auto has = [&](std::string_view name) {
    return std::find(parts.begin(), parts.end(), name) != parts.end();
  };
  const bool acquire = has("acquire") || has("acq_rel"), release = has("release") || has("acq_rel");
  u32 order = 0;
  if (acquire) order |= kAcquire;
  if (release) order |= kRelease;
  if (has("volatile") || has("sys") || has("mmio")) order |= kScopeSystem;
  else if (has("cta")) order |= kScopeBlock;
  else if (atomic || acquire || release || has("relaxed")) order |= kScopeDevice;
  if (has("nc") || parts[0] == "ldu") order |= kNonCoherent;
  if (atomic) order |= parts[0] == "red" ? kReduces : kObserves;
  if (atomic && has("cas")) order |= kCompares;
  return static_cast<u8>(order);
}
// Modifiers that say how other threads see an access, or how caches treat it.
bool is_hint(std::string_view part) {
  static constexpr std::string_view kHints[] = {
      "volatile", "relaxed", "acquire", "release", "acq_rel", "weak", "cta", "gpu", "sys",  "cluster",
      "ca",       "cg",      "cs",      "lu",      "cv",      "wb",   "wt",  "nc",  "noftz"};
  return std::find(std::begin(kHints), std::end(kHints), part) != std::end(kHints) ||
         part.starts_with("L1::") || part.starts_with("L2::");
}

}  // namespace

bool find_access(const Parts& parts, Entry& entry) {
  if (parts[0] == "cvta" || parts[0] == "isspacep") {
    const bool to = parts.size() > 1 && parts[1] == "to";
    Space space{};
    const std::size_t at = to ? 2 : 1;
    if (parts.size() <= at || !space_of(parts[at], space)) return false;
    if (parts[0] == "isspacep") {
      if (parts.size() != 2) return false;
      entry = {&run_is_space, "p=l", space_flag(space)};
      return true;
    }
    if (parts.size() != at + 2 || parts.back() != "u64") return false;
    entry = {to ? &run_convert_address<true> : &run_convert_address<false>, "l=l", space_flag(space)};
    return true;
  }
  const bool load = parts[0] == "ld" || parts[0] == "ldu";
  if ((!load && parts[0] != "st") || parts.size() < 2) return false;
  Space space = Space::kGeneric;
  u32 count = 1;
  for (std::size_t i = 1; i + 1 < parts.size(); ++i) {
    if (parts[i] == "v2") count = 2;
    else if (parts[i] == "v4") count = 4;
    else if (!space_of(parts[i], space) && !is_hint(parts[i])) return false;
  }
  Type type;
  if (!parse_type(parts.back(), type) || type.bytes == 0 || u32{type.bytes} * count > 16) return false;
  entry.flags =
      space_flag(space) | (u32{type.bytes} << 3) | (count << 7) | (type.kind == Type::kSigned ? kSigned : 0u);
  entry.order = order_of(parts, false);
  entry.run = load ? &run_load : &run_store;
  entry.signature = load ? "v=m" : "mv";
  return true;
}

bool find_atomic(const Parts& parts, Entry& entry) {
  const bool red = parts[0] == "red";
  if ((!red && parts[0] != "atom") || parts.size() < 3) return false;
  Space space = Space::kGeneric;
  u32 op = ~0u;
  for (std::size_t i = 1; i + 1 < parts.size(); ++i) {
    const auto found = std::find(std::begin(kAtomicNames), std::end(kAtomicNames), parts[i]);
    if (found != std::end(kAtomicNames)) op = static_cast<u32>(found - std::begin(kAtomicNames));
    else if (parts[i] == "v2" || parts[i] == "v4" || parts[i] == "v8" || parts[i] == "f16" ||
             parts[i] == "bf16" || parts[i] == "f16x2" || parts[i] == "bf16x2" || parts[i] == "f32")
      continue;
    else if (!space_of(parts[i], space) && !is_hint(parts[i])) return false;
  }
  Type type;
  // f16, bf16, pairs of them, and vectors.
  u32 vector = 1, element = 3;
  bool brain = false;
  for (const std::string_view part : parts) {
    if (part == "v2" || part == "v4" || part == "v8") vector = static_cast<u32>(part[1] - '0');
    if (part == "f16" || part == "bf16") element = 0;
    if (part == "f16x2" || part == "bf16x2") element = 1;
    if (part == "f32") element = 2;
    brain = brain || part.starts_with("bf16");
  }
  if (element < 2 || (element == 2 && vector > 1)) {
    const std::string_view last = parts.back();
    if (last != "f32" && !last.starts_with("f16") && !last.starts_with("bf16")) return false;
    if (op > kMax || (element == 2 && op != kAdd) || vector * (element == 0 ? 2 : 4) > 16) return false;
    const std::string list = std::string(element == 0 ? "h" : "w") + std::to_string(vector);
    entry.order = order_of(parts, true);
    entry.run = &run_atomic_elements;
    entry.signature = (red ? "m" : list + "=m") + list;
    entry.flags = space_flag(space) | op << 12 | (brain ? 1u << 16 : 0u) | element << 17 |
                  (red ? 1u << 19 : 0u) | vector << 20;
    return true;
  }
  if (op == ~0u || vector != 1 || !parse_type(parts.back(), type) || type.bytes < 2) return false;
  if (type.bytes == 2) {  // atom.cas.b16 and atom.exch.b16
    if (op != kCompare && op != kExchange) return false;
    entry.order = order_of(parts, true);
    entry.run = &run_atomic<u16>;
    entry.signature = std::string(red ? "m" : "h=m") + (op == kCompare ? "hh" : "h");
    entry.flags = space_flag(space) | (op << 12) | (u32{type.kind} << 16) | (red ? 1u << 19 : 0u);
    return true;
  }
  if (type.kind == Type::kFloat && op != kAdd) return false;
  const std::string l = type.bytes == 4 ? "w" : "l";
  entry.order = order_of(parts, true);
  entry.run = type.bytes == 4 ? &run_atomic<u32> : &run_atomic<u64>;
  entry.signature = (red ? "m" : l + "=m") + l + (op == kCompare ? l : "");
  entry.flags = space_flag(space) | (op << 12) | (u32{type.kind} << 16) | (red ? 1u << 19 : 0u);
  return true;
}

void complete_copies(Warp& w, int lane, u64 count) {
  const u64 completed = w.copies_issued[lane] - w.copies[lane].size();
  complete_while(w, lane, [&](const Warp::AsyncCopy&, std::size_t i) { return completed + i < count; });
}

bool find_async(const Parts& parts, Entry& entry) {
  if (parts.size() < 3 || parts[0] != "cp" || parts[1] != "async") return false;
  if (parts.size() == 3) {
    if (parts[2] == "commit_group") entry = {&run_commit, "", 0};
    else if (parts[2] == "wait_group") entry = {&run_wait_group, "i", 0};
    else if (parts[2] == "wait_all") entry = {&run_wait_all, "", 0};
    else return false;
    return true;
  }
  // .ca or .cg, and the spaces of the two operands in their order.
  Space spaces[2] = {};
  std::size_t found = 0, caches = 0;
  for (std::size_t i = 2; i < parts.size(); ++i) {
    if (parts[i] == "ca" || parts[i] == "cg") ++caches;
    else if (found < 2 && space_of(parts[i], spaces[found])) ++found;
    else if (!is_hint(parts[i])) return false;
  }
  if (caches != 1 || spaces[0] != Space::kShared || spaces[1] != Space::kGlobal) return false;
  entry = {&run_async_copy, "mmx?x", space_flag(Space::kShared)};
  return true;
}

}  // namespace tapestry::ptx
