#include "tapestry/tools/ptx/gpu.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "tapestry/tools/ptx/error.h"

namespace tapestry::ptx {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

// A100: 1555 GB/s at 1.41 GHz. H100: 3350 GB/s at 1.83 GHz, the clock of its quoted tensor rate.
constexpr Gpu kA100{"A100", 108, 64, 32, 65536, 164 * 1024, 163 * 1024, 1555e9 / 1.41e9 / 108,
                    64,     64,  32, 64, 16,    1024};
constexpr Gpu kH100{"H100", 132, 64, 32, 65536, 228 * 1024, 227 * 1024, 3350e9 / 1.83e9 / 132,
                    64,     128, 64, 64, 16,    2048};

constexpr u32 kSchedulers = 4, kRegisterUnit = 256, kSharedUnit = 128, kSystemShared = 1024;
constexpr double kMemoryLatency = 600, kWarpsForArithmetic = 16, kWarpsForTensor = 4;

u64 round_up(u64 value, u64 unit) { return (value + unit - 1) / unit * unit; }

u64 number_before(std::string_view line, std::string_view what) {
  const std::size_t at = line.find(what);
  if (at == line.npos || at == 0) return 0;
  std::size_t first = at;
  while (first > 0 && line[first - 1] >= '0' && line[first - 1] <= '9') --first;
  u64 value = 0;
  std::from_chars(line.data() + first, line.data() + at, value);
  return value;
}
u64 number_behind(std::string_view line, std::string_view what) {
  const std::size_t at = line.find(what);
  u64 value = 0;
  if (at != line.npos) std::from_chars(line.data() + at + what.size(), line.data() + line.size(), value);
  return value;
}

}  // namespace

const Gpu& gpu_of(int architecture) {
  if (architecture == 80) return kA100;
  if (architecture == 90) return kH100;
  throw UsageError("[ptx] nothing is known about a GPU of sm_" + std::to_string(architecture) +
                   "; use 80 or 90");
}

std::map<std::string, Resources> parse_resources(std::string_view text, int architecture) {
  std::map<std::string, Resources> found;
  const std::string wanted = "sm_" + std::to_string(architecture);
  bool counts = true;
  std::string kernel;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (const std::size_t name = line.find("Compiling entry function '"); name != line.npos) {
      const std::size_t first = name + 26, last = line.find('\'', first);
      kernel = std::string(line.substr(first, last - first));
      const std::size_t arch = line.find("'sm_", last);
      counts = arch == line.npos || line.substr(arch + 1, wanted.size()) == wanted;
    } else if (const std::size_t arch = line.find("arch = sm_"); arch != line.npos) {
      counts = line.substr(arch + 7, wanted.size()) == wanted;
    } else if (const std::size_t function = line.find("Function ");
               function != line.npos && line.ends_with(":")) {
      const std::size_t first = function + 9;  // cuobjdump: " Function k:"
      kernel = std::string(line.substr(first, line.size() - 1 - first));
    } else if (counts && !kernel.empty()) {
      Resources& r = found[kernel];
      if (line.find("REG:") != line.npos) {
        r.registers = static_cast<u32>(number_behind(line, "REG:"));
        r.shared = number_behind(line, "SHARED:");
        r.stack = number_behind(line, "STACK:");
        kernel.clear();
      } else if (line.find(" registers") != line.npos) {
        r.registers = static_cast<u32>(number_before(line, " registers"));
        r.shared = number_before(line, " bytes smem");
        kernel.clear();
      } else if (line.find("spill stores") != line.npos) {
        r.stack = number_before(line, " bytes stack frame");
        r.spilled = number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
      }
    }
  }
  return found;
}

