#include "tapestry/tools/ptx/counters.h"

#include <algorithm>
#include <charconv>

namespace tapestry::ptx {
namespace {

using u64 = std::uint64_t;

std::string_view root_of(std::string_view opcode) { return opcode.substr(0, opcode.find('.')); }
bool has(std::string_view opcode, std::string_view part) {
  for (std::size_t at = opcode.find(part); at != opcode.npos; at = opcode.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if (at > 0 && opcode[at - 1] == '.' && (end == opcode.size() || opcode[end] == '.')) return true;
  }
  return false;
}
bool is_one_of(std::string_view name, std::initializer_list<std::string_view> list) {
  return std::find(list.begin(), list.end(), name) != list.end();
}
double ratio(u64 a, u64 b) { return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b); }

}  // namespace

const char* name_of(Pipe pipe) {
  static constexpr const char* kNames[] = {"FMA", "f64", "ALU", "special", "memory", "tensor", "control"};
  return kNames[static_cast<std::size_t>(pipe)];
}

Pipe pipe_of(std::string_view opcode) {
  const std::string_view root = root_of(opcode);
  if (is_one_of(root, {"mma", "wgmma", "wmma", "tcgen05"})) return Pipe::kTensor;
  if (is_one_of(root, {"ld", "ldu", "st", "atom", "red", "cp", "ldmatrix", "stmatrix", "movmatrix", "shfl",
                       "prefetch", "prefetchu", "mbarrier", "multimem"}))
    return Pipe::kMemory;
  if (is_one_of(root, {"bra", "brx", "call", "ret", "exit", "bar", "barrier", "membar", "fence", "trap",
                       "brkpt", "nanosleep", "griddepcontrol"}))
    return Pipe::kControl;
  if (is_one_of(root, {"ex2", "lg2", "sin", "cos", "tanh", "rsqrt", "rcp", "sqrt", "div", "rem", "cvt"}))
    return has(opcode, "f64") && root != "cvt" ? Pipe::kDouble : Pipe::kSpecial;
  if (is_one_of(root, {"add", "sub", "mul", "fma", "mad"})) {
    if (has(opcode, "f64")) return Pipe::kDouble;
    for (const std::string_view type : {"f32", "f16", "f16x2", "bf16", "bf16x2", "f32x2"})
      if (has(opcode, type)) return Pipe::kFma;
  }
  return Pipe::kAlu;
}

u64 flops_of(std::string_view opcode) {
  const std::string_view root = root_of(opcode);
  const u64 operations = root == "fma" || root == "mad" ? 2 : is_one_of(root, {"add", "sub", "mul"}) ? 1 : 0;
  if (pipe_of(opcode) != Pipe::kFma) return 0;
  const bool pair = has(opcode, "f16x2") || has(opcode, "bf16x2") || has(opcode, "f32x2");
  return operations * (pair ? 2 : 1);
}

u64 tensor_products_of(std::string_view opcode) {
  const std::string_view root = root_of(opcode);
  if (root != "mma" && root != "wgmma") return 0;
  // A part like m16n8k16.
  for (std::size_t at = opcode.find(".m"); at != opcode.npos; at = opcode.find(".m", at + 1)) {
    u64 product = 1;
    const char *from = opcode.data() + at + 1, *const end = opcode.data() + opcode.size();
    bool whole = true;
    for (const char letter : {'m', 'n', 'k'}) {
      u64 value = 0;
      if (from == end || *from != letter) {
        whole = false;
        break;
      }
      const auto read = std::from_chars(from + 1, end, value);
      whole = whole && read.ec == std::errc() && read.ptr != from + 1;
      from = read.ptr;
      product *= value;
    }
    if (whole) return root == "wgmma" ? product / 4 : product;
  }
  return 0;
}

double Traffic::sectors_per_request() const { return ratio(sectors, requests); }
double SharedTraffic::passes_per_request() const { return ratio(passes, requests); }
double Counters::average_active_lanes() const { return ratio(active_lanes, warp_instructions); }
u64 Counters::moved_bytes() const { return 32 * (loads.sectors + stores.sectors + global_atomics.sectors); }
double Counters::moved_over_needed() const { return ratio(moved_bytes(), unique_read + unique_written); }

void Counters::add(const Counters& o) {
  for (u64 Counters::*const m :
       {&Counters::launches, &Counters::blocks, &Counters::threads, &Counters::warp_instructions,
        &Counters::active_lanes, &Counters::thread_instructions, &Counters::branches, &Counters::diverged,
        &Counters::barriers, &Counters::atomics, &Counters::tensor_products, &Counters::flops,
        &Counters::unique_read, &Counters::unique_written, &Counters::unique_sectors})
    this->*m += o.*m;
  for (std::size_t i = 0; i < kPipes; ++i) {
    warps_by_pipe[i] += o.warps_by_pipe[i];
    threads_by_pipe[i] += o.threads_by_pipe[i];
  }
  for (const auto& [opcode, n] : o.by_opcode) by_opcode[opcode] += n;
  const auto add_traffic = [](Traffic& a, const Traffic& b) {
    a.requests += b.requests;
    a.sectors += b.sectors;
    a.bytes += b.bytes;
  };
  const auto add_shared = [](SharedTraffic& a, const SharedTraffic& b) {
    a.requests += b.requests;
    a.passes += b.passes;
    a.conflicts += b.conflicts;
    a.bytes += b.bytes;
    a.worst = std::max(a.worst, b.worst);
  };
  for (Traffic Counters::*const m :
       {&Counters::loads, &Counters::stores, &Counters::global_atomics, &Counters::local})
    add_traffic(this->*m, o.*m);
  for (SharedTraffic Counters::*const m :
       {&Counters::shared_loads, &Counters::shared_stores, &Counters::shared_atomics})
    add_shared(this->*m, o.*m);
  for (const PlaceCounters& p : o.places) {
    const auto found = std::find_if(places.begin(), places.end(),
                                    [&](const PlaceCounters& q) { return q.place == p.place; });
    if (found == places.end()) {
      places.push_back(p);
      continue;
    }
    add_traffic(found->memory, p.memory);
    add_shared(found->shared, p.shared);
  }
}

}  // namespace tapestry::ptx
