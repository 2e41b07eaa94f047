#pragma once
// What a launch does to memory, for counters and for the order of streams: every access of a warp's
// instruction, and which bytes were touched.
#include <bit>
#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

#include "tapestry/tools/ptx/counters.h"
#include "tapestry/tools/ptx/program.h"

namespace tapestry::ptx {

/// Which bytes of global memory a launch has read and written, and who touched each 32 bytes first.
class Footprint {
 public:
  struct Touch {
    std::uint32_t pc = 0, thread = 0;  // the thread in its block
    std::uint32_t block = 0;
    bool used = false;
  };
  void add(std::uint64_t address, std::uint32_t bytes, bool read, bool write, const Touch& touch);
  /// Calls f(address, bytes, write, touch) for each run of bytes that were read, and that were written.
  void each(const std::function<void(std::uint64_t, std::uint64_t, bool, const Touch&)>& f) const;
  /// The number of bytes that were read and were written, and of 32-byte sectors that were touched.
  void sum(std::uint64_t& read, std::uint64_t& written, std::uint64_t& sectors) const;

 private:
  static constexpr std::uint64_t kPage = 1024;
  struct Page {
    std::uint64_t read[kPage / 64] = {}, written[kPage / 64] = {};
    Touch first[2][kPage / 32];  // read, written
  };
  std::unordered_map<std::uint64_t, Page> pages_;
  std::uint64_t last_number_ = ~std::uint64_t{0};
  Page* last_ = nullptr;
};

/// Collects what instructions do. One for a launch.
class Observer {
 public:
  Observer(const Program& program, bool count, bool footprint);

  struct Lane {
    std::uint64_t address;
    std::uint32_t bytes;
    std::uint8_t lane;
    Space space;
    bool read, write;
  };
  /// A lane of the running instruction accesses memory.
  void access(const Lane& lane, const Footprint::Touch& touch);
  /// The instruction has ended: it executed in `mask` of the `active` lanes.
  void executed(std::uint32_t pc, std::uint32_t active, std::uint32_t mask) {
    if (!count_) return;
    PerCode& p = codes_[pc];
    ++p.warps;
    p.active += static_cast<std::uint32_t>(std::popcount(active));
    p.threads += static_cast<std::uint32_t>(std::popcount(mask));
    if (!lanes_.empty()) requests(pc);
  }
  void diverged(std::uint32_t pc) { ++codes_[pc].diverged; }
  void barrier() { ++counters_.barriers; }
  Counters result();
  const Footprint& footprint() const { return footprint_; }

 private:
  struct PerCode {
    std::uint64_t warps = 0, active = 0, threads = 0, diverged = 0;
  };
  void requests(std::uint32_t pc);
  void global(Traffic& to, PlaceCounters& at, bool (*in)(const Lane&));
  void shared(SharedTraffic& to, PlaceCounters& at, bool whole, bool (*in)(const Lane&));

  const Program& program_;
  bool count_, track_;
  std::vector<PerCode> codes_;
  std::vector<Lane> lanes_;
  std::vector<std::uint64_t> scratch_;
  Footprint footprint_;
  Counters counters_;
  std::map<std::uint32_t, PlaceCounters> places_;
};

}  // namespace tapestry::ptx
