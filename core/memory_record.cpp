#include "tapestry/core/memory_record.h"

#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/pinned_notes.h"

namespace tapestry {

namespace {

using Clock = std::chrono::steady_clock;

struct Block {
  Device device;
  const char* data = nullptr;
  std::int64_t bytes = 0;
  MemoryKind kind = MemoryKind::other;
  bool at_begin = false;  // it exists since before the record's begin
};

// An allocation or a release.
struct Change {
  Clock::time_point time;
  std::size_t block;
  bool allocated;
  std::int64_t total;  // the allocator's count after the change
};

struct History {
  std::mutex mutex;
  Clock::time_point began;
  std::vector<Block> blocks;
  std::map<std::pair<DeviceType, const char*>, std::size_t> live;  // the number of the block at an address
  std::vector<Change> changes;
  std::map<std::pair<DeviceType, int>, std::int64_t> totals;  // the allocators' counts at the begin
  std::int64_t pinned = 0;  // bytes of pinned host memory, which counts as memory of cpu:0 too

  std::int64_t count(Device device, const MemoryStats& stats) const {
    return stats.allocated + (device == kCPU ? pinned : 0);
  }

  // The number of the live block that contains the address, or -1.
  std::ptrdiff_t find(Device device, const void* address) const {
    auto at = live.upper_bound({device.type, static_cast<const char*>(address)});
    if (at == live.begin()) return -1;
    --at;
    const Block& block = blocks[at->second];
    const auto offset = static_cast<const char*>(address) - block.data;
    const bool inside = block.device.type == device.type && offset < block.bytes;
    return inside ? static_cast<std::ptrdiff_t>(at->second) : -1;
  }
};

// Never destroyed, because tensors in static storage are freed after main has returned.
History& history() {
  static History& one = *new History;
  return one;
}

// Notes what it does and leaves the work to another allocator. The lock makes a change and the allocator's
// count after it one step.
class NotingAllocator final : public Allocator {
 public:
  explicit NotingAllocator(Allocator& inner) : Allocator(inner.header_room()), inner_(inner) {}
  Allocator& inner() const { return inner_; }

  void* allocate(Device device, std::size_t bytes) override {
    if (!MemoryRecord::active()) return inner_.allocate(device, bytes);
    History& h = history();
    const std::lock_guard lock(h.mutex);
    void* const data = inner_.allocate(device, bytes);
    if (bytes == 0) return data;
    h.live[{device.type, static_cast<const char*>(data)}] = h.blocks.size();
    h.blocks.push_back({device, static_cast<const char*>(data), static_cast<std::int64_t>(bytes)});
    h.changes.push_back({Clock::now(), h.blocks.size() - 1, true, h.count(device, inner_.stats(device))});
    return data;
  }
  void deallocate(Device device, void* data, std::size_t bytes) noexcept override {
    History& h = history();
    const std::lock_guard lock(h.mutex);
    inner_.deallocate(device, data, bytes);
    const auto at = h.live.find({device.type, static_cast<const char*>(data)});
    if (at == h.live.end()) return;
    if (MemoryRecord::active())
      h.changes.push_back({Clock::now(), at->second, false, h.count(device, inner_.stats(device))});
    h.live.erase(at);
  }
  MemoryStats stats(Device device) const override { return inner_.stats(device); }
  void reset_peak(Device device) override { inner_.reset_peak(device); }
  void empty_cache() override { inner_.empty_cache(); }
  void copy(Device device, void* to, const void* from, std::size_t bytes) override {
    inner_.copy(device, to, from, bytes);
  }

 private:
  Allocator& inner_;
};

// The allocator that notes for `inner`. Blocks return to the allocator that they came from, maybe after
// main, so it is never destroyed.
NotingAllocator& noting(Allocator& inner) {
  static auto& all = *new std::map<Allocator*, std::unique_ptr<NotingAllocator>>;
  std::unique_ptr<NotingAllocator>& own = all[&inner];
  if (!own) own = std::make_unique<NotingAllocator>(inner);
  return *own;
}

std::vector<DeviceType> types_with_memory() {
  std::vector<DeviceType> types = {DeviceType::cpu};
  if (device_count(DeviceType::cuda) > 0) types.push_back(DeviceType::cuda);
  return types;
}

}  // namespace

std::atomic<bool> MemoryRecord::recording = false;

const char* memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::parameters:
      return "parameters";
    case MemoryKind::gradients:
      return "gradients";
    case MemoryKind::optimizer:
      return "optimizer";
    case MemoryKind::activations:
      return "activations";
    case MemoryKind::buffers:
      return "buffers";
    case MemoryKind::other:
      break;
  }
  return "other";
}

std::int64_t MemorySample::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