Residency residency(const Gpu& gpu, u32 registers, u64 shared, u32 threads) {
  Residency o;
  const u32 warps = (threads + 31) / 32;
  if (warps == 0 || threads > 1024) return o;
  const u64 per_warp = std::max<u64>(round_up(u64{registers} * 32, kRegisterUnit), kRegisterUnit);
  const u64 block_shared = round_up(shared + kSystemShared, kSharedUnit);
  const u64 limits[] = {gpu.warps / warps, gpu.blocks,
                        gpu.registers / kSchedulers / per_warp * kSchedulers / warps,
                        shared > gpu.shared_bytes_per_block ? 0 : gpu.shared_bytes / block_shared};
  static constexpr const char* kNames[] = {"warps", "blocks", "registers", "shared memory"};
  const auto least = std::min_element(limits, limits + 4) - limits;
  o.blocks = static_cast<u32>(limits[least]);
  o.warps = o.blocks * warps;
  o.fraction = static_cast<double>(o.warps) / gpu.warps;
  o.limit = kNames[least];
  return o;
}

const char* name_of(Bound bound) {
  static constexpr const char* kNames[] = {"bytes", "FMA", "tensor", "shared memory", "issue", "latency"};
  return kNames[static_cast<std::size_t>(bound)];
}

Verdict verdict(const Gpu& gpu, const Counters& c, const Residency& o) {
  Verdict v;
  if (c.blocks == 0 || c.launches == 0) {
    v.text = "nothing was launched";
    return v;
  }
  const auto number = [](u64 n) { return static_cast<double>(n); };
  const double blocks = number(c.blocks) / number(c.launches);
  const double sms = std::min(blocks, static_cast<double>(gpu.sms));
  const auto lanes = [&](Pipe pipe) { return number(c.threads_by_pipe[static_cast<std::size_t>(pipe)]); };
  v.clocks[0] = std::max(32 * number(c.unique_sectors) / (gpu.dram_bytes * gpu.sms),
                         number(c.moved_bytes()) / (gpu.l2_bytes * sms));
  v.clocks[1] = std::max({lanes(Pipe::kFma) / gpu.fma_lanes, lanes(Pipe::kDouble) / gpu.double_lanes,
                          lanes(Pipe::kAlu) / gpu.alu_lanes, lanes(Pipe::kSpecial) / gpu.special_lanes}) /
                sms;
  v.clocks[2] = number(c.tensor_products) / (gpu.tensor_products * sms);
  v.clocks[3] = number(c.shared_loads.passes + c.shared_stores.passes + c.shared_atomics.passes) / sms;
  v.clocks[4] = number(c.warp_instructions) / (kSchedulers * sms);
  const auto most = std::max_element(v.clocks, v.clocks + 5) - v.clocks;
  v.bound = static_cast<Bound>(most);

  const double warps_per_block = number(c.threads) / number(c.blocks) / 32;
  const double resident =
      std::min(std::max(blocks / gpu.sms, 1.0), static_cast<double>(std::max(o.blocks, 1u)));
  v.warps = resident * warps_per_block;
  const u64 requests = c.loads.requests + c.stores.requests + c.global_atomics.requests;
  if (v.bound == Bound::kBytes) {
    const double per_request = requests == 0 ? 128 : number(c.moved_bytes()) / number(requests);
    v.warps_needed = gpu.dram_bytes * kMemoryLatency / per_request;
  } else {
    v.warps_needed = v.bound == Bound::kTensor ? kWarpsForTensor : kWarpsForArithmetic;
  }
  const Bound largest = v.bound;
  if (v.warps < v.warps_needed) v.bound = Bound::kLatency;
  char text[256];
  std::snprintf(text, sizeof text, "%s dominates on %s: ", name_of(v.bound), gpu.name);
  v.text = text;
  if (v.bound == Bound::kLatency) {
    std::snprintf(text, sizeof text,
                  "an SM has %.1f warps and needs %.1f to keep its largest part busy, %s. Least clocks: ",
                  v.warps, v.warps_needed, name_of(largest));
    v.text += text;
  } else {
    v.text += "least clocks: ";
  }
  for (int i = 0; i < 5; ++i) {
    std::snprintf(text, sizeof text, "%s%s %.0f", i == 0 ? "" : ", ", name_of(static_cast<Bound>(i)),
                  v.clocks[i]);
    v.text += text;
  }
  return v;
}

}  // namespace tapestry::ptx
