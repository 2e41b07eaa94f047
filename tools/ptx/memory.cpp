#include "tapestry/tools/ptx/memory.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tapestry/tools/ptx/error.h"

namespace tapestry::ptx {
namespace {

constexpr std::size_t kMostFreed = 1024;
constexpr std::uint64_t kMostKept = 64 << 20;

bool begins_before(std::uint64_t address, const Allocation& a) { return address < a.begin; }
std::string bytes_text(std::uint64_t n) { return std::to_string(n) + (n == 1 ? " byte" : " bytes"); }

}  // namespace

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::uint64_t Memory::allocate(std::uint64_t bytes) {
  if (bytes == 0 || bytes > (std::uint64_t{1} << 36))
    throw UsageError("[ptx] cannot allocate " + bytes_text(bytes));
  Allocation a;
  // Two allocations never touch, so that an access beyond one of them is not inside the next.
  a.owned_data = std::make_unique<std::byte[]>(bytes + 768);
  a.owned_states = std::make_unique<std::uint8_t[]>(bytes);
  std::memset(a.owned_data.get(), 0xff, bytes + 768);
  std::memset(a.owned_states.get(), kUninitialised, bytes);
  const auto address = reinterpret_cast<std::uint64_t>(a.owned_data.get());
  a.begin = (address + 256 + 255) / 256 * 256;
  a.bytes = bytes;
  a.data = a.owned_data.get() + (a.begin - address);
  a.states = a.owned_states.get();
  const std::uint64_t begin = a.begin;
  forget(begin, begin + bytes);
  allocations_.insert(std::upper_bound(allocations_.begin(), allocations_.end(), begin, begins_before),
                      std::move(a));
  return begin;
}

void Memory::add(std::uint64_t begin, void* data, std::uint64_t bytes, bool initialised) {
  const auto next = std::upper_bound(allocations_.begin(), allocations_.end(), begin, begins_before);
  if (bytes == 0 || begin >= kMaxAddress - bytes ||
      (next != allocations_.end() && next->begin < begin + bytes) ||
      (next != allocations_.begin() && std::prev(next)->end() > begin))
    throw UsageError("[ptx] memory at " + hex(begin) + " is empty or overlaps other memory");
  forget(begin, begin + bytes);
  Allocation a;
  a.begin = begin;
  a.bytes = bytes;
  a.data = static_cast<std::byte*>(data);
  if (!initialised) {
    a.owned_states = std::make_unique<std::uint8_t[]>(bytes);
    std::memset(a.owned_states.get(), kUninitialised, bytes);
    a.states = a.owned_states.get();
  }
  allocations_.insert(next, std::move(a));
}

void Memory::remove(std::uint64_t address, std::string by) {
  const Allocation* const found = find(address);
  if (!found || found->begin != address) throw UsageError("[ptx] no allocation begins at " + hex(address));
  const auto at = allocations_.begin() + (found - allocations_.data());
  if (at->owned_data) kept_bytes_ += at->bytes;
  freed_.push_back({at->begin, at->bytes, std::move(by), std::move(at->owned_data)});
  allocations_.erase(at);
  while (freed_.size() > kMostFreed || kept_bytes_ > kMostKept) {
    if (freed_.front().data) kept_bytes_ -= freed_.front().bytes;
    freed_.pop_front();
  }
}

// New memory is where something had been freed.
void Memory::forget(std::uint64_t begin, std::uint64_t end) {
  std::erase_if(freed_,
                [&](const Freed& f) { return !f.data && f.begin < end && begin < f.begin + f.bytes; });
}

const Allocation* Memory::find(std::uint64_t address) const {
  const auto next = std::upper_bound(allocations_.begin(), allocations_.end(), address, begins_before);
  if (next == allocations_.begin()) return nullptr;
  const Allocation& a = *std::prev(next);
  return address < a.end() ? &a : nullptr;
}

const Allocation& Memory::range(std::uint64_t address, std::uint64_t bytes) const {
  const Allocation* const a = find(address);
  if (!a || bytes > a->end() - address)
    throw UsageError("[ptx] a copy of " + bytes_text(bytes) + " is " + describe(address, bytes));
  return *a;
}

void Memory::write(std::uint64_t address, const void* from, std::uint64_t bytes) {
  if (bytes == 0) return;
  const Allocation& a = range(address, bytes);
  std::memcpy(a.data + (address - a.begin), from, bytes);
  if (a.states) std::memset(a.states + (address - a.begin), kInitialised, bytes);
}

void Memory::read(std::uint64_t address, void* to, std::uint64_t bytes) const {
  if (bytes == 0) return;
  const Allocation& a = range(address, bytes);
  std::memcpy(to, a.data + (address - a.begin), bytes);
}

std::uint64_t Memory::uninitialised(std::uint64_t address, std::uint64_t bytes) const {
  const Allocation& a = range(address, bytes);
  if (!a.states) return 0;
  const std::uint8_t* const states = a.states + (address - a.begin);
  return static_cast<std::uint64_t>(
      std::count_if(states, states + bytes, [](std::uint8_t s) { return s != kInitialised; }));
}

std::string Memory::describe(std::uint64_t address, std::uint64_t bytes) const {
  for (auto f = freed_.rbegin(); f != freed_.rend(); ++f)
    if (address >= f->begin && address < f->begin + f->bytes && !find(address))
      return "byte " + std::to_string(address - f->begin) + " of memory that was freed" +
             (f->by.empty() ? "" : " by " + f->by) + ", an allocation of " + bytes_text(f->bytes) + " at " +
             hex(f->begin);
  const auto next = std::upper_bound(allocations_.begin(), allocations_.end(), address, begins_before);
  const Allocation* const before = next == allocations_.begin() ? nullptr : &*std::prev(next);
  const Allocation* const after = next == allocations_.end() ? nullptr : &*next;
  const auto of = [](const Allocation& a) {
    return " of an allocation of " + bytes_text(a.bytes) + " at " + hex(a.begin);
  };
  const std::uint64_t beyond = before ? address + bytes - before->end() : 0;
  const std::uint64_t ahead = after ? after->begin - address : 0;
  if (before && (!after || beyond <= ahead)) {
    if (address < before->end()) return bytes_text(beyond) + " over the end" + of(*before);
    return bytes_text(address - before->end()) + " beyond the end" + of(*before);
  }
  if (after) return bytes_text(ahead) + " before the beginning" + of(*after);
  return "outside of all memory: there are no allocations";
}

}  // namespace tapestry::ptx
