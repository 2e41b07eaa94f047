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

struct Special {
  std::string_view name;
  SpecialRow row;
};
constexpr Special kSpecials[] = {{"%tid.x", kTidX},
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
                                 {"%nclusterid.z", kNctaidZ}};

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
  const auto found = opcode_table().find(std::string(opcode));
  if (found != opcode_table().end()) {
    entry = found->second;
    return !opcode.starts_with("mov.") && !opcode.starts_with("pack.") && !opcode.starts_with("unpack.");
  }
  const Parts parts = split(opcode);
  return find_convert(parts, entry) || find_access(parts, entry) || find_atomic(parts, entry) ||
         find_async(parts, entry) || find_mbarrier(parts, entry) || find_bulk(parts, entry) ||
         find_wgmma(parts, entry) || find_half(parts, entry);
}

bool find_special(std::string_view name, SpecialRow& row) {
  const auto found = std::find_if(std::begin(kSpecials), std::end(kSpecials),
                                  [&](const Special& s) { return s.name == name; });
  if (found == std::end(kSpecials)) return false;
  row = found->row;
  return true;
}

}  // namespace tapestry::ptx
