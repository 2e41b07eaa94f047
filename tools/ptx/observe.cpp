#include "tapestry/tools/ptx/observe.h"

#include <algorithm>
#include <bit>

namespace tapestry::ptx {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u64 kSector = 32;

// The number of different sectors of some lanes.
u64 sectors(std::vector<u64>& scratch, const std::vector<Observer::Lane>& lanes,
            bool (*in)(const Observer::Lane&)) {
  scratch.clear();
  for (const Observer::Lane& l : lanes) {
    if (!in(l)) continue;
    for (u64 s = l.address / kSector; s <= (l.address + l.bytes - 1) / kSector; ++s)
      if (scratch.empty() || scratch.back() != s) scratch.push_back(s);
  }
  if (!std::is_sorted(scratch.begin(), scratch.end())) std::sort(scratch.begin(), scratch.end());
  return static_cast<u64>(std::unique(scratch.begin(), scratch.end()) - scratch.begin());
}

// Local memory lies on a GPU so that the same word of 32 lanes is one line of 128 bytes.
u64 local_sectors(std::vector<u64>& scratch, const std::vector<Observer::Lane>& lanes) {
  scratch.clear();
  for (const Observer::Lane& l : lanes)
    if (l.space == Space::kLocal)
      for (u64 word = l.address / 4; word <= (l.address + l.bytes - 1) / 4; ++word)
        scratch.push_back(word * 4 + l.lane / 8);
  std::sort(scratch.begin(), scratch.end());
  return static_cast<u64>(std::unique(scratch.begin(), scratch.end()) - scratch.begin());
}

}  // namespace

// ---- Footprint ----

void Footprint::add(u64 address, u32 bytes, bool read, bool write, const Touch& touch) {
  for (const u64 end = address + bytes; address < end;) {
    const u64 number = address / kPage, at = address % kPage;
    const u64 here = std::min({end - address, 64 - at % 64, kSector - at % kSector});
    if (number != last_number_) {
      last_ = &pages_[number];
      last_number_ = number;
    }
    const u64 bits = (~u64{0} >> (64 - here)) << (at % 64);
    if (read) {
      last_->read[at / 64] |= bits;
      if (Touch& first = last_->first[0][at / kSector]; !first.used) first = touch;
    }
    if (write) {
      last_->written[at / 64] |= bits;
      if (Touch& first = last_->first[1][at / kSector]; !first.used) first = touch;
    }
    address += here;
  }
}

void Footprint::each(const std::function<void(u64, u64, bool, const Touch&)>& f) const {
  std::vector<std::pair<u64, const Page*>> pages;
  for (const auto& [number, page] : pages_) pages.emplace_back(number, &page);
  std::sort(pages.begin(), pages.end());
  for (const bool write : {false, true}) {
    u64 begin = 0, end = 0;  // of the current run
    const Touch* touch = nullptr;
    for (const auto& [number, page] : pages) {
      const u64* const words = write ? page->written : page->read;
      for (u64 w = 0; w < kPage / 64; ++w)
        for (u64 bits = words[w]; bits != 0;) {
          const auto from = static_cast<u64>(std::countr_zero(bits));
          const auto count = static_cast<u64>(std::countr_one(bits >> from));
          const u64 at = number * kPage + w * 64 + from;
          if (at != end || !touch) {
            if (touch) f(begin, end - begin, write, *touch);
            begin = at;
            touch = &page->first[write ? 1 : 0][(w * 64 + from) / kSector];
          }
          end = at + count;
          bits = from + count == 64 ? 0 : bits & (~u64{0} << (from + count));
        }
    }
    if (touch) f(begin, end - begin, write, *touch);
  }
}

void Footprint::sum(u64& read, u64& written, u64& all) const {
  read = written = all = 0;
  for (const auto& [number, page] : pages_)
    for (u64 w = 0; w < kPage / 64; ++w) {
      const u64 both = page.read[w] | page.written[w];
      read += static_cast<u64>(std::popcount(page.read[w]));
      written += static_cast<u64>(std::popcount(page.written[w]));
      all += static_cast<u64>((both & 0xffffffffu) != 0) + static_cast<u64>((both >> 32) != 0);
    }
}

// ---- Observer ----

Observer::Observer(const Program& program, bool count, bool footprint)
    : program_(program), count_(count), track_(footprint), codes_(program.code.size()) {}

void Observer::access(const Lane& lane, const Footprint::Touch& touch) {
  if (track_ && (lane.space == Space::kGlobal || lane.space == Space::kConst))
    footprint_.add(lane.address, lane.bytes, lane.read, lane.write, touch);
  if (!count_) return;
  if (!lanes_.empty()) {
    // Some instructions access a range in pieces.
    Lane& last = lanes_.back();
    if (last.lane == lane.lane && last.space == lane.space && last.read == lane.read &&
        last.write == lane.write && last.address + last.bytes == lane.address) {
      last.bytes += lane.bytes;
      return;
    }
  }
  lanes_.push_back(lane);
}

