#include "tapestry/core/allocator.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/core/internal/cpu_allocator.h"
#include "tapestry/core/philox.h"
#include "tapestry/core/tensor.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

// A device that no other test uses. It need not exist, because the allocators do not check that.
Device device_of_its_own() {
  static int next = kMaxDevices;
  return {DeviceType::cpu, --next};
}

std::unique_ptr<Allocator> make(bool caching) {
  return caching ? detail::make_caching_cpu_allocator() : detail::make_system_cpu_allocator();
}

}  // namespace

TEST_CASE("blocks are aligned and writable, and do not overlap") {
  for (const bool caching : {true, false}) {
    const auto a = make(caching);
    const Device device = device_of_its_own();
    std::vector<std::pair<unsigned char*, std::size_t>> blocks;
    std::vector<std::size_t> sizes{1,   2,   63,  64,  65,   127,  128,  129,  511,
                                   512, 513, 576, 577, 1023, 1024, 1025, 4000, 4096};
    for (std::size_t s = 5000; s < 8'000'000; s = s * 3 / 2 + 1) sizes.insert(sizes.end(), {s - 1, s, s + 1});
    for (const std::size_t bytes : sizes) {
      auto* const p = static_cast<unsigned char*>(a->allocate(device, bytes));
      REQUIRE(p != nullptr);
      REQUIRE(reinterpret_cast<std::uintptr_t>(p) % 64 == 0);
      if (a->header_room() > 0) std::memset(p - a->header_room(), 0xee, a->header_room());
      std::memset(p, static_cast<int>(blocks.size()), bytes);
      blocks.emplace_back(p, bytes);
    }
    bool intact = true;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      for (std::size_t k = 0; k < blocks[i].second; k += 61)
        intact = intact && blocks[i].first[k] == static_cast<unsigned char>(i);
    CHECK(intact);
    for (const auto& [p, bytes] : blocks) a->deallocate(device, p, bytes);
    void* const none = a->allocate(device, 0);
    CHECK((none != nullptr || a->header_room() == 0));
    a->deallocate(device, none, 0);
    a->empty_cache();
    CHECK(a->stats(device).allocated == 0);
    CHECK(a->stats(device).reserved == 0);
  }
}

TEST_CASE("statistics count the requested bytes per device") {
  for (const bool caching : {true, false}) {
    const auto a = make(caching);
    const Device device = device_of_its_own(), other = device_of_its_own();
    void* const x = a->allocate(device, 1000);
    void* const y = a->allocate(device, 1'000'000);
    MemoryStats s = a->stats(device);
    CHECK(s.allocated == 1'001'000);
    CHECK(s.peak_allocated == 1'001'000);
    CHECK(s.reserved >= s.allocated);
    CHECK(s.reserved <= s.allocated * 9 / 8 + 2 * 128);
    CHECK(s.allocations == 2);
    a->deallocate(device, y, 1'000'000);
    s = a->stats(device);
    CHECK(s.allocated == 1000);
    CHECK(s.peak_allocated == 1'001'000);
    if (caching) CHECK(s.reserved >= 1'001'000);
    else CHECK(s.reserved == 1000);
    a->reset_peak(device);
    CHECK(a->stats(device).peak_allocated == 1000);
    CHECK(a->stats(other).allocations == 0);
    CHECK(a->stats(other).reserved == 0);
    a->deallocate(device, x, 1000);
    a->empty_cache();
    CHECK(a->stats(device).reserved == 0);
    CHECK(a->stats(device).allocations == 2);
  }
}