MemoryRecord::MemoryRecord() {
  check(!recording.exchange(true), "[MemoryRecord] there is a record already; end it first");
  {
    History& h = history();
    const std::lock_guard lock(h.mutex);
    h.blocks.clear(), h.live.clear();
    h.pinned = 0;  // what is pinned already is not counted
  }
  restart();
  for (const DeviceType type : types_with_memory()) set_allocator(type, &noting(allocator(type)));
}

MemoryRecord::~MemoryRecord() {
  for (const DeviceType type : types_with_memory())
    if (const auto* const own = dynamic_cast<NotingAllocator*>(&allocator(type)))
      set_allocator(type, &own->inner());
  recording = false;
}

void MemoryRecord::restart() {
  History& h = history();
  const std::lock_guard lock(h.mutex);
  std::vector<Block> kept;
  for (auto& [address, number] : h.live) {
    kept.push_back(h.blocks[number]);
    kept.back().at_begin = true;
    number = kept.size() - 1;
  }
  h.blocks = std::move(kept);
  h.changes.clear();
  h.totals.clear();
  for (const DeviceType type : types_with_memory())
    for (int i = 0; i < device_count(type); ++i)
      h.totals[{type, i}] = h.count(Device(type, i), memory_stats(Device(type, i)));
  h.began = Clock::now();
}

Clock::time_point MemoryRecord::began() const {
  const std::lock_guard lock(history().mutex);
  return history().began;
}

std::vector<MemorySample> MemoryRecord::samples(Device device) const {
  History& h = history();
  const std::lock_guard lock(h.mutex);
  const auto begin_total = h.totals.find({device.type, device.index});
  check<DeviceError>(begin_total != h.totals.end(), "[MemoryRecord] ", device,
                     " does not exist or has no memory; pass another device");
  constexpr auto kOther = static_cast<std::size_t>(MemoryKind::other);
  std::array<std::int64_t, kNumMemoryKinds> now{};
  std::vector<MemorySample> samples;
  // What no other kind explains is `other`. So the kinds add up to the allocator's count also if memory from
  // before the record is freed.
  const auto add = [&](double seconds, std::int64_t total) {
    MemorySample s{seconds, now};
    s.bytes[kOther] = 0;
    s.bytes[kOther] = total - s.total();
    samples.push_back(s);
  };
  for (const Block& b : h.blocks)
    if (b.at_begin && b.device == device) now[static_cast<std::size_t>(b.kind)] += b.bytes;
  add(0, begin_total->second);
  for (const Change& c : h.changes) {
    const Block& b = h.blocks[c.block];
    if (b.device != device) continue;
    now[static_cast<std::size_t>(b.kind)] += c.allocated ? b.bytes : -b.bytes;
    add(std::chrono::duration<double>(c.time - h.began).count(), c.total);
  }
  return samples;
}

namespace detail {

void note_pinned(const void* data, std::size_t bytes) {
  if (!MemoryRecord::active()) return;
  History& h = history();
  const std::lock_guard lock(h.mutex);
  const auto* const address = static_cast<const char*>(data);
  h.live[{DeviceType::cpu, address}] = h.blocks.size();
  h.blocks.push_back({kCPU, address, static_cast<std::int64_t>(bytes)});
  h.pinned += static_cast<std::int64_t>(bytes);
  h.changes.push_back({Clock::now(), h.blocks.size() - 1, true, h.count(kCPU, memory_stats(kCPU))});
}

void note_unpinned(const void* data) noexcept {
  History& h = history();
  const std::lock_guard lock(h.mutex);
  const auto at = h.live.find({DeviceType::cpu, static_cast<const char*>(data)});
  if (at == h.live.end()) return;
  h.pinned -= h.blocks[at->second].bytes;
  if (MemoryRecord::active())
    h.changes.push_back({Clock::now(), at->second, false, h.count(kCPU, memory_stats(kCPU))});
  h.live.erase(at);
}

void tag_block(Device device, const void* data, MemoryKind kind) {
  History& h = history();
  const std::lock_guard lock(h.mutex);
  const std::ptrdiff_t number = h.find(device, data);
  if (number < 0) return;
  MemoryKind& known = h.blocks[static_cast<std::size_t>(number)].kind;
  if (kind != MemoryKind::activations || known == MemoryKind::other) known = kind;
}

void inherit_block_kind(const Tensor& from, const Tensor& to) {
  MemoryKind kind;
  {
    History& h = history();
    const std::lock_guard lock(h.mutex);
    const std::ptrdiff_t number = h.find(from.device(), from.storage()->data());
    if (number < 0) return;
    kind = h.blocks[static_cast<std::size_t>(number)].kind;
  }
  tag_block(to.device(), to.storage()->data(), kind);
}

}  // namespace detail

}  // namespace tapestry