// Passes through the banks, for accesses of one kind.
void Observer::shared(SharedTraffic& to, PlaceCounters& at, bool whole, bool (*in)(const Lane&)) {
  u32 widest = 0;
  u64 bytes = 0;
  for (const Lane& l : lanes_)
    if (in(l)) {
      widest = std::max(widest, l.bytes);
      bytes += l.bytes;
    }
  if (widest == 0) return;
  if (widest > 16 || whole) {
    // Copies and wgmma read whole rows.
    for (SharedTraffic* t : {&to, &at.shared}) {
      ++t->requests;
      t->passes += (bytes + 127) / 128;
      t->bytes += bytes;
    }
    return;
  }
  const u32 lanes_at_once = widest <= 4 ? 32 : widest <= 8 ? 16 : 8;
  u64 passes = 0, needed = 0;
  u32 worst = 0;
  for (u32 first = 0; first < 32; first += lanes_at_once) {
    u32 served[32] = {};
    bool any = false;
    scratch_.clear();
    for (const Lane& l : lanes_)
      if (in(l) && l.lane >= first && l.lane < first + lanes_at_once)
        for (u64 word = l.address / 4; word <= (l.address + l.bytes - 1) / 4; ++word) {
          any = true;
          // Atomics on one word come one after another.
          if (!(l.read && l.write) && std::find(scratch_.begin(), scratch_.end(), word) != scratch_.end())
            continue;
          scratch_.push_back(word);
          ++served[word % 32];
        }
    if (!any) continue;
    const u32 most = *std::max_element(served, served + 32);
    worst = std::max(worst, most);
    passes += most;
    ++needed;
  }
  for (SharedTraffic* t : {&to, &at.shared}) {
    ++t->requests;
    t->passes += passes;
    t->conflicts += passes - needed;
    t->bytes += bytes;
    t->worst = std::max(t->worst, worst);
  }
}

void Observer::global(Traffic& to, PlaceCounters& at, bool (*in)(const Lane&)) {
  u64 bytes = 0;
  for (const Lane& l : lanes_)
    if (in(l)) bytes += l.bytes;
  if (bytes == 0) return;
  const u64 n = sectors(scratch_, lanes_, in);
  for (Traffic* t : {&to, &at.memory}) {
    ++t->requests;
    t->sectors += n;
    t->bytes += bytes;
  }
}

void Observer::requests(u32 pc) {
  PlaceCounters& place = places_[pc];
  const std::string_view opcode = program_.code[pc].source->opcode;
  const bool whole = opcode.starts_with("wgmma") || opcode.starts_with("cp.async.bulk");
  bool in_shared = false, in_global = false, in_local = false;
  for (const Lane& l : lanes_) {
    in_shared = in_shared || l.space == Space::kShared;
    in_local = in_local || l.space == Space::kLocal;
    in_global = in_global || l.space == Space::kGlobal;
    if (l.read && l.write) ++counters_.atomics;
  }
  if (in_global) {
    global(counters_.loads, place,
           [](const Lane& l) { return l.space == Space::kGlobal && l.read && !l.write; });
    global(counters_.stores, place, [](const Lane& l) { return l.space == Space::kGlobal && !l.read; });
    global(counters_.global_atomics, place,
           [](const Lane& l) { return l.space == Space::kGlobal && l.read && l.write; });
  }
  if (in_shared) {
    shared(counters_.shared_loads, place, whole,
           [](const Lane& l) { return l.space == Space::kShared && l.read && !l.write; });
    shared(counters_.shared_stores, place, whole,
           [](const Lane& l) { return l.space == Space::kShared && !l.read; });
    shared(counters_.shared_atomics, place, whole,
           [](const Lane& l) { return l.space == Space::kShared && l.read && l.write; });
  }
  // Parameters of functions lie in local memory here, and in registers on a GPU.
  if (in_local && !opcode.starts_with("ld.param") && !opcode.starts_with("st.param")) {
    u64 bytes = 0;
    for (const Lane& l : lanes_)
      if (l.space == Space::kLocal) bytes += l.bytes;
    const u64 n = local_sectors(scratch_, lanes_);
    for (Traffic* t : {&counters_.local, &place.memory}) {
      ++t->requests;
      t->sectors += n;
      t->bytes += bytes;
    }
  }
  lanes_.clear();
}

Counters Observer::result() {
  Counters c = counters_;
  for (u32 pc = 0; pc < codes_.size(); ++pc) {
    const PerCode& p = codes_[pc];
    if (p.warps == 0 || program_.code[pc].run == &run_copies) continue;
    const std::string_view opcode = program_.code[pc].source->opcode;
    const auto pipe = static_cast<std::size_t>(pipe_of(opcode));
    c.warp_instructions += p.warps;
    c.active_lanes += p.active;
    c.thread_instructions += p.threads;
    c.warps_by_pipe[pipe] += p.warps;
    c.threads_by_pipe[pipe] += p.threads;
    c.by_opcode[std::string(opcode)] += p.warps;
    c.tensor_products += p.warps * tensor_products_of(opcode);
    c.flops += p.threads * flops_of(opcode);
    if (opcode.starts_with("bra") || opcode.starts_with("brx")) {
      c.branches += p.warps;
      c.diverged += p.diverged;
    }
  }
  footprint_.sum(c.unique_read, c.unique_written, c.unique_sectors);
  for (auto& [pc, place] : places_) {
    place.place = program_.line_of(pc) + " (" + std::string(program_.code[pc].source->opcode) + ")";
    c.places.push_back(place);
  }
  return c;
}

}  // namespace tapestry::ptx