TEST_CASE("freed blocks are reused for sizes of the same class") {
  const auto a = make(true);
  const Device device = device_of_its_own();
  for (const std::size_t bytes :
       {std::size_t{4}, std::size_t{3000}, std::size_t{100'000}, std::size_t{5'000'000}}) {
    void* const p = a->allocate(device, bytes);
    a->deallocate(device, p, bytes);
    const std::int64_t reserved = a->stats(device).reserved;
    void* const q = a->allocate(device, bytes - 1);
    CHECK(q == p);
    CHECK(a->stats(device).reserved == reserved);
    a->deallocate(device, q, bytes - 1);
  }
  a->empty_cache();
  CHECK(a->stats(device).reserved == 0);
}

TEST_CASE("cached blocks of sizes that are not requested again are released") {
  const auto a = make(true);
  const Device device = device_of_its_own();
  constexpr std::int64_t kMiB = 1 << 20;
  // The blocks are not touched, so these gigabytes are only address space. Each size has its own size class.
  for (std::int64_t bytes = 32 * kMiB; bytes < 1024 * kMiB; bytes = bytes * 9 / 8 + 1) {
    void* const p = a->allocate(device, static_cast<std::size_t>(bytes));
    a->deallocate(device, p, static_cast<std::size_t>(bytes));
    REQUIRE(a->stats(device).reserved <= 2 * bytes * 9 / 8 + 257 * kMiB);
  }
  CHECK(a->stats(device).allocated == 0);
  a->empty_cache();
  CHECK(a->stats(device).reserved == 0);
}

namespace {
// The VmFlags line of /proc/self/smaps for the mapping that contains an address; empty if it is not mapped.
std::string flags_of_mapping(const void* data) {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2) inside = begin <= at && at < end;
    else if (inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}
}  // namespace

TEST_CASE("large blocks request huge pages, and empty_cache unmaps them completely") {
  constexpr std::size_t kHugePage = 2 << 20;
  const auto a = make(true);
  const Device device = device_of_its_own();
  for (const std::size_t bytes : {kHugePage, kHugePage + 1, 3 * kHugePage / 2, 5 * kHugePage + 777}) {
    auto* const p = static_cast<char*>(a->allocate(device, bytes));
    std::memset(p, 1, bytes);
    CHECK((reinterpret_cast<std::uintptr_t>(p) - a->header_room()) % kHugePage == 0);
    const std::string first = flags_of_mapping(p), last = flags_of_mapping(p + bytes - 1);
    CHECK_THAT(first, ContainsSubstring(" rd wr "));
    CHECK_THAT(last, ContainsSubstring(" rd wr "));
    if (std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) {
      CHECK_THAT(first, ContainsSubstring(" hg "));
      CHECK_THAT(last, ContainsSubstring(" hg "));
    }
    a->deallocate(device, p, bytes);
    a->empty_cache();
    CHECK(flags_of_mapping(p - a->header_room()).empty());
    CHECK(flags_of_mapping(p + bytes - 1).empty());
  }
}

TEST_CASE("OutOfMemoryError gives the requested, allocated and reserved bytes") {
  for (const bool caching : {true, false}) {
    const auto a = make(caching);
    const Device device = device_of_its_own();
    void* const p = a->allocate(device, 640);
    CHECK_THROWS_AS(a->allocate(device, std::size_t{1} << 60), OutOfMemoryError);
    CHECK_THROWS_WITH(a->allocate(device, std::size_t{1} << 50),
                      ContainsSubstring("1125899906842624 bytes for " + device.str()) &&
                          ContainsSubstring("640 bytes are allocated") &&
                          ContainsSubstring("reserved; free tensors"));
    CHECK_THROWS_AS(a->allocate(device, ~std::size_t{0}), OutOfMemoryError);
    CHECK(a->stats(device).allocated == 640);
    CHECK(a->stats(device).allocations == 1);
    a->deallocate(device, p, 640);
  }
  CHECK_THROWS_AS(empty({std::int64_t{1} << 52}), OutOfMemoryError);
}

// Each thread writes a mark into the first and the last byte of its blocks, and passes blocks to the other
// threads through a shared list. Whoever frees a block must find the marks unchanged.
TEST_CASE("threads allocate and free each other's blocks") {
  for (const bool caching : {true, false}) {
    const auto a = make(caching);
    const Device device = device_of_its_own();
    struct Item {
      unsigned char* data;
      std::size_t bytes;
      unsigned char mark;
    };
    std::mutex mutex;
    std::vector<Item> shared;
    std::atomic<int> damaged{0};
    const auto release = [&](const Item& item) {
      if (item.data[0] != item.mark || item.data[item.bytes - 1] != item.mark) damaged.fetch_add(1);
      a->deallocate(device, item.data, item.bytes);
    };
    std::vector<std::thread> threads;
    for (std::uint64_t id = 0; id < 4; ++id)
      threads.emplace_back([&, id] {
        for (std::uint64_t i = 0; i < 3000; ++i) {
          const Philox4 r = philox(id, i);
          Item item{nullptr, 1 + r.v[0] % (r.v[1] % 16 == 0 ? 200'000u : 700u),
                    static_cast<unsigned char>(r.v[2])};
          item.data = static_cast<unsigned char*>(a->allocate(device, item.bytes));
          item.data[0] = item.data[item.bytes - 1] = item.mark;
          if (r.v[3] % 3 == 0) {
            release(item);
            continue;
          }
          const std::lock_guard lock(mutex);
          shared.push_back(item);
          if (shared.size() > 100) {
            release(shared[r.v[3] % 100]);
            shared[r.v[3] % 100] = shared.back();
            shared.pop_back();
          }
        }
      });
    for (std::thread& t : threads) t.join();
    for (const Item& item : shared) release(item);
    CHECK(damaged == 0);
    CHECK(a->stats(device).allocated == 0);
    CHECK(a->stats(device).allocations == 12'000);
    CHECK(a->stats(device).peak_allocated > 0);
    a->empty_cache();  // threads that ended have returned their cached blocks
    CHECK(a->stats(device).reserved == 0);
  }
}

TEST_CASE("memory_stats counts the memory of tensors") {
  const MemoryStats before = memory_stats(kCPU);
  {
    const Tensor t = empty({1000}, kFloat64);
    const Tensor view = detail::raw_view(t, {10}, {2}, 3);
    CHECK(memory_stats(kCPU).allocated == before.allocated + 8000);
    CHECK(memory_stats(kCPU).allocations == before.allocations + 1);
    reset_peak_memory(kCPU);
    CHECK(memory_stats(kCPU).peak_allocated == before.allocated + 8000);
    std::thread([t2 = empty({100})]() mutable { t2 = Tensor(); }).join();  // freed on another thread
  }
  CHECK(memory_stats(kCPU).allocated == before.allocated);
  CHECK(memory_stats(kCPU).peak_allocated == before.allocated + 8400);
  CHECK_NOTHROW(empty_cache());
  CHECK_THROWS_AS(memory_stats(Device("cpu:63")), DeviceError);
  CHECK_THROWS_AS(reset_peak_memory(Device("cpu:63")), DeviceError);
  if (device_count(DeviceType::cuda) == 0) CHECK_THROWS_AS(empty_cache(DeviceType::cuda), DeviceError);
}

TEST_CASE("memory is returned to the allocator that it came from") {
  Allocator& usual = allocator(DeviceType::cpu);
  const auto other = detail::make_system_cpu_allocator();
  const MemoryStats before = usual.stats(kCPU);
  Tensor old = empty({16});
  set_allocator(DeviceType::cpu, other.get());
  Tensor young = empty({4});
  CHECK(other->stats(kCPU).allocated == 16);
  old = Tensor();
  CHECK(usual.stats(kCPU).allocated == before.allocated);
  set_allocator(DeviceType::cpu, &usual);
  young = Tensor();
  CHECK(other->stats(kCPU).allocated == 0);
}

namespace {
struct Holder {
  std::vector<Tensor> tensors;
};
Holder static_holder;
Holder& thread_holder() {
  thread_local Holder holder;
  return holder;
}
}  // namespace

TEST_CASE("child: tensors outlive main", "[.]") {
  for (int i = 0; i < 200; ++i) {
    static_holder.tensors.push_back(empty({1 + i * 100}));
    thread_holder().tensors.push_back(empty({1 + i * 100}));
  }
  std::thread([] {
    // This thread calls thread_holder() before it allocates anything. So the holder's destructor is
    // registered first and runs last, after that of the allocator's cache for this thread.
    for (int i = 0; i < 200; ++i) thread_holder().tensors.push_back(empty({1 + i}));
    for (int i = 0; i < 50; ++i) empty({1 + i});
  }).join();
  std::printf("left=%d;", static_cast<int>(memory_stats(kCPU).allocations));
}

TEST_CASE("child: allocator", "[.]") {
  try {
    empty({4});
    std::printf("room=%d;", static_cast<int>(allocator(DeviceType::cpu).header_room()));
  } catch (const ValueError& e) {
    std::printf("refused: %s;", e.what());
  }
}

TEST_CASE("tensors may be freed when threads and the program end") {
  for (const char* kind : {"caching", "system"}) {
    const ChildResult child =
        run_child("child: tensors outlive main", std::string("TAPESTRY_CPU_ALLOCATOR=") + kind);
    INFO(child.output);
    CHECK(child.status == 0);
    CHECK_THAT(child.output, ContainsSubstring("left=650;"));
  }
}

TEST_CASE("TAPESTRY_CPU_ALLOCATOR chooses the allocator") {
  const auto with = [](const std::string& value) {
    return run_child("child: allocator", "TAPESTRY_CPU_ALLOCATOR=" + value).output;
  };
  CHECK_THAT(with("caching"), ContainsSubstring("room=64;"));
  CHECK_THAT(with("system"), ContainsSubstring("room=0;"));
  for (const char* bad : {"''", "Caching", "malloc"})
    CHECK_THAT(with(bad), ContainsSubstring("refused: ") && ContainsSubstring("caching or system"));
}
