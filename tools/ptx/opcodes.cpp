// The table of opcodes, and the special registers.
#include <algorithm>

#include "tapestry/tools/ptx/decode.h"

namespace tapestry::ptx {
namespace {

Parts split(std::string_view opcode) {
  Parts parts;
  for (std::size_t at = 0; at <= opcode.size();) {
    const std::size_t dot = std::min(opcode.find('.', at), opcode.size());
    parts.push_back(opcode.substr(at, dot - at));
    at = dot + 1;
  }
  return parts;
}

struct Named {
  std::string_view name;
  SpecialRow row;
  std::uint8_t width = 4;
  bool is_clock = false;
};
// A clock counts the nanoseconds of a machine of 1 GHz, on which each look at it takes 1000 cycles.
constexpr Named kSpecials[] = {{"%tid.x", kTidX},
                               {"%tid.y", kTidY},
                               {"%tid.z", kTidZ},
                               {"%ntid.x", kNtidX},
                               {"%ntid.y", kNtidY},
                               {"%ntid.z", kNtidZ},
                               {"%ctaid.x", kCtaidX},
                               {"%ctaid.y", kCtaidY},
                               {"%ctaid.z", kCtaidZ},
                               {"%nctaid.x", kNctaidX},
                               {"%nctaid.y", kNctaidY},
                               {"%nctaid.z", kNctaidZ},
                               {"%laneid", kLaneId},
                               {"%warpid", kWarpId},
                               {"%nwarpid", kNwarpId},
                               {"%lanemask_eq", kLaneEq},
                               {"%lanemask_lt", kLaneLt},
                               {"%lanemask_le", kLaneLe},
                               {"%lanemask_gt", kLaneGt},
                               {"%lanemask_ge", kLaneGe},
                               {"%dynamic_smem_size", kDynamicShared},
                               {"%total_smem_size", kTotalShared},
                               {"%smid", kZero},
                               {"%cluster_ctarank", kZero},
                               {"%cluster_ctaid.x", kZero},
                               {"%cluster_ctaid.y", kZero},
                               {"%cluster_ctaid.z", kZero},
                               {"%cluster_nctarank", kOne},
                               {"%cluster_nctaid.x", kOne},
                               {"%cluster_nctaid.y", kOne},
                               {"%cluster_nctaid.z", kOne},
                               {"%clusterid.x", kCtaidX},
                               {"%clusterid.y", kCtaidY},
                               {"%clusterid.z", kCtaidZ},
                               {"%nclusterid.x", kNctaidX},
                               {"%nclusterid.y", kNctaidY},
                               {"%nclusterid.z", kNctaidZ},
                               {"%is_explicit_cluster", kZero, 0},
                               {"%aggr_smem_size", kTotalShared},
                               {"%nsmid", kProcessors},
                               {"%gridid", kGridId, 8},
                               {"%gridid", kGridIdLow},
                               {"%clock", kClockLow, 4, true},
                               {"%clock_hi", kClockHigh, 4, true},
                               {"%clock64", kClock, 8, true},
                               {"%globaltimer", kClock, 8, true},
                               {"%globaltimer_lo", kClockLow, 4, true},
                               {"%globaltimer_hi", kClockHigh, 4, true},
                               {"%envreg1", kEnvironmentHigh},
                               {"%envreg2", kEnvironmentLow}};

// Types keep their order: they belong to operands.
bool is_type(std::string_view part) {
  static constexpr std::string_view kMore[] = {"f16x2", "bf16x2", "f32x2", "u16x2",  "s16x2",
                                               "tf32",  "e4m3",   "e5m2",  "e4m3x2", "e5m2x2",
                                               "s4",    "u4",     "b1",    "b128",   "ue8m0x2"};
  Type type;
  return parse_type(part, type) || std::find(std::begin(kMore), std::end(kMore), part) != std::end(kMore);
}
// ptxas accepts modifiers in any order. This is one that does not depend on how they were written: the
// others, sorted, and then the types.
std::string sorted_name(std::string_view opcode) {
  Parts parts = split(opcode);
  const auto types =
      std::stable_partition(parts.begin() + 1, parts.end(), [](auto part) { return !is_type(part); });
  std::sort(parts.begin() + 1, types);
  std::string name;
  for (const std::string_view part : parts) name.append(part).append(".");
  return name;
}
// The order in which the manual writes them, for the functions that read modifiers: an opcode has two words
// (cp.async, mbarrier.arrive, set.eq) before .sync and .aligned, and the types stand at the end.
Parts documented_order(const Parts& given) {
  Parts parts = given;
  const auto rank = [](std::string_view part) {
    return part == "sync" ? 1 : part == "aligned" ? 2 : part.starts_with("m64n") ? 3 : is_type(part) ? 5 : 4;
  };
  const bool compares = parts[0] == "set" || parts[0] == "setp";
  const auto second = std::find_if(parts.begin() + 1, parts.end(), [&](auto part) {
    return rank(part) == 4 &&
           !(compares && (part == "ftz" || part == "and" || part == "or" || part == "xor"));
  });
  if (second != parts.end()) std::rotate(parts.begin() + 1, second, second + 1);
  std::stable_sort(parts.begin() + (second != parts.end() ? 2 : 1), parts.end(),
                   [&](auto a, auto b) { return rank(a) < rank(b); });
  return parts;
}
bool find_by_modifiers(const Parts& parts, Entry& entry) {
  return find_convert(parts, entry) || find_access(parts, entry) || find_atomic(parts, entry) ||
         find_async(parts, entry) || find_mbarrier(parts, entry) || find_bulk(parts, entry) ||
         find_wgmma(parts, entry) || find_half(parts, entry);
}

}  // namespace

const Table& opcode_table() {
  static const Table all = [] {
    Table t;
    add_integer(t);
    add_logic(t);
    add_compare(t);
    add_float(t);
    add_approximate(t);
    add_collective(t);
    add_matrix(t);
    return t;
  }();
  return all;
}

bool find_entry(std::string_view opcode, Entry& entry) {
  if (opcode.starts_with("mov.") || opcode.starts_with("pack.") || opcode.starts_with("unpack."))
    return false;
  if (const auto found = opcode_table().find(std::string(opcode)); found != opcode_table().end()) {
    entry = found->second;
    return true;
  }
  const Parts parts = split(opcode);
  if (find_by_modifiers(parts, entry)) return true;
  // By their sorted names; null if two opcodes have the same one.
  static const auto sorted = [] {
    std::unordered_map<std::string, const Entry*> all;
    for (const auto& [name, one] : opcode_table())
      if (const auto [at, is_new] = all.emplace(sorted_name(name), &one); !is_new) at->second = nullptr;
    return all;
  }();
  if (const auto found = sorted.find(sorted_name(opcode)); found != sorted.end() && found->second) {
    entry = *found->second;
    return true;
  }
  entry = {};
  return parts.size() > 1 && find_by_modifiers(documented_order(parts), entry);
}

bool find_special(std::string_view name, int width, Special& to) {
  const Named* found = nullptr;
  for (const Named& s : kSpecials)
    if (s.name == name && (!found || s.width == width)) found = &s;
  if (found) {
    to = {found->row, found->width, found->is_clock};
    return true;
  }
  // The others of the 32 registers of the environment are 0.
  if (!name.starts_with("%envreg") || name.size() > 9 || name.size() < 8) return false;
  const bool digits = std::all_of(name.begin() + 7, name.end(), [](char c) { return c >= '0' && c <= '9'; });
  to = {kZero, 4, false};
  return digits && (name.size() == 8 || (name[7] != '0' && name.substr(7) < "32"));
}

}  // namespace tapestry::ptx
